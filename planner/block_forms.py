"""What every block takes in each of the formats that it may be in.

Owns the step from formats to the bytes that the solver chooses among. Knows no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bayplan.planner.block_owner import tied_elsewhere_bytes
from bayplan.planner.formats import PlannedForms
from bayplan.planner.held_tensors import HeldTensor
from bayplan.planner.read_bytes import UsedWeights, read_bytes
from bayplan.planner.stored_form import packed_records
from bayplan.planner.workspace import workspace_bytes
from bayplan.schemas.graph import BlockExperts, GraphBlock, TensorRecord, TensorRole
from bayplan.schemas.plan import Workload, aligned_bytes
from bayplan.schemas.problem import BlockForm, PlainForm
from bayplan.schemas.types import FloatFormat


def block_forms(forms: PlannedForms, workload: Workload) -> tuple[tuple[BlockForm, ...], ...]:
    """Return per block what it takes in each format that it may be in, the base first.

    Args:
        forms: The choices; the k-th form of a block is that of its k-th entry in `forms.block_choices`.
        workload: The rows of its longest call bound what products allocate.
    """
    tied = [tied_elsewhere_bytes(choice.graph.blocks, choice.graph.ties) for choice in forms.choices]
    base = forms.choices[0]
    return tuple(
        tuple(
            _block_form(forms, workload, base.held[index], number, index, tied[number][block.id])
            for number in forms.block_choices[index]
        )
        for index, block in enumerate(base.graph.blocks)
    )


def _block_form(
    forms: PlannedForms,
    workload: Workload,
    base: Sequence[HeldTensor],
    number: int,
    index: int,
    tied_bytes: int,
) -> BlockForm:
    choice = forms.choices[number]
    block, held = choice.graph.blocks[index], choice.held[index]
    parameters = [tensor for tensor in block.tensors if not tensor.is_buffer]
    buffers = (tensor for tensor in block.tensors if tensor.is_buffer)
    reads = _reads(block, parameters, held, tied_bytes)
    is_plain = all(tensor.form is None for tensor in held)
    return BlockForm(
        format=choice.block_formats[index],
        num_bytes=block.num_bytes,
        parameter_bytes=sum(aligned_bytes(tensor.num_bytes) for tensor in parameters),
        buffer_bytes=sum(aligned_bytes(tensor.num_bytes) for tensor in buffers),
        prefill_read_bytes=reads.prefill_bytes,
        decode_read_bytes=reads.decode_bytes,
        quantized_bytes=_quantized_bytes(base, held) if number else 0,
        workspace_bytes=workspace_bytes(held, block.prefill, workload, forms.dtype),
        copied_bytes=_copied_bytes(block, held),
        unit_bytes=reads.unit_bytes,
        plain=None if is_plain else _plain_form(forms.dtype, block, held, tied_bytes),
    )


def _plain_form(
    dtype: FloatFormat, block: GraphBlock, held: Sequence[HeldTensor], tied_bytes: int
) -> PlainForm:
    """Return what the block would read if none of its weights were quantized."""
    bare = [HeldTensor(record=tensor.record) for tensor in held]
    parameters = [tensor.record for tensor in bare if not tensor.record.is_buffer]
    reads = _reads(block, parameters, bare, tied_bytes)
    return PlainForm(
        kind=dtype,
        prefill_read_bytes=reads.prefill_bytes,
        decode_read_bytes=reads.decode_bytes,
        unit_bytes=reads.unit_bytes,
    )


class _Reads(NamedTuple):
    """What a block reads in one call, and one of its experts' bytes."""

    prefill_bytes: int
    decode_bytes: int
    unit_bytes: int
    """0: no experts."""


def _reads(
    block: GraphBlock, parameters: Sequence[TensorRecord], held: Sequence[HeldTensor], tied_bytes: int
) -> _Reads:
    """Return what `block` reads of its `parameters`; experts and the rest are told apart by `held`."""
    experts = block.experts
    if experts is None:
        weights, prefill_flops, decode_flops = UsedWeights(parameters, tied_bytes=tied_bytes), 0, 0
    else:
        weights = UsedWeights(*_apart(experts, held), tied_bytes=tied_bytes)
        prefill_flops, decode_flops = experts.prefill_flops, experts.decode_flops
    return _Reads(
        prefill_bytes=read_bytes(block.prefill, weights, block.kv_bytes, experts_flops=prefill_flops),
        decode_bytes=read_bytes(block.decode, weights, block.kv_bytes, experts_flops=decode_flops),
        unit_bytes=0 if experts is None else _unit_bytes(experts, weights.experts),
    )


def _quantized_bytes(base: Sequence[HeldTensor], held: Sequence[HeldTensor]) -> int:
    """Return the bytes that the weights have in the base form which this one, and not that, rounds."""
    return sum(
        sum(record.num_bytes for record in _stored(before))
        for before, now in zip(base, held, strict=True)
        if now.form is not None and now.form != before.form
    )


def _copied_bytes(block: GraphBlock, held: Sequence[HeldTensor]) -> int:
    """Return what a step copies of the experts: what was traced, in the share that their form takes of it."""
    routed = [one for one in held if one.record.role is TensorRole.EXPERTS]
    plain = sum(one.record.num_bytes for one in routed)
    stored = sum(record.num_bytes for one in routed for record in _stored(one))
    return -(-block.copied_bytes * stored // plain) if plain else block.copied_bytes


def _apart(
    experts: BlockExperts, held: Sequence[HeldTensor]
) -> tuple[list[TensorRecord], list[TensorRecord]]:
    """Return the dense parameters and the experts' as they are stored.

    By the formulas of their forms: a checkpoint's files may have other names, which tell nothing of modules.
    """
    dense: list[TensorRecord] = []
    routed: list[TensorRecord] = []
    for one in held:
        if not one.record.is_buffer:
            is_inside = one.record.fqn.startswith(f"{experts.module}.")
            (routed if is_inside else dense).extend(_stored(one))
    return dense, routed


def _unit_bytes(experts: BlockExperts, parameters: Sequence[TensorRecord]) -> int:
    """Return the aligned bytes of one expert: an even share of every tensor of the module."""
    return sum(aligned_bytes(-(-tensor.num_bytes // experts.count)) for tensor in parameters)


def _stored(held: HeldTensor) -> tuple[TensorRecord, ...]:
    """Return what is stored for a tensor."""
    return (held.record,) if held.form is None else packed_records(held.record, held.form.form)
