"""A model on the Hub, identified without its weights: small files, and the first bytes of each shard.

Owns every word with the Hub that planning needs. The client library does the talking: its session, tokens,
retries, mirrors and cache are the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import huggingface_hub.errors as hub_errors
import msgspec
from huggingface_hub import HfApi, hf_hub_download, hf_hub_url
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
)

from bayplan.schemas.checkpoint_files import choose_file
from bayplan.schemas.checkpoint_index import CheckpointError, CheckpointRule, ShardIndex, read_index
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.safetensors_header import PREFIX_BYTES, RawHeader, header_length

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_READ_BYTES = 128 * 1024
"""Asked for at once: length and header of most shards, so that one request is enough."""
_TIMEOUT_SECONDS = 30
_MAX_CONNECTIONS = 8
_CONFIG_NAME = "config.json"
_GENERATION_CONFIG_NAME = "generation_config.json"

# The class of the HTTP library under every transport failure; which library that is changed with the client's
# version.
_HttpError: type[Exception] = hub_errors.HTTPError  # type: ignore[attr-defined]
_FAULTS = (
    hub_errors.FileMetadataError,
    hub_errors.HfHubHTTPError,
    hub_errors.LocalEntryNotFoundError,
    hub_errors.OfflineModeIsEnabled,
    _HttpError,
)


class HubError(BayplanError):
    """The Hub does not give what was asked for."""


class HubModel(msgspec.Struct, frozen=True, kw_only=True):
    """What the Hub says of a model at one commit."""

    commit: str
    config_path: Path | None
    """Downloaded, with generation config and, if trusted, code beside it; None: the repository has none."""
    headers: dict[str, RawHeader]
    """By shard name, sorted; not parsed. Empty: the repository holds no weights."""
    content_sha256: dict[str, str]
    """By shard name; shards of which the Hub keeps no hash are not in it."""
    index: ShardIndex | None


def read_hub_model(
    repo: str,
    revision: str | None,
    *,
    variant: str | None = None,
    with_code: bool = False,
    endpoint: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> HubModel:
    """Return the identity of a model on the Hub.

    Args:
        repo: `org/name`.
        revision: Branch, tag or commit; None: the main branch.
        variant: Which of several checkpoints.
        with_code: Download the repository's Python files too.
        endpoint: Address of the Hub; None: the client's own choice.
        progress: Told of shards whose headers were read.

    Returns:
        Config and headers, pinned to the commit that `revision` is now.

    Raises:
        HubError: The model is gated.
        HubError: There is no such model.
        HubError: It has no such revision.
        HubError: The Hub cannot be reached.
        HubError: The Hub answers with another error.
        HubError: A shard is not what the repository's listing says.
        CheckpointError: The repository has no safetensors checkpoint, or several, or a malformed index.
        SafetensorsFormatError: A shard is too short for its header.
    """
    where = repo if revision is None else f"{repo}@{revision}"
    try:
        return _Reader(repo, revision, where, endpoint).read(variant, with_code, progress)
    except _FAULTS as error:
        raise _hub_error(error, where) from error


class _Reader:
    """One model at one commit."""

    def __init__(self, repo: str, revision: str | None, where: str, endpoint: str | None) -> None:
        self._repo = repo
        self._where = where
        self._endpoint = endpoint
        info = HfApi(endpoint=endpoint).model_info(repo, revision=revision, files_metadata=True)
        assert info.sha is not None, "the Hub names the commit of every model"
        self._commit = info.sha
        files = info.siblings or []
        self._num_bytes = {file.rfilename: file.size for file in files}
        self._sha256 = {file.rfilename: file.lfs.sha256 for file in files if file.lfs is not None}
        # A checkpoint is looked for at the top: what is in folders belongs to other formats or parts.
        self._names = sorted(name for name in self._num_bytes if "/" not in name)

    def read(
        self, variant: str | None, with_code: bool, progress: Callable[[str, int, int], None] | None
    ) -> HubModel:
        config_path = None
        for name in self._names:
            if name in (_CONFIG_NAME, _GENERATION_CONFIG_NAME) or (with_code and name.endswith(".py")):
                path = self._download(name)
                config_path = path if name == _CONFIG_NAME else config_path
        index = None
        shards: tuple[str, ...] = ()
        if holds_weights(self._names):
            chosen = choose_file(self._names, variant, where=self._where)
            if chosen.endswith(".json"):
                index = msgspec.structs.replace(
                    read_index(self._download(chosen)), file=f"{self._where}/{chosen}"
                )
                shards = index.shard_names()
            else:
                shards = (chosen,)
        headers: dict[str, RawHeader] = {}
        with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
            for done, header in enumerate(pool.map(self._read_header, shards), start=1):
                headers[shards[done - 1]] = header
                if progress is not None:
                    progress("read headers", done, len(shards))
        return HubModel(
            commit=self._commit,
            config_path=config_path,
            headers=headers,
            content_sha256={name: self._sha256[name] for name in shards if name in self._sha256},
            index=index,
        )

    def _download(self, name: str) -> Path:
        return Path(hf_hub_download(self._repo, name, revision=self._commit, endpoint=self._endpoint))

    def _read_header(self, name: str) -> RawHeader:
        where = f"{self._where}/{name}"
        if name not in self._num_bytes:
            raise CheckpointError(
                CheckpointRule.SHARD_MISSING,
                "a shard is missing",
                where=self._where,
                got=f"no file {name}",
                needed="every shard that the index names",
            )
        url = hf_hub_url(self._repo, name, revision=self._commit, endpoint=self._endpoint)
        data, file_bytes = _read_start(url, _FIRST_READ_BYTES)
        listed_bytes = self._num_bytes[name]
        if file_bytes is None or (listed_bytes is not None and listed_bytes != file_bytes):
            raise HubError(
                "the Hub sends another file than its listing says",
                where=where,
                got="a file of unknown length" if file_bytes is None else f"{file_bytes} bytes",
                needed=f"{listed_bytes} bytes",
            )
        num_bytes = header_length(data[:PREFIX_BYTES], file_bytes, where)
        if num_bytes > len(data):
            data, _ = _read_start(url, num_bytes)
        if num_bytes > len(data):
            raise HubError(
                "the Hub sends less of a shard than asked for",
                where=where,
                got=f"{len(data)} bytes",
                needed=f"{num_bytes} bytes",
                hint="try again",
            )
        return RawHeader(file=where, data=data[:num_bytes], file_bytes=file_bytes)


def holds_weights(names: list[str]) -> bool:
    """Return whether files of these names include weights, in whatever format."""
    return any(name.endswith(_WEIGHT_SUFFIXES) for name in names)


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


def _read_start(url: str, num_bytes: int) -> tuple[bytes, int | None]:
    """Return the first `num_bytes` of a file, or all of a shorter one, and the length of the whole file."""
    headers = build_hf_headers() | {"Range": f"bytes=0-{num_bytes - 1}", "Accept-Encoding": "identity"}
    data = bytearray()
    with http_stream_backoff("GET", url, headers=headers, timeout=_TIMEOUT_SECONDS) as response:
        hf_raise_for_status(response)
        file_bytes = _whole_length(response.status_code, response.headers)
        # A server that knows no ranges sends the whole shard: leave when there is enough.
        for piece in response.iter_bytes():
            data += piece
            if len(data) >= num_bytes:
                break
    return bytes(data[:num_bytes]), file_bytes


def _whole_length(status: int, headers: Mapping[str, str]) -> int | None:
    text = headers.get("Content-Length", "")
    if status == 206:
        text = headers.get("Content-Range", "").rpartition("/")[2]
    return int(text) if text.isdecimal() else None


def _hub_error(error: Exception, where: str) -> HubError:
    """Return what a failure of the client means to the user."""
    if isinstance(error, hub_errors.GatedRepoError):
        return HubError(
            "the Hub gives this model only to those who accepted its terms",
            where=where,
            hint="accept them on the model's page and log in with `hf auth login`",
        )
    if isinstance(error, hub_errors.RevisionNotFoundError):
        return HubError("the Hub has no such revision of this model", where=where)
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        return HubError(
            "neither a local folder nor a model that the Hub shows you",
            where=where,
            hint="check the name; a private model needs `hf auth login`",
        )
    if isinstance(error, hub_errors.HfHubHTTPError):
        return HubError(
            "the Hub answers with an error",
            where=where,
            got=f"HTTP status {error.response.status_code}",
            hint="try again later",
        )
    cause = error.__cause__ if isinstance(error, hub_errors.LocalEntryNotFoundError) else None
    return HubError(
        "no local folder, and the Hub cannot be reached",
        where=where,
        got=type(cause or error).__name__,
        hint="check the network, or give the path of a folder with the model",
    )
