"""What every block is in the checkpoint: the tensors of the files, with what belongs to them, block by block.

Owns the account of a checkpoint's bytes: each tensor is in one block, is a second copy of a tied one, or is
of no use to the model. Works on headers; knows no module tree.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from bayplan.planner.stored_form import FLOATS
from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.graph import ModelGraph, TensorRecord, TensorRole
from bayplan.schemas.safetensors_entries import TensorEntry
from bayplan.schemas.types import Fqn


class StoredTensors(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint's tensors by block."""

    blocks: dict[Fqn, tuple[TensorRecord, ...]]
    """Block -> the checkpoint's own tensors, under their names in the files, and the buffers that are
    computed at load; in the order of the model's tensors."""
    copies: tuple[str, ...]
    """Of tied weights that are in the files more than once, those that are not counted; sorted."""
    dtypes: dict[Fqn, str | None]
    """Parameter -> its data type in the files; None: packed by a quantizer."""


def stored_tensors(
    graph: ModelGraph, entries: Iterable[TensorEntry], owners: Mapping[str, Fqn], whole: frozenset[str]
) -> StoredTensors:
    """Return what each block is in the files.

    Args:
        graph: As traced.
        entries: Of all headers.
        owners: Checkpoint tensor -> the model tensor that it is, is a part of, or belongs to; what is not in
            it is of no use to the model.
        whole: Those of `owners` that do not only belong to their tensor.
    """
    by_owner: dict[Fqn, list[TensorEntry]] = defaultdict(list)
    for entry in entries:
        if entry.fqn in owners:
            by_owner[owners[entry.fqn]].append(entry)
    copies = _second_copies(graph, by_owner)
    blocks: dict[Fqn, tuple[TensorRecord, ...]] = {}
    dtypes: dict[Fqn, str | None] = {}
    for block in graph.blocks:
        records: list[TensorRecord] = []
        for record in block.tensors:
            found = sorted(by_owner.get(record.fqn, ()), key=lambda entry: entry.fqn)
            records.extend(_stored(record, found, whole) if found else (record,))
            if found and not record.is_buffer:
                dtypes[record.fqn] = _dtype_of(found, whole)
        blocks[block.id] = tuple(records)
    return StoredTensors(blocks=blocks, copies=copies, dtypes=dtypes)


def _second_copies(graph: ModelGraph, by_owner: dict[Fqn, list[TensorEntry]]) -> tuple[str, ...]:
    """Leave one name of each tied group, the one that a block lists, and return what the others had."""
    listed = {record.fqn for block in graph.blocks for record in block.tensors}
    copies: list[str] = []
    for group in graph.ties:
        kept = next((fqn for fqn in group.fqns if fqn in listed), None)
        given = [fqn for fqn in group.fqns if fqn in by_owner]
        if kept is None or not given:
            continue
        first = kept if kept in given else given[0]
        for fqn in given:
            entries = by_owner.pop(fqn)
            if fqn == first:
                by_owner[kept] = entries
            else:
                copies.extend(entry.fqn for entry in entries)
    return tuple(sorted(copies))


def _stored(record: TensorRecord, found: list[TensorEntry], whole: frozenset[str]) -> Iterable[TensorRecord]:
    """Yield a record per tensor of the files; the weights are counted in one that is the tensor itself."""
    weights = _num_values(record)
    parts = [entry.fqn for entry in found if entry.fqn in whole] or [_largest(found).fqn]
    share, rest = divmod(weights, len(parts))
    for entry in found:
        is_part = entry.fqn in parts
        num_values = share + (rest if is_part and entry.fqn == parts[0] else 0)
        is_plain = is_part and entry.dtype in FLOATS and not record.is_buffer
        yield TensorRecord(
            fqn=entry.fqn,
            shape=entry.shape,
            dtype=entry.dtype,
            num_bytes=entry.num_bytes,
            is_buffer=record.is_buffer,
            role=record.role if is_part else TensorRole.OTHER,
            num_values=None if is_plain or record.is_buffer else num_values * is_part,
        )


def _num_values(record: TensorRecord) -> int:
    if record.num_values is not None:
        return record.num_values
    return math.prod(record.shape)


def _largest(entries: list[TensorEntry]) -> TensorEntry:
    return max(entries, key=lambda entry: entry.num_bytes)


def _dtype_of(found: list[TensorEntry], whole: frozenset[str]) -> str | None:
    """Return the widest plain data type of what is the tensor itself; None: it is packed."""
    own = {entry.dtype for entry in found if entry.fqn in whole}
    if not own or not own <= FLOATS:
        return None
    return max(own, key=lambda dtype: (parse_dtype(dtype).num_bits, dtype))
