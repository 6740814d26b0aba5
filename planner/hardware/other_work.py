"""How much of this machine others use while something is measured on it.

Owns the arithmetic on the system's counters of time. Rates that are measured on a busy machine are too low,
and nobody would see it in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

BUSY_CORES = 0.1
"""Cores that others may use on average before their work shows in the figures."""


class OtherWork:
    """The work of other processes since this object was made.

    Args:
        clock: Seconds from any start.
        all_seconds: Seconds that all cores have worked, for whomever.
        own_seconds: Those for this process.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        all_seconds: Callable[[], float] | None = None,
        own_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock = clock
        self._all_seconds = all_seconds or busy_seconds
        self._own_seconds = own_seconds
        self._start = (clock(), self._all_seconds(), own_seconds())

    def warning(self) -> str | None:
        """Return what a person should know of the figures that were measured meanwhile; None: nothing."""
        start, all_before, own_before = self._start
        elapsed = self._clock() - start
        others = (self._all_seconds() - all_before) - (self._own_seconds() - own_before)
        if elapsed <= 0 or others / elapsed <= BUSY_CORES:
            return None
        return (
            f"other processes used {others / elapsed:.1f} cores of this machine meanwhile: the rates are too "
            "low; measure again when it is quiet"
        )


def busy_seconds() -> float:
    """Return the seconds that all cores have worked, or were kept from it by a machine above this one."""
    times = psutil.cpu_times()
    names = ("user", "system", "nice", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)
