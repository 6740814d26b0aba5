from __future__ import annotations

import math
import os
import subprocess
import sys
import threading

import highspy
import pytest

from bayplan.planner.solve import integer_program
from bayplan.planner.solve.integer_program import End, Found, IntegerProgram


def knapsack(num_items: int = 12) -> tuple[IntegerProgram, list[tuple[int, float]]]:
    """A covering problem whose relaxation is not integral."""
    program = IntegerProgram()
    items = [program.integer(3) for _ in range(num_items)]
    program.at_least([(item, 7.0 + 3 * (place % 5)) for place, item in enumerate(items)], 101.5)
    return program, [(item, 5.0 + 2.3 * (place % 4)) for place, item in enumerate(items)]


def solve_knapsack() -> Found:
    program, objective = knapsack()
    return program.minimise(objective, relative_gap=0.0)


def test_the_least_sum() -> None:
    program = IntegerProgram()
    one, half = program.integer(5), program.number(1.0)
    program.at_least([(one, 1.0), (half, 2.0)], 3.5)
    found = program.minimise([(one, 1.0), (half, 3.0)], relative_gap=0.0)
    assert found.end is End.OPTIMAL
    assert found.values == pytest.approx((3.0, 0.25))
    assert (found.objective, found.bound) == pytest.approx((3.75, 3.75))


def test_rows_of_each_kind_bind() -> None:
    program = IntegerProgram()
    low, high, fixed, switch = program.number(), program.number(), program.number(), program.switch()
    assert program.num_variables == 4
    program.at_least([(low, 1.0)], 2.5)
    program.at_most([(high, 1.0)], 4.5)
    program.equal([(fixed, 2.0)], 7.0)
    found = program.minimise([(low, 1.0), (high, -1.0), (fixed, 1.0), (switch, -1.0)], relative_gap=0.0)
    assert found.values == pytest.approx((2.5, 4.5, 3.5, 1.0))


def test_a_variable_that_comes_twice_counts_twice() -> None:
    program = IntegerProgram()
    one = program.number()
    program.at_least([(one, 1.0), (one, 1.0)], 6.0)
    found = program.minimise([(one, 1.0), (one, 1.0)], relative_gap=0.0)
    assert (found.values, found.objective) == (pytest.approx((3.0,)), pytest.approx(6.0))


def test_a_program_without_integers_is_its_own_bound() -> None:
    program = IntegerProgram()
    one = program.number(9.0)
    program.at_least([(one, 3.0)], 4.0)
    found = program.minimise([(one, 3.0)], relative_gap=0.0)
    assert (found.end, found.bound) == (End.OPTIMAL, pytest.approx(4.0))


def test_rows_added_between_two_solves_count_in_the_second() -> None:
    program, objective = knapsack()
    before = program.minimise(objective, relative_gap=0.0)
    program.at_most([(4, 1.0)], 0.0)
    after = program.minimise(objective, relative_gap=0.0)
    assert after.objective > before.objective
    assert (round(before.values[4]), round(after.values[4])) == (3, 0)


@pytest.mark.parametrize("is_integer", [True, False])
def test_an_impossible_program(is_integer: bool) -> None:
    program = IntegerProgram()
    one = program.integer(2) if is_integer else program.number(2.0)
    program.at_least([(one, 1.0)], 3.0)
    assert program.minimise([(one, 1.0)], relative_gap=0.0) == Found(
        end=End.INFEASIBLE, values=(), objective=math.inf, bound=math.inf
    )


def test_a_feasible_program_is_not_called_impossible() -> None:
    """With its presolve the solver does so here (version 1.16.0); cut down from a placement's program."""
    program = IntegerProgram()
    a, b, c, d, e, f, g, h, i, j, k, m, n, o = (program.switch() for _ in range(14))
    p, q, free = program.number(3.0), program.number(3.0), program.number()
    program.equal([(a, -1.0), (b, 1.0), (c, 1.0)], 0.0)
    program.at_most([(c, 2.0), (d, 3.0), (e, -4.0), (f, -3.0)], 0.0)
    program.equal([(b, -1.0), (d, -1.0), (g, 1.0)], 0.0)
    program.equal([(c, -1.0), (d, -1.0), (h, 1.0)], 0.0)
    program.equal([(e, 1.0), (f, 1.0), (i, 1.0)], 1.0)
    program.equal([(e, 1.0), (f, 1.0), (j, 1.0)], 1.0)
    program.equal([(e, 1.0), (k, 1.0), (m, 1.0)], 1.0)
    program.at_most([(k, 1.0), (o, -1.0)], 0.0)
    program.at_most([(m, 1.0), (o, -1.0)], 0.0)
    program.at_most([(k, 17 / 1024), (n, 16 / 1024), (o, 0.003021240234375)], 19 / 1024)
    program.at_most([(m, -1.0), (q, 1.0)], 0.0)
    program.at_most([(n, -1.0), (p, 1.0), (q, 1.0)], 0.0)
    program.at_least([(j, -8.388608), (m, -16.777216), (p, 8.388608), (q, 16.777216)], 0.0)
    assert program.minimise([(free, 1.0)], relative_gap=0.0).end is End.OPTIMAL


