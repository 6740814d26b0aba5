"""How a plan differs from a device map, in words: one line per run of blocks that are elsewhere.

Owns the wording. Given the map as places of blocks; knows nothing of its syntax.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bayplan.planner.present.fold import fold_ids
from bayplan.planner.present.wording import count_text, device_label, has_single_node, printable
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.plan import Block, Plan
from bayplan.schemas.sizes import format_duration_ns, format_size
from bayplan.schemas.types import DeviceId, Fqn, Residency

if TYPE_CHECKING:
    from bayplan.planner.device_map import MapPlace

_SOURCES = {Residency.STREAM_HOST: "host memory", Residency.STREAM_DISK: "disk"}


def map_notes(plan: Plan, places: Mapping[Fqn, MapPlace], like_map: Plan | BayplanError) -> tuple[str, ...]:
    """Return what moved against a map and what that gains.

    Args:
        plan: The best plan.
        places: What the map says of the blocks.
        like_map: The best plan that is like the map, or why there is none.
    """
    single_node = has_single_node([plan])
    moved: dict[Fqn, tuple[Block, str]] = {}
    for block in plan.blocks:
        place = places.get(block.id)
        if place is None or (place.device in (None, block.device) and place.residency is block.residency):
            continue
        before = _place_text(place.device, place.residency, single_node=single_node)
        after = _place_text(block.device, block.residency, single_node=single_node)
        moved[block.id] = block, f"{before} -> {after}"
    return (_gain_text(plan, like_map), *_move_texts(moved))


def _move_texts(moved: Mapping[Fqn, tuple[Block, str]]) -> list[str]:
    if not moved:
        return ["no block is elsewhere than in the device map"]
    num_bytes = sum(block.num_bytes for block, _ in moved.values())
    lines = [f"moved against the device map: {count_text(len(moved), 'block')}, {format_size(num_bytes)}"]
    for fold in fold_ids(list(moved), [text for _, text in moved.values()]):
        lines.append(f"  {printable(fold.label)}: {moved[fold.ids[0]][1]}")
    return lines


def _gain_text(plan: Plan, like_map: Plan | BayplanError) -> str:
    step = format_duration_ns(plan.summary.predicted_step_ns)
    if isinstance(like_map, BayplanError):
        return f"a step takes {step}; no plan is like the device map: {like_map.what}"
    before = format_duration_ns(like_map.summary.predicted_step_ns)
    return f"a step takes {step}; in the best plan that is like the device map, {before}"


def _place_text(device: DeviceId | None, residency: Residency, *, single_node: bool) -> str:
    where = "" if device is None else device_label(device, single_node=single_node)
    source = _SOURCES.get(residency)
    if source is None:
        return where
    return f"{source} to {where}" if where else source
