from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bayplan.schemas.checkpoint_index import (
    MAX_INDEX_BYTES,
    CheckpointError,
    CheckpointRule,
    ShardIndex,
    check_index_against_headers,
    check_shard_name,
    read_index,
    resolve_shard,
)
from bayplan.schemas.safetensors_header import SafetensorsHeader, parse_header
from bayplan.schemas.strict_json import JsonError, JsonRule

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
NEVER_OPEN = "\nhint: do not use this checkpoint: an index has no reason to name other files"


def index_file(folder: Path, value: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(value))
    return path


def refused(folder: Path, value: object) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_index(index_file(folder, value))
    return caught.value


def index_of(weight_map: dict[str, str]) -> ShardIndex:
    return ShardIndex(file="i.json", weight_map=weight_map, metadata_total_bytes=None)


def header_of(*fqns: str) -> SafetensorsHeader:
    entries = {
        fqn: {"dtype": "I8", "shape": [1], "data_offsets": [place, place + 1]}
        for place, fqn in enumerate(fqns)
    }
    text = json.dumps(entries).encode()
    return parse_header(len(text).to_bytes(8, "little") + text, 8 + len(text) + len(fqns), "shard")


def test_read_index(tmp_path: Path) -> None:
    path = index_file(
        tmp_path, {"metadata": {"total_size": 12}, "weight_map": {"b": B, "a": A, "c": "sub/x.safetensors"}}
    )
    index = read_index(path)
    assert index == ShardIndex(
        file=str(path), weight_map={"b": B, "a": A, "c": "sub/x.safetensors"}, metadata_total_bytes=12
    )
    assert index.shard_names() == (A, B, "sub/x.safetensors")


@pytest.mark.parametrize(
    ("metadata", "total"), [(None, None), ({}, None), ({"total_size": 12.0}, 12), ({"total_size": 0}, 0)]
)
def test_total_size_is_optional(tmp_path: Path, metadata: object, total: int | None) -> None:
    assert (
        read_index(index_file(tmp_path, {"metadata": metadata, "weight_map": {"a": A}})).metadata_total_bytes
        == total
    )


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_index(tmp_path / "none.json")
    assert caught.value.rule is CheckpointRule.UNREADABLE
    assert str(caught.value) == f"{tmp_path}/none.json: cannot be read: got No such file or directory"


def test_unreadable_named_pipe(tmp_path: Path) -> None:
    """Opening one would wait for ever."""
    pipe = tmp_path / "i.json"
    os.mkfifo(pipe)
    with pytest.raises(CheckpointError) as caught:
        read_index(pipe)
    assert caught.value.rule is CheckpointRule.UNREADABLE
    assert str(caught.value) == f"{pipe}: not a regular file"


def test_not_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    path.write_text(f'{{"weight_map": {{"a": "{A}", "a": "{B}"}}}}')
    with pytest.raises(JsonError) as caught:
        read_index(path)
    assert caught.value.rule is JsonRule.DUPLICATE_KEY
    assert str(caught.value) == f'{path}: an object has the same key twice: got "a"'


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    with path.open("wb") as file:
        file.truncate(MAX_INDEX_BYTES + 5)
    with pytest.raises(JsonError) as caught:
        read_index(path)
    assert caught.value.rule is JsonRule.TOO_LARGE
    assert str(caught.value) == f"{path}: too large: got 100000001 bytes, needed at most 100000000"


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ([], "list"),
        ({}, "dict"),
        ({"weight_map": {}}, '"weight_map"'),
        ({"metadata": {}, "weights": {"a": A}}, '"metadata", "weights"'),
        ({"weight_map": [A]}, '"weight_map"'),
    ],
)
def test_index_form(tmp_path: Path, value: object, got: str) -> None:
    error = refused(tmp_path, value)
    assert error.rule is CheckpointRule.INDEX_FORM
    assert str(error) == (
        f"{tmp_path}/model.safetensors.index.json: no index: got {got}, "
        'needed an object "weight_map" of tensors'
    )


def test_index_form_of_a_shard_name(tmp_path: Path) -> None:
    error = refused(tmp_path, {"weight_map": {"a": [A]}})
    assert error.rule is CheckpointRule.INDEX_FORM
    assert str(error) == (
        f"{tmp_path}/model.safetensors.index.json: malformed weight_map: "
        'got list at tensor "a", needed a file name'
    )


@pytest.mark.parametrize("total", [-1, 1.5, "12", True, [1]])
def test_index_form_of_total_size(tmp_path: Path, total: object) -> None:
    error = refused(tmp_path, {"metadata": {"total_size": total}, "weight_map": {"a": A}})
    assert error.rule is CheckpointRule.INDEX_FORM
    assert str(error) == (
        f"{tmp_path}/model.safetensors.index.json: malformed metadata.total_size: "
        f'got "{total}", needed a whole number of bytes'
    )


@pytest.mark.parametrize(
    "name", [A, "a.b/c.safetensors", "..x.safetensors", "a..safetensors", "\u00e9.safetensors"]
)
def test_plain_shard_names(name: str) -> None:
    check_shard_name(name, where="i.json")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("/etc/x.safetensors", "absolute"),
        ("//host/x.safetensors", "absolute"),
        ("C:x.safetensors", "absolute"),
        ("c:\\x.safetensors", "absolute"),
        ("..\\x.safetensors", "with a backslash"),
        ("a\0.safetensors", "with a control character"),
        ("a\n.safetensors", "with a control character"),
        ("", 'with an empty part, "." or ".."'),
        ("../x.safetensors", 'with an empty part, "." or ".."'),
        ("a/../../x.safetensors", 'with an empty part, "." or ".."'),
        ("a/..", 'with an empty part, "." or ".."'),
        ("./x.safetensors", 'with an empty part, "." or ".."'),
        ("a//x.safetensors", 'with an empty part, "." or ".."'),
        ("a.safetensors/", 'with an empty part, "." or ".."'),
        ("pytorch_model-00001-of-00002.bin", "not ending in .safetensors"),
    ],
)
def test_shard_name(tmp_path: Path, name: str, fault: str) -> None:
    error = refused(tmp_path, {"weight_map": {"a": A, "b": name}})
    assert error.rule is CheckpointRule.SHARD_NAME
    path = tmp_path / "model.safetensors.index.json"
    assert str(error) == (
        f"{path}: names a shard that may not be opened: {fault}: got {json.dumps(name)}, "
        f"needed a safetensors file in the index's folder{NEVER_OPEN}"
    )


