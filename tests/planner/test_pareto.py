from __future__ import annotations

import functools
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placeable_models import placeable_model, read_placeable, two_gpus

from bayplan.planner.api import make_plan, solve_ready
from bayplan.planner.model import cached
from bayplan.planner.model.facts import ReadModel
from bayplan.planner.options import PlanOptions
from bayplan.planner.pareto import SAME_PPM, Found, file_name, find_frontier, make_frontier, undominated
from bayplan.planner.ready import get_ready
from bayplan.schemas.certificate import CertifiedInfeasible
from bayplan.schemas.errors import Infeasible, UsageError
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.frontier import FrontierPoint, PointRequest, Without
from bayplan.schemas.plan import FormatRule, Plan
from bayplan.schemas.types import Objective

NARROW = PlanOptions(inventory=two_gpus(), max_memory=("gpu0=9MiB", "gpu1=9MiB"))
RULES = FormatConfig(format_rules=(FormatRule(pattern="head.weight", format="bf16", within="nf4"),))


def frontier(**fields: object) -> Found:
    return find_frontier(msgspec.structs.replace(NARROW, **fields), read_placeable)


@functools.cache
def whole_frontier() -> Found:
    """With all that is tried where nothing is said."""
    return frontier()


@functools.cache
def any_plan() -> Plan:
    return solve_ready(get_ready(NARROW, read_placeable))


def tried(found: Found) -> dict[PointRequest, Without | None]:
    return {point.point.request: None for point in found.points} | {
        left.request: left.why for left in found.left_out
    }


def point(latency_ns: int, quantized_ppm: int, four_bit_ppm: int, context: int) -> FrontierPoint:
    plan = any_plan()
    return FrontierPoint(
        request=PointRequest(format="own", context=context),
        latency_ns=latency_ns,
        quantized_ppm=quantized_ppm,
        four_bit_ppm=four_bit_ppm,
        applyable=True,
        digest=plan.digest,
        file=None,
        summary=plan.summary,
    )


POINTS = st.lists(
    st.builds(
        point,
        st.sampled_from((1_000_000, 1_000_500, 1_002_000, 2_000_000)),
        st.sampled_from((0, 400_000, 900_000)),
        st.sampled_from((0, 400_000)),
        st.sampled_from((512, 1024, 2048)),
    ),
    min_size=1,
    max_size=8,
)


def is_as_good(one: FrontierPoint, other: FrontierPoint, slack_ppm: int) -> bool:
    return (
        one.latency_ns * 1_000_000 <= other.latency_ns * (1_000_000 + slack_ppm)
        and one.quantized_ppm <= other.quantized_ppm
        and one.four_bit_ppm <= other.four_bit_ppm
        and one.request.context >= other.request.context
    )


@given(POINTS)
def test_of_the_points_kept_none_is_as_good_as_another_and_each_dropped_one_has_a_better(
    points: list[FrontierPoint],
) -> None:
    kept = undominated(points)
    assert kept
    assert not any(is_as_good(one, other, 0) for one, other in itertools.permutations(kept, 2))
    for dropped in points:
        # What is as good but for a little may itself be dropped for one that is a little faster.
        assert any(is_as_good(one, dropped, 3 * SAME_PPM) for one in kept)


def test_a_latency_within_what_a_search_may_miss_is_no_advantage() -> None:
    precise, hardly_faster, faster = (
        point(10_000_000, 0, 0, 8),
        point(9_995_000, 1, 0, 8),
        point(9_900_000, 1, 0, 8),
    )
    assert undominated([precise, hardly_faster]) == [precise]
    assert undominated([precise, faster]) == [precise, faster]


def test_fewer_rounded_bytes_and_fewer_bits_are_two_things() -> None:
    half_to_four, all_to_eight = point(10_000, 500_000, 500_000, 8), point(10_000, 1_000_000, 0, 8)
    assert undominated([half_to_four, all_to_eight]) == [half_to_four, all_to_eight]


def test_formats_and_contexts_about_what_was_asked_are_tried() -> None:
    names = ("own", "auto", "int8", "nf4", "bf16,int8,nf4")
    found = tried(whole_frontier())
    assert set(found) == {
        PointRequest(format=name, context=context) for name in names for context in (32, 64, 128, 256)
    }
    assert None in found.values()
    assert Without.DOMINATED in found.values()


def test_contexts_end_at_the_models_maximum() -> None:
    assert {request.context for request in tried(frontier(context=100, format="bf16"))} == {50, 100, 200}


def test_a_model_without_a_maximum_is_planned_for_one_context() -> None:
    def read(_: PlanOptions) -> ReadModel:
        read = placeable_model(4)
        return msgspec.structs.replace(read, graph=msgspec.structs.replace(read.graph, max_context=None))

    assert {request.context for request in tried(find_frontier(NARROW, read))} == {64}


def test_formats_that_are_asked_for_are_tried_alone_and_together() -> None:
    formats = {request.format for request in tried(frontier(format="bf16,nf4"))}
    assert formats == {"bf16", "nf4", "bf16,nf4"}
    assert {request.format for request in tried(frontier(format="nf4"))} == {"nf4"}


def test_with_rules_only_what_is_asked_for_is_tried() -> None:
    formats = {request.format for request in tried(frontier(format="bf16,nf4", format_config=RULES))}
    assert formats == {"bf16,nf4"}


