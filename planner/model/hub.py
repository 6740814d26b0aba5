"""A model on the Hub, identified without its weights: small files, and the first bytes of each shard.

Owns every word with the Hub that planning needs. The client library does the talking: its session, tokens,
retries, mirrors and cache are the user's own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from huggingface_hub import HfApi, hf_hub_download, hf_hub_url
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
)

from bayplan.planner.model.hub_faults import CLIENT_FAULTS, HubError, HubFault, hub_error
from bayplan.planner.model.weights import PIPELINE_NAME, FoundWeights, find_weights
from bayplan.schemas.checkpoint import CONFIG_NAME
from bayplan.schemas.checkpoint_index import CheckpointError, CheckpointRule, ShardIndex
from bayplan.schemas.hub_id import HubId
from bayplan.schemas.safetensors_header import PREFIX_BYTES, RawHeader, header_length

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_READ_BYTES = 128 * 1024
"""Asked for at once of a shard of unknown content: enough for most headers, so that one request does."""
_ENTRY_BYTES = 120
"""Of one tensor in a header, besides its name: data type, shape and offsets of the longest kind."""
_REST_BYTES = 1024
"""Of a header besides its tensors: metadata and padding."""
_TIMEOUT_SECONDS = 30
_MAX_CONNECTIONS = 8
_GENERATION_CONFIG_NAME = "generation_config.json"


class HubModel(msgspec.Struct, frozen=True, kw_only=True):
    """What the Hub says of a model at one commit."""

    repo: str
    """Its name now; another than the one asked for where it was renamed."""
    commit: str
    config_path: Path | None
    """Downloaded, with generation config and, if trusted, code beside it; None: there is none."""
    headers: dict[str, RawHeader]
    """By shard name, sorted; not parsed. Empty: no weights, or none that are read."""
    content_sha256: dict[str, str]
    """By shard name; shards of which the Hub keeps no hash are not in it."""
    weights: FoundWeights
    parts: tuple[str, ...]
    """Folders with a config of their own, sorted, where the whole is a pipeline of several models."""


def read_hub_model(
    hub_id: HubId,
    *,
    variant: str | None = None,
    with_code: bool = False,
    endpoint: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> HubModel:
    """Return the identity of a model on the Hub.

    Args:
        hub_id: Repository or folder, and revision; None: the main branch.
        variant: Which of several checkpoints.
        with_code: Download the repository's Python files too.
        endpoint: Address of the Hub; None: the client's own choice.
        progress: Told of shards whose headers were read.

    Returns:
        Config and headers, pinned to the commit that the revision is now.

    Raises:
        HubError: The model is gated.
        HubError: There is no such model.
        HubError: It has no such revision.
        HubError: It has no such folder.
        HubError: The Hub cannot be reached, or may not be asked.
        HubError: The Hub does not accept the token, has had enough requests, or answers with another error.
        HubError: A shard is not what the repository's listing says.
        CheckpointError: Several safetensors checkpoints, or a malformed index, or a shard missing.
        SafetensorsFormatError: A shard is too short for its header.
    """
    where = hub_id.repo if hub_id.folder is None else f"{hub_id.repo}/{hub_id.folder}"
    where = where if hub_id.revision is None else f"{where}@{hub_id.revision}"
    try:
        return _Reader(hub_id, where, endpoint).read(variant, with_code, progress)
    except CLIENT_FAULTS as error:
        raise hub_error(error, where) from error


class _Reader:
    """One model at one commit."""

    def __init__(self, hub_id: HubId, where: str, endpoint: str | None) -> None:
        self._where = where
        self._endpoint = endpoint
        info = HfApi(endpoint=endpoint).model_info(hub_id.repo, revision=hub_id.revision, files_metadata=True)
        assert info.sha is not None, "the Hub names the commit of every model"
        self._repo = info.id or hub_id.repo
        self._commit = info.sha
        self._folder = "" if hub_id.folder is None else f"{hub_id.folder}/"
        files = {
            file.rfilename.removeprefix(self._folder): file
            for file in info.siblings or []
            if file.rfilename.startswith(self._folder)
        }
        if not files and hub_id.folder is not None:
            raise HubError(
                "the repository has no such folder", where=where, got=hub_id.folder, fault=HubFault.MISSING
            )
        self._num_bytes = {name: file.size for name, file in files.items()}
        self._sha256 = {name: file.lfs.sha256 for name, file in files.items() if file.lfs is not None}
        # A checkpoint is looked for at the top: what is in folders belongs to other formats or parts.
        self._names = sorted(name for name in files if "/" not in name)

    def read(
        self, variant: str | None, with_code: bool, progress: Callable[[str, int, int], None] | None
    ) -> HubModel:
        config_path = None
        for name in self._names:
            if name in (CONFIG_NAME, _GENERATION_CONFIG_NAME) or (with_code and name.endswith(".py")):
                path = self._download(name)
                config_path = path if name == CONFIG_NAME else config_path
        weights = find_weights(
            self._names,
            variant,
            where=self._where,
            fetch=self._download,
            is_there=self._num_bytes.__contains__,
        )
        shards = weights.shards
        first_bytes = _first_read_bytes(weights.index)
        headers: dict[str, RawHeader] = {}
        with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
            read = pool.map(lambda name: self._read_header(name, first_bytes[name]), shards)
            for done, header in enumerate(read, start=1):
                headers[shards[done - 1]] = header
                if progress is not None:
                    progress("read headers", done, len(shards))
        return HubModel(
            repo=self._repo,
            commit=self._commit,
            config_path=config_path,
            headers=headers,
            content_sha256={name: self._sha256[name] for name in shards if name in self._sha256},
            weights=weights,
            parts=self._parts(),
        )

    def _parts(self) -> tuple[str, ...]:
        """Return the folders of a pipeline's models; none where it is no pipeline."""
        if PIPELINE_NAME not in self._names:
            return ()
        parts = (name.removesuffix(f"/{CONFIG_NAME}") for name in self._num_bytes)
        return tuple(sorted(part for part in parts if "/" not in part and part not in self._names))

    def _download(self, name: str) -> Path:
        path = f"{self._folder}{name}"
        return Path(hf_hub_download(self._repo, path, revision=self._commit, endpoint=self._endpoint))

    def _read_header(self, name: str, first_bytes: int) -> RawHeader:
        where = f"{self._where}/{name}"
        if name not in self._num_bytes:
            raise CheckpointError(
                CheckpointRule.SHARD_MISSING,
                "a shard is missing",
                where=self._where,
                got=f"no file {name}",
                needed="every shard that the index names",
            )
        path = f"{self._folder}{name}"
        url = hf_hub_url(self._repo, path, revision=self._commit, endpoint=self._endpoint)
        data, file_bytes = _read_start(url, first_bytes)
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


def _first_read_bytes(index: ShardIndex | None) -> Mapping[str, int]:
    """Return how much of each shard is asked for at first: what its tensors' names let its header be.

    A checkpoint of 162 shards with 5 tensors each would cost 21 MB otherwise, for 120 kB of headers.
    """
    if index is None:
        return defaultdict(lambda: _FIRST_READ_BYTES)
    expected = Counter(dict.fromkeys(index.shard_names(), _REST_BYTES))
    for fqn, shard in index.weight_map.items():
        expected[shard] += len(fqn) + _ENTRY_BYTES
    return expected


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
