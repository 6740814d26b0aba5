from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import BertForMaskedLM, BertModel, PreTrainedModel

from bayplan.skeleton.build import build_model
from bayplan.skeleton.checkpoint_names import (
    CheckpointNames,
    UnsupportedConversion,
    match_names,
    unlisted_parameters,
)
from bayplan.skeleton.config import choose_dtype, load_config
from bayplan.skeleton.tree import tie_groups

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Checkpoint

    Save = Callable[[str], type[PreTrainedModel]]

CONVERTED = {"deepseek_v3", "qwen3_moe"}
"""Architectures whose experts are stored one by one and held stacked."""


def built(folder: Path, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    config = load_config(folder)
    return build_model(config, model_class, choose_dtype(config))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_gives_the_state_of(reference: PreTrainedModel, names: CheckpointNames, folder: Path) -> None:
    """Every tensor of the loaded model is that of its source, or of one tied to it."""
    tensors, state = tensors_of(folder), reference.state_dict()
    seen = set(names.default_buffers) | set(names.missing)
    for target, (source,) in names.sources.items():
        assert torch.equal(state[target], tensors[source]), target
        seen.add(target)
    for group in tie_groups(reference):
        if seen & set(group):
            seen |= set(group)
    assert seen >= set(state)


def test_names_equal_those_of_from_pretrained(checkpoint: Checkpoint) -> None:
    model = built(checkpoint.folder, checkpoint.model_class)
    if checkpoint.name in CONVERTED:
        with pytest.raises(UnsupportedConversion, match="which this version does not do"):
            match_names(model, tensors_of(checkpoint.folder))
        return
    names = match_names(model, tensors_of(checkpoint.folder))
    assert (names.missing, names.unexpected, names.ignored, names.stored_ties) == ((), (), (), ())
    assert_gives_the_state_of(checkpoint.reference, names, checkpoint.folder)


def test_conversion(tmp_path: Path, save_checkpoint: Save) -> None:
    model_class = save_checkpoint("qwen3_moe")
    model = built(tmp_path, model_class)
    with pytest.raises(UnsupportedConversion) as caught:
        match_names(model, tensors_of(tmp_path))
    assert str(caught.value) == (
        "model.layers.0.mlp.experts.down_proj: Qwen3MoeForCausalLM: 4 tensors must be converted on loading,"
        " which this version does not do: got MergeModulelist(dim=0), needed tensors that are stored as the"
        " model holds them\nhint: saving the model with save_original_format=False stores them so"
    )
    assert caught.value.target == "model.layers.0.mlp.experts.down_proj"


@pytest.mark.parametrize("name", sorted(CONVERTED))
def test_names_of_the_models_own_need_no_conversion(name: str, tmp_path: Path, save_checkpoint: Save) -> None:
    model_class = save_checkpoint(name)
    loaded = model_class.from_pretrained(tmp_path)
    loaded.save_pretrained(tmp_path, save_original_format=False)
    names = match_names(built(tmp_path, model_class), tensors_of(tmp_path))
    assert (names.missing, names.unexpected) == ((), ())
    assert_gives_the_state_of(loaded, names, tmp_path)


def rewritten(folder: Path, rename: Callable[[str], str | None]) -> None:
    tensors = {rename(name): tensor for name, tensor in tensors_of(folder).items()}
    tensors.pop(None, None)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_layer_norms_of_old_checkpoints(tmp_path: Path, save_checkpoint: Save) -> None:
    save_checkpoint("bert")

    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    rewritten(tmp_path, old)
    names = match_names(built(tmp_path, BertForMaskedLM), tensors_of(tmp_path))
    target = "bert.embeddings.LayerNorm.weight"
    assert names.sources[target] == ("bert.embeddings.LayerNorm.gamma",)
    assert (names.missing, names.unexpected) == ((), ())
    assert_gives_the_state_of(BertForMaskedLM.from_pretrained(tmp_path), names, tmp_path)


@pytest.mark.parametrize(("saved", "loaded"), [(BertForMaskedLM, BertModel), (BertModel, BertForMaskedLM)])
def test_prefix_of_the_base_model(
    saved: type[PreTrainedModel], loaded: type[PreTrainedModel], tmp_path: Path, save_checkpoint: Save
) -> None:
    save_checkpoint("bert")
    saved.from_pretrained(tmp_path).save_pretrained(tmp_path)
    reference, info = loaded.from_pretrained(tmp_path, output_loading_info=True)
    names = match_names(built(tmp_path, loaded), tensors_of(tmp_path))
    assert set(names.missing) >= set(info["missing_keys"])
    assert {name.removeprefix("bert.") for name in names.unexpected} == {
        name.removeprefix("bert.") for name in info["unexpected_keys"]
    }
    assert_gives_the_state_of(reference, names, tmp_path)
    assert len(names.sources) > 20


def test_missing_and_unexpected(tmp_path: Path, save_checkpoint: Save) -> None:
    model_class = save_checkpoint("llama")
    rewritten(tmp_path, lambda name: {"model.norm.weight": "model.norms.weight"}.get(name, name))
    names = match_names(built(tmp_path, model_class), tensors_of(tmp_path))
    assert names.missing == ("model.norm.weight",)
    assert names.unexpected == ("model.norms.weight",)


def test_tied_name_needs_no_source_whichever_is_stored(tmp_path: Path, save_checkpoint: Save) -> None:
    model_class = save_checkpoint("qwen2")
    rewritten(tmp_path, lambda name: name.replace("model.embed_tokens", "lm_head"))
    names = match_names(built(tmp_path, model_class), tensors_of(tmp_path))
    assert (names.missing, names.unexpected, names.stored_ties) == ((), (), ())
    assert names.sources["lm_head.weight"] == ("lm_head.weight",)
    assert "model.embed_tokens.weight" not in names.sources


def test_tie_that_is_stored_twice(tmp_path: Path, save_checkpoint: Save) -> None:
    model_class = save_checkpoint("qwen2")
    names = match_names(built(tmp_path, model_class), [*tensors_of(tmp_path), "lm_head.weight"])
    assert names.stored_ties == (("lm_head.weight", "model.embed_tokens.weight"),)
    assert names.unexpected == ()


def test_tied_group_that_is_missing_altogether(tmp_path: Path, save_checkpoint: Save) -> None:
    model_class = save_checkpoint("qwen2")
    stored = set(tensors_of(tmp_path)) - {"model.embed_tokens.weight"}
    names = match_names(built(tmp_path, model_class), stored)
    assert names.missing == ("lm_head.weight", "model.embed_tokens.weight")


def test_buffers_of_old_checkpoints_are_ignored(tmp_path: Path, save_checkpoint: Save) -> None:
    model_class = save_checkpoint("llama")
    old = "model.layers.0.self_attn.rotary_emb.inv_freq"
    names = match_names(built(tmp_path, model_class), [*tensors_of(tmp_path), old])
    assert names.ignored == (old,)
    assert names.unexpected == ()


def test_second_source_of_one_target_is_ignored(tmp_path: Path, save_checkpoint: Save) -> None:
    save_checkpoint("bert")
    stored = [*tensors_of(tmp_path), "bert.embeddings.LayerNorm.gamma"]
    names = match_names(built(tmp_path, BertForMaskedLM), stored)
    assert names.ignored == ("bert.embeddings.LayerNorm.weight",)
    assert names.sources["bert.embeddings.LayerNorm.weight"] == ("bert.embeddings.LayerNorm.gamma",)


def test_other_modules_have_their_own_names() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    stored = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "2.weight"]
    names = match_names(module, stored)
    assert names.sources == {name: (name,) for name in sorted(stored[:5])}
    assert names.default_buffers == ("1.num_batches_tracked", "1.running_var")
    assert names.missing == ()
    assert names.unexpected == ("2.weight",)


def test_names_alone_cover_every_model(checkpoint: Checkpoint) -> None:
    """Experts that are converted on loading too."""
    model = built(checkpoint.folder, checkpoint.model_class)
    assert unlisted_parameters(model, tensors_of(checkpoint.folder)) == ()


def test_names_that_are_not_listed(tmp_path: Path, save_checkpoint: Save) -> None:
    model = built(tmp_path, save_checkpoint("qwen3_moe"))
    stored = [name for name in tensors_of(tmp_path) if not name.endswith("0.mlp.gate.weight")]
    assert unlisted_parameters(model, stored) == ("model.layers.0.mlp.gate.weight",)


def test_one_listed_name_of_a_tied_group_is_enough(tmp_path: Path, save_checkpoint: Save) -> None:
    model = built(tmp_path, save_checkpoint("gpt2"))
    stored = set(tensors_of(tmp_path)) - {"lm_head.weight"}
    assert unlisted_parameters(model, stored) == ()
    assert "lm_head.weight" in unlisted_parameters(model, ())
