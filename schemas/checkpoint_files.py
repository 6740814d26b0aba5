"""Which files in a folder make the checkpoint.

Owns the names under which transformers and diffusers save, their variants, and the choice between several
checkpoints in one folder: the one that `from_pretrained` takes, or an error where nothing says which. Reads
the index, no shard.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bayplan.schemas.checkpoint_index import (
    SHOWN_NAMES,
    CheckpointError,
    CheckpointRule,
    ShardIndex,
    is_file,
    read_index,
    resolve_shard,
    unreadable,
)
from bayplan.schemas.errors import first_names
from bayplan.schemas.strict_json import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

STEMS = ("model", "diffusion_pytorch_model")
"""File names before `.safetensors` under which transformers and diffusers save."""

_VARIANT = r"[A-Za-z0-9_]+"
_SINGLE = re.compile(rf"(?P<stem>{'|'.join(STEMS)})(?:\.(?P<variant>{_VARIANT}))?\.safetensors")
# transformers puts the variant last, others put it first.
_INDEX = re.compile(
    rf"(?P<stem>[^.]+)(?:\.(?P<before>{_VARIANT}))?\.safetensors\.index(?:\.(?P<after>{_VARIANT}))?\.json"
)
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf")
_WEIGHT_SUFFIXES = (
    ".bin",
    ".ckpt",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".pt",
    ".pth",
    ".safetensors",
    ".safetensors.index.json",
)


class CheckpointFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one checkpoint."""

    folder: Path
    shards: tuple[Path, ...]
    """At least one; sorted by name."""
    index: ShardIndex | None
    """None where the checkpoint is a single file."""


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    stem: str
    variant: str | None
    is_index: bool


def holds_weights(names: Sequence[str]) -> bool:
    """Return whether files of these names include weights, in whatever format."""
    return any(name.endswith(_WEIGHT_SUFFIXES) for name in names)


def find_checkpoint(path: Path, *, variant: str | None = None) -> CheckpointFiles:
    """Return the files of the checkpoint at `path`.

    As in transformers, a folder may hold other variants beside the one asked for, and a single file goes
    before an index of the same name. An index under another name counts only where no usual name is there.

    Args:
        path: A folder, a single `.safetensors` file, or an index file.
        variant: The middle of the names, such as `fp16` in `model.fp16.safetensors`; None: names without
            one. Has no part in it where `path` is a file.

    Returns:
        The checkpoint; every shard exists.

    Raises:
        CheckpointError: UNREADABLE: `path` is missing, or the system refuses.
        CheckpointError: NO_CHECKPOINT: nothing of safetensors; the message says what is there instead.
        CheckpointError: NO_VARIANT: checkpoints, but none of this variant.
        CheckpointError: AMBIGUOUS: several, and nothing that says which.
        CheckpointError: As `read_index` and `resolve_shard`.
        JsonError: As `read_index`.
    """
    if is_file(path, where=str(path)):
        file = path
    else:
        try:
            names = sorted(entry.name for entry in path.iterdir())
        except OSError as error:
            raise unreadable(str(path), error) from error
        file = path / choose_file(names, variant, where=str(path))
    if file.name.endswith(".safetensors"):
        return CheckpointFiles(folder=file.parent, shards=(file,), index=None)
    if not file.name.endswith(".json"):
        raise _no_checkpoint([file.name], str(file.parent))
    index = read_index(file)
    shards = tuple(resolve_shard(file.parent, name, where=index.file) for name in index.shard_names())
    return CheckpointFiles(folder=file.parent, shards=shards, index=index)


def choose_file(names: list[str], variant: str | None, *, where: str) -> str:
    """Return the name of the single file or the index that makes the checkpoint of this variant.

    Args:
        names: Of all files in one folder, sorted.
        variant: As for `find_checkpoint`.
        where: The folder, for the message.

    Raises:
        CheckpointError: NO_CHECKPOINT, NO_VARIANT, AMBIGUOUS: as `find_checkpoint`.
    """
    candidates = [found for name in names if (found := _candidate(name)) is not None]
    if not candidates:
        raise _no_checkpoint(names, where)
    variants = {found.variant for found in candidates}
    if variant not in variants:
        known = ", ".join(_shown(found) for found in sorted(variants, key=lambda found: found or ""))
        raise CheckpointError(
            CheckpointRule.NO_VARIANT,
            "no checkpoint of this variant",
            where=where,
            got=f"variant {_shown(variant)}",
            needed=f"one that is there: {known}",
            hint="choose with --variant",
        )
    candidates = [found for found in candidates if found.variant == variant]
    candidates = [found for found in candidates if found.stem in STEMS] or candidates
    if len({found.stem for found in candidates}) == 1:
        candidates = [found for found in candidates if not found.is_index] or candidates
    if len(candidates) > 1:
        raise CheckpointError(
            CheckpointRule.AMBIGUOUS,
            "several checkpoints in one folder",
            where=where,
            got=", ".join(quote(found.name) for found in candidates[:SHOWN_NAMES]),
            needed="one",
            hint="name the file itself instead of its folder",
        )
    return candidates[0].name


def _candidate(name: str) -> _Candidate | None:
    single = _SINGLE.fullmatch(name)
    if single is not None:
        return _Candidate(name=name, stem=single["stem"], variant=single["variant"], is_index=False)
    index = _INDEX.fullmatch(name)
    if index is not None:
        variant = index["before"] or index["after"]
        return _Candidate(name=name, stem=index["stem"], variant=variant, is_index=True)
    return None


def _no_checkpoint(names: list[str], where: str) -> CheckpointError:
    """Return the error that shows what is there, files of weights first."""
    others = [name for name in names if name.endswith(_OTHER_WEIGHTS)]
    shards = [name for name in names if name.endswith(".safetensors")]
    ordered = others + shards + [name for name in names if name not in others and name not in shards]
    hint = (
        "name the file itself if it is a whole checkpoint"
        if shards
        else "download the checkpoint's weights too"
    )
    if others:
        hint = "only safetensors is read: load it with transformers and save it again with save_pretrained"
    return CheckpointError(
        CheckpointRule.NO_CHECKPOINT,
        "no safetensors checkpoint",
        where=where,
        got=first_names([quote(name) for name in ordered], SHOWN_NAMES) or "an empty folder",
        needed="model.safetensors or model.safetensors.index.json",
        hint=hint,
    )


def _shown(variant: str | None) -> str:
    return "none" if variant is None else quote(variant)
