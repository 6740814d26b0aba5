from __future__ import annotations

from typing import Any

import pytest

from bayplan.schemas.format_bytes import (
    Awq,
    BlockFp4,
    BlockFp8,
    Bnb4Bit,
    Compressed,
    Gptq,
    LlmInt8,
    Mxfp4,
)
from bayplan.schemas.graph import TensorRole
from bayplan.schemas.quantization import Group, Matching, Scheme
from bayplan.schemas.quantization_config import read_scheme
from bayplan.schemas.quantization_values import QuantizationError, method_of

LINEAR, CONV1D, EXPERTS, GROUPED, EMBEDDING = (
    TensorRole.LINEAR,
    TensorRole.CONV1D,
    TensorRole.EXPERTS,
    TensorRole.GROUPED_LINEAR,
    TensorRole.EMBEDDING,
)
FP8_ROLES = (LINEAR, GROUPED, EXPERTS)
BNB_ROLES = (LINEAR, CONV1D, EXPERTS)
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


def compressed(weights: object = INT4, **changes: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, **changes.pop("group", {})}  # type: ignore[dict-item]
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **changes,
    }


def packed(**changes: Any) -> Scheme:
    fields = {"layout": "pack-quantized", "bits": 4, "block_shape": (1, 32), "scale_dtype": "bf16", **changes}
    group = Group(form=Compressed(**fields), roles=FP8_ROLES, names=("Linear",))
    return Scheme(
        name=NAMES.get(fields["layout"], "int4-packed-g32"),
        groups=(group,),
        matching=Matching.EXACT,
        not_converted=("lm_head",),
        keeps_default=False,
    )


NAMES = {"float-quantized": "fp8-channel-static", "int-quantized": "int8-tensor"}
CASES: list[tuple[dict[str, object], Scheme]] = [
    (
        {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
        Scheme(name="fp8", groups=(Group(form=BlockFp8(), roles=FP8_ROLES),)),
    ),
    ({"quant_method": "fp8"}, Scheme(name="fp8", groups=(Group(form=BlockFp8(), roles=FP8_ROLES),))),
    (
        {
            "quant_method": "fp8",
            "weight_block_size": None,
            "activation_scheme": "static",
            "ignored_layers": ["gate"],
            "modules_to_convert": ["embed"],
        },
        Scheme(
            name="fp8",
            groups=(
                Group(form=BlockFp8(block_shape=None, is_static=True), roles=FP8_ROLES),
                Group(form=BlockFp8(block_shape=None), roles=(EMBEDDING,), names=("embed",)),
            ),
            not_converted=("gate",),
            keeps_default=False,
        ),
    ),
    (
        {"quant_method": "fp8", "scale_fmt": "ue8m0", "expert_dtype": "fp4", "modules_to_not_convert": []},
        Scheme(
            name="fp8",
            groups=(
                Group(form=BlockFp4(), roles=(EXPERTS,)),
                Group(form=BlockFp8(scale_dtype="fp8_e8m0"), roles=FP8_ROLES),
            ),
            keeps_default=False,
        ),
    ),
    (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        Scheme(
            name="mxfp4",
            groups=(Group(form=Mxfp4(), roles=(EXPERTS,)),),
            not_converted=("lm_head",),
            keeps_default=False,
        ),
    ),
    (
        {"load_in_8bit": True, "llm_int8_threshold": 5.5},
        Scheme(name="int8", groups=(Group(form=LlmInt8(threshold_milli=5500), roles=BNB_ROLES),)),
    ),
    (
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_quant_storage": "bfloat16",
            "llm_int8_skip_modules": ["vision"],
        },
        Scheme(
            name="nf4-dq",
            groups=(
                Group(
                    form=Bnb4Bit(quant_type="nf4", double_quant=True, storage_dtype="bf16"), roles=BNB_ROLES
                ),
            ),
            not_converted=("vision",),
            keeps_default=False,
        ),
    ),
    (
        {"load_in_4bit": True},
        Scheme(name="fp4", groups=(Group(form=Bnb4Bit(quant_type="fp4"), roles=BNB_ROLES),)),
    ),
    (
        {"quant_method": "gptq", "bits": 8, "group_size": -1, "dynamic": {"-:.*gate": {}}},
        Scheme(
            name="gptq-int8",
            groups=(Group(form=Gptq(bits=8, group_size=None), roles=BNB_ROLES),),
            matching=Matching.NUMBERED,
            not_converted=(".*gate",),
        ),
    ),
    (
        {
            "quant_method": "gptq",
            "bits": 4,
            "modules_in_block_to_quantize": [["q_proj", "k_proj"], "mlp.fc1"],
        },
        Scheme(
            name="gptq-int4",
            groups=(
                Group(
                    form=Gptq(bits=4, group_size=128), roles=BNB_ROLES, names=("q_proj", "k_proj", "mlp.fc1")
                ),
            ),
            matching=Matching.NUMBERED,
        ),
    ),
    (
        {"quant_method": "awq", "w_bit": 4, "group_size": 64, "version": "GEMM"},
        Scheme(name="awq-int4", groups=(Group(form=Awq(bits=4, group_size=64), roles=(LINEAR, EXPERTS)),)),
    ),
    (
        {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["visual"]},
        Scheme(
            name="awq-int4",
            groups=(Group(form=Awq(bits=4, group_size=128), roles=(LINEAR, EXPERTS)),),
            not_converted=("visual",),
        ),
    ),
    (compressed(), packed()),
    (compressed({"num_bits": 4, "group_size": 32}), packed()),
    (
        compressed(
            {"num_bits": 8, "type": "float", "strategy": "channel"},
            format="float-quantized",
            group={"input_activations": {"num_bits": 8, "dynamic": False}},
        ),
        packed(layout="float-quantized", bits=8, block_shape=(1, None), is_static=True),
    ),
    (
        compressed({"num_bits": 8}, format="naive-quantized"),
        packed(layout="int-quantized", bits=8, block_shape=None),
    ),
]


