"""The words that all files of bayplan share: quantities with their units, ids, and the closed lists.

Every number in a file is an integer: bytes, nanoseconds, parts per million. No float is ever written, so
equal plans are equal bytes on every machine.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec

MAX_INTEGER = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly (RFC 7493, I-JSON)."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""A number of things."""
NumBytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""Bytes."""
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""Nanoseconds."""
PartsPerMillion = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A share, in millionths."""
Rate = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]
"""Something per second: bytes or floating-point operations."""
BytesRange = tuple[NumBytes, NumBytes]
"""`[lo, hi]` in bytes: never less than `lo`, never more than `hi`."""
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
"""`sha256:` and 64 hex digits."""
DeviceId = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]+/[a-z0-9_-]+$")]
"""A device with its node, such as `node0/gpu0` or `node0/cpu`."""
Fqn = str
"""Dotted path of a module or tensor as in `state_dict()`."""

OWN_SUFFIX = ":own"
"""Marks a block that is the tensors which a split module holds itself, without those of its children."""


class Backend(enum.StrEnum):
    """torch's name for a kind of device; the executor has one implementation for each that it runs."""

    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"
    XPU = "xpu"
    NPU = "npu"


class Residency(enum.StrEnum):
    """Where a block's weights are between two visits."""

    RESIDENT = "resident"
    """On the device that computes the block, bound once."""
    STREAM_HOST = "stream-host"
    """In host memory; copied to a slot of the device before each visit. Not for a block that computes on
    the CPU."""
    STREAM_DISK = "stream-disk"
    """In the checkpoint; read into a slot before each visit."""


class Reason(enum.StrEnum):
    """Why a block is where it is: a closed list with stable strings, each of which has a text."""

    FITS = "fits"
    """Everything fits, so nothing streams."""
    KEPT = "kept"
    """Part of the model must stream or wait elsewhere; this block is among those that fill the budget."""
    EXPERTS_APART = "experts-apart"
    """The budget does not hold its routed experts, so that they wait elsewhere or the host computes them."""
    CAPACITY = "capacity"
    """The budget does not hold every block; streaming this one is part of the fastest placement."""
    TIED = "tied"
    """Holds a weight that another block uses too; tied weights are never streamed."""
    USED_OUTSIDE = "used-outside"
    """Another module reads its weights, so they must be there at all times."""
    REPEATED = "repeated"
    """Called more than once in a forward."""
    NOT_CALLED = "not-called"
    """Never called in the traced forward: its weights may be read, so they stay."""
    CONDITIONAL = "conditional"
    """Called only where a forward has images or sound: a step without them would wait for it in vain."""
    UNTRACED = "untraced"
    """No forward could be traced, so nobody knows when its weights are read."""
    OWN_TENSORS = "own-tensors"
    """Tensors that a split module holds itself: there is no call before which they could be brought in."""
    MUTATED = "mutated"
    """Holds buffers that a forward changes; streaming them would lose the change."""
    TOO_LARGE = "too-large"
    """Larger than a slot may be under this budget."""
    PINNED = "pinned"
    """Put there by the user."""


class Objective(enum.StrEnum):
    """What the planner makes as small as it can."""

    DECODE = "decode"
    """Time of one generation step."""
    PREFILL = "prefill"
    """Time of the first forward over the whole context."""
    THROUGHPUT = "throughput"
    """Time from the end of one batch's step to that of the next, with a batch on every device."""
    LOAD = "load"
    """Time to read what stays in memory, then that of a step."""
    BALANCED = "balanced"
    """The most bytes on any accelerator, then the time of a step: accelerate's `balanced`."""
    SEQUENTIAL = "sequential"
    """One device is filled after the other: accelerate's `sequential`."""


class BoundClass(enum.StrEnum):
    """For which plans the lower bound holds."""

    CONTIGUOUS_RESIDENT = "contiguous-resident"
    """Plans that keep everything resident and run each device's blocks in one stretch per step, on the
    accelerators where there are any. Where there is one, none that streams is searched for.

    In both classes the last blocks, from the last use of a tied storage on, may come back to the device that
    has all blocks up to the one that holds it, the first accelerator, or where pins put them; they stay there
    then."""
    CONTIGUOUS = "contiguous"
    """Plans that run each device's blocks in one stretch per step, or come back for the last ones, resident
    or streamed, from whatever tier, through one to three slots."""


class SolverStatus(enum.StrEnum):
    """How the search ended."""

    OPTIMAL = "optimal"
    WORK_LIMIT = "work_limit"
    """Ended by a deterministic limit: the plan is good, the gap says how far it may be from the best."""
    TIME_LIMIT = "time_limit"
    """Ended by the clock: another run may give another plan."""


FloatFormat = Literal["fp32", "bf16", "fp16", "fp64"]
"""Kinds of format that are a floating-point data type."""

QuantizedFormat = Literal["int8", "nf4", "fp4"]
"""Kinds of format that bitsandbytes quantizes to."""

PackedFormat = Literal[
    "fp8", "fp4-rows", "mxfp4", "gptq", "awq", "pack-quantized", "int-quantized", "float-quantized"
]
"""Kinds of format that checkpoints come quantized in, besides those of bitsandbytes."""
