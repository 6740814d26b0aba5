from __future__ import annotations

import math

import msgspec
import pytest
from placeable_models import placeable_model, read_placeable, two_gpus

from bayplan.planner.api import solve_ready
from bayplan.planner.model.facts import ReadModel
from bayplan.planner.options import PlanOptions
from bayplan.planner.ready import get_ready
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.errors import UsageError
from bayplan.schemas.features import Feature, may_plan
from bayplan.schemas.types import SolverStatus

NARROW = PlanOptions(inventory=two_gpus(), max_memory=("gpu0=12MiB", "gpu1=12MiB"))


@pytest.mark.parametrize(("limit_s", "text"), [(0.0, "0"), (-2.5, "-2.5"), (math.nan, "nan")])
def test_a_limit_of_time_that_is_none(limit_s: float, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_ready(msgspec.structs.replace(NARROW, time_limit_s=limit_s), read_placeable)
    assert str(caught.value) == (
        f"--time-limit: a limit of time must be positive: got {text}, needed seconds, more than 0"
    )


def test_a_plan_that_the_clock_ended_says_so() -> None:
    plan = solve_ready(get_ready(msgspec.structs.replace(NARROW, time_limit_s=1e-9), read_placeable))
    assert plan.summary.solver_status is SolverStatus.TIME_LIMIT
    assert not plan.summary.reproducible
    best = solve_ready(get_ready(NARROW, read_placeable))
    assert best.summary.reproducible
    assert plan.summary.lower_bound_ns <= best.summary.predicted_step_ns <= plan.summary.predicted_step_ns


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    ample = msgspec.structs.replace(NARROW, time_limit_s=1e6)
    plans = [solve_ready(get_ready(options, read_placeable)) for options in (NARROW, ample)]
    assert encode_plan(plans[0]) == encode_plan(plans[1])


def test_what_this_version_does_not_run_on_is_left_out_and_named() -> None:
    probed = msgspec.structs.replace(two_gpus(), source="probed")
    ready = get_ready(PlanOptions(inventory=probed), read_placeable)
    assert ready.left_out == ("node0/gpu0", "node0/gpu1")
    assert ready.max_memory == {"node0/gpu0": 0, "node0/gpu1": 0}
    assert ready.warnings == ("left unused, since this version does not run on it: node0/gpu0, node0/gpu1",)


def test_a_budget_for_what_this_version_does_not_run_on() -> None:
    probed = msgspec.structs.replace(two_gpus(), source="probed")
    with pytest.raises(UsageError) as caught:
        get_ready(PlanOptions(inventory=probed, max_memory=("gpu1=12MiB",)), read_placeable)
    assert str(caught.value) == (
        "--max-memory or --pin: this version does not run on node0/gpu1\n"
        "hint: plan for a declared inventory with -i to see what it would do"
    )


def test_on_this_machine_auto_is_the_own_format() -> None:
    probed = msgspec.structs.replace(two_gpus(), source="probed")
    assert not may_plan(Feature.QUANTIZED, probed)
    assert may_plan(Feature.QUANTIZED, two_gpus())
    ready = get_ready(PlanOptions(inventory=probed, format="auto"), read_placeable)
    assert (ready.request.is_auto, len(ready.forms.choices)) == (False, 1)


def test_the_model_is_read_once_with_the_options_as_they_are() -> None:
    asked: list[PlanOptions] = []

    def read(options: PlanOptions) -> ReadModel:
        asked.append(options)
        return placeable_model()

    ready = get_ready(NARROW, read)
    assert asked == [NARROW]
    assert ready.options == NARROW
