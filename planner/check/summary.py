"""Totals and predictions, and what can be said of the bound without solving again."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.planner.check.basis import Placement, Problem, apart_from, lies_in_host_memory, node_of
from bayplan.planner.check.times import Times, resident_bytes, times_of
from bayplan.schemas.types import BoundClass, Objective, SolverStatus


def summary_problems(placement: Placement) -> Iterator[Problem]:
    """Yield every figure of the summary that is not what the blocks give."""
    yield from _sum_problems(placement)
    times = times_of(placement)
    if times is not None:  # else the schedule's check has said what finds no way
        yield from _time_problems(placement, times)
    yield from _bound_problems(placement)


def _sum_problems(placement: Placement) -> Iterator[Problem]:
    summary = placement.plan.summary
    streamed = [entry for entry in placement.blocks if entry.streams]
    most_bytes = sum(entry.block.num_bytes for entry in placement.blocks)
    if summary.moved_bytes is not None and summary.moved_bytes > most_bytes:
        yield "$.summary.moved_bytes", f"{summary.moved_bytes}, but all blocks have {most_bytes}"
    for field, needed in (
        ("objective", placement.plan.problem.objective),
        ("resident_blocks", len(placement.blocks) - len(streamed)),
        ("streamed_blocks", len(streamed)),
        ("resident_bytes", sum(resident_bytes(placement, device_id) for device_id in placement.devices)),
        ("streamed_bytes_per_step", sum(entry.form.parameter_bytes for entry in streamed)),
        ("reproducible", summary.solver_status != SolverStatus.TIME_LIMIT),
    ):
        said = getattr(summary, field)
        if said != needed:
            yield f"$.summary.{field}", f"{said}, but the plan gives {needed}"


def _time_problems(placement: Placement, times: Times) -> Iterator[Problem]:
    for field in Times.__struct_fields__:
        said, needed = getattr(placement.plan.summary, field), getattr(times, field)
        if said != needed:
            yield f"$.summary.{field}", f"{said}, but playing the plan gives {needed}"


def _bound_problems(placement: Placement) -> Iterator[Problem]:
    summary = placement.plan.summary
    loads_first = placement.plan.problem.objective == Objective.LOAD
    predicted_ns = summary.predicted_load_ns if loads_first else summary.predicted_step_ns
    bound_ns = summary.lower_bound_ns
    if bound_ns > predicted_ns:
        yield "$.summary.lower_bound_ns", f"{bound_ns} is above the prediction {predicted_ns}"
    else:
        gap_ppm = -(-(predicted_ns - bound_ns) * 1_000_000 // predicted_ns) if predicted_ns else 0
        if summary.gap_ppm != gap_ppm:
            yield "$.summary.gap_ppm", f"{summary.gap_ppm}, but {bound_ns} and {predicted_ns} give {gap_ppm}"
    streams = any(entry.streams or apart_from(entry.block) is not None for entry in placement.blocks)
    if summary.bound_class == BoundClass.CONTIGUOUS_RESIDENT and streams:
        yield "$.summary.bound_class", f"{summary.bound_class}, but something streams"
    if bound_ns < predicted_ns and _is_exact(placement):
        yield (
            "$.summary.lower_bound_ns",
            f"{bound_ns}, but where all stays the search is exact, and the step takes {predicted_ns}",
        )


def _is_exact(placement: Placement) -> bool:
    """Whether the best placement is found without a program: all stays, no formats, no shared host memory."""
    plan = placement.plan
    if plan.summary.bound_class != BoundClass.CONTIGUOUS_RESIDENT:
        return False
    if plan.problem.objective not in (Objective.DECODE, Objective.PREFILL):
        return False
    if plan.summary.moved_bytes is not None:
        return False  # a step may be a little slower to move less
    if any(len(run.forms) > 1 for run in plan.problem.runs):
        return False
    nodes = [
        node_of(device.id)
        for device in placement.devices.values()
        if lies_in_host_memory(device) and placement.budgets[device.id] > 0
    ]
    return len(set(nodes)) == len(nodes)
