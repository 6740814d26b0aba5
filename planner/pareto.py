"""`plan --pareto`: what latency costs in precision and context, each point a whole plan with its gap.

Owns which formats and contexts are tried and which plan is better than another in everything. How one plan is
made is `bayplan.planner.api`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.api import solve_ready
from bayplan.planner.block_forms import block_forms
from bayplan.planner.format_choice import AUTO, AUTO_FORMATS, parse_request
from bayplan.planner.formats import choice_names, planned_forms
from bayplan.planner.options import PlanOptions
from bayplan.planner.ready import Ready, get_ready
from bayplan.planner.relaxations import certified
from bayplan.planner.solve.infeasible import NoPlacement
from bayplan.schemas.errors import Infeasible, UsageError
from bayplan.schemas.features import Feature, may_plan
from bayplan.schemas.frontier import Frontier, FrontierPoint, LeftOut, PointRequest, Without
from bayplan.schemas.plan import Format, Plan
from bayplan.schemas.progress import Progress, untold
from bayplan.schemas.types import Objective

if TYPE_CHECKING:
    from bayplan.planner.model.facts import ReadModel

OWN = "own"
"""What the model's own format is called in a request."""

SAME_PPM = 1_000
"""Latencies that differ by less, in millionths, are as good as equal: twice what the search may miss."""

_FOUR_BIT_KINDS = frozenset({"nf4", "fp4", "fp4-rows", "mxfp4"})
_WHERE = "--pareto"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A point with its plan."""

    point: FrontierPoint
    plan: Plan


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A frontier with its plans, and what its maker should tell the user."""

    class_name: str
    points: tuple[Point, ...]
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]

    def frontier(self, *, has_files: bool) -> Frontier:
        """Return the frontier without its plans, with the names of their files if they are written."""
        points = tuple(
            msgspec.structs.replace(own.point, file=file_name(own.point.request) if has_files else None)
            for own in self.points
        )
        return Frontier(class_name=self.class_name, points=points, left_out=self.left_out)


def file_name(request: PointRequest) -> str:
    """Return the name of a plan's file, such as `auto-2048.json`."""
    return f"{request.format.replace(',', '+')}-{request.context}.json"


def make_frontier(model: str, options: PlanOptions, progress: Progress | None = None) -> Found:
    """Return the frontier of `model`.

    Args:
        model: Local folder, config file, Hub id with or without `@revision`, or `package.module:factory`.
        options: As for `find_frontier`.
        progress: Told of hashing and of plans.

    Raises:
        CertifiedInfeasible: There is no plan for any point, with what would be enough for the one plan that
            the same options ask for without a frontier.
        Infeasible: Nor would any budget be enough.
        UsageError: An option is malformed, or makes no sense for many plans.
        BayplanError: The model cannot be read.
    """
    from bayplan.planner.model.cached import cached_read_model

    return find_frontier(options, lambda own: cached_read_model(model, own, progress), progress)


def find_frontier(
    options: PlanOptions, read_model: Callable[[PlanOptions], ReadModel], progress: Progress | None = None
) -> Found:
    """Return the plans of which none is better than another in latency, precision and context together.

    Args:
        options: As for one plan. `format` says what to choose from: its names each alone, and all together.
        read_model: Reads the model; called once per context.
        progress: Told of plans.

    Raises:
        CertifiedInfeasible: There is no plan for any point, with what would be enough for the one plan that
            the same options ask for without a frontier.
        Infeasible: Nor would any budget be enough.
        UsageError: An option is malformed, or makes no sense for many plans.
        BayplanError: The model cannot be read.
    """
    _check(options)
    tell = progress if progress is not None else untold
    ready = get_ready(options, read_model)
    requests = list(_requests(ready))
    points: list[Point] = []
    left_out: list[LeftOut] = []
    asked_error: Infeasible | None = None
    for number, (request, own) in enumerate(_readied(ready, requests, read_model)):
        tell("plans", number, len(requests))
        try:
            points.append(_point(request, own, solve_ready(own)))
        except Infeasible as error:
            if _is_asked(own, ready):
                asked_error = error
            left_out.append(LeftOut(request=request, why=Without.INFEASIBLE))
    tell("plans", len(requests), len(requests))
    if not points:
        assert asked_error is not None, "what is asked for is among the requests"
        if isinstance(asked_error, NoPlacement):
            raise certified(asked_error, ready, read_model, progress) from None
        raise asked_error
    kept = undominated([point.point for point in points])
    left_out += [
        LeftOut(request=point.point.request, why=Without.DOMINATED)
        for point in points
        if point.point not in kept
    ]
    return Found(
        class_name=ready.read.graph.class_name,
        points=tuple(sorted((point for point in points if point.point in kept), key=_order)),
        left_out=tuple(left_out),
        warnings=ready.warnings,
    )


