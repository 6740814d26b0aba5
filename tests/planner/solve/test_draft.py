"""In which units the program counts bytes: small problems in small ones, so that no byte is lost."""

from __future__ import annotations

import pytest
from placement_problems import MIB, gpus, make_chain, make_task

from bayplan.planner.solve.draft import GIBIBYTE, Draft
from bayplan.planner.solve.integer_program import End
from bayplan.planner.solve.modes import Rounding
from bayplan.planner.solve.placement import place
from bayplan.planner.solve.program import PlacementProgram


def draft(*sizes: int, margin_bytes: int = 0) -> Draft:
    rounding = Rounding(margin_bytes=margin_bytes, is_above=False)
    return Draft(make_task(make_chain(sizes), gpus(1)), rounding, ())


@pytest.mark.parametrize(
    ("total_bytes", "unit_bytes"),
    [
        (0, 1),
        (1, 1),
        (63, 32),
        (64, 64),
        (GIBIBYTE - 1, 2**29),
        (GIBIBYTE, GIBIBYTE),
        (2**45, GIBIBYTE),
    ],
)
def test_the_unit_is_a_gibibyte_or_about_as_much_as_there_is(total_bytes: int, unit_bytes: int) -> None:
    assert draft(total_bytes).unit_bytes == unit_bytes


def test_bytes_stay_exact() -> None:
    own = draft(2**20 + 1, 2**29)
    assert own.units(2**20 + 1) * own.unit_bytes == 2**20 + 1
    assert draft(64).limit_units(100) == 100 / 64


def test_a_limit_leaves_its_margin_and_is_no_larger_than_anything_needs() -> None:
    assert draft(GIBIBYTE, margin_bytes=2**20).limit_units(2**31) == 2 - 2**-10
    assert draft(2**20, margin_bytes=2**20).limit_units(2**21) == 2 - 2**-10
    assert draft(64, margin_bytes=1).limit_units(64) == 63 / 64
    assert draft(64).limit_units(2**50) == 2.0**30


@pytest.mark.parametrize("size", [10, 64, 1000, 2**17])
def test_one_byte_less_is_too_little(size: int) -> None:
    chain = make_chain([size] * 4)
    for budget, end in ((4 * size, End.OPTIMAL), (4 * size - 1, End.INFEASIBLE)):
        program = PlacementProgram(
            make_task(chain, gpus(1), {"node0/gpu0": budget}, no_spill=True), can_stream=False
        )
        assert program.minimise([(program.time, 1.0)], relative_gap=0.0).end is end


@pytest.mark.parametrize("budget", [256, 255, 192, 191, 128, 127, 64])
def test_a_few_bytes_are_placed_like_as_many_mebibytes(budget: int) -> None:
    """The rates are the same, so that only the units differ."""
    small, large = (
        place(make_task(make_chain([64 * unit] * 4), gpus(1), {"node0/gpu0": budget * unit}))
        for unit in (1, MIB)
    )
    assert small is not None
    assert large is not None
    assert small.answer == large.answer
    assert small.step_ns * MIB == large.step_ns


def test_a_byte_less_than_one_slot_holds_nothing() -> None:
    assert place(make_task(make_chain([64] * 4), gpus(1), {"node0/gpu0": 63})) is None
