"""Which format every tensor of a model is held in, block by block, and what the block itself is called by.

Owns the meaning of a block's format: how its linear weights are quantized, or the plain data type of most of
its bytes. Knows no file and no device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from bayplan.planner.format_rules import RuledTensor, format_rules
from bayplan.planner.stored_form import FLOATS
from bayplan.schemas.format_bytes import WeightForm
from bayplan.schemas.graph import ModelGraph, TensorRecord
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.rules import ruled_format
from bayplan.schemas.types import FloatFormat, Fqn


class NamedForm(msgspec.Struct, frozen=True, kw_only=True):
    """A quantized form under the name that a plan has for it."""

    name: str
    form: WeightForm
    entry: Format
    """What the plan says of it."""


class HeldTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a block and how it is held."""

    record: TensorRecord
    """As it would be bound if it were not quantized."""
    form: NamedForm | None = None
    """How it is stored instead; None: as it is."""

    @property
    def format(self) -> str | None:
        """Name of its format; None: it is a buffer or holds integers, and no format decides over it."""
        if self.form is not None:
            return self.form.name
        is_open = not self.record.is_buffer and self.record.dtype in FLOATS
        return self.record.dtype if is_open else None


def held_tensors(graph: ModelGraph, forms: Mapping[Fqn, NamedForm]) -> tuple[tuple[HeldTensor, ...], ...]:
    """Return how every tensor is held, by block.

    Args:
        graph: As traced, tensors in the data types in which they will be bound if not quantized.
        forms: Weight -> the form in which it is stored instead.
    """
    return tuple(
        tuple(HeldTensor(record=record, form=forms.get(record.fqn)) for record in block.tensors)
        for block in graph.blocks
    )


def main_format(held: Sequence[HeldTensor], default: FloatFormat) -> str:
    """Return the format by which a block is called.

    That of most bytes, counted before they are quantized: of the quantized formats if it has any, else of the
    plain ones.

    Args:
        held: The block's tensors.
        default: The model's own data type, also that of blocks without floating-point parameters.
    """
    plain: Counter[str] = Counter()
    quantized: Counter[str] = Counter()
    for tensor in held:
        if tensor.format is not None:
            counts = plain if tensor.form is None else quantized
            counts[tensor.format] += tensor.record.num_bytes
    counts = quantized or plain
    return min(counts, key=lambda name: (-counts[name], name), default=default)


def rules_for(
    held: Sequence[Sequence[HeldTensor]], names: Sequence[str], default: FloatFormat
) -> tuple[FormatRule, ...]:
    """Return the rules that give every tensor its format, whatever mix of formats the blocks are in.

    In a block whose linear layers are quantized, what is no linear layer's is in the model's own data type
    without a rule; where it is quantized itself, a rule says so.

    Args:
        held: Per block, its tensors.
        names: Per block, its format.
        default: The model's own data type.
    """
    ruled = [
        RuledTensor(tensor.record.fqn, own, name, _needs_rule(tensor, name, default))
        for tensors, name in zip(held, names, strict=True)
        for tensor in tensors
        if (own := tensor.format) is not None
    ]
    rules = format_rules(ruled)
    for tensor in ruled:
        found = ruled_format(tensor.fqn, tensor.block_format, rules)
        is_right = found == tensor.format or (found is None and not tensor.needs_rule)
        assert is_right, f"{tensor.fqn} would be {found}, is {tensor.format}"
    return rules


def used_formats(
    held: Sequence[Sequence[HeldTensor]], names: Sequence[str], entries: Mapping[str, Format]
) -> dict[str, Format]:
    """Return what a plan says of every format that blocks and tensors have, sorted by name.

    Args:
        held: Per block, its tensors.
        names: Per block, its format.
        entries: Of the quantized formats that no tensor may have though a block is called by them.
    """
    forms = (tensor.form for tensors in held for tensor in tensors if tensor.form is not None)
    known = {**entries, **{form.name: form.entry for form in forms}}
    used = {*names, *(own for tensors in held for tensor in tensors if (own := tensor.format) is not None)}
    return {name: known.get(name) or Format(kind=cast(FloatFormat, name)) for name in sorted(used)}


def _needs_rule(tensor: HeldTensor, block_format: str, default: FloatFormat) -> bool:
    if tensor.record.linears is None and tensor.form is not None:
        return True
    is_rest = tensor.record.linears is None and block_format not in FLOATS
    return tensor.format != (default if is_rest else block_format)
