"""Tiny checkpoints that are quantized already: by bitsandbytes itself, or in the layouts of other libraries.

The shapes of the other libraries' tensors are written out here, apart from the formulas that are tested.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
import transformers
from bitsandbytes import nn as bnb
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
CLASSES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("LlamaForCausalLM", {**SIZES}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**SIZES, **EXPERTS}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 2},
    ),
}
Tensors = dict[str, torch.Tensor]
Pack = "Callable[[str, int, int], Tensors]"
HEAD = "lm_head"


def tiny(name: str) -> PreTrainedModel:
    """Return a model with random weights in bf16."""
    class_name, values = CLASSES[name]
    model_class = getattr(transformers, class_name)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = model_class(model_class.config_class(**values))
    assert isinstance(model, PreTrainedModel)
    return model.to(torch.bfloat16).eval()


def save(folder: Path, model: PreTrainedModel, tensors: Tensors, quantization: dict[str, object]) -> Path:
    """Write config and weights; the config says how the weights are quantized."""
    model.config.dtype = torch.bfloat16
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    kept = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def bitsandbytes_4bit(folder: Path, *, quant_type: str, double_quant: bool) -> Path:
    """A Llama that bitsandbytes has quantized on the CPU."""
    model = tiny("llama")
    for path, linear in _linears(model):
        layer = bnb.Linear4bit(linear.in_features, linear.out_features, bias=False, quant_type=quant_type)
        weight = bnb.Params4bit(
            linear.weight.data,
            requires_grad=False,
            quant_type=quant_type,
            compress_statistics=double_quant,
            module=layer,
        )
        layer.weight = weight.to("cpu")
        model.set_submodule(path, layer)
    quantization = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": quant_type,
        "bnb_4bit_use_double_quant": double_quant,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": None,
        "llm_int8_threshold": 6.0,
    }
    return save(folder, model, dict(model.state_dict()), quantization)


def bitsandbytes_8bit(folder: Path) -> Path:
    """A Llama that bitsandbytes has quantized on the CPU."""
    model = tiny("llama")
    for path, linear in _linears(model):
        layer = bnb.Linear8bitLt(linear.in_features, linear.out_features, bias=False, has_fp16_weights=False)
        layer.weight = bnb.Int8Params(linear.weight.data, requires_grad=False).to("cpu")
        model.set_submodule(path, layer)
    quantization = {"load_in_8bit": True, "load_in_4bit": False, "llm_int8_threshold": 5.5}
    return save(folder, model, dict(model.state_dict()), quantization)


def fp8(folder: Path) -> Path:
    """A mixture of experts with each expert's layers apart, and one layer more than the class has."""

    def pack(path: str, rows: int, columns: int) -> Tensors:
        return {
            f"{path}.weight": torch.zeros(rows, columns, dtype=torch.float8_e4m3fn),
            f"{path}.weight_scale_inv": torch.zeros(-(-rows // 40), -(-columns // 40)),
        }

    model = tiny("qwen3_moe")
    tensors = packed(model, pack, left=("lm_head",))
    tensors["model.layers.2.enorm.weight"] = torch.zeros(64, dtype=torch.bfloat16)
    quantization = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [40, 40],
        "modules_to_not_convert": ["lm_head"],
    }
    return save(folder, model, tensors, quantization)


def mxfp4(folder: Path) -> Path:
    """A gpt-oss: the experts of a layer in one tensor, blocks of 32 with a scale each."""
    model = tiny("gpt_oss")
    tensors: Tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = tensor.shape
            tensors[f"{name}_blocks"] = torch.zeros(experts, rows, columns // 32, 16, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.zeros(experts, rows, columns // 32, dtype=torch.uint8)
        else:
            tensors[name] = tensor
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", HEAD]}
    return save(folder, model, tensors, quantization)


def gptq(folder: Path) -> Path:
    """A Llama as GPTQ packs it: 4 bits, groups of 32 inputs."""

    def pack(path: str, rows: int, columns: int) -> Tensors:
        groups = columns // 32
        return {
            f"{path}.qweight": torch.zeros(columns // 8, rows, dtype=torch.int32),
            f"{path}.qzeros": torch.zeros(groups, rows // 8, dtype=torch.int32),
            f"{path}.scales": torch.zeros(groups, rows, dtype=torch.float16),
            f"{path}.g_idx": torch.zeros(columns, dtype=torch.int32),
        }

    model = tiny("llama")
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    return save(folder, model, packed(model, pack, left=("lm_head",)), quantization)


def awq(folder: Path) -> Path:
    """A Llama as AWQ packs it: 4 bits, groups of 32 inputs."""

    def pack(path: str, rows: int, columns: int) -> Tensors:
        return {
            f"{path}.qweight": torch.zeros(columns, rows // 8, dtype=torch.int32),
            f"{path}.qzeros": torch.zeros(columns // 32, rows // 8, dtype=torch.int32),
            f"{path}.scales": torch.zeros(columns // 32, rows, dtype=torch.float16),
        }

    model = tiny("llama")
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
    return save(folder, model, packed(model, pack, left=("lm_head",)), quantization)


def compressed(folder: Path) -> Path:
    """A mixture of experts as compressed-tensors packs it, attention left, the cache's scales stored."""

    def pack(path: str, rows: int, columns: int) -> Tensors:
        return {
            f"{path}.weight_packed": torch.zeros(rows, columns // 8, dtype=torch.int32),
            f"{path}.weight_scale": torch.zeros(rows, columns // 32, dtype=torch.bfloat16),
            f"{path}.weight_shape": torch.zeros(2, dtype=torch.int64),
        }

    model = tiny("qwen3_moe")
    tensors = packed(model, pack, left=("lm_head", "self_attn"))
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head", "re:.*self_attn.*"],
    }
    return save(folder, model, tensors, quantization)


def packed(
    model: PreTrainedModel, pack: Callable[[str, int, int], Tensors], left: tuple[str, ...]
) -> Tensors:
    """Return the state with its linear layers packed, every expert's on its own."""
    tensors = {name: tensor for name, tensor in model.state_dict().items() if ".experts." not in name}
    for path, linear in _linears(model, left):
        del tensors[f"{path}.weight"]
        tensors.update(pack(path, linear.out_features, linear.in_features))
    for name, tensor in model.state_dict().items():
        stem, found, kind = name.partition(".experts.")
        if not found:
            continue
        count, rows, columns = tensor.shape
        parts = ["gate_proj", "up_proj"] if kind == "gate_up_proj" else ["down_proj"]
        for expert in range(count):
            for part in parts:
                tensors.update(pack(f"{stem}.experts.{expert}.{part}", rows // len(parts), columns))
    return tensors


def _linears(model: PreTrainedModel, left: tuple[str, ...] = (HEAD,)) -> list[tuple[str, nn.Linear]]:
    return [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and not any(part in path for part in left)
    ]
