"""Placement problems whose last blocks use a storage that a first one holds, by hypothesis."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from placement_problems import MIB, PlacementProblem, placement_problems

from bayplan.planner.solve.chain import ChainTie


@st.composite
def tied_problems(
    draw: st.DrawFn, *, max_blocks: int = 8, max_devices: int = 3, unit: int = MIB
) -> PlacementProblem:
    """Draw a problem as `placement_problems` does, with a tied storage so large that a replica hurts."""
    problem = draw(placement_problems(max_blocks=max_blocks, max_devices=max_devices, unit=unit))
    last = len(problem.chain) - 1
    if last < 1:
        return problem
    owner = draw(st.sampled_from((0, 0, 0, min(1, last - 1))))
    user = max(owner + 1, last - draw(st.sampled_from((0, 0, 0, 1))))
    between = draw(st.sets(st.integers(owner, user), max_size=1))
    ties = [
        ChainTie(
            positions=tuple(sorted({owner, user, *between})),
            num_bytes=draw(st.sampled_from((1, 8, 16, 24, 40))) * unit,
        )
    ]
    if not draw(st.integers(0, 4)):
        others = draw(st.sets(st.integers(0, last), min_size=1, max_size=2))
        ties.append(ChainTie(positions=tuple(sorted(others)), num_bytes=unit))
    return msgspec.structs.replace(problem, chain=msgspec.structs.replace(problem.chain, ties=tuple(ties)))
