"""What each objective makes of a placement problem: which steps count, how many batches, what comes first.

`decode` and `prefill` are the solver's own; `throughput` tries numbers of batches in flight; `load` minimises
another time first; `balanced` and `sequential` are what users of accelerate know under these names.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.balance import balanced_answer, sequential_answer
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.either_way import Nothing, worst
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.placement import RELATIVE_GAP, SearchOptions, Solution, place, searched
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns
from bayplan.schemas.types import BoundClass, Objective


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with the task that it solves."""

    task: Task
    solution: Solution
    batches_in_flight: int


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A placement problem with its objective."""

    chain: Chain
    machine: Machine
    constraints: Constraints
    objective: Objective
    generates: bool
    """Whether a step is one token; if not, one forward."""
    is_auto: bool = False
    splits_experts: bool = False
    """Whether experts may live apart from their block."""
    time_limit_s: float | None = None

    @property
    def phase(self) -> Objective:
        """The step that is made fast: of decoding, or a forward."""
        if self.objective is Objective.PREFILL or not self.generates:
            return Objective.PREFILL
        return Objective.DECODE

    def task(self, num_batches: int = 1) -> Task:
        """Return the solver's task with that many batches in flight."""
        chain = self.chain if num_batches == 1 else _with_batches(self.chain, num_batches)
        return Task(
            chain,
            self.machine,
            self.constraints,
            self.phase,
            splits_experts=self.splits_experts,
            loads_first=self.objective is Objective.LOAD,
        )


def place_for(problem: Problem, deadline: Deadline | None = None) -> Placed | None:
    """Return the best placement for the objective; None: none satisfies the constraints, or none was found.

    Args:
        problem: The problem.
        deadline: When to end; None: by the problem's own limit, counted from now.
    """
    options = SearchOptions(
        is_auto=problem.is_auto,
        deadline=deadline or Deadline(problem.time_limit_s),
        loads_first=problem.objective is Objective.LOAD,
    )
    if problem.objective is Objective.THROUGHPUT:
        return _most_batches(problem, options)
    task = problem.task()
    solution = place(task, options)
    if solution is None:
        return None
    if problem.objective in (Objective.BALANCED, Objective.SEQUENTIAL):
        solution = _familiar(task, solution, problem.objective)
    return Placed(task=task, solution=solution, batches_in_flight=1)


def _most_batches(problem: Problem, options: SearchOptions) -> Placed | None:
    """Return the placement with the fastest pace, over all numbers of batches up to that of devices.

    What fits the accelerators is not streamed for the sake of more batches; and where rounding comes first,
    only numbers of batches count that need no more of it than one batch does.
    The bound is the least of those that count: with none of them is a placement faster.
    """
    results = list(_paced(problem, options))
    found = [one for one in results if isinstance(one, Placed)]
    if not found:
        return None
    counted = _least_streamed(found)
    if problem.is_auto and _room(counted[0]) is not _Room.STREAMED:
        counted = _least_rounded(counted)  # where something streams in any case, rounding comes second
    best = min(counted, key=lambda placed: (placed.solution.step_ns, placed.batches_in_flight))
    unknown = [one for one in results if isinstance(one, Nothing)]
    bounds = [(own.solution.lower_bound_ns, own.solution.status) for own in counted]
    bounds += [(one.lower_bound_ns, one.status) for one in unknown]
    solution = msgspec.structs.replace(
        best.solution,
        lower_bound_ns=min(bound_ns for bound_ns, _ in bounds),
        status=worst(
            (
                best.solution.status,
                *(status for bound_ns, status in bounds if bound_ns < best.solution.step_ns),
            )
        ),
    )
    return msgspec.structs.replace(best, solution=solution)


def _least_streamed(found: list[Placed]) -> list[Placed]:
    """Return those that fit where not all of them do."""
    least = min(_room(placed) for placed in found)
    return [placed for placed in found if _room(placed) is least]


def _least_rounded(found: list[Placed]) -> list[Placed]:
    """Return those that round the fewest bytes."""
    rounded = [_quantized_bytes(placed) for placed in found]
    # Each search may miss the fewest by its gap, and then use as much again to be faster.
    most = min(rounded) * (1 + RELATIVE_GAP) ** 2
    return [placed for placed, num_bytes in zip(found, rounded, strict=True) if num_bytes <= most]


class _Room(enum.IntEnum):
    """Where everything fits, in the order in which the search tries it."""

    ACCELERATORS = enum.auto()
    ANY_DEVICE = enum.auto()
    STREAMED = enum.auto()


def _room(placed: Placed) -> _Room:
    if placed.solution.bound_class is not BoundClass.CONTIGUOUS_RESIDENT:
        return _Room.STREAMED
    used = {choice.device for choice in placed.solution.answer.choices}
    accelerators = placed.task.machine.accelerators
    return _Room.ACCELERATORS if used <= accelerators or not accelerators else _Room.ANY_DEVICE


def _quantized_bytes(placed: Placed) -> int:
    task, answer = placed.task, placed.solution.answer
    return sum(task.form(index, answer).quantized_bytes for index in range(len(task.chain)))


def _paced(problem: Problem, options: SearchOptions) -> Iterator[Placed | Nothing]:
    """Yield a placement for every number of batches that has one; where time comes first, a faster one only.

    Or what is known where none was found.
    """
    room: _Room | None = None
    for num_batches in range(1, len(problem.machine.devices) + 1):
        task = problem.task(num_batches)
        solution = searched(task, msgspec.structs.replace(options, num_batches=num_batches))
        if solution is None:
            return  # more batches need more memory
        if isinstance(solution, Nothing):
            yield solution
            continue
        placed = Placed(task=task, solution=solution, batches_in_flight=num_batches)
        yield placed
        room = room or _room(placed)
        if _room(placed) is not room:
            return  # no more of them fits where these do not
        if not problem.is_auto:
            limits = (solution.step_ns, options.limit_ns)
            limit_ns = min(limit for limit in limits if limit is not None)
            options = msgspec.structs.replace(options, limit_ns=limit_ns)


def _familiar(task: Task, fastest: Solution, objective: Objective) -> Solution:
    """Return the placement that accelerate's users expect, beside the bound of the fastest one.

    Where not everything can stay, there is none: the fastest one is as good as any.
    """
    chosen = balanced_answer if objective is Objective.BALANCED else sequential_answer
    answer: Answer | None = None
    for only in (task.machine.accelerators, frozenset(range(len(task.machine.devices)))):
        if answer is None and only:
            answer = chosen(task, only)
    if answer is None:
        return fastest
    time_ns = step_ns(task, answer)
    assert time_ns is not None, "a resident placement takes ways that exist"
    return msgspec.structs.replace(fastest, answer=answer, step_ns=time_ns)


def _with_batches(chain: Chain, num_batches: int) -> Chain:
    """Return the chain with a cache for every batch; what a step reads of it is that of its own batch."""
    costs = tuple(msgspec.structs.replace(cost, kv_bytes=num_batches * cost.kv_bytes) for cost in chain.costs)
    return msgspec.structs.replace(chain, costs=costs, num_batches=num_batches)
