from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest
from tiny_checkpoints import tiny_llama
from transformers import LlamaForCausalLM

from bayplan.planner.model.read_model import read_model
from bayplan.planner.options import PlanOptions


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_forward_cannot_ask_the_hub(
    is_trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that fetch kernels for experts do, where the config says so."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    offline = set()
    forward = LlamaForCausalLM.forward

    def curious(self: LlamaForCausalLM, *args: object, **options: object) -> object:
        offline.add(huggingface_hub.constants.HF_HUB_OFFLINE)
        return forward(self, *args, **options)

    folder = tiny_llama(tmp_path)
    monkeypatch.setattr(LlamaForCausalLM, "forward", curious)
    read = read_model(str(folder), PlanOptions(trust_remote_code=is_trusted))
    assert read.graph.traced
    assert offline == {not is_trusted}
