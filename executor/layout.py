"""Where every tensor goes: which block it belongs to, whether it streams, and at which place in a slot.

Follows from the plan and the module tree alone, on meta, before anything is allocated; also proves that the
plan's byte counts are those of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch

from bayplan.executor.errors import PlanContradictionError
from bayplan.schemas.dtypes import tensor_num_bytes
from bayplan.schemas.plan import aligned_bytes
from bayplan.schemas.rules import format_for
from bayplan.schemas.types import OWN_SUFFIX, Residency
from bayplan.skeleton.formats import short_dtype
from bayplan.skeleton.tree import named_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from bayplan.schemas.plan import Block, Plan
    from bayplan.schemas.types import Fqn


class PlacedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One storage of the model."""

    fqns: tuple[Fqn, ...]
    """All its names, in the order of the module tree."""
    block: Fqn
    """The first block in order that holds it."""
    tensor: torch.Tensor
    """As built: a parameter on meta, or a buffer with its value."""
    num_bytes: int
    is_buffer: bool
    is_persistent: bool
    slot_offset: int | None
    """Where in its block's slot; None: resident."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All tensors of a model with their places."""

    tensors: tuple[PlacedTensor, ...]
    """In the order of the module tree."""


def make_layout(plan: Plan, model: nn.Module) -> Layout:
    """Return the place of every tensor.

    Args:
        plan: Checked in itself.
        model: With the planned tree, parameters on meta.

    Raises:
        PlanContradictionError: Blocks and modules do not match; every problem is listed.
    """
    homes = _homes(plan, model)
    blocks = {block.id: block for block in plan.blocks}
    order = {block.id: index for index, block in enumerate(plan.blocks)}
    names: dict[int, list[Fqn]] = {}
    for entry in named_tensors(model):
        names.setdefault(id(entry.tensor), []).append(entry.fqn)
    problems: list[str] = []
    slot_used: dict[Fqn, int] = {}
    placed: dict[int, PlacedTensor] = {}
    for entry in named_tensors(model):
        if id(entry.tensor) in placed:
            continue
        fqns = tuple(names[id(entry.tensor)])
        holders = sorted({homes[fqn] for fqn in fqns}, key=order.__getitem__)
        block = blocks[holders[0]]
        streams = not entry.is_buffer and block.residency == Residency.STREAM_DISK
        num_bytes = tensor_num_bytes(entry.tensor.shape, short_dtype(entry.tensor.dtype))
        if not entry.is_buffer and len(holders) > 1:
            problems += _tie_problems(fqns, [blocks[holder] for holder in holders])
        if not entry.is_buffer:
            problems += _format_problems(plan, block, fqns[0], entry.tensor)
        placed[id(entry.tensor)] = PlacedTensor(
            fqns=fqns,
            block=block.id,
            tensor=entry.tensor,
            num_bytes=num_bytes,
            is_buffer=entry.is_buffer,
            is_persistent=entry.is_persistent,
            slot_offset=slot_used.get(block.id, 0) if streams else None,
        )
        if streams:
            slot_used[block.id] = slot_used.get(block.id, 0) + aligned_bytes(num_bytes)
    layout = Layout(tensors=tuple(placed.values()))
    problems += _byte_problems(plan, layout, slot_used)
    if problems:
        raise PlanContradictionError(tuple(problems))
    return layout


def _homes(plan: Plan, model: nn.Module) -> dict[Fqn, Fqn]:
    """Return the block of every tensor name; each has exactly one."""
    modules = dict(model.named_modules(remove_duplicate=False))
    fqns = [entry.fqn for entry in named_tensors(model)]
    homes: dict[Fqn, Fqn] = {}
    problems = []
    for block in plan.blocks:
        root = block.id.removesuffix(OWN_SUFFIX) if block.id != OWN_SUFFIX else ""
        if root not in modules:
            problems.append(f"block {block.id} is no module of {type(model).__name__}")
            continue
        for fqn in _own_names(modules[root], root) if block.id.endswith(OWN_SUFFIX) else _below(root, fqns):
            if fqn in homes:
                problems.append(f"{fqn} is in block {homes[fqn]} and in block {block.id}")
            homes[fqn] = block.id
    problems += [f"{fqn} is in no block" for fqn in fqns if fqn not in homes]
    if problems:
        raise PlanContradictionError(tuple(problems))
    return homes


def _own_names(module: nn.Module, root: Fqn) -> Iterator[Fqn]:
    dot = f"{root}." if root else ""
    for tensors in (module._parameters, module._buffers):
        yield from (dot + name for name, tensor in tensors.items() if tensor is not None)


def _below(root: Fqn, fqns: list[Fqn]) -> list[Fqn]:
    return [fqn for fqn in fqns if not root or fqn.startswith(f"{root}.")]


def _tie_problems(fqns: tuple[Fqn, ...], holders: list[Block]) -> list[str]:
    return [
        f"{' and '.join(fqns)} are one storage, but block {block.id} streams"
        for block in holders
        if block.residency != Residency.RESIDENT
    ]


def _format_problems(plan: Plan, block: Block, fqn: Fqn, tensor: torch.Tensor) -> list[str]:
    if not tensor.is_floating_point():
        return []
    planned = plan.formats[format_for(fqn, block.format, plan.format_rules)].kind
    found = short_dtype(tensor.dtype)
    return [] if found == planned else [f"{fqn} is built in {found}, planned in {planned}"]


def _byte_problems(plan: Plan, layout: Layout, slot_used: dict[Fqn, int]) -> list[str]:
    counted: dict[Fqn, int] = {block.id: 0 for block in plan.blocks}
    weights: dict[str, int] = {device.id: 0 for device in plan.devices}
    devices = {block.id: block.device for block in plan.blocks}
    for placed in layout.tensors:
        counted[placed.block] += placed.num_bytes
        if placed.slot_offset is None:
            weights[devices[placed.block]] += aligned_bytes(placed.num_bytes)
    problems = [
        f"block {block.id} has {counted[block.id]} bytes, planned {block.num_bytes}"
        for block in plan.blocks
        if counted[block.id] != block.num_bytes
    ]
    for device in plan.devices:
        if weights[device.id] > device.ledger.weights[1]:
            problems.append(
                f"weights on {device.id} take {weights[device.id]} bytes, planned {device.ledger.weights[1]}"
            )
    for schedule in plan.schedule:
        for block_id in schedule.stream_order:
            if slot_used.get(block_id, 0) > schedule.slot_bytes:
                problems.append(
                    f"block {block_id} needs a slot of {slot_used[block_id]} bytes, "
                    f"planned {schedule.slot_bytes}"
                )
    return problems