def test_resolve_shard(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in (A, f"sub/{B}"):
        (tmp_path / name).touch()
        assert resolve_shard(tmp_path, name, where="i.json") == tmp_path / name


def test_resolve_shard_checks_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / A).touch()
    with pytest.raises(CheckpointError) as caught:
        resolve_shard(folder, f"../{A}", where="i.json")
    assert caught.value.rule is CheckpointRule.SHARD_NAME


def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    """A snapshot holds links into a folder beside it; the names in the index are plain."""
    snapshot, blobs = tmp_path / "snapshots" / "main", tmp_path / "blobs"
    (snapshot / "sub").mkdir(parents=True)
    blobs.mkdir()
    (blobs / "0123").write_bytes(b"x")
    (snapshot / A).symlink_to("../../blobs/0123")
    (snapshot / "sub" / B).symlink_to("../../../blobs/0123")
    os.symlink(snapshot, tmp_path / "link")
    for name in (A, f"sub/{B}"):
        assert resolve_shard(tmp_path / "link", name, where="i.json").read_bytes() == b"x"


def test_outside_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "folder-2"
    folder.mkdir()
    outside.mkdir()
    (outside / A).touch()
    (folder / "sub").symlink_to(outside)
    with pytest.raises(CheckpointError) as caught:
        resolve_shard(folder, f"sub/{A}", where="i.json")
    assert caught.value.rule is CheckpointRule.OUTSIDE_FOLDER
    assert str(caught.value) == (
        f'i.json: names a shard outside its folder: got "sub/{A}", '
        "needed a safetensors file in the index's folder"
    )


def test_a_link_between_own_folders_is_inside(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / A).touch()
    (tmp_path / "sub").symlink_to("real")
    assert resolve_shard(tmp_path, f"sub/{A}", where="i.json").exists()


@pytest.mark.parametrize("make", ["nothing", "folder", "broken link"])
def test_shard_missing(tmp_path: Path, make: str) -> None:
    if make == "folder":
        (tmp_path / A).mkdir()
    elif make == "broken link":
        (tmp_path / A).symlink_to("gone")
    with pytest.raises(CheckpointError) as caught:
        resolve_shard(tmp_path, A, where="i.json")
    assert caught.value.rule is CheckpointRule.SHARD_MISSING
    assert str(caught.value) == (
        f'i.json: a shard is missing: got no file "{A}" in {tmp_path}, '
        "needed every shard that the index names\n"
        "hint: copy or download the checkpoint again"
    )


def test_index_that_matches_its_shards() -> None:
    check_index_against_headers(
        index_of({"a": A, "b": B, "c": A}), {A: header_of("c", "a"), B: header_of("b")}
    )


def test_tensor_missing() -> None:
    """A tensor in the wrong shard is missing from the one named."""
    with pytest.raises(CheckpointError) as caught:
        check_index_against_headers(
            index_of({"a": A, "b": B, "c": B}), {A: header_of("a", "b"), B: header_of("c")}
        )
    assert caught.value.rule is CheckpointRule.TENSOR_MISSING
    assert str(caught.value) == (
        f'i.json: places tensors in shards that do not hold them: got 1: "b" in "{B}", '
        "needed an index that matches its shards\n"
        "hint: index and shards are of different versions: copy or download the checkpoint again"
    )


def test_tensor_unlisted() -> None:
    listed = {"a": A}
    with pytest.raises(CheckpointError) as caught:
        check_index_against_headers(
            index_of(listed), {A: header_of("a", *(f"x{number}" for number in range(9)))}
        )
    assert caught.value.rule is CheckpointRule.TENSOR_UNLISTED
    shown = ", ".join(f'"x{number}" in "{A}"' for number in range(8))
    assert str(caught.value) == (
        f"i.json: does not list tensors that its shards hold: got 9: {shown}, ..., "
        "needed an index that matches its shards\n"
        "hint: index and shards are of different versions: copy or download the checkpoint again"
    )


def test_shard_that_the_system_does_not_look_for(tmp_path: Path) -> None:
    (tmp_path / A).symlink_to(A)
    long_name = f"{'x' * 5000}.safetensors"
    for name, shown, got in (
        (A, A, "Too many levels of symbolic links"),
        (long_name, f"{'x' * 100}...", "File name too long"),
    ):
        with pytest.raises(CheckpointError) as caught:
            resolve_shard(tmp_path, name, where="i.json")
        assert caught.value.rule is CheckpointRule.UNREADABLE
        assert str(caught.value) == f'i.json: "{shown}": cannot be read: got {got}'


def test_shard_in_a_folder_that_is_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "sub").symlink_to("sub")
    with pytest.raises(CheckpointError) as caught:
        resolve_shard(tmp_path, f"sub/{A}", where="i.json")
    assert str(caught.value) == f'i.json: "sub/{A}": cannot be read: got Too many levels of symbolic links'
