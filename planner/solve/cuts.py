"""A cut of the chain as variables: which segment, how many repetitions before it, which place in the pattern.

Linear in these variables are the cut's position and how many blocks of a kind lie before it; within a segment
of one repeated block, every fraction of a position is one of the blocks too, so the relaxation is tight.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bayplan.planner.solve.integer_program import IntegerProgram
from bayplan.planner.solve.segments import Segment

Term = tuple[int, float]


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Variables of one cut."""

    inside: tuple[int, ...]
    """Per segment, a switch: the cut is at its start or within it."""
    at_end: int
    """A switch: the cut is behind the last block."""
    repeats: tuple[int | None, ...]
    """Per segment, whole patterns of it before the cut; None where it has only one."""
    places: tuple[tuple[int, ...], ...]
    """Per segment, a switch per place within the pattern; empty where the pattern is one block."""
    terms: tuple[Term, ...]
    """The cut's position."""

    def position(self, values: Sequence[int]) -> int:
        """Return the position that rounded `values` of all variables give."""
        return round(sum(values[variable] * factor for variable, factor in self.terms))


def add_cut(program: IntegerProgram, segments: Sequence[Segment], num_blocks: int) -> Cut:
    """Add the variables of one cut and what binds them; return them."""
    inside = tuple(program.switch() for _ in segments)
    at_end = program.switch()
    program.equal([*((switch, 1.0) for switch in inside), (at_end, 1.0)], 1.0)
    repeats: list[int | None] = []
    places: list[tuple[int, ...]] = []
    terms: list[Term] = [(at_end, float(num_blocks))]
    for segment, switch in zip(segments, inside, strict=True):
        terms.append((switch, float(segment.start)))
        whole = None
        if segment.repeats > 1:
            whole = program.integer(segment.repeats - 1)
            program.at_most([(whole, 1.0), (switch, -float(segment.repeats - 1))], 0.0)
            terms.append((whole, float(segment.period)))
        own: tuple[int, ...] = ()
        if segment.period > 1:
            own = tuple(program.switch() for _ in range(segment.period))
            program.equal([*((place, 1.0) for place in own), (switch, -1.0)], 0.0)
            terms += [(place, float(number)) for number, place in enumerate(own)]
        repeats.append(whole)
        places.append(own)
    return Cut(inside=inside, at_end=at_end, repeats=tuple(repeats), places=tuple(places), terms=tuple(terms))


def prefix_terms(cut: Cut, segments: Sequence[Segment], kinds: Sequence[int], kind: int) -> list[Term]:
    """Return the terms of how many blocks of `kind` lie before the cut."""

    def count(start: int, stop: int) -> float:
        return float(sum(1 for own in kinds[start:stop] if own == kind))

    terms: list[Term] = [(cut.at_end, count(0, len(kinds)))]
    for number, segment in enumerate(segments):
        terms.append((cut.inside[number], count(0, segment.start)))
        whole = cut.repeats[number]
        if whole is not None:
            terms.append((whole, count(segment.start, segment.start + segment.period)))
        terms += [
            (place, count(segment.start, segment.start + own)) for own, place in enumerate(cut.places[number])
        ]
    return terms
