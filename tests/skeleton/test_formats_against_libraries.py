"""The byte formulas beside the tensors of the libraries' own layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from bitsandbytes import nn as bnb
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import GptOssConfig, Qwen3MoeConfig
from transformers.integrations.finegrained_fp8 import FP8Experts, FP8GroupedLinear, FP8Linear
from transformers.integrations.mxfp4 import Mxfp4GptOssExperts

from bayplan.schemas.format_bytes import (
    BlockFp4,
    BlockFp8,
    Bnb4Bit,
    Compressed,
    LlmInt8,
    Mxfp4,
    WeightForm,
    weight_bytes,
    weight_parts,
)
from bayplan.schemas.format_names import form_name
from bayplan.skeleton.formats import short_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

SIZES = st.integers(min_value=1, max_value=300)
Described = dict[str, tuple[str, tuple[int, ...]]]


def described(tensors: Mapping[str, torch.Tensor]) -> Described:
    return {name: (short_dtype(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}


def predicted(form: WeightForm, out_features: int, in_features: int) -> Described:
    return {part.name: (part.dtype, part.shape) for part in weight_parts(form, out_features, in_features)}


def four_bit(form: Bnb4Bit, out_features: int, in_features: int) -> bnb.Linear4bit:
    """A quantized layer, as bitsandbytes makes it on the CPU."""
    storage = getattr(torch, {"bf16": "bfloat16"}.get(form.storage_dtype, form.storage_dtype))
    layer = bnb.Linear4bit(in_features, out_features, bias=False, quant_storage=storage)
    weight = bnb.Params4bit(
        torch.ones(out_features, in_features),
        requires_grad=False,
        quant_type=form.quant_type,
        compress_statistics=form.double_quant,
        blocksize=form.blocksize,
        quant_storage=storage,
        module=layer,
    )
    layer.weight = weight.to("cpu")
    return layer


def alive(layer: bnb.Linear4bit) -> dict[str, torch.Tensor]:
    """The tensors that a layer needs in memory, under the names of its state."""
    state = layer.weight.quant_state
    tensors = {
        "weight": layer.weight.data,
        "weight.absmax": state.absmax,
        "weight.quant_map": state.code,
    }
    if state.nested:
        tensors["weight.nested_absmax"] = state.state2.absmax
        tensors["weight.nested_quant_map"] = state.state2.code
        tensors["weight.nested_offset"] = state.offset
    return tensors


@settings(max_examples=40, deadline=None)
@given(
    st.builds(
        Bnb4Bit,
        quant_type=st.sampled_from(("nf4", "fp4")),
        blocksize=st.sampled_from((64, 128)),
        double_quant=st.booleans(),
        storage_dtype=st.sampled_from(("uint8", "bf16")),
    ),
    SIZES,
    SIZES,
)
def test_four_bits_of_bitsandbytes(form: Bnb4Bit, out_features: int, in_features: int) -> None:
    packed_bytes = -(-out_features * in_features // 2)
    assume(form.storage_dtype == "uint8" or (packed_bytes > 1 and packed_bytes % 2 == 0))
    layer = four_bit(form, out_features, in_features)
    assert described(alive(layer)) == predicted(form, out_features, in_features)
    in_file = {name for name in layer.state_dict() if "quant_state" not in name}
    assert in_file == predicted(form, out_features, in_features).keys() - {"weight.nested_offset"}


@settings(max_examples=20, deadline=None)
@given(SIZES, SIZES)
def test_eight_bits_of_bitsandbytes(out_features: int, in_features: int) -> None:
    layer = bnb.Linear8bitLt(in_features, out_features, bias=False, has_fp16_weights=False)
    weight = bnb.Int8Params(torch.ones(out_features, in_features), requires_grad=False).to("cpu")
    layer.weight = weight
    state = {name: tensor for name, tensor in layer.state_dict().items() if name != "weight_format"}
    assert described(state) == predicted(LlmInt8(), out_features, in_features)


FP8_FORMS = st.builds(
    BlockFp8,
    block_shape=st.one_of(st.none(), st.tuples(st.sampled_from((1, 64, 128)), st.sampled_from((32, 128)))),
    scale_dtype=st.sampled_from(("fp32", "fp8_e8m0")),
    is_static=st.booleans(),
)
SCALE_FORMATS = {"fp32": "float", "fp8_e8m0": "ue8m0"}


@settings(deadline=None)
@given(FP8_FORMS, SIZES, SIZES, st.booleans())
def test_fp8_of_transformers(form: BlockFp8, out_features: int, in_features: int, is_grouped: bool) -> None:
    options = {
        "block_size": form.block_shape,
        "activation_scheme": "static" if form.is_static else "dynamic",
        "scale_fmt": SCALE_FORMATS[form.scale_dtype],
    }
    with torch.device("meta"):
        layer: nn.Module = (
            FP8GroupedLinear(in_features, out_features, 1, **options)
            if is_grouped
            else FP8Linear(in_features, out_features, **options)
        )
    assert described(layer.state_dict()) == predicted(form, out_features, in_features)


@settings(deadline=None, max_examples=50)
@given(
    st.one_of(FP8_FORMS, st.builds(BlockFp4, scale_dtype=st.sampled_from(("fp32", "fp8_e8m0")))),
    st.integers(min_value=1, max_value=5),
    st.sampled_from((128, 256)),
    st.integers(min_value=1, max_value=200),
)
def test_fp8_experts_of_transformers(
    form: BlockFp8 | BlockFp4, experts: int, inner: int, hidden: int
) -> None:
    assume(isinstance(form, BlockFp8) or hidden % 2 == 0)
    config = Qwen3MoeConfig(num_experts=experts, moe_intermediate_size=inner, hidden_size=2 * hidden)
    with torch.device("meta"):
        module = FP8Experts(
            config,
            block_size=form.block_shape if isinstance(form, BlockFp8) else None,
            activation_scheme="dynamic",
            scale_fmt=SCALE_FORMATS[form.scale_dtype],
            expert_dtype="fp8" if isinstance(form, BlockFp8) else "fp4",
        )
    if isinstance(form, BlockFp8):
        form = BlockFp8(block_shape=form.block_shape, scale_dtype=form.scale_dtype)
        # The whole-tensor scales of experts are of the scales' own data type in this class.
        assume(form.block_shape is not None or form.scale_dtype == "fp32")
    gate_and_up = 2 * experts * weight_bytes(form, inner, 2 * hidden)
    down = experts * weight_bytes(form, 2 * hidden, inner)
    assert sum(tensor.nbytes for tensor in module.state_dict().values()) == gate_and_up + down


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 8))
def test_mxfp4_of_transformers(experts: int, inner_blocks: int, hidden_blocks: int) -> None:
    """Its class has the blocks as one tensor; the scales are made when it is loaded."""
    inner, hidden = 32 * inner_blocks, 32 * hidden_blocks
    config = GptOssConfig(num_local_experts=experts, intermediate_size=inner, hidden_size=hidden)
    with torch.device("meta"):
        module = Mxfp4GptOssExperts(config)
    gate_up, down = weight_parts(Mxfp4(), 2 * inner, hidden), weight_parts(Mxfp4(), hidden, inner)
    assert module.gate_up_proj.nbytes == experts * gate_up[0].num_bytes
    assert module.down_proj.nbytes == experts * down[0].num_bytes
    assert 16 * gate_up[1].num_bytes == gate_up[0].num_bytes


LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "pack-quantized": ((2, 3, 4, 8), ("tensor", "channel", "group")),
    "int-quantized": ((8,), ("tensor", "channel", "group", "block")),
    "float-quantized": ((8,), ("tensor", "channel", "group", "block")),
}
SCALED: dict[str, tuple[int, int | None] | None] = {
    "tensor": None,
    "channel": (1, None),
    "group": (1, 32),
    "block": (128, 128),
}
COMPRESSED = [
    Compressed(layout=layout, bits=bits, block_shape=SCALED[strategy], is_symmetric=is_symmetric)  # type: ignore[arg-type]
    for layout, (widths, strategies) in LAYOUTS.items()
    for bits in widths
    for strategy in strategies
    for is_symmetric in (True, False)
]


@pytest.mark.interop
@pytest.mark.parametrize("form", COMPRESSED, ids=form_name)
def test_compressed_tensors(form: Compressed) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.initialize import initialize_module_for_quantization

    strategy = next(name for name, shape in SCALED.items() if shape == form.block_shape)
    weights = QuantizationArgs(
        num_bits=form.bits,
        type="float" if form.layout == "float-quantized" else "int",
        symmetric=form.is_symmetric,
        strategy=strategy,
        group_size=32 if strategy == "group" else None,
        block_structure=[128, 128] if strategy == "block" else None,
    )
    layer = nn.Linear(384, 200, bias=False, dtype=torch.bfloat16)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=form.layout)
    initialize_module_for_quantization(layer, scheme)
    nn.init.ones_(layer.weight_scale)
    compressor = BaseCompressor.get_value_from_registry(form.layout)
    assert described(compressor.compress(dict(layer.state_dict()), scheme)) == predicted(form, 200, 384)
