from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoints import tiny_llama

from bayplan.planner.model.library import Library
from bayplan.planner.model.source import SourceError, open_source
from bayplan.planner.options import PlanOptions
from bayplan.schemas.checkpoint_index import CheckpointError, CheckpointRule
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


@pytest.mark.parametrize("name", ["./a/b", "a b", "a b/c", "org/name@", "org/name/", "a:b:c"])
def test_names_of_no_form(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"no such model|there is no config\.json"):
        open_source(name, DEFAULT)


def test_a_name_too_long_for_a_path() -> None:
    with pytest.raises(SourceError) as caught:
        open_source("a" * 5000, DEFAULT)
    assert caught.value.what == "no such model"


def test_a_path_that_the_system_refuses_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(SourceError) as caught:
        open_source("kept/secret", DEFAULT)
    assert str(caught.value) == "kept/secret: cannot be read: got Permission denied"


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


def test_a_bare_name_may_be_of_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as caught:
        open_source("resnet50.a1_in1k", DEFAULT)
    assert str(caught.value) == (
        "resnet50.a1_in1k: no such model: "
        "needed a folder with config.json, a Hub id such as org/name, or package.module:factory\n"
        "hint: --library timm takes a name of timm's own"
    )


def test_a_name_of_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = open_source("resnet50.a1_in1k", PlanOptions(library="timm"))
    assert (source.library, source.library_name, source.source) == (
        Library.TIMM,
        "resnet50.a1_in1k",
        "resnet50.a1_in1k",
    )
    assert (source.config_path, source.config_digest, source.shards, source.warnings) == (
        None,
        None,
        None,
        (),
    )


def test_unknown_library(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        open_source(str(folder), PlanOptions(library="keras"))
    assert str(caught.value) == (
        '--library: unknown library: got "keras", needed one of transformers, timm, diffusers'
    )


@pytest.mark.parametrize(
    ("config", "library"),
    [
        ({"architecture": "resnet50", "pretrained_cfg": {}}, Library.TIMM),
        ({"architecture": "resnet50", "num_classes": 10, "input_size": [3, 9, 9]}, Library.TIMM),
        ({"_class_name": "AutoencoderKL"}, Library.DIFFUSERS),
        (
            {"model_type": "timm_wrapper", "architecture": "resnet50", "pretrained_cfg": {}},
            Library.TRANSFORMERS,
        ),
        ({}, Library.TRANSFORMERS),
        ([], Library.TRANSFORMERS),
    ],
)
def test_the_config_tells_the_library(config: object, library: Library, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_source(str(tmp_path), DEFAULT).library is library
    assert open_source(str(tmp_path), PlanOptions(library="timm")).library is Library.TIMM


@pytest.mark.parametrize("data", [b"\xff", b"{", b"[" * 1000])
def test_what_is_no_config_is_left_to_its_reader(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(data)
    assert open_source(str(tmp_path), DEFAULT).library is Library.TRANSFORMERS


def test_a_pipeline(tmp_path: Path) -> None:
    for name in (
        "unet/config.json",
        "vae/config.json",
        "scheduler/scheduler_config.json",
        "model_index.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(SourceError) as caught:
        open_source(str(tmp_path), DEFAULT)
    assert str(caught.value) == (
        f"{tmp_path}: a pipeline of several models: got model_index.json, "
        f"needed one of its models: {tmp_path}/unet, {tmp_path}/vae\n"
        "hint: each model of a pipeline has a plan of its own"
    )


def test_folder_of_other_weights(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        file.unlink()
    for number in range(4):
        (folder / f"pytorch_model-{number}.bin").write_bytes(b"x")
    source = open_source(str(folder), DEFAULT)
    assert (source.shards, source.headers) == (None, {})
    assert source.warnings == (
        f"{folder}: planned from the config alone: only safetensors is read, and there is"
        ' "pytorch_model-0.bin", "pytorch_model-1.bin", "pytorch_model-2.bin" and 1 more',
    )


def test_a_variant_of_other_weights(folder: Path) -> None:
    """Who asks for one checkpoint does not get a plan for none."""
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError) as caught:
        open_source(str(folder), PlanOptions(variant="fp16"))
    assert caught.value.rule is CheckpointRule.NO_CHECKPOINT


def test_an_index_without_any_shard(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()
    source = open_source(str(folder), DEFAULT)
    assert (source.shards, source.headers, source.warnings) == (None, {}, ())
    assert source.listing is not None
    assert source.listing.file == f"{folder}/model.safetensors.index.json"
    assert source.listing.metadata_total_bytes is not None
    assert "lm_head.weight" in source.listing.weight_map


def test_an_index_of_another_format(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        file.unlink()
    index = {"metadata": {"total_size": 8}, "weight_map": {"a": "pytorch_model-00001-of-00002.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    source = open_source(str(folder), DEFAULT)
    assert source.shards is None
    assert source.listing is not None
    assert source.listing.weight_map == index["weight_map"]


def test_a_header_alone_is_no_shard(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        file.unlink()
    (folder / "model.safetensors.header.json").write_text("{}")
    assert open_source(str(folder), DEFAULT).shards is None


@pytest.mark.parametrize("is_link", [False, True])
def test_one_shard_missing(folder: Path, is_link: bool) -> None:
    """A link that leads nowhere, as in a cache without its blobs, is a shard that is missing."""
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    (folder / names[0]).unlink()
    if is_link:
        (folder / names[0]).symlink_to("../blobs/nothing")
        (folder / names[1]).unlink()
    with pytest.raises(CheckpointError) as caught:
        open_source(str(folder), DEFAULT)
    assert str(caught.value) == (
        f'{folder}/model.safetensors.index.json: a shard is missing: got no file "{names[0]}" in {folder}, '
        "needed every shard that the index names\nhint: copy or download the checkpoint again"
    )


def test_an_empty_name() -> None:
    with pytest.raises(UsageError) as caught:
        open_source("", DEFAULT)
    assert str(caught.value) == ("MODEL: an empty name is no model: needed a folder, a Hub id or a factory")


def test_index_and_shards_that_disagree(folder: Path) -> None:
    save_file({"stranger": torch.zeros(2)}, folder / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="places tensors in shards that do not hold them"):
        open_source(str(folder), DEFAULT)
