"""What a plan was made from, as far as the solver knows it: enough to solve again without the model.

Blocks that are alike are folded into runs. For people and for the planner; the executor never reads it.
"""

from __future__ import annotations

import msgspec

from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.types import Count, DeviceId, FloatFormat, Fqn, NumBytes, Objective, Reason, Residency


class PlainForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the products of a quantized block would read if it were not quantized."""

    kind: FloatFormat
    """The model's data type."""
    prefill_read_bytes: NumBytes
    decode_read_bytes: NumBytes
    unit_bytes: NumBytes = 0


class BlockForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one block takes in one format."""

    format: str
    """A key of `formats`."""
    num_bytes: NumBytes
    """Parameters and buffers, each storage once, without alignment."""
    parameter_bytes: NumBytes
    """Aligned bytes of its parameters: what a slot needs."""
    buffer_bytes: NumBytes
    """Aligned bytes of its buffers: always resident."""
    prefill_read_bytes: NumBytes
    """Weights, tied ones included, and cache that the products of one prefill chunk read at least once."""
    decode_read_bytes: NumBytes
    """Likewise for one token on top of a full context."""
    quantized_bytes: NumBytes = 0
    """Bytes, in the first form, of the weights that this form rounds."""
    workspace_bytes: NumBytes = 0
    """What its products allocate besides activations, such as a weight that is unpacked first."""
    copied_bytes: NumBytes = 0
    """Of its routed experts, what a decoding step copies besides, with an accelerator in the machine:
    transformers then computes them from copies of the weights of every route."""
    unit_bytes: NumBytes = 0
    """Aligned bytes of one routed expert; 0 where the block has none that can live apart."""
    plain: PlainForm | None = None
    """What counts on a device that was not measured with this format, which then saves memory and no time;
    None: nothing in the block is quantized."""


class BlockRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Neighbouring blocks that are alike, as the solver sees them."""

    first: Fqn
    count: Count
    class_name: str
    forms: tuple[BlockForm, ...]
    """What a block takes in each format that it may be in; the first is the model's own."""
    kv_bytes: NumBytes
    prefill_flops: Count
    decode_flops: Count
    prefill_operations: Count
    """Operations that a call dispatches: each costs time whatever its size."""
    decode_operations: Count
    prefill_activation_bytes: NumBytes
    decode_activation_bytes: NumBytes
    prefill_output_bytes: NumBytes
    decode_output_bytes: NumBytes
    resident_reason: Reason | None = None
    experts: BlockExperts | None = None


class Pin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's demand on the blocks whose id matches."""

    pattern: str
    """fnmatch on block ids; `*` crosses dots."""
    device: DeviceId | None = None
    residency: Residency | None = None
    format: str | None = None
    """A key of `formats`."""


class PlannedEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes between two blocks that are not neighbours."""

    source: Fqn
    target: Fqn
    prefill_bytes: NumBytes
    decode_bytes: NumBytes


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What the solver needs to solve again without the model, and what it was asked."""

    objective: Objective
    formats: tuple[str, ...]
    """Keys of the plan's `formats` that blocks could be in, the model's own first."""
    is_auto: bool
    """Whether rounding fewer bytes came before a faster step."""
    max_memory_bytes: dict[DeviceId, NumBytes]
    pins: tuple[Pin, ...]
    no_spill: bool
    no_split: tuple[str, ...]
    """Class names that the user declared indivisible; empty: the model's own."""
    base_activation_bytes: NumBytes
    """Alive in every forward from its first block to its last. With the most that a device's blocks need on
    top, the peak there."""
    scratch_bytes: NumBytes
    """Reader's buffers besides the slots: gaps between tensors, tensors that are cast while read."""
    runs: tuple[BlockRun, ...]
    edges: tuple[PlannedEdge, ...]