def undominated(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Return the points that no other is better than; of equally good ones, the first.

    Which rounding hurts more, a little to four bits or much to eight, is not known: a point has to be as good
    in both shares.
    """
    return [
        point
        for number, point in enumerate(points)
        if not any(
            _is_as_good(other, point) and (place < number or not _is_as_good(point, other))
            for place, other in enumerate(points)
            if place != number
        )
    ]


def _is_as_good(one: FrontierPoint, other: FrontierPoint) -> bool:
    """Whether `one` is at least as good as `other` in everything."""
    slack_ns = other.latency_ns * SAME_PPM // 1_000_000
    return (
        one.latency_ns <= other.latency_ns + slack_ns
        and one.quantized_ppm <= other.quantized_ppm
        and one.four_bit_ppm <= other.four_bit_ppm
        and one.request.context >= other.request.context
    )


def _order(point: Point) -> tuple[int, int, int, int]:
    own = point.point
    return own.request.context, own.quantized_ppm, own.four_bit_ppm, own.latency_ns


def _check(options: PlanOptions) -> None:
    if options.previous is not None:
        raise UsageError(
            "many plans cannot all stay near one", where=_WHERE, hint="leave --previous or --pareto out"
        )
    if options.free:
        raise UsageError(
            "many plans cannot all be compared with a device map",
            where=_WHERE,
            hint="leave --free out to plan like the map, or --pareto",
        )


def _requests(ready: Ready) -> Iterator[PointRequest]:
    """Yield what is tried, the context that was asked for first."""
    context, limit = ready.read.workload.context, ready.read.graph.max_context
    contexts = [context, context // 2, 2 * context, 4 * context] if limit is not None else [context]
    for positions in contexts:
        if limit is None or 1 <= positions <= limit:
            for name in _formats(ready):
                yield PointRequest(format=name, context=positions)


def _formats(ready: Ready) -> tuple[str, ...]:
    """Return the formats that are tried, as `--format` has them."""
    asked = ready.options.format
    if ready.request.rules:  # those of a format that is not asked for would decide nothing
        return (OWN if asked is None else asked,)
    if asked is not None and asked != AUTO:
        names = ready.request.names
        return (*names, ",".join(names)) if len(names) > 1 else names
    if ready.read.scheme is not None or not may_plan(Feature.QUANTIZED, ready.inventory):
        return (OWN,)
    return OWN, AUTO, *AUTO_FORMATS, ",".join((ready.read.dtype, *AUTO_FORMATS))


def _readied(
    ready: Ready, requests: list[PointRequest], read_model: Callable[[PlanOptions], ReadModel]
) -> Iterator[tuple[PointRequest, Ready]]:
    """Yield each request with all that its plan is made of; the model is read once per context and type."""
    known = {(ready.read.workload.context, ready.request.plain): ready.read}
    for request in requests:
        options = msgspec.structs.replace(
            ready.options,
            inventory=ready.inventory,
            format=None if request.format == OWN else request.format,
            context=request.context,
        )
        plain = parse_request(options.format, options.format_config).plain
        own = known.get((request.context, None))
        key = request.context, None if own is not None and own.dtype == plain else plain
        if key not in known:
            known[key] = read_model(options)
        yield request, get_ready(options, partial(_same, known[key]))


def _is_asked(own: Ready, asked: Ready) -> bool:
    """Whether a point chooses from the formats, and has the context, that one plan with the options would."""
    names, wanted = (set(choice_names(one.read, one.request)) for one in (own, asked))
    return names == wanted and own.read.workload.context == asked.read.workload.context


def _same(read: ReadModel, _options: PlanOptions) -> ReadModel:
    return read


def _point(request: PointRequest, ready: Ready, plan: Plan) -> Point:
    rounded, to_four_bits, total = _rounded_bytes(ready, plan)
    summary = plan.summary
    loads = plan.problem.objective is Objective.LOAD
    return Point(
        point=FrontierPoint(
            request=request,
            latency_ns=summary.predicted_load_ns if loads else summary.predicted_step_ns,
            quantized_ppm=rounded * 1_000_000 // total if total else 0,
            four_bit_ppm=to_four_bits * 1_000_000 // total if total else 0,
            applyable=plan.applyable,
            digest=plan.digest,
            file=None,
            summary=summary,
        ),
        plan=plan,
    )


def _rounded_bytes(ready: Ready, plan: Plan) -> tuple[int, int, int]:
    """Return the bytes that a plan rounds, those that it rounds to four bits, and all, in the own format."""
    asked = AUTO_FORMATS if ready.request.is_auto else ready.request.names
    names = tuple(dict.fromkeys((ready.read.own_format, *asked)))
    request = msgspec.structs.replace(ready.request, names=names, is_auto=False)
    every = block_forms(planned_forms(ready.read, request), ready.read.workload)
    rounded = to_four_bits = 0
    for block, forms in zip(plan.blocks, every, strict=True):
        num_bytes = next((form.quantized_bytes for form in forms if form.format == block.format), 0)
        rounded += num_bytes
        to_four_bits += num_bytes if _is_four_bit(plan.formats, block.format) else 0
    return rounded, to_four_bits, sum(forms[0].num_bytes for forms in every)


def _is_four_bit(formats: Mapping[str, Format], name: str) -> bool:
    entry = formats[name]
    return entry.kind in _FOUR_BIT_KINDS or (entry.bits or 8) <= 4
