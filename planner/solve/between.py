"""The largest count, of positions or sequences, with which something is enough, in few looks at the model.

A look costs a trace. Between counts that were looked at the chain is guessed: sizes that grow with a count
do so by a straight line or a parabola nearly everywhere. Guesses only choose where to look next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import msgspec

from bayplan.planner.solve.chain import Chain
from bayplan.schemas.problem import BlockRun

MAX_GUESSES = 8
"""After as many looks that did not settle it, every other one halves what is left."""

_NUM_POINTS = 3
"""That a guess goes through: a parabola."""


class Traced:
    """A search among the counts from 1 to below a given one."""

    def __init__(
        self, chain_at: Callable[[int], Chain], is_enough: Callable[[Chain], bool], *, given: int
    ) -> None:
        """Prepare it.

        Args:
            chain_at: Traces the model with a count; asked for each count once.
            is_enough: Tells whether a chain will do. The fewer, the likelier.
            given: A count that will not.
        """
        self._chain_at = chain_at
        self._is_enough = is_enough
        self._given = given
        self._chains: dict[int, Chain] = {}

    def most(self) -> int | None:
        """Return the largest count that is enough, one more being too much; None: not even 1 is."""
        if not self._look(1):
            return None
        low, high = 1, self._given
        if high > low + 1:
            self._chains[high] = self._chain_at(high)
        looks = 0
        while high - low > 1:
            looks += 1
            is_halving = looks > MAX_GUESSES and looks % 2
            place = (low + high) // 2 if is_halving else self._guess(low, high)
            if self._look(place):
                low = place
            else:
                high = place
        return low

    def _look(self, count: int) -> bool:
        if count not in self._chains:
            self._chains[count] = self._chain_at(count)
        return self._is_enough(self._chains[count])

    def _guess(self, low: int, high: int) -> int:
        """Return the count to look at next: where the guessed chains stop being enough."""
        enough, too_much = low, high
        while too_much - enough > 1:
            middle = (enough + too_much) // 2
            if self._is_enough(self._between(middle, low, high)):
                enough = middle
            else:
                too_much = middle
        return max(enough, low + 1)

    def _between(self, count: int, low: int, high: int) -> Chain:
        """Return the chain at `count` as those around it let expect it."""
        nearest = sorted(self._chains, key=lambda known: (known not in (low, high), abs(known - count)))
        known = sorted(nearest[:_NUM_POINTS])
        return guessed_chain([(place, self._chains[place]) for place in known], count, low, high)


def guessed_chain(known: Sequence[tuple[int, Chain]], count: int, low: int, high: int) -> Chain:
    """Return the chain at `count`, by a curve through those that are known.

    Only what decides over memory is guessed. A chain whose blocks are others is taken as it is.

    Args:
        known: Counts with their chains, ascending, `low` and `high` among them.
        count: Between `low` and `high`.
        low: Nothing is less than there.
        high: Nothing is more than there.
    """
    chains = dict(known)
    first = chains[low]
    if any(_shape(chain) != _shape(first) for chain in chains.values()):
        return first

    def guess(size: Callable[[Chain], int]) -> int:
        value = _curve([(place, size(chain)) for place, chain in known], count)
        return min(max(value, size(first)), max(size(first), size(chains[high])))

    costs = tuple(_guessed_cost(first, index, guess) for index in range(len(first)))
    base = guess(lambda chain: chain.base_activation_bytes)
    scratch = guess(lambda chain: chain.scratch_bytes)
    return msgspec.structs.replace(first, costs=costs, base_activation_bytes=base, scratch_bytes=scratch)


def _guessed_cost(first: Chain, index: int, guess: Callable[[Callable[[Chain], int]], int]) -> BlockRun:
    forms = tuple(
        msgspec.structs.replace(
            form, workspace_bytes=guess(_workspace(index, number)), copied_bytes=guess(_copied(index, number))
        )
        for number, form in enumerate(first.costs[index].forms)
    )
    return msgspec.structs.replace(
        first.costs[index],
        forms=forms,
        kv_bytes=guess(lambda chain: chain.costs[index].kv_bytes),
        prefill_activation_bytes=guess(lambda chain: chain.costs[index].prefill_activation_bytes),
        decode_activation_bytes=guess(lambda chain: chain.costs[index].decode_activation_bytes),
    )


def _workspace(index: int, number: int) -> Callable[[Chain], int]:
    return lambda chain: chain.costs[index].forms[number].workspace_bytes


def _copied(index: int, number: int) -> Callable[[Chain], int]:
    return lambda chain: chain.costs[index].forms[number].copied_bytes


def _shape(chain: Chain) -> object:
    return chain.ids, [len(cost.forms) for cost in chain.costs]


def _curve(points: Sequence[tuple[int, int]], place: int) -> int:
    """Return the value at `place` of the polynomial through `points` (Lagrange), rounded up."""
    value = Fraction(0)
    for x, y in points:
        term = Fraction(y)
        for other, _ in points:
            if other != x:
                term *= Fraction(place - other, x - other)
        value += term
    return -(-value.numerator // value.denominator)
