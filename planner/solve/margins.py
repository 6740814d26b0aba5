"""The margins between what is counted and what is bounded: activations and runtime.

Every figure here has a source; a measured peak above a bound is a fault of this file.
"""

from __future__ import annotations

from bayplan.schemas.types import Backend

RUNTIME_BYTES = {Backend.CPU: (128 * 2**20, 768 * 2**20)}
"""Interpreter and libraries: anonymous memory of a process that has imported torch and transformers and run
a model is 0.25 to 0.45 GiB with the CPU build, up to 0.7 GiB with a CUDA build
(benchmarks/results/runtime.json)."""

ACCELERATOR_RUNTIME_BYTES = (256 * 2**20, 1024 * 2**20)
"""Device context, kernels and libraries' workspaces: 0.4 to 1 GiB on CUDA devices as reported by their
users."""

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
