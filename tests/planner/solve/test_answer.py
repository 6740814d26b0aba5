from __future__ import annotations

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.schemas.types import Residency

ANSWER = Answer(
    choices=(
        Choice(device=0),
        Choice(device=0, residency=Residency.STREAM_HOST),
        Choice(device=2, residency=Residency.STREAM_DISK, form=1),
        Choice(device=0, residency=Residency.STREAM_DISK),
    ),
    num_slots=(2, 1, 1),
)


def test_what_streams() -> None:
    assert [choice.streams for choice in ANSWER.choices] == [False, True, True, True]


def test_blocks_of_a_device_whatever_lies_between_them() -> None:
    assert [ANSWER.blocks_on(device) for device in range(3)] == [(0, 1, 3), (), (2,)]
    assert [ANSWER.streamed_on(device) for device in range(3)] == [(1, 3), (), (2,)]
