"""Sizes, rates and durations as people write and read them; everywhere else they are plain integers.

Owns the accepted spellings and the printed ones. Exact: no float takes part, so a size means the same
everywhere. Decimal and binary units are both accepted and never confused: `GiB` is 1024^3 bytes, `GB` is
1000^3.
"""

from __future__ import annotations

import re
from fractions import Fraction

from bayplan.schemas.errors import UsageError
from bayplan.schemas.strict_json import quote
from bayplan.schemas.types import MAX_INTEGER

_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL_UNITS = ("kB", "MB", "GB", "TB", "PB")
_UNIT_BYTES = {
    "B": 1,
    **{unit: 1024**power for power, unit in enumerate(_BINARY_UNITS, start=1)},
    **{unit: 1000**power for power, unit in enumerate(_DECIMAL_UNITS, start=1)},
    "KB": 1000,
}
_QUANTITY = re.compile(
    rf"(?P<number>[0-9]{{1,20}}(?:\.[0-9]{{1,20}})?)(?: ?(?P<unit>{'|'.join(_UNIT_BYTES)}))?"
)
_UNITS_HINT = "KiB, MiB, GiB, TiB, PiB count in 1024s; kB, MB, GB, TB, PB in 1000s; case counts"
_SIZE_FORMS = "a size such as 20GiB, 20GB, 20 GiB, 1.5TiB, or plain bytes"
_RATE_FORMS = "a rate such as 3GB/s, 3.5 GB/s or 500MiB/s"
_DURATION_UNITS = (("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))


class SizeError(UsageError):
    """Text that is no size or rate."""


def parse_size(text: str, *, where: str = "") -> int:
    """Return the bytes that `text` stands for.

    Args:
        text: `20GiB`, `20GB`, `20 GiB`, `1.5TiB`, or plain bytes; `KB` means `kB`. Case counts.
        where: Option or field that holds it, for the message.

    Returns:
        Bytes, >= 0; a fraction of a byte is rounded down.

    Raises:
        SizeError: Any other text, the empty one and signs, exponents and other units included.
        SizeError: Over 2^53 - 1 bytes, more than a plan can hold.
    """
    num_bytes = _parse_quantity(text)
    if num_bytes is None:
        raise SizeError("not a size", where=where, got=quote(text), needed=_SIZE_FORMS, hint=_UNITS_HINT)
    if num_bytes > MAX_INTEGER:
        raise SizeError("size too large", where=where, got=quote(text), needed=f"at most {MAX_INTEGER} bytes")
    return num_bytes


def parse_rate(text: str, *, where: str = "") -> int:
    """Return the bytes per second that `text` stands for.

    Args:
        text: A size with a unit, then `/s`: `3GB/s`, `3.5 GB/s`.
        where: Option or field that holds it, for the message.

    Returns:
        Bytes per second, >= 1; a fraction of a byte is rounded down.

    Raises:
        SizeError: Any other text, or less than one byte per second.
        SizeError: Over 2^53 - 1 bytes per second.
    """
    size = text.removesuffix("/s")
    is_rate = size != text and size.endswith("B")
    bytes_per_second = _parse_quantity(size) if is_rate else None
    if not bytes_per_second:
        raise SizeError("not a rate", where=where, got=quote(text), needed=_RATE_FORMS, hint=_UNITS_HINT)
    if bytes_per_second > MAX_INTEGER:
        raise SizeError(
            "rate too large", where=where, got=quote(text), needed=f"at most {MAX_INTEGER} bytes/s"
        )
    return bytes_per_second


def _parse_quantity(text: str) -> int | None:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    unit_bytes = _UNIT_BYTES[match["unit"] or "B"]
    if unit_bytes == 1 and "." in match["number"]:
        return None
    # Floor of an exact fraction: 0.1 has no exact float, but it is exactly a tenth here.
    return int(Fraction(match["number"]) * unit_bytes)


def format_size(num_bytes: int) -> str:
    """Return `num_bytes` in the largest fitting binary unit, rounded to two decimals: `2.10 GiB`, `512 B`.

    For reading only: exact byte counts are printed as integers. Differences may be negative.
    """
    sign, magnitude = ("-", -num_bytes) if num_bytes < 0 else ("", num_bytes)
    text = f"{magnitude} B"
    for unit in _BINARY_UNITS:
        # Smallest value that the unit below would print as 1024.00.
        below = _UNIT_BYTES[unit] // 1024
        if _hundredths(magnitude, below) < 1024_00:
            break
        hundredths = _hundredths(magnitude, _UNIT_BYTES[unit])
        text = f"{hundredths // 100}.{hundredths % 100:02d} {unit}"
    return sign + text


def _hundredths(count: int, unit: int) -> int:
    """Return count / unit in hundredths, halves rounded up."""
    return (200 * count + unit) // (2 * unit)


def format_duration_ns(duration_ns: int) -> str:
    """Return nanoseconds in a unit that keeps them short: `38.9 ms`, `512 ns`, `2 min 05 s`, `1 h 02 min`.

    One decimal from microseconds to seconds; halves are rounded up. Differences may be negative.
    """
    sign, magnitude = ("-", -duration_ns) if duration_ns < 0 else ("", duration_ns)
    text, tenths = f"{magnitude} ns", 0
    for unit, unit_ns in _DURATION_UNITS:
        # Smallest value that the unit below would print as 1000.0.
        if magnitude < unit_ns - unit_ns // 20_000:
            return sign + text
        tenths = (20 * magnitude + unit_ns) // (2 * unit_ns)
        text = f"{tenths // 10}.{tenths % 10} {unit}"
    if tenths < 600:
        return sign + text
    minutes, seconds = divmod((2 * magnitude + 1_000_000_000) // 2_000_000_000, 60)
    if minutes < 60:
        return f"{sign}{minutes} min {seconds:02d} s"
    hours, minutes = divmod((seconds + 60 * minutes + 30) // 60, 60)
    return f"{sign}{hours} h {minutes:02d} min"
