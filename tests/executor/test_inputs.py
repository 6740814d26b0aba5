from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from executor_models import TOKENS
from meta_models import on_meta
from safetensors.torch import save_file
from torch import nn

from bayplan.executor.inputs import accepted_names, check_inputs, described, read_inputs, taken
from bayplan.schemas.errors import BayplanError

IDS = TOKENS % 96


def ids(*values: int) -> torch.Tensor:
    return torch.tensor([values])


class Anything(nn.Module):
    def forward(self, **inputs: torch.Tensor) -> None:
        raise NotImplementedError


class Needing(nn.Module):
    def forward(self, hidden: Any, *rest: Any, scale: Any, shift: Any = None) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (on_meta("llama"), {"input_ids": IDS}),
        (on_meta("llama"), {"input_ids": IDS.int(), "attention_mask": torch.ones_like(IDS)}),
        (on_meta("llama"), {"inputs_embeds": torch.zeros(1, 2, 32)}),
        (on_meta("bert"), {"input_ids": ids(0, 95), "token_type_ids": ids(0, 1)}),
        (on_meta("t5"), {"input_ids": IDS, "decoder_input_ids": ids(1)}),
        (on_meta("vit"), {"pixel_values": torch.zeros(1, 3, 16, 16)}),
        (Anything(), {"whatever": torch.zeros(1)}),
        (Needing(), {"hidden": torch.zeros(1), "scale": torch.zeros(1)}),
    ],
)
def test_good_inputs(model: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    check_inputs(inputs, model, where="file")


NO_IDS = "are no token ids: got {}, needed int64 or int32 of shape [sequences, positions], none of them 0"


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("llama", {"input_ids": IDS.float()}, "input_ids " + NO_IDS.format("fp32[2, 6]")),
        ("llama", {"input_ids": IDS[0]}, "input_ids " + NO_IDS.format("int64[6]")),
        ("llama", {"input_ids": IDS[:, :0]}, "input_ids " + NO_IDS.format("int64[2, 0]")),
        (
            "llama",
            {"input_ids": ids(5, 96)},
            "input_ids hold ids that the vocabulary does not have: got 96, needed 0 to 95",
        ),
        (
            "llama",
            {"input_ids": ids(-1, 5)},
            "input_ids hold ids that the vocabulary does not have: got -1, needed 0 to 95",
        ),
        (
            "t5",
            {"input_ids": IDS, "decoder_input_ids": ids(99)},
            "decoder_input_ids hold ids that the vocabulary does not have: got 99, needed 0 to 95",
        ),
        (
            "llama",
            {"input_ids": IDS, "attention_mask": torch.ones(1, 6)},
            "input_ids and its attention mask differ in their number of sequences: got [2, 6] and [1, 6]",
        ),
    ],
)
def test_inputs_that_no_forward_can_take(name: str, inputs: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(BayplanError) as raised:
        check_inputs(inputs, on_meta(name), where="file")
    assert str(raised.value) == f"file: {message}"


def test_arguments_that_the_forward_does_not_have() -> None:
    with pytest.raises(BayplanError) as raised:
        check_inputs({"y\n": ids(1), "hidden": ids(1), "x": ids(1)}, Needing(), where="file")
    assert str(raised.value) == (
        'file: Needing has no such arguments: got "x", "y\\n", needed some of hidden, scale, shift'
    )


def test_arguments_that_are_missing() -> None:
    with pytest.raises(BayplanError) as raised:
        check_inputs({"shift": ids(1)}, Needing(), where="file")
    assert str(raised.value) == "file: Needing needs more arguments: needed hidden, scale"


def test_described_keyword_arguments_count() -> None:
    accepted = accepted_names(on_meta("llama"))
    assert accepted is not None
    assert accepted > {"input_ids", "position_ids", "output_hidden_states"}
    assert "token_type_ids" not in accepted
    assert accepted_names(Anything()) is None


def test_what_a_tokenizer_makes_too_much_is_dropped() -> None:
    made = {"input_ids": IDS, "attention_mask": IDS, "token_type_ids": IDS, "length": IDS}
    assert taken(made, on_meta("llama")).keys() == {"input_ids", "attention_mask"}
    assert taken(made, on_meta("bert")).keys() == {"input_ids", "attention_mask", "token_type_ids"}
    assert taken(made, Anything()).keys() == made.keys()


def test_texts_for_a_model_of_images() -> None:
    with pytest.raises(BayplanError) as raised:
        taken({"input_ids": IDS}, on_meta("vit"))
    assert str(raised.value) == (
        "ViTForImageClassification does not take texts: needed pixel_values\n"
        "hint: pass its inputs with --inputs"
    )


def test_file_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "inputs.safetensors"
    save_file({}, path)
    with pytest.raises(BayplanError) as raised:
        read_inputs(path)
    assert str(raised.value) == f"{path}: the inputs hold no tensor: needed arguments of a forward"


def test_description_of_inputs() -> None:
    assert described({"input_ids": IDS, "scale": torch.ones(())}) == "input_ids int64[2, 6], scale fp32[]"
