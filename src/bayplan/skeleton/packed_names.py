"""To which tensor of a model each tensor of a quantized checkpoint belongs: scales to their weight.

Owns the names under which quantizers store what belongs to a weight. The renamings are transformers' own,
asked of `transformers_adapter`. Knows names only: neither shapes, files nor values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from transformers import PreTrainedModel

from bayplan.skeleton import transformers_adapter
from bayplan.skeleton.transformers_adapter import RenamedTensor
from bayplan.skeleton.tree import named_tensors, tie_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

_BESIDE_WEIGHT = frozenset(
    {
        *("weight_scale_inv", "weight_scale", "weight_scale_2", "scale", "qscale_weight"),
        *("activation_scale", "input_scale", "input_zero_point", "input_global_scale", "qscale_act"),
        *("output_scale", "output_zero_point"),
        *("qweight", "qzeros", "scales", "g_idx"),
        *("SCB", "weight_format"),
        *("weight_packed", "weight_shape", "weight_zero_point", "weight_global_scale", "weight_g_idx"),
    }
)
"""What stands in the place of `weight`: fp8, fp8, GPTQ and AWQ, LLM.int8(), compressed-tensors."""
_AFTER_PARAMETER = ("_scale_inv", "_activation_scale", "_weight_scale", "_input_scale", "_blocks", "_scales")
"""What follows the name of a parameter of all experts."""
_CACHE_SCALES = {"q_scale": "q_proj", "k_scale": "k_proj", "v_scale": "v_proj"}
"""Scales of a quantized cache lie beside the projections that fill it."""
_INSIDE_WEIGHT = ".weight."
"""bitsandbytes' 4-bit statistics follow the weight's own name."""


class PackedNames(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantized checkpoint's names meet a model's."""

    owners: dict[str, str]
    """Checkpoint tensor -> the model tensor that it is, is a part of, or belongs to; sorted."""
    whole: frozenset[str]
    """Those of `owners` that are their tensor, or a part of it, and do not only belong to it."""
    sources: dict[str, str]
    """Model tensor -> its name in the checkpoint, packed or not, where it is made of one; sorted."""
    missing: tuple[str, ...]
    """Parameters that nothing in the checkpoint gives, under no name of their tied group; sorted."""
    default_buffers: tuple[str, ...]
    """Persistent buffers that the checkpoint lacks: they keep their computed values; sorted."""
    unused: tuple[str, ...]
    """Checkpoint tensors that the model has no place for; sorted."""


def match_packed_names(model: nn.Module, names: Iterable[str]) -> PackedNames:
    """Return to which parameter or buffer each tensor of a quantized checkpoint belongs.

    Args:
        model: Built by `build`, with plain layers.
        names: All tensors of the checkpoint.
    """
    state = {entry.fqn: entry for entry in named_tensors(model) if entry.is_persistent}
    bases = {name: base_names(name) for name in sorted(names)}
    asked = {*bases, *(base for found in bases.values() for base in found)}
    renamed = {entry.source: entry for entry in _renamed(model, asked) if entry.target in state}
    met = {
        name: next((candidate for candidate in (name, *found) if candidate in renamed), None)
        for name, found in bases.items()
    }
    owners = {name: renamed[base].target for name, base in met.items() if base is not None}
    groups = tie_groups(model)
    given = set(owners.values())
    tied = {fqn for group in groups if not given.isdisjoint(group) for fqn in group}
    unmet = sorted(fqn for fqn in state if fqn not in given and fqn not in tied)
    return PackedNames(
        owners=owners,
        whole=frozenset(name for name in owners if name in renamed),
        sources=_sources([renamed[base] for base in met.values() if base is not None]),
        missing=tuple(fqn for fqn in unmet if not state[fqn].is_buffer),
        default_buffers=tuple(fqn for fqn in unmet if state[fqn].is_buffer),
        unused=tuple(name for name in bases if name not in owners),
    )


def base_names(name: str) -> tuple[str, ...]:
    """Return the tensors to which one of that name may belong; empty: none that is known."""
    inside, _, _ = name.partition(_INSIDE_WEIGHT)
    if inside != name:
        return (f"{inside}.weight",)
    module, _, last = name.rpartition(".")
    if last in _BESIDE_WEIGHT:
        return (f"{module}.weight",)
    if last in _CACHE_SCALES:
        return (f"{module}.{_CACHE_SCALES[last]}.weight",)
    suffix = next((suffix for suffix in _AFTER_PARAMETER if last.endswith(suffix)), None)
    return () if suffix is None else (name.removesuffix(suffix),)


def _sources(bases: list[RenamedTensor]) -> dict[str, str]:
    """Return the one name of each tensor that is made of one, as it would be if it were not packed."""
    found: dict[str, set[RenamedTensor]] = {}
    for base in bases:
        found.setdefault(base.target, set()).add(base)
    single = {target: next(iter(made)) for target, made in sorted(found.items()) if len(made) == 1}
    return {target: base.source for target, base in single.items() if not base.operations}


def _renamed(model: nn.Module, names: Iterable[str]) -> tuple[RenamedTensor, ...]:
    if isinstance(model, PreTrainedModel):
        return transformers_adapter.renamed_tensors(model, names)
    return tuple(RenamedTensor(name, name, ()) for name in sorted(names))
