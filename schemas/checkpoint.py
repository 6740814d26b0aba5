"""A checkpoint's folder as planner and executor see it: its config, its shards by name, its index.

Opening reads no shard: the bytes of the headers are compared with the plan's before anything in them is
believed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bayplan.schemas.checkpoint_files import find_checkpoint
from bayplan.schemas.checkpoint_index import (
    CheckpointError,
    CheckpointRule,
    ShardIndex,
    check_index_against_headers,
    check_shard_name,
    is_file,
    resolve_shard,
)
from bayplan.schemas.safetensors_header import SafetensorsHeader, TensorEntry
from bayplan.schemas.strict_json import JsonError, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG_NAME = "config.json"


class LocalCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one checkpoint in a folder, every shard there, none read."""

    folder: Path
    config_path: Path | None
    """None where the folder has no `config.json`."""
    shard_names: tuple[str, ...]
    """At least one; relative to the folder with `/` between folders, sorted."""
    index: ShardIndex | None
    """None where the checkpoint is a single file, or its shards were asked for by name."""

    def shard_path(self, name: str) -> Path:
        """Return where shard `name` of this checkpoint is."""
        return self.folder / name


class TensorPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a checkpoint and where its bytes are."""

    file: str
    """Name of the shard."""
    file_offset: int
    """First byte, counted from the start of the file."""
    entry: TensorEntry


def open_folder(path: Path | str, *, variant: str | None = None) -> LocalCheckpoint:
    """Return the checkpoint at `path`.

    Args:
        path: The folder, or one file in it that says which checkpoint is meant: a shard that is a whole
            checkpoint, or an index.
        variant: The middle of the file names, such as `fp16`; None: names without one.

    Returns:
        The checkpoint; its shards exist and are not opened.

    Raises:
        CheckpointError: As `find_checkpoint`.
        JsonError: As `find_checkpoint`: the index is no strict JSON.
    """
    files = find_checkpoint(Path(path), variant=variant)
    return LocalCheckpoint(
        folder=files.folder,
        config_path=_config_in(files.folder),
        shard_names=tuple(shard.relative_to(files.folder).as_posix() for shard in files.shards),
        index=files.index,
    )


def open_shards(path: Path | str, shard_names: Sequence[str]) -> LocalCheckpoint:
    """Return the checkpoint at `path` that has these shards, however its files are called otherwise.

    For a reader that knows its shards by name and by the bytes of their headers: it needs no index, and may
    find other checkpoints beside its own.

    Args:
        path: The folder, or one of its files as for `open_folder`.
        shard_names: At least one, relative to the folder.

    Returns:
        With exactly these shards where all are there. Else those of them that are there, beside what the
        folder holds in their place, so that the caller can name the differences.

    Raises:
        CheckpointError: SHARD_NAME, OUTSIDE_FOLDER, UNREADABLE: as `resolve_shard`.
        CheckpointError, JsonError: As `open_folder`, where nothing of safetensors is there, or `path` is a
            file that is none of the shards.
    """
    folder = Path(path)
    if is_file(folder, where=str(path)):
        if folder.name not in shard_names:
            return open_folder(folder)
        folder = folder.parent
    for name in shard_names:
        check_shard_name(name, where=str(folder))
    there = {name for name in shard_names if is_file(folder / name, where=f"{folder}: {quote(name)}")}
    for name in there:
        resolve_shard(folder, name, where=str(folder))
    if len(there) < len(shard_names):
        try:
            there |= set(open_folder(folder).shard_names)
        except (CheckpointError, JsonError):
            there |= {file.name for file in folder.glob("*.safetensors")}
            if not there:
                raise
    return LocalCheckpoint(
        folder=folder, config_path=_config_in(folder), shard_names=tuple(sorted(there)), index=None
    )


def _config_in(folder: Path) -> Path | None:
    path = folder / CONFIG_NAME
    return path if path.is_file() else None


def locate_tensors(
    checkpoint: LocalCheckpoint, headers: Mapping[str, SafetensorsHeader]
) -> dict[str, TensorPlace]:
    """Return every tensor of the checkpoint by name.

    Args:
        checkpoint: An opened checkpoint.
        headers: By shard name, one for each of `checkpoint.shard_names`.

    Returns:
        Places in the order of shards and bytes.

    Raises:
        CheckpointError: TENSOR_MISSING, TENSOR_UNLISTED: index and shards disagree.
        CheckpointError: AMBIGUOUS: a tensor is in two shards; only where there is no index to say so.
    """
    if checkpoint.index is not None:
        check_index_against_headers(checkpoint.index, headers)
    places: dict[str, TensorPlace] = {}
    for name in checkpoint.shard_names:
        header = headers[name]
        for entry in header.tensors:
            if entry.fqn in places:
                raise CheckpointError(
                    CheckpointRule.AMBIGUOUS,
                    "a tensor is in two shards",
                    where=str(checkpoint.folder),
                    got=f"{entry.fqn} in {places[entry.fqn].file} and {name}",
                    needed="every tensor once",
                )
            places[entry.fqn] = TensorPlace(file=name, file_offset=header.file_offset(entry), entry=entry)
    return places
