"""Small placement problems in which experts may be apart from their blocks, and every placement of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import msgspec
from hypothesis import strategies as st
from placement_problems import (
    GIGA,
    MIB,
    NO_ACTIVATIONS,
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
from bayplan.planner.solve.modes import SLOT_COUNTS
from bayplan.planner.solve.split import split_residencies
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.problem import BlockRun, Pin
from bayplan.schemas.types import Objective, Residency


def mixture(dense: int, *, count: int = 3, per_token: int = 1, unit: int = 8 * MIB) -> BlockRun:
    """A block with experts of `unit` bytes, of which a token reads `per_token`."""
    experts = BlockExperts(
        module="",
        count=count,
        per_token=per_token,
        prefill_flops=0,
        decode_flops=0,
        prefill_hidden_bytes=1000,
        decode_hidden_bytes=1000,
    )
    read = dense + per_token * unit
    cost = make_cost(dense + count * unit, unit_bytes=unit, decode_read_bytes=read, prefill_read_bytes=read)
    return msgspec.structs.replace(cost, experts=experts)


@st.composite
def expert_tasks(draw: st.DrawFn) -> Task:
    """Draw a task of up to three blocks on up to two accelerators and a CPU, short of memory."""
    count = draw(st.integers(2, 4))
    kinds = [
        mixture(draw(st.sampled_from((0, 4, 16))) * MIB, count=count),
        mixture(draw(st.sampled_from((1, 8))) * MIB, count=count),
        make_cost(draw(st.sampled_from((1, 8))) * MIB),
    ]
    costs = [draw(st.sampled_from(kinds)) for _ in range(draw(st.integers(1, 3)))]
    rates = st.sampled_from((GIGA, GIGA // 4, 4 * GIGA))
    gpus = [
        make_device(f"gpu{number}", memory_bytes_per_second=draw(rates))
        for number in range(draw(st.integers(1, 2)))
    ]
    cpus = [make_device("cpu0", memory_bytes_per_second=draw(rates))] if draw(st.booleans()) else []
    inventory = make_inventory(
        [*gpus, *cpus],
        [
            make_link(device.id, rate=draw(rates), latency_ns=draw(st.sampled_from((0, MIB))))
            for device in gpus
        ],
        disk_rate=draw(st.sampled_from((None, GIGA // 8))),
    )
    # Besides the caches, the experts that are on their way have five slots.
    weights = sum(cost.forms[0].parameter_bytes for cost in costs)
    budgets = {
        device.id: weights * draw(st.integers(2, 9)) // 10 + draw(st.sampled_from((0, 40, 45))) * MIB
        for device in [*gpus, *cpus]
    }
    task = make_task(make_chain(costs), inventory, budgets)
    return Task(task.chain, task.machine, task.constraints, Objective.DECODE, splits_experts=True)


@st.composite
def fast_host_tasks(draw: st.DrawFn) -> Task:
    """Draw a task of up to four blocks on an accelerator whose CPU is faster, and has room for all experts.

    Of the blocks some have experts, which take less where the CPU computes them; others have none, and some
    of those must stream.
    """
    mixed = mixture(draw(st.sampled_from((0, MIB // 8, 4 * MIB))), count=draw(st.integers(2, 3)))
    plain = [make_cost(size * MIB) for size in (8, draw(st.sampled_from((1, 4, 16))))]
    costs = [draw(st.sampled_from((mixed, *plain))) for _ in range(draw(st.integers(1, 3)))]
    costs.insert(draw(st.integers(0, len(costs))), mixed)
    gpu = make_device("gpu0", memory_bytes_per_second=draw(st.sampled_from((GIGA // 4, GIGA))))
    cpu = make_device("cpu0", memory_bytes_per_second=draw(st.sampled_from((2 * GIGA, 64 * GIGA))))
    rate = draw(st.sampled_from((GIGA // 4, GIGA // 2, GIGA, 4 * GIGA)))
    inventory = make_inventory([gpu, cpu], [make_link(gpu.id, rate=rate)], disk_rate=None)
    plain_bytes = sum(cost.forms[0].parameter_bytes for cost in costs if cost.experts is None)
    room_bytes = draw(st.sampled_from((1, 5, 9, 17, 33))) * MIB + plain_bytes * draw(st.integers(0, 2)) // 2
    pins = tuple(Pin(pattern=f"layers.{index}", device=gpu.id) for index in range(len(costs)))
    task = make_task(make_chain(costs), inventory, {gpu.id: NO_ACTIVATIONS + room_bytes}, pins=pins)
    return Task(task.chain, task.machine, task.constraints, Objective.DECODE, splits_experts=True)


def choices(task: Task, index: int, device: int) -> Iterator[Choice]:
    """Yield every way to have a block on a device."""
    for residency in Residency:
        choice = Choice(device=device, residency=residency)
        if task.may(index, choice):
            yield choice
    experts = task.chain.costs[index].experts
    for where in split_residencies(task, index, device) if experts is not None else ():
        assert experts is not None
        caches = where is not ExpertsResidency.COMPUTE_HOST
        for slots in range(experts.per_token, experts.count) if caches else (0,):
            yield Choice(device=device, experts=SplitExperts(residency=where, slots=slots))


def fastest_ns(task: Task) -> int | None:
    """Return the least time of a step of any placement with one stretch per device; None: there is none."""
    best: int | None = None
    devices = range(len(task.machine.devices))
    for order in combinations_with_replacement(devices, len(task.chain)):
        options = [list(choices(task, index, device)) for index, device in enumerate(order)]
        for chosen in product(*options):
            streaming = {choice.device for choice in chosen if choice.streams}
            for slots in product(*(SLOT_COUNTS if device in streaming else (1,) for device in devices)):
                answer = Answer(choices=chosen, num_slots=slots)
                if shortages(task, answer):
                    continue
                step = step_ns(task, answer)
                if step is not None and (best is None or step < best):
                    best = step
    return best
