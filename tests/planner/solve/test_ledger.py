from __future__ import annotations

import pytest
from hypothesis import given, settings
from placement_problems import (
    Candidate,
    PlacementProblem,
    make_chain,
    make_cost,
    make_device,
    needed_bytes,
    placement_problems,
)

from bayplan.planner.solve.arrange import PlacedStage
from bayplan.planner.solve.chain import Chain, ChainTie
from bayplan.planner.solve.ledger import empty_ledger, ledger_of, replica_bytes, slot_bytes
from bayplan.planner.solve.margins import (
    ACCELERATOR_RUNTIME_BYTES,
    RUNTIME_BYTES,
    activation_bounds,
    runtime_bounds,
)
from bayplan.planner.solve.placement import Solver
from bayplan.planner.solve.residents import NOTHING_STREAMS, StreamChoice
from bayplan.planner.solve.stages import Stage
from bayplan.schemas.plan import Ledger
from bayplan.schemas.types import Backend


def placed(chain: Chain, stop: int, streamed: tuple[int, ...] = (), num_slots: int = 0) -> PlacedStage:
    choice = NOTHING_STREAMS
    if streamed:
        sizes = sorted(chain.costs[index].parameter_bytes for index in streamed)
        choice = StreamChoice(
            streamed=tuple((size, sizes.count(size)) for size in sorted(set(sizes))),
            slot_bytes=sizes[-1],
            num_slots=num_slots,
            streamed_bytes=sum(sizes),
            least_streamed_bytes=sum(sizes),
            least_streamed_blocks=len(sizes),
            least_late_bytes=0,
        )
    stage = Stage(
        device=make_device("cpu"), start=0, stop=stop, compute_ns=0, choice=choice, serial_ns=0, used_bytes=0
    )
    return PlacedStage(stage=stage, choice=choice, streamed=streamed)


CHAIN = make_chain(
    [
        make_cost(640, buffer_bytes=64, kv_bytes=7, prefill_activation_bytes=1000),
        make_cost(1280, buffer_bytes=128, kv_bytes=9, decode_activation_bytes=3000),
        make_cost(640),
    ],
    base_activation_bytes=200,
    scratch_bytes=4096,
)


def test_all_resident() -> None:
    assert ledger_of(CHAIN, placed(CHAIN, 3)) == Ledger(
        weights=(2752, 2752),
        kv=(16, 16),
        activations=(3200, 3300),
        staging=(4096, 4096),
        load_transient=(0, 0),
        runtime=RUNTIME_BYTES[Backend.CPU],
    )


def test_a_streamed_block_keeps_its_buffers_and_cache() -> None:
    ledger = ledger_of(CHAIN, placed(CHAIN, 3, streamed=(1, 2), num_slots=2))
    assert ledger.weights == (640 + 64 + 128, 640 + 64 + 128)
    assert ledger.kv == (16, 16)
    assert ledger.staging == (2 * 1280 + 4096, 2 * 1280 + 4096)


def test_the_lower_bound_is_without_alignment() -> None:
    chain = make_chain([64, 64, 64])
    exact = Chain(
        ids=chain.ids,
        exact_bytes=(50, 60, 10),
        costs=chain.costs,
        ties=(),
        edges=(),
        base_activation_bytes=0,
        scratch_bytes=0,
    )
    assert ledger_of(exact, placed(exact, 2)).weights == (110, 128)
    assert ledger_of(exact, placed(exact, 3, streamed=(2,), num_slots=1)).weights == (110, 128)


def test_the_slot_holds_the_largest_streamed_block() -> None:
    assert slot_bytes(CHAIN, placed(CHAIN, 3, streamed=(0, 2), num_slots=1)) == 640
    assert slot_bytes(CHAIN, placed(CHAIN, 3)) == 0


@pytest.mark.parametrize(
    ("indices", "num_bytes"),
    [
        (range(4), 0),
        (range(1), 0),
        (range(1, 3), 192),
        (range(1, 4), 192),
        (range(3, 4), 192),
        (range(1, 2), 0),
    ],
)
def test_replicas(indices: range, num_bytes: int) -> None:
    chain = make_chain([64] * 4, ties=[ChainTie(positions=(0, 2, 3), num_bytes=130)])
    assert replica_bytes(chain, indices) == num_bytes


def test_a_device_that_holds_nothing() -> None:
    empty = empty_ledger(make_device("gpu0"))
    assert empty.runtime == (0, ACCELERATOR_RUNTIME_BYTES[1])
    others = [name for name in Ledger.__struct_fields__ if name != "runtime"]
    assert {getattr(empty, name) for name in others} == {(0, 0)}


def test_margins() -> None:
    assert activation_bounds(1000) == (1000, 1032)
    assert activation_bounds(0) == (0, 0)
    assert runtime_bounds(Backend.CUDA) == ACCELERATOR_RUNTIME_BYTES
    assert runtime_bounds(Backend.CPU) == RUNTIME_BYTES[Backend.CPU]


@given(placement_problems(max_blocks=7))
@settings(max_examples=100, deadline=None)
def test_upper_bounds_are_what_a_count_block_by_block_gives(problem: PlacementProblem) -> None:
    found = Solver(
        problem.chain, problem.inventory, problem.budgets, problem.constraints, problem.phase
    ).solve()
    if found is None:
        return
    order = [device.id for device in problem.inventory.devices]
    devices: list[int] = []
    for one in found.stages:
        devices += [order.index(one.stage.device.id)] * (one.stage.stop - one.stage.start)
    for one in found.stages:
        candidate = Candidate(
            devices=tuple(devices), streamed=one.streamed, num_slots=one.choice.num_slots, tier=found.tier
        )
        ledger = ledger_of(problem.chain, one)
        total = sum(getattr(ledger, name)[1] for name in Ledger.__struct_fields__ if name != "runtime")
        assert total == needed_bytes(problem, candidate)[one.stage.device.id]
        assert all(getattr(ledger, name)[0] <= getattr(ledger, name)[1] for name in Ledger.__struct_fields__)
