"""Meta parameters into bound ones: once, in place, before the first forward.

A resident tensor gets a piece of an arena; a streamed one is a view of its block's slot, for good, so that
its shape, data type and device are true at all times. Names of one storage stay one object.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import nn

from bayplan.executor.errors import PlanContradictionError, TiedTensorsDifferError
from bayplan.executor.layout import Layout
from bayplan.executor.reader import ReadItem, Request, Scratch, ShardReader, make_requests
from bayplan.schemas.plan import aligned_bytes
from bayplan.skeleton.formats import torch_dtype
from bayplan.skeleton.tree import named_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bayplan.executor.arena import Arena, Region, Slots
    from bayplan.executor.layout import PlacedTensor
    from bayplan.executor.reader import TensorSource
    from bayplan.executor.sources import TensorSources
    from bayplan.schemas.progress import Progress
    from bayplan.schemas.types import Fqn


def resident_bytes(layout: Layout, sources: TensorSources) -> int:
    """Return what the arena for resident tensors holds: parameters, and buffers that are read."""
    return sum(aligned_bytes(placed.num_bytes) for placed in _resident(layout, sources))


def bind_resident(
    model: nn.Module, layout: Layout, sources: TensorSources, arena: Arena
) -> tuple[ReadItem, ...]:
    """Give every resident tensor its place; return what is to be read there.

    Args:
        model: Parameters on meta.
        layout: Of this model.
        sources: Of the checkpoint.
        arena: Of at least `resident_bytes`.

    Returns:
        One item per tensor; the bytes at its place mean nothing until it is read.
    """
    items = []
    bound: dict[int, torch.Tensor] = {}
    for placed in _resident(layout, sources):
        region = arena.carve(placed.num_bytes)
        data = region.tensor(placed.tensor.dtype, tuple(placed.tensor.shape))
        bound[id(placed.tensor)] = data if placed.is_buffer else _parameter_like(placed.tensor, data)
        items.append(ReadItem(source=sources.main[placed.fqns[0]], region=region, tensor=data))
    _exchange(model, bound)
    return tuple(items)


def bind_streamed(
    model: nn.Module, layout: Layout, sources: TensorSources, slots: Slots, order: tuple[Fqn, ...]
) -> tuple[tuple[ReadItem, ...], ...]:
    """Make the parameters of streamed blocks views of their slots.

    Args:
        model: Parameters on meta.
        layout: Of this model.
        sources: Of the checkpoint.
        slots: Of the device that computes the blocks.
        order: The device's stream order.

    Returns:
        For each block of `order`, what is to be read at each visit.
    """
    positions = {block: position for position, block in enumerate(order)}
    items: list[list[ReadItem]] = [[] for _ in order]
    bound: dict[int, torch.Tensor] = {}
    for placed in layout.tensors:
        if placed.slot_offset is None:
            continue
        position = positions[placed.block]
        slot = slots.region(position % slots.num_slots)
        region = slot.carve(placed.slot_offset, placed.num_bytes)
        data = region.tensor(placed.tensor.dtype, tuple(placed.tensor.shape))
        bound[id(placed.tensor)] = _parameter_like(placed.tensor, data)
        items[position].append(ReadItem(source=sources.main[placed.fqns[0]], region=region, tensor=data))
    _exchange(model, bound)
    return tuple(tuple(block_items) for block_items in items)


def read_resident(
    items: tuple[ReadItem, ...], reader: ShardReader, scratch: Scratch, progress: Progress
) -> int:
    """Read the resident tensors; return the bytes read.

    Raises:
        TruncatedShardError, ShardChangedError, ShardReadError: As `ShardReader.read`.
    """
    requests = make_requests(items, scratch)
    total_bytes = sum(request.num_bytes for request in requests)
    done_bytes = 0
    for request in requests:
        done_bytes += reader.read((request,))
        progress("read", done_bytes, total_bytes)
    return done_bytes


def check_tied_values(layout: Layout, sources: TensorSources, reader: ShardReader, scratch: Scratch) -> None:
    """Compare the copies of a tied tensor where the checkpoint holds it under more than one name.

    Args:
        layout: Of the model.
        sources: Of the checkpoint.
        reader: To read the copies with.
        scratch: Both copies pass through its gap region, piece by piece.

    Raises:
        TiedTensorsDifferError: `from_pretrained` would not tie them, and the plan counts them once.
    """
    dtypes = {placed.fqns[0]: placed.tensor.dtype for placed in layout.tensors}
    for fqn, copies in sources.also_stored.items():
        for copy in copies:
            if not _same_values(sources.main[fqn], copy, dtypes[fqn], reader, scratch.gap):
                raise TiedTensorsDifferError(fqn, copy.fqn)


def check_nothing_on_meta(model: nn.Module) -> None:
    """Check that every tensor of `model` has bytes.

    Raises:
        PlanContradictionError: Names those that have none.
    """
    left = sorted({entry.fqn for entry in named_tensors(model) if entry.tensor.is_meta})
    if left:
        raise PlanContradictionError(tuple(f"{fqn} is still on meta" for fqn in left))


def without_values(layout: Layout, sources: TensorSources) -> Layout:
    """Return `layout` without the computed values of the buffers that were read: they need not stay."""
    tensors = tuple(
        msgspec.structs.replace(placed, tensor=placed.tensor.to("meta"))
        if placed.is_buffer and placed.fqns[0] in sources.main
        else placed
        for placed in layout.tensors
    )
    return Layout(tensors=tensors)


def bound_tensors(model: nn.Module, layout: Layout) -> dict[Fqn, torch.Tensor]:
    """Return the tensor that `model` has for each of the layout, by its first name."""
    tensors = {entry.fqn: entry.tensor for entry in named_tensors(model)}
    return {placed.fqns[0]: tensors[placed.fqns[0]] for placed in layout.tensors}


def unbind(model: nn.Module, layout: Layout, bound: Mapping[Fqn, torch.Tensor]) -> None:
    """Put back what was there before, parameters on meta, so that the memory of those bound can return.

    Args:
        model: May have been changed: other libraries wrap modules and so rename their tensors.
        layout: Has what was there before.
        bound: From `bound_tensors`; found in `model` by identity, under whatever name.
    """
    _exchange(model, {id(bound[placed.fqns[0]]): placed.tensor for placed in layout.tensors})


def _resident(layout: Layout, sources: TensorSources) -> tuple[PlacedTensor, ...]:
    return tuple(
        placed for placed in layout.tensors if placed.slot_offset is None and placed.fqns[0] in sources.main
    )


def _parameter_like(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return a parameter over `data` with the class and attributes of a meta parameter."""
    with torch.inference_mode(mode=False):
        # Whether it requires grad decides, even without a gradient, which kernel torch takes for inputs that
        # are not contiguous, and so the last bits.
        made = torch.Tensor._make_subclass(type(parameter), data, parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    return made


def _exchange(model: nn.Module, bound: Mapping[int, torch.Tensor]) -> None:
    """Replace tensors of `model` by identity, under every name."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) in bound:
                    tensors[name] = bound[id(tensor)]  # type: ignore[assignment]


def _same_values(
    first: TensorSource, second: TensorSource, dtype: torch.dtype, reader: ShardReader, room: Region
) -> bool:
    """Return whether two tensors of one shape have the same bits once cast to `dtype`."""
    halves = room.carve(0, room.num_bytes // 2), room.carve(room.num_bytes // 2, room.num_bytes // 2)
    step = room.num_bytes // 2 // max(torch_dtype(first.dtype).itemsize, torch_dtype(second.dtype).itemsize)
    total = math.prod(first.shape)
    for start in range(0, total, step):
        count = min(step, total - start)
        pieces = []
        for source, half in zip((first, second), halves, strict=True):
            itemsize = torch_dtype(source.dtype).itemsize
            request = Request(
                file=source.file,
                file_offset=source.file_offset + start * itemsize,
                buffers=(half.memory()[: count * itemsize],),
                num_bytes=count * itemsize,
            )
            reader.read((request,))
            pieces.append(half.tensor(torch_dtype(source.dtype), (count,)).to(dtype).view(torch.uint8))
        if not torch.equal(*pieces):
            return False
    return True
