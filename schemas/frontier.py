"""What `plan --pareto` finds: plans of which none is better than another in everything.

Computed, shown, and printed as JSON; the plans themselves are files of their own.
"""

from __future__ import annotations

import enum

import msgspec

from bayplan.schemas.json_tree import json_tree
from bayplan.schemas.plan import Summary
from bayplan.schemas.pretty_json import pretty
from bayplan.schemas.types import Count, Digest, Nanoseconds, PartsPerMillion


class PointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan was asked for."""

    format: str
    """As for `--format`; `own` is the model's own."""
    context: Count
    """Positions."""


class FrontierPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One plan, by what it is compared with others by."""

    request: PointRequest
    latency_ns: Nanoseconds
    """What the objective makes small: a step, or the time to load."""
    quantized_ppm: PartsPerMillion
    """Share of the weights' bytes, in the model's own format, that the plan rounds."""
    four_bit_ppm: PartsPerMillion
    """Likewise, that it rounds to four bits or fewer."""
    applyable: bool
    """Whether this version can carry the plan out."""
    digest: Digest
    """Of the plan."""
    file: str | None
    """Name of the plan's file; None: it was not written."""
    summary: Summary


class Without(enum.StrEnum):
    """Why there is no point for a request."""

    INFEASIBLE = "infeasible"
    """No placement fits."""
    DOMINATED = "dominated"
    """Another plan is at least as good in everything, and better in something or the same plan."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A request without a point."""

    request: PointRequest
    why: Without


class Frontier(msgspec.Struct, frozen=True, kw_only=True):
    """All points, and what was tried besides."""

    class_name: str
    points: tuple[FrontierPoint, ...]
    """By context, the fewest rounded bytes first."""
    left_out: tuple[LeftOut, ...]


def encode_frontier(frontier: Frontier) -> bytes:
    """Return the text of a frontier, laid out as a plan is."""
    return pretty(json_tree(frontier))
