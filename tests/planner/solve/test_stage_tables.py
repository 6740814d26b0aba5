from __future__ import annotations

import msgspec
import pytest
from expert_problems import mixture
from placement_problems import (
    GIGA,
    MIB,
    NO_ACTIVATIONS,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_form,
    make_inventory,
    make_link,
    make_task,
)

from bayplan.planner.solve.chain import ChainTie
from bayplan.planner.solve.stage_slots import Part
from bayplan.planner.solve.stage_tables import Entry, StageTable, stage_tables
from bayplan.planner.solve.stage_windows import OutOfWork, WindowSearch
from bayplan.planner.solve.task import Task
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Reason, Residency

A = "node0/gpu0"
HOST, DISK = Residency.STREAM_HOST, Residency.STREAM_DISK


def tables(task: Task) -> dict[int, StageTable]:
    found = stage_tables(task, frozenset(range(len(task.machine.devices))))
    assert found is not None
    return found


def only_table(task: Task) -> StageTable:
    (table,) = tables(task).values()
    return table


def rooms(table: StageTable, start: int) -> list[int]:
    return [entry.stretch.room_bytes for entry in table.from_start(start)]


def parts(table: StageTable) -> tuple[Part, ...]:
    return list(table.from_start(0))[-1].stretch.parts


def test_devices_that_are_alike_share_a_table_whatever_node_they_are_on() -> None:
    task = make_task(make_chain([64, 64]), gpus(3), {"node0/gpu2": 4096})
    own = tables(task)
    assert own[0] is own[1]
    assert own[0] is not own[2]
    assert list(stage_tables(task, frozenset({0, 2})) or ()) == [0, 2]


def test_what_is_not_weights_leaves_less_room() -> None:
    costs = [
        make_cost(64, kv_bytes=3, decode_activation_bytes=320),
        make_cost(64, buffer_bytes=5, decode_activation_bytes=32),
    ]
    task = make_task(make_chain(costs, scratch_bytes=7), gpus(1), {A: 10_000})
    assert rooms(only_table(task), 0) == [10_000 - 7 - 3 - 330, 10_000 - 7 - 3 - 5 - 330]
    assert rooms(only_table(task), 1) == [10_000 - 7 - 5 - 33]


def test_a_tied_storage_whose_first_block_is_elsewhere_leaves_less_room() -> None:
    chain = make_chain([64, 64, 64], ties=[ChainTie(positions=(0, 2), num_bytes=10)])
    table = only_table(make_task(chain, gpus(1), {A: NO_ACTIVATIONS + 500}))
    assert rooms(table, 0) == [500, 500, 500]
    assert rooms(table, 1) == [500, 490]


def test_stretches_end_where_nothing_more_fits() -> None:
    task = make_task(make_chain([make_cost(64, resident_reason=Reason.TIED)] * 4), gpus(1), {A: 128})
    assert len(list(only_table(task).from_start(0))) == 2
    assert len(list(only_table(task).from_start(3))) == 1
    streaming = make_task(make_chain([64] * 4), gpus(1), {A: 64})
    assert len(list(only_table(streaming).from_start(0))) == 4
    nothing = make_task(make_chain([make_cost(64, kv_bytes=200)] * 4), gpus(1), {A: 128})
    assert list(only_table(nothing).from_start(0)) == []


def test_stretches_end_where_a_block_is_pinned_elsewhere() -> None:
    task = make_task(make_chain([64] * 3), gpus(2), pins=(Pin(pattern="layers.1", device="node0/gpu1"),))
    own = tables(task)
    assert own[0] is not own[1]
    assert [len(list(own[0].from_start(start))) for start in range(3)] == [1, 0, 1]
    assert [len(list(own[1].from_start(start))) for start in range(3)] == [3, 2, 1]


def test_equal_stretches_share_what_is_known() -> None:
    table = only_table(make_task(make_chain([64, 64, 64, 32]), gpus(1), {A: 1000}))
    pairs = {start: list(table.from_start(start)) for start in range(4)}
    assert pairs[0][0] is pairs[1][0] is pairs[2][0]
    assert pairs[0][1] is pairs[1][1]
    assert pairs[1][1] is not pairs[2][1]
    assert table.entry(2, 4) is pairs[2][1]
    assert table.kinds == (0, 0, 0, 1)


def test_breaking_off_loses_nothing() -> None:
    table = only_table(make_task(make_chain([64] * 4), gpus(1), {A: 1000}))
    first = next(iter(table.from_start(0)))
    again = list(table.from_start(0))
    assert again[0] is first
    assert len(again) == 4


def test_ways_that_are_slower_in_no_respect_are_kept() -> None:
    """From the disk takes longer, and on a CPU costs computing: from host memory is better in both."""
    both = make_task(make_chain([64]), gpus(1), {A: 1000})
    assert [way.residency for way in parts(only_table(both))[0].streaming] == [HOST]
    fast_disk = make_task(
        make_chain([64]),
        make_inventory([make_device("gpu0")], [make_link(A, latency_ns=5)], disk_rate=GIGA),
        {A: 1000},
    )
    assert [way.transfer_ns for way in parts(only_table(fast_disk))[0].streaming] == [69]


