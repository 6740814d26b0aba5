from __future__ import annotations

import msgspec
import pytest
from brute_force import fastest
from hypothesis import assume, given, settings
from placement_problems import (
    GIGA,
    NO_ACTIVATIONS,
    PlacementProblem,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_form,
    make_inventory,
    make_link,
    make_node,
    make_task,
    placement_problems,
)

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.chain import ChainTie
from bayplan.planner.solve.resident import resident_answer, stretches
from bayplan.planner.solve.task import Task
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Reason, Residency


def devices(found: tuple[Answer, int] | None) -> list[int] | None:
    return None if found is None else [choice.device for choice in found[0].choices]


def with_budgets(*extra_bytes: int) -> dict[str, int]:
    return {f"node0/gpu{number}": NO_ACTIVATIONS + extra for number, extra in enumerate(extra_bytes)}


def test_a_slow_device_stays_unused() -> None:
    slow = make_device("gpu0", memory_bytes_per_second=GIGA // 100)
    task = make_task(make_chain([64, 64]), make_inventory([slow, make_device("gpu1")]))
    assert devices(resident_answer(task)) == [1, 1]


def test_of_equally_fast_ones_the_fewest_devices_and_the_first() -> None:
    assert devices(resident_answer(make_task(make_chain([64, 64]), gpus(3)))) == [0, 0]
    assert devices(resident_answer(make_task(make_chain([64, 64, 0]), gpus(3), with_budgets(64, 64, 0)))) == [
        0,
        1,
        1,
    ]


def test_a_hop_is_taken_where_the_fewest_bytes_cross() -> None:
    wide, narrow = make_cost(64, decode_output_bytes=500), make_cost(64, decode_output_bytes=5)
    task = make_task(make_chain([wide, narrow, wide, 64]), gpus(2), with_budgets(192, 192))
    found = resident_answer(task)
    assert devices(found) == [0, 0, 1, 1]
    assert found is not None
    assert found[1] == 4 * 64 + 2 * 5


def test_a_value_that_skips_the_cut_is_carried_too() -> None:
    """With the cut behind the second block, the value for the last one is handed on as well."""
    costs = [make_cost(64, decode_output_bytes=size) for size in (20, 10, 20, 20)]
    plain = make_task(make_chain(costs), gpus(2), with_budgets(128, 192))
    assert devices(resident_answer(plain)) == [0, 0, 1, 1]
    skipping = make_task(make_chain(costs, edges={(0, 3): 1000}), gpus(2), with_budgets(128, 192))
    assert devices(resident_answer(skipping)) == [0, 1, 1, 1]


def test_other_budgets_may_be_asked_about() -> None:
    task = make_task(make_chain([64, 64]), gpus(2))
    assert devices(resident_answer(task, budgets=(0, NO_ACTIVATIONS + 128))) == [1, 1]
    assert resident_answer(task, budgets=(0, NO_ACTIVATIONS + 127)) is None
    assert resident_answer(task, budgets=(0, 0)) is None


def test_devices_without_a_way_between_them_share_no_chain() -> None:
    inventory = msgspec.structs.replace(gpus(2), links=())
    budgets = with_budgets(64, 64)
    assert resident_answer(make_task(make_chain([64, 64]), inventory, budgets)) is None
    joined = msgspec.structs.replace(inventory, links=(make_link("node0/gpu0", "node0/gpu1"),))
    assert devices(resident_answer(make_task(make_chain([64, 64]), joined, budgets))) == [0, 1]


def test_pins_hold() -> None:
    pins = (Pin(pattern="layers.0", device="node0/gpu1"),)
    assert devices(resident_answer(make_task(make_chain([64, 64]), gpus(2), pins=pins))) == [1, 1]
    pins = (Pin(pattern="layers.0", residency=Residency.STREAM_DISK),)
    assert resident_answer(make_task(make_chain([64, 64]), gpus(2), pins=pins)) is None


def test_a_pinned_form_is_taken() -> None:
    cost = make_cost(64, others=[make_form(16, "nf4")])
    pins = (Pin(pattern="*", format="nf4"),)
    task = make_task(make_chain([cost, cost]), gpus(1), with_budgets(32), pins=pins)
    found = resident_answer(task)
    assert found is not None
    assert [choice.form for choice in found[0].choices] == [1, 1]


def stops(task: Task, start: int, budget: int) -> list[tuple[int, int, int]]:
    return [(own.stop, own.compute_ns, own.used_bytes) for own in stretches(task, 0, start, budget)]


def test_stretches_grow_until_the_budget_ends() -> None:
    costs = [make_cost(64, kv_bytes=8), make_cost(64, buffer_bytes=4), make_cost(64)]
    task = make_task(make_chain(costs, scratch_bytes=100), gpus(1))
    assert stops(task, 0, 340) == [(1, 64, 172), (2, 128, 240), (3, 192, 304)]
    assert stops(task, 1, 340) == [(2, 64, 168), (3, 128, 232)]
    assert stops(task, 0, 303) == [(1, 64, 172), (2, 128, 240)]
    assert stops(task, 0, 171) == []


def test_the_most_demanding_block_sets_the_activations() -> None:
    costs = [make_cost(0, decode_activation_bytes=size) for size in (320, 3200, 32)]
    task = make_task(make_chain(costs, base_activation_bytes=640), gpus(1))
    assert [used for _, _, used in stops(task, 0, 2**40)] == [990, 3960, 3960]


def test_a_tied_storage_counts_once_where_its_owner_is_elsewhere() -> None:
    """The owner's bytes hold it already."""
    task = make_task(
        make_chain([64, 64, 64, 64], ties=[ChainTie(positions=(0, 2, 3), num_bytes=1000)]), gpus(1)
    )
    assert [used for _, _, used in stops(task, 0, 2**40)] == [64, 128, 192, 256]
    assert [used for _, _, used in stops(task, 1, 2**40)] == [64, 1128, 1192]


@pytest.mark.parametrize(
    "pin",
    [Pin(pattern="*.1", device="node0/gpu1"), Pin(pattern="*.1", residency=Residency.STREAM_HOST)],
)
def test_stretches_end_before_what_must_be_elsewhere(pin: Pin) -> None:
    task = make_task(make_chain([64, 64, 64]), gpus(2), pins=(pin,))
    assert [stop for stop, _, _ in stops(task, 0, 2**40)] == [1]


@given(placement_problems())
@settings(max_examples=150, deadline=None)
def test_against_trying_everything(problem: PlacementProblem) -> None:
    """With one form per block and host memory enough for all, which this program does not look at."""
    costs = [msgspec.structs.replace(cost, forms=cost.forms[:1]) for cost in problem.chain.costs]
    ample = [make_node(node.id, disk_rate=None, host_memory_bytes=2**50) for node in problem.inventory.nodes]
    plain = msgspec.structs.replace(
        problem,
        chain=msgspec.structs.replace(problem.chain, costs=tuple(costs)),
        inventory=msgspec.structs.replace(problem.inventory, nodes=tuple(ample)),
        pins=tuple(msgspec.structs.replace(pin, format=None) for pin in problem.pins),
    )
    task = plain.task()
    assume(task.machine.devices)
    found, best = resident_answer(task), fastest(plain, can_stream=False)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert found[1] == best.step_ns
        assert not any(choice.streams for choice in found[0].choices)


def test_a_block_that_must_stay_is_like_any_other_here() -> None:
    task = make_task(make_chain([make_cost(64, resident_reason=Reason.TIED)]), gpus(1))
    assert devices(resident_answer(task)) == [0]
