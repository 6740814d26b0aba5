"""What running the model takes beside its weights: cache, activations and the runtime, as ranges."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.planner.solve.margins import ACCELERATOR_RUNTIME_BYTES, RUNTIME_BYTES, activation_bounds
from bayplan.schemas.estimate import InferenceEstimate
from bayplan.schemas.graph import ModelGraph
from bayplan.schemas.problem import BlockForm
from bayplan.schemas.types import FloatFormat


def kv_bytes(graph: ModelGraph) -> int:
    """Return the bytes of the whole cache at the context that `graph` was traced for."""
    return sum(block.kv_bytes for block in graph.blocks)


def activation_bytes(graph: ModelGraph, forms: Sequence[BlockForm] = ()) -> tuple[int, int]:
    """Return `[lo, hi]` bytes of activations where one device computes all blocks.

    Args:
        graph: As traced.
        forms: Per block, the form that it is in, whose products may allocate more; empty: as traced.
    """
    extras = [(block.copied_bytes, 0) for block in graph.blocks]
    if forms:
        extras = [(form.copied_bytes, form.workspace_bytes) for form in forms]
    least = most = 0
    for block, (copied, workspace) in zip(graph.blocks, extras, strict=True):
        prefill, decode = block.prefill.activation_bytes, block.decode.activation_bytes
        least = max(least, max(prefill, decode) + workspace)
        most = max(most, max(prefill, decode + copied) + workspace)
    base = graph.base_activation_bytes
    return activation_bounds(base + least)[0], activation_bounds(base + most)[1]


def runtime_bytes() -> tuple[int, int]:
    """Return `[lo, hi]` bytes of the runtime, on whatever kind of device."""
    bounds = (*RUNTIME_BYTES.values(), ACCELERATOR_RUNTIME_BYTES)
    return min(lo for lo, _ in bounds), max(hi for _, hi in bounds)


def inference_estimate(
    weights_bytes: int, traced: ModelGraph, compute_dtype: FloatFormat, forms: Sequence[BlockForm]
) -> InferenceEstimate:
    """Return what running takes on one device.

    Args:
        weights_bytes: In the format asked for.
        traced: Traced in a data type as wide as `compute_dtype`.
        compute_dtype: Of cache and activations.
        forms: Per block, the form that it is in.
    """
    kv = kv_bytes(traced)
    activations, runtime = activation_bytes(traced, forms), runtime_bytes()
    fixed = weights_bytes + kv
    return InferenceEstimate(
        compute_dtype=compute_dtype,
        weights_bytes=weights_bytes,
        kv_bytes=kv,
        activation_bytes=activations,
        runtime_bytes=runtime,
        total_bytes=(fixed + activations[0] + runtime[0], fixed + activations[1] + runtime[1]),
    )
