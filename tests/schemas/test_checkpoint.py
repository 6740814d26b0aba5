from __future__ import annotations

import json
from pathlib import Path

import pytest

from bayplan.schemas.checkpoint import LocalCheckpoint, TensorPlace, locate_tensors, open_folder, open_shards
from bayplan.schemas.checkpoint_index import CheckpointError, CheckpointRule
from bayplan.schemas.safetensors_header import read_header


def write_shard(path: Path, tensors: dict[str, int]) -> None:
    """Write a file of uint8 tensors of the given lengths."""
    header, begin = {}, 0
    for fqn, num_bytes in tensors.items():
        header[fqn] = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [begin, begin + num_bytes]}
        begin += num_bytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(begin))


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def places(checkpoint: LocalCheckpoint) -> dict[str, TensorPlace]:
    headers = {name: read_header(checkpoint.shard_path(name)) for name in checkpoint.shard_names}
    return locate_tensors(checkpoint, headers)


def test_folder_with_one_file(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": 3, "b": 2})
    (tmp_path / "config.json").write_text("{}")
    checkpoint = open_folder(str(tmp_path))
    assert checkpoint == LocalCheckpoint(
        folder=tmp_path,
        config_path=tmp_path / "config.json",
        shard_names=("model.safetensors",),
        index=None,
    )
    found = places(checkpoint)
    start = read_header(tmp_path / "model.safetensors").num_bytes
    assert {fqn: (place.file, place.file_offset, place.entry.num_bytes) for fqn, place in found.items()} == {
        "a": ("model.safetensors", start, 3),
        "b": ("model.safetensors", start + 3, 2),
    }


def test_folder_with_an_index_and_a_shard_in_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    write_shard(tmp_path / "part/two.safetensors", {"b": 2})
    write_shard(tmp_path / "one.safetensors", {"a": 1})
    write_index(tmp_path, {"a": "one.safetensors", "b": "part/two.safetensors"})
    checkpoint = open_folder(tmp_path)
    assert checkpoint.config_path is None
    assert checkpoint.shard_names == ("one.safetensors", "part/two.safetensors")
    assert checkpoint.shard_path("part/two.safetensors") == tmp_path / "part/two.safetensors"
    assert {fqn: place.file for fqn, place in places(checkpoint).items()} == {
        "a": "one.safetensors",
        "b": "part/two.safetensors",
    }


def test_file_named_itself(tmp_path: Path) -> None:
    write_shard(tmp_path / "any.safetensors", {"a": 1})
    checkpoint = open_folder(tmp_path / "any.safetensors")
    assert (checkpoint.folder, checkpoint.shard_names) == (tmp_path, ("any.safetensors",))


def test_variant_is_passed_on(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": 1})
    write_shard(tmp_path / "model.fp16.safetensors", {"a": 1})
    assert open_folder(tmp_path, variant="fp16").shard_names == ("model.fp16.safetensors",)


def test_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as raised:
        open_folder(tmp_path / "none")
    assert raised.value.rule is CheckpointRule.UNREADABLE


def shards(folder: Path, *names: str) -> tuple[str, ...]:
    return open_shards(folder, names).shard_names


def test_shards_by_name(tmp_path: Path) -> None:
    for name in ("model", "model.fp16", "consolidated.00", "consolidated.01"):
        write_shard(tmp_path / f"{name}.safetensors", {name: 1})
    (tmp_path / "model.safetensors.index.json").write_text("broken")
    (tmp_path / "config.json").write_text("{}")
    wanted = ("consolidated.00.safetensors", "consolidated.01.safetensors")
    for path in (tmp_path, str(tmp_path), tmp_path / wanted[1]):
        assert open_shards(path, wanted) == LocalCheckpoint(
            folder=tmp_path, config_path=tmp_path / "config.json", shard_names=wanted, index=None
        )


def test_shards_that_are_missing_leave_the_others_and_what_is_there_instead(tmp_path: Path) -> None:
    write_shard(tmp_path / "model-1.safetensors", {"a": 1})
    assert shards(tmp_path, "model-1.safetensors", "model-2.safetensors") == ("model-1.safetensors",)
    write_shard(tmp_path / "new.safetensors", {"b": 1})
    write_index(tmp_path, {"a": "model-1.safetensors", "b": "new.safetensors"})
    names = ("model-1.safetensors", "new.safetensors")
    assert shards(tmp_path, "model-1.safetensors", "model-2.safetensors") == names
    assert shards(tmp_path, "model.fp16.safetensors") == names
    (tmp_path / "model.safetensors.index.json").unlink()
    assert shards(tmp_path, "model.fp16.safetensors") == names


def test_other_file_than_the_shards_is_opened_as_it_is(tmp_path: Path) -> None:
    write_shard(tmp_path / "one.safetensors", {"a": 1})
    write_shard(tmp_path / "model.safetensors", {"a": 1})
    assert shards(tmp_path / "one.safetensors", "model.safetensors") == ("one.safetensors",)


def test_shards_in_a_folder_without_any(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as raised:
        open_shards(tmp_path, ("model.safetensors",))
    assert raised.value.rule is CheckpointRule.NO_CHECKPOINT
    with pytest.raises(CheckpointError) as raised:
        open_shards(tmp_path / "none", ("model.safetensors",))
    assert raised.value.rule is CheckpointRule.UNREADABLE


def test_shards_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    write_shard(tmp_path / "outside/x.safetensors", {"a": 1})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/part").symlink_to(tmp_path / "outside")
    for name, rule in (
        ("../outside/x.safetensors", CheckpointRule.SHARD_NAME),
        ("part/x.safetensors", CheckpointRule.OUTSIDE_FOLDER),
    ):
        with pytest.raises(CheckpointError) as raised:
            open_shards(tmp_path / "folder", (name,))
        assert raised.value.rule is rule


def test_index_that_does_not_match_its_shards(tmp_path: Path) -> None:
    write_shard(tmp_path / "one.safetensors", {"a": 1})
    write_index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors"})
    with pytest.raises(CheckpointError) as raised:
        places(open_folder(tmp_path))
    assert raised.value.rule is CheckpointRule.TENSOR_MISSING


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_shard(tmp_path / f"{name}.safetensors", {"a": 1})
    checkpoint = LocalCheckpoint(
        folder=tmp_path, config_path=None, shard_names=("one.safetensors", "two.safetensors"), index=None
    )
    with pytest.raises(CheckpointError) as raised:
        places(checkpoint)
    assert raised.value.rule is CheckpointRule.AMBIGUOUS
    assert str(raised.value) == (
        f"{tmp_path}: a tensor is in two shards: got a in one.safetensors and two.safetensors, "
        "needed every tensor once"
    )


def test_shard_by_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_shards(tmp_path, [f"{'x' * 5000}.safetensors"])
    assert str(caught.value) == f'{tmp_path}: "{"x" * 100}...": cannot be read: got File name too long'
