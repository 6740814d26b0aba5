"""`--previous` and `--pareto` on the config of a published model."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bayplan.planner.api import plan_model
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.options import PlanOptions
from bayplan.planner.pareto import make_frontier
from bayplan.planner.present.diff import diff_plans
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.plan import Plan

CONFIG = Path(__file__).parents[1] / "data" / "models" / "Qwen--Qwen2.5-0.5B.json"
MACHINE = declare_inventory(["rtx-3090*2"], host_memory="64GiB", disk="3GB/s")
MIB = 2**20


def plan_of(*sizes_mib: int, previous: Plan | None = None, context: int | None = None) -> Plan:
    sizes = tuple(f"gpu{number}={size}MiB" for number, size in enumerate(sizes_mib))
    return plan_model(CONFIG, inventory=MACHINE, max_memory=sizes, previous=previous, context=context)


@pytest.fixture(scope="module")
def streamed() -> Plan:
    plan = plan_of(470, 470)
    assert plan.summary.streamed_blocks
    return plan


def test_the_same_call_gives_the_same_file(streamed: Plan) -> None:
    assert encode_plan(plan_of(470, 470, previous=streamed)) == encode_plan(streamed)


def test_less_memory_moves_what_it_takes_and_little_else(streamed: Plan) -> None:
    """Layers have 29 MiB, in a slot too; the best plan by itself would move more."""
    kept, best = plan_of(440, 470, previous=streamed), plan_of(440, 470)
    changed = [change.id for change in diff_plans(streamed, kept).blocks]
    assert kept.summary.moved_bytes is not None
    assert kept.summary.moved_bytes <= 4 * 29 * MIB
    assert len(changed) <= len(diff_plans(streamed, best).blocks)
    assert kept.summary.predicted_step_ns * 100 <= best.summary.predicted_step_ns * 102
    assert kept.summary.lower_bound_ns == best.summary.lower_bound_ns


def test_another_context_moves_little(streamed: Plan) -> None:
    kept, best = plan_of(470, 470, previous=streamed, context=1100), plan_of(470, 470, context=1100)
    assert kept.summary.moved_bytes is not None
    assert kept.summary.moved_bytes <= 4 * 29 * MIB
    assert kept.summary.predicted_step_ns * 100 <= best.summary.predicted_step_ns * 102


def test_precision_and_context_cost_time() -> None:
    options = PlanOptions(inventory=MACHINE, max_memory=("gpu0=600MiB", "gpu1=600MiB"), context=512)
    points = [own.point for own in make_frontier(str(CONFIG), options).points]
    assert {point.request.context for point in points} <= {256, 512, 1024, 2048}
    assert {point.request.context for point in points if point.request.format == "own"} >= {2048}
    for one, other in itertools.permutations(points, 2):
        is_as_precise = one.quantized_ppm <= other.quantized_ppm and one.four_bit_ppm <= other.four_bit_ppm
        if is_as_precise and one.request.context >= other.request.context:
            assert one.latency_ns > other.latency_ns
    assert all(point.summary.gap_ppm < 30_000 for point in points)
