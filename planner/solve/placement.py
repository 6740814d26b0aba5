"""The best placement of a task, and a proof of how far it may be from the best there is.

What fits the accelerators is never streamed. Where everything stays, a dynamic program is exact; where
something streams, another one often is (`stages`). Where devices share what counts, or several forms are to
choose from, a mixed-integer program gives the counts and the lower bound, even spacing and a descent the
schedule, and the simulator its time.
"""

from __future__ import annotations

import math

import msgspec

from bayplan.planner.solve.answer import Answer
from bayplan.planner.solve.begin import lean_answers
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.either_way import Nothing, best_of_both
from bayplan.planner.solve.exhaustive import MAX_BLOCKS, Exhaustive
from bayplan.planner.solve.integer_program import End, Found
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.modes import MILLISECOND, Rounding
from bayplan.planner.solve.polish import Polisher
from bayplan.planner.solve.program import PlacementProgram
from bayplan.planner.solve.resident import resident_answer
from bayplan.planner.solve.restarts import restarted
from bayplan.planner.solve.spacing import arrangements
from bayplan.planner.solve.stages import Staged, best_stages
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import paced_step_ns, step_ns
from bayplan.schemas.types import BoundClass, SolverStatus

RELATIVE_GAP = 5e-4
"""Share by which the program's answer may be from its optimum."""

GOOD_ENOUGH = 1e-3
"""Share by which a placement may be above the bound without the search beginning again elsewhere."""

TIE_GAP, TIE_NODES = 1e-2, 300
"""Share by which the program's answer may be from its optimum, and branches explored, where only a tie is
broken."""

ROUNDING_WEIGHT = 64.0
"""Bytes per step that rounding one byte is worth, in a tie."""

MAX_SIMULATIONS = 1_500
"""Placements simulated at most. A count, not a time, so that the answer is the same everywhere."""

ROUNDINGS = (
    None,
    *(Rounding(margin_bytes=margin_bytes, is_above=True) for margin_bytes in (0, 4096, 2**20)),
)
"""Programs tried one after the other until the answer of one fits exactly. The first is a relaxation: it
rounds activations down, and the solver takes a sum for small enough that is a thousandth of a mebibyte too
large."""


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, before it is written down."""

    answer: Answer
    step_ns: int
    """Of the task's phase, steady, simulated: an upper bound."""
    lower_bound_ns: int
    """Of the step; where loading comes first, of the load."""
    bound_class: BoundClass
    status: SolverStatus


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to search."""

    is_auto: bool = False
    """Whether rounding fewer bytes comes before the time of a step."""
    loads_first: bool = False
    """Whether the time to load comes before the time of a step."""
    num_batches: int = 1
    """In flight."""
    limit_ns: int | None = None
    """Of a step: slower placements are of no interest. None: none are too slow."""
    deadline: Deadline = msgspec.field(default_factory=Deadline)

    def is_plain(self, *, can_stream: bool) -> bool:
        """Whether one batch's time is all that counts; where something streams, rounding does not."""
        return not self.needs_program and (can_stream or not self.is_auto)

    @property
    def needs_program(self) -> bool:
        """Whether the dynamic program does not answer what is asked."""
        return self.loads_first or self.num_batches > 1


def place(task: Task, options: SearchOptions | None = None) -> Solution | None:
    """Return the best placement of `task`; None: none satisfies the constraints, or none was found."""
    found = searched(task, options or SearchOptions())
    return None if isinstance(found, Nothing) else found


def searched(task: Task, asked: SearchOptions) -> Solution | Nothing | None:
    """Return the best placement of `task`, or what is known where none was found; None: there is none."""
    everything = frozenset(range(len(task.machine.devices)))
    if not everything:
        return None
    only = task.machine.accelerators or everything
    if not any(task.constraints.must_stream(index) for index in range(len(task.chain))):
        found = _kept(task, only, asked)
        if found is None and task.constraints.no_spill and only != everything:
            found = _kept(task, everything, asked)
        if isinstance(found, Nothing) and not (found.is_too_slow or task.constraints.no_spill):
            found = None  # perhaps something can stay, perhaps not
        if found is not None or task.constraints.no_spill:
            return found

    def search(own: Task, how: SearchOptions) -> Solution | Nothing | None:
        return _by_program(own, how, can_stream=True, only=everything)

    return best_of_both(task, asked, everything, search, rounds_least=False)


def _kept(task: Task, only: frozenset[int], options: SearchOptions) -> Solution | Nothing | None:
    """Return the best placement on `only` that keeps everything there."""

    def search(own: Task, how: SearchOptions) -> Solution | Nothing | None:
        return _resident(own, only, how)

    return best_of_both(task, options, only, search, rounds_least=options.is_auto)


