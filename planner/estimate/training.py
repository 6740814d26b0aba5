"""What training keeps in memory: weights, master copies, gradients and Adam's moments, recipe by recipe.

Owns the formulas. Activations are not in them: they depend on what is recomputed, and no forward is traced
with gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bayplan.planner.estimate.layers import total_bytes
from bayplan.planner.estimate.lora import adapter_shapes
from bayplan.planner.estimate.options import LoraOptions
from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.estimate import Recipe, TrainingEstimate
from bayplan.schemas.graph import ModelGraph, TensorRecord, TensorRole

_FP32_BYTES = 4
_MOMENTS = 2

# bitsandbytes' 8-bit optimizers (optim/optimizer.py; tests/planner/estimate/test_training.py runs one).
_MIN_8BIT_ELEMENTS = 4096
_BLOCK_ELEMENTS = 256
_CODE_BYTES = 256 * _FP32_BYTES


def full_recipes(fp32: ModelGraph, bf16: ModelGraph) -> tuple[TrainingEstimate, ...]:
    """Return what training takes of every parameter that the model lets be trained.

    Args:
        fp32: The model in fp32.
        bf16: The model in bf16, with what its class keeps in fp32.
    """
    full, mixed = _trainable(fp32), _trainable(bf16)
    num_params = sum(map(_num_elements, full))
    moments = _MOMENTS * _FP32_BYTES * num_params
    full_bytes = total_bytes(fp32)
    return (
        _recipe(
            Recipe.ADAM,
            "fp32 weights and gradients, two fp32 moments",
            num_params,
            weights=full_bytes,
            gradients=_FP32_BYTES * num_params,
            optimizer=moments,
        ),
        _recipe(
            Recipe.MIXED_ADAM,
            "16-bit weights and gradients, fp32 copy of each 16-bit weight, two fp32 moments",
            num_params,
            weights=total_bytes(bf16),
            master=sum(_FP32_BYTES * _num_elements(one) for one in mixed if one.dtype != "fp32"),
            gradients=sum(one.num_bytes for one in mixed),
            optimizer=moments,
        ),
        _recipe(
            Recipe.ADAM_8BIT,
            "fp32 weights and gradients, two 8-bit moments with an fp32 scale per 256 values;"
            " tensors under 4096 values keep fp32 moments",
            num_params,
            weights=full_bytes,
            gradients=_FP32_BYTES * num_params,
            optimizer=adam_8bit_bytes([_num_elements(one) for one in full]),
        ),
    )


def lora_recipes(
    own: ModelGraph, bf16: ModelGraph, nf4: ModelGraph, lora: LoraOptions
) -> tuple[TrainingEstimate, ...]:
    """Return what training low-rank adapters takes, on frozen bf16 weights and on frozen nf4 weights.

    Args:
        own: The model with the shapes of its linear layers.
        bf16: The model in bf16.
        nf4: The model in nf4.
        lora: Rank and targets.

    Raises:
        UsageError: A target names no linear layer.
    """
    num_params = sum(math.prod(shape) for shape in adapter_shapes(own, lora))
    adapters = _FP32_BYTES * num_params
    has_experts = any(one.role is TensorRole.EXPERTS for block in own.blocks for one in block.tensors)
    left_out = "; none for the experts, which are no linear modules" if has_experts else ""
    return tuple(
        _recipe(
            recipe,
            f"frozen {held} weights; fp32 adapters of rank {lora.rank}, their gradients and two moments"
            f"{left_out}",
            num_params,
            weights=total_bytes(base) + adapters,
            gradients=adapters,
            optimizer=_MOMENTS * adapters,
        )
        for recipe, held, base in ((Recipe.LORA, "bf16", bf16), (Recipe.QLORA, "nf4", nf4))
    )


def adam_8bit_bytes(sizes: Sequence[int]) -> int:
    """Return the bytes of both moments in bitsandbytes' 8-bit Adam.

    Args:
        sizes: Elements of each trained tensor.
    """
    large = [size for size in sizes if size >= _MIN_8BIT_ELEMENTS]
    small = sum(sizes) - sum(large)
    scales = sum(-(-size // _BLOCK_ELEMENTS) for size in large)
    codes = _CODE_BYTES if large else 0  # One table of values per moment, shared by all tensors.
    return _MOMENTS * (sum(large) + _FP32_BYTES * scales + _FP32_BYTES * small + codes)


def _recipe(
    recipe: Recipe,
    formula: str,
    num_params: int,
    *,
    weights: int,
    gradients: int,
    optimizer: int,
    master: int = 0,
) -> TrainingEstimate:
    return TrainingEstimate(
        recipe=recipe,
        formula=formula,
        trainable_params=num_params,
        weights_bytes=weights,
        master_bytes=master,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        total_bytes=weights + master + gradients + optimizer,
    )


def _trainable(graph: ModelGraph) -> list[TensorRecord]:
    """Return the parameters that get gradients, each storage once."""
    return [
        tensor
        for block in graph.blocks
        for tensor in block.tensors
        if not (tensor.is_buffer or tensor.is_frozen)
        and parse_dtype(tensor.dtype).name.startswith(("fp", "bf"))
    ]


def _num_elements(tensor: TensorRecord) -> int:
    return math.prod(tensor.shape)
