"""A Hub on this machine: serves folders as repositories, in the dialect that the real client speaks.

Knows repository listings, trees, ranges, gated, missing and renamed repositories, tokens, and large files
that lie elsewhere; counts what it sends.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
"""Commit of the main branch of every repository."""

_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>[^/?]+))?")
_FILE = re.compile(
    r"(?P<place>/elsewhere)?/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>[^?]+)"
)
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_LFS_SUFFIXES = (".safetensors", ".bin")


class Request(NamedTuple):
    """One request and what was sent back."""

    method: str
    path: str
    status: int
    num_bytes: int
    """Of the body, as it was sent before the client hung up."""
    token: str | None


class HubServer:
    """Repositories by name, and the requests so far."""

    def __init__(self) -> None:
        """Begin with no repositories."""
        self.url = ""
        self.repos: dict[str, Path] = {}
        self.gated: dict[str, int] = {}
        """Status that a repository's files are refused with to those without a token."""
        self.private: dict[str, str] = {}
        """The token without which a repository is not shown."""
        self.renamed: dict[str, str] = {}
        self.revisions = {"main", COMMIT}
        self.knows_ranges = True
        self.large_files_elsewhere = False
        """Answer for large files with the address of another place, as the Hub does."""
        self.error_status: int | None = None
        """Answer everything with this."""
        self.error_text = ""
        self.listed_sizes: dict[str, int] = {}
        """Sizes that the listing gives instead of the true ones."""
        self.requests: list[Request] = []

    def sent(self, suffix: str = "") -> list[int]:
        """Return the bytes of every answer with a body for files whose names end so."""
        return [
            one.num_bytes
            for one in self.requests
            if one.method == "GET" and one.status < 300 and one.path.endswith(suffix)
        ]


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    """Yield a Hub that serves until the block ends."""
    hub = HubServer()

    class Handler(_Handler):
        server_hub = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the tests read `HubServer.requests`."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer listings and files."""
        hub = self.server_hub
        path = self.path.partition("?")[0]
        found = _API.fullmatch(path) or _FILE.fullmatch(path)
        if hub.error_status is not None or found is None:
            headers = {"X-Error-Message": hub.error_text} if hub.error_text else {}
            return self._send(hub.error_status or 404, b"", headers)
        repo = found["repo"]
        if repo in hub.renamed:
            return self._send(307, b"", {"Location": self.path.replace(repo, hub.renamed[repo], 1)})
        folder = hub.repos.get(repo)
        if folder is None or hub.private.get(repo) not in (None, self._token()):
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        if (found["revision"] or "main") not in hub.revisions:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if "name" not in found.groupdict():
            is_tree = found["what"] == "tree"
            return self._send_json(self._tree(folder) if is_tree else self._info(repo, folder))
        if repo in hub.gated and self._token() is None:
            return self._send(hub.gated[repo], b"", {"X-Error-Code": "GatedRepo"})
        file = folder / found["name"]
        if not file.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        is_large = file.name.endswith(_LFS_SUFFIXES)
        if hub.large_files_elsewhere and is_large and found["place"] is None:
            return self._send_elsewhere(file)
        return self._send_file(file)

    def _token(self) -> str | None:
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        return token if scheme == "Bearer" else None

    def _info(self, repo: str, folder: Path) -> object:
        siblings = [
            {"rfilename": name, "size": size, "blobId": sha256[:40], **({"lfs": lfs} if lfs else {})}
            for name, size, sha256, lfs in self._files(folder)
        ]
        return {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}

    def _tree(self, folder: Path) -> object:
        return [
            {"type": "file", "path": name, "size": size, "oid": sha256[:40], **({"lfs": lfs} if lfs else {})}
            for name, size, sha256, lfs in self._files(folder)
        ]

    def _files(self, folder: Path) -> Iterator[tuple[str, int, str, dict[str, object]]]:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = file.relative_to(folder).as_posix()
            sha256 = _hash_of(file)
            size = self.server_hub.listed_sizes.get(name, file.stat().st_size)
            lfs: dict[str, object] = {}
            if name.endswith(_LFS_SUFFIXES):
                lfs = {"oid": sha256, "sha256": sha256, "size": size, "pointerSize": 134}
            yield name, size, sha256, lfs

    def _send_elsewhere(self, file: Path) -> None:
        headers = {
            "Location": f"{self.server_hub.url}/elsewhere{self.path}",
            "X-Repo-Commit": COMMIT,
            "X-Linked-ETag": f'"{_hash_of(file)}"',
            "X-Linked-Size": str(file.stat().st_size),
        }
        return self._send(302, b"", headers)

    def _send_file(self, file: Path) -> None:
        num_bytes = file.stat().st_size
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_hash_of(file)}"'}
        wanted = _RANGE.fullmatch(self.headers.get("Range") or "")
        if wanted is None or not self.server_hub.knows_ranges:
            return self._send(200, file.read_bytes(), headers)
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, num_bytes)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{num_bytes}"
        with file.open("rb") as stream:
            stream.seek(start)
            return self._send(206, stream.read(end - start), headers)

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        path = self.path.partition("?")[0]
        self.server_hub.requests.append(Request(self.command, path, status, len(body), self._token()))
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            # A client that has enough hangs up.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(body)


_HASHED_BYTES = 2**21


def _hash_of(file: Path) -> str:
    """Return a file's SHA-256; of one too large for a test's tensors, which is a hole, that of its start."""
    found = file.stat()
    return _hash_of_state(file, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _hash_of_state(file: Path, num_bytes: int, changed_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.sha256(stream.read(_HASHED_BYTES)).hexdigest()