def _resident(task: Task, only: frozenset[int], options: SearchOptions) -> Solution | Nothing | None:
    """Return the best placement of a chain, turned or not, on `only` that keeps everything there."""
    chain, constraints = task.chain, task.constraints
    has_choice = any(len(constraints.forms(chain, index)) > 1 for index in range(len(chain)))
    if has_choice or options.needs_program:
        return _by_program(task, options, can_stream=False, only=only)
    budgets = tuple(budget if device in only else 0 for device, budget in enumerate(task.machine.budgets))
    found = resident_answer(task, budgets=budgets)
    if found is None:
        return None
    answer, time_ns = found
    if shortages(task, answer):  # devices that share host memory take too much of it together
        return _by_program(task, options, can_stream=False, only=only)
    return Solution(
        answer=answer,
        step_ns=time_ns,
        lower_bound_ns=time_ns,
        bound_class=BoundClass.CONTIGUOUS_RESIDENT,
        status=SolverStatus.OPTIMAL,
    )


def _by_program(
    task: Task, options: SearchOptions, *, can_stream: bool, only: frozenset[int]
) -> Solution | Nothing | None:
    def time_ns(own: Task, answer: Answer) -> int | None:
        return paced_step_ns(own, answer, options.num_batches)

    rounds_least = options.is_auto and not can_stream
    polisher = Polisher(task, MAX_SIMULATIONS, time_ns, options.deadline, rounds_least=rounds_least)
    staged: Staged | None = None
    if can_stream and options.is_plain(can_stream=True):
        by_stages = _by_stages(task, options, polisher, only)
        if not isinstance(by_stages, Staged):
            return by_stages
        staged = by_stages
    known = [] if staged is None or staged.answer is None else [staged.answer]
    begin, proof = _begun(task, options, polisher, known, can_stream=can_stream, only=only)
    if begin is None and proof.end is End.INFEASIBLE:
        return _slow_or_none(task, options, can_stream=can_stream, only=only)
    lower_ns = bound_ns(proof.bound)
    if staged is not None:
        lower_ns = max(lower_ns, staged.lower_bound_ns)
        begin = polisher.best(answer for answer in (begin, *known) if answer is not None)
    status = _STATUSES[proof.end]
    if begin is None:
        return Nothing(lower_bound_ns=lower_ns, status=status)
    answer = begin
    if not options.loads_first:
        # Within the program's own gap an even spacing is easier to review than one that gains nothing proven.
        answer = polisher.improved(begin, good_enough_ns=lower_ns + int(lower_ns * RELATIVE_GAP))
        if can_stream:
            answer = restarted(
                task,
                answer,
                polisher,
                only=only,
                num_batches=options.num_batches,
                good_enough_ns=lower_ns + int(lower_ns * GOOD_ENOUGH),
                deadline=options.deadline,
            )
    step = _certain(time_ns(task, answer))
    is_plain = options.is_plain(can_stream=can_stream) and not task.splits_experts
    if step > lower_ns and is_plain and len(task.chain) <= MAX_BLOCKS:
        answer, is_proven = Exhaustive(task, polisher, only, can_stream=can_stream).best(answer)
        step = _certain(time_ns(task, answer))
        if is_proven:
            lower_ns, status = step, SolverStatus.OPTIMAL
    return Solution(
        answer=answer,
        step_ns=step,
        lower_bound_ns=lower_ns,
        bound_class=BoundClass.CONTIGUOUS if can_stream else BoundClass.CONTIGUOUS_RESIDENT,
        status=SolverStatus.TIME_LIMIT if options.deadline.has_ended_search else status,
    )


def _by_stages(
    task: Task, options: SearchOptions, polisher: Polisher, only: frozenset[int]
) -> Staged | Solution | Nothing | None:
    """Return what the search by stages shows; a bound and perhaps a placement where that is not all."""
    staged = best_stages(task, only, polisher, options.deadline, limit_ns=options.limit_ns)
    if staged is None:
        return None
    if options.limit_ns is not None and staged.lower_bound_ns > options.limit_ns:
        return _too_slow(options.limit_ns)
    return _proven(task, staged) or staged


def _slow_or_none(
    task: Task, options: SearchOptions, *, can_stream: bool, only: frozenset[int]
) -> Nothing | None:
    """Return whether there are placements, but slower than the limit, where the program has none under it."""
    if options.limit_ns is None:
        return None
    program = PlacementProgram(task, can_stream=can_stream, only=only)
    is_possible = program.minimise([], relative_gap=RELATIVE_GAP).end is not End.INFEASIBLE
    return _too_slow(options.limit_ns) if is_possible else None


def _too_slow(limit_ns: int) -> Nothing:
    return Nothing(lower_bound_ns=limit_ns, status=SolverStatus.OPTIMAL, is_too_slow=True)


