from __future__ import annotations

import msgspec
import pytest
from placement_problems import (
    GIGA,
    make_chain,
    make_cost,
    make_device,
    make_form,
    make_inventory,
    make_link,
    make_node,
    make_task,
)

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.task import Task
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Reason, Residency

STAY, HOST, DISK = Residency.RESIDENT, Residency.STREAM_HOST, Residency.STREAM_DISK
COSTS = [
    make_cost(64, decode_output_bytes=3, prefill_output_bytes=30),
    make_cost(128, others=[make_form(32, "nf4")], decode_output_bytes=5),
    make_cost(64, resident_reason=Reason.TIED),
    make_cost(0),
    make_cost(64),
]
INVENTORY = make_inventory(
    [make_device("gpu0"), make_device("gpu1", memory_bytes_per_second=GIGA // 2), make_device("cpu2")],
    [make_link("node0/gpu0", latency_ns=1), make_link("node0/gpu1", latency_ns=2)],
    disk_rate=GIGA // 4,
)


def task(**fields: object) -> Task:
    return make_task(make_chain(COSTS, edges={(0, 2): 10, (0, 4): 10, (1, 4): 100}), INVENTORY, **fields)


def test_times_by_form_device_and_phase() -> None:
    own = task()
    assert [own.compute_ns(0, 0, device) for device in range(3)] == [64, 128, 64]
    assert own.compute_ns(0, 0, 1, Objective.PREFILL) == 256
    assert task(phase=Objective.PREFILL).compute_ns(0, 0, 1) == 256


def test_the_form_of_an_answer() -> None:
    choices = tuple(Choice(device=0, form=int(index == 1)) for index in range(5))
    own = task()
    assert own.form(1, Answer(choices=choices, num_slots=(1, 1, 1))).format == "nf4"


def test_transfers_by_form_and_tier() -> None:
    own = task()
    assert own.transfer_ns(1, 0, 0, HOST) == 1 + 128
    assert own.transfer_ns(1, 1, 0, HOST) == 1 + 32
    assert own.transfer_ns(1, 0, 1, DISK) == 2 + 4 * 128
    assert own.transfer_ns(1, 0, 2, HOST) is None


@pytest.mark.parametrize(
    ("start", "stop", "handed"),
    [
        (1, 5, (1, 3)),
        (2, 3, (2, 5 + 10)),
        (2, 4, (2, 5 + 10)),
        (2, 5, (2, 5 + 10)),
        (3, 4, (1, 0)),
        (3, 5, (3, 0 + 10 + 100)),
        (4, 5, (3, 0 + 10 + 100)),
    ],
)
def test_what_is_handed_to_another_device(start: int, stop: int, handed: tuple[int, int]) -> None:
    """The output of the block before, and each earlier value that any of the blocks uses, once."""
    assert task().handed(start, stop) == handed


def test_what_is_handed_on_depends_on_the_phase() -> None:
    assert task().handed(1, 2, Objective.PREFILL) == (1, 30)


def test_every_value_is_a_copy_of_its_own() -> None:
    """Of device to device over host memory, both latencies each time."""
    assert task().hop_ns(1, 2, 0, 1) == 1 + 3 + 2 + 3
    assert task().hop_ns(2, 3, 0, 1) == 2 * (1 + 2) + 2 * 15


def test_nothing_comes_to_the_first_block_or_from_the_same_device() -> None:
    assert task().hop_ns(0, 2, 0, 1) == 0
    assert task().hop_ns(2, 3, 1, 1) == 0


def test_no_way() -> None:
    lonely = make_inventory([make_device("gpu0"), make_device("gpu1")])
    assert make_task(make_chain(COSTS), lonely).hop_ns(1, 2, 0, 1) is None


@pytest.mark.parametrize(
    ("index", "choice", "is_allowed"),
    [
        (0, Choice(device=0), True),
        (0, Choice(device=0, residency=HOST), True),
        (0, Choice(device=2, residency=HOST), False),
        (0, Choice(device=2, residency=DISK), True),
        (1, Choice(device=0, form=1), True),
        (2, Choice(device=0, residency=DISK), False),
        (3, Choice(device=0, residency=DISK), False),
        (4, Choice(device=0), False),
        (4, Choice(device=1), False),
        (4, Choice(device=1, residency=DISK), True),
        (4, Choice(device=1, residency=HOST), False),
    ],
)
def test_what_a_block_may_have(index: int, choice: Choice, is_allowed: bool) -> None:
    """A way must exist, something to bring in, and the last block is pinned to one device and tier."""
    pins = (Pin(pattern="*.4", device="node0/gpu1", residency=DISK),)
    assert task(pins=pins).may(index, choice) is is_allowed


def test_a_pinned_format_is_the_only_one() -> None:
    own = task(pins=(Pin(pattern="*.1", format="nf4"),))
    assert [own.may(1, Choice(device=0, form=form)) for form in (0, 1)] == [False, True]


HOLDS_ALL = 64 + 128 + 64 + 0 + 64


@pytest.mark.parametrize(
    ("host_bytes", "pinned_bytes", "expected"),
    [
        (HOLDS_ALL, None, (STAY, HOST)),
        (HOLDS_ALL - 1, None, (STAY, HOST, DISK)),
        (2**40, HOLDS_ALL - 1, (STAY, HOST, DISK)),
    ],
)
def test_the_disk_makes_sense_where_host_memory_cannot_hold_all(
    host_bytes: int, pinned_bytes: int | None, expected: tuple[Residency, ...]
) -> None:
    node = make_node(host_memory_bytes=host_bytes, pinned_memory_bytes=pinned_bytes)
    inventory = make_inventory([make_device("gpu0")], [make_link("node0/gpu0")], nodes=[node])
    assert make_task(make_chain(COSTS), inventory).residencies(0, 0) == expected


def test_what_lies_in_host_memory_leaves_less_of_it() -> None:
    for cpu_bytes, expected in ((100, (STAY, HOST)), (101, (STAY, HOST, DISK))):
        inventory = make_inventory(
            [make_device("gpu0"), make_device("cpu1")],
            [make_link("node0/gpu0")],
            host_memory_bytes=HOLDS_ALL + 100,
        )
        own = make_task(make_chain(COSTS), inventory, {"node0/cpu1": cpu_bytes})
        assert own.residencies(0, 0) == expected


def test_a_pin_to_the_disk_makes_sense_and_a_cpu_has_only_the_disk() -> None:
    own = task(pins=(Pin(pattern="*.0", residency=DISK),))
    assert own.residencies(0, 0) == (DISK,)
    assert DISK in msgspec.structs.asdict(Choice(device=2, residency=own.residencies(1, 2)[-1])).values()
