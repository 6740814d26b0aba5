from __future__ import annotations

import msgspec
import pytest
from placeable_models import MIB, read_placeable, two_gpus

from bayplan.planner.api import solve_ready
from bayplan.planner.hardware.budget import device_budgets
from bayplan.planner.model_chain import model_chain
from bayplan.planner.options import PlanOptions
from bayplan.planner.previous import check_objective, moved_note, placement_before, unchanged_or
from bayplan.planner.ready import Ready, get_ready
from bayplan.planner.solve.answer import Choice
from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.moves import Before
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.errors import UsageError
from bayplan.schemas.plan import Experts, Plan
from bayplan.schemas.types import Objective, Residency


def options_of(*max_memory: str, **fields: object) -> PlanOptions:
    options = PlanOptions(inventory=two_gpus(), max_memory=max_memory)
    return msgspec.structs.replace(options, **fields)


def ready_of(*max_memory: str, **fields: object) -> Ready:
    return get_ready(options_of(*max_memory, **fields), read_placeable)


def plan_of(*max_memory: str, **fields: object) -> Plan:
    return solve_ready(ready_of(*max_memory, **fields))


STREAMED = plan_of("gpu0=12MiB", "gpu1=12MiB")
"""Fourteen blocks of 2 MiB, eight of which stream."""


def before_of(previous: Plan, ready: Ready) -> Before:
    machine = Machine(ready.inventory, device_budgets(ready.inventory, ready.max_memory))
    return placement_before(
        previous, model_chain(ready.read, ready.forms, ready.inventory), machine, ready.forms.formats
    )


def test_blocks_are_where_the_plan_has_them() -> None:
    before = before_of(STREAMED, ready_of("gpu0=12MiB", "gpu1=12MiB"))
    places = {"node0/gpu0": 0, "node0/gpu1": 1}
    assert before.choices == tuple(
        Choice(device=places[block.device], residency=block.residency) for block in STREAMED.blocks
    )
    assert before.num_slots == tuple(entry.num_slots for entry in STREAMED.schedule)


def test_devices_that_do_not_stream_have_one_slot() -> None:
    assert before_of(plan_of(), ready_of()).num_slots == (1, 1)


def test_a_device_that_is_left_out_now_is_not_there_any_more() -> None:
    before = before_of(STREAMED, ready_of("gpu0=0"))
    gone = [block.device == "node0/gpu0" for block in STREAMED.blocks]
    assert [choice is None for choice in before.choices] == gone
    assert {choice.device for choice in before.choices if choice is not None} == {0}


def test_a_format_is_the_same_where_name_and_entry_are() -> None:
    previous = plan_of(format="nf4")
    assert None not in before_of(previous, ready_of(format="bf16,nf4")).choices
    assert set(before_of(previous, ready_of()).choices) == {None}
    formats = {
        name: msgspec.structs.replace(entry, blocksize=128) for name, entry in previous.formats.items()
    }
    other = msgspec.structs.replace(previous, formats=formats)
    assert set(before_of(other, ready_of(format="bf16,nf4")).choices) == {None}


def test_forms_are_those_of_now() -> None:
    before = before_of(plan_of(format="nf4"), ready_of(format="bf16,int8,nf4"))
    assert {choice.form for choice in before.choices if choice is not None} == {2}


@pytest.mark.parametrize(
    ("residency", "expected"),
    [
        ("with-block", None),
        ("resident", None),
        ("cache-host", SplitExperts(residency=ExpertsResidency.CACHE_HOST, slots=5)),
        ("compute-host", SplitExperts(residency=ExpertsResidency.COMPUTE_HOST, slots=5)),
    ],
)
def test_experts_apart_stay_apart(residency: str, expected: SplitExperts | None) -> None:
    experts = Experts(
        count=8, per_token=2, unit_bytes=64, format="bf16", residency=residency, slots=5, floor_slots=2
    )
    first = msgspec.structs.replace(STREAMED.blocks[0], experts=experts)
    previous = msgspec.structs.replace(STREAMED, blocks=(first, *STREAMED.blocks[1:]))
    choice = before_of(previous, ready_of("gpu0=12MiB", "gpu1=12MiB")).choices[0]
    assert choice is not None
    assert choice.experts == expected


def test_a_plan_for_another_model() -> None:
    first = msgspec.structs.replace(STREAMED.blocks[1], id="layers.x")
    previous = msgspec.structs.replace(STREAMED, blocks=(STREAMED.blocks[0], first, *STREAMED.blocks[2:]))
    with pytest.raises(UsageError) as caught:
        plan_of(previous=previous)
    assert str(caught.value) == (
        "--previous: a plan for another model (foreign), or for one that was divided otherwise: got a plan "
        "for HandMade that differs in layers.0, layers.x, needed one with the same 14 blocks\n"
        "hint: --class and --no-split as for that plan, or leave --previous out"
    )


