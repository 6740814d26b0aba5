from __future__ import annotations

import msgspec
import pytest
from brute_force import every_stretch
from hypothesis import given, settings
from placement_problems import (
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

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import ChainTie
from bayplan.planner.solve.ledger import (
    empty_ledger,
    ledger_of,
    replica_bytes,
    shortages,
    slot_bytes,
    used_slots,
    waiting_bytes,
)
from bayplan.planner.solve.margins import (
    ACCELERATOR_RUNTIME_BYTES,
    RUNTIME_BYTES,
    activation_bounds,
    runtime_bounds,
)
from bayplan.planner.solve.task import Task
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Ledger
from bayplan.schemas.types import Backend, Residency

HOST, DISK = Residency.STREAM_HOST, Residency.STREAM_DISK
TASK = make_task(
    make_chain(
        [
            make_cost(640, buffer_bytes=64, kv_bytes=7, prefill_activation_bytes=1000),
            make_cost(1280, buffer_bytes=128, kv_bytes=9, decode_activation_bytes=3000),
            make_cost(640, others=[make_form(128, "nf4", workspace_bytes=4000)]),
        ],
        base_activation_bytes=200,
        scratch_bytes=4096,
    ),
    make_inventory([make_device("cpu0"), make_device("gpu1")], [make_link("node0/gpu1")]),
)


def placed(*residencies: Residency | None, num_slots: int = 1, last_form: int = 0) -> Answer:
    """All blocks on the first device; None: on the second, resident."""
    choices = [Choice(device=1) if own is None else Choice(device=0, residency=own) for own in residencies]
    choices[-1] = msgspec.structs.replace(choices[-1], form=last_form)
    return Answer(choices=tuple(choices), num_slots=(num_slots, 1))


STAY = Residency.RESIDENT


def test_copies_of_experts_may_come_on_top_of_a_step() -> None:
    """Only `generate()` makes them, so that the least is without."""
    for copied_bytes, most in ((1_000, 3_400), (2_000, 4_200)):
        cost = make_cost(
            64, prefill_activation_bytes=3_200, decode_activation_bytes=2_000, copied_bytes=copied_bytes
        )
        task = make_task(make_chain([cost], base_activation_bytes=200), TASK.machine.inventory)
        assert ledger_of(task, Answer(choices=(Choice(device=1),), num_slots=(1, 1)), 1).activations == (
            activation_bounds(3_400)[0],
            activation_bounds(most)[1],
        )


def test_all_resident() -> None:
    assert ledger_of(TASK, placed(STAY, STAY, STAY), 0) == Ledger(
        weights=(2752, 2752),
        kv=(16, 16),
        activations=(3200, 3300),
        staging=(4096, 4096),
        load_transient=(0, 0),
        runtime=RUNTIME_BYTES[Backend.CPU],
    )


def test_another_form_has_other_weights_and_a_workspace() -> None:
    ledger = ledger_of(TASK, placed(STAY, STAY, STAY, last_form=1), 0)
    assert ledger.weights == (2752 - 512, 2752 - 512)
    assert ledger.activations == activation_bounds(4200)


def test_a_streamed_block_keeps_its_buffers_and_cache() -> None:
    ledger = ledger_of(TASK, placed(STAY, DISK, DISK, num_slots=2), 0)
    assert ledger.weights == (640 + 64 + 128, 640 + 64 + 128)
    assert ledger.kv == (16, 16)
    assert ledger.staging == (2 * 1280 + 4096, 2 * 1280 + 4096)


def test_slots_are_no_more_than_blocks_that_stream() -> None:
    answer = placed(STAY, DISK, STAY, num_slots=3)
    assert used_slots(answer, 0) == 1
    assert ledger_of(TASK, answer, 0).staging == (1280 + 4096, 1280 + 4096)
    assert used_slots(placed(STAY, STAY, STAY, num_slots=3), 0) == 0


def test_each_device_has_its_own() -> None:
    answer = placed(STAY, None, None)
    assert ledger_of(TASK, answer, 0).weights == (704, 704)
    assert ledger_of(TASK, answer, 1).weights == (1280 + 128 + 640, 1280 + 128 + 640)
    assert ledger_of(TASK, placed(STAY, STAY, STAY), 1) == empty_ledger(TASK.machine.devices[1])


def test_the_lower_bound_is_without_alignment() -> None:
    costs = [make_cost(64, num_bytes=size) for size in (50, 60, 10)]
    task = make_task(make_chain(costs), gpus(1))
    answer = Answer(choices=(Choice(device=0),) * 3, num_slots=(1,))
    assert ledger_of(task, answer, 0).weights == (120, 192)
    moving = Answer(choices=(*answer.choices[:2], Choice(device=0, residency=DISK)), num_slots=(1,))
    assert ledger_of(task, moving, 0).weights == (110, 128)


def test_the_slot_holds_the_largest_streamed_block() -> None:
    assert slot_bytes(TASK, placed(HOST, STAY, DISK), 0) == 640
    assert slot_bytes(TASK, placed(STAY, STAY, STAY), 0) == 0


@pytest.mark.parametrize(
    ("indices", "num_bytes"),
    [
        (range(4), 0),
        (range(1), 0),
        (range(1, 3), 130),
        (range(1, 4), 130),
        (range(3, 4), 130),
        (range(1, 2), 0),
    ],
)
def test_replicas(indices: range, num_bytes: int) -> None:
    chain = make_chain([64] * 4, ties=[ChainTie(positions=(0, 2, 3), num_bytes=130)])
    assert replica_bytes(chain, indices) == num_bytes


def test_a_device_that_holds_nothing() -> None:
    empty = empty_ledger(make_device("gpu0"))
    assert empty.runtime == (0, ACCELERATOR_RUNTIME_BYTES[1])
    assert empty.budgeted_bytes == 0


def test_margins() -> None:
    assert activation_bounds(1000) == (1000, 1032)
    assert activation_bounds(0) == (0, 0)
    assert runtime_bounds(Backend.CUDA) == ACCELERATOR_RUNTIME_BYTES
    assert runtime_bounds(Backend.CPU) == RUNTIME_BYTES[Backend.CPU]


def two_nodes(**fields: object) -> Inventory:
    return make_inventory(
        [make_device("gpu0"), make_device("gpu1", node="node1", shares_host_memory=True)],
        [make_link("node0/gpu0"), make_link("node1/gpu1", "node1"), make_link("node0", "node1")],
        nodes=[make_node("node0", **fields), make_node("node1", **fields)],
    )


MOVING = Answer(
    choices=(
        Choice(device=0, residency=HOST),
        Choice(device=0, residency=DISK),
        Choice(device=1),
        Choice(device=1),
    ),
    num_slots=(1, 1),
)


def test_what_waits_waits_on_its_devices_node() -> None:
    task = make_task(make_chain([64, 128, 256, 64]), two_nodes())
    assert waiting_bytes(task, MOVING) == (64, 0)


def task_with(chain_sizes: list[int], budgets: dict[str, int], **fields: object) -> Task:
    return make_task(make_chain(chain_sizes), two_nodes(**fields), budgets)


@pytest.mark.parametrize(
    ("budgets", "fields", "missing"),
    [
        ({}, {}, ()),
        ({"node0/gpu0": NO_ACTIVATIONS + 127}, {}, (("node0/gpu0", 1),)),
        ({"node0/gpu0": NO_ACTIVATIONS + 128}, {}, ()),
        (
            {"node1/gpu1": NO_ACTIVATIONS + 200},
            {"host_memory_bytes": NO_ACTIVATIONS + 63},
            (("node1/gpu1", 120), ("node0", 1), ("node0 pinned", 1), ("node1", 120)),
        ),
        ({}, {"pinned_memory_bytes": 60}, (("node0 pinned", 4),)),
    ],
    ids=["enough", "device", "just enough", "hosts", "pinned"],
)
def test_what_is_too_small_and_by_how_much(
    budgets: dict[str, int], fields: dict[str, int], missing: tuple[tuple[str, int], ...]
) -> None:
    assert shortages(task_with([64, 128, 256, 64], budgets, **fields), MOVING) == missing


@given(placement_problems(max_blocks=4))
@settings(max_examples=60, deadline=None)
def test_upper_bounds_are_what_a_count_block_by_block_gives(problem: PlacementProblem) -> None:
    """Whatever of a device is cut off after the budgets of the problem does not matter here."""
    ample = msgspec.structs.replace(
        problem, budgets={name: 2**50 if budget else 0 for name, budget in problem.budgets.items()}
    )
    task = ample.task()
    place = {device.id: index for index, device in enumerate(task.machine.devices)}
    for number, device in enumerate(problem.inventory.devices):
        if device.id not in place:
            continue
        own, end = place[device.id], len(problem.chain)
        elsewhere = Choice(device=-1)
        for start, stop, stretch in every_stretch(ample, number, limit=40):
            choices = [elsewhere] * end
            for index, mode in zip(range(start, stop), stretch.modes, strict=True):
                choices[index] = Choice(device=own, residency=mode.residency, form=mode.form)
            slots = [1] * len(place)
            slots[own] = stretch.num_slots
            ledger = ledger_of(task, Answer(choices=tuple(choices), num_slots=tuple(slots)), own)
            assert ledger.budgeted_bytes == stretch.used_bytes
            bounds = [getattr(ledger, name) for name in Ledger.__struct_fields__]
            assert all(0 <= lo <= hi for lo, hi in bounds)
