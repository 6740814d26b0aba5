from __future__ import annotations

import pytest
from quantized_checkpoints import tiny
from torch import nn
from truth_models import build_meta

from bayplan.skeleton.packed_names import base_names, match_packed_names


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("a.weight", ()),
        ("a.bias", ()),
        ("a.weight_scale_inv", ("a.weight",)),
        ("a.scale", ("a.weight",)),
        ("a.qweight", ("a.weight",)),
        ("a.g_idx", ("a.weight",)),
        ("a.SCB", ("a.weight",)),
        ("a.weight_packed", ("a.weight",)),
        ("a.weight.absmax", ("a.weight",)),
        ("a.weight.quant_state.bitsandbytes__nf4", ("a.weight",)),
        ("mlp.experts.gate_up_proj_blocks", ("mlp.experts.gate_up_proj",)),
        ("mlp.experts.down_proj_scale_inv", ("mlp.experts.down_proj",)),
        ("attn.k_scale", ("attn.k_proj.weight",)),
        ("attn.v_scale", ("attn.v_proj.weight",)),
        ("scale", (".weight",)),
    ],
)
def test_base_names(name: str, bases: tuple[str, ...]) -> None:
    assert base_names(name) == bases


def test_names_of_a_model_of_no_library() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    found = match_packed_names(model, ["0.qweight", "0.scales", "1.weight", "1.bias", "2.weight", "0.extra"])
    assert found.owners == {
        "0.qweight": "0.weight",
        "0.scales": "0.weight",
        "1.bias": "1.bias",
        "1.weight": "1.weight",
    }
    assert found.whole == {"1.weight", "1.bias"}
    assert found.sources == {"0.weight": "0.weight", "1.bias": "1.bias", "1.weight": "1.weight"}
    assert found.missing == ("0.bias",)
    assert found.default_buffers == ("1.num_batches_tracked", "1.running_mean", "1.running_var")
    assert found.unused == ("0.extra", "2.weight")


def test_a_parameter_of_the_model_is_no_scale_of_another() -> None:
    model = nn.Module()
    model.norm = nn.Module()
    model.norm.weight = nn.Parameter(nn.Linear(1, 1).weight.data)
    model.norm.scale = nn.Parameter(nn.Linear(1, 1).weight.data)
    both = match_packed_names(model, ["norm.weight", "norm.scale"])
    assert both.owners == {"norm.scale": "norm.scale", "norm.weight": "norm.weight"}


def test_one_name_of_a_tied_group_is_enough() -> None:
    model = build_meta("llama", tie_word_embeddings=True)
    names = [name for name in model.state_dict() if name != "lm_head.weight"]
    assert match_packed_names(model, names).missing == ()


def test_experts_of_a_layer_make_one_tensor() -> None:
    model = tiny("qwen3_moe")
    stem = "model.layers.1.mlp.experts"
    parts = ("gate_proj", "up_proj", "down_proj")
    names = [f"{stem}.{expert}.{part}.weight" for expert in range(4) for part in parts]
    found = match_packed_names(model, [*names, *(f"{name}_scale_inv" for name in names)])
    for name in names:
        target = f"{stem}.down_proj" if "down" in name else f"{stem}.gate_up_proj"
        assert (found.owners[name], found.owners[f"{name}_scale_inv"]) == (target, target)
    assert found.whole == set(names)
    assert found.sources == {}


def test_names_with_a_prefix_that_the_class_does_not_have() -> None:
    model = build_meta("bert").base_model
    names = [f"bert.{name}" for name in model.state_dict()]
    packed = [name.replace("query.weight", "query.qweight") for name in names]
    found = match_packed_names(model, packed)
    assert found.missing == ()
    assert found.sources["encoder.layer.0.attention.self.query.weight"] == (
        "bert.encoder.layer.0.attention.self.query.weight"
    )
