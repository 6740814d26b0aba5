"""How fast bytes go between two places, from copies of two sizes.

Host memory is pinned where that helps: so are the buffers of a plan that streams from the host. Imports torch
when something is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.hardware.timing import NANOSECONDS, Stopwatch, rate_of, round_rate
from bayplan.schemas.hardware import Link

if TYPE_CHECKING:
    import torch

    from bayplan.planner.hardware.calibration_effort import Effort

Copy = Callable[[], object]
"""Copies once what it was made for, and returns when it is there."""
CopyMaker = Callable[[Link, int], Copy]
"""From a link and a number of bytes to a copy of these over it."""


def measure_link(link: Link, copies: CopyMaker, effort: Effort, stopwatch: Stopwatch) -> Link:
    """Return `link` with its rate and latency as measured.

    Args:
        link: Of the inventory.
        copies: Makes what is timed.
        effort: How much is copied, and how often.
        stopwatch: Its own device is the one that does the copying.
    """
    small_bytes, large_bytes = effort.small_copy_bytes, effort.large_copy_bytes
    small_ns, large_ns = (
        stopwatch.usual_ns(copies(link, num_bytes), effort.repeats)
        for num_bytes in (small_bytes, large_bytes)
    )
    # Noise may make the larger copy look no slower: then only what it surely does is known.
    if large_ns <= small_ns:
        return msgspec.structs.replace(link, bytes_per_second=rate_of(large_bytes, large_ns), latency_ns=0)
    bytes_per_second = rate_of(large_bytes - small_bytes, large_ns - small_ns)
    latency_ns = max(0, small_ns - small_bytes * NANOSECONDS // bytes_per_second)
    return msgspec.structs.replace(link, bytes_per_second=bytes_per_second, latency_ns=round_rate(latency_ns))


def torch_copies(devices: Mapping[str, torch.device]) -> CopyMaker:
    """Return what makes copies between torch's devices.

    Args:
        devices: By the names that links have for their ends; a node's is the CPU.
    """
    import torch

    def make(link: Link, num_bytes: int) -> Copy:
        source, target = devices[link.source], devices[link.target]
        is_pinned = source.type == "cpu" and target.type != "cpu"
        data = torch.ones(num_bytes, dtype=torch.uint8, device=source)
        if is_pinned:
            data = data.pin_memory()
        there = torch.zeros(num_bytes, dtype=torch.uint8, device=target)
        return lambda: there.copy_(data, non_blocking=is_pinned)

    return make
