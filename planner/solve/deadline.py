"""When a search has to end by the clock, and whether it did.

The only place where the solver looks at a clock. Without a limit it never does, and the answer is the same
everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """One limit for all parts of a search.

    Attributes:
        has_ended_search: Whether some part of it ended early.
    """

    def __init__(
        self, limit_s: float | None = None, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to count.

        Args:
            limit_s: Seconds from now; None: no limit.
            clock_s: What seconds are read from.
        """
        self._clock_s = clock_s
        self._end_s = None if limit_s is None else clock_s() + limit_s
        self.has_ended_search = False

    def left_s(self) -> float | None:
        """Return the seconds that are left, 0 at least; None: no limit."""
        return None if self._end_s is None else max(0.0, self._end_s - self._clock_s())

    def must_end(self) -> bool:
        """Whether no time is left; whoever asks then ends early."""
        is_over = self.left_s() == 0.0
        self.has_ended_search = self.has_ended_search or is_over
        return is_over