@pytest.mark.parametrize(("config", "scheme"), CASES)
def test_schemes(config: dict[str, object], scheme: Scheme) -> None:
    assert read_scheme(config, dtype="bf16", where="model") == scheme


def test_blocks_and_a_format_of_the_group_in_compressed_tensors() -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    kept = {"targets": ["re:.*kv"], "weights": None}
    config = compressed(weights, group={"format": "float-quantized"})
    config["config_groups"] = {"a": kept, **config["config_groups"]}  # type: ignore[dict-item]
    scheme = read_scheme(config, dtype="fp16", where="model")
    assert [group.form for group in scheme.groups] == [
        Compressed(layout="float-quantized", bits=8, block_shape=(128, 128), scale_dtype="fp16")
    ]


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"bits": 4}, "unnamed"),
    ],
)
def test_method(config: dict[str, object], method: str) -> None:
    assert method_of(config) == method


def test_unknown_method() -> None:
    with pytest.raises(QuantizationError) as caught:
        read_scheme({"quant_method": "quip"}, dtype="bf16", where="org/model")
    assert str(caught.value) == (
        'org/model: the checkpoint is quantized by a method that this version does not know: got "quip",'
        " needed one of fp8, mxfp4, bitsandbytes, gptq, awq, compressed-tensors\n"
        "hint: the unquantized checkpoint of the same model can be read"
    )


