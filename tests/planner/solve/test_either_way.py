"""Two searches of one task, the second of the turned chain: which answer counts, and what bounds both."""

from __future__ import annotations

import pytest
from placement_problems import MIB, gpus, make_chain, make_cost, make_form, make_task

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import ChainTie
from bayplan.planner.solve.either_way import Nothing, best_of_both
from bayplan.planner.solve.placement import SearchOptions, Solution
from bayplan.planner.solve.task import Task
from bayplan.schemas.types import BoundClass, SolverStatus

LAYER = 64 * MIB
EVERYTHING = frozenset({0, 1})
OPTIMAL, WORK_LIMIT, TIME_LIMIT = SolverStatus.OPTIMAL, SolverStatus.WORK_LIMIT, SolverStatus.TIME_LIMIT

COST = make_cost(LAYER, others=[make_form(LAYER // 4, "nf4", quantized_bytes=LAYER)])
TASK = make_task(make_chain([COST] * 3, ties=[ChainTie(positions=(0, 2), num_bytes=LAYER)]), gpus(2))


def answer(devices: str, forms: str = "000") -> Answer:
    choices = (
        Choice(device=int(device), form=int(form)) for device, form in zip(devices, forms, strict=True)
    )
    return Answer(choices=tuple(choices), num_slots=(1, 1))


def solution(
    step_ns: int, lower_ns: int, devices: str = "011", forms: str = "000", status: SolverStatus = OPTIMAL
) -> Solution:
    return Solution(
        answer=answer(devices, forms),
        step_ns=step_ns,
        lower_bound_ns=lower_ns,
        bound_class=BoundClass.CONTIGUOUS,
        status=status,
    )


def nothing(lower_ns: int, status: SolverStatus = OPTIMAL) -> Nothing:
    return Nothing(lower_bound_ns=lower_ns, status=status)


Result = Solution | Nothing | None


def joined(
    straight: Result, back: Result, task: Task = TASK, *, rounds_least: bool = False, **fields: object
) -> tuple[Result, list[tuple[bool, int | None]]]:
    """Return what comes of two results, and what was searched: whether turned, and the limit."""
    asked: list[tuple[bool, int | None]] = []

    def search(own: Task, options: SearchOptions) -> Result:
        asked.append((own.turn is not None, options.limit_ns))
        return straight if own.turn is None else back

    options = SearchOptions(**fields)
    return best_of_both(task, options, EVERYTHING, search, rounds_least=rounds_least), asked


UNTIED = make_task(make_chain([COST] * 3), gpus(2))


@pytest.mark.parametrize(
    "result", [solution(9, 8), nothing(8), None], ids=["a placement", "perhaps one", "none"]
)
def test_without_ties_there_is_one_search(result: Result) -> None:
    assert joined(result, None, UNTIED) == (result, [(False, None)])


def test_an_answer_is_one_of_the_chain_as_it_is() -> None:
    """Turned, the last block is the first."""
    found, asked = joined(None, solution(9, 8, "001"))
    assert found == solution(9, 8, "010")
    assert asked == [(True, None), (False, 9)]


def test_what_comes_before_time_leaves_no_limit() -> None:
    for fields in ({"loads_first": True}, {"rounds_least": True}):
        assert joined(None, solution(9, 8), **fields)[1] == [(True, None), (False, None)]


@pytest.mark.parametrize(
    ("straight", "back", "expected"),
    [
        (None, None, None),
        (nothing(7), nothing(6), nothing(6)),
        (nothing(7), None, nothing(7)),
        (
            None,
            Nothing(lower_bound_ns=9, status=OPTIMAL, is_too_slow=True),
            Nothing(lower_bound_ns=9, status=OPTIMAL, is_too_slow=True),
        ),
        (nothing(7, WORK_LIMIT), nothing(6), nothing(6, WORK_LIMIT)),
        (solution(9, 8), None, solution(9, 8)),
        (solution(9, 8), solution(10, 7, "001"), solution(9, 7)),
        (solution(9, 8), solution(10, 9, "001"), solution(9, 8)),
        (solution(9, 8), solution(9, 8, "001"), solution(9, 8)),
        (solution(10, 7), solution(9, 8, "001"), solution(9, 7, "010")),
        (nothing(7), solution(9, 8, "001"), solution(9, 7, "010")),
        (nothing(9), solution(9, 8, "001"), solution(9, 8, "010")),
        (solution(9, 8), nothing(7), solution(9, 7)),
    ],
)
def test_the_faster_one_counts_and_the_lower_bound(straight: Result, back: Result, expected: Result) -> None:
    assert joined(straight, back)[0] == expected


@pytest.mark.parametrize(
    ("straight", "back", "expected"),
    [
        (solution(9, 8), solution(10, 7, "001", status=WORK_LIMIT), WORK_LIMIT),
        (solution(9, 8), solution(10, 9, "001", status=WORK_LIMIT), OPTIMAL),
        (solution(9, 8, status=WORK_LIMIT), solution(10, 8, "001"), WORK_LIMIT),
        (solution(9, 8, status=WORK_LIMIT), nothing(0, TIME_LIMIT), TIME_LIMIT),
    ],
)
def test_a_search_that_was_ended_counts_where_it_leaves_something_open(
    straight: Result, back: Result, expected: SolverStatus
) -> None:
    found = joined(straight, back)[0]
    assert found is not None
    assert found.status is expected


def test_rounding_less_comes_before_time() -> None:
    """Then what rounds more bounds nothing, however fast it is."""
    rough, fine = solution(5, 4, forms="011"), solution(9, 8, "001", forms="001")
    assert joined(rough, fine, rounds_least=True)[0] == solution(9, 8, "010", forms="010")
    assert joined(rough, fine)[0] == solution(5, 4, forms="011")
    ended = solution(5, 4, forms="011", status=WORK_LIMIT)
    assert joined(ended, fine, rounds_least=True)[0] == solution(9, 4, "010", "010", WORK_LIMIT)
    same = solution(9, 3, "001", forms="110")
    assert joined(rough, same, rounds_least=True)[0] == solution(5, 3, forms="011")


def test_loading_comes_before_time() -> None:
    """Bounds are those of the load then, and both count."""
    slow, light = solution(9, 80, forms="111"), solution(5, 90, "001")
    found = joined(slow, light, loads_first=True)[0]
    assert found == solution(9, 80, forms="111")
