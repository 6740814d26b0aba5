"""The model graph: what the planner knows of a model after tracing it, before any decision.

Blocks in the order in which they run, with their tensors, work and cache; the edges of the data between
them; tied groups. Made without weights and without a device.
"""

from __future__ import annotations

import enum

import msgspec

from bayplan.schemas.types import Count, Digest, Fqn, NumBytes, Reason


class TensorRole(enum.StrEnum):
    """What a tensor is to its module: which quantizers change it, and how."""

    LINEAR = "linear"
    """Weight `[out, in]` of a linear layer."""
    CONV1D = "conv1d"
    """Weight `[in, out]` of GPT-2's transposed linear layer."""
    EXPERTS = "experts"
    """Weights `[experts, ...]` of the linear layers of all experts in one tensor."""
    GROUPED_LINEAR = "grouped-linear"
    """Weight `[out, in]` of a linear layer whose groups of outputs have inputs of their own; only fp8 changes
    it."""
    EMBEDDING = "embedding"
    """Table of an embedding."""
    OTHER = "other"
    """Anything else: norms, biases, convolutions, buffers."""


class Linears(msgspec.Struct, frozen=True, kw_only=True):
    """The linear layers of one size whose weights a tensor holds."""

    count: Count
    """1, or all experts'; of a fused gate and up projection, both."""
    out_features: Count
    in_features: Count


class TensorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter or buffer as it will be bound."""

    fqn: Fqn
    shape: tuple[Count, ...]
    dtype: str
    """Short name of `bayplan.schemas.dtypes`, such as `bf16`."""
    num_bytes: NumBytes
    is_buffer: bool = False
    is_persistent: bool = True
    """False: computed at load, not in the checkpoint."""
    is_frozen: bool = False
    """True: a parameter that the model itself keeps from being trained, such as sinusoidal positions."""
    role: TensorRole = TensorRole.OTHER
    linears: Linears | None = None
    """Set for the roles of linear layers, whatever the order of the tensor's dimensions."""
    num_values: Count | None = None
    """Weights that a packed tensor holds, 0 for one that belongs to it, such as scales; None: as many as its
    shape has."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of a block costs, whatever device runs it."""

    flops: Count
    """Floating-point operations, a multiply-add counted as two."""
    activation_bytes: NumBytes
    """Peak of tensor bytes alive while the block is called, or between its call and those of its neighbours,
    beyond the graph's `base_activation_bytes`. Parameters, buffers and `kv_bytes` of cache are not in it;
    what the cache takes above them is, such as old keys beside the new ones."""
    output_bytes: NumBytes
    """Bytes handed on to the next block."""
    num_operations: Count = 0
    """Operations that the call dispatches, whatever their size; views of tensors do not count."""


class BlockExperts(msgspec.Struct, frozen=True, kw_only=True):
    """The routed experts of a block, where they can live and compute apart from its dense part."""

    module: Fqn
    """Holds the tensors of all experts; each splits evenly along its first dimension."""
    count: Count
    per_token: Count
    """Experts that each position is routed to, as the traced calls had it."""
    prefill_flops: Count
    """Of the block's, those of the experts' products, of `per_token` experts for each position."""
    decode_flops: Count
    prefill_hidden_bytes: NumBytes
    """Of the positions that are handed to the experts in one call of the block, and as much comes back."""
    decode_hidden_bytes: NumBytes


class GraphBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the model that is placed as a whole."""

    id: Fqn
    """Path of the module, or path + `:own` for the tensors that a split module holds itself."""
    class_name: str
    tensors: tuple[TensorRecord, ...]
    """Each storage once: of a tied group, only the first block in order lists it."""
    kv_bytes: NumBytes
    """Growth of the cache through this block at the planned batch and context."""
    prefill: Work
    decode: Work
    """One token on top of a full context; equal to `prefill` where the model does not generate."""
    num_calls: Count = 1
    resident_reason: Reason | None = None
    """Set where the block must not stream, with the reason; None: it may."""
    experts: BlockExperts | None = None
    """None: it has none, or none that can be handled apart."""
    copied_bytes: NumBytes = 0
    """Of its routed experts, what a step of `generate()` copies on accelerators, where transformers computes
    them by `batched_mm`: the weights of every route. Alive at once, and not in `decode.activation_bytes`."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors, each storage once."""
        return sum(tensor.num_bytes for tensor in self.tensors)


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one block makes and another uses, its successor in the chain included."""

    source: Fqn
    target: Fqn
    prefill_bytes: NumBytes
    decode_bytes: NumBytes


class TiedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Names of one storage."""

    fqns: tuple[Fqn, ...]
    """Sorted; at least two."""
    num_bytes: NumBytes


class ModelGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the solver sees it."""

    class_name: str
    blocks: tuple[GraphBlock, ...]
    edges: tuple[Edge, ...]
    """Of the data, in the order of the blocks that receive it."""
    ties: tuple[TiedGroup, ...]
    tree_digest: Digest
    num_params: Count
    """Elements of unique parameters."""
    generates: bool
    """Whether `generate()` makes sense for the class; if not, a step is one forward."""
    max_context: Count | None
    """Positions that the model supports; None: no limit known."""
    traced: bool
    """False: the order is that of the module tree, because a forward could not be traced."""
    trace_note: str = ""
    """Why it could not, in one sentence; empty when traced."""
    base_activation_bytes: NumBytes = 0
    """Bytes alive in every forward from its first block to its last: inputs, masks, what blocks hand on. With
    the largest `activation_bytes` of the blocks that a device has, the peak of what is alive there."""
    declared_no_split: tuple[Fqn, ...] = ()
    """Outermost modules whose class is in the model's own `_no_split_modules`, in order of registration."""
    kept_fp32: dict[str, tuple[Fqn, ...]] = {}
    """Format, `fp16` or `bf16`, to the parameters that the class keeps in fp32 under it."""
    unquantized: tuple[Fqn, ...] = ()
    """Linear weights that quantizers leave as they are unless told otherwise: heads and tied weights."""