def test_pins_say_how_a_block_may_be() -> None:
    pins = (Pin(pattern="layers.0", residency=DISK), Pin(pattern="layers.1", residency=Residency.RESIDENT))
    first, second, third = parts(only_table(make_task(make_chain([64, 64, 64]), gpus(1), pins=pins)))
    assert (first.resident_ns, [way.residency for way in first.streaming]) == (None, [DISK])
    assert (second.resident_ns, second.streaming) == (64, ())
    assert (third.resident_ns, [way.residency for way in third.streaming]) == (64, [HOST])


def test_the_least_that_a_block_computes() -> None:
    task = make_task(make_chain([64, 32]), gpus(2), pins=(Pin(pattern="layers.1", device="node0/gpu1"),))
    own = tables(task)
    assert [own[0].least_ns(0), own[0].least_ns(1)] == [64, None]
    assert [own[1].least_ns(0), own[1].least_ns(1)] == [64, 32]


def settled(below_ns: int | None) -> Entry:
    table = only_table(make_task(make_chain([64] * 4), gpus(1), {A: NO_ACTIVATIONS + 192}))
    entry = list(table.from_start(0))[-1]
    entry.settle(WindowSearch(), below_ns)
    return entry


def test_a_window_is_worked_out_or_shown_to_be_too_long() -> None:
    """Two of four blocks stream through one slot: one transfer is late, and two blocks compute meanwhile."""
    exact = settled(None)
    assert exact.is_settled
    assert exact.window is not None
    assert exact.least_ns == exact.window.window_ns == 4 * 64
    assert exact.moved_bytes == exact.window.moved_bytes == 128
    assert settled(257).window is not None
    too_long = settled(256)
    assert (too_long.window, too_long.least_ns, too_long.moved_bytes) == (None, 256, 0)
    assert not too_long.is_settled
    assert settled(100).least_ns == 256


def test_a_window_that_is_given_up_stays_at_its_floor() -> None:
    table = only_table(make_task(make_chain([64] * 4), gpus(1, rate=GIGA // 4), {A: NO_ACTIVATIONS + 192}))
    entry = list(table.from_start(0))[-1]
    floor_ns = entry.least_ns
    with pytest.raises(OutOfWork):
        entry.settle(WindowSearch(1), None)
    assert (entry.window, entry.least_ns, entry.is_settled) == (None, floor_ns, False)


def test_only_a_table_of_blocks_that_may_be_there_has_entries() -> None:
    task = make_task(make_chain([64, 64]), msgspec.structs.replace(gpus(1), links=()), {A: 64})
    assert len(list(only_table(task).from_start(0))) == 1


def test_blocks_of_several_forms_have_no_table() -> None:
    several = make_cost(64, others=[make_form(32, "int8")])
    task = make_task(make_chain([64, several]), gpus(1))
    assert stage_tables(task, frozenset({0})) is None
    pinned = make_task(make_chain([64, several]), gpus(1), pins=(Pin(pattern="layers.1", format="int8"),))
    (table,) = tables(pinned).values()
    assert [part.num_bytes for part in parts(table)] == [64, 32]


def apart(task: Task) -> Task:
    return Task(task.chain, task.machine, task.constraints, task.phase, splits_experts=True)


def test_blocks_whose_experts_are_alike_may_have_them_apart() -> None:
    costs = [mixture(64), make_cost(64), mixture(32)]
    whole = make_task(make_chain(costs), gpus(1))
    assert [part.apart for part in parts(only_table(whole))] == [None] * 3
    first, second, third = parts(only_table(apart(whole)))
    assert second.apart is None
    assert first.apart is not None
    assert first.apart == third.apart
    other = apart(make_task(make_chain([*costs, mixture(64, count=4)]), gpus(1)))
    assert stage_tables(other, frozenset({0})) is None


def test_where_experts_may_be_apart_none_are_copied() -> None:
    """No device copies them then, not even one that holds other blocks alone."""
    cost = mixture(64, unit=MIB)
    copying = msgspec.structs.replace(
        cost, forms=(msgspec.structs.replace(cost.forms[0], copied_bytes=32 * MIB),)
    )
    whole = make_task(make_chain([copying]), gpus(1), {A: 64 * MIB})
    assert rooms(only_table(whole), 0) == [64 * MIB - 33 * MIB]
    assert rooms(only_table(apart(whole)), 0) == [64 * MIB - NO_ACTIVATIONS]


def test_stretches_end_where_neither_streaming_nor_experts_apart_save_enough() -> None:
    """Caches of one slot are the least; what is on its way needs more, which is found out later."""
    cost = msgspec.structs.replace(mixture(64, unit=MIB), resident_reason=Reason.REPEATED)
    least_bytes = NO_ACTIVATIONS + 64 + MIB + 4096
    for budget_bytes, count in ((least_bytes - 1, 0), (least_bytes, 1)):
        table = only_table(apart(make_task(make_chain([cost]), gpus(1), {A: budget_bytes})))
        assert len(list(table.from_start(0))) == count
    table.entry(0, 1).settle(WindowSearch(), None)
    assert (table.entry(0, 1).least_ns, table.entry(0, 1).is_settled) == (None, True)
