"""Which format each block is held in, and the tensors that differ from their block."""

from __future__ import annotations

from collections import Counter
from typing import cast, get_args

from bayplan.planner.name_rules import format_rules
from bayplan.schemas.graph import GraphBlock, ModelGraph
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.rules import format_for
from bayplan.schemas.types import FloatFormat, Fqn

_FLOATS = get_args(FloatFormat)


def plan_formats(
    graph: ModelGraph, default: FloatFormat
) -> tuple[dict[str, Format], tuple[FormatRule, ...], tuple[str, ...]]:
    """Return the plan's formats, its rules for single tensors, and each block's format by name.

    Args:
        graph: Tensors in the data types in which they will be bound.
        default: The model's own data type, also that of blocks without floating-point parameters.
    """
    per_block = tuple(_main_dtype(block, default) for block in graph.blocks)
    held: dict[Fqn, tuple[str, str]] = {}
    for block, name in zip(graph.blocks, per_block, strict=True):
        for tensor in block.tensors:
            if not tensor.is_buffer and tensor.dtype in _FLOATS:
                held[tensor.fqn] = tensor.dtype, name
    differing = {fqn: dtype for fqn, (dtype, name) in held.items() if dtype != name}
    rules = format_rules(differing, held.keys() - differing.keys())
    for fqn, (dtype, name) in held.items():
        ruled = format_for(fqn, name, rules)
        assert ruled == dtype, f"{fqn} would be {ruled}, is {dtype}"
    used = sorted({*per_block, *differing.values()})
    return {name: Format(kind=cast(FloatFormat, name)) for name in used}, rules, per_block


def _main_dtype(block: GraphBlock, default: FloatFormat) -> str:
    """Return the floating-point data type that most of a block's parameter bytes have."""
    weights: Counter[str] = Counter()
    for tensor in block.tensors:
        if not tensor.is_buffer and tensor.dtype in _FLOATS:
            weights[tensor.dtype] += tensor.num_bytes
    return min(weights, key=lambda name: (-weights[name], name), default=default)
