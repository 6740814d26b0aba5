"""The tensors that a safetensors header names: each entry right by itself, and all of them covering the data.

Owns the rules of the format, the error that names the broken one, and the checks on entries. Works on decoded
JSON; how a header gets from a file to JSON is `safetensors_header`'s part.
"""

from __future__ import annotations

import enum
import json

import msgspec

from bayplan.schemas.dtypes import DTYPE_BY_SAFETENSORS_NAME, Dtype
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.strict_json import JsonValue, quote

MAX_UNSIGNED = 2**64 - 1
"""Largest size, dimension or offset: the library computes in 64 bits."""
CUT_SHORT_HINT = "the file is cut short: copy or download it again"

_SHOWN_CHARS = 100
_ENTRY_KEYS = frozenset({"dtype", "shape", "data_offsets"})


class SafetensorsRule(enum.StrEnum):
    """The rules of the format, one for each way in which a file can break it. Stable strings."""

    UNREADABLE = "unreadable"
    TOO_SHORT = "too-short"
    HEADER_CAP = "header-cap"
    HEADER_PAST_END = "header-past-end"
    HEADER_INCOMPLETE = "header-incomplete"
    HEADER_START = "header-start"
    NOT_JSON = "not-json"
    DUPLICATE_KEY = "duplicate-key"
    METADATA = "metadata"
    ENTRY_KEYS = "entry-keys"
    UNKNOWN_DTYPE = "unknown-dtype"
    SHAPE = "shape"
    DATA_OFFSETS = "data-offsets"
    BEGIN_AFTER_END = "begin-after-end"
    SIZE_OVERFLOW = "size-overflow"
    PARTIAL_BYTE = "partial-byte"
    SIZE_MISMATCH = "size-mismatch"
    PAST_END = "past-end"
    HOLE = "hole"
    OVERLAP = "overlap"
    TRAILING_BYTES = "trailing-bytes"


class SafetensorsFormatError(BayplanError):
    """A file that is not a valid safetensors file.

    Attributes:
        rule: The rule that is broken.
        file: The file as the caller named it.
        fqn: The tensor concerned; None where it is the file as a whole.
    """

    def __init__(
        self,
        rule: SafetensorsRule,
        what: str,
        *,
        file: str,
        fqn: str | None = None,
        got: str = "",
        needed: str = "",
        hint: str = "",
    ) -> None:
        """Keep the rule, file and tensor beside the facts of `BayplanError`."""
        where = file if fqn is None else f"{file}: tensor {quote(fqn)}"
        super().__init__(what, where=where, got=got, needed=needed, hint=hint)
        self.rule = rule
        self.file = file
        self.fqn = fqn


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a file."""

    fqn: str
    dtype: str
    """Short name of `bayplan.schemas.dtypes`, such as `bf16`."""
    shape: tuple[int, ...]
    """As in the header: for `fp4` it counts single values, where torch counts pairs."""
    begin: int
    """First byte, relative to the data, which start where the header ends."""
    end: int
    """One past the last byte, relative to the data."""

    @property
    def data_offsets(self) -> tuple[int, int]:
        """The half-open range `[begin, end)` as the header gives it."""
        return self.begin, self.end

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor in the file."""
        return self.end - self.begin


class _Fault(Exception):
    """One broken rule of one entry, before the file and the tensor are known."""

    def __init__(
        self, rule: SafetensorsRule, what: str, got: str = "", needed: str = "", hint: str = ""
    ) -> None:
        super().__init__(what)
        self.rule, self.what, self.got, self.needed, self.hint = rule, what, got, needed, hint


def read_entries(members: dict[str, JsonValue], data_bytes: int, file: str) -> tuple[TensorEntry, ...]:
    """Return the tensors of a header, checked one by one and as a cover of the data.

    Args:
        members: The header's JSON object without `__metadata__`.
        data_bytes: Length of the file after its header.
        file: The file, for the message.

    Returns:
        In the order of their bytes; empty tensors at one place by fqn.

    Raises:
        SafetensorsFormatError: ENTRY_KEYS: not an object of exactly `dtype`, `shape` and `data_offsets`.
        SafetensorsFormatError: UNKNOWN_DTYPE: a dtype that safetensors does not have.
        SafetensorsFormatError: SHAPE: not a list of integers from 0 to 2^64 - 1.
        SafetensorsFormatError: DATA_OFFSETS: not two such integers.
        SafetensorsFormatError: BEGIN_AFTER_END: a range that ends before it begins.
        SafetensorsFormatError: SIZE_OVERFLOW: a shape whose size does not fit 64 bits.
        SafetensorsFormatError: PARTIAL_BYTE: values narrower than a byte that do not fill the last one.
        SafetensorsFormatError: SIZE_MISMATCH: dtype and shape give another size than the range.
        SafetensorsFormatError: PAST_END: a range that ends after the file.
        SafetensorsFormatError: HOLE: bytes between two tensors.
        SafetensorsFormatError: OVERLAP: bytes that two tensors share.
        SafetensorsFormatError: TRAILING_BYTES: bytes after the last tensor.
    """
    entries = []
    for fqn, value in members.items():
        try:
            entries.append(_read_entry(fqn, value, data_bytes))
        except _Fault as fault:
            raise SafetensorsFormatError(
                fault.rule,
                fault.what,
                file=file,
                fqn=fqn,
                got=fault.got,
                needed=fault.needed,
                hint=fault.hint,
            ) from None
    entries.sort(key=lambda entry: (entry.begin, entry.end, entry.fqn))
    _check_cover(entries, data_bytes, file)
    return tuple(entries)


