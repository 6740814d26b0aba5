"""The checkpoints that other tests start from are what they are said to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import corruptions
import pytest
import references
import safetensors
import safetensors.torch
import torch
from tiny_checkpoints import tiny_bert, tiny_llama
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

NORM = "model.norm.weight"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    shards = sorted(folder.glob("*.safetensors"))
    return {
        name: value for shard in shards for name, value in safetensors.torch.load(shard.read_bytes()).items()
    }


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "llama", shards=2)


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@pytest.mark.parametrize("tied", [False, True])
def test_tiny_llama(shards: int, tied: bool, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, tied=tied, shards=shards, dtype=torch.bfloat16, layers=3)
    assert len(list(folder.glob("*.safetensors"))) == shards
    assert (folder / corruptions.INDEX).exists() == (shards > 1)
    state = tensors(folder)
    assert ("lm_head.weight" in state) == (not tied)
    assert {value.dtype for value in state.values()} == {torch.bfloat16}
    assert sum(value.numel() for value in state.values()) == 3 * 9_280 + 32 + 2_048 * (1 if tied else 2)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("make", [tiny_llama, tiny_bert])
def test_tiny_checkpoints_are_the_same_bytes_every_time(make: Callable[..., Path], tmp_path: Path) -> None:
    first = contents(make(tmp_path / "1"))
    torch.manual_seed(1234)
    expected = torch.rand(1)
    torch.manual_seed(1234)
    assert contents(make(tmp_path / "2")) == first
    assert torch.rand(1) == expected, "leaves the random state alone"
    assert contents(make(tmp_path / "3", seed=1)) != first


@pytest.mark.parametrize(
    ("corrupt", "fault"),
    [
        (corruptions.truncate_shard, "incomplete metadata, file not fully covered"),
        (corruptions.lengthen_header, "header too large|invalid header length"),
        (lambda folder: corruptions.lie_about_shape(folder, NORM), "invalid shape, data type, or offset"),
    ],
)
def test_corruptions_that_the_library_refuses(
    corrupt: Callable[[Path], Path], fault: str, llama: Path, tmp_path: Path
) -> None:
    shard = corrupt(corruptions.copy_of(llama, tmp_path / "copy"))
    with (
        pytest.raises(safetensors.SafetensorError, match=f"(?i){fault}"),
        safetensors.safe_open(shard, "pt"),
    ):
        pytest.fail("opened")


def test_truncation_takes_the_last_bytes(llama: Path) -> None:
    before = contents(llama)
    shard = corruptions.truncate_shard(llama, num_bytes=7)
    assert shard.read_bytes() == before[shard.name][:-7]


def test_flip_header_byte(llama: Path) -> None:
    before, state = contents(llama), tensors(llama)
    shard = corruptions.flip_header_byte(llama)
    after = contents(llama)
    differing = [name for name in before if before[name] != after[name]]
    assert differing == [shard.name]
    assert sum(x != y for x, y in zip(before[shard.name], after[shard.name], strict=True)) == 1
    assert set(tensors(llama)) ^ set(state) == {"model.embed_tokens.weight", "model.embed_tokens.weighx"}


def test_flip_data_byte(llama: Path) -> None:
    before, state = contents(llama), tensors(llama)
    shard = corruptions.flip_data_byte(llama)
    assert sum(x != y for x, y in zip(before[shard.name], shard.read_bytes(), strict=True)) == 1
    changed = [name for name, value in tensors(llama).items() if not value.equal(state[name])]
    assert len(changed) == 1


def test_drop_tensor(llama: Path) -> None:
    state = tensors(llama)
    del state[NORM]
    corruptions.drop_tensor(llama, NORM)
    after = tensors(llama)
    assert set(after) == set(state)
    assert all(after[name].equal(state[name]) for name in state)
    assert NORM not in json.loads((llama / corruptions.INDEX).read_text())["weight_map"]


def test_add_tensor(llama: Path) -> None:
    state = tensors(llama)
    shard = corruptions.add_tensor(llama, "extra.weight", dtype="I64", shape=(2, 2))
    after = tensors(llama)
    assert after.pop("extra.weight").equal(torch.zeros(2, 2, dtype=torch.int64))
    assert all(after[name].equal(state[name]) for name in state)
    assert json.loads((llama / corruptions.INDEX).read_text())["weight_map"]["extra.weight"] == shard.name


def test_reshape_and_retype(llama: Path) -> None:
    state = tensors(llama)
    corruptions.reshape_tensor(llama, NORM, (4, 8))
    corruptions.retype_tensor(llama, "lm_head.weight", "I32")
    after = tensors(llama)
    assert after[NORM].equal(state[NORM].view(4, 8))
    assert after["lm_head.weight"].equal(state["lm_head.weight"].view(torch.int32))


def test_index_corruptions(llama: Path) -> None:
    corruptions.point_index_outside(llama, NORM)
    assert json.loads((llama / corruptions.INDEX).read_text())["weight_map"][NORM] == "../outside.safetensors"
    assert not corruptions.remove_shard(llama).exists()
    assert len(list(llama.glob("*.safetensors"))) == 1


def test_a_copy_shares_nothing(llama: Path, tmp_path: Path) -> None:
    before = contents(llama)
    copy = corruptions.copy_of(llama, tmp_path / "copy")
    assert contents(copy) == before
    corruptions.flip_data_byte(copy)
    assert contents(llama) == before


def continued(model: PreTrainedModel, folder: Path, text: references.Continuation) -> tuple[int, ...]:
    """Return the 20 tokens that greedy decoding adds to a prompt, whose own ids are checked."""
    encoded = AutoTokenizer.from_pretrained(folder)(text.prompt, return_tensors="pt")
    assert tuple(encoded["input_ids"][0].tolist()) == text.prompt_ids
    made = model.generate(**encoded, max_new_tokens=20, do_sample=False)
    return tuple(made[0, len(text.prompt_ids) :].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_smollm2_gives_the_reference_tokens(dtype: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(f"smollm2_{dtype}")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    assert model.num_parameters() == references.SMOLLM2_NUM_PARAMS
    assert len(model.model.layers) == references.SMOLLM2_NUM_LAYERS
    assert continued(model, folder, references.CAPITAL) == references.CAPITAL.token_ids
    if dtype == "fp32":  # bf16 is slow on most CPUs; one prompt is enough there
        assert continued(model, folder, references.ONCE) == references.ONCE.token_ids
    with torch.no_grad():
        logits = model(torch.tensor([references.CAPITAL.prompt_ids])).logits[0, -1]
    assert logits.argmax().item() == references.CAPITAL.token_ids[0]
    assert logits.max().item() == pytest.approx(references.SMOLLM2_CAPITAL_MAX_LOGIT[dtype], abs=2e-4)


@pytest.mark.slow
def test_the_shards_of_smollm2_hold_what_the_one_file_holds(
    smollm2_sharded: Path, smollm2_bf16: Path
) -> None:
    assert len(list(smollm2_sharded.glob("*.safetensors"))) == 5
    whole = safetensors.torch.load_file(smollm2_bf16 / "model.safetensors")
    with (smollm2_sharded / corruptions.INDEX).open() as index:
        weight_map = json.load(index)["weight_map"]
    assert set(weight_map) == set(whole)
    for name, shard in weight_map.items():
        with safetensors.safe_open(smollm2_sharded / shard, "pt") as opened:
            assert opened.get_tensor(name).equal(whole[name])


def test_minilm_gives_the_reference_embedding(minilm: Path) -> None:
    file = minilm / "model.safetensors"
    assert file.stat().st_size == references.MINILM_FILE_BYTES
    with safetensors.safe_open(file, "pt") as opened:
        assert references.MINILM_UNEXPECTED in list(opened.keys())
    model = AutoModel.from_pretrained(minilm)
    assert model.num_parameters() == references.MINILM_NUM_PARAMS
    encoded = AutoTokenizer.from_pretrained(minilm)(references.MINILM_SENTENCE, return_tensors="pt")
    with torch.no_grad():
        mean = model(**encoded).last_hidden_state[0].mean(0)
    start = (mean / mean.norm())[:5].tolist()
    assert start == pytest.approx(references.MINILM_EMBEDDING_START, abs=1e-5)
