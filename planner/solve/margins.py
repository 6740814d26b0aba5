"""The margins between what is counted and what is bounded: activations and runtime.

A measured peak above a bound is a fault of this file.
"""

from __future__ import annotations

from bayplan.schemas.types import Backend

RUNTIME_BYTES = {Backend.CPU: (128 * 2**20, 768 * 2**20)}
"""Interpreter and libraries: anonymous and locked memory of a process with torch and transformers loaded,
and what kernels, allocators and tokenizers take in a run besides the counted tensors. The peaks in
benchmarks/results/foundation_2core_20261130.json leave at most half of it used, with the CPU build of
torch."""

ACCELERATOR_RUNTIME_BYTES = (256 * 2**20, 1024 * 2**20)
"""Device context, kernels and libraries' workspaces; not measured yet, since no accelerator is run."""

ACTIVATION_SLACK_BYTES = 8 * 2**20
"""What an allocator keeps of freed small tensors, and inputs and outputs of the caller."""


def runtime_bounds(backend: Backend) -> tuple[int, int]:
    """Return `[lo, hi]` bytes of interpreter, libraries and device context, outside the budget."""
    return RUNTIME_BYTES.get(backend, ACCELERATOR_RUNTIME_BYTES)


def activation_bounds(traced_bytes: int) -> tuple[int, int]:
    """Return `[lo, hi]` bytes of activations where a meta forward had `traced_bytes` alive at its peak.

    Real kernels need workspaces that the meta ones do not show, hence a quarter more and a constant.
    """
    return traced_bytes, traced_bytes + traced_bytes // 4 + ACTIVATION_SLACK_BYTES