def _proven(task: Task, staged: Staged) -> Solution | None:
    """Return the solution by stages if nothing is much faster; in a small problem, if nothing is faster."""
    if staged.answer is None:
        return None
    step, lower_ns = _certain(step_ns(task, staged.answer)), staged.lower_bound_ns
    spare_ns = 0 if len(task.chain) <= MAX_BLOCKS else int(lower_ns * RELATIVE_GAP)
    if step > lower_ns + spare_ns:
        return None
    return Solution(
        answer=staged.answer,
        step_ns=step,
        lower_bound_ns=lower_ns,
        bound_class=BoundClass.CONTIGUOUS,
        status=SolverStatus.OPTIMAL,
    )


def _begun(
    task: Task,
    options: SearchOptions,
    polisher: Polisher,
    known: list[Answer],
    *,
    can_stream: bool,
    only: frozenset[int],
) -> tuple[Answer | None, Found]:
    """Return a placement that works, where the descent begins, and the solve whose bound counts.

    That of the program if it has one that fits exactly, else any: a program that was ended too early may have
    none. None: there is none.
    """
    first: Found | None = None
    for rounding in ROUNDINGS:
        program = PlacementProgram(
            task,
            can_stream=can_stream,
            only=only,
            num_batches=options.num_batches,
            rounding=rounding,
        )
        if options.limit_ns is not None:
            program.limit([(program.time, 1.0)], options.limit_ns / MILLISECOND)
        found, proof = _solved(program, options, can_stream=can_stream)
        if first is None:
            first = proof
            if found.end is End.INFEASIBLE:
                begin = polisher.best([*known, *lean_answers(task, only, can_stream=can_stream)])
                limit_ns = math.inf if options.limit_ns is None else options.limit_ns
                if begin is None or polisher.step_ns(begin) > limit_ns:
                    return None, first
                # The solver's tolerance is absolute: where rates differ by too much it may be wrong.
                return begin, msgspec.structs.replace(first, end=End.WORK_LIMIT, bound=0.0)
        if not found.values:
            break
        begin = polisher.best(arrangements(task, program.counts(found), program.kinds))
        if begin is not None:
            return begin, first
    assert first is not None, "there is a program"
    return polisher.best(lean_answers(task, only, can_stream=can_stream)), first


def _certain(time_ns: int | None) -> int:
    assert time_ns is not None, "the best placement works"
    return time_ns


def _solved(program: PlacementProgram, options: SearchOptions, *, can_stream: bool) -> tuple[Found, Found]:
    """Return the program's answer, and the solve whose bound counts.

    What comes first is made as small as it can be and then held; the time of a step comes last, but for
    rounding where that was not asked to come first: it only breaks ties.
    """
    gap, deadline = RELATIVE_GAP, options.deadline
    time = [(program.time, 1.0)]
    quantized = program.quantized()
    if quantized and options.is_auto and not can_stream:
        fewest = program.minimise(quantized, relative_gap=gap, deadline=deadline)
        if not fewest.values:
            return fewest, msgspec.structs.replace(fewest, bound=0.0)  # nothing is known of times
        program.limit(quantized, fewest.objective * (1 + gap) + 1e-9)
    if options.loads_first:
        load = [(program.add_load_time(), 1.0)]
        loaded = program.minimise(load, relative_gap=gap, deadline=deadline)
        if not loaded.values:
            return loaded, loaded
        program.limit(load, loaded.objective * (1 + gap) + 1e-9)
        return program.minimise(time, relative_gap=gap, deadline=deadline), loaded
    found = program.minimise(time, relative_gap=gap, deadline=deadline)
    if not found.values or not (quantized or can_stream):
        return found, found
    # Of placements that are as fast, the one that rounds and moves the fewest bytes: it leaves the pipeline,
    # of which the program knows only inequalities, the most room.
    program.limit(time, found.objective * (1 + gap))
    weighted = [(variable, ROUNDING_WEIGHT * factor) for variable, factor in quantized]
    fewest = program.minimise(
        [*weighted, *program.moved()],
        relative_gap=TIE_GAP,
        max_nodes=TIE_NODES,
        deadline=deadline,
        start=found.values,
    )
    return (fewest if fewest.values else found), found


def bound_ns(milliseconds: float) -> int:
    """Return a bound of the program in nanoseconds, safely below: its tolerance and last bits are cut off.

    Twenty significant bits stay, so that another build of the solver gives the same figure.
    """
    exact = int(max(0.0, milliseconds) * MILLISECOND)
    safe = exact - (exact >> 19)
    spare_bits = max(0, safe.bit_length() - 20)
    return safe >> spare_bits << spare_bits


_STATUSES = {
    End.OPTIMAL: SolverStatus.OPTIMAL,
    End.WORK_LIMIT: SolverStatus.WORK_LIMIT,
    End.TIME_LIMIT: SolverStatus.TIME_LIMIT,
}
