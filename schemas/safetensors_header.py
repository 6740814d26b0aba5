"""Reading a safetensors header: which tensors a file holds, and exactly where their bytes are.

Owns the way from a file, or from bytes fetched by a range request, to a checked header. A file that breaks
any rule is refused, so that later code may read by offset without checking again. Never reads a tensor's
bytes.

Stricter than the safetensors library in six points, each of which leaves a header's meaning open or has no
use: equal keys, unknown keys of an entry, entries written as arrays, dtypes written as objects, white space
before the first brace, and a null `__metadata__`.

References:
    The section "Format" of safetensors' README; checked both ways against the library in
    tests/schemas/test_safetensors_against_library.py.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import msgspec

from bayplan.schemas.safetensors_entries import (
    CUT_SHORT_HINT,
    MAX_UNSIGNED,
    SafetensorsFormatError,
    SafetensorsRule,
    TensorEntry,
    read_entries,
)
from bayplan.schemas.strict_json import JsonError, JsonRule, JsonValue, parse, quote, sha256_digest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "MAX_HEADER_BYTES",
    "PREFIX_BYTES",
    "RawHeader",
    "SafetensorsFormatError",
    "SafetensorsHeader",
    "SafetensorsRule",
    "TensorEntry",
    "header_digest",
    "header_length",
    "parse_header",
    "read_header",
    "read_raw_header",
]

PREFIX_BYTES = 8
"""Length of the length."""
MAX_HEADER_BYTES = 100_000_000
"""Largest JSON part; the library's own limit."""

_METADATA_KEY = "__metadata__"


class SafetensorsHeader(msgspec.Struct, frozen=True, kw_only=True):
    """A checked header: its tensors cover the data of the file from first to last byte."""

    num_bytes: int
    """Prefix and JSON together: the data start here."""
    file_bytes: int
    """Length of the whole file."""
    digest: str
    """`sha256:...` of the first `num_bytes` bytes of the file."""
    tensors: tuple[TensorEntry, ...]
    """In the order of their bytes; empty tensors at one place by fqn."""
    metadata: dict[str, str]
    """What the writer noted, such as `{"format": "pt"}`."""

    def file_offset(self, entry: TensorEntry) -> int:
        """Return where the tensor's first byte is, counted from the start of the file."""
        return self.num_bytes + entry.begin


class RawHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a header, read and not yet looked into."""

    file: str
    data: bytes
    """Prefix and JSON."""
    file_bytes: int

    @property
    def digest(self) -> str:
        """`sha256:...` of the bytes: to be compared before anything in them is believed."""
        return sha256_digest(self.data)

    def parse(self) -> SafetensorsHeader:
        """Return the checked header.

        Raises:
            SafetensorsFormatError: As `parse_header`.
        """
        return parse_header(self.data, self.file_bytes, self.file)


def header_length(first8: bytes, file_bytes: int, where: str) -> int:
    """Return how many bytes at the start of a file are its header, the 8 bytes of length included.

    Args:
        first8: The file's first 8 bytes.
        file_bytes: Length of the whole file.
        where: The file, for the message.

    Returns:
        Bytes to read from the start of the file: 8 to `file_bytes`.

    Raises:
        SafetensorsFormatError: TOO_SHORT: fewer than 8 bytes.
        SafetensorsFormatError: HEADER_CAP: a JSON part over `MAX_HEADER_BYTES`.
        SafetensorsFormatError: HEADER_PAST_END: a header longer than the file.
    """
    if len(first8) < PREFIX_BYTES or file_bytes < PREFIX_BYTES:
        got = f"{min(len(first8), file_bytes)} bytes"
        raise SafetensorsFormatError(
            SafetensorsRule.TOO_SHORT,
            "not a safetensors file: too short",
            file=where,
            got=got,
            needed=f"at least {PREFIX_BYTES}",
            hint=CUT_SHORT_HINT,
        )
    json_bytes = int.from_bytes(first8[:PREFIX_BYTES], "little")
    if json_bytes > MAX_HEADER_BYTES:
        raise SafetensorsFormatError(
            SafetensorsRule.HEADER_CAP,
            "header too long",
            file=where,
            got=f"{json_bytes} bytes",
            needed=f"at most {MAX_HEADER_BYTES}",
            hint="this is probably no safetensors file: its first 8 bytes are not the length of a header",
        )
    num_bytes = PREFIX_BYTES + json_bytes
    if num_bytes > file_bytes:
        raise SafetensorsFormatError(
            SafetensorsRule.HEADER_PAST_END,
            "truncated inside its header",
            file=where,
            got=f"{file_bytes} bytes",
            needed=f"at least {num_bytes}",
            hint=CUT_SHORT_HINT,
        )
    return num_bytes


def read_raw_header(path: Path) -> RawHeader:
    """Return the bytes of a file's header without looking into the JSON.

    Raises:
        SafetensorsFormatError: UNREADABLE: missing, no regular file, or the system refuses.
        SafetensorsFormatError: As `header_length`.
    """
    where = str(path)
    try:
        # Looked at before it is opened: opening a named pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SafetensorsFormatError(SafetensorsRule.UNREADABLE, "not a regular file", file=where)
        with open(path, "rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            prefix = file.read(PREFIX_BYTES)
            data = prefix + file.read(header_length(prefix, file_bytes, where) - PREFIX_BYTES)
    except OSError as error:
        raise SafetensorsFormatError(
            SafetensorsRule.UNREADABLE, "cannot be read", file=where, got=error.strerror or str(error)
        ) from error
    return RawHeader(file=where, data=data, file_bytes=file_bytes)


def header_digest(path: Path) -> str:
    """Return `sha256:...` of a file's header bytes, prefix included; the JSON is not parsed.

    Raises:
        SafetensorsFormatError: As `read_raw_header`.
    """
    return read_raw_header(path).digest


def read_header(path: Path) -> SafetensorsHeader:
    """Return the checked header of a file.

    Raises:
        SafetensorsFormatError: As `read_raw_header` and `parse_header`.
    """
    return read_raw_header(path).parse()


def parse_header(prefix_and_header: bytes, file_bytes: int, where: str) -> SafetensorsHeader:
    """Return the checked header held in the first bytes of a file.

    Args:
        prefix_and_header: The file from its start to at least the end of its header; what follows is ignored,
            so that a range request may ask for more than turns out to be needed.
        file_bytes: Length of the whole file.
        where: The file, for the message.

    Returns:
        The header; its tensors cover the data from first to last byte.

    Raises:
        SafetensorsFormatError: As `header_length` and `read_entries`.
        SafetensorsFormatError: HEADER_INCOMPLETE: `prefix_and_header` ends before the header does.
        SafetensorsFormatError: HEADER_START: the JSON part does not start with a brace.
        SafetensorsFormatError: DUPLICATE_KEY: an object has the same key twice.
        SafetensorsFormatError: NOT_JSON: the JSON part is no JSON object in UTF-8.
        SafetensorsFormatError: METADATA: `__metadata__` is no map from string to string.
    """
    num_bytes = header_length(prefix_and_header[:PREFIX_BYTES], file_bytes, where)
    data = prefix_and_header[:num_bytes]
    if len(data) < num_bytes:
        raise SafetensorsFormatError(
            SafetensorsRule.HEADER_INCOMPLETE,
            "header read in part only",
            file=where,
            got=f"{len(data)} bytes",
            needed=str(num_bytes),
        )
    members = _read_object(data[PREFIX_BYTES:], where)
    metadata = _read_metadata(members.pop(_METADATA_KEY, {}), where)
    return SafetensorsHeader(
        num_bytes=num_bytes,
        file_bytes=file_bytes,
        digest=sha256_digest(data),
        tensors=read_entries(members, file_bytes - num_bytes, where),
        metadata=metadata,
    )


def _read_object(text: bytes, where: str) -> dict[str, JsonValue]:
    if not text.startswith(b"{"):
        got = f"byte {text[0]:#04x}" if text else "an empty header"
        raise SafetensorsFormatError(
            SafetensorsRule.HEADER_START,
            "header does not start with a brace",
            file=where,
            got=got,
            needed="{",
            hint="this is probably no safetensors file",
        )
    try:
        value = parse(text, where=where, max_bytes=MAX_HEADER_BYTES, max_integer=MAX_UNSIGNED)
    except JsonError as error:
        is_duplicate = error.rule is JsonRule.DUPLICATE_KEY
        raise SafetensorsFormatError(
            SafetensorsRule.DUPLICATE_KEY if is_duplicate else SafetensorsRule.NOT_JSON,
            f"header: {error.what}",
            file=where,
            got=error.got,
            needed=error.needed,
        ) from error
    assert isinstance(value, dict), "strict JSON that starts with a brace is an object"
    return value


def _read_metadata(value: JsonValue, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SafetensorsFormatError(
            SafetensorsRule.METADATA,
            "malformed __metadata__",
            file=where,
            got=type(value).__name__,
            needed="an object of strings",
        )
    metadata = {}
    for key, text in value.items():
        if not isinstance(text, str):
            raise SafetensorsFormatError(
                SafetensorsRule.METADATA,
                "malformed __metadata__",
                file=where,
                got=f"{type(text).__name__} at key {quote(key)}",
                needed="an object of strings",
            )
        metadata[key] = text
    return metadata