def test_on_this_machine_only_what_runs_is_tried() -> None:
    probed = msgspec.structs.replace(two_gpus(), source="probed")
    cpu = msgspec.structs.replace(probed.devices[0], id="node0/cpu", backend="cpu")
    inventory = msgspec.structs.replace(probed, devices=(cpu,), links=())
    found = frontier(inventory=inventory, max_memory=())
    assert {request.format for request in tried(found)} == {"own"}


def test_no_plan_is_better_than_another_and_more_context_or_precision_costs_time() -> None:
    points = [own.point for own in whole_frontier().points]
    for one, other in itertools.permutations(points, 2):
        is_as_precise = one.quantized_ppm <= other.quantized_ppm and one.four_bit_ppm <= other.four_bit_ppm
        if is_as_precise and one.request.context >= other.request.context:
            assert one.latency_ns > other.latency_ns
    order = [(own.request.context, own.quantized_ppm, own.four_bit_ppm) for own in points]
    assert order == sorted(order)


def test_each_point_is_the_plan_that_the_same_call_makes() -> None:
    for own in whole_frontier().points[:5]:
        name = own.point.request.format
        options = msgspec.structs.replace(
            NARROW, context=own.point.request.context, format=None if name == "own" else name
        )
        plan = solve_ready(get_ready(options, read_placeable))
        assert own.plan == plan
        assert (own.point.digest, own.point.summary) == (plan.digest, plan.summary)
        assert own.point.latency_ns == plan.summary.predicted_step_ns


def test_shares_are_of_the_bytes_in_the_own_format() -> None:
    for own in whole_frontier().points:
        formats = [block.format for block in own.plan.blocks]
        assert own.point.quantized_ppm == (formats.count("int8") + formats.count("nf4")) * 1_000_000 // 14
        assert own.point.four_bit_ppm == formats.count("nf4") * 1_000_000 // 14


def test_loading_is_the_latency_where_it_is_the_objective() -> None:
    for own in frontier(objective=Objective.LOAD, format="bf16").points:
        assert own.point.latency_ns == own.plan.summary.predicted_load_ns


def test_what_does_not_fit_is_left_out() -> None:
    found = frontier(no_spill=True)
    assert tried(found)[PointRequest(format="own", context=64)] is Without.INFEASIBLE
    assert found.points


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"context": 100},
        {"format": "auto"},
        {"format": "nf4"},
        {"format": "nf4,bf16"},
        {"format": "bf16,nf4", "format_config": RULES},
    ],
)
def test_where_nothing_fits_the_certificate_is_that_of_one_plan(
    asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cached, "cached_read_model", lambda _name, options, _progress: read_placeable(options)
    )
    options = msgspec.structs.replace(NARROW, no_spill=True, max_memory=("gpu0=1MiB", "gpu1=1MiB"), **asked)
    with pytest.raises(CertifiedInfeasible) as plan:
        make_plan("model", options)
    with pytest.raises(CertifiedInfeasible) as many:
        make_frontier("model", options)
    assert many.value.certificate == plan.value.certificate
    assert str(many.value) == str(plan.value)
    assert any(one.helps for one in plan.value.certificate.relaxations)


def test_where_no_budget_would_do_nothing_is_certified() -> None:
    pins = ("layers.1=gpu1", "layers.2=gpu0")
    with pytest.raises(Infeasible) as one:
        solve_ready(get_ready(msgspec.structs.replace(NARROW, pins=pins), read_placeable))
    with pytest.raises(Infeasible) as many:
        frontier(pins=pins)
    assert not isinstance(many.value, CertifiedInfeasible)
    assert str(many.value) == str(one.value)


def test_the_model_is_read_once_per_context() -> None:
    asked: list[int | None] = []

    def read(options: PlanOptions) -> ReadModel:
        asked.append(options.context)
        return placeable_model(4, context=options.context or 64)

    find_frontier(NARROW, read)
    assert asked == [None, 32, 128, 256]


def test_progress_counts_plans() -> None:
    told: list[tuple[str, int, int]] = []
    options = msgspec.structs.replace(NARROW, format="bf16")
    find_frontier(options, read_placeable, lambda *step: told.append(step))
    assert told == [("plans", number, 4) for number in range(5)]


def test_a_file_has_format_and_context_in_its_name() -> None:
    assert file_name(PointRequest(format="bf16,int8,nf4", context=64)) == "bf16+int8+nf4-64.json"
    found = whole_frontier()
    with_files = found.frontier(has_files=True)
    assert [own.file for own in with_files.points] == [file_name(own.point.request) for own in found.points]
    assert {own.file for own in found.frontier(has_files=False).points} == {None}


def test_previous_is_for_one_plan() -> None:
    with pytest.raises(UsageError) as caught:
        frontier(previous=any_plan())
    assert str(caught.value) == (
        "--pareto: many plans cannot all stay near one\nhint: leave --previous or --pareto out"
    )


def test_a_map_is_compared_with_one_plan() -> None:
    with pytest.raises(UsageError) as caught:
        frontier(device_map={"": 0}, free=True)
    assert str(caught.value) == (
        "--pareto: many plans cannot all be compared with a device map\n"
        "hint: leave --free out to plan like the map, or --pareto"
    )
