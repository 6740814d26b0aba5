from __future__ import annotations

import json
from pathlib import Path

import pytest

from bayplan.schemas.checkpoint_files import CheckpointFiles, find_checkpoint
from bayplan.schemas.checkpoint_index import CheckpointError, CheckpointRule, ShardIndex
from bayplan.schemas.strict_json import JsonError

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def fill(folder: Path, *names: str) -> Path:
    """Create empty files, and for each index one of two shards that lie beside it."""
    for name in names:
        if name.endswith(".json") and ".index" in name:
            (folder / name).write_text(json.dumps({"weight_map": {"b": B, "a": A, "c": B}}))
            (folder / A).touch()
            (folder / B).touch()
        else:
            (folder / name).touch()
    return folder


def names_of(folder: Path, variant: str | None = None) -> list[str]:
    files = find_checkpoint(folder, variant=variant)
    assert files.folder == folder
    return [shard.name for shard in files.shards] if files.index is None else [Path(files.index.file).name]


def refused(folder: Path, variant: str | None = None) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(folder, variant=variant)
    return caught.value


def test_a_single_file(tmp_path: Path) -> None:
    fill(tmp_path, "model.safetensors", "config.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    single = CheckpointFiles(folder=tmp_path, shards=(tmp_path / "model.safetensors",), index=None)
    assert find_checkpoint(tmp_path) == single


def test_an_index(tmp_path: Path) -> None:
    files = find_checkpoint(fill(tmp_path, INDEX))
    assert files == CheckpointFiles(
        folder=tmp_path,
        shards=(tmp_path / A, tmp_path / B),
        index=ShardIndex(
            file=str(tmp_path / INDEX), weight_map={"b": B, "a": A, "c": B}, metadata_total_bytes=None
        ),
    )


@pytest.mark.parametrize("name", ["any.safetensors", INDEX, "other.safetensors.index.fp16.json"])
def test_a_file_named_by_itself(tmp_path: Path, name: str) -> None:
    fill(tmp_path, name, "model.safetensors")
    files = find_checkpoint(tmp_path / name)
    assert files.folder == tmp_path
    assert [shard.name for shard in files.shards] == ([name] if name == "any.safetensors" else [A, B])


@pytest.mark.parametrize(
    ("present", "variant", "chosen"),
    [
        (["diffusion_pytorch_model.safetensors"], None, "diffusion_pytorch_model.safetensors"),
        (["model.safetensors", "model.fp16.safetensors"], None, "model.safetensors"),
        (["model.safetensors", "model.fp16.safetensors"], "fp16", "model.fp16.safetensors"),
        ([INDEX, "model.safetensors.index.fp16.json"], None, INDEX),
        ([INDEX, "model.safetensors.index.fp16.json"], "fp16", "model.safetensors.index.fp16.json"),
        ([INDEX, "model.fp16.safetensors.index.json"], "fp16", "model.fp16.safetensors.index.json"),
        (["model.safetensors", INDEX], None, "model.safetensors"),
        ([INDEX, "consolidated.safetensors.index.json"], None, INDEX),
        (["consolidated.safetensors.index.json"], None, "consolidated.safetensors.index.json"),
        (["model.safetensors", "model.fp16-00001-of-00002.safetensors"], None, "model.safetensors"),
    ],
)
def test_choice(tmp_path: Path, present: list[str], variant: str | None, chosen: str) -> None:
    assert names_of(fill(tmp_path, *present), variant) == [chosen]


def test_links_of_the_hub_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (tmp_path / "blob").touch()
    (snapshot / "model.safetensors").symlink_to("../../blob")
    assert names_of(snapshot) == ["model.safetensors"]
    assert find_checkpoint(snapshot / "model.safetensors").folder == snapshot


def test_unreadable(tmp_path: Path) -> None:
    error = refused(tmp_path / "none")
    assert error.rule is CheckpointRule.UNREADABLE
    assert str(error) == f"{tmp_path}/none: cannot be read: got No such file or directory"


@pytest.mark.parametrize(
    ("present", "got", "hint"),
    [
        ([], "an empty folder", "download the checkpoint's weights too"),
        (["config.json"], '"config.json"', "download the checkpoint's weights too"),
        (
            ["config.json", "pytorch_model.bin", "a.txt"],
            '"pytorch_model.bin", "a.txt", "config.json"',
            "only safetensors is read: load it with transformers and save it again with save_pretrained",
        ),
        (
            ["config.json", "vae.safetensors"],
            '"vae.safetensors", "config.json"',
            "name the file itself if it is a whole checkpoint",
        ),
        ([A, B], f'"{A}", "{B}"', "name the file itself if it is a whole checkpoint"),
        (
            [f"{number}.txt" for number in range(9)],
            ", ".join(f'"{number}.txt"' for number in range(8)) + ", ...",
            "download the checkpoint's weights too",
        ),
    ],
)
def test_no_checkpoint(tmp_path: Path, present: list[str], got: str, hint: str) -> None:
    error = refused(fill(tmp_path, *present))
    assert error.rule is CheckpointRule.NO_CHECKPOINT
    assert str(error) == (
        f"{tmp_path}: no safetensors checkpoint: got {got}, "
        f"needed model.safetensors or model.safetensors.index.json\nhint: {hint}"
    )


def test_no_checkpoint_in_a_file_of_another_kind(tmp_path: Path) -> None:
    error = refused(fill(tmp_path, "pytorch_model.bin") / "pytorch_model.bin")
    assert error.rule is CheckpointRule.NO_CHECKPOINT
    assert error.got == '"pytorch_model.bin"'


@pytest.mark.parametrize(
    ("present", "variant", "got", "needed"),
    [
        (["model.safetensors"], "fp16", '"fp16"', "none"),
        (["model.fp16.safetensors"], None, "none", '"fp16"'),
        (["model.fp16.safetensors", INDEX], "bf16", '"bf16"', 'none, "fp16"'),
    ],
)
def test_no_variant(tmp_path: Path, present: list[str], variant: str | None, got: str, needed: str) -> None:
    error = refused(fill(tmp_path, *present), variant)
    assert error.rule is CheckpointRule.NO_VARIANT
    assert str(error) == (
        f"{tmp_path}: no checkpoint of this variant: got variant {got}, needed one that is there: {needed}\n"
        "hint: choose with --variant"
    )


@pytest.mark.parametrize(
    ("present", "variant"),
    [
        (["diffusion_pytorch_model.safetensors", "model.safetensors"], None),
        (["diffusion_pytorch_model.safetensors.index.json", INDEX], None),
        (["a.safetensors.index.json", "b.safetensors.index.json"], None),
        (["model.fp16.safetensors.index.json", "model.safetensors.index.fp16.json"], "fp16"),
    ],
)
def test_ambiguous(tmp_path: Path, present: list[str], variant: str | None) -> None:
    error = refused(fill(tmp_path, *present), variant)
    assert error.rule is CheckpointRule.AMBIGUOUS
    assert str(error) == (
        f"{tmp_path}: several checkpoints in one folder: "
        f"got {', '.join(json.dumps(name) for name in present)}, needed one\n"
        "hint: name the file itself instead of its folder"
    )


def test_missing_shard(tmp_path: Path) -> None:
    (fill(tmp_path, INDEX) / B).unlink()
    error = refused(tmp_path)
    assert error.rule is CheckpointRule.SHARD_MISSING
    assert error.where == str(tmp_path / INDEX)
    assert error.got == f'no file "{B}" in {tmp_path}'


def test_index_that_names_a_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "../x.safetensors"}}')
    assert refused(tmp_path).rule is CheckpointRule.SHARD_NAME


def test_index_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("weights")
    with pytest.raises(JsonError) as caught:
        find_checkpoint(tmp_path)
    assert str(caught.value) == f"{tmp_path / INDEX}: not JSON: got 'Expecting value' at line 1 column 1"


def test_path_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 5000)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(path)
    assert str(caught.value) == f"{path}: cannot be read: got File name too long"
