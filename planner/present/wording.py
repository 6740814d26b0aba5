"""Words that the pictures of plans share: device names, shares, and text that is safe to print.

Owns the spelling of single facts. Knows nothing of layout.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.schemas.plan import Plan
from bayplan.schemas.strict_json import quote

_MAX_CHARS = 1000
"""Longest text that is shown whole: a layout takes its time for each character."""


def printable(text: str) -> str:
    """Return `text` itself if it is plain ASCII, else quoted and escaped; cut in any case.

    Names come from files that others wrote: control characters must not reach a terminal.
    """
    shown = text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
    return shown if shown.isascii() and shown.isprintable() else quote(text)


def share_text(part_ppm: int) -> str:
    """Return parts per million as a percentage with one decimal, such as `2.3 %`; halves are rounded up."""
    tenths = (part_ppm + 500) // 1000
    return f"{tenths // 10}.{tenths % 10} %"


def count_text(count: int, noun: str) -> str:
    """Return `1 block`, `2 blocks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def millions_text(count: int) -> str:
    """Return a count of parameters, such as `134.5 M`, `671.0 B` or `512`; halves are rounded up."""
    for unit, divisor in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= divisor:
            tenths = (20 * count + divisor) // (2 * divisor)
            return f"{tenths // 10}.{tenths % 10} {unit}"
    return str(count)


def device_label(device_id: str, *, single_node: bool) -> str:
    """Return a device's name for people: without its node where there is only one."""
    return printable(device_id.partition("/")[2] if single_node else device_id)


def has_single_node(plans: Iterable[Plan]) -> bool:
    """Whether all devices of the plans lie on one and the same node."""
    return are_on_one_node(device.id for plan in plans for device in plan.devices)


def are_on_one_node(device_ids: Iterable[str]) -> bool:
    """Whether devices lie on one and the same node."""
    return len({device_id.partition("/")[0] for device_id in device_ids}) <= 1


def rate_text(count: int, unit: str) -> str:
    """Return a rate in decimal billions or trillions, such as `22.00 GB/s`; halves are rounded up."""
    prefix, divisor = ("T", 10**12) if count >= 10**12 else ("G", 10**9)
    hundredths = (200 * count + divisor) // (2 * divisor)
    return f"{hundredths // 100}.{hundredths % 100:02d} {prefix}{unit}"
