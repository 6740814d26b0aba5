"""Which bytes of the checkpoint make each tensor, by the plan's rules.

Names, shapes and data types only; reading is `bayplan.executor.reader`'s part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bayplan.executor.errors import PlanContradictionError, TensorMismatchError, TensorMissingError
from bayplan.executor.reader import Scratch, TensorSource
from bayplan.schemas.rules import source_names
from bayplan.skeleton.formats import short_dtype, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bayplan.executor.layout import Layout, PlacedTensor
    from bayplan.schemas.checkpoint import TensorPlace
    from bayplan.schemas.plan import Plan
    from bayplan.schemas.types import Fqn


class TensorSources(msgspec.Struct, frozen=True, kw_only=True):
    """Sources by the first name of each tensor that is read."""

    main: dict[Fqn, TensorSource]
    also_stored: dict[Fqn, tuple[TensorSource, ...]]
    """Where the checkpoint holds a tied tensor under more names: those that must have equal bytes."""
    casts: bool
    """Whether any tensor changes its data type while it is read."""


def find_sources(
    plan: Plan, layout: Layout, places: Mapping[str, TensorPlace], *, folder: str
) -> TensorSources:
    """Return the source of every parameter, and of every buffer that the checkpoint holds.

    Args:
        plan: Has the rules.
        layout: Of the plan's model.
        places: Every tensor of the checkpoint.
        folder: For messages.

    Raises:
        TensorMissingError: The checkpoint has none of a parameter's names.
        TensorMismatchError: Another shape, or a data type that would lose more than precision.
        PlanContradictionError: The reader needs more scratch than the plan reserves.
    """
    main: dict[Fqn, TensorSource] = {}
    also_stored: dict[Fqn, tuple[TensorSource, ...]] = {}
    for placed in layout.tensors:
        if not placed.is_persistent:
            continue
        names = [source_names(fqn, plan.rules)[0] for fqn in placed.fqns]
        found = [name for name in dict.fromkeys(names) if name in places]
        if not found:
            # A buffer that is not in the checkpoint keeps the value that its module computes.
            if placed.is_buffer and not placed.tensor.is_meta:
                continue
            raise TensorMissingError(placed.fqns[0], tuple(dict.fromkeys(names)), folder=folder)
        checked = [_checked(placed, places[name]) for name in found]
        main[placed.fqns[0]] = checked[0]
        if len(checked) > 1:
            also_stored[placed.fqns[0]] = tuple(checked[1:])
    tensors = {placed.fqns[0]: placed.tensor for placed in layout.tensors}
    casts = any(torch_dtype(source.dtype) != tensors[fqn].dtype for fqn, source in main.items())
    _check_scratch(plan, casts=casts)
    return TensorSources(main=main, also_stored=also_stored, casts=casts)


def _checked(placed: PlacedTensor, place: TensorPlace) -> TensorSource:
    entry = place.entry
    shape, dtype = tuple(placed.tensor.shape), short_dtype(placed.tensor.dtype)
    source_dtype = torch_dtype(entry.dtype)
    is_castable = source_dtype.is_floating_point and placed.tensor.is_floating_point()
    if entry.shape != shape or (source_dtype != placed.tensor.dtype and not is_castable):
        raise TensorMismatchError(
            placed.fqns[0],
            entry.fqn,
            place.file,
            got=f"{entry.dtype} {list(entry.shape)}",
            needed=f"{dtype} {list(shape)}",
        )
    return TensorSource(
        fqn=entry.fqn,
        file=place.file,
        file_offset=place.file_offset,
        num_bytes=entry.num_bytes,
        dtype=entry.dtype,
        shape=entry.shape,
    )


def _check_scratch(plan: Plan, *, casts: bool) -> None:
    needed_bytes = Scratch.num_bytes(casts=casts)
    slots = {entry.device: entry.num_slots * entry.slot_bytes for entry in plan.schedule}
    used = {block.device for block in plan.blocks}
    for device in plan.devices:
        room = device.ledger.staging[1] + device.ledger.load_transient[1] - slots.get(device.id, 0)
        if device.id in used and room < needed_bytes:
            raise PlanContradictionError(
                (f"the reader on {device.id} needs {needed_bytes} bytes of scratch, planned {room}",)
            )
