from __future__ import annotations

import re

import pytest
from changed_plans import Path, json_path, leaves, replace, with_leaf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planned import plan_resident, plan_streamed
from sound_plans import sound_plans

from bayplan.planner.check import check
from bayplan.schemas.plan import Plan
from bayplan.schemas.plan_rules import plan_problems
from bayplan.schemas.types import Objective, Residency

STREAMED, RESIDENT = plan_streamed(), plan_resident()

DECIDED = ("devices", "hosts", "blocks", "ties", "schedule", "summary")
"""What is made from the other sections of a plan."""

FREE = (
    r"\$\.devices\[\d+\]\.ledger\.runtime\[\d\]",  # outside the budget, of no use to the placement
    r"\$\.ties\[\d+\]\.(num_bytes|fqns\[\d+\])",  # of the model
    r"\$\.summary\.(bound_class|solver_status)",  # what the search knows of itself
    r"\$\.summary\.moved_bytes",  # against a plan that is not here
    r"\$\.blocks\[\d+\]\.reason",  # several may be true
)
"""Paths at which another value may be as right."""


def found(plan: Plan) -> list[tuple[str, str]]:
    """What the check and the rules of structure say of a plan, but for inventories that no machine has."""
    both = (*check(plan), *plan_problems(plan))
    return [problem for problem in both if not problem[0].startswith("$.inventory")]


@pytest.mark.parametrize("plan", [STREAMED, RESIDENT], ids=["streamed", "resident"])
def test_what_the_planner_makes_is_sound(plan: Plan) -> None:
    assert found(plan) == []


@given(sound_plans())
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
def test_every_plan_is_sound(plan: Plan) -> None:
    assert found(plan) == []


def others(plan: Plan, path: Path, value: object) -> list[object]:
    """Return values that could stand at `path` instead."""
    if isinstance(value, bool):
        return [not value]
    if path[-1] == "lower_bound_ns" and isinstance(value, int):
        # The gap is in millionths: what changes the bound by less need not change it.
        return [value // 2, value + max(2, value // 1000)]
    if isinstance(value, int):
        return [other for other in (value + 1, max(0, value - 1), 2 * value) if other != value]
    return [other for other in words(plan, path) if other != value]


def words(plan: Plan, path: Path) -> list[str]:
    """Return what may stand at `path`, a place for a word."""
    devices = [device.id for device in plan.inventory.devices]
    if path[-2] == "stream_order":
        return [block.id for block in plan.blocks]
    if path[-2] == "experts" and path[-1] == "residency":
        return ["with-block", "resident", "cache-host", "cache-disk", "compute-host"]
    if path[0] == "ties" and path[2] == "devices":
        return devices
    if path[0] == "devices" and path[-1] == "id":
        return devices
    known = {
        "device": devices,
        "residency": list(Residency),
        "format": list(plan.formats),
        "policy": ["co-located", "replicated"],
        "compute": ["device", "host"],
        "objective": list(Objective),
    }
    return known.get(str(path[-1]), [])


def changes(plan: Plan) -> list[tuple[Path, object]]:
    """Return every place at which the check claims to know what belongs there, with other values."""
    return [
        (path, other)
        for path, value in leaves(plan, DECIDED)
        if not any(re.fullmatch(pattern, json_path(path)) for pattern in FREE)
        for other in others(plan, path, value)
    ]


@pytest.mark.parametrize("plan", [STREAMED, RESIDENT], ids=["streamed", "resident"])
def test_whatever_one_changes_is_found(plan: Plan) -> None:
    unseen = [
        (json_path(path), value) for path, value in changes(plan) if not found(with_leaf(plan, path, value))
    ]
    assert unseen == []


@given(st.data())
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
def test_whatever_one_changes_in_any_plan_is_found(data: st.DataObject) -> None:
    plan = data.draw(sound_plans())
    for path, value in data.draw(st.lists(st.sampled_from(changes(plan)), min_size=5, max_size=10)):
        assert found(with_leaf(plan, path, value)), (json_path(path), value)


@pytest.mark.parametrize("path", ["devices", "hosts", "blocks", "ties", "schedule"])
def test_a_part_that_is_missing_is_found(path: str) -> None:
    assert found(replace(STREAMED, **{path: getattr(STREAMED, path)[:-1]}))


def test_what_does_not_belong_together_is_all_that_is_said() -> None:
    broken = replace(STREAMED, hosts=(), summary=replace(STREAMED.summary, resident_blocks=0))
    assert check(broken) == (("$.hosts", "not the nodes of the inventory in its order"),)
