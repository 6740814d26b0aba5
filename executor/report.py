"""The proof of a run, taken from the model as it is and not from the plan that it was made by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bayplan.executor.state import LoadedState, state_of
from bayplan.schemas.report import REPORT_FORMAT_VERSION, Figures, RealizedBlock, Report
from bayplan.schemas.types import Residency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from bayplan.schemas.plan import Block, Plan
    from bayplan.schemas.types import DeviceId, Fqn


def report(model: nn.Module, *, token_ids: Sequence[Sequence[int]] = ()) -> Report:
    """Return what became of the plan of a loaded model, and what its forwards took so far.

    Args:
        model: From `load_model`, not released.
        token_ids: Generated ids per prompt, if any.

    Raises:
        UsageError: `model` is another.
    """
    state = state_of(model)
    state.memory.sample()
    blocks = realized_blocks(model, state)
    by_id = {block.id: block for block in blocks}
    honoured = all(_is_honoured(planned, by_id[planned.id]) for planned in state.plan.blocks)
    measured = Figures(
        load_ns=state.load_ns,
        first_output_ns=state.forwards.first_output_ns,
        decode_ns=state.forwards.decode_ns,
        peak_bytes=state.memory.peak_bytes(),
    )
    checkpoint = state.plan.model.checkpoint
    return Report(
        format_version=REPORT_FORMAT_VERSION,
        plan_digest=state.plan.digest,
        honoured=honoured,
        content_verified=state.content_verified,
        token_ids=tuple(tuple(ids) for ids in token_ids),
        measured=measured,
        predicted=predicted(state.plan),
        blocks=blocks,
        unused=checkpoint.unused if checkpoint is not None else (),
        notes=state.notes + state.memory.notes() + _stream_notes(state),
    )


def predicted(plan: Plan) -> Figures:
    """Return the figures of `plan` in the form in which they are measured."""
    used = {block.device for block in plan.blocks}
    return Figures(
        load_ns=plan.summary.predicted_load_ns,
        first_output_ns=plan.summary.predicted_first_output_ns,
        decode_ns=plan.summary.predicted_decode_ns,
        peak_bytes={device.id: device.ledger.peak_bytes for device in plan.devices if device.id in used},
    )


def realized_blocks(model: nn.Module, state: LoadedState) -> tuple[RealizedBlock, ...]:
    """Return where each block's bytes are, found by the addresses of the tensors that `model` has now.

    A tensor whose name is gone is looked for by identity: other libraries wrap modules and so rename what is
    inside. One whose name is there must be the one that was bound.
    """
    tensors: dict[Fqn, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    by_identity = {id(tensor): tensor for tensor in tensors.values()}
    devices = {block.id: block.device for block in state.plan.blocks}
    num_bytes: dict[Fqn, int] = {block.id: 0 for block in state.plan.blocks}
    streamed: dict[Fqn, bool] = {block.id: False for block in state.plan.blocks}
    for placed in state.layout.tensors:
        name = placed.fqns[0]
        tensor = tensors[name] if name in tensors else by_identity.get(id(state.bound[name]))
        if tensor is None or tensor.device.type == "meta":
            continue
        address = tensor.data_ptr()
        is_own = address == state.bound[name].data_ptr()
        is_in_slot = is_own and _is_in_slot(state, placed.block, tensor)
        is_in_arena = is_own and any(arena.holds(address) for arena in state.arenas)
        # Some modules compute a buffer anew, such as rotary frequencies for a longer context.
        if is_in_slot or is_in_arena or placed.is_buffer:
            num_bytes[placed.block] += tensor.numel() * tensor.element_size()
        streamed[placed.block] |= is_in_slot
    return tuple(
        _realized(state, block_id, device=devices[block_id], num_bytes=count, streams=streamed[block_id])
        for block_id, count in num_bytes.items()
    )


def _is_in_slot(state: LoadedState, block: Fqn, tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies in the one slot that its block is bound to."""
    if state.stream is None or block not in state.stream.ring.order:
        return False
    slots = state.stream.slots
    position = state.stream.ring.order.index(block)
    return slots.slot_at(tensor.data_ptr()) == position % slots.num_slots


def _realized(
    state: LoadedState, block_id: Fqn, *, device: DeviceId, num_bytes: int, streams: bool
) -> RealizedBlock:
    residency = Residency.STREAM_DISK if streams else Residency.RESIDENT
    if state.stream is None or not streams:
        return RealizedBlock(id=block_id, device=device, residency=residency, num_bytes=num_bytes)
    counts = state.stream.ring.counts(state.stream.ring.order.index(block_id))
    return RealizedBlock(
        id=block_id,
        device=device,
        residency=residency,
        num_bytes=num_bytes,
        visits=counts.visits,
        read_bytes=counts.read_bytes,
        read_ns=counts.read_ns,
        wait_ns=counts.wait_ns,
    )


def _is_honoured(planned: Block, realized: RealizedBlock) -> bool:
    # A block without parameters has nothing to stream, whatever the plan calls it.
    is_same_place = realized.residency == planned.residency or planned.num_bytes == 0
    return is_same_place and realized.num_bytes == planned.num_bytes


def _stream_notes(state: LoadedState) -> tuple[str, ...]:
    if state.stream is None:
        return ()
    ring = state.stream.ring
    notes = []
    if ring.num_skipped:
        notes.append(f"{ring.num_skipped} streamed blocks were read ahead and then skipped by the model")
    if ring.num_mispredicted:
        notes.append(f"{ring.num_mispredicted} streamed blocks were called out of order and read on demand")
    if ring.num_cancelled:
        notes.append(f"{ring.num_cancelled} streamed blocks were given up while they were read ahead")
    return tuple(notes)
