"""Timing one action on a device: repeated, after a run that is not timed, and waited for to its end.

Owns which of the times counts, and the rounding. Knows nothing of what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bayplan.schemas.types import MAX_INTEGER

Clock = Callable[[], int]
"""Nanoseconds from any start."""

NANOSECONDS = 10**9


def nothing_to_wait_for() -> None:
    """Return at once: work on the CPU is done when its call returns."""


class Stopwatch:
    """Times actions on one device.

    Args:
        clock: Nanoseconds from any start.
        synchronize: Returns when the device has done everything that it was asked for.
    """

    def __init__(
        self,
        clock: Clock = time.perf_counter_ns,
        synchronize: Callable[[], object] = nothing_to_wait_for,
    ) -> None:
        self._clock = clock
        self._synchronize = synchronize

    def usual_ns(self, action: Callable[[], object], repeats: int) -> int:
        """Return the lower quartile of the times of `action` in nanoseconds, at least 1.

        Not the median: what else the machine does only ever adds time.

        Args:
            action: What is timed.
            repeats: Timed runs, after one that is not.
        """
        action()
        self._synchronize()
        times_ns = []
        for _ in range(repeats):
            start_ns = self._clock()
            action()
            self._synchronize()
            times_ns.append(self._clock() - start_ns)
        return max(1, sorted(times_ns)[repeats // 4])


def round_rate(value: int) -> int:
    """Return `value` rounded to three significant digits: more would be noise; halves are rounded up."""
    unit: int = 10 ** max(0, len(str(value)) - 3)
    return (value + unit // 2) // unit * unit


def rate_of(amount: int, taken_ns: int) -> int:
    """Return `amount` per second, rounded, within what a file may say."""
    return min(MAX_INTEGER, max(1, round_rate(amount * NANOSECONDS // taken_ns)))
