"""How a checkpoint's tensors meet the model: names, shapes, what is stored where, and what stands in the way.

Reader: asks the live module for its names and hands on plain structs. A checkpoint that does not belong to
the model is an error; one that belongs to it, but that this version cannot plan for, can still be measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import torch

from bayplan.planner.model.facts import Obstacle
from bayplan.planner.model.source import ModelSource
from bayplan.planner.model.stored_tensors import StoredTensors, stored_tensors
from bayplan.planner.stored_form import FLOATS
from bayplan.schemas.errors import BayplanError, first_names
from bayplan.schemas.graph import ModelGraph
from bayplan.schemas.plan import CAST_SCRATCH_BYTES, GAP_SCRATCH_BYTES
from bayplan.schemas.safetensors_entries import TensorEntry
from bayplan.schemas.types import Fqn
from bayplan.skeleton.checkpoint_names import UnsupportedConversion, match_names
from bayplan.skeleton.formats import short_dtype, torch_dtype
from bayplan.skeleton.packed_names import PackedNames, match_packed_names

_SHOWN = 5


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a checkpoint beside its model."""

    sources: dict[Fqn, str] = {}
    """Tensor of the model -> its name in the checkpoint, where it is made of one."""
    unused: tuple[str, ...] = ()
    """Tensors that the model has no place for."""
    stored: StoredTensors | None = None
    """None: there are no headers."""
    scratch_bytes: int = GAP_SCRATCH_BYTES + CAST_SCRATCH_BYTES
    """Of the reader; without headers a cast must be reckoned with."""
    obstacle: Obstacle | None = None
    warnings: tuple[str, ...] = ()


def fit_checkpoint(
    source: ModelSource,
    module: torch.nn.Module,
    graph: ModelGraph,
    *,
    is_quantized: bool,
    is_scheme_known: bool = True,
) -> Fit:
    """Return how the checkpoint of `source` meets the model.

    Args:
        source: With or without headers.
        module: The model on meta, with plain layers.
        graph: Of `module`.
        is_quantized: The config says that the weights are.
        is_scheme_known: What the config says of that is understood; if not, a checkpoint that does not fit
            is one of which nothing is known.

    Raises:
        BayplanError: The checkpoint lacks parameters, or tensors of it have other shapes or data types.
    """
    if not source.headers:
        return Fit()
    entries = {entry.fqn: entry for header in source.headers.values() for entry in header.tensors}
    packed = match_packed_names(module, entries)
    stored = stored_tensors(graph, entries.values(), packed.owners, packed.whole)
    if is_quantized:
        try:
            return _fit_packed(source, module, entries, packed, stored)
        except BayplanError:
            if is_scheme_known:
                raise
            return Fit()
    try:
        names = match_names(module, entries)
    except UnsupportedConversion as error:
        _check_missing(source, module, packed.missing)
        return Fit(stored=stored, unused=packed.unused, obstacle=Obstacle.of(error))
    _check_missing(source, module, names.missing)
    sources = {target: found[0] for target, found in names.sources.items()}
    _check_shapes(source, module, sources, entries)
    return Fit(
        sources=sources,
        unused=(*names.unexpected, *names.ignored),
        stored=stored,
        scratch_bytes=_scratch_bytes(graph, sources, entries),
        warnings=_name_warnings(names.default_buffers),
    )


def _fit_packed(
    source: ModelSource,
    module: torch.nn.Module,
    entries: Mapping[str, TensorEntry],
    packed: PackedNames,
    stored: StoredTensors,
) -> Fit:
    """Return the fit of a quantized checkpoint; what is packed has no shape to compare."""
    _check_missing(source, module, packed.missing)
    plain = {
        target: name
        for target, name in packed.sources.items()
        if name in entries and entries[name].dtype in FLOATS
    }
    _check_shapes(source, module, plain, entries)
    return Fit(
        sources=packed.sources,
        unused=packed.unused,
        stored=stored,
        warnings=_name_warnings(packed.default_buffers),
    )


def _check_missing(source: ModelSource, module: torch.nn.Module, missing: tuple[str, ...]) -> None:
    if missing:
        raise BayplanError(
            "the checkpoint lacks parameters of the model",
            where=source.label,
            got=f"no tensor for {len(missing)} of them: {first_names(missing, _SHOWN)}",
            needed=f"every parameter of {type(module).__name__}",
            hint="another --class may fit, or a file is missing; what the class would compute itself,"
            " such as sinusoidal positions, must be in the checkpoint for this version",
        )


def _check_shapes(
    source: ModelSource,
    module: torch.nn.Module,
    sources: Mapping[Fqn, str],
    entries: Mapping[str, TensorEntry],
) -> None:
    state = module.state_dict(keep_vars=True)
    misfits = []
    for target, name in sources.items():
        wanted, found = state[target], entries[name]
        if tuple(found.shape) != tuple(wanted.shape) or not _is_castable(found.dtype, wanted.dtype):
            misfits.append(
                f"{name} is {found.dtype} {list(found.shape)},"
                f" {target} needs {short_dtype(wanted.dtype)} {list(wanted.shape)}"
            )
    if misfits:
        raise BayplanError(
            "tensors of the checkpoint do not fit the model",
            where=source.label,
            got="; ".join(misfits[:_SHOWN]) + (f"; {len(misfits)} in all" if len(misfits) > _SHOWN else ""),
            hint="the config belongs to another checkpoint, or a shard does",
        )


def _is_castable(stored: str, wanted: torch.dtype) -> bool:
    """Return whether the executor can make one data type of the other: only precision may be lost."""
    found = torch_dtype(stored)
    return found == wanted or (found.is_floating_point and wanted.is_floating_point)


def _scratch_bytes(graph: ModelGraph, sources: Mapping[Fqn, str], entries: Mapping[str, TensorEntry]) -> int:
    """Return the reader's scratch: that for casts only where a tensor is cast."""
    bound = {tensor.fqn: tensor.dtype for block in graph.blocks for tensor in block.tensors}
    casts = any(fqn in sources and entries[sources[fqn]].dtype != dtype for fqn, dtype in bound.items())
    return GAP_SCRATCH_BYTES + (CAST_SCRATCH_BYTES if casts else 0)


def _name_warnings(default_buffers: Iterable[str]) -> tuple[str, ...]:
    """Return what the plan itself does not say; tensors without a place are in it."""
    names = tuple(default_buffers)
    if not names:
        return ()
    return (f"computed, since the checkpoint lacks them: {', '.join(names[:_SHOWN])}",)
