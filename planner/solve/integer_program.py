"""A mixed-integer program and HiGHS, which solves it: the only module that knows the solver.

Owns that nothing of the solver reaches standard output, that it runs on one thread with one seed, and that
its end is told apart: proven, out of work, out of time, impossible. Knows nothing of placements.
"""

from __future__ import annotations

import ctypes
import enum
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import highspy

Terms = Iterable[tuple[int, float]]
"""Variable and factor; a variable may come more than once."""

MAX_NODES = 4_000
"""Branches explored at most. A count, not a time, so that the answer is the same on a slow machine."""

_SEED = 0
_NUM_SEEDS = 8
"""Tried one after the other where its answer violates a row by just more than it takes for nothing."""

_STDOUT = 1

_ONE_AT_A_TIME = threading.Lock()
"""Standard output is the process's, and so is the solver's pool of threads."""


class End(enum.Enum):
    """How a solve ended."""

    OPTIMAL = enum.auto()
    """Within the gap asked for."""
    WORK_LIMIT = enum.auto()
    TIME_LIMIT = enum.auto()
    INFEASIBLE = enum.auto()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a solve gave."""

    end: End
    values: tuple[float, ...]
    """Of the variables; empty: no solution was found."""
    objective: float
    """Of that solution; infinite without one."""
    bound: float
    """No solution has a smaller objective, but for the solver's tolerance."""


class IntegerProgram:
    """Variables, rows and an objective; minimised as often as wanted, with rows added in between."""

    def __init__(self) -> None:
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._is_integer: list[bool] = []
        self._rows: list[tuple[float, float, dict[int, float]]] = []

    @property
    def num_variables(self) -> int:
        """Variables so far."""
        return len(self._lower)

    def number(self, upper: float = math.inf) -> int:
        """Add a variable from 0 to `upper` and return it."""
        return self._variable(upper, is_integer=False)

    def integer(self, upper: int) -> int:
        """Add an integer variable from 0 to `upper` and return it."""
        return self._variable(upper, is_integer=True)

    def switch(self) -> int:
        """Add a variable that is 0 or 1 and return it."""
        return self.integer(1)

    def at_most(self, terms: Terms, limit: float) -> None:
        """Demand that the sum is `limit` at most."""
        self._row(-math.inf, limit, terms)

    def at_least(self, terms: Terms, limit: float) -> None:
        """Demand that the sum is `limit` at least."""
        self._row(limit, math.inf, terms)

    def equal(self, terms: Terms, value: float) -> None:
        """Demand that the sum is `value`."""
        self._row(value, value, terms)

    def minimise(
        self,
        objective: Terms,
        *,
        relative_gap: float,
        max_nodes: int = MAX_NODES,
        time_limit_s: float | None = None,
        start: Mapping[int, float] | None = None,
    ) -> Found:
        """Return the solution with the smallest objective that was found.

        Args:
            objective: What to make small.
            relative_gap: Difference to the best possible, as a share, that is good enough.
            max_nodes: Branches explored at most.
            time_limit_s: Seconds at most; with a limit, the answer may differ from run to run.
            start: Values of integer variables of a solution to begin with.
        """
        import numpy as np

        with _without_output():
            solver = _new_solver()
            import highspy

            for option, value in (
                ("mip_rel_gap", relative_gap),
                ("mip_abs_gap", 0.0),
                ("mip_max_nodes", max_nodes),
                *(() if time_limit_s is None else (("time_limit", time_limit_s),)),
            ):
                solver.setOptionValue(option, value)
            solver.passModel(self._model(objective))
            if start:
                solver.setSolution(
                    len(start), np.fromiter(start, np.int32), np.fromiter(start.values(), np.float64)
                )
            status = _run(solver)
            info = solver.getInfo()
            has_solution = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
            values = tuple(solver.getSolution().col_value) if has_solution else ()
            end = _end(status)
        # A problem without integers has no bound of its own: it is solved, or not.
        is_mixed = any(self._is_integer)
        bound = info.mip_dual_bound if is_mixed else info.objective_function_value
        if end is End.INFEASIBLE:
            return Found(end=end, values=(), objective=math.inf, bound=math.inf)
        objective_value = info.objective_function_value if has_solution else math.inf
        return Found(end=end, values=values, objective=objective_value, bound=bound)

    def _variable(self, upper: float, *, is_integer: bool) -> int:
        self._lower.append(0.0)
        self._upper.append(upper)
        self._is_integer.append(is_integer)
        return len(self._lower) - 1

    def _row(self, lower: float, upper: float, terms: Terms) -> None:
        factors: dict[int, float] = {}
        for variable, factor in terms:
            factors[variable] = factors.get(variable, 0.0) + factor
        self._rows.append((lower, upper, {variable: f for variable, f in factors.items() if f}))

    def _model(self, objective: Terms) -> highspy.HighsLp:
        import highspy
        import numpy as np

        cost = np.zeros(self.num_variables)
        for variable, factor in objective:
            cost[variable] += factor
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self.num_variables, len(self._rows)
        model.col_cost_ = cost
        model.col_lower_ = np.array(self._lower)
        model.col_upper_ = np.array(self._upper)
        model.row_lower_ = np.array([lower for lower, _, _ in self._rows])
        model.row_upper_ = np.array([upper for _, upper, _ in self._rows])
        sizes = [len(factors) for _, _, factors in self._rows]
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(sizes, dtype=np.int32))).astype(np.int32)
        model.a_matrix_.index_ = np.array(
            [variable for _, _, factors in self._rows for variable in factors], dtype=np.int32
        )
        model.a_matrix_.value_ = np.array(
            [factor for _, _, factors in self._rows for factor in factors.values()], dtype=np.float64
        )
        kinds = highspy.HighsVarType
        model.integrality_ = [
            kinds.kInteger if is_integer else kinds.kContinuous for is_integer in self._is_integer
        ]
        return model


