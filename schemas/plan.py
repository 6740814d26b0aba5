"""The plan: where every block goes, what it costs, and what it was made from.

Reading order of the file: identity and inputs first, then decisions block by block, then what a later solve
needs, totals last. The executor reads the decisions; `reason`, `problem` and `summary` are for people and
for the planner and never steer it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bayplan.schemas.hardware import Inventory
from bayplan.schemas.problem import Problem
from bayplan.schemas.types import (
    Backend,
    BoundClass,
    BytesRange,
    Count,
    DeviceId,
    Digest,
    FloatFormat,
    Fqn,
    Nanoseconds,
    NumBytes,
    Objective,
    PackedFormat,
    PartsPerMillion,
    QuantizedFormat,
    Reason,
    Residency,
    SolverStatus,
)

PLAN_FORMAT_VERSION = "1.0"
"""Bump the major only if an older reader could misread the file; a new field with a default is a minor."""

PLAN_SEMANTICS = 1
"""What carrying a plan out means. An executor refuses a higher number than its own."""

GAP_SCRATCH_BYTES = 2**20
"""Gaps in a file up to this are read along with their neighbours, into a scratch of this size."""

CAST_SCRATCH_BYTES = 8 * 2**20
"""A tensor whose data type changes is read in pieces of at most this, into a scratch of this size."""

ALIGNMENT_BYTES = 64
"""Every bound tensor starts at a multiple of this, resident and streamed alike: CPU kernels give other last
bits on others."""


def aligned_bytes(num_bytes: int) -> int:
    """Return `num_bytes` rounded up to `ALIGNMENT_BYTES`: what a tensor takes in an arena or a slot."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One safetensors file of the checkpoint, as it was when the plan was made."""

    file: str
    """Name relative to the checkpoint's folder."""
    num_bytes: NumBytes
    header_digest: Digest
    """Of the length prefix and the header's bytes; compared before the header is parsed."""
    content_sha256: str | None = None
    """Hash of the whole file; None: unverified, a fine-tune may have the same header."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that the plan is bound to."""

    shards: tuple[Shard, ...]
    """Sorted by file."""
    unused: tuple[str, ...] = ()
    """Tensors of the checkpoint that the model does not have, sorted; `#` stands for a number."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Which model the plan is for."""

    source: str | None
    """Hub id, `package.module:factory`, or a name in the library; None for a local folder, whose name means
    nothing elsewhere."""
    revision: str | None
    """Commit of the Hub repository."""
    class_name: str
    library: str
    """`transformers`, `timm` or `diffusers`; `torch` for a factory."""
    library_version: str
    """A note: classes change between versions, and `tree_digest` is what is compared."""
    trust_remote_code: bool
    config_digest: Digest | None
    """Of the bytes of `config.json`; None for a factory."""
    attn_implementation: str | None
    experts_implementation: str | None
    dtype: FloatFormat
    """Data type that the class is built in; the class itself may keep some tensors in another."""
    tree_digest: Digest
    """Of every tensor's name, shape and data type, see `bayplan.skeleton.tree`."""
    num_params: Count
    generates: bool
    traced: bool
    """False: blocks are in the order of the module tree, since a forward could not be traced."""
    trace_note: str = ""
    quantization: str | None = None
    """Method by which the checkpoint's weights are quantized, as its config names it; None: they are not."""
    checkpoint: Checkpoint | None = None
    """None: planned from the config alone, hence unbound."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What the memory is reserved for; a run beyond it is an error."""

    batch: Count
    context: Count
    """Positions, prompt and generated together; of the decoder where there are two stacks."""
    encoder_context: Count | None
    prefill_chunk: Count
    """Positions that one forward takes at most."""
    kv_dtype: str
    logits: Literal["last", "all"] = "last"
    """Positions whose logits are kept."""
    batches_in_flight: Count = 1
    """Batches that are generated from at the same time, each with a cache of its own."""


