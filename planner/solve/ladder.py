"""Activations of blocks rounded to few levels: what keeps blocks alike that differ by little else.

A device's activations are those of its most demanding block. In many models every layer keeps a little more
than the one before, which would make each a kind of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from bayplan.planner.solve.chain import peak_bytes
from bayplan.planner.solve.task import Task

MAX_RUNGS = 12
"""Levels at most: each costs a switch per device."""


class Ladder:
    """Levels of the activations of one task's blocks."""

    def __init__(self, task: Task, *, is_above: bool) -> None:
        """Choose the levels.

        Args:
            task: The blocks.
            is_above: Whether a block's level is the next one above what it needs, else the next below.
        """
        self._task = task
        self._is_above = is_above
        exact = sorted(
            {
                self._exact(index, form, copies=copies)
                for index, cost in enumerate(task.chain.costs)
                for form in range(len(cost.forms))
                for copies in {True, not task.splits_experts}
            }
        )
        # Cut where neighbours differ most, and below the highest, which somewhere is the peak in any case.
        places = range(1, len(exact) - 1)
        gaps = sorted(places, key=lambda place: (exact[place - 1] - exact[place], place))
        starts = sorted({0, len(exact) - 1, *gaps[: MAX_RUNGS - 2]})
        stops = [*starts[1:], len(exact)]
        self._rungs = [
            exact[stop - 1] if is_above else exact[start] for start, stop in zip(starts, stops, strict=True)
        ]

    def level(self, index: int, form: int, *, copies: bool = True) -> int:
        """Return the rounded activations of a device whose most demanding block is this one, in bytes.

        Args:
            index: Its position.
            form: Which of its forms it has.
            copies: Whether a step may copy its experts; False only where the task lets them be apart.
        """
        exact = self._exact(index, form, copies=copies)
        if self._is_above:
            return self._rungs[bisect_left(self._rungs, exact)]
        return self._rungs[bisect_right(self._rungs, exact) - 1]

    def _exact(self, index: int, form: int, *, copies: bool) -> int:
        chain = self._task.chain
        cost = chain.costs[index]
        return chain.activation_bytes(peak_bytes(cost, cost.forms[form], copies=copies))
