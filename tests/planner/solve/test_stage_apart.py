from __future__ import annotations

import msgspec
from expert_problems import mixture
from placement_problems import (
    GIGA,
    MIB,
    NO_ACTIVATIONS,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
    make_task,
)

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.stage_apart import Known, apart_floor_ns, known_window
from bayplan.planner.solve.stage_experts import Apart, best_shed
from bayplan.planner.solve.stage_slots import Stretch
from bayplan.planner.solve.stage_tables import stage_tables
from bayplan.planner.solve.stage_windows import WindowSearch
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns
from bayplan.schemas.problem import BlockRun
from bayplan.schemas.types import Objective, Reason, Residency

STAY, HOST = Residency.RESIDENT, Residency.STREAM_HOST


def stretch_of(costs: list[BlockRun], missing: int, *, rate: int = GIGA) -> tuple[Stretch, Apart]:
    """All blocks on one accelerator that lacks so many bytes for their weights."""
    weights = sum(cost.forms[0].parameter_bytes for cost in costs)
    whole = make_task(
        make_chain(costs), gpus(1, rate=rate), {"node0/gpu0": NO_ACTIVATIONS + weights - missing}
    )
    task = Task(whole.chain, whole.machine, whole.constraints, Objective.DECODE, splits_experts=True)
    tables = stage_tables(task, frozenset({0}))
    assert tables is not None
    stretch = list(tables[0].from_start(0))[-1].stretch
    assert stretch.apart is not None
    return stretch, stretch.apart


def kept(cost: BlockRun) -> BlockRun:
    """The same block, which must not stream."""
    return msgspec.structs.replace(cost, resident_reason=Reason.REPEATED)


def known(stretch: Stretch, apart: Apart) -> Known:
    found = known_window(stretch, apart, WindowSearch())
    floor_ns = apart_floor_ns(stretch, apart)
    assert found.least_ns is not None
    assert floor_ns is not None
    assert floor_ns <= found.least_ns
    return found


def computing_ns(stretch: Stretch) -> int:
    return sum(part.resident_ns or 0 for part in stretch.parts)


def test_what_fits_stays_whole() -> None:
    stretch, apart = stretch_of([mixture(MIB)] * 3, 0)
    found = known(stretch, apart)
    assert found.window is not None
    assert found.window.ways == (STAY,) * 3
    assert found.window.window_ns == found.least_ns == computing_ns(stretch)


def test_caches_take_less_than_streaming_and_nothing_mixed_is_better() -> None:
    costs = [mixture(MIB, count=8), kept(make_cost(MIB)), mixture(MIB, count=8)]
    stretch, apart = stretch_of(costs, 20 * MIB)
    found, shed = known(stretch, apart), best_shed(apart, 2, 20 * MIB)
    assert shed is not None
    assert found.window is not None
    assert (found.window.moved_bytes, found.window.num_slots) == (0, 0)
    first, second = shed.splits(apart)
    assert found.window.ways == (first, STAY, second)
    assert first == SplitExperts(residency=ExpertsResidency.CACHE_HOST, slots=first.slots)
    extra_ns = shed.extra_ns(apart, apart.cached_ns)
    assert found.window.window_ns == found.least_ns == computing_ns(stretch) + extra_ns


def test_a_fast_link_streams_the_blocks_instead() -> None:
    stretch, apart = stretch_of([mixture(256 * MIB)] * 4, 280 * MIB, rate=64 * GIGA)
    found = known(stretch, apart)
    assert found.window is not None
    assert sorted(found.window.ways) == [STAY, STAY, HOST, HOST]
    assert found.window.window_ns == computing_ns(stretch)


def test_where_both_together_could_be_better_the_bound_says_so() -> None:
    """A small block at the end could be brought in while others compute, and experts save the rest."""
    small, large = make_cost(20 * MIB), mixture(64 * MIB, count=8)
    stretch, apart = stretch_of([small, large, large, small], 60 * MIB, rate=GIGA // 4)
    found = known(stretch, apart)
    assert found.window is not None
    assert found.least_ns is not None
    assert computing_ns(stretch) <= found.least_ns < found.window.window_ns


def test_before_and_behind_what_streams_a_faster_host_may_compute_the_experts() -> None:
    """Two blocks without any stream through one slot, and the host computes the third block's."""
    costs = [make_cost(8 * MIB), make_cost(8 * MIB), mixture(MIB // 8)]
    devices = [
        make_device("gpu0", memory_bytes_per_second=GIGA // 4),
        make_device("cpu0", memory_bytes_per_second=64 * GIGA),
    ]
    for order in ((0, 1, 2), (2, 0, 1), (0, 2, 1)):
        inventory = make_inventory(devices, [make_link("node0/gpu0")], disk_rate=None)
        chain = make_chain([costs[index] for index in order])
        whole = make_task(chain, inventory, {"node0/gpu0": NO_ACTIVATIONS + 9 * MIB})
        task = Task(whole.chain, whole.machine, whole.constraints, Objective.DECODE, splits_experts=True)
        tables = stage_tables(task, frozenset({0}))
        assert tables is not None
        stretch = list(tables[0].from_start(0))[-1].stretch
        assert stretch.apart is not None
        assert stretch.apart.shortest_ns < 0
        ways = [
            Choice(device=0, residency=HOST),
            Choice(device=0, residency=HOST),
            Choice(device=0, experts=SplitExperts(residency=ExpertsResidency.COMPUTE_HOST)),
        ]
        answer = Answer(choices=tuple(ways[index] for index in order), num_slots=(1, 1))
        assert not shortages(task, answer)
        step = step_ns(task, answer)
        assert step is not None
        least_ns = known(stretch, stretch.apart).least_ns
        assert least_ns is not None
        assert least_ns <= step


def test_nothing_of_either_kind_fits_though_both_together_may() -> None:
    """Of blocks with experts that must not stream, and blocks that may, but have none."""
    stretch, apart = stretch_of([make_cost(40 * MIB)] * 2 + [kept(mixture(0, count=8))] * 2, 100 * MIB)
    assert known(stretch, apart).window is None


def test_where_nothing_can_fit_there_is_no_bound() -> None:
    stretch, apart = stretch_of([kept(mixture(MIB, count=8))] * 2, 100 * MIB)
    assert apart_floor_ns(Stretch(parts=stretch.parts, room_bytes=17 * MIB), apart) is None
    tight = Stretch(parts=stretch.parts, room_bytes=19 * MIB)
    assert apart_floor_ns(tight, apart) is not None
    assert known_window(tight, apart, WindowSearch()) == Known(least_ns=None, window=None)
