"""What binds each device of a plan, and what one more GiB there would gain: found by solving again.

Needs the plan alone. A gain is the difference of two solved problems, never a price that a solver hands out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from bayplan.planner.explain_device import WITHOUT_PINS, Answered, explain_device
from bayplan.planner.replan import answer_from_plan, budgets_of_plan, problem_from_plan
from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.enough import with_machine
from bayplan.planner.solve.machine import with_node
from bayplan.planner.solve.objectives import Problem, place_for
from bayplan.planner.solve.placement import RELATIVE_GAP
from bayplan.planner.solve_again import Again, value_ns, value_of
from bayplan.schemas.errors import PlanFormatError
from bayplan.schemas.explanation import (
    FASTER,
    MORE_BYTES,
    Explanation,
    HostExplanation,
    RateExplanation,
)
from bayplan.schemas.hardware import Inventory, Node
from bayplan.schemas.plan import Plan
from bayplan.schemas.progress import Progress, untold
from bayplan.schemas.types import Objective, Residency, SolverStatus

_STAGE = "solving again"
_BY_RULE = (Objective.BALANCED, Objective.SEQUENTIAL)
"""What they choose is not what is fastest."""


def explain_plan(plan: Plan, *, where: str = "", progress: Progress | None = None) -> Explanation:
    """Return what binds `plan`.

    Args:
        plan: Any plan that could be read; one that was edited is explained as it stands.
        where: Its file, for messages.
        progress: Told of problems solved.

    Raises:
        PlanFormatError: It does not say enough to be solved again, or contradicts itself.
    """
    tell = progress if progress is not None else untold
    again, answer = solved_again(plan, where)
    questions = list(_questions(plan, again.problem, answer))
    gains: dict[str, int] = {}
    for number, (name, changed) in enumerate(questions):
        tell(_STAGE, number, len(questions))
        gains[name] = 0 if changed is None else again.gain_ns(changed())
    tell(_STAGE, len(questions), len(questions))
    answered = Answered(again, answer, gains)
    summary = plan.summary
    is_load = plan.problem.objective is Objective.LOAD
    return Explanation(
        plan_digest=plan.digest,
        objective=plan.problem.objective,
        planned_ns=summary.predicted_load_ns if is_load else summary.predicted_step_ns,
        again_ns=again.value_ns,
        lower_bound_ns=summary.lower_bound_ns,
        devices=tuple(explain_device(device, answered) for device in plan.devices),
        hosts=tuple(
            HostExplanation(
                id=host.id,
                budget_bytes=host.budget_bytes,
                waiting_bytes=host.waiting_bytes,
                gain_ns=gains[host.id],
            )
            for host in plan.hosts
            if host.id in gains
        ),
        rates=tuple(
            RateExplanation(ways=ways, gain_ns=gains[ways]) for ways in ("links", "disks") if ways in gains
        ),
    )


def solved_again(plan: Plan, where: str) -> tuple[Again, Answer]:
    """Return the plan's problem with what its best placement is worth, and what the plan decided.

    A plan that says that it is within the search's gap of the best is taken by its word, and is worth what
    its placement takes; another one is solved again.

    Raises:
        PlanFormatError: The plan does not say enough, or what it decided breaks its own budgets.
    """
    problem = problem_from_plan(plan, where=where)
    answer = answer_from_plan(plan, problem)
    own_ns = None if answer is None else value_of(problem, answer, plan.workload.batches_in_flight)
    if answer is None or own_ns is None:
        problems = (("$.blocks", "no such placement is possible under the plan's own budgets and links"),)
        raise PlanFormatError(where, "plan to be solved again", problems, hint="plan again")
    summary = plan.summary
    is_near = own_ns - summary.lower_bound_ns <= RELATIVE_GAP * own_ns
    if plan.problem.objective in _BY_RULE or summary.solver_status is not SolverStatus.OPTIMAL or not is_near:
        placed = place_for(problem)
        assert placed is not None, "the plan's own placement works"
        own_ns = value_ns(problem, placed)
    return Again(problem, own_ns), answer


Question = tuple[str, Callable[[], Problem] | None]
"""A name, and the problem with one thing changed; None: it is known that this changes nothing."""


def _questions(plan: Plan, problem: Problem, answer: Answer) -> Iterator[Question]:
    """Yield what is to be solved: more memory on each device and host, faster ways, no pins."""
    inventory, budgets, task = plan.inventory, budgets_of_plan(plan), problem.task()
    for device in plan.devices:
        if device.budget_bytes:
            more = {**budgets, device.id: device.budget_bytes + MORE_BYTES}
            yield device.id, partial(with_machine, problem, inventory, more)
    for place, node in enumerate(inventory.nodes):
        if any(
            problem.machine.nodes[index] == place
            and problem.machine.feed(index, Residency.STREAM_HOST) is not None
            for index in range(len(problem.machine.devices))
        ):
            more_host = partial(with_machine, problem, _more_host(inventory, node), budgets)
            yield node.id, None if task.host_holds_all(place) else more_host
    streams = any(choice.streams or choice.experts is not None for choice in answer.choices)
    if inventory.links and (streams or len({choice.device for choice in answer.choices}) > 1):
        yield "links", partial(with_machine, problem, _faster_links(inventory), budgets)
    if any(node.disk is not None for node in inventory.nodes) and (
        plan.problem.objective is Objective.LOAD
        or any(choice.residency is Residency.STREAM_DISK for choice in answer.choices)
    ):
        yield "disks", partial(with_machine, problem, _faster_disks(inventory), budgets)
    if plan.problem.pins:
        free = (None,) * len(problem.chain)
        constraints = msgspec.structs.replace(problem.constraints, device=free, residency=free, form=free)
        yield WITHOUT_PINS, partial(msgspec.structs.replace, problem, constraints=constraints)


def _more_host(inventory: Inventory, node: Node) -> Inventory:
    pinned = node.pinned_memory_bytes
    larger = msgspec.structs.replace(
        node,
        host_memory_bytes=node.host_memory_bytes + MORE_BYTES,
        pinned_memory_bytes=None if pinned is None else pinned + MORE_BYTES,
    )
    return with_node(inventory, larger)


def _faster_links(inventory: Inventory) -> Inventory:
    links = tuple(
        msgspec.structs.replace(link, bytes_per_second=FASTER * link.bytes_per_second)
        for link in inventory.links
    )
    return msgspec.structs.replace(inventory, links=links)


def _faster_disks(inventory: Inventory) -> Inventory:
    nodes = tuple(
        node
        if node.disk is None
        else msgspec.structs.replace(
            node,
            disk=msgspec.structs.replace(
                node.disk, read_bytes_per_second=FASTER * node.disk.read_bytes_per_second
            ),
        )
        for node in inventory.nodes
    )
    return msgspec.structs.replace(inventory, nodes=nodes)
