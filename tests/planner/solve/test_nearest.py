from __future__ import annotations

import pytest
from placement_problems import GIGA, MIB, gpus, make_chain, make_task

import bayplan.planner.solve.nearest
from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.moves import Before, Keeper, Limits
from bayplan.planner.solve.nearest import Nearest
from bayplan.schemas.types import Residency

HERE, THERE = Choice(device=0), Choice(device=1)
STREAMED = Choice(device=0, residency=Residency.STREAM_HOST)

TASK = make_task(make_chain([8 * MIB] * 6), gpus(2, rate=GIGA), {"node0/gpu0": 26 * MIB})
BEFORE = Before(choices=(HERE, HERE, HERE, HERE, STREAMED, THERE), num_slots=(1, 1))
"""One more than the first device holds."""
LIMITS = Limits(time_ns=2**60, devices=frozenset({0, 1}), can_stream=True)
FAR = Answer(choices=(THERE,) * 6, num_slots=(1, 1))


def test_the_fewest_bytes_are_found_however_far_off_the_beginning() -> None:
    keeper = Keeper(TASK, BEFORE, LIMITS, 100)
    found = Nearest(TASK, keeper).fewest(FAR)
    assert keeper.moved_bytes(FAR) == 40 * MIB
    # A slot takes as much as a block: two of the four have to go.
    assert keeper.moved_bytes(found) == 16 * MIB


def test_out_of_work_the_best_so_far_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bayplan.planner.solve.nearest, "MAX_STEPS", 0)
    assert Nearest(TASK, Keeper(TASK, BEFORE, LIMITS, 100)).fewest(FAR) == FAR


def test_a_limit_of_time_is_kept() -> None:
    """Within the time of the first placement nothing may stream."""
    keeper = Keeper(TASK, BEFORE, LIMITS, 100)
    far_rank = keeper.rank(FAR)
    assert far_rank is not None
    limits = Limits(time_ns=far_rank[6], devices=frozenset({0, 1}), can_stream=True)
    found = Nearest(TASK, Keeper(TASK, BEFORE, limits, 100)).fewest(FAR)
    assert found == Answer(choices=(HERE, HERE, HERE, THERE, THERE, THERE), num_slots=(1, 1))
