"""diff: everything that two plans say differently, what they were made from apart from what was decided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sample_plans import large_plan, smol_plan

from bayplan.planner.present.diff import diff_plans
from bayplan.planner.present.diff_show import render_diff
from bayplan.planner.present.diff_text import diff_tables, summary_line
from bayplan.planner.present.markdown import diff_markdown
from bayplan.schemas.codec import sealed
from bayplan.schemas.diff import BlockChange, ChangeKind, PlanDiff
from bayplan.schemas.plan import Block, Experts, Plan
from bayplan.schemas.types import Reason, Residency

GOLDEN = Path(__file__).parents[2] / "golden" / "diff"
replace = msgspec.structs.replace


def other_layers(plan: Plan, **changes: object) -> Plan:
    """The plan with every third layer changed in these fields."""
    blocks = tuple(
        replace(block, **changes)
        if block.id in {f"model.layers.{number}" for number in range(1, 30, 3)}
        else block
        for block in plan.blocks
    )
    return sealed(replace(plan, blocks=blocks))


STREAMED = smol_plan([number for number in range(30) if number % 3])
DIFFS = {
    "spilled": diff_plans(smol_plan(), STREAMED),
    "brought-in": diff_plans(STREAMED, smol_plan()),
    "other-model": diff_plans(STREAMED, large_plan()),
    "none": diff_plans(STREAMED, STREAMED),
}


def picture(diff: PlanDiff) -> str:
    console = Console(width=100, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(render_diff(diff))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


@pytest.mark.parametrize("name", DIFFS)
def test_picture_is_as_approved(name: str) -> None:
    assert picture(DIFFS[name]) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", DIFFS)
def test_markdown_is_as_approved(name: str) -> None:
    assert diff_markdown(DIFFS[name]) == (GOLDEN / f"{name}.md").read_text()


@given(st.sets(st.integers(0, 29)))
def test_a_plan_does_not_differ_from_itself(streamed: set[int]) -> None:
    diff = diff_plans(smol_plan(streamed), smol_plan(streamed))
    assert diff.is_empty
    assert summary_line(diff) == "Diff: none"


def test_writer_and_digest_are_not_compared() -> None:
    plan = smol_plan()
    assert diff_plans(plan, replace(plan, producer="other 2.0", digest=large_plan().digest)).is_empty


@given(st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29)))
def test_blocks_that_change_are_those_that_stream_in_one_plan_only(old: set[int], new: set[int]) -> None:
    diff = diff_plans(smol_plan(old), smol_plan(new))
    kinds = {change.id: set(change.kinds) for change in diff.blocks}
    assert {name for name in kinds if ChangeKind.SPILLED in kinds[name]} == {
        f"model.layers.{number}" for number in new - old
    }
    assert {name for name in kinds if ChangeKind.BROUGHT_IN in kinds[name]} == {
        f"model.layers.{number}" for number in old - new
    }
    assert diff.is_empty == (old == new)


def leaves(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values in a plan's tree that are no objects."""
    match value:
        case dict():
            for key, member in value.items():
                yield from leaves(member, (*path, key))
        case list() if value and isinstance(value[0], dict):
            for index, member in enumerate(value):
                yield from leaves(member, (*path, index))
        case _:
            yield path


def changed(value: object) -> object:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case list():
            return [*value, value[-1]] if value else ["x"]
        case _:
            return "x"


LARGE_TREE = msgspec.json.decode(msgspec.json.encode(large_plan()))
LARGE_PATHS = [path for path in leaves(LARGE_TREE) if path[0] not in ("digest", "producer")]


@given(st.sampled_from(LARGE_PATHS))
def test_no_field_of_a_plan_can_change_unnoticed(path: tuple[str | int, ...]) -> None:
    tree = msgspec.json.decode(msgspec.json.encode(large_plan()))
    parent = tree
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = changed(parent[path[-1]])
    try:
        other = msgspec.convert(tree, Plan)
    except msgspec.ValidationError:
        return  # A value outside its closed list: no plan.
    if path[0] == "devices" and path[-1] in ("kind", "backend", "capacity_bytes"):
        return  # These repeat the inventory; a plan where they do not is refused when read.
    assert not diff_plans(large_plan(), other).is_empty
    assert not diff_plans(other, large_plan()).is_empty


def only_change(diff: PlanDiff) -> BlockChange:
    (change,) = diff.blocks
    return change


