"""From what the user calls the model to its config and the headers of its shards, wherever they are.

Reader: finds the config and the shard headers. Of a shard it reads the header only, or hashes it whole if
asked. Builds nothing. What identifies the headers is known before they are parsed, so that a model that was
read before need not be parsed again.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.model.library import Library, library_of, parse_library
from bayplan.planner.model.shard_headers import no_headers, read_hub_headers, read_local_headers
from bayplan.planner.model.weights import PIPELINE_NAME, FoundWeights, find_weights
from bayplan.schemas.checkpoint import CONFIG_NAME, open_folder
from bayplan.schemas.checkpoint_index import ShardIndex
from bayplan.schemas.errors import BayplanError, UsageError, first_names
from bayplan.schemas.hub_id import HubId, parse_hub_id
from bayplan.schemas.plan import Shard
from bayplan.schemas.safetensors_header import SafetensorsHeader
from bayplan.schemas.strict_json import sha256_digest

if TYPE_CHECKING:
    from bayplan.planner.options import PlanOptions
    from bayplan.schemas.progress import Progress

_FACTORY = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_TIMM_NAME = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)?", re.ASCII)
_TIMM_ORG = "timm/"
_TIMM_PREFIX = re.compile(r"hf[-_]hub:(?=[^:]+/)")
"""What timm wants before a Hub id; here a slash says as much."""
_SHOWN_PARTS = 12


class SourceError(BayplanError):
    """What the user calls the model is nothing that can be read."""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model's config and the headers of its shards."""

    label: str
    """As the user called it, for messages."""
    source: str | None
    """Hub id, factory, or name in a library; None for a local folder, whose name means nothing elsewhere."""
    revision: str | None = None
    """Commit of the Hub repository."""
    library: Library = Library.TRANSFORMERS
    factory: str | None = None
    """`package.module:factory`; None: the model is built from a config or by its name."""
    library_name: str | None = None
    """Of a model that the library knows by name and that has no config here, such as `resnet50.a1_in1k`."""
    config_path: Path | None = None
    """None for a factory and for a library's own name."""
    config_digest: str | None = None
    """Of the config's bytes; None where there is no config."""
    shards: tuple[Shard, ...] | None = None
    """Sorted by file; None: a config alone."""
    parse: Callable[[], dict[str, SafetensorsHeader]] = no_headers
    """Gives `headers`."""
    listing: ShardIndex | None = None
    """An index without any of its shards: names of tensors, and nothing of their shapes."""
    warnings: tuple[str, ...] = ()
    """What the user should know of how the model was found."""

    @cached_property
    def headers(self) -> dict[str, SafetensorsHeader]:
        """Headers by shard, in the order of `shards`, parsed when first asked for; empty: a config alone.

        Raises:
            SafetensorsFormatError: A shard's header is malformed.
            CheckpointError: As `locate_tensors`.
        """
        return self.parse()

    def first_shard_dtypes(self) -> dict[str, str] | None:
        """Return the dtype of each tensor in the first shard, or None without shards."""
        header = next(iter(self.headers.values()), None)
        return None if header is None else {entry.fqn: entry.dtype for entry in header.tensors}


def open_source(name: str, options: PlanOptions, progress: Progress | None = None) -> ModelSource:
    """Return config and headers of the model called `name`, the headers parsed.

    Args:
        name: As for `find_source`.
        options: As for `find_source`.
        progress: As for `find_source`.

    Raises:
        BayplanError: As `find_source` and `ModelSource.headers`.
    """
    source = find_source(name, options, progress)
    _ = source.headers
    return source


