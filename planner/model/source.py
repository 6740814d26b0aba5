"""From what the user calls the model to its config and the headers of its shards, wherever they are.

Reader: finds the config and the shard headers. Of a shard it reads the header only, or hashes it whole if
asked. Builds nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.model.hub import HubModel, holds_weights, read_hub_model
from bayplan.schemas.checkpoint import CONFIG_NAME, LocalCheckpoint, locate_tensors, open_folder
from bayplan.schemas.checkpoint_index import check_index_against_headers
from bayplan.schemas.errors import BayplanError, UsageError
from bayplan.schemas.hub_id import parse_hub_id
from bayplan.schemas.plan import Shard
from bayplan.schemas.safetensors_header import RawHeader, SafetensorsHeader, read_raw_header
from bayplan.schemas.strict_json import sha256_digest

if TYPE_CHECKING:
    from bayplan.planner.options import PlanOptions

Progress = Callable[[str, int, int], None]
"""Called with a stage, how much of it is done and how much there is in all."""

_FACTORY = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_HASH_BYTES = 8 * 2**20


class SourceError(BayplanError):
    """What the user calls the model is nothing that can be read."""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A model's config and the headers of its shards."""

    label: str
    """As the user called it, for messages."""
    source: str | None
    """Hub id or factory; None for a local folder, whose name means nothing elsewhere."""
    revision: str | None
    """Commit of the Hub repository."""
    factory: str | None
    """`package.module:factory`; None: the model is built from a config."""
    config_path: Path | None
    """None only for a factory."""
    config_digest: str | None
    """Of the config's bytes; None only for a factory."""
    shards: tuple[Shard, ...] | None
    """Sorted by file; None: a config alone."""
    headers: dict[str, SafetensorsHeader]
    """By shard, in the order of `shards`; empty: a config alone."""

    def first_shard_dtypes(self) -> dict[str, str] | None:
        """Return the dtype of each tensor in the first shard, or None without shards."""
        header = next(iter(self.headers.values()), None)
        return None if header is None else {entry.fqn: entry.dtype for entry in header.tensors}


def open_source(name: str, options: PlanOptions, progress: Progress | None = None) -> ModelSource:
    """Return config and headers of the model called `name`.

    Args:
        name: A local folder; a config file, a shard or an index in one; a Hub id with or without `@revision`;
            or `package.module:factory`. What exists on the disk goes before the other meanings.
        options: `checkpoint`, `variant`, `hash_content` and `trust_remote_code` count.
        progress: Told of hashing and of headers read.

    Returns:
        The source; shards are None where there is a config alone.

    Raises:
        SourceError: There is no such folder or file.
        SourceError: The folder or repository has no config.
        SourceError: `name` has none of the forms.
        UsageError: `name` is empty, or a checkpoint is given for a model that has its own.
        HubError: As `read_hub_model`.
        CheckpointError: As `open_folder` and `locate_tensors`.
        SafetensorsFormatError: A shard's header is malformed.
        JsonError: An index is no strict JSON.
    """
    if not name:
        raise UsageError("an empty name is no model", where="MODEL", needed="a folder, a Hub id or a factory")
    path = Path(name)
    if not path.exists() and _FACTORY.fullmatch(name):
        return _open_factory(name, options, progress)
    if options.checkpoint is not None:
        raise UsageError(
            "a checkpoint of its own can only be given for a factory",
            where="--checkpoint",
            got=options.checkpoint,
            hint="name the folder that holds both config and weights as the model",
        )
    if path.exists():
        return _open_local(name, path, options, progress)
    hub_id = parse_hub_id(name)
    if hub_id is None:
        raise SourceError(
            "no such model",
            where=name,
            needed="a folder with config.json, a Hub id such as org/name, or package.module:factory",
        )
    model = read_hub_model(
        hub_id.repo,
        hub_id.revision,
        variant=options.variant,
        with_code=options.trust_remote_code,
        progress=progress,
    )
    if model.config_path is None:
        raise _no_config(name)
    headers, shards = _parsed_hub(model)
    return ModelSource(
        label=name,
        source=hub_id.repo,
        revision=model.commit,
        factory=None,
        config_path=model.config_path,
        config_digest=_digest_of(model.config_path),
        shards=shards or None,
        headers=headers,
    )


def _open_factory(name: str, options: PlanOptions, progress: Progress | None) -> ModelSource:
    headers: dict[str, SafetensorsHeader] = {}
    shards: tuple[Shard, ...] = ()
    if options.checkpoint is not None:
        path = Path(options.checkpoint)
        hub_id = parse_hub_id(options.checkpoint)
        if path.exists() or hub_id is None:
            headers, shards = _read_local(open_folder(path, variant=options.variant), options, progress)
        else:
            model = read_hub_model(hub_id.repo, hub_id.revision, variant=options.variant, progress=progress)
            headers, shards = _parsed_hub(model)
    return ModelSource(
        label=name,
        source=name,
        revision=None,
        factory=name,
        config_path=None,
        config_digest=None,
        shards=shards or None,
        headers=headers,
    )


def _open_local(name: str, path: Path, options: PlanOptions, progress: Progress | None) -> ModelSource:
    is_config = path.is_file() and path.suffix == ".json" and not path.name.endswith(".index.json")
    config_path = path if is_config else (path if path.is_dir() else path.parent) / CONFIG_NAME
    if not config_path.is_file():
        raise _no_config(name)
    headers: dict[str, SafetensorsHeader] = {}
    shards: tuple[Shard, ...] = ()
    if not is_config and (path.is_file() or holds_weights([file.name for file in path.iterdir()])):
        headers, shards = _read_local(open_folder(path, variant=options.variant), options, progress)
    return ModelSource(
        label=name,
        source=None,
        revision=None,
        factory=None,
        config_path=config_path,
        config_digest=_digest_of(config_path),
        shards=shards or None,
        headers=headers,
    )


def _no_config(name: str) -> SourceError:
    return SourceError(
        "there is no config.json",
        where=name,
        needed="the config that belongs to the weights",
        hint="the folder of one model is needed, not one that holds several",
    )


def _digest_of(config_path: Path) -> str:
    try:
        return sha256_digest(config_path.read_bytes())
    except OSError as error:
        raise SourceError(
            "cannot be read", where=str(config_path), got=error.strerror or str(error)
        ) from error


def _read_local(
    checkpoint: LocalCheckpoint, options: PlanOptions, progress: Progress | None
) -> tuple[dict[str, SafetensorsHeader], tuple[Shard, ...]]:
    raw = {name: read_raw_header(checkpoint.shard_path(name)) for name in checkpoint.shard_names}
    headers = {name: header.parse() for name, header in raw.items()}
    locate_tensors(checkpoint, headers)
    hashes = _hash_files(checkpoint, raw, progress) if options.hash_content else {}
    return headers, _shards(raw, hashes)


def _parsed_hub(model: HubModel) -> tuple[dict[str, SafetensorsHeader], tuple[Shard, ...]]:
    headers = {name: header.parse() for name, header in model.headers.items()}
    if model.index is not None:
        check_index_against_headers(model.index, headers)
    return headers, _shards(model.headers, model.content_sha256)


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
            raise SourceError("cannot be read", where=str(path), got=error.strerror or str(error)) from error
        hashes[name] = found.hexdigest()
    return hashes
