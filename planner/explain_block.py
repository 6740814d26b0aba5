"""Why one block is where it is: the other places and forms that it could have, and what each would cost.

Each is demanded of that block alone, and everything else is solved for again.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

import msgspec

from bayplan.planner.explain import solved_again
from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.feasible import is_feasible
from bayplan.planner.solve.machine import STREAM_TIERS
from bayplan.planner.solve.objectives import Problem
from bayplan.planner.solve_again import Again
from bayplan.schemas.errors import UsageError
from bayplan.schemas.explanation import Alternative, BlockExplanation
from bayplan.schemas.plan import Plan
from bayplan.schemas.progress import Progress, untold
from bayplan.schemas.types import Fqn, Residency


def explain_block(
    plan: Plan, block_id: Fqn, *, where: str = "", progress: Progress | None = None
) -> BlockExplanation:
    """Return why a block of `plan` is where it is, and the next best places.

    Args:
        plan: Any plan that could be read.
        block_id: Of one of its blocks.
        where: The plan's file, for messages.
        progress: Told of problems solved.

    Raises:
        UsageError: The plan has no such block.
        PlanFormatError: The plan does not say enough to be solved again, or contradicts itself.
    """
    index = _position(plan, block_id)
    tell = progress if progress is not None else untold
    again, answer = solved_again(plan, where)
    wanted = list(_alternatives(again.problem, answer, index))
    found: list[Alternative] = []
    for number, (alternative, constraints) in enumerate(wanted):
        tell("solving again", number, len(wanted))
        if constraints is None:
            found.append(alternative)
            continue
        found.append(_costed(again, alternative, constraints))
    tell("solving again", len(wanted), len(wanted))
    possible = sorted(
        (one for one in found if one.cost_ns is not None), key=lambda one: (one.cost_ns, one.aspect)
    )
    block = plan.blocks[index]
    return BlockExplanation(
        plan_digest=plan.digest,
        objective=plan.problem.objective,
        again_ns=again.value_ns,
        id=block.id,
        device=block.device,
        residency=block.residency,
        format=block.format,
        num_bytes=block.num_bytes,
        reason=block.reason,
        alternatives=(*possible, *(one for one in found if one.cost_ns is None)),
    )


def _position(plan: Plan, block_id: Fqn) -> int:
    ids = [block.id for block in plan.blocks]
    if block_id in ids:
        return ids.index(block_id)
    near = get_close_matches(block_id, ids, n=3)
    raise UsageError(
        "the plan has no such block",
        where="BLOCK",
        got=repr(block_id),
        needed=f"an id such as {', '.join(near or ids[:1])}",
        hint="`bayplan show` lists them",
    )


def _costed(again: Again, alternative: Alternative, constraints: Constraints) -> Alternative:
    """Return `alternative` with what it costs."""
    other = msgspec.structs.replace(again.problem, constraints=constraints)
    change_ns = again.change_ns(other) if is_feasible(other.task()) else None
    if change_ns is None:
        return msgspec.structs.replace(alternative, why_not="nothing fits then")
    is_noise = change_ns < 0 and not again.is_more(-change_ns)
    return msgspec.structs.replace(alternative, cost_ns=0 if is_noise else change_ns)


def _alternatives(
    problem: Problem, answer: Answer, index: int
) -> Iterator[tuple[Alternative, Constraints | None]]:
    """Yield what else a block could be, each with the demands to solve for; None: it is ruled out."""
    choice, machine = answer.choices[index], problem.machine
    own = machine.devices[choice.device]
    for residency in Residency:
        if residency is choice.residency:
            continue
        alternative = Alternative(aspect="residency", choice=residency.value, cost_ns=None)
        why_not = _cannot_stream(problem, index, residency, choice.device)
        if why_not:
            yield msgspec.structs.replace(alternative, why_not=why_not), None
        else:
            # On the same device: elsewhere it would be another place, not only another residency.
            demands = _with_residency(problem.constraints, index, residency)
            yield alternative, _with_device(demands, index, own.id)
    if choice.experts is not None:
        beside = _with_residency(problem.constraints, index, Residency.RESIDENT)
        yield Alternative(aspect="experts", choice="with-block", cost_ns=None), beside
    for device in _neighbours(answer, index, len(machine.devices)):
        name = machine.devices[device].id
        alternative = Alternative(aspect="device", choice=name, cost_ns=None)
        yield alternative, _with_device(problem.constraints, index, name)
    for number, form in enumerate(problem.chain.costs[index].forms):
        if number != choice.form:
            alternative = Alternative(aspect="format", choice=form.format, cost_ns=None)
            yield alternative, _with_form(problem.constraints, index, number)


def _cannot_stream(problem: Problem, index: int, residency: Residency, device: int) -> str:
    """Return why a block cannot have a residency on its device; empty: it can."""
    if residency not in STREAM_TIERS:
        return ""
    cost = problem.chain.costs[index]
    if cost.resident_reason is not None:
        return f"it must stay: {cost.resident_reason.value}"
    if problem.constraints.no_spill:
        return "--no-spill forbids it"
    if not any(form.parameter_bytes for form in cost.forms):
        return "it has no weights to bring in"
    if problem.machine.feed(device, residency) is None:
        return "there is no way from there"
    return ""


def _neighbours(answer: Answer, index: int, num_devices: int) -> tuple[int, ...]:
    """Return the devices across the nearest cuts, or next in the chain where there is no cut."""
    own = answer.choices[index].device
    before = [choice.device for choice in answer.choices[:index] if choice.device != own]
    after = [choice.device for choice in answer.choices[index:] if choice.device != own]
    found = {before[-1] if before else own - 1, after[0] if after else own + 1}
    return tuple(sorted(device for device in found if 0 <= device < num_devices))


def _with_residency(constraints: Constraints, index: int, residency: Residency) -> Constraints:
    own = (*constraints.residency[:index], residency, *constraints.residency[index + 1 :])
    return msgspec.structs.replace(constraints, residency=own)


def _with_device(constraints: Constraints, index: int, device: str) -> Constraints:
    own = (*constraints.device[:index], device, *constraints.device[index + 1 :])
    return msgspec.structs.replace(constraints, device=own)


def _with_form(constraints: Constraints, index: int, form: int) -> Constraints:
    own = (*constraints.form[:index], form, *constraints.form[index + 1 :])
    return msgspec.structs.replace(constraints, form=own)
