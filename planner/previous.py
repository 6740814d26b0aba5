"""`--previous`: what an earlier plan decided, as the solver takes it.

Owns the match between the plan's blocks, devices and formats and those of now. What is kept of it is for
`bayplan.planner.solve.stability` to say.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.planner.present.wording import count_text
from bayplan.planner.solve.answer import Choice
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.moves import Before
from bayplan.schemas.errors import UsageError, first_and_more
from bayplan.schemas.plan import Block, Experts, Format, Plan
from bayplan.schemas.sizes import format_size
from bayplan.schemas.types import Objective

WHERE_PREVIOUS = "--previous"
_SHOWN_BLOCKS = 3
_BY_RULE = (Objective.BALANCED, Objective.SEQUENTIAL)


def check_objective(objective: Objective | None) -> None:
    """Check that there is something to choose from.

    Raises:
        UsageError: The objective is a rule that leaves no choice.
    """
    if objective in _BY_RULE:
        raise UsageError(
            "this objective leaves no choice among placements that are nearly as good",
            where=WHERE_PREVIOUS,
            got=f"--objective {objective.value}",
            needed="an objective that is a time: decode, prefill, throughput or load",
        )


def placement_before(previous: Plan, chain: Chain, machine: Machine, formats: Mapping[str, Format]) -> Before:
    """Return where `previous` has the blocks of `chain`.

    Args:
        previous: A plan for the same blocks; inventory, budgets, workload and formats may be others.
        chain: What is to be placed.
        machine: Devices are the same where their ids are.
        formats: What the names of forms in `chain` mean; a format is the same where name and entry are.

    Raises:
        UsageError: It is a plan for another model, or one that was divided otherwise.
    """
    blocks = {block.id: block for block in previous.blocks}
    _check_blocks(blocks, chain, previous.model.class_name)
    places = {device.id: place for place, device in enumerate(machine.devices)}
    slots = {entry.device: entry.num_slots for entry in previous.schedule}
    same_formats = {name for name, entry in previous.formats.items() if formats.get(name) == entry}
    return Before(
        choices=tuple(
            _choice(blocks[block_id], places, same_formats, [form.format for form in cost.forms])
            for block_id, cost in zip(chain.ids, chain.costs, strict=True)
        ),
        num_slots=tuple(slots.get(device.id, 1) for device in machine.devices),
    )


def unchanged_or(plan: Plan, previous: Plan) -> Plan:
    """Return `plan`; where it is `previous` once more, with what that one moved: the file stays as it is."""
    if plan.digest != previous.digest:
        return plan
    summary = msgspec.structs.replace(plan.summary, moved_bytes=previous.summary.moved_bytes)
    return msgspec.structs.replace(plan, summary=summary)


def moved_note(plan: Plan, previous: Plan) -> str:
    """Return what `plan` moves against `previous`, in words."""
    former = {block.id: block for block in previous.blocks}
    moved = [block for block in plan.blocks if _place(block) != _place(former[block.id])]
    if not moved:
        return "no block moves against the previous plan"
    num_bytes = sum(block.num_bytes for block in moved)
    noun = count_text(len(moved), "block")
    return f"{noun} of {len(plan.blocks)} in other places than in the previous plan: {format_size(num_bytes)}"


def _place(block: Block) -> tuple[str, str, str, Experts | None]:
    return block.device, block.residency, block.format, block.experts


def _check_blocks(blocks: Mapping[str, Block], chain: Chain, class_name: str) -> None:
    other = [name for name in chain.ids if name not in blocks]
    other += [name for name in blocks if name not in set(chain.ids)]
    if other:
        raise UsageError(
            "a plan for another model (foreign), or for one that was divided otherwise",
            where=WHERE_PREVIOUS,
            got=f"a plan for {class_name} that differs in {first_and_more(other, _SHOWN_BLOCKS)}",
            needed=f"one with the same {len(chain.ids)} blocks",
            hint="--class and --no-split as for that plan, or leave --previous out",
        )


def _choice(
    block: Block, places: Mapping[str, int], same_formats: set[str], forms: list[str]
) -> Choice | None:
    """Return what a block was, in the words of now; None: its device or format is not there any more."""
    if block.device not in places or block.format not in same_formats or block.format not in forms:
        return None
    return Choice(
        device=places[block.device],
        residency=block.residency,
        form=forms.index(block.format),
        experts=_split(block.experts),
    )


def _split(experts: Experts | None) -> SplitExperts | None:
    """Return how the routed experts of a block were apart from it; None: they were not."""
    apart = {residency.value: residency for residency in ExpertsResidency}
    if experts is None or experts.residency not in apart:
        return None
    return SplitExperts(residency=apart[experts.residency], slots=experts.slots)
