"""The index of a sharded checkpoint: which file holds which tensor.

Owns `*.safetensors.index.json` and the rule that no name in it leads out of the checkpoint's folder. Reads
no shard: `check_index_against_headers` is given their headers. Which of several indexes counts is
`checkpoint_files`' part.
"""

from __future__ import annotations

import enum
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bayplan.schemas.errors import BayplanError, first_names
from bayplan.schemas.strict_json import JsonValue, parse, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bayplan.schemas.safetensors_header import SafetensorsHeader

MAX_INDEX_BYTES = 100_000_000
"""Largest index file; a model of 100 000 tensors has one of 10 MB."""
_DRIVE = re.compile(r"[A-Za-z]:.*", re.DOTALL)
SHOWN_NAMES = 8
"""Most names that one message lists."""


class CheckpointRule(enum.StrEnum):
    """Why a checkpoint's files or its index are refused. Stable strings."""

    UNREADABLE = "unreadable"
    INDEX_FORM = "index-form"
    SHARD_NAME = "shard-name"
    OUTSIDE_FOLDER = "outside-folder"
    SHARD_MISSING = "shard-missing"
    NO_CHECKPOINT = "no-checkpoint"
    NO_VARIANT = "no-variant"
    AMBIGUOUS = "ambiguous"
    TENSOR_MISSING = "tensor-missing"
    TENSOR_UNLISTED = "tensor-unlisted"


class CheckpointError(BayplanError):
    """A folder that is no usable checkpoint, or an index that does not tell the truth.

    Attributes:
        rule: The rule that is broken.
    """

    def __init__(
        self, rule: CheckpointRule, what: str, *, where: str, got: str = "", needed: str = "", hint: str = ""
    ) -> None:
        """Keep the rule beside the facts of `BayplanError`."""
        super().__init__(what, where=where, got=got, needed=needed, hint=hint)
        self.rule = rule


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """An index file; its shard names are checked as text, not yet looked for."""

    file: str
    """The index file as the caller named it."""
    weight_map: dict[str, str]
    """Name of the shard that holds each tensor, by the tensor's fqn."""
    metadata_total_bytes: int | None
    """`metadata.total_size` as the writer noted it; None where it did not. Never relied upon."""

    def shard_names(self) -> tuple[str, ...]:
        """Return each shard's name once, sorted."""
        return tuple(sorted(set(self.weight_map.values())))


def read_index(path: Path, *, suffix: str = ".safetensors") -> ShardIndex:
    """Return a checked index file.

    Args:
        path: The file.
        suffix: What the names of its shards end in.

    Raises:
        CheckpointError: UNREADABLE: missing, no regular file, or the system refuses.
        JsonError: Not strict JSON, or over `MAX_INDEX_BYTES`.
        CheckpointError: INDEX_FORM: no object with a `weight_map` from tensor to file, an empty one, or a
            `metadata.total_size` that is no whole number.
        CheckpointError: SHARD_NAME: a shard name that is no plain path below the index's folder.
    """
    where = str(path)
    try:
        # Looked at before it is opened: opening a named pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise CheckpointError(CheckpointRule.UNREADABLE, "not a regular file", where=where)
        with open(path, "rb") as file:
            data = file.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        raise unreadable(where, error) from error
    value = parse(data, where=where, max_bytes=MAX_INDEX_BYTES)
    members = value if isinstance(value, dict) else {}
    listed = members.get("weight_map")
    if not isinstance(listed, dict) or not listed:
        got = ", ".join(quote(key) for key in list(members)[:SHOWN_NAMES]) or type(value).__name__
        raise CheckpointError(
            CheckpointRule.INDEX_FORM,
            "no index",
            where=where,
            got=got,
            needed='an object "weight_map" of tensors',
        )
    weight_map = {fqn: _as_text(fqn, shard, where) for fqn, shard in listed.items()}
    for shard in dict.fromkeys(weight_map.values()):  # few, beside the tensors
        check_shard_name(shard, where=where, suffix=suffix)
    return ShardIndex(
        file=where, weight_map=weight_map, metadata_total_bytes=_total_bytes(members.get("metadata"), where)
    )


def _as_text(fqn: str, value: JsonValue, where: str) -> str:
    if not isinstance(value, str):
        raise CheckpointError(
            CheckpointRule.INDEX_FORM,
            "malformed weight_map",
            where=where,
            got=f"{type(value).__name__} at tensor {quote(fqn)}",
            needed="a file name",
        )
    return value


def _total_bytes(metadata: JsonValue, where: str) -> int | None:
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is None:
        return None
    # Some writers divide or sum in floats; a whole one says the same.
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if type(total) is not int or total < 0:
        raise CheckpointError(
            CheckpointRule.INDEX_FORM,
            "malformed metadata.total_size",
            where=where,
            got=quote(str(total)),
            needed="a whole number of bytes",
        )
    return total


