from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel

from bayplan.skeleton.buffers import compute_buffers
from bayplan.skeleton.build import build_model
from bayplan.skeleton.config import load_config

if TYPE_CHECKING:
    from conftest import Checkpoint


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def non_persistent(model: nn.Module) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    kept = model.state_dict()
    buffers = model.named_buffers(remove_duplicate=False)
    return {fqn: (b.dtype, b.shape, raw(b)) for fqn, b in buffers if fqn not in kept}


def test_non_persistent_buffers_equal_those_of_from_pretrained(checkpoint: Checkpoint) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        reference = checkpoint.model_class.from_pretrained(checkpoint.folder, dtype=dtype)
        model = build_model(load_config(checkpoint.folder), checkpoint.model_class, dtype)
        assert non_persistent(model) == non_persistent(reference)


def test_architectures_have_buffers_to_compare(checkpoint: Checkpoint) -> None:
    with_buffers = {"bert", "clip", "deepseek_v3", "falcon", "gemma3", "gpt_neox", "gptj", "llama", "phi3"}
    with_buffers |= {"qwen2", "qwen3_moe"}
    assert bool(non_persistent(checkpoint.reference)) == (checkpoint.name in with_buffers)


class Tables(PreTrainedModel):
    """One table from the constructor alone, one that transformers initializes."""

    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.linear = nn.Linear(2, 2)
        self.register_buffer("constructed", torch.arange(3.0), persistent=False)
        self.register_buffer("initialized", torch.zeros(3), persistent=False)
        self.register_buffer("stored", torch.zeros(3))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            torch.rand(1)
            self.initialized.fill_(1)
            self.stored.fill_(2)


def test_constructors_value_holds_where_transformers_has_none() -> None:
    before = torch.get_rng_state()
    model = build_model(LlamaConfig(), Tables, torch.float32)
    assert {name: b.tolist() for name, b in model.named_buffers()} == {
        "constructed": [0.0, 1.0, 2.0],
        "initialized": [1.0] * 3,
        "stored": [2.0] * 3,
    }
    assert model.linear.weight.is_meta
    assert torch.equal(torch.get_rng_state(), before)


def test_other_modules_keep_their_values() -> None:
    module = nn.BatchNorm1d(2)
    module.running_mean.fill_(3)
    compute_buffers(module)
    assert module.running_mean.tolist() == [3.0, 3.0]
