"""The run report: what really happened, beside what the plan said.

Carries the digest of the plan it carried out and the placement that was realised, so that a reader can tell
whether the plan was honoured.
"""

from __future__ import annotations

import msgspec

from bayplan.schemas.types import Count, DeviceId, Digest, Fqn, Nanoseconds, NumBytes, Residency

REPORT_FORMAT_VERSION = "1.0"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that are both predicted and measured."""

    load_ns: Nanoseconds
    """From the start of loading until every resident block is bound."""
    first_output_ns: Nanoseconds | None
    """Until the first output, encoder and every chunk of the prompt included; None: no forward ended."""
    decode_ns: Nanoseconds | None
    """One generation step, of one new position for each sequence: predicted, or the median of those measured;
    None: nothing was generated."""
    peak_bytes: dict[DeviceId, NumBytes]
    """Highest memory of each device, runtime included. Predicted: the ledger's `hi`. Measured on the CPU:
    anonymous and locked memory of the process, page cache not counted."""


class RealizedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one block."""

    id: Fqn
    device: DeviceId
    residency: Residency
    num_bytes: NumBytes
    """Bytes bound: parameters and buffers, each storage once."""
    visits: Count = 0
    """Forwards through the block; 0 for blocks without a hook."""
    read_bytes: NumBytes = 0
    """Read from the checkpoint for it, all visits together."""
    read_ns: Nanoseconds = 0
    wait_ns: Nanoseconds = 0
    """Time that its forward waited for its bytes."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of one run."""

    format_version: str
    plan_digest: Digest
    honoured: bool
    """Every block is where the plan put it, in the plan's bytes."""
    content_verified: bool
    """Every shard's content hash was in the plan and matched."""
    token_ids: tuple[tuple[int, ...], ...]
    """Generated ids per prompt, the prompt's own left out; empty where nothing was generated."""
    measured: Figures
    predicted: Figures
    blocks: tuple[RealizedBlock, ...]
    unused: tuple[str, ...] = ()
    """Checkpoint tensors that the model does not have."""
    notes: tuple[str, ...] = ()
    """Anything that a reader should know, one sentence each."""
