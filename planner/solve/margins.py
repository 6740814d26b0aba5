"""The margins between what is counted and what is bounded: activations and runtime.

A measured peak above a bound is a fault of this file.
"""

from __future__ import annotations

from bayplan.schemas.types import Backend

RUNTIME_BYTES = {Backend.CPU: (128 * 2**20, 896 * 2**20)}
"""Interpreter and libraries: anonymous and locked memory of a process with torch and transformers loaded,
and what kernels, allocators and tokenizers take in a run besides the counted tensors. The peaks in
benchmarks/results/foundation_2core_20261130.json leave at most 384 MiB used, with the CPU build of torch; 128
MiB more are for what the C library's heap keeps of freed tensors under its 32 MiB threshold and what kernels
pack their operands into: 34 to 119 MiB for forwards that had 40 to 322 MiB alive (Llama of 4 layers, hidden
size 1024, fp32 and bf16, 2 threads, torch 2.13)."""

ACCELERATOR_RUNTIME_BYTES = (256 * 2**20, 1024 * 2**20)
"""Device context, kernels and libraries' workspaces; not measured yet, since no accelerator is run."""

ACTIVATION_SLACK_FRACTION = 32
"""One part in so many is added to the activations. The trace runs the model's own code, so nearly all is
exact; other versions of torch keep other small results beside a kernel's main one, such as the statistics of
a norm."""


def runtime_bounds(backend: Backend) -> tuple[int, int]:
    """Return `[lo, hi]` bytes of interpreter, libraries and device context, outside the budget."""
    return RUNTIME_BYTES.get(backend, ACCELERATOR_RUNTIME_BYTES)


def activation_bounds(traced_bytes: int) -> tuple[int, int]:
    """Return `[lo, hi]` bytes of activations where a meta forward had `traced_bytes` alive at its peak.

    Tensors only: what kernels and allocators take besides is in the runtime.
    """
    return traced_bytes, traced_bytes + -(-traced_bytes // ACTIVATION_SLACK_FRACTION)
