from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import build

from bayplan.planner.model.inputs import Attempt, UnknownInputsError, attempts, make_inputs

PLAIN = Attempt(has_mask=False)


def shapes(inputs: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    assert all(tensor.is_meta for tensor in inputs.values())
    return {name: tuple(tensor.shape) for name, tensor in inputs.items()}


def test_text() -> None:
    assert shapes(make_inputs(build("llama"), PLAIN, batch=2, num_tokens=5)) == {"input_ids": (2, 5)}


def test_a_mask_covers_the_past() -> None:
    inputs = make_inputs(build("llama"), Attempt(has_mask=True), batch=2, num_tokens=1, num_past=4)
    assert shapes(inputs) == {"input_ids": (2, 1), "attention_mask": (2, 5)}


def test_encoder_decoder() -> None:
    inputs = make_inputs(build("t5"), Attempt(has_mask=True), batch=2, num_tokens=3, encoder_context=7)
    assert shapes(inputs) == {"decoder_input_ids": (2, 3), "input_ids": (2, 7), "attention_mask": (2, 7)}


def test_an_encoder_runs_once() -> None:
    inputs = make_inputs(build("t5"), PLAIN, batch=2, num_tokens=1, num_past=3, encoder_context=7)
    assert shapes(inputs) == {"decoder_input_ids": (2, 1)}


def test_images() -> None:
    assert shapes(make_inputs(build("vit"), PLAIN, batch=2, num_tokens=5)) == {"pixel_values": (2, 3, 16, 16)}


def test_images_of_two_sides() -> None:
    model = build("vit", image_size=[16, 32])
    assert shapes(make_inputs(model, PLAIN, batch=1, num_tokens=5)) == {"pixel_values": (1, 3, 16, 32)}


def test_spectrograms() -> None:
    inputs = make_inputs(build("whisper"), PLAIN, batch=2, num_tokens=3, encoder_context=20)
    assert shapes(inputs) == {"decoder_input_ids": (2, 3), "input_features": (2, 8, 40)}


def test_sound() -> None:
    config = transformers.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        conv_dim=(8, 8),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_conv_pos_embedding_groups=4,
    )
    with torch.device("meta"):
        model = transformers.Wav2Vec2Model(config)
    assert shapes(make_inputs(model, PLAIN, batch=1, num_tokens=6)) == {"input_values": (1, 60)}


def test_every_modality() -> None:
    inputs = make_inputs(build("clip"), Attempt(has_mask=False, every_modality=True), batch=2, num_tokens=5)
    assert shapes(inputs) == {"input_ids": (2, 5), "pixel_values": (2, 3, 16, 16)}


def test_a_single_prompt_is_first_tried_without_a_mask() -> None:
    assert attempts(1)[0] == PLAIN
    assert attempts(4)[0] == Attempt(has_mask=True)


def test_unknown_input(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    monkeypatch.setattr(type(model), "main_input_name", "smells", raising=False)
    with pytest.raises(UnknownInputsError) as caught:
        make_inputs(model, PLAIN, batch=1, num_tokens=1)
    assert str(caught.value) == "the shape of its input smells is not known"


def test_unknown_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    monkeypatch.setattr(type(model), "main_input_name", "input_features", raising=False)
    with pytest.raises(UnknownInputsError) as caught:
        make_inputs(model, PLAIN, batch=1, num_tokens=1)
    assert str(caught.value) == "its config does not tell the shape of its input input_features"