WRONG: list[tuple[dict[str, object], str]] = [
    (
        {"quant_method": "fp8", "weight_block_size": [128]},
        'fp8: weight_block_size is not understood: got "[128]", needed two whole numbers above 0',
    ),
    (
        {"quant_method": "fp8", "weight_block_size": [128, True]},
        'fp8: weight_block_size is not understood: got "[128, True]", needed two whole numbers above 0',
    ),
    (
        {"quant_method": "fp8", "scale_fmt": "log"},
        'fp8: scale_fmt is not understood: got "log", needed one of float, ue8m0',
    ),
    (
        {"quant_method": "fp8", "activation_scheme": "none"},
        'fp8: activation_scheme is not understood: got "none", needed one of dynamic, static',
    ),
    (
        {"quant_method": "mxfp4", "modules_to_not_convert": "lm_head"},
        'mxfp4: modules_to_not_convert is not understood: got "lm_head", needed a list of module names',
    ),
    (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["a("]},
        "mxfp4: modules_to_not_convert is not understood: got \"['a(']\", needed names that are regular"
        ' expressions, not "a("',
    ),
    (
        {"quant_method": "bitsandbytes"},
        'bitsandbytes: load_in_4bit is not understood: got "None",'
        " needed either load_in_4bit or load_in_8bit",
    ),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": 1},
        'bitsandbytes: load_in_4bit is not understood: got "1", needed true or false',
    ),
    (
        {"load_in_8bit": True, "llm_int8_threshold": "high"},
        'bitsandbytes: llm_int8_threshold is not understood: got "high", needed a number',
    ),
    (
        {"load_in_4bit": True, "bnb_4bit_quant_storage": "int3"},
        'bitsandbytes: bnb_4bit_quant_storage is not understood: got "int3", needed one of uint8, int8,'
        " bfloat16, float16, float32, float64",
    ),
    (
        {"quant_method": "gptq"},
        'gptq: bits is not understood: got "None", needed a whole number above 0',
    ),
    (
        {"quant_method": "gptq", "bits": 16},
        'gptq: bits is not understood: got "16", needed at most 8',
    ),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 0},
        'gptq: group_size is not understood: got "0", needed a whole number above 0',
    ),
    (
        {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}},
        "gptq: dynamic is not understood: got \"{'+:.*': {'bits': 8}}\", needed modules that are left out,"
        " written as -:PATTERN",
    ),
    (
        {"quant_method": "gptq", "bits": 4, "dynamic": ["-:a"]},
        "gptq: dynamic is not understood: got \"['-:a']\", needed an object",
    ),
    (
        {"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": "q_proj"},
        'gptq: modules_in_block_to_quantize is not understood: got "q_proj", needed lists of module names',
    ),
    (
        {"quant_method": "awq", "version": "marlin"},
        'awq: version is not understood: got "marlin", needed one of gemm, gemv',
    ),
    ({"quant_method": "awq", "bits": 3}, 'awq: bits is not understood: got "3", needed 4 or 8'),
    (
        {"quant_method": "awq", "zero_point": False},
        'awq: zero_point is not understood: got "False", needed true',
    ),
    (
        {"quant_method": "compressed-tensors"},
        'compressed-tensors: config_groups is not understood: got "None", needed an object of groups',
    ),
    (
        {"quant_method": "compressed-tensors", "config_groups": {"a": 1}},
        "compressed-tensors: config_groups is not understood: got \"{'a': 1}\","
        " needed groups with targets and weights",
    ),
    (
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": None}}},
        "compressed-tensors: config_groups is not understood: got \"{'a': {'weights': None}}\","
        " needed a group with weights",
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {"a": {"weights": {"strategy": "token"}}},
        },
        'compressed-tensors: strategy is not understood: got "token", needed one of tensor, channel, group,'
        " block",
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {"a": {"weights": {}, "targets": "Linear"}},
        },
        'compressed-tensors: targets is not understood: got "Linear", needed a list of module names',
    ),
    (
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": 1}}},
        "compressed-tensors: config_groups is not understood: got \"{'a': {'weights': 1}}\","
        " needed weights with num_bits, type and strategy",
    ),
]


@pytest.mark.parametrize(("config", "text"), WRONG)
def test_a_value_that_is_not_understood(config: dict[str, object], text: str) -> None:
    with pytest.raises(QuantizationError) as caught:
        read_scheme(config, dtype="bf16", where="org/model")
    assert str(caught.value) == f"org/model: quantization_config of {text}"


def test_a_layout_that_is_not_known() -> None:
    with pytest.raises(QuantizationError) as caught:
        read_scheme(compressed(format="nvfp4-pack-quantized"), dtype="bf16", where="org/model")
    assert str(caught.value) == (
        "org/model: the checkpoint is in a layout of compressed-tensors that this version does not know:"
        ' got "nvfp4-pack-quantized with 4 bits", needed pack-quantized, int-quantized or float-quantized'
        " with at most 8 bits"
    )
