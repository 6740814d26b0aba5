"""The best placement that keeps everything resident, one form per block: a dynamic program over the chain.

State: blocks before a position lie on devices up to one. Exact, in integers, and so quick that it is tried
first. `D` devices and `N` blocks make `D * N^2 / 2` stages.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import peak_bytes
from bayplan.planner.solve.task import Task
from bayplan.schemas.types import Residency


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks `start` to `stop` (exclusive) on one device."""

    device: int
    start: int
    stop: int
    compute_ns: int
    used_bytes: int


class _Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best way to have the blocks before a position on devices up to one."""

    time_ns: int
    num_stages: int
    stretch: Stretch
    before: _Best | None

    @property
    def rank(self) -> tuple[int, int]:
        return self.time_ns, self.num_stages


def resident_answer(task: Task, *, budgets: tuple[int, ...] | None = None) -> tuple[Answer, int] | None:
    """Return the fastest resident placement and its time in nanoseconds; None: nothing fits.

    Of equally fast ones, that with the fewest devices, those first in chain order. Host memory that devices
    share is not looked at.

    Args:
        task: Blocks that may have several forms are taken in the first that they may have.
        budgets: Per device, in bytes; None: the machine's. 0 leaves a device out.
    """
    limits = task.machine.budgets if budgets is None else budgets
    end = len(task.chain)
    fronts: list[dict[int, _Best]] = []
    for device, budget in enumerate(limits):
        front: dict[int, _Best] = {}
        for start in range(end) if budget else ():
            arrivals: dict[tuple[int, int], tuple[int, _Best | None] | None] = {}
            for stretch in stretches(task, device, start, budget):
                handed = (0, 0) if start == 0 else task.handed(start, stretch.stop)
                if handed not in arrivals:
                    arrivals[handed] = _arrival(task, fronts, stretch)
                arrival = arrivals[handed]
                if arrival is None:
                    continue
                time_ns, before = arrival
                best = _Best(
                    time_ns=time_ns + stretch.compute_ns,
                    num_stages=1 if before is None else before.num_stages + 1,
                    stretch=stretch,
                    before=before,
                )
                if stretch.stop not in front or best.rank < front[stretch.stop].rank:
                    front[stretch.stop] = best
        fronts.append(front)
    complete: list[_Best] = []
    for device, front in enumerate(fronts):
        back_ns = task.way_back_ns(device)
        if end in front and back_ns is not None:
            complete.append(msgspec.structs.replace(front[end], time_ns=front[end].time_ns + back_ns))
    if not complete:
        return None
    best = min(complete, key=lambda one: one.rank)
    return _answer(task, best), best.time_ns


def stretches(task: Task, device: int, start: int, budget: int) -> Iterator[Stretch]:
    """Yield what fits `device` from `start` on, shortest first."""
    chain, constraints = task.chain, task.constraints
    weights = time_ns = activations = 0
    for index in range(start, len(chain)):
        if constraints.device[index] not in (None, task.machine.devices[device].id):
            return
        if Residency.RESIDENT not in constraints.residencies(chain, index):
            return
        cost = chain.costs[index]
        number = constraints.forms(chain, index)[0]
        form = cost.forms[number]
        weights += form.parameter_bytes + form.buffer_bytes + cost.kv_bytes
        weights += chain.replica_bytes(start, index)
        activations = max(activations, peak_bytes(cost, form))
        time_ns += task.compute_ns(index, number, device)
        used = weights + chain.scratch_bytes + chain.activation_bytes(activations)
        if used > budget:
            return
        yield Stretch(device=device, start=start, stop=index + 1, compute_ns=time_ns, used_bytes=used)


def _arrival(task: Task, fronts: list[dict[int, _Best]], stretch: Stretch) -> tuple[int, _Best | None] | None:
    """Return the earliest time at which the activations for `stretch` are on its device, and whence."""
    if stretch.start == 0:
        return 0, None
    found: list[tuple[tuple[int, int], int, _Best]] = []
    for source, front in enumerate(fronts):
        before = front.get(stretch.start)
        if before is None:
            continue
        hop = task.hop_ns(stretch.start, stretch.stop, source, stretch.device)
        if hop is not None:
            time_ns = before.time_ns + hop
            found.append(((time_ns, before.num_stages), source, before))
    if not found:
        return None
    (time_ns, _), _, best = min(found, key=lambda one: one[:2])
    return time_ns, best


def _answer(task: Task, best: _Best) -> Answer:
    choices: list[Choice] = []
    step: _Best | None = best
    while step is not None:
        stretch = step.stretch
        choices[:0] = [
            Choice(device=stretch.device, form=task.constraints.forms(task.chain, index)[0])
            for index in range(stretch.start, stretch.stop)
        ]
        step = step.before
    return Answer(choices=tuple(choices), num_slots=(1,) * len(task.machine.devices))
