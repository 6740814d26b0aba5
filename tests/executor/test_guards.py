from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_models import LAYERS, TOKENS
from plan_maker import make_plan

from bayplan.executor.errors import StreamedWeightsError
from bayplan.executor.load import load_model, loaded, release

FIRST = LAYERS[1]


@pytest.fixture
def streamed(llama: Path) -> Any:
    with loaded(make_plan(llama, stream=LAYERS[1:4]), llama) as model:
        yield model


SHARE_HINT = "load the plan again in each process, or plan with more memory"
CAST_HINT = "choose the data type with bayplan plan --format, or plan with more memory"
CHANGE_HINT = "change the checkpoint and plan again from it"
OTHER = torch.nn.Embedding(128, 64)
SECOND_HINT = "load the plan again for a second model"


def take_address(tensor: torch.Tensor) -> torch.Tensor:
    """Change where a tensor is and return the same object, as `share_memory_` does."""
    tensor.data = tensor.data.clone()
    return tensor


@pytest.mark.parametrize(
    ("attempt", "operation", "hint"),
    [
        (lambda model: model.half(), "moving or casting", CAST_HINT),
        (lambda model: model.double(), "moving or casting", CAST_HINT),
        (lambda model: model.to(torch.bfloat16), "moving or casting", CAST_HINT),
        (lambda model: model.to("meta"), "moving or casting", CAST_HINT),
        (lambda model: model.to_empty(device="cpu"), "moving or casting", CAST_HINT),
        (lambda model: model.model.layers.half(), "moving or casting", CAST_HINT),
        (lambda model: model.model.layers[1].half(), "moving or casting", CAST_HINT),
        (lambda model: model.model.layers[1].mlp.up_proj.half(), "moving or casting", CAST_HINT),
        (lambda model: model._apply(lambda tensor: tensor.share_memory_()), "moving or casting", CAST_HINT),
        (lambda model: model.model._apply(take_address), "moving or casting", CAST_HINT),
        (lambda model: model.share_memory(), "share_memory()", SHARE_HINT),
        (lambda model: model.model.layers.share_memory(), "share_memory()", SHARE_HINT),
        (lambda model: model.model.layers[1].mlp.share_memory(), "share_memory()", SHARE_HINT),
        (
            lambda model: model.model.layers[1].mlp.state_dict(),
            "state_dict()",
            "the weights are in the checkpoint: copy its files",
        ),
        (
            lambda model: model.model.layers[1].mlp.up_proj.load_state_dict({}, strict=False),
            "load_state_dict()",
            "change the checkpoint and plan again from it",
        ),
        (lambda model: copy.deepcopy(model.model.layers[1].mlp), "deepcopy()", SECOND_HINT),
        (lambda model: pickle.dumps(model.model.layers[1].mlp.up_proj), "pickle", SECOND_HINT),
        (
            lambda model: model.state_dict(),
            "state_dict()",
            "the weights are in the checkpoint: copy its files",
        ),
        (
            lambda model: model.model.layers[1].state_dict(),
            "state_dict()",
            "the weights are in the checkpoint: copy its files",
        ),
        (
            lambda model: model.load_state_dict({}, strict=False),
            "load_state_dict()",
            "change the checkpoint and plan again from it",
        ),
        (lambda model: model.resize_token_embeddings(200), "resize_token_embeddings()", CHANGE_HINT),
        (lambda model: model.model.resize_token_embeddings(200), "resize_token_embeddings()", CHANGE_HINT),
        (lambda model: model.set_input_embeddings(OTHER), "set_input_embeddings()", CHANGE_HINT),
        (lambda model: model.model.set_input_embeddings(OTHER), "set_input_embeddings()", CHANGE_HINT),
        (lambda model: model.set_output_embeddings(OTHER), "set_output_embeddings()", CHANGE_HINT),
        (copy.deepcopy, "deepcopy()", SECOND_HINT),
        (lambda model: copy.deepcopy(model.model.layers[1]), "deepcopy()", SECOND_HINT),
        (lambda model: copy.deepcopy(model.model.layers), "deepcopy()", SECOND_HINT),
        (pickle.dumps, "pickle", SECOND_HINT),
        (lambda model: pickle.dumps(model.model.layers[1]), "pickle", SECOND_HINT),
        (lambda model: torch.save(model, io.BytesIO()), "pickle", SECOND_HINT),
    ],
)
def test_what_would_take_one_block_for_all(
    streamed: Any, attempt: Callable[[Any], object], operation: str, hint: str
) -> None:
    with torch.no_grad():
        expected = streamed(TOKENS).logits
    with pytest.raises(StreamedWeightsError) as raised:
        attempt(streamed)
    assert str(raised.value) == (
        f"{FIRST}: {operation} does not work on a model with streamed blocks: "
        "got weights that share a slot with those of other blocks, needed weights that are all in memory\n"
        f"hint: {hint}"
    )
    assert raised.value.operation == operation
    assert {param.dtype for param in streamed.parameters()} == {torch.float32}
    with torch.no_grad():
        assert torch.equal(streamed(TOKENS).logits, expected)


def test_saving_is_refused_before_a_file_is_written(streamed: Any, tmp_path: Path) -> None:
    with pytest.raises(StreamedWeightsError, match=r"state_dict\(\) does not work"):
        streamed.save_pretrained(tmp_path / "copy")
    assert list(tmp_path.rglob("*.safetensors")) == []


def test_what_changes_nothing_works(streamed: Any) -> None:
    parameters = [id(param) for param in streamed.parameters()]
    assert streamed.to("cpu") is streamed
    assert streamed.float() is streamed
    assert streamed.cpu() is streamed
    assert streamed.eval() is streamed
    assert [id(param) for param in streamed.parameters()] == parameters


def test_resident_parts_can_be_read(streamed: Any) -> None:
    assert streamed.model.layers[0].state_dict().keys() >= {"mlp.up_proj.weight"}
    assert copy.deepcopy(streamed.model.norm).weight.shape == (64,)


def test_guards_go_with_the_model(llama: Path) -> None:
    model = load_model(make_plan(llama, stream=LAYERS), llama)
    release(model)
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert copy.deepcopy(model.model.layers[1]).mlp.up_proj.weight.is_meta
    assert copy.deepcopy(model.model.layers[1].mlp).up_proj.weight.is_meta
    assert model.model.layers[1].mlp.state_dict().keys() >= {"up_proj.weight"}
    model.set_input_embeddings(OTHER)
    assert model.model.embed_tokens is OTHER
