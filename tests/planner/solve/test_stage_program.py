from __future__ import annotations

from placement_problems import (
    GIGA,
    NO_ACTIVATIONS,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
    make_task,
)

from bayplan.planner.solve.chain import ChainTie
from bayplan.planner.solve.returning import turned
from bayplan.planner.solve.stage_program import Round, StageProgram
from bayplan.planner.solve.stage_tables import StageTable, stage_tables
from bayplan.planner.solve.stage_windows import WindowSearch
from bayplan.planner.solve.task import Task

LONG = 10**9


def kept(*arguments: object, **options: object) -> Task:
    """A task in which nothing may stream."""
    return make_task(*arguments, no_spill=True, **options)


def tables(task: Task) -> dict[int, StageTable]:
    found = stage_tables(task, frozenset(range(len(task.machine.devices))))
    assert found is not None
    return found


def solve(task: Task, below_ns: int = LONG) -> Round:
    return StageProgram(task, tables(task)).solve(below_ns)


def word(found: Round) -> str:
    """Device and end of each stage."""
    assert found.best is not None
    return " ".join(f"{stage.device}:{stage.start}-{stage.stop}" for stage in found.best.stages())


def with_room(*extra_bytes: int) -> dict[str, int]:
    return {f"node0/gpu{number}": NO_ACTIVATIONS + extra for number, extra in enumerate(extra_bytes)}


def test_the_cut_lies_where_the_fewest_bytes_cross() -> None:
    costs = [make_cost(64, decode_output_bytes=size) for size in (50, 5, 50, 50)]
    found = solve(kept(make_chain(costs), gpus(2), with_room(192, 192)))
    assert word(found) == "0:0-2 1:2-4"
    assert found.best is not None
    assert found.best.time_ns == 4 * 64 + 2 * 5


def test_a_value_that_skips_the_cut_is_carried_too() -> None:
    costs = [make_cost(64, decode_output_bytes=size) for size in (20, 10, 20, 20)]
    budgets = with_room(128, 192)
    assert word(solve(kept(make_chain(costs), gpus(2), budgets))) == "0:0-2 1:2-4"
    skipping = kept(make_chain(costs, edges={(0, 3): 1000}), gpus(2), budgets)
    assert word(solve(skipping)) == "0:0-1 1:1-4"


def test_of_equally_fast_ones_the_fewest_devices() -> None:
    assert word(solve(kept(make_chain([64, 64]), gpus(3)))) == "0:0-2"


def test_a_device_may_be_left_out() -> None:
    slow = make_device("gpu1", memory_bytes_per_second=GIGA // 100)
    devices = [make_device("gpu0"), slow, make_device("gpu2")]
    inventory = make_inventory(devices, [make_link(device.id) for device in devices])
    task = kept(make_chain([64, 64]), inventory, with_room(64, 10**6, 64))
    assert word(solve(task)) == "0:0-1 2:1-2"
    own = stage_tables(task, frozenset({0, 1}))
    assert own is not None
    without = StageProgram(task, own).solve(LONG)
    assert word(without) == "0:0-1 1:1-2"


def test_without_a_way_between_them_devices_share_no_chain() -> None:
    inventory = make_inventory([make_device("gpu0"), make_device("gpu1")])
    task = kept(make_chain([64, 64]), inventory, with_room(64, 64))
    assert solve(task) == Round(best=None, doubts=(), is_cut=False)


def test_what_takes_too_long_is_left_out_and_it_says_so() -> None:
    task = kept(make_chain([64, 64]), gpus(1))
    assert word(solve(task, 129)) == "0:0-2"
    assert solve(task, 128) == Round(best=None, doubts=(), is_cut=True)


def test_of_two_ways_to_the_same_cut_the_faster_is_gone_on_from() -> None:
    """The second device is as fast as the first but for the hop before it."""
    costs = [make_cost(64, decode_output_bytes=size) for size in (7, 3, 0)]
    found = solve(kept(make_chain(costs), gpus(3), with_room(128, 128, 64)))
    assert word(found) == "0:0-2 1:2-3"
    assert found.best is not None
    assert found.best.time_ns == 3 * 64 + 2 * 3


def test_windows_that_are_not_settled_come_with_what_else_their_way_takes() -> None:
    costs = [make_cost(64, decode_output_bytes=5)] * 3
    task = kept(make_chain(costs), gpus(2), with_room(128, 64))
    own = tables(task)
    program = StageProgram(task, own)
    found = program.solve(3 * 64 + 2 * 5 + 1)
    assert word(found) == "0:0-2 1:2-3"
    first, second = own[0].entry(0, 2), own[1].entry(2, 3)
    others = {id(doubt.entry): doubt.others_ns for doubt in found.doubts}
    assert others == {id(first): 64 + 10, id(second): 128 + 10}
    first.settle(WindowSearch(), None)
    assert [doubt.entry for doubt in program.solve(LONG).doubts].count(first) == 0


def test_the_most_promising_windows_come_first() -> None:
    costs = [make_cost(64, decode_output_bytes=size) for size in (9, 3, 5, 1)]
    doubts = solve(kept(make_chain(costs), gpus(2), with_room(192, 192))).doubts
    times = [doubt.time_ns for doubt in doubts]
    assert times == [doubt.others_ns + (doubt.entry.least_ns or 0) for doubt in doubts]
    assert len(set(times)) > 1
    assert times == sorted(times)


def test_the_total_is_that_of_the_windows_that_were_found() -> None:
    costs = [make_cost(64, decode_output_bytes=5)] * 3
    task = kept(make_chain(costs), gpus(2), with_room(128, 64))
    own = tables(task)
    program = StageProgram(task, own)
    best = program.solve(LONG).best
    assert best is not None
    assert program.total_ns(best) is None
    for entry in (own[0].entry(0, 2), own[1].entry(2, 3)):
        entry.settle(WindowSearch(), None)
    assert program.total_ns(best) == best.time_ns == 3 * 64 + 10


def test_what_turns_out_not_to_fit_is_left_out() -> None:
    task = kept(make_chain([64, 64]), gpus(1))
    own = tables(task)
    program = StageProgram(task, own)
    assert word(program.solve(LONG)) == "0:0-2"
    own[0].entry(0, 2).least_ns = None
    assert program.solve(LONG).best is None


def test_the_way_back_closes_the_step_of_a_turned_chain() -> None:
    costs = [make_cost(64, decode_output_bytes=5)] * 4
    chain = make_chain(costs, ties=[ChainTie(positions=(0, 3), num_bytes=64)])
    task = turned(kept(chain, gpus(2), with_room(192, 64)))
    assert task is not None
    found = solve(task)
    assert word(found) == "0:0-3 1:3-4"
    assert found.best is not None
    assert found.best.time_ns == 4 * 64 + 2 * 10
