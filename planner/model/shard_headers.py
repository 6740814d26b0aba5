"""The headers of a model's shards: identified by their bytes at once, parsed when somebody asks.

Reader: of a shard it reads the header only, or hashes it whole if asked. Which shards there are is known
already. A model that was read before need not be parsed again, which for a large one takes seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from bayplan.schemas.checkpoint import LocalCheckpoint, locate_tensors
from bayplan.schemas.checkpoint_index import check_index_against_headers, unreadable
from bayplan.schemas.plan import Shard
from bayplan.schemas.safetensors_header import RawHeader, SafetensorsHeader, read_raw_header

if TYPE_CHECKING:
    from bayplan.planner.model.hub import HubModel
    from bayplan.planner.options import PlanOptions
    from bayplan.schemas.progress import Progress

_HASH_BYTES = 8 * 2**20

ReadHeaders: TypeAlias = tuple[tuple[Shard, ...], Callable[[], dict[str, SafetensorsHeader]]]
"""Shards by the bytes of their headers, and what parses those."""


def no_headers() -> dict[str, SafetensorsHeader]:
    """Return the headers of a config alone."""
    return {}


def read_local_headers(
    checkpoint: LocalCheckpoint, options: PlanOptions, progress: Progress | None
) -> ReadHeaders:
    """Return shards and headers of a folder, hashed if the options say so.

    Raises:
        SafetensorsFormatError: A shard is too short for its header.
        CheckpointError: UNREADABLE: the system refuses to read one.
    """
    raw = {name: read_raw_header(checkpoint.shard_path(name)) for name in checkpoint.shard_names}

    def parse() -> dict[str, SafetensorsHeader]:
        headers = {name: header.parse() for name, header in raw.items()}
        locate_tensors(checkpoint, headers)
        return headers

    hashes = _hash_files(checkpoint, raw, progress) if options.hash_content else {}
    return _shards(raw, hashes), parse


def read_hub_headers(model: HubModel) -> ReadHeaders:
    """Return shards and headers of a model on the Hub."""

    def parse() -> dict[str, SafetensorsHeader]:
        headers = {name: header.parse() for name, header in model.headers.items()}
        if model.weights.index is not None:
            check_index_against_headers(model.weights.index, headers)
        return headers

    return _shards(model.headers, model.content_sha256), parse


def _shards(raw: dict[str, RawHeader], hashes: dict[str, str]) -> tuple[Shard, ...]:
    return tuple(
        Shard(
            file=name,
            num_bytes=header.file_bytes,
            header_digest=header.digest,
            content_sha256=hashes.get(name),
        )
        for name, header in raw.items()
    )


def _hash_files(
    checkpoint: LocalCheckpoint, raw: dict[str, RawHeader], progress: Progress | None
) -> dict[str, str]:
    """Return the SHA-256 of every shard, as the Hub writes it."""
    total_bytes = sum(header.file_bytes for header in raw.values())
    done_bytes = 0
    hashes = {}
    for name in raw:
        path = checkpoint.shard_path(name)
        found = hashlib.sha256()
        try:
            with path.open("rb", buffering=0) as file:
                while piece := file.read(_HASH_BYTES):
                    found.update(piece)
                    done_bytes += len(piece)
                    if progress is not None:
                        progress("hash", done_bytes, total_bytes)
        except OSError as error:
            raise unreadable(str(path), error) from error
        hashes[name] = found.hexdigest()
    return hashes