def check_shard_name(name: str, *, where: str, suffix: str = ".safetensors") -> None:
    """Check that `name` is a plain path of a shard below whatever folder it is joined to.

    Args:
        name: A shard's name as an index gives it: relative, `/` between folders.
        where: The index file, for the message.
        suffix: What it must end in; an index of another format is read for its names alone.

    Raises:
        CheckpointError: SHARD_NAME: absolute, with a drive letter, backslash, control character, empty
            part, `.` or `..`, or not ending in `suffix`.
    """
    fault = None
    if name.startswith("/") or _DRIVE.fullmatch(name):
        fault = "absolute"
    elif "\\" in name:
        fault = "with a backslash"
    elif any(char < " " or char == "\x7f" for char in name):
        fault = "with a control character"
    elif any(part in ("", ".", "..") for part in name.split("/")):
        fault = 'with an empty part, "." or ".."'
    elif not name.endswith(suffix):
        fault = f"not ending in {suffix}"
    if fault is not None:
        raise CheckpointError(
            CheckpointRule.SHARD_NAME,
            f"names a shard that may not be opened: {fault}",
            where=where,
            got=quote(name),
            needed=f"a {suffix.removeprefix('.')} file in the index's folder",
            hint="do not use this checkpoint: an index has no reason to name other files",
        )


def resolve_shard(folder: Path, name: str, *, where: str) -> Path:
    """Return the path of shard `name` in `folder`.

    The shard may be a symbolic link, as in the Hub's cache; the folders on the way to it may not lead out.

    Args:
        folder: The checkpoint's folder.
        name: As in `check_shard_name`.
        where: The index file, for the message.

    Returns:
        A path to an existing file, links not resolved.

    Raises:
        CheckpointError: SHARD_NAME: as `check_shard_name`.
        CheckpointError: OUTSIDE_FOLDER: a folder on the way is a link that leads out of `folder`.
        CheckpointError: SHARD_MISSING: no such file.
        CheckpointError: UNREADABLE: the system refuses to look for it.
    """
    check_shard_name(name, where=where)
    path = folder / name
    # Not `Path.resolve`, which has an error of its own for links in a circle.
    parent, root = Path(os.path.realpath(path.parent)), Path(os.path.realpath(folder))
    if not parent.is_relative_to(root):
        raise CheckpointError(
            CheckpointRule.OUTSIDE_FOLDER,
            "names a shard outside its folder",
            where=where,
            got=quote(name),
            needed="a safetensors file in the index's folder",
        )
    if not is_file(path, where=f"{where}: {quote(name)}"):
        raise CheckpointError(
            CheckpointRule.SHARD_MISSING,
            "a shard is missing",
            where=where,
            got=f"no file {quote(name)} in {folder}",
            needed="every shard that the index names",
            hint="copy or download the checkpoint again",
        )
    return path


def check_index_against_headers(index: ShardIndex, headers: Mapping[str, SafetensorsHeader]) -> None:
    """Check that an index and the shards that it names agree about every tensor.

    Args:
        index: A checked index.
        headers: By shard name, one for each of `index.shard_names()`.

    Raises:
        CheckpointError: TENSOR_MISSING: the index places a tensor in a shard that does not hold it.
        CheckpointError: TENSOR_UNLISTED: a shard holds a tensor that the index does not place there.
    """
    listed = {(shard, fqn) for fqn, shard in index.weight_map.items()}
    held = {(shard, entry.fqn) for shard in index.shard_names() for entry in headers[shard].tensors}
    for rule, what, places in (
        (CheckpointRule.TENSOR_MISSING, "places tensors in shards that do not hold them", listed - held),
        (CheckpointRule.TENSOR_UNLISTED, "does not list tensors that its shards hold", held - listed),
    ):
        if places:
            shown = [f"{quote(fqn)} in {quote(shard)}" for shard, fqn in sorted(places)]
            raise CheckpointError(
                rule,
                what,
                where=index.file,
                got=f"{len(places)}: {first_names(shown, SHOWN_NAMES)}",
                needed="an index that matches its shards",
                hint="index and shards are of different versions: copy or download the checkpoint again",
            )


def is_file(path: Path, *, where: str) -> bool:
    """Return whether there is a file at `path`, links followed.

    Args:
        path: Of any length.
        where: What to call it in the message.

    Raises:
        CheckpointError: UNREADABLE: the system refuses to look: a name that is too long, links in a circle.
    """
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(where, error) from error


def unreadable(where: str, error: OSError) -> CheckpointError:
    """Return the error for a file or folder that the system does not let us read."""
    return CheckpointError(
        CheckpointRule.UNREADABLE, "cannot be read", where=where, got=error.strerror or str(error)
    )
