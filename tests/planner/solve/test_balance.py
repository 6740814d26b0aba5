from __future__ import annotations

import msgspec
import pytest
from placement_problems import (
    GIGA,
    NO_ACTIVATIONS,
    gpus,
    make_chain,
    make_device,
    make_inventory,
    make_link,
    make_task,
)

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.balance import balanced_answer, sequential_answer
from bayplan.schemas.problem import Pin

ALL = frozenset(range(3))
A, B, C = (f"node0/gpu{number}" for number in range(3))


def devices(answer: Answer | None) -> list[int] | None:
    return None if answer is None else [choice.device for choice in answer.choices]


def budgets(*extra_bytes: int) -> dict[str, int]:
    return {f"node0/gpu{number}": NO_ACTIVATIONS + extra for number, extra in enumerate(extra_bytes)}


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [
        ([64] * 6, [0, 0, 1, 1, 2, 2]),
        ([192, 64, 64, 64], [0, 1, 1, 1]),
        ([64, 64, 320, 64, 64], [0, 0, 1, 2, 2]),
        ([64], [0]),
    ],
)
def test_the_fullest_device_has_as_few_bytes_as_can_be(sizes: list[int], shares: list[int]) -> None:
    inventory = make_inventory(
        [make_device(f"gpu{number}") for number in range(3)], [make_link(one) for one in (A, B, C)]
    )
    assert devices(balanced_answer(make_task(make_chain(sizes), inventory), ALL)) == shares


def test_of_equally_balanced_placements_the_fastest() -> None:
    """Four blocks of three need two devices in any case; the middle one is slow."""
    slow = make_device("gpu1", memory_bytes_per_second=GIGA // 100)
    inventory = make_inventory(
        [make_device("gpu0"), slow, make_device("gpu2")], [make_link(one) for one in (A, B, C)]
    )
    task = make_task(make_chain([64, 192]), inventory)
    assert devices(balanced_answer(task, ALL)) == [0, 2]


def test_only_some_devices_share() -> None:
    task = make_task(make_chain([64] * 4), gpus(3))
    assert devices(balanced_answer(task, frozenset({0, 2}))) == [0, 0, 2, 2]
    assert devices(sequential_answer(task, frozenset({1, 2}))) == [1] * 4


def test_nothing_balanced_where_nothing_fits() -> None:
    task = make_task(make_chain([64] * 4), gpus(2), budgets(64, 64))
    assert balanced_answer(task, frozenset({0, 1})) is None
    assert sequential_answer(task, frozenset({0, 1})) is None


def test_one_device_after_the_other() -> None:
    task = make_task(make_chain([64] * 6), gpus(3), budgets(192, 128, 512))
    assert devices(sequential_answer(task, ALL)) == [0, 0, 0, 1, 1, 2]


def test_the_first_device_leaves_what_the_rest_needs() -> None:
    """With the third block on the first device, the second one's could go nowhere: it is pinned there."""
    pins = (Pin(pattern="layers.2", device=B),)
    task = make_task(make_chain([64] * 4), gpus(2), budgets(256, 128), pins=pins)
    assert devices(sequential_answer(task, frozenset({0, 1}))) == [0, 0, 1, 1]
    big = make_task(make_chain([64, 64, 128, 128]), gpus(3), budgets(256, 128, 128))
    assert devices(sequential_answer(big, ALL)) == [0, 0, 0, 1]


def test_a_device_is_passed_over_where_nothing_of_it_would_do() -> None:
    task = make_task(make_chain([128, 64]), gpus(3), budgets(64, 128, 128))
    assert devices(sequential_answer(task, ALL)) == [1, 2]


def test_no_device_no_answer() -> None:
    task = make_task(make_chain([64]), gpus(1))
    assert balanced_answer(task, frozenset()) is None
    assert sequential_answer(task, frozenset()) is None


def test_not_without_ways_between_the_devices() -> None:
    inventory = msgspec.structs.replace(gpus(2), links=())
    task = make_task(make_chain([64] * 2), inventory, budgets(64, 64))
    assert sequential_answer(task, frozenset({0, 1})) is None
    assert balanced_answer(task, frozenset({0, 1})) is None


def test_not_where_host_memory_is_too_small_for_both() -> None:
    unified = [make_device(f"gpu{number}", shares_host_memory=True) for number in range(2)]
    links = [make_link(device.id) for device in unified]
    for host_bytes, is_enough in ((2 * NO_ACTIVATIONS + 256, True), (2 * NO_ACTIVATIONS + 255, False)):
        inventory = make_inventory(unified, links, host_memory_bytes=host_bytes)
        task = make_task(make_chain([64] * 4), inventory, budgets(128, 128))
        for chosen in (balanced_answer, sequential_answer):
            assert (chosen(task, frozenset({0, 1})) is not None) is is_enough
