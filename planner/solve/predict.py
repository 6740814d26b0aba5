"""What a placement is predicted to take: load, first output, one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.cost import duration_ns
from bayplan.planner.solve.ledger import ledger_of, waiting_bytes
from bayplan.planner.solve.simulate import steady_step_ns, step_ends_ns
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import slots_of, visits
from bayplan.schemas.plan import Workload
from bayplan.schemas.types import Objective

if TYPE_CHECKING:
    from bayplan.planner.solve.objectives import Placed


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Times in nanoseconds."""

    load_ns: int
    first_output_ns: int
    decode_ns: int | None
    step_ns: int


def predict(placed: Placed, workload: Workload, *, generates: bool) -> Prediction:
    """Return the predicted times of a placement.

    The first output is that of a prompt as long as the planned context, in prefill chunks, from empty slots.
    The time of a step is that of one batch alone but for `step_ns`, which counts all batches in flight.
    """
    task, answer = placed.task, placed.solution.answer
    num_slots = slots_of(answer)
    prefill = visits(task, answer, Objective.PREFILL)
    assert prefill is not None, "a placement takes ways that exist"
    chunks = -(-workload.context // workload.prefill_chunk) if workload.prefill_chunk else 1
    ends = step_ends_ns(prefill, num_slots, chunks)
    first_output_ns = ends[-1]
    if len(ends) < chunks:
        first_output_ns += (chunks - len(ends)) * (ends[-1] - ends[-2])
    decode_ns = None
    if generates:
        decode = visits(task, answer, Objective.DECODE)
        assert decode is not None, "a placement takes ways that exist"
        decode_ns = steady_step_ns(decode, num_slots)
    return Prediction(
        load_ns=load_ns(task, answer),
        first_output_ns=first_output_ns,
        decode_ns=decode_ns,
        step_ns=placed.solution.step_ns,
    )


def load_ns(task: Task, answer: Answer) -> int:
    """Return the time to read what stays on devices or waits in host memory, all nodes at once.

    Each node reads from its own disk; 0 without one.
    """
    by_node = list(waiting_bytes(task, answer))
    for device, node in enumerate(task.machine.nodes):
        by_node[node] += ledger_of(task, answer, device).weights[0]
    times = [0]
    for num_bytes, own in zip(by_node, task.machine.inventory.nodes, strict=True):
        if num_bytes and own.disk is not None:
            times.append(own.disk.latency_ns + duration_ns(num_bytes, own.disk.read_bytes_per_second))
    return max(times)