def _read_entry(fqn: str, value: JsonValue, data_bytes: int) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != _ENTRY_KEYS:
        got = ", ".join(quote(key) for key in value) if isinstance(value, dict) else type(value).__name__
        raise _Fault(
            SafetensorsRule.ENTRY_KEYS,
            "malformed entry",
            got or "no key",
            "exactly dtype, shape and data_offsets",
        )
    dtype = _read_dtype(value["dtype"])
    shape = _read_sizes(value["shape"])
    if shape is None:
        raise _Fault(SafetensorsRule.SHAPE, "malformed shape", _shown(value["shape"]), "a list of sizes")
    offsets = _read_sizes(value["data_offsets"])
    if offsets is None or len(offsets) != 2:
        raise _Fault(
            SafetensorsRule.DATA_OFFSETS,
            "malformed data_offsets",
            _shown(value["data_offsets"]),
            "[begin, end]",
        )
    begin, end = offsets
    if begin > end:
        raise _Fault(
            SafetensorsRule.BEGIN_AFTER_END, "data_offsets end before they begin", f"[{begin}, {end}]"
        )
    num_bytes = _num_bytes(dtype, shape)
    if num_bytes != end - begin:
        raise _Fault(
            SafetensorsRule.SIZE_MISMATCH,
            "data_offsets do not match dtype and shape",
            f"{end - begin} bytes",
            f"{num_bytes} for {dtype.safetensors_name} {_shown(list(shape))}",
        )
    if end > data_bytes:
        raise _Fault(
            SafetensorsRule.PAST_END,
            "ends past the end of the file",
            f"{data_bytes} bytes of data",
            f"at least {end}",
            CUT_SHORT_HINT,
        )
    return TensorEntry(fqn=fqn, dtype=dtype.name, shape=shape, begin=begin, end=end)


def _read_dtype(value: JsonValue) -> Dtype:
    dtype = DTYPE_BY_SAFETENSORS_NAME.get(value) if isinstance(value, str) else None
    if dtype is None:
        raise _Fault(
            SafetensorsRule.UNKNOWN_DTYPE,
            "unknown dtype",
            _shown(value),
            f"one of {', '.join(DTYPE_BY_SAFETENSORS_NAME)}",
        )
    return dtype


def _read_sizes(value: JsonValue) -> tuple[int, ...] | None:
    """Return a list of sizes or offsets, or None if it is anything else; true and false are no numbers."""
    if not isinstance(value, list):
        return None
    sizes = tuple(size for size in value if type(size) is int and 0 <= size <= MAX_UNSIGNED)
    return sizes if len(sizes) == len(value) else None


def _num_bytes(dtype: Dtype, shape: tuple[int, ...]) -> int:
    num_bits = 1
    # In the library's own order, overflow included: elements first, bits last.
    for size in (*shape, dtype.num_bits):
        num_bits *= size
        if num_bits > MAX_UNSIGNED:
            raise _Fault(
                SafetensorsRule.SIZE_OVERFLOW,
                "size overflows",
                f"{dtype.safetensors_name} {_shown(list(shape))}",
                "a size in bits below 2^64",
            )
    if num_bits % 8:
        raise _Fault(
            SafetensorsRule.PARTIAL_BYTE,
            "values do not fill whole bytes",
            f"{num_bits} bits for {dtype.safetensors_name} {_shown(list(shape))}",
            "a multiple of 8",
        )
    return num_bits // 8


def _check_cover(entries: list[TensorEntry], data_bytes: int, file: str) -> None:
    covered = 0
    previous = "the start of the data"
    for entry in entries:
        if entry.begin > covered:
            raise SafetensorsFormatError(
                SafetensorsRule.HOLE,
                f"a hole lies between it and {previous}",
                file=file,
                fqn=entry.fqn,
                got=f"begin {entry.begin}",
                needed=str(covered),
            )
        if entry.begin < covered:
            raise SafetensorsFormatError(
                SafetensorsRule.OVERLAP,
                f"overlaps {previous}",
                file=file,
                fqn=entry.fqn,
                got=f"begin {entry.begin}",
                needed=str(covered),
            )
        covered = entry.end
        previous = f"tensor {quote(entry.fqn)}"
    if covered < data_bytes:
        raise SafetensorsFormatError(
            SafetensorsRule.TRAILING_BYTES,
            "bytes after the last tensor",
            file=file,
            got=f"{data_bytes} bytes of data",
            needed=str(covered),
        )


def _shown(value: JsonValue) -> str:
    """Return a short text for a value that should have been something else."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
