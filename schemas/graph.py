"""The model graph: what the planner knows of a model after tracing it, before any decision.

Blocks in the order in which they run, with their tensors, work and cache; the edges that are not the chain
itself; tied groups. Made without weights and without a device.
"""

from __future__ import annotations

import msgspec

from bayplan.schemas.types import Count, Digest, Fqn, NumBytes, Reason


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


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of a block costs, whatever device runs it."""

    flops: Count
    """Floating-point operations, a multiply-add counted as two."""
    activation_bytes: NumBytes
    """Peak of tensor bytes alive inside the call that were not alive before it, its output included."""
    output_bytes: NumBytes
    """Bytes handed on to the next block."""


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

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors, each storage once."""
        return sum(tensor.num_bytes for tensor in self.tensors)


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that go from one block to another that is not its successor in the chain."""

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
    """Bytes alive through the whole forward outside the blocks: masks, position tables, inputs."""
