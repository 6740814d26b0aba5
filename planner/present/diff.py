"""Comparing two plans by what they say, not by how their files look.

Owns the comparison: what the plans were made from is kept apart from what was decided, blocks are matched by
id, and everything but digest and writer is compared, so that an empty diff means that the plans say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from bayplan.schemas.diff import (
    BlockChange,
    ChangeKind,
    Decision,
    Drift,
    Leaf,
    LedgerChange,
    PlanDiff,
    SummaryChange,
)
from bayplan.schemas.json_tree import json_tree
from bayplan.schemas.plan import Block, Ledger, Plan, PlannedDevice, Summary
from bayplan.schemas.strict_json import JsonValue, canonical
from bayplan.schemas.types import BytesRange, Residency

_DRIFT_FIELDS = ("format_version", "semantics", "complete", "applyable", "errored", "model", "workload")
_DECISION_FIELDS = ("hosts", "formats", "format_rules", "rules", "ties", "schedule")
_NAME_FIELDS = ("id", "file", "pattern", "target", "first", "device")
"""Fields by which the entities of a list are known."""

_DISTANCE = {Residency.RESIDENT: 0, Residency.STREAM_HOST: 1, Residency.STREAM_DISK: 2}

# A note for people: `tree_digest` says whether the model itself differs.
_NOTES = frozenset({"model.library_version", "model.trace_note"})

# Between the ends of a link or edge where a path names it.
_TO = " - "

_Difference = tuple[str, Leaf, Leaf]


def diff_plans(before: Plan, after: Plan) -> PlanDiff:
    """Return everything that differs between two plans but their digest and their writer."""
    return PlanDiff(
        drift=tuple(_drift(before, after)),
        blocks=tuple(_block_changes(before, after)),
        decisions=tuple(_decisions(before, after)),
        ledger=tuple(_ledger_changes(before, after)),
        summary=tuple(_summary_changes(before.summary, after.summary)),
        nodes=tuple(
            sorted({device.id.partition("/")[0] for plan in (before, after) for device in plan.devices})
        ),
        step_ns=(before.summary.predicted_step_ns, after.summary.predicted_step_ns),
    )


def _drift(before: Plan, after: Plan) -> Iterator[Drift]:
    """Yield what differs in what the plans were made from."""
    for field in _DRIFT_FIELDS:
        for path, old, new in _differences(
            json_tree(getattr(before, field)), json_tree(getattr(after, field)), field
        ):
            yield Drift(path=path, before=old, after=new, relevant=path not in _NOTES)
    used = {device.id for plan in (before, after) for device in plan.devices}
    places = used | {device.partition("/")[0] for device in used}
    for path, old, new in _differences(json_tree(before.inventory), json_tree(after.inventory), "inventory"):
        # `inventory.devices[node0/gpu3].kind`: relevant if some plan has a share on that device.
        place = path.partition("[")[2].partition("]")[0]
        relevant = not place or all(end in places for end in place.split(_TO))
        yield Drift(path=path, before=old, after=new, relevant=relevant)
    yield from _reserve_drift(before, after)
    for path, old, new in _differences(json_tree(before.problem), json_tree(after.problem), "problem"):
        yield Drift(path=path, before=old, after=new, relevant=True)


def _reserve_drift(before: Plan, after: Plan) -> Iterator[Drift]:
    """Yield devices whose reserve differs, which unlike kind and capacity need not be the inventory's."""
    reserves = {device.id: device.reserve_bytes for device in before.devices}
    for device in after.devices:
        old = reserves.get(device.id)
        if old is not None and old != device.reserve_bytes:
            path = f"devices[{device.id}].reserve_bytes"
            yield Drift(path=path, before=old, after=device.reserve_bytes, relevant=True)


def _block_changes(before: Plan, after: Plan) -> Iterator[BlockChange]:
    old_blocks = {block.id: block for block in before.blocks}
    new_blocks = {block.id: block for block in after.blocks}
    for block_id, new in new_blocks.items():
        old = old_blocks.get(block_id)
        if old != new:
            kinds = (ChangeKind.ADDED,) if old is None else tuple(_kinds(old, new))
            yield BlockChange(id=block_id, kinds=kinds, before=old, after=new)
    for block_id, old in old_blocks.items():
        if block_id not in new_blocks:
            yield BlockChange(id=block_id, kinds=(ChangeKind.REMOVED,), before=old, after=None)


