"""Both classes of placements searched: the chain as it is, and turned, so that its last blocks come back.

Owns which answer is the better one and what bounds both. How either is searched is `placement`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from bayplan.planner.solve.predict import load_ns
from bayplan.planner.solve.returning import turned
from bayplan.planner.solve.task import Task
from bayplan.schemas.types import SolverStatus

if TYPE_CHECKING:
    from bayplan.planner.solve.placement import SearchOptions, Solution

    Searched: TypeAlias = Solution | "Nothing" | None
    """None: there is no placement."""

_BY_SEVERITY = (SolverStatus.OPTIMAL, SolverStatus.WORK_LIMIT, SolverStatus.TIME_LIMIT)


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """What a search says that has found no placement, and not shown that there is none."""

    lower_bound_ns: int
    """Of those that there may be."""
    status: SolverStatus
    is_too_slow: bool = False
    """Whether there are placements, but none under the limit."""


def best_of_both(
    task: Task,
    options: SearchOptions,
    only: frozenset[int],
    search: Callable[[Task, SearchOptions], Searched],
    *,
    rounds_least: bool,
) -> Searched:
    """Return the better answer of two searches, with what bounds both; None: there is none.

    Args:
        task: The problem, not turned.
        options: How to search.
        only: Devices that may be used.
        search: Of a task, turned or not.
        rounds_least: Whether rounding fewer bytes comes before the time of a step.
    """
    other = turned(task, only)
    if other is None or other.turn is None:
        return search(task, options)
    # Without replicas it is mostly faster to come back. That nothing else is as fast is then soon shown.
    back = search(other, options)
    if back is not None and not isinstance(back, Nothing):
        back = msgspec.structs.replace(back, answer=other.turn.straight(back.answer))
        if not (rounds_least or options.loads_first):
            limits = (back.step_ns, options.limit_ns)
            limit_ns = min(limit for limit in limits if limit is not None)
            options = msgspec.structs.replace(options, limit_ns=limit_ns)
    found = search(task, options)
    return _Judge(task, loads_first=options.loads_first, rounds_least=rounds_least).joined(found, back)


def worst(statuses: Iterable[SolverStatus]) -> SolverStatus:
    """Return the status of a search in parts: that of the one that was cut off most."""
    return max(statuses, key=_BY_SEVERITY.index)


class _Judge:
    """Says which of two solutions of a task is better."""

    def __init__(self, task: Task, *, loads_first: bool, rounds_least: bool) -> None:
        self._task = task
        self._loads_first = loads_first
        self._rounds_least = rounds_least

    def joined(self, *searched: Searched) -> Searched:
        """Return the best solution, the first of equal ones, with what bounds all that was searched."""
        nothings = [one for one in searched if isinstance(one, Nothing)]
        solutions = [one for one in searched if one is not None and not isinstance(one, Nothing)]
        if not solutions and nothings:
            return Nothing(
                lower_bound_ns=min(one.lower_bound_ns for one in nothings),
                status=worst(one.status for one in nothings),
                is_too_slow=any(one.is_too_slow for one in nothings),
            )
        if not solutions:
            return None
        best = solutions[0]
        for one in solutions[1:]:
            if self._is_better(one, best):
                best = one
        rivals = [one for one in searched if one is not None and self._may_beat(one, best)]
        return msgspec.structs.replace(
            best,
            lower_bound_ns=min(one.lower_bound_ns for one in (best, *rivals)),
            status=worst(one.status for one in (best, *rivals)),
        )

    def _is_better(self, one: Solution, other: Solution) -> bool:
        """Whether `one` is better than `other`; what comes before time counts beyond the search's own gap."""
        if self._is_clearly_less(one, other) or self._is_clearly_less(other, one):
            return self._is_clearly_less(one, other)
        return one.step_ns < other.step_ns

    def _may_beat(self, one: Solution | Nothing, best: Solution) -> bool:
        """Whether a search leaves open that there is something better than the best solution."""
        is_whole = one.status is SolverStatus.OPTIMAL
        if not isinstance(one, Nothing) and is_whole and self._is_clearly_less(best, one):
            return False
        return self._loads_first or one.lower_bound_ns < best.step_ns

    def _is_clearly_less(self, one: Solution, other: Solution) -> bool:
        from bayplan.planner.solve.placement import RELATIVE_GAP

        first, second = self._first(one), self._first(other)
        return first * (1 + 2 * RELATIVE_GAP) < second

    def _first(self, solution: Solution) -> int:
        """Return what comes before the time of a step: rounded bytes, or the time to load; else 0."""
        task, answer = self._task, solution.answer
        if self._loads_first:
            return load_ns(task, answer)
        if self._rounds_least:
            return sum(task.form(index, answer).quantized_bytes for index in range(len(task.chain)))
        return 0
