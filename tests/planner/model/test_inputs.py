from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import build

from bayplan.planner.model.inputs import Attempt, UnknownInputsError, attempts, make_inputs
from bayplan.planner.model.modalities import layouts, modalities

PLAIN = Attempt(has_mask=False)


def shapes(inputs: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Their shapes; integers have values, all else is on meta."""
    assert all(tensor.is_meta is tensor.is_floating_point() for tensor in inputs.values())
    return {name: tuple(tensor.shape) for name, tensor in inputs.items()}


def test_text() -> None:
    assert shapes(make_inputs(build("llama"), PLAIN, batch=2, num_tokens=5)) == {"input_ids": (2, 5)}


def test_ids_are_none_of_those_that_a_config_names() -> None:
    """Whatever else has a token in its name."""
    model = build("llama", bos_token_id=0, eos_token_id=[1, 3], pad_token_id=2)
    model.config.token_names = {"0": "a"}
    model.config.tokens_per_group = [[4], None, 4]
    inputs = make_inputs(model, PLAIN, batch=1, num_tokens=2)
    assert inputs["input_ids"].tolist() == [[5, 5]]


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


def test_images_beside_text() -> None:
    model = build("clip")
    (image,) = modalities(model)
    first = next(layouts(model, image, 2))
    inputs = make_inputs(model, Attempt(has_mask=False, layout=first), batch=2, num_tokens=5)
    assert shapes(inputs) == {"input_ids": (2, 5), "pixel_values": (2, 3, 16, 16)}


def test_ways_to_call_a_model() -> None:
    """As `generate()` would first, then what more models accept."""
    masks = [Attempt(has_mask=False), Attempt(has_mask=True)]
    assert list(attempts(build("llama"), 1)) == masks
    assert list(attempts(build("llama"), 4)) == masks[::-1]
    with_images = list(attempts(build("clip"), 1))
    assert with_images[:2] == masks
    assert [attempt.layout.shape for attempt in with_images[2:] if attempt.layout is not None] == [
        (1, 3, 16, 16),
        (1, 1, 3, 16, 16),
        (1, 1, 1, 3, 16, 16),
    ]


def test_ids_are_those_of_ordinary_words() -> None:
    """Padding, begin and end are 0, 1 and 2 here; classifiers look for the end of an encoder's text."""
    assert make_inputs(build("llama"), PLAIN, batch=1, num_tokens=3)["input_ids"].tolist() == [[3, 3, 3]]
    inputs = make_inputs(build("bart"), PLAIN, batch=1, num_tokens=2, encoder_context=3)
    assert inputs["input_ids"].tolist() == [[3, 3, 2]]


def test_prompts_of_unequal_length_are_padded_on_the_left() -> None:
    inputs = make_inputs(build("llama"), Attempt(has_mask=True), batch=2, num_tokens=3)
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [0, 1, 1]]


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
