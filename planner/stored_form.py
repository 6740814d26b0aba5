"""The same model in another format: what every block's tensors take when they are stored so.

Owns the step from a traced graph to the graph of a format. Work, cache and activations stay as they are: they
are those of the data type that products are computed in. Knows no file and no device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import get_args

import msgspec

from bayplan.schemas.dtypes import DTYPE_BY_SPELLING, tensor_num_bytes
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_bytes import WeightForm, weight_parts
from bayplan.schemas.graph import GraphBlock, Linears, ModelGraph, TensorRecord, TensorRole, TiedGroup
from bayplan.schemas.quantization import ASKED_SCHEMES, Scheme, quantized_weights
from bayplan.schemas.types import FloatFormat, Fqn

FLOATS = frozenset(get_args(FloatFormat))
"""Plain data types, which are formats too."""
FORMAT_NAMES = (*get_args(FloatFormat), *ASKED_SCHEMES)
"""Everything that can be asked for by name."""
_OTHER_NAMES = {"int8-bnb": "int8", "float8": "fp8"}
"""What `estimate --dtypes` calls them."""


def parse_format(text: str, *, where: str) -> str:
    """Return the format that `text` names: one of `FORMAT_NAMES`.

    Args:
        text: A short name, one of `estimate --dtypes`, or torch's name of a plain data type.
        where: The option, for the message.

    Raises:
        UsageError: It names none.
    """
    name = known_format(text)
    if name is None:
        raise UsageError(
            "unknown format", where=where, got=repr(text), needed=f"one of {', '.join(FORMAT_NAMES)}"
        )
    return name


def known_format(text: str) -> str | None:
    """Return the one of `FORMAT_NAMES` that `text` spells, as for `parse_format`; None: it spells none."""
    dtype = DTYPE_BY_SPELLING.get(text)
    name = _OTHER_NAMES.get(text, text) if dtype is None else dtype.name
    return name if name in FORMAT_NAMES else None


def in_format(graph: ModelGraph, name: str, *, scheme: Scheme | None = None) -> ModelGraph:
    """Return `graph` with every block's tensors replaced by what is stored for them.

    In a plain data type, tensors of the model's own data type change; what the class keeps in fp32 stays, and
    so do integers and floating-point buffers of another data type. In a quantized format, linear weights
    become what `bayplan.schemas.format_bytes` says; the rest stays as it is in `graph`.

    Args:
        graph: As traced.
        name: One of `FORMAT_NAMES`, or the name of `scheme`.
        scheme: A checkpoint's own way of storing; what it leaves stays in the graph's data types, or is in
            the plain data type `name`.

    Raises:
        UsageError: `name` is no format.
    """
    if scheme is None:
        name = parse_format(name, where="format")
        scheme = ASKED_SCHEMES.get(name)
    if name in FLOATS:
        graph = _recast(graph, name)
    return graph if scheme is None else with_forms(graph, quantized_weights(graph, scheme))


def with_forms(graph: ModelGraph, forms: Mapping[Fqn, WeightForm]) -> ModelGraph:
    """Return `graph` with each weight in `forms` replaced by what is stored for it."""
    tensors: dict[Fqn, tuple[TensorRecord, ...]] = {}
    for block in graph.blocks:
        stored: list[TensorRecord] = []
        for record in block.tensors:
            form = forms.get(record.fqn)
            stored.extend((record,) if form is None else packed_records(record, form))
        tensors[block.id] = tuple(stored)
    return with_tensors(graph, tensors)


def packed_records(record: TensorRecord, form: WeightForm) -> tuple[TensorRecord, ...]:
    """Return what is stored for a weight; of the layers of one tensor, like parts are one record.

    Args:
        record: A weight of linear layers, or an embedding's table, whose rows count as a layer's.
        form: How it is stored.
    """
    linears = record.linears
    if linears is None:
        linears = Linears(count=1, out_features=record.shape[0], in_features=record.shape[1])
    count, rows, columns = linears.count, linears.out_features, linears.in_features
    stem = record.fqn.removesuffix(".weight")
    is_stacked = record.role is TensorRole.EXPERTS
    return tuple(
        TensorRecord(
            fqn=f"{stem}.{part.name}",
            shape=(count, *part.shape) if is_stacked else part.shape,
            dtype=part.dtype,
            num_bytes=count * part.num_bytes,
            role=record.role if index == 0 else TensorRole.OTHER,
            linears=record.linears if index == 0 else None,
            num_values=count * rows * columns if index == 0 else 0,
        )
        for index, part in enumerate(weight_parts(form, rows, columns))
    )


def main_dtype(graph: ModelGraph) -> str | None:
    """Return the data type that most parameters have; None: none has a plain floating-point one.

    What the class keeps in fp32 whatever the rest is in does not count.
    """
    kept = {fqn for fqns in graph.kept_fp32.values() for fqn in fqns}
    counts: Counter[str] = Counter()
    kept_counts: Counter[str] = Counter()
    for block in graph.blocks:
        for record in block.tensors:
            if not record.is_buffer and record.dtype in FLOATS:
                (kept_counts if record.fqn in kept else counts)[record.dtype] += math.prod(record.shape)
    counts = counts or kept_counts
    return min(counts, key=lambda dtype: (-counts[dtype], dtype), default=None)


def _recast(graph: ModelGraph, name: str) -> ModelGraph:
    main = main_dtype(graph)
    if main is None:
        return graph
    kept_before = frozenset(graph.kept_fp32.get(main, ()))
    kept_after = frozenset(graph.kept_fp32.get(name, ()))

    def recast(record: TensorRecord) -> TensorRecord:
        # In an fp32 model a buffer that is made in fp32 on purpose, such as rotary frequencies, looks like
        # any other. Where the graph does not tell them apart, those that no checkpoint holds count as such.
        is_computed = record.is_buffer and not record.is_persistent and main == "fp32" and not graph.kept_fp32
        follows = record.dtype == main or (record.dtype == "fp32" and record.fqn in kept_before)
        if not follows or is_computed:
            return record
        dtype = "fp32" if record.fqn in kept_after else name
        num_bytes = tensor_num_bytes(record.shape, dtype)
        return msgspec.structs.replace(record, dtype=dtype, num_bytes=num_bytes)

    return with_tensors(
        graph, {block.id: tuple(recast(record) for record in block.tensors) for block in graph.blocks}
    )


def with_tensors(graph: ModelGraph, tensors: Mapping[Fqn, tuple[TensorRecord, ...]]) -> ModelGraph:
    """Return `graph` with other tensors in its blocks; a tied group has the bytes of the listed one."""
    blocks: tuple[GraphBlock, ...] = tuple(
        msgspec.structs.replace(block, tensors=tensors[block.id]) for block in graph.blocks
    )
    num_bytes = {record.fqn: record.num_bytes for block in blocks for record in block.tensors}

    def tie(group: TiedGroup) -> TiedGroup:
        listed = (num_bytes[fqn] for fqn in group.fqns if fqn in num_bytes)
        return msgspec.structs.replace(group, num_bytes=next(listed, group.num_bytes))

    return msgspec.structs.replace(graph, blocks=blocks, ties=tuple(tie(group) for group in graph.ties))