def _kinds(old: Block, new: Block) -> Iterator[ChangeKind]:
    """Yield what happened to a block that both plans have and that differs; at least one kind."""
    changed = False
    for kind, happened in (
        (ChangeKind.MOVED, old.device != new.device),
        (ChangeKind.SPILLED, _DISTANCE[old.residency] < _DISTANCE[new.residency]),
        (ChangeKind.BROUGHT_IN, _DISTANCE[old.residency] > _DISTANCE[new.residency]),
        (ChangeKind.REFORMATTED, old.format != new.format),
        (ChangeKind.RESIZED, (old.num_bytes, old.kv_bytes) != (new.num_bytes, new.kv_bytes)),
        (ChangeKind.EXPERTS, old.experts != new.experts),
    ):
        if happened:
            changed = True
            yield kind
    if not changed:
        yield ChangeKind.EXPLAINED


def _decisions(before: Plan, after: Plan) -> Iterator[Decision]:
    for field in _DECISION_FIELDS:
        for path, old, new in _differences(
            json_tree(getattr(before, field)), json_tree(getattr(after, field)), field
        ):
            yield Decision(path=path, before=old, after=new)
    kept = {block.id for block in before.blocks} & {block.id for block in after.blocks}
    old_order, new_order = (
        [block.id for block in plan.blocks if block.id in kept] for plan in (before, after)
    )
    for position, (old, new) in enumerate(zip(old_order, new_order, strict=True)):
        if old != new:
            yield Decision(path=f"order of blocks, position {position}", before=old, after=new)
            return
    # Also the order of devices is a decision: activations flow along it.
    old_devices, new_devices = ([device.id for device in plan.devices] for plan in (before, after))
    if old_devices != new_devices and sorted(old_devices) == sorted(new_devices):
        yield Decision(path="order of devices", before=", ".join(old_devices), after=", ".join(new_devices))


def _ledger_changes(before: Plan, after: Plan) -> Iterator[LedgerChange]:
    old_devices = {device.id: device for device in before.devices}
    new_devices = {device.id: device for device in after.devices}
    for device_id in (*new_devices, *(device for device in old_devices if device not in new_devices)):
        old, new = old_devices.get(device_id), new_devices.get(device_id)
        for component in (*Ledger.__struct_fields__, "budget"):
            lines = _component(old, component), _component(new, component)
            if lines[0] != lines[1]:
                yield LedgerChange(device=device_id, component=component, before=lines[0], after=lines[1])


def _component(device: PlannedDevice | None, component: str) -> BytesRange | None:
    if device is None:
        return None
    if component == "budget":
        return (device.budget_bytes, device.budget_bytes)
    return cast(BytesRange, getattr(device.ledger, component))


def _summary_changes(before: Summary, after: Summary) -> Iterator[SummaryChange]:
    for field, old, new in _differences(json_tree(before), json_tree(after), ""):
        yield SummaryChange(field=field, before=old, after=new)


def _differences(old: JsonValue, new: JsonValue, path: str) -> Iterator[_Difference]:
    """Yield the path and both values of every leaf that differs.

    Entities of a list are matched by name where all have one of their own; other lists are one leaf.
    """
    old_members, new_members = _members(old), _members(new)
    if old_members is None or new_members is None:
        if _as_leaf(old) != _as_leaf(new) or type(old) is not type(new):
            yield path, _as_leaf(old), _as_leaf(new)
        return
    for key in (*new_members, *(key for key in old_members if key not in new_members)):
        inner = f"{path}{key}" if key.startswith("[") else f"{path}.{key}".lstrip(".")
        yield from _differences(old_members.get(key), new_members.get(key), inner)
    shared = [key for key in old_members if key in new_members]
    if isinstance(old, list) and shared != [key for key in new_members if key in old_members]:
        yield f"{path} order", ", ".join(old_members), ", ".join(new_members)


def _members(value: JsonValue) -> dict[str, JsonValue] | None:
    """Return what a value consists of, by name; None if it is a leaf."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        names = [_entity_name(cast(dict[str, JsonValue], item)) for item in value]
        if all(names) and len(set(names)) == len(names):
            return {f"[{name}]": item for name, item in zip(names, value, strict=True)}
    return None


def _entity_name(item: dict[str, JsonValue]) -> str:
    if isinstance(item.get("source"), str) and isinstance(item.get("target"), str):
        return f"{item['source']}{_TO}{item['target']}"
    for field in _NAME_FIELDS:
        if isinstance(item.get(field), str):
            return cast(str, item[field])
    return _joined(item.get("fqns"))


def _joined(names: JsonValue) -> str:
    return " = ".join(str(name) for name in names) if isinstance(names, Sequence) else ""


def _as_leaf(value: JsonValue) -> Leaf:
    if isinstance(value, dict | list):
        return canonical(value).decode()
    assert not isinstance(value, float), "a plan holds no floats"
    return value