def find_source(name: str, options: PlanOptions, progress: Progress | None = None) -> ModelSource:
    """Return config and headers of the model called `name`, the headers not parsed.

    Args:
        name: A local folder; a config file, a shard or an index in one; a Hub id, or a folder of one, with or
            without `@revision`; `package.module:factory`; or, with the library said, a name that timm gives
            its models. What exists on the disk goes before the other meanings.
        options: `checkpoint`, `library`, `variant`, `hash_content` and `trust_remote_code` count.
        progress: Told of hashing and of headers read.

    Returns:
        The source; shards are None where there is a config alone.

    Raises:
        SourceError: There is no such folder or file, or the system refuses to look.
        SourceError: The folder or repository has no config.
        SourceError: It is a pipeline of several models.
        SourceError: `name` has none of the forms.
        SourceError: The checkpoint of a factory has no weights to read.
        UsageError: `name` is empty, the library is unknown, or a checkpoint is given for a model that has its
            own.
        HubError: As `read_hub_model`.
        CheckpointError: As `find_weights` and `open_folder`.
        SafetensorsFormatError: A shard is too short for its header.
        JsonError: An index is no strict JSON.
    """
    if not name:
        raise UsageError("an empty name is no model", where="MODEL", needed="a folder, a Hub id or a factory")
    library = parse_library(options.library)
    path = Path(name)
    is_there = _exists(path)
    if not is_there and _FACTORY.fullmatch(name) and library is None:
        return _open_factory(name, options, progress)
    if options.checkpoint is not None:
        raise UsageError(
            "a checkpoint of its own can only be given for a factory",
            where="--checkpoint",
            got=options.checkpoint,
            hint="name the folder that holds both config and weights as the model",
        )
    if is_there:
        return _open_local(name, path, library, options, progress)
    hub_id = parse_hub_id(_TIMM_PREFIX.sub("", name))
    if hub_id is not None:
        return _open_hub(name, hub_id, library, options, progress)
    is_bare = _TIMM_NAME.fullmatch(name) is not None
    if is_bare and library is Library.TIMM:
        return _open_timm_name(name, name)
    raise SourceError(
        "no such model",
        where=name,
        needed="a folder with config.json, a Hub id such as org/name, or package.module:factory",
        hint="--library timm takes a name of timm's own" if is_bare and library is None else "",
    )


def _exists(path: Path) -> bool:
    """Return whether there is such a path; a name too long for one may still have another meaning.

    Raises:
        SourceError: The system refuses to look.
    """
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise SourceError("cannot be read", where=str(path), got=error.strerror or str(error)) from error


def _open_hub(
    name: str, hub_id: HubId, library: Library | None, options: PlanOptions, progress: Progress | None
) -> ModelSource:
    # The client library, only if the Hub is asked
    from bayplan.planner.model.hub import read_hub_model
    from bayplan.planner.model.hub_faults import HubError, HubFault

    timm_name = hub_id.repo.removeprefix(_TIMM_ORG)
    is_timm_name = hub_id == HubId(repo=f"{_TIMM_ORG}{timm_name}", revision=None)
    try:
        model = read_hub_model(
            hub_id, variant=options.variant, with_code=options.trust_remote_code, progress=progress
        )
    except HubError as error:
        if not is_timm_name or error.fault not in (HubFault.MISSING, HubFault.UNREACHABLE):
            raise
        if library is Library.TIMM:
            return _open_timm_name(name, timm_name, because=error.what)
        raise HubError(
            error.what,
            where=error.where,
            got=error.got,
            hint="--library timm builds it from timm's own definition, without the Hub",
            fault=error.fault,
        ) from error
    place = model.repo if hub_id.folder is None else f"{model.repo}/{hub_id.folder}"
    if model.config_path is None:
        raise _pipeline(place, model.parts) if model.parts else _no_config(name)
    shards, parse = read_hub_headers(model)
    renamed = (f"{hub_id.repo} is now {model.repo} on the Hub",) if model.repo != hub_id.repo else ()
    digest, found = _identify(model.config_path)
    return ModelSource(
        label=name,
        source=place,
        revision=model.commit,
        library=library or found,
        config_path=model.config_path,
        config_digest=digest,
        shards=shards or None,
        parse=parse,
        listing=model.weights.listing,
        warnings=(*renamed, *model.weights.warnings(name)),
    )


