"""Graphs that were read before, on disk: one file for each key, and no more of them than a bound.

Owns the cache's folder and the form of its files. A file is only ever put in place whole, and what is in it
is decoded into typed structs, which runs no code; whatever is wrong with it, it counts as not there and is
written anew. A cache that cannot be written costs time and nothing else, so nobody is told.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import time
from pathlib import Path

import msgspec

from bayplan.planner.model.facts import ReadModel
from bayplan.schemas.files import OutputError, write_atomic

FOLDER_VARIABLE = "BAYPLAN_CACHE_DIR"
MAX_ENTRIES = 500
MAX_TOTAL_BYTES = 256 * 2**20
MAX_ENTRY_BYTES = 64 * 2**20
"""Larger entries are not written: a quarter of the cache."""

_MAGIC = b"bayplan graph 1\n"
_SUFFIX = ".graph"
_LEFTOVER_SECONDS = 3600
"""Age at which a file that was not put in place belongs to a process that is gone."""


class CodeFile(msgspec.Struct, frozen=True, array_like=True):
    """A source file whose code took part in reading, by what Python itself takes for a change of it."""

    path: str
    num_bytes: int
    changed_ns: int


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """Again: a file that was renamed is not believed."""
    code: tuple[CodeFile, ...]
    read: msgspec.Raw
    """A `ReadModel`, decoded once the code is known to be the same."""


def cache_folder() -> Path | None:
    """Return the folder of bayplan's caches, which need not exist; None where this user has no home.

    `BAYPLAN_CACHE_DIR` goes before the place that the platform has for caches.
    """
    own = os.environ.get(FOLDER_VARIABLE)
    if own:
        return Path(own)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "bayplan" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "bayplan"
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification says to ignore a relative path.
    return (chosen if chosen.is_absolute() else home / ".cache") / "bayplan"


class GraphStore:
    """The graphs in one folder. Processes may share it: a file is replaced whole, or not at all.

    Args:
        folder: Made when something is first put into it.
        max_entries: Beyond these the least recently used go.
        max_total_bytes: Likewise.
    """

    def __init__(
        self, folder: Path, *, max_entries: int = MAX_ENTRIES, max_total_bytes: int = MAX_TOTAL_BYTES
    ) -> None:
        self._folder = folder
        self._max_entries = max_entries
        self._max_total_bytes = max_total_bytes

    def get(self, key: str) -> ReadModel | None:
        """Return what was put under `key`, or None if it is not there, damaged, or code has changed since."""
        path = self._path(key)
        try:
            data = _own_file(path)
        except OSError:
            return None
        body = _checked_body(data)
        if body is None:
            return None
        try:
            entry = msgspec.msgpack.decode(body, type=_Entry)
            if entry.key != key or not all(map(_is_unchanged, entry.code)):
                return None
            read = msgspec.msgpack.decode(entry.read, type=ReadModel)
        except msgspec.MsgspecError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # what was used last goes last
        return read

    def put(self, key: str, read: ReadModel, code: tuple[CodeFile, ...]) -> None:
        """Keep `read` under `key` until a file in `code` changes. Where it cannot be kept, do nothing."""
        entry = _Entry(key=key, code=code, read=msgspec.Raw(msgspec.msgpack.encode(read)))
        content = _MAGIC + msgspec.msgpack.encode(entry)
        if len(content) > MAX_ENTRY_BYTES:
            return
        with contextlib.suppress(OSError, OutputError):
            # Names of models are nobody else's business.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_no_file(self._path(key)):
                return  # such as a named pipe: writing to it would wait for a reader
            write_atomic(self._path(key), content + hashlib.sha256(content).digest())
            self._prune()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _prune(self) -> None:
        """Delete what was used least recently, until the rest is within the bounds."""
        found: list[tuple[int, int, Path]] = []
        now = time.time()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process prunes too
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(_SUFFIX):
                        found.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
                    elif entry.name.endswith(".tmp") and now - status.st_mtime > _LEFTOVER_SECONDS:
                        os.unlink(entry.path)
        total_bytes = 0
        for number, (_, num_bytes, path) in enumerate(sorted(found, reverse=True), start=1):
            total_bytes += num_bytes
            if number > self._max_entries or total_bytes > self._max_total_bytes:
                path.unlink(missing_ok=True)


def _own_file(path: Path) -> bytes:
    """Return the bytes of a file that this user, or root, has written.

    Raises:
        OSError: It cannot be read, or it is somebody else's: its figures would become ours.
    """
    # Looked at before it is opened: opening a named pipe would wait for a writer.
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("no regular file")
    with path.open("rb") as file:
        if hasattr(os, "geteuid") and os.fstat(file.fileno()).st_uid not in (0, os.geteuid()):
            raise PermissionError("another user's file")
        return file.read(2 * MAX_ENTRY_BYTES)


def _is_no_file(path: Path) -> bool:
    """Return whether something else than a regular file stands there.

    Raises:
        OSError: The system refuses to look.
    """
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _checked_body(data: bytes) -> bytes | None:
    """Return what is between magic and digest, or None if the file is not what was written."""
    content, found = data[: -hashlib.sha256().digest_size], data[-hashlib.sha256().digest_size :]
    if not content.startswith(_MAGIC) or hashlib.sha256(content).digest() != found:
        return None
    return content[len(_MAGIC) :]


def _is_unchanged(file: CodeFile) -> bool:
    try:
        found = os.stat(file.path)
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (file.num_bytes, file.changed_ns)
