from __future__ import annotations

import pytest

from bayplan.planner.representable import representable
from bayplan.planner.solve.predict import Prediction
from bayplan.schemas.errors import UsageError
from bayplan.schemas.types import MAX_INTEGER


def predicted(load_ns: int, decode_ns: int | None = None) -> Prediction:
    return Prediction(load_ns=load_ns, first_output_ns=0, decode_ns=decode_ns, step_ns=0)


@pytest.mark.parametrize("decode_ns", [None, 1, MAX_INTEGER])
def test_times_that_a_plan_can_say_are_returned(decode_ns: int | None) -> None:
    prediction = predicted(MAX_INTEGER, decode_ns)
    assert representable(prediction) is prediction


def test_a_time_that_no_plan_can_say() -> None:
    with pytest.raises(UsageError) as caught:
        representable(predicted(0, 4 * (MAX_INTEGER + 1)))
    assert str(caught.value) == (
        "the inventory's rates and latencies: the machine is too slow for a plan: got a predicted time of "
        "10008 h 00 min, needed at most 2502 h 00 min\n"
        "hint: rates are in bytes and operations per second, latencies in nanoseconds"
    )
