from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoints import tiny_llama

from bayplan.planner.model.source import SourceError, open_source
from bayplan.planner.options import PlanOptions
from bayplan.schemas.checkpoint_index import CheckpointError
from bayplan.schemas.errors import UsageError
from bayplan.schemas.safetensors_header import read_header
from bayplan.schemas.strict_json import sha256_digest

DEFAULT = PlanOptions()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("saved"), shards=2, dtype=torch.bfloat16)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "llama"))


def test_folder(folder: Path) -> None:
    source = open_source(str(folder), DEFAULT)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert (source.source, source.revision, source.factory) == (None, None, None)
    assert source.config_path == folder / "config.json"
    assert source.config_digest == sha256_digest((folder / "config.json").read_bytes())
    assert source.headers == {name: read_header(folder / name) for name in names}
    assert source.shards is not None
    assert [shard.file for shard in source.shards] == names
    assert [shard.content_sha256 for shard in source.shards] == [None, None]
    assert set((source.first_shard_dtypes() or {}).values()) == {"bf16"}


def test_header_digests_and_lengths_are_those_of_the_files(folder: Path) -> None:
    for shard in open_source(str(folder), DEFAULT).shards or ():
        header = read_header(folder / shard.file)
        assert (shard.num_bytes, shard.header_digest) == ((folder / shard.file).stat().st_size, header.digest)


def test_hashes_on_demand(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    source = open_source(
        str(folder),
        PlanOptions(hash_content=True),
        lambda stage, done, total: told.append((stage, done, total)),
    )
    assert source.shards is not None
    for shard in source.shards:
        assert shard.content_sha256 == hashlib.sha256((folder / shard.file).read_bytes()).hexdigest()
    total = sum(shard.num_bytes for shard in source.shards)
    assert told[-1] == ("hash", total, total)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_folder_of_a_config_alone(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        file.unlink()
    source = open_source(str(folder), DEFAULT)
    assert (source.shards, source.headers, source.first_shard_dtypes()) == (None, {}, None)
    assert source.config_digest is not None


def test_config_file(folder: Path) -> None:
    """The weights beside it are not looked at: the user named the config."""
    source = open_source(str(folder / "config.json"), DEFAULT)
    assert (source.config_path, source.shards) == (folder / "config.json", None)


def test_one_shard_file_as_the_model(folder: Path) -> None:
    save_file({"weight": torch.zeros(2)}, folder / "other.safetensors")
    source = open_source(str(folder / "other.safetensors"), DEFAULT)
    assert list(source.headers) == ["other.safetensors"]
    assert source.config_path == folder / "config.json"


def test_variant(folder: Path) -> None:
    save_file({"weight": torch.zeros(2)}, folder / "model.fp16.safetensors")
    assert list(open_source(str(folder), PlanOptions(variant="fp16")).headers) == ["model.fp16.safetensors"]


def test_factory() -> None:
    source = open_source("package.module:factory", DEFAULT)
    assert (source.source, source.factory) == ("package.module:factory", "package.module:factory")
    assert (source.config_path, source.config_digest, source.shards) == (None, None, None)


def test_factory_with_weights(folder: Path) -> None:
    source = open_source("package.module:factory", PlanOptions(checkpoint=str(folder)))
    assert source.shards == open_source(str(folder), DEFAULT).shards


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        open_source(f"{tmp_path}/nothing", DEFAULT)
    assert str(caught.value) == (
        f"{tmp_path}/nothing: no such model: "
        "needed a folder with config.json, a Hub id such as org/name, or package.module:factory"
    )


@pytest.mark.parametrize("name", ["./a/b", "a", "a/b/c", "a b/c", "org/name@", "a:b:c"])
def test_names_of_no_form(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"no such model|there is no config\.json"):
        open_source(name, DEFAULT)


def test_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(SourceError) as caught:
        open_source(str(folder), DEFAULT)
    assert str(caught.value) == (
        f"{folder}: there is no config.json: needed the config that belongs to the weights\n"
        "hint: the folder of one model is needed, not one that holds several"
    )


def test_checkpoint_beside_a_model_with_its_own(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        open_source(str(folder), PlanOptions(checkpoint="elsewhere"))
    assert str(caught.value) == (
        "--checkpoint: a checkpoint of its own can only be given for a factory: got elsewhere\n"
        "hint: name the folder that holds both config and weights as the model"
    )


def test_folder_of_other_weights(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="no safetensors checkpoint"):
        open_source(str(folder), DEFAULT)


def test_an_empty_name() -> None:
    with pytest.raises(UsageError) as caught:
        open_source("", DEFAULT)
    assert str(caught.value) == ("MODEL: an empty name is no model: needed a folder, a Hub id or a factory")


def test_index_and_shards_that_disagree(folder: Path) -> None:
    save_file({"stranger": torch.zeros(2)}, folder / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="places tensors in shards that do not hold them"):
        open_source(str(folder), DEFAULT)