class Format(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How weights are held.

    The fields after `kind` are for quantized kinds and spelled as bitsandbytes spells them.
    """

    kind: FloatFormat | QuantizedFormat | PackedFormat
    """Data type of the block's floating-point weights, or how its linear layers are quantized; what else the
    block has is then in the model's data type."""
    bits: Count | None = None
    """Bits of a weight, where the kind leaves them open."""
    blocksize: Count | None = None
    """Elements that share one scale."""
    block_shape: tuple[Count, Count] | None = None
    """Rows and columns of the weight `[out, in]` that share one scale; 0: all of them."""
    scale_dtype: str | None = None
    """Data type of the scales."""
    is_asymmetric: bool = False
    """Whether zero points are stored beside the scales."""
    is_static: bool = False
    """Whether the scale of the layer's input is stored too."""
    double_quant: bool = False
    """Whether the scales are quantized too."""
    compute_dtype: FloatFormat | None = None
    """Data type that products are computed in; None: the checkpoint's."""
    storage_dtype: str | None = None
    threshold_milli: Count | None = None
    """LLM.int8 outlier threshold, in thousandths."""
    layout: Literal["standard", "cpu-avx512bf16"] = "standard"
    """Order of the packed bytes; part of the format, since results differ between layouts."""


class FormatRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tensors that differ from their block's format."""

    pattern: str
    """Tensor name; `*` stands for any text, `#` for a number. The first rule that matches holds."""
    format: str
    """A key of `formats`."""
    within: str | None = None
    """Format of the block in which the rule holds, a key of `formats`; None: in every block."""


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step from checkpoint tensors to a parameter."""

    kind: Literal["rename", "stack", "concatenate", "split", "transpose"]
    """A closed list: a reader that meets another refuses the plan."""
    dim: int | None = None
    """Dimension to stack, concatenate or split along."""
    dims: tuple[int, ...] = ()
    """The two dimensions that a transpose exchanges."""
    part: Count | None = None
    """Which of the equal parts a split keeps."""
    parts: Count | None = None
    """How many equal parts a split makes."""


class TensorRule(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoint tensors make which parameters, where the names are not the same."""

    target: str
    """Parameter name; `*` stands for any text, `#` for a number. The first rule that matches holds."""
    sources: tuple[str, ...]
    """Checkpoint names; the n-th wildcard stands for what the n-th of `target` matched."""
    operations: tuple[Operation, ...]
    """Applied in order."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one device by component, each `[lo, hi]`."""

    weights: BytesRange
    """Resident parameters and all buffers."""
    kv: BytesRange
    """Cache at the planned batch and context."""
    activations: BytesRange
    """Everything a forward allocates and frees again."""
    staging: BytesRange
    """Slots for streamed blocks and the reader's scratch."""
    load_transient: BytesRange
    """Alive only while loading, on top of weights and staging."""
    runtime: BytesRange
    """Interpreter, libraries, device context: outside the budget."""

    @property
    def budgeted_bytes(self) -> int:
        """Upper bound of what the budget is for: all components but `runtime`."""
        parts = (self.weights, self.kv, self.activations, self.staging, self.load_transient)
        return sum(hi for _lo, hi in parts)

    @property
    def peak_bytes(self) -> int:
        """Upper bound of all components together."""
        return self.budgeted_bytes + self.runtime[1]


class PlannedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device's share."""

    id: DeviceId
    kind: str
    backend: Backend
    capacity_bytes: NumBytes
    reserve_bytes: NumBytes
    budget_bytes: NumBytes
    """What the ledger without `runtime` may reach: capacity minus reserve, or the user's `--max-memory`."""
    ledger: Ledger


class PlannedHost(msgspec.Struct, frozen=True, kw_only=True):
    """One node's host memory, which devices that lie in it and weights that wait for others share."""

    id: str
    """Of the node."""
    budget_bytes: NumBytes
    """What both together may take."""
    pinned_budget_bytes: NumBytes
    """Of it, what may wait."""
    waiting_bytes: NumBytes
    """Weights that wait for devices, aligned."""


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """The routed experts of a block, which may live apart from its dense part."""

    count: Count
    per_token: Count
    unit_bytes: NumBytes
    format: str
    residency: Literal["with-block", "resident", "cache-host", "cache-disk", "compute-host"]
    slots: Count = 0
    floor_slots: Count = 0
    compute: Literal["device", "host"] = "device"
    hit_ppm: PartsPerMillion = 0
    hit_source: str = "default"


class Block(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one part of the model is and computes."""

    id: Fqn
    device: DeviceId
    residency: Residency
    format: str
    num_bytes: NumBytes
    """Parameters and buffers, each storage once, without alignment."""
    kv_bytes: NumBytes
    reason: Reason
    experts: Experts | None = None


class Tie(msgspec.Struct, frozen=True, kw_only=True):
    """Names of one storage and what becomes of it."""

    fqns: tuple[Fqn, ...]
    num_bytes: NumBytes
    """Of the storage; a replica takes as much again."""
    policy: Literal["co-located", "replicated"]
    devices: tuple[DeviceId, ...]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Streaming on one device: the k-th block of the order uses slot k modulo `num_slots`."""

    device: DeviceId
    num_slots: Count
    slot_bytes: NumBytes
    stream_order: tuple[Fqn, ...]


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Totals and predictions; derived, so not part of the digest."""

    objective: Objective
    resident_blocks: Count
    streamed_blocks: Count
    resident_bytes: NumBytes
    streamed_bytes_per_step: NumBytes
    predicted_load_ns: Nanoseconds
    predicted_first_output_ns: Nanoseconds
    predicted_decode_ns: Nanoseconds | None
    """None where the model does not generate."""
    predicted_step_ns: Nanoseconds
    """One step once the pipeline is steady: a generation step, or a forward where that is the objective; with
    several batches in flight, from the end of one batch's step to that of the next."""
    lower_bound_ns: Nanoseconds
    """No plan of `bound_class` has a faster step under the same cost model; where the objective is `load`,
    none loads faster."""
    bound_class: BoundClass
    gap_ppm: PartsPerMillion
    """`(predicted - lower_bound_ns) / predicted`, rounded up, of what the bound is for."""
    solver_status: SolverStatus
    reproducible: bool
    moved_bytes: NumBytes | None = None
    """Bytes of the blocks whose device, residency or format is another than in the plan that this one
    replaced, in the formats that they have now; None: it was made without one, or is that one."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The artifact that is reviewed, committed and carried out."""

    format_version: str
    semantics: Count
    complete: bool
    """Every block of the model has a place."""
    applyable: bool
    """False: it can be shown, diffed and explained, but not carried out."""
    errored: bool
    producer: str
    """Name and version of the writer; not part of the digest."""
    digest: Digest
    model: Model
    workload: Workload
    inventory: Inventory
    formats: dict[str, Format]
    format_rules: tuple[FormatRule, ...]
    rules: tuple[TensorRule, ...]
    """Empty: every parameter has its own name in the checkpoint."""
    devices: tuple[PlannedDevice, ...]
    hosts: tuple[PlannedHost, ...]
    blocks: tuple[Block, ...]
    """In the order in which they run."""
    ties: tuple[Tie, ...]
    schedule: tuple[Schedule, ...]
    problem: Problem
    summary: Summary
