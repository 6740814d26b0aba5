from collections.abc import Callable

import pytest

from bayplan.planner.hardware.other_work import OtherWork, busy_seconds


def readings(*values: float) -> Callable[[], float]:
    return iter(values).__next__


@pytest.mark.parametrize(
    ("elapsed", "all_seconds", "own_seconds", "cores"),
    [
        (10, 4, 4, None),
        (10, 4, 3, None),
        (10, 4, 2.9, "0.1"),
        (10, 18, 3, "1.5"),
        (10, 3, 4, None),
        (0, 9, 0, None),
    ],
)
def test_work_of_others_is_told(
    elapsed: float, all_seconds: float, own_seconds: float, cores: str | None
) -> None:
    others = OtherWork(readings(5, 5 + elapsed), readings(70, 70 + all_seconds), readings(1, 1 + own_seconds))
    assert others.warning() == (
        cores
        and f"other processes used {cores} cores of this machine meanwhile: the rates are too low; "
        "measure again when it is quiet"
    )


def test_the_system_counts_its_work() -> None:
    before = busy_seconds()
    assert 0 < before <= busy_seconds()
