"""From a plan back to the problem that it answers, so that it can be solved again without the model.

Owns what a plan keeps of its problem. A plan that others edited may not keep enough: that is said.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bayplan.planner.previous import placement_before
from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.chain import Chain, chain_from_plan
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Problem
from bayplan.schemas.errors import PlanFormatError
from bayplan.schemas.features import Feature, may_plan
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import DeviceId, NumBytes


def problem_from_plan(plan: Plan, *, where: str = "") -> Problem:
    """Return the problem that `plan` is the answer to.

    Args:
        plan: Any plan that could be read.
        where: Its file, for messages.

    Raises:
        PlanFormatError: It does not say enough to be solved again; only an edited one can.
        UsageError: Its pins contradict its blocks; likewise.
    """
    problems = tuple(_gaps(plan))
    if problems:
        raise PlanFormatError(where, "plan to be solved again", problems, hint="plan again")
    chain = for_one_batch(chain_from_plan(plan), plan.workload.batches_in_flight)
    return Problem(
        chain=chain,
        machine=Machine(plan.inventory, budgets_of_plan(plan)),
        constraints=resolve(chain, plan.problem.pins, no_spill=plan.problem.no_spill),
        objective=plan.problem.objective,
        generates=plan.model.generates,
        is_auto=plan.problem.is_auto,
        splits_experts=may_plan(Feature.SPLIT_EXPERTS, plan.inventory),
    )


def answer_from_plan(plan: Plan, problem: Problem) -> Answer | None:
    """Return what `plan` decided, as the solver has it; None: a device of a block has no budget.

    Args:
        plan: The plan.
        problem: From `problem_from_plan`.
    """
    return placement_before(plan, problem.chain, problem.machine, plan.formats).answer()


def budgets_of_plan(plan: Plan) -> dict[DeviceId, NumBytes]:
    """Return the budget of every device of the plan's inventory."""
    return {device.id: device.budget_bytes for device in plan.devices}


def _gaps(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is missing to solve the plan again, each with its path."""
    num_blocks = sum(run.count for run in plan.problem.runs)
    if num_blocks != len(plan.blocks):
        yield "$.problem.runs", f"they hold {num_blocks} blocks, the plan {len(plan.blocks)}"
    for index, run in enumerate(plan.problem.runs):
        if not run.forms:
            yield f"$.problem.runs[{index}].forms", "none"
        for form in run.forms:
            if form.format not in plan.formats:
                yield f"$.problem.runs[{index}].forms", f"{form.format!r} is not among the plan's formats"
    known = {device.id for device in plan.devices}
    for index, device in enumerate(plan.inventory.devices):
        if device.id not in known:
            yield f"$.inventory.devices[{index}].id", f"{device.id!r} is not among the plan's devices"
    ids = {block.id for block in plan.blocks}
    for index, edge in enumerate(plan.problem.edges):
        if not {edge.source, edge.target} <= ids:
            yield f"$.problem.edges[{index}]", "not between blocks of the plan"


def for_one_batch(chain: Chain, num_batches: int) -> Chain:
    """Return the chain with the cache of one batch: a plan counts those of all that are in flight."""
    if num_batches == 1:
        return chain
    costs = tuple(
        msgspec.structs.replace(cost, kv_bytes=cost.kv_bytes // num_batches) for cost in chain.costs
    )
    return msgspec.structs.replace(chain, costs=costs)