class FailingSolver:
    """A solver that fails from its first random beginnings."""

    def __init__(self, solver: highspy.Highs, num_failures: int) -> None:
        self._solver = solver
        self._num_failures = num_failures

    def __getattr__(self, name: str) -> object:
        return getattr(self._solver, name)

    def getModelStatus(self) -> highspy.HighsModelStatus:  # as the solver spells it
        self._num_failures -= 1
        is_failing = self._num_failures >= 0
        return highspy.HighsModelStatus.kSolveError if is_failing else self._solver.getModelStatus()


def test_a_solver_that_fails_begins_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = solve_knapsack()
    new_solver = integer_program._new_solver
    monkeypatch.setattr(integer_program, "_new_solver", lambda: FailingSolver(new_solver(), 3))
    found = solve_knapsack()
    assert (found.end, found.objective) == (End.OPTIMAL, expected.objective)


def test_nothing_to_minimise_is_whether_anything_works() -> None:
    program, _ = knapsack()
    found = program.minimise([], relative_gap=0.0)
    assert (found.end, found.objective) == (End.OPTIMAL, 0.0)
    assert len(found.values) == program.num_variables


def hard() -> tuple[IntegerProgram, list[tuple[int, float]]]:
    """Equal sums of odd numbers: many branches."""
    program = IntegerProgram()
    items = [program.switch() for _ in range(40)]
    over, under = program.number(), program.number()
    weights = [(item, float(2 * place**2 + 12347 * place % 8191 + 1)) for place, item in enumerate(items)]
    half = sum(weight for _, weight in weights) / 2 + 0.25
    program.equal([*weights, (under, 1.0), (over, -1.0)], half)
    program.equal([(item, 1.0) for item in items], 20.0)
    return program, [(over, 1.0), (under, 1.0)]


def test_out_of_work_is_no_optimum_and_keeps_its_bound() -> None:
    program, objective = hard()
    found = program.minimise(objective, relative_gap=0.0, max_nodes=1)
    assert found.end is End.WORK_LIMIT
    assert found.bound < found.objective


def test_out_of_time() -> None:
    program, objective = hard()
    assert program.minimise(objective, relative_gap=0.0, time_limit_s=0.0).end is End.TIME_LIMIT


def test_a_start_is_a_solution_to_begin_with() -> None:
    """With no work allowed, what it had to begin with is all that it can have."""
    program, objective = knapsack()
    best = program.minimise(objective, relative_gap=0.0)
    start = {place: value for place, value in enumerate(best.values)}
    found = program.minimise(objective, relative_gap=0.0, max_nodes=0, start=start)
    assert found.objective == pytest.approx(best.objective)


def test_a_gap_that_is_good_enough_still_has_a_true_bound() -> None:
    program, objective = knapsack()
    best = program.minimise(objective, relative_gap=0.0)
    rough = program.minimise(objective, relative_gap=0.5)
    assert rough.bound <= best.objective + 1e-6 <= rough.objective + 2e-6


def test_the_same_program_has_the_same_answer() -> None:
    assert [solve_knapsack() for _ in range(3)] == [solve_knapsack()] * 3


def test_threads_at_once_have_the_same_answers_and_leave_standard_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    expected, found = solve_knapsack(), []
    threads = [
        threading.Thread(target=lambda: found.extend(solve_knapsack() for _ in range(10))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 40
    os.write(1, b"still here\n")
    assert capfd.readouterr() == ("still here\n", "")


SCRIPT = """
import sys
from test_integer_program import solve_knapsack
found = solve_knapsack()
print(found.objective, file=sys.stderr)
"""


def in_a_process(script: str, shell: str = 'exec "$@"') -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.path.dirname(__file__)}
    return subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", script],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )


def test_nothing_of_the_first_use_reaches_standard_output() -> None:
    """The solver prints a banner when it is loaded, which a test after others would not see."""
    ended = in_a_process(SCRIPT)
    assert (ended.stdout, float(ended.stderr)) == ("", solve_knapsack().objective)


def test_a_closed_standard_output() -> None:
    ended = in_a_process(SCRIPT, 'exec "$@" >&-')
    assert (ended.stdout, float(ended.stderr)) == ("", solve_knapsack().objective)


def test_what_was_printed_before_and_after_is_kept_in_order() -> None:
    ended = in_a_process(f"print('before'){SCRIPT}print('after')")
    assert ended.stdout == "before\nafter\n"


def test_one_thread() -> None:
    """The solver's pool would be started by the first program that it solves."""
    count = "import os\nprint(len(os.listdir('/proc/self/task')), file=sys.stderr)"
    script = f"import numpy as np\nnp.ones(2) @ np.ones(2)\nimport sys\n{count}{SCRIPT}{count}"
    before, _, after = in_a_process(script).stderr.split()
    assert before == after


def test_somebody_else_uses_the_solver_with_more_threads() -> None:
    other = (
        "import highspy\n"
        "other = highspy.Highs()\n"
        "other.setOptionValue('output_flag', False)\n"
        "other.setOptionValue('threads', 2)\n"
        "other.run()\n"
    )
    assert float(in_a_process(other + SCRIPT).stderr) == solve_knapsack().objective
