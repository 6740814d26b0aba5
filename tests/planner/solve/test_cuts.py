from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.planner.solve.cuts import add_cut, prefix_terms
from bayplan.planner.solve.integer_program import End, IntegerProgram
from bayplan.planner.solve.segments import segments

PATTERNS = ([0], [0, 1], [0, 0, 0, 0], [2, 0, 1, 0, 1, 0, 1, 3], [0, 1, 1, 0, 1, 1, 2], [0, 1, 2, 3])


@pytest.mark.parametrize("kinds", PATTERNS)
def test_a_cut_can_be_anywhere_and_tells_what_lies_before_it(kinds: list[int]) -> None:
    for position in range(len(kinds) + 1):
        parts = segments(kinds)
        program = IntegerProgram()
        cut = add_cut(program, parts, len(kinds))
        program.equal(cut.terms, float(position))
        found = program.minimise([], relative_gap=0.0)
        assert found.end is End.OPTIMAL
        values = [round(value) for value in found.values]
        assert cut.position(values) == position
        for kind in set(kinds):
            terms = prefix_terms(cut, parts, kinds, kind)
            assert sum(values[variable] * factor for variable, factor in terms) == kinds[:position].count(
                kind
            )


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_no_cut_lies_outside_the_chain(kinds: list[int]) -> None:
    program = IntegerProgram()
    cut = add_cut(program, segments(kinds), len(kinds))
    least = program.minimise(cut.terms, relative_gap=0.0)
    most = program.minimise([(variable, -factor) for variable, factor in cut.terms], relative_gap=0.0)
    assert (round(least.objective), round(-most.objective)) == (0, len(kinds))
