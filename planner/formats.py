"""Which format each block is held in, what it takes there, and the tensors that differ from their block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

import msgspec

from bayplan.planner.model.facts import ReadModel
from bayplan.planner.name_rules import format_rules
from bayplan.planner.plan_format import plan_format
from bayplan.planner.stored_form import FLOATS, in_format, parse_format, with_forms, with_tensors
from bayplan.schemas.format_bytes import WeightForm
from bayplan.schemas.format_names import form_name
from bayplan.schemas.graph import GraphBlock, ModelGraph, TensorRecord
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.quantization import ASKED_SCHEMES, Scheme, quantized_weights
from bayplan.schemas.rules import format_for
from bayplan.schemas.types import FloatFormat, Fqn


class PlannedForm(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it will be held."""

    graph: ModelGraph
    """With the tensors that are stored."""
    formats: dict[str, Format]
    format_rules: tuple[FormatRule, ...]
    block_formats: tuple[str, ...]
    """Per block, a key of `formats`."""


def planned_form(read: ReadModel, asked: str | None) -> PlannedForm:
    """Return what a model is held as: the format asked for, or else the checkpoint's own.

    Args:
        read: The model.
        asked: As `--format` has it.

    Raises:
        UsageError: `asked` is no format.
    """
    name = None if asked is None else parse_format(asked, where="--format")
    plain = read.graph
    if read.scheme is not None and name in (None, read.scheme.name):
        forms = _own_forms(read, read.scheme)
        if read.stored is None:
            graph = in_format(plain, read.scheme.name, scheme=read.scheme)
        else:
            graph = with_tensors(plain, read.stored)
            plain = _as_stored(plain, read.stored_dtypes)
    elif name is not None and name in ASKED_SCHEMES:
        forms = quantized_weights(plain, ASKED_SCHEMES[name])
        graph = with_forms(plain, forms)
    else:
        forms, graph = {}, plain
    formats, rules, block_formats = plan_formats(plain, read.dtype, forms)
    return PlannedForm(graph=graph, formats=formats, format_rules=rules, block_formats=block_formats)


def plan_formats(
    graph: ModelGraph, default: FloatFormat, forms: Mapping[Fqn, WeightForm] | None = None
) -> tuple[dict[str, Format], tuple[FormatRule, ...], tuple[str, ...]]:
    """Return the plan's formats, its rules for single tensors, and each block's format by name.

    In a block whose linear layers are quantized, what is no linear layer is in the model's own data type
    without a rule.

    Args:
        graph: As traced, tensors in the data types in which they will be bound if not quantized.
        default: The model's own data type, also that of blocks without floating-point parameters.
        forms: Weight -> the form in which it is stored instead.
    """
    forms = forms or {}
    per_block = tuple(_main_format(block, default, forms) for block in graph.blocks)
    held: dict[Fqn, tuple[str, str]] = {}
    implied: set[Fqn] = set()
    for block, name in zip(graph.blocks, per_block, strict=True):
        for tensor in block.tensors:
            own = _own_format(tensor, forms)
            if own is None:
                continue
            if name not in FLOATS and tensor.linears is None and own == default:
                implied.add(tensor.fqn)
            else:
                held[tensor.fqn] = own, name
    differing = {fqn: own for fqn, (own, name) in held.items() if own != name}
    alike = {fqn: own for fqn, (own, name) in held.items() if own == name}
    rules = format_rules(differing, implied, alike)
    for fqn, (own, name) in held.items():
        ruled = format_for(fqn, name, rules)
        assert ruled == own, f"{fqn} would be {ruled}, is {own}"
    by_name = {form_name(form): form for form in forms.values()}
    used = sorted({*per_block, *differing.values()})
    formats = {
        name: plan_format(by_name[name]) if name in by_name else Format(kind=cast(FloatFormat, name))
        for name in used
    }
    return formats, rules, per_block


def _own_format(tensor: TensorRecord, forms: Mapping[Fqn, WeightForm]) -> str | None:
    """Return the name of a parameter's format; None: it is a buffer or holds integers."""
    form = forms.get(tensor.fqn)
    if form is not None:
        return form_name(form)
    return tensor.dtype if not tensor.is_buffer and tensor.dtype in FLOATS else None


def _main_format(block: GraphBlock, default: FloatFormat, forms: Mapping[Fqn, WeightForm]) -> str:
    """Return the format that most of a block's parameter bytes have, counted before they are quantized."""
    weights: Counter[str] = Counter()
    for tensor in block.tensors:
        own = _own_format(tensor, forms)
        if own is not None:
            weights[own] += tensor.num_bytes
    return min(weights, key=lambda name: (-weights[name], name), default=default)


def _own_forms(read: ReadModel, scheme: Scheme) -> dict[Fqn, WeightForm]:
    """Return what a quantized checkpoint stores packed: by its headers if it has any, else by its config."""
    forms = quantized_weights(read.graph, scheme)
    if read.stored is None:
        return forms
    packed = {fqn for fqn, dtype in read.stored_dtypes.items() if dtype is None}
    roles = {record.fqn: record.role for block in read.graph.blocks for record in block.tensors}
    found: dict[Fqn, WeightForm] = {}
    for fqn in packed:
        by_role = (group.form for group in scheme.groups if roles.get(fqn) in group.roles)
        form = forms.get(fqn) or next(by_role, None)
        if form is not None:
            found[fqn] = form
    return found


def _as_stored(graph: ModelGraph, dtypes: Mapping[Fqn, str | None]) -> ModelGraph:
    """Return `graph` with the parameters that are not packed in the data types of the files."""
    return with_tensors(
        graph,
        {
            block.id: tuple(
                msgspec.structs.replace(record, dtype=dtypes.get(record.fqn) or record.dtype)
                for record in block.tensors
            )
            for block in graph.blocks
        },
    )