def _open_timm_name(label: str, name: str, *, because: str = "") -> ModelSource:
    """Return a model that timm builds by name; whether it knows that name, it says when it builds it."""
    warning = f"{label}: built from timm's own definition: {because}"
    return ModelSource(
        label=label,
        source=name,
        library=Library.TIMM,
        library_name=name,
        warnings=(warning,) if because else (),
    )


def _open_factory(name: str, options: PlanOptions, progress: Progress | None) -> ModelSource:
    shards: tuple[Shard, ...] = ()
    parse = no_headers
    if options.checkpoint is not None:
        path = Path(options.checkpoint)
        hub_id = parse_hub_id(options.checkpoint)
        if _exists(path) or hub_id is None:
            shards, parse = read_local_headers(open_folder(path, variant=options.variant), options, progress)
        else:
            from bayplan.planner.model.hub import read_hub_model

            model = read_hub_model(hub_id, variant=options.variant, progress=progress)
            if not model.headers:
                raise SourceError(
                    "the checkpoint has no weights to read",
                    where=options.checkpoint,
                    got=", ".join(model.weights.unread),
                    needed="a safetensors checkpoint",
                )
            shards, parse = read_hub_headers(model)
    return ModelSource(
        label=name,
        source=name,
        library=Library.TORCH,
        factory=name,
        shards=shards or None,
        parse=parse,
    )


def _open_local(
    name: str, path: Path, library: Library | None, options: PlanOptions, progress: Progress | None
) -> ModelSource:
    is_config = path.is_file() and path.suffix == ".json" and not path.name.endswith(".index.json")
    folder = path if path.is_dir() else path.parent
    config_path = path if is_config else folder / CONFIG_NAME
    if not config_path.is_file():
        parts = _local_parts(folder)
        raise _pipeline(name, parts) if parts else _no_config(name)
    weights = FoundWeights()
    if path.is_dir():
        weights = find_weights(
            sorted(file.name for file in path.iterdir() if not file.is_dir()),
            options.variant,
            where=str(path),
            fetch=path.joinpath,
            is_there=lambda shard: os.path.lexists(path / shard),
        )
    shards: tuple[Shard, ...] = ()
    parse = no_headers
    if weights.shards or (path.is_file() and not is_config):
        shards, parse = read_local_headers(open_folder(path, variant=options.variant), options, progress)
    digest, found = _identify(config_path)
    return ModelSource(
        label=name,
        source=None,
        library=library or found,
        config_path=config_path,
        config_digest=digest,
        shards=shards or None,
        parse=parse,
        listing=weights.listing,
        warnings=weights.warnings(name),
    )


def _local_parts(folder: Path) -> tuple[str, ...]:
    """Return the folders of a pipeline's models; none where it is no pipeline."""
    if not (folder / PIPELINE_NAME).is_file():
        return ()
    return tuple(sorted(config.parent.name for config in folder.glob(f"*/{CONFIG_NAME}")))


def _pipeline(place: str, parts: tuple[str, ...]) -> SourceError:
    models = [f"{place.rstrip('/')}/{part}" for part in parts]
    return SourceError(
        "a pipeline of several models",
        where=place,
        got=PIPELINE_NAME,
        needed=f"one of its models: {first_names(models, _SHOWN_PARTS)}",
        hint="each model of a pipeline has a plan of its own",
    )


def _no_config(name: str) -> SourceError:
    return SourceError(
        "there is no config.json",
        where=name,
        needed="the config that belongs to the weights",
        hint="the folder of one model is needed, not one that holds several",
    )


def _identify(config_path: Path) -> tuple[str, Library]:
    """Return the digest of a config's bytes, and the library whose mark it bears."""
    try:
        data = config_path.read_bytes()
    except OSError as error:
        raise SourceError(
            "cannot be read", where=str(config_path), got=error.strerror or str(error)
        ) from error
    return sha256_digest(data), library_of(data)
