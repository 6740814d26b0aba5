"""A Hub on this machine: serves folders as repositories, in the dialect that the real client speaks.

Knows repository listings, trees, ranges, gated and missing repositories, and counts what it sends.
"""

from __future__ import annotations

import contextlib
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
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>[^?]+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_LFS_SUFFIXES = (".safetensors", ".bin")


class Request(NamedTuple):
    """One request and what was sent back."""

    method: str
    path: str
    status: int
    num_bytes: int


class HubServer:
    """Repositories by name, and the requests so far."""

    def __init__(self) -> None:
        """Begin with no repositories."""
        self.url = ""
        self.repos: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.revisions = {"main", COMMIT}
        self.knows_ranges = True
        self.is_broken = False
        self.listed_sizes: dict[str, int] = {}
        """Sizes that the listing gives instead of the true ones."""
        self.requests: list[Request] = []

    def sent(self, suffix: str) -> list[int]:
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
        if hub.is_broken or found is None:
            return self._send(501 if hub.is_broken else 404, b"")
        folder = hub.repos.get(found["repo"])
        if folder is None:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        if (found["revision"] or "main") not in hub.revisions:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if "name" not in found.groupdict():
            return self._send_json(self._tree(folder) if found["what"] == "tree" else self._info(folder))
        if found["repo"] in hub.gated:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        file = folder / found["name"]
        if not file.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        return self._send_file(file)

    def _info(self, folder: Path) -> object:
        siblings = [
            {"rfilename": name, "size": size, "blobId": sha256[:40], **({"lfs": lfs} if lfs else {})}
            for name, size, sha256, lfs in self._files(folder)
        ]
        return {"id": "org/name", "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}

    def _tree(self, folder: Path) -> object:
        return [
            {"type": "file", "path": name, "size": size, "oid": sha256[:40], **({"lfs": lfs} if lfs else {})}
            for name, size, sha256, lfs in self._files(folder)
        ]

    def _files(self, folder: Path) -> Iterator[tuple[str, int, str, dict[str, object]]]:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = file.relative_to(folder).as_posix()
            data = file.read_bytes()
            sha256 = hashlib.sha256(data).hexdigest()
            size = self.server_hub.listed_sizes.get(name, len(data))
            lfs: dict[str, object] = {}
            if name.endswith(_LFS_SUFFIXES):
                lfs = {"oid": sha256, "sha256": sha256, "size": size, "pointerSize": 134}
            yield name, size, sha256, lfs

    def _send_file(self, file: Path) -> None:
        data = file.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        wanted = _RANGE.fullmatch(self.headers.get("Range") or "")
        if wanted is None or not self.server_hub.knows_ranges:
            return self._send(200, data, headers)
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return self._send(206, data[start:end], headers)

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.server_hub.requests.append(Request(self.command, self.path.partition("?")[0], status, len(body)))
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            # A client that has enough hangs up.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(body)
