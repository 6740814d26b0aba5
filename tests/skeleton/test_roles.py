from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D
from truth_models import build_meta

from bayplan.schemas.graph import Linears, TensorRole
from bayplan.skeleton.kept import kept_in_fp32, unquantized_weights
from bayplan.skeleton.roles import Known, tensor_roles

OTHER = (TensorRole.OTHER, None)


def linear(out_features: int, in_features: int, count: int = 1) -> Linears:
    return Linears(count=count, out_features=out_features, in_features=in_features)


class Quick(nn.Linear):
    """A linear layer with a forward of its own."""


class BlockGroupedLinear(nn.Linear):
    """As transformers names those whose groups of outputs have inputs of their own."""


class Experts(nn.Module):
    def __init__(self, **attributes: object) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(4, 6, 10))
        self.down_proj = nn.Parameter(torch.zeros(4, 10, 3))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(4, 6))
        for name, value in attributes.items():
            setattr(self, name, value)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.linear = nn.Linear(5, 3)
        self.quick = Quick(5, 3, bias=False)
        self.grouped = BlockGroupedLinear(5, 3, bias=False)
        self.turned = Conv1D(3, 5)
        self.norm = nn.LayerNorm(5)
        self.conv = nn.Conv1d(2, 2, 2)
        self.again = self.linear
        self.bare = nn.Parameter(torch.zeros(3, 3))


def test_roles_of_layers() -> None:
    assert tensor_roles(Layers()) == {
        "embed.weight": (TensorRole.EMBEDDING, None),
        "linear.weight": (TensorRole.LINEAR, linear(3, 5)),
        "quick.weight": (TensorRole.LINEAR, linear(3, 5)),
        "grouped.weight": (TensorRole.GROUPED_LINEAR, linear(3, 5)),
        "turned.weight": (TensorRole.CONV1D, linear(3, 5)),
        "again.weight": (TensorRole.LINEAR, linear(3, 5)),
    }


PLAIN: dict[str, Known] = {
    "gate_up_proj": (TensorRole.EXPERTS, linear(3, 10, 8)),
    "down_proj": (TensorRole.EXPERTS, linear(10, 3, 4)),
}
TURNED: dict[str, Known] = {
    "gate_up_proj": (TensorRole.EXPERTS, linear(5, 6, 8)),
    "down_proj": (TensorRole.EXPERTS, linear(3, 10, 4)),
}


@pytest.mark.parametrize(
    ("attributes", "roles"),
    [
        ({}, PLAIN),
        ({"is_transposed": False}, PLAIN),
        ({"is_transposed": True}, TURNED),
        ({"hidden_size": 10}, PLAIN),
        ({"hidden_size": 6}, {**PLAIN, "gate_up_proj": TURNED["gate_up_proj"]}),
        ({"hidden_size": 3}, {**PLAIN, "down_proj": TURNED["down_proj"]}),
    ],
)
def test_roles_of_experts(attributes: dict[str, object], roles: dict[str, Known]) -> None:
    assert tensor_roles(Experts(**attributes)) == roles


def test_a_tensor_of_three_dimensions_alone_makes_no_experts() -> None:
    class Relative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(4, 6, 10))

    assert tensor_roles(Relative()) == {}
    counted = Relative()
    counted.num_experts = 4  # type: ignore[assignment]
    assert tensor_roles(counted) == {"table": (TensorRole.EXPERTS, linear(6, 10, 4))}


def test_an_odd_number_of_rows_is_no_pair_of_projections() -> None:
    odd = Experts()
    odd.gate_up_proj = nn.Parameter(torch.zeros(4, 5, 10))
    assert tensor_roles(odd)["gate_up_proj"] == (TensorRole.EXPERTS, linear(5, 10, 4))


@pytest.mark.parametrize(
    ("name", "fqn", "linears"),
    [
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj", linear(64, 32, 8)),
        ("gpt_oss", "model.layers.0.mlp.experts.down_proj", linear(32, 64, 4)),
        ("llama4", "model.layers.1.feed_forward.experts.gate_up_proj", linear(64, 32, 8)),
        ("llama4", "model.layers.1.feed_forward.experts.down_proj", linear(32, 64, 4)),
        ("mixtral", "model.layers.0.mlp.experts.gate_up_proj", linear(64, 32, 8)),
        ("mixtral", "model.layers.0.mlp.experts.down_proj", linear(32, 64, 4)),
    ],
)
def test_experts_of_real_classes(name: str, fqn: str, linears: Linears) -> None:
    assert tensor_roles(build_meta(name))[fqn] == (TensorRole.EXPERTS, linears)


def test_heads_tied_weights_and_what_the_class_protects_stay() -> None:
    assert unquantized_weights(build_meta("llama")) == ("lm_head.weight",)
    assert unquantized_weights(build_meta("llama", tie_word_embeddings=True)) == ("lm_head.weight",)
    t5 = unquantized_weights(build_meta("t5"))
    assert "lm_head.weight" in t5
    assert [fqn for fqn in t5 if fqn.endswith(".wo.weight")] == [
        f"{stack}.block.{number}.layer.{place}.DenseReluDense.wo.weight"
        for stack, place in (("decoder", 2), ("encoder", 1))
        for number in (0, 1)
    ]


def test_a_class_made_of_the_linear_layer_stays() -> None:
    model = build_meta("llama")
    model.model.layers[0].mlp.up_proj = Quick(32, 64, bias=False)
    assert unquantized_weights(model) == ("lm_head.weight", "model.layers.0.mlp.up_proj.weight")


def test_nothing_is_known_of_other_libraries() -> None:
    assert unquantized_weights(Layers()) == ()
    assert kept_in_fp32(Layers()) == {}


def test_what_is_kept_in_fp32() -> None:
    t5 = kept_in_fp32(build_meta("t5", torch.bfloat16))
    assert t5["bf16"] == ()
    assert all(fqn.endswith(".wo.weight") for fqn in t5["fp16"])
    assert len(t5["fp16"]) == 4


def test_what_an_fp32_model_does_not_show() -> None:
    in_fp32, in_bf16 = build_meta("gemma3"), build_meta("gemma3", torch.bfloat16)
    assert kept_in_fp32(in_fp32) == {"bf16": (), "fp16": ()}
    always = tuple(
        f"model.rotary_emb.{kind}_attention_{part}inv_freq"
        for kind in ("full", "sliding")
        for part in ("", "original_")
    )
    assert kept_in_fp32(in_fp32, in_bf16) == {"bf16": always, "fp16": always}