@pytest.mark.parametrize(
    ("changes", "kinds", "row"),
    [
        (
            {"device": "node0/gpu1"},
            (ChangeKind.MOVED,),
            ">  model.layers.1-28 (every 3rd)  10  cpu -> gpu1  67.52 MiB  fits",
        ),
        (
            {"format": "fp16", "num_bytes": 1000},
            (ChangeKind.REFORMATTED, ChangeKind.RESIZED),
            "~  model.layers.1-28 (every 3rd)  10  bf16 6.75 MiB -> fp16 1000 B  9.77 KiB  fits",
        ),
        (
            {"num_bytes": 7_080_193},
            (ChangeKind.RESIZED,),
            "~  model.layers.1-28 (every 3rd)  10  7080192 -> 7080193  67.52 MiB  fits",
        ),
        (
            {"residency": Residency.STREAM_HOST, "reason": Reason.PINNED},
            (ChangeKind.SPILLED,),
            "v  model.layers.1-28 (every 3rd)  10  resident -> stream-host  67.52 MiB  fits -> pinned",
        ),
        (
            {"reason": Reason.PINNED},
            (ChangeKind.EXPLAINED,),
            "=  model.layers.1-28 (every 3rd)  10  67.52 MiB  fits -> pinned",
        ),
        (
            {"experts": Experts(count=8, per_token=2, unit_bytes=1, format="bf16", residency="resident")},
            (ChangeKind.EXPERTS,),
            None,
        ),
    ],
)
def test_row_of_a_changed_block(
    changes: dict[str, object], kinds: tuple[ChangeKind, ...], row: str | None
) -> None:
    diff = diff_plans(smol_plan(), other_layers(smol_plan(), **changes))
    assert {change.kinds for change in diff.blocks} == {kinds}
    assert len(diff.blocks) == 10
    if row is not None:
        assert row.split() in [line.split() for line in picture(diff).splitlines()]


def test_blocks_are_matched_by_id_not_by_position() -> None:
    plan = smol_plan()
    diff = diff_plans(plan, replace(plan, blocks=tuple(reversed(plan.blocks))))
    assert diff.blocks == ()
    assert [(change.path, change.before, change.after) for change in diff.decisions] == [
        ("order of blocks, position 0", "model.embed_tokens", "lm_head")
    ]


def test_added_and_removed_blocks() -> None:
    plan = smol_plan()
    shorter = replace(plan, blocks=plan.blocks[:-1])
    assert only_change(diff_plans(plan, shorter)) == BlockChange(
        id="lm_head", kinds=(ChangeKind.REMOVED,), before=plan.blocks[-1], after=None
    )
    assert only_change(diff_plans(shorter, plan)) == BlockChange(
        id="lm_head", kinds=(ChangeKind.ADDED,), before=None, after=plan.blocks[-1]
    )
    assert summary_line(diff_plans(shorter, plan)) == (
        "Diff: 1 added, 0 moved, 0 spilled, 0 reformatted; step 14.8 ms as before"
    )


def test_drift_of_a_device_that_nothing_uses_is_without_effect() -> None:
    plan = large_plan()
    spare = replace(plan.inventory.devices[1], id="node0/gpu2")
    inventory = replace(plan.inventory, devices=(*plan.inventory.devices, spare))
    diff = diff_plans(plan, replace(plan, inventory=inventory))
    assert [(drift.path, drift.relevant) for drift in diff.drift] == [
        ("inventory.devices[node0/gpu2]", False)
    ]
    assert ["inventory.devices[node0/gpu2]", "none", "present", "without", "effect"] in [
        line.split() for line in picture(diff).splitlines()
    ]


def test_drift_of_a_rate_names_device_and_field() -> None:
    plan = smol_plan()
    slower = replace(plan.inventory.devices[0], memory_bytes_per_second=11_000_000_000)
    diff = diff_plans(plan, replace(plan, inventory=replace(plan.inventory, devices=(slower,))))
    assert [(drift.path, drift.before, drift.after, drift.relevant) for drift in diff.drift] == [
        ("inventory.devices[node0/cpu].memory_bytes_per_second", 22_000_000_000, 11_000_000_000, True)
    ]
    assert "22.00 GB/s  11.00 GB/s" in picture(diff)


def test_a_library_version_is_a_note() -> None:
    plan = smol_plan()
    diff = diff_plans(plan, replace(plan, model=replace(plan.model, library_version="5.30.0")))
    assert [(drift.path, drift.relevant) for drift in diff.drift] == [("model.library_version", False)]


def test_names_are_safe_to_print() -> None:
    plan = smol_plan()
    hostile: Block = replace(plan.blocks[0], id="a\x1b[2J")
    shown = picture(diff_plans(plan, replace(plan, blocks=(hostile, *plan.blocks[1:]))))
    assert shown.isascii()
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("old_ns", "new_ns", "step"),
    [
        (41_200_000, 38_900_000, "step 41.2 -> 38.9 ms"),
        (1_200_000_000, 950_000_000, "step 1.2 s -> 950.0 ms"),
        (41_200_000, 41_200_001, "step 41.2 ms as before"),
    ],
)
def test_step_in_the_summary_line(old_ns: int, new_ns: int, step: str) -> None:
    plans = [
        replace(plan, summary=replace(plan.summary, predicted_step_ns=ns))
        for plan, ns in ((smol_plan(), old_ns), (smol_plan(), new_ns))
    ]
    assert summary_line(diff_plans(*plans)).endswith(f"; {step}")


def test_durations_that_read_alike_are_told_in_full_with_their_unit() -> None:
    plan = smol_plan()
    summary = msgspec.structs.replace(plan.summary, predicted_first_output_ns=4_302_084)
    later = msgspec.structs.replace(summary, predicted_first_output_ns=4_302_166)
    found = diff_plans(
        msgspec.structs.replace(plan, summary=summary), msgspec.structs.replace(plan, summary=later)
    )
    rows = [row for table in diff_tables(found) for row in table.rows]
    assert [row[1:3] for row in rows if "first output" in row[0]] == [("4302084 ns", "4302166 ns")]
