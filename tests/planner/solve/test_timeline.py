from __future__ import annotations

import pytest
from placement_problems import (
    GIGA,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_form,
    make_inventory,
    make_link,
    make_task,
)

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.simulate import Transfer, Visit
from bayplan.planner.solve.timeline import paced_step_ns, slots_of, step_ns, visits
from bayplan.schemas.types import Objective, Residency

HOST, DISK = Residency.STREAM_HOST, Residency.STREAM_DISK
COST = make_cost(64, others=[make_form(16, "nf4")], decode_output_bytes=5, prefill_output_bytes=50)


def answer(*choices: Choice, num_slots: int = 1, num_devices: int = 2) -> Answer:
    return Answer(choices=choices, num_slots=(num_slots,) * num_devices)


def test_one_visit_per_block() -> None:
    task = make_task(make_chain([COST] * 3), gpus(2, latency_ns=1))
    own = answer(Choice(device=0, form=1), Choice(device=0, residency=HOST), Choice(device=1))
    transfer = Transfer(duration_ns=1 + 64)
    # A format that the device was not measured with saves no time.
    assert visits(task, own) == [
        Visit(device=0, compute_ns=64),
        Visit(device=0, compute_ns=64, transfer=transfer),
        Visit(device=1, compute_ns=64, hop_ns=2 * (1 + 5)),
    ]
    assert visits(task, own, Objective.PREFILL) == [
        Visit(device=0, compute_ns=128),
        Visit(device=0, compute_ns=128, transfer=transfer),
        Visit(device=1, compute_ns=128, hop_ns=2 * (1 + 50)),
    ]
    assert step_ns(task, own) == 3 * 64 + 12
    assert step_ns(task, own, Objective.PREFILL) == 3 * 128 + 102


def test_a_transfer_has_the_bytes_of_its_form_and_what_it_occupies() -> None:
    task = make_task(make_chain([COST] * 2), gpus(1, group="switch"))
    own = answer(Choice(device=0, form=1, residency=DISK), Choice(device=0, residency=HOST), num_devices=1)
    found = visits(task, own)
    assert found is not None
    assert [visit.transfer for visit in found] == [
        Transfer(duration_ns=16, resources=("node0/disk", "node0/switch")),
        Transfer(duration_ns=64, resources=("node0/switch",)),
    ]


def test_values_that_skip_devices_come_with_the_stretch_that_uses_them() -> None:
    chain = make_chain([COST] * 4, edges={(0, 3): 1000})
    task = make_task(chain, gpus(2))
    found = visits(task, answer(*(Choice(device=index > 1) for index in range(4))))
    assert found is not None
    assert [visit.hop_ns for visit in found] == [0, 0, 2 * 1005, 0]


def test_a_device_may_be_visited_twice() -> None:
    """Anything can be timed, also what accelerate's users do: here and back."""
    task = make_task(make_chain([COST] * 3), gpus(2))
    found = visits(task, answer(Choice(device=0), Choice(device=1), Choice(device=0)))
    assert found is not None
    assert [visit.hop_ns for visit in found] == [0, 10, 10]


def test_no_way_for_values_or_weights() -> None:
    lonely = make_inventory([make_device("gpu0"), make_device("gpu1")], disk_rate=None)
    task = make_task(make_chain([COST] * 2), lonely)
    for own in (
        answer(Choice(device=0), Choice(device=1)),
        answer(Choice(device=0), Choice(device=0, residency=HOST)),
        answer(Choice(device=0), Choice(device=0, residency=DISK)),
    ):
        assert visits(task, own) is None
        assert step_ns(task, own) is None
        assert paced_step_ns(task, own, 2) is None


def test_slots_by_device() -> None:
    assert slots_of(Answer(choices=(), num_slots=(2, 1, 3))) == {0: 2, 1: 1, 2: 3}


STAGES = answer(*(Choice(device=index > 2) for index in range(4)))
"""Three blocks of 64 and one."""


@pytest.mark.parametrize(("num_batches", "expected"), [(1, 4 * 64 + 10), (2, 3 * 64), (3, 3 * 64)])
def test_the_slowest_device_sets_the_pace(num_batches: int, expected: int) -> None:
    assert paced_step_ns(make_task(make_chain([COST] * 4), gpus(2)), STAGES, num_batches) == expected


def test_a_slow_way_sets_the_pace() -> None:
    inventory = make_inventory(
        gpus(2).devices, [make_link("node0/gpu0"), make_link("node0/gpu1", rate=GIGA // 100)]
    )
    task = make_task(make_chain([COST] * 4), inventory)
    assert paced_step_ns(task, STAGES, 3) == 5 + 500


def test_too_few_batches_leave_devices_idle() -> None:
    three = answer(*(Choice(device=index) for index in range(3)), num_devices=3)
    task = make_task(make_chain([COST] * 3), gpus(3))
    assert paced_step_ns(task, three, 2) == (3 * 64 + 2 * 10) // 2


def test_devices_that_share_a_way_take_turns() -> None:
    """Two streams of 256 over one switch: with links of their own, two batches halve the time."""
    both = answer(*(Choice(device=index, residency=HOST) for index in range(2)))
    apart, shared = (
        make_task(make_chain([COST] * 2), gpus(2, rate=GIGA // 4, group=group)) for group in ("", "switch")
    )
    assert paced_step_ns(apart, both, 2) == 256 + 64
    assert paced_step_ns(shared, both, 2) == paced_step_ns(shared, both, 1) == step_ns(shared, both)
