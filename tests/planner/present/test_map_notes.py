"""What a plan is told to have moved against a device map."""

from __future__ import annotations

import msgspec
from sample_plans import large_plan, smol_plan

from bayplan.planner.device_map import MapPlace
from bayplan.planner.present.map_notes import map_notes
from bayplan.schemas.errors import Infeasible
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import Residency

CPU = MapPlace(device="node0/cpu", residency=Residency.RESIDENT)
DISK = MapPlace(device="node0/cpu", residency=Residency.STREAM_DISK)
HOST = MapPlace(device=None, residency=Residency.STREAM_HOST)


def places_of(plan: Plan) -> dict[str, MapPlace]:
    return {block.id: MapPlace(device=block.device, residency=block.residency) for block in plan.blocks}


def test_nothing_moved() -> None:
    plan = smol_plan()
    assert map_notes(plan, places_of(plan), plan) == (
        "a step takes 14.8 ms; in the best plan that is like the device map, 14.8 ms",
        "no block is elsewhere than in the device map",
    )


def test_runs_of_blocks_are_one_line() -> None:
    plan = smol_plan()
    layers = {f"model.layers.{number}": DISK for number in range(20, 30)}
    slow = smol_plan(range(20, 30))
    assert map_notes(plan, places_of(plan) | layers, slow) == (
        "a step takes 14.8 ms; in the best plan that is like the device map, 77.8 ms",
        "moved against the device map: 10 blocks, 67.52 MiB",
        "  model.layers.20-29: disk to cpu -> cpu",
    )


def test_no_plan_is_like_the_map() -> None:
    plan = large_plan()
    places = {"lm_head": HOST, "model.norm": MapPlace(device="node0/gpu0", residency=Residency.RESIDENT)}
    reason = Infeasible("no placement fits the budgets", hint="more memory")
    assert map_notes(plan, places, reason) == (
        "a step takes 391.0 ms; no plan is like the device map: no placement fits the budgets",
        "moved against the device map: 2 blocks, 1.96 GiB",
        "  model.norm: gpu0 -> gpu1",
        "  lm_head: host memory -> gpu1",
    )


def test_where_a_block_that_waits_computes_is_left_open() -> None:
    plan = large_plan()
    streamed = {block.id: HOST for block in plan.blocks if block.residency is Residency.STREAM_HOST}
    assert map_notes(plan, streamed, plan)[1:] == ("no block is elsewhere than in the device map",)


def test_blocks_that_the_map_leaves_out_have_not_moved() -> None:
    plan = msgspec.structs.replace(smol_plan())
    assert map_notes(plan, {"lm_head": CPU}, plan)[1:] == ("no block is elsewhere than in the device map",)
