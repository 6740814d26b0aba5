"""Which weights lie beside a config: shards to read, an index whose shards are elsewhere, or other formats.

Owns the choice between a checkpoint and a config alone, the same for a folder and for a repository on the
Hub. Reads indexes, no shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bayplan.schemas.checkpoint_files import choose_file
from bayplan.schemas.checkpoint_index import ShardIndex, read_index
from bayplan.schemas.errors import first_and_more
from bayplan.schemas.strict_json import quote

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PIPELINE_NAME = "model_index.json"
"""In a folder of several models, of which diffusers makes one pipeline."""
_SAFETENSORS = ".safetensors"
_SAFETENSORS_INDEX = ".safetensors.index.json"
_BIN_INDEX = "pytorch_model.bin.index.json"
_OTHER_WEIGHTS = (".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth")
_NO_WEIGHTS = ("optimizer", "rng_state", "scheduler", "training_args")
"""Starts of the names under which trainers save their own state."""
_SHOWN_NAMES = 3


class FoundWeights(msgspec.Struct, frozen=True, kw_only=True):
    """What there is beside a config."""

    shards: tuple[str, ...] = ()
    """Sorted; empty: the config counts alone."""
    index: ShardIndex | None = None
    """Of `shards`, if they have one."""
    listing: ShardIndex | None = None
    """An index none of whose shards are there: it tells names, and no shapes."""
    unread: tuple[str, ...] = ()
    """Weights in formats whose headers are not read, sorted; only where there are no others."""

    def warnings(self, where: str) -> tuple[str, ...]:
        """Return what a plan made from this should be told with."""
        if not self.unread:
            return ()
        names = first_and_more(list(map(quote, self.unread)), _SHOWN_NAMES)
        return (f"{where}: planned from the config alone: only safetensors is read, and there is {names}",)


def find_weights(
    names: list[str],
    variant: str | None,
    *,
    where: str,
    fetch: Callable[[str], Path],
    is_there: Callable[[str], bool],
) -> FoundWeights:
    """Return which weights make the checkpoint.

    Args:
        names: Of all files beside the config, sorted.
        variant: As for `choose_file`.
        where: The folder or repository, for messages.
        fetch: Gives the path of one of `names` on this machine.
        is_there: Whether a shard that an index names exists.

    Raises:
        CheckpointError: NO_CHECKPOINT, NO_VARIANT, AMBIGUOUS: as `choose_file`.
        CheckpointError, JsonError: As `read_index`.
    """
    single = [name for name in names if name.endswith(_SAFETENSORS)]
    if single or any(name.endswith(_SAFETENSORS_INDEX) for name in names):
        chosen = choose_file(names, variant, where=where)
        if chosen.endswith(_SAFETENSORS):
            return FoundWeights(shards=(chosen,))
        index = _named(read_index(fetch(chosen)), where, chosen)
        shards = index.shard_names()
        if single or any(is_there(shard) for shard in shards):
            return FoundWeights(shards=shards, index=index)
        return FoundWeights(listing=index)
    unread = tuple(
        name for name in names if name.endswith(_OTHER_WEIGHTS) and not name.startswith(_NO_WEIGHTS)
    )
    if unread and variant is not None:
        choose_file(names, variant, where=where)  # raises: what was asked for is not there
    listing = None
    if _BIN_INDEX in names:
        listing = _named(read_index(fetch(_BIN_INDEX), suffix=".bin"), where, _BIN_INDEX)
    return FoundWeights(listing=listing, unread=unread)


def _named(index: ShardIndex, where: str, name: str) -> ShardIndex:
    """Return an index that is called by its own name, not by that of a cache."""
    return msgspec.structs.replace(index, file=f"{where}/{name}")