def _new_solver() -> highspy.Highs:
    import highspy

    solver = highspy.Highs()  # type: ignore[no-untyped-call]  # its stubs leave the constructor out
    # Its presolve calls feasible programs impossible (seen with 1.16.0; others in its issues 3090 and 2204),
    # and on programs of this kind it takes longer than it saves.
    options = (("output_flag", False), ("threads", 1), ("random_seed", _SEED), ("presolve", "off"))
    for option, value in options:
        solver.setOptionValue(option, value)
    return solver


def _run(solver: highspy.Highs) -> highspy.HighsModelStatus:
    """Solve and return how it ended; begin otherwise where the solver fails by its own tolerance."""
    import highspy

    kinds = highspy.HighsModelStatus
    solver.run()
    if solver.getModelStatus() == kinds.kNotset:
        # Somebody else in this process has used the solver with another number of threads.
        solver.resetGlobalScheduler(True)
        solver.run()
    for seed in range(_SEED + 1, _SEED + _NUM_SEEDS):
        if solver.getModelStatus() != kinds.kSolveError:
            break
        solver.clearSolver()
        solver.setOptionValue("random_seed", seed)
        solver.run()
    return solver.getModelStatus()


def _end(status: highspy.HighsModelStatus) -> End:
    import highspy

    kinds = highspy.HighsModelStatus
    ends = {
        kinds.kOptimal: End.OPTIMAL,
        kinds.kInfeasible: End.INFEASIBLE,
        kinds.kUnboundedOrInfeasible: End.INFEASIBLE,  # no objective here is unbounded
        kinds.kTimeLimit: End.TIME_LIMIT,
        kinds.kSolutionLimit: End.WORK_LIMIT,
        kinds.kIterationLimit: End.WORK_LIMIT,
    }
    assert status in ends, f"HiGHS ended with {status}"
    return ends[status]


@contextmanager
def _without_output() -> Iterator[None]:
    """Let nothing that the solver prints reach standard output, where plans go.

    HiGHS prints a banner when it is first used, and now and then a line in spite of its options (its issue
    2783). It writes to the file descriptor, so that is what is turned away.
    """
    libc = ctypes.CDLL(None)
    with _ONE_AT_A_TIME:
        libc.fflush(None)
        try:
            kept = os.dup(_STDOUT)
        except OSError:  # standard output is closed, so nothing can reach it
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, _STDOUT)
            yield
        finally:
            libc.fflush(None)
            os.dup2(kept, _STDOUT)
            os.close(kept)
            os.close(nowhere)