def test_a_plan_with_more_blocks_is_for_another_model() -> None:
    more = msgspec.structs.replace(STREAMED.blocks[1], id="layers.x")
    previous = msgspec.structs.replace(STREAMED, blocks=(*STREAMED.blocks, more))
    with pytest.raises(UsageError, match=r"differs in layers\.x, needed"):
        plan_of(previous=previous)


def test_an_objective_without_a_choice() -> None:
    with pytest.raises(UsageError) as caught:
        check_objective(Objective.BALANCED)
    assert str(caught.value) == (
        "--previous: this objective leaves no choice among placements that are nearly as good: got "
        "--objective balanced, needed an objective that is a time: decode, prefill, throughput or load"
    )
    for objective in (None, Objective.DECODE, Objective.PREFILL, Objective.THROUGHPUT, Objective.LOAD):
        check_objective(objective)


def test_an_objective_without_a_choice_is_refused_before_the_model_is_read() -> None:
    def unread(_: PlanOptions) -> None:
        raise AssertionError("the model was read")

    options = options_of(previous=STREAMED, objective=Objective.SEQUENTIAL)
    with pytest.raises(UsageError, match="leaves no choice"):
        get_ready(options, unread)  # type: ignore[arg-type]


def test_the_same_call_gives_the_same_file() -> None:
    again = plan_of("gpu0=12MiB", "gpu1=12MiB", previous=STREAMED)
    assert encode_plan(again) == encode_plan(STREAMED)
    assert moved_note(again, STREAMED) == "no block moves against the previous plan"


def test_a_little_more_memory_moves_nothing() -> None:
    wider = ("gpu0=12352KiB", "gpu1=12MiB")
    kept, best = plan_of(*wider, previous=STREAMED), plan_of(*wider)
    assert [block.residency for block in kept.blocks] == [block.residency for block in STREAMED.blocks]
    assert [block.device for block in kept.blocks] == [block.device for block in STREAMED.blocks]
    assert kept.summary.moved_bytes == 0
    assert kept.summary.lower_bound_ns == best.summary.lower_bound_ns
    assert kept.summary.predicted_step_ns * 100 <= best.summary.predicted_step_ns * 102


def test_what_moved_is_in_the_plan_and_stays_when_it_is_made_again() -> None:
    narrow = ("gpu0=9MiB", "gpu1=12MiB")
    moved = plan_of(*narrow, previous=STREAMED)
    former = {block.id: block for block in STREAMED.blocks}
    blocks = [block for block in moved.blocks if block.residency != former[block.id].residency]
    assert blocks
    assert moved.summary.moved_bytes == len(blocks) * 2 * MIB
    assert moved_note(moved, STREAMED) == (
        f"{len(blocks)} blocks of 14 in other places than in the previous plan: {2 * len(blocks)}.00 MiB"
        if len(blocks) > 1
        else "1 block of 14 in other places than in the previous plan: 2.00 MiB"
    )
    assert encode_plan(plan_of(*narrow, previous=moved)) == encode_plan(moved)


def test_another_plan_keeps_its_own_figure() -> None:
    summary = msgspec.structs.replace(STREAMED.summary, moved_bytes=7)
    previous = msgspec.structs.replace(STREAMED, summary=summary)
    assert unchanged_or(STREAMED, previous).summary.moved_bytes == 7
    other = msgspec.structs.replace(STREAMED, digest=f"sha256:{'1' * 64}")
    assert unchanged_or(other, previous) == other


def test_the_digest_says_nothing_of_what_moved() -> None:
    wider = plan_of("gpu0=12800KiB", "gpu1=12MiB", previous=STREAMED)
    summary = msgspec.structs.replace(wider.summary, moved_bytes=None)
    assert plan_of("gpu0=12800KiB", "gpu1=12MiB", previous=wider).digest == wider.digest
    assert b"moved_bytes" not in encode_plan(msgspec.structs.replace(wider, summary=summary))


def test_residencies_are_kept_where_formats_change() -> None:
    """Another format moves every block that it changes, whatever else stays."""
    other = plan_of("gpu0=12MiB", "gpu1=12MiB", format="int8", previous=STREAMED)
    assert other.summary.moved_bytes == sum(block.num_bytes for block in other.blocks)
    assert all(block.residency is Residency.RESIDENT for block in other.blocks)
