"""What all rows of the placement's program refer to: blocks as kinds, the cuts, the solver's program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise

import msgspec

from bayplan.planner.solve.cuts import Cut, add_cut, prefix_terms
from bayplan.planner.solve.integer_program import IntegerProgram
from bayplan.planner.solve.ladder import Ladder
from bayplan.planner.solve.modes import GIBIBYTE, Rounding, Term
from bayplan.planner.solve.segments import Segment, number_kinds, segments
from bayplan.planner.solve.task import Task
from bayplan.schemas.problem import BlockForm


class Draft:
    """A program that is being set up.

    Attributes:
        task: What is to be placed.
        program: The solver's.
        kinds: Kind of each block.
        first: Kind -> position of its first block.
        last: Kind -> position of its last block.
        count: Kind -> number of blocks.
        groups: Kinds by where they lie: all of one group before all of the next.
        group: Kind -> its group.
        segments: Stretches that repeat.
        cuts: Where each device but the last ends.
        time: Variable: the step, in milliseconds.
    """

    def __init__(self, task: Task, rounding: Rounding | None, marks: Sequence[Hashable]) -> None:
        self.task = task
        self.program = IntegerProgram()
        self._rungs = Ladder(task, is_above=rounding is not None and rounding.is_above)
        self._margin_bytes = 0 if rounding is None else rounding.margin_bytes
        keys = [_key(task, index, self._rungs) for index in range(len(task.chain))]
        self.kinds = number_kinds(list(zip(keys, marks, strict=True)) if marks else keys)
        self.first = {kind: index for index, kind in reversed(list(enumerate(self.kinds)))}
        self.last = {kind: index for index, kind in enumerate(self.kinds)}
        self.count = Counter(self.kinds)
        self.groups = _groups(self.first, self.last)
        self.group = {kind: number for number, kinds in enumerate(self.groups) for kind in kinds}
        self.segments: tuple[Segment, ...] = segments(self.kinds)
        self.levels = sorted(
            {self.activation_level(kind, form) for kind in self.first for form in self.forms(kind)}
        )
        self.time = self.program.number()
        self.cuts = self._add_cuts()

    def forms(self, kind: int) -> tuple[int, ...]:
        """Return which of its forms a block of `kind` may have."""
        return self.task.constraints.forms(self.task.chain, self.first[kind])

    def form(self, kind: int, form: int) -> BlockForm:
        """Return one of the forms of a block of `kind`."""
        return self.task.chain.costs[self.first[kind]].forms[form]

    def activation_level(self, kind: int, form: int) -> int:
        """Return the activations of a device whose most demanding block is of this kind, in bytes."""
        return self._rungs.level(self.first[kind], form)

    def limit_gib(self, budget_bytes: int) -> float:
        """Return a budget as the rows have it, in GiB."""
        return (budget_bytes - self._margin_bytes) / GIBIBYTE

    def between_cuts(self, device: int, kind: int) -> tuple[list[Term], float]:
        """Return the terms, and a constant, of how many blocks of `kind` lie between a device's cuts."""
        is_last = device == len(self.task.machine.devices) - 1
        after = [] if is_last else prefix_terms(self.cuts[device], self.segments, self.kinds, kind)
        before = [] if not device else prefix_terms(self.cuts[device - 1], self.segments, self.kinds, kind)
        return [*after, *((v, -f) for v, f in before)], float(self.count[kind]) if is_last else 0.0

    def _add_cuts(self) -> list[Cut]:
        """Add where devices end: cuts never go back, so every device has one stretch or none."""
        devices = len(self.task.machine.devices)
        cuts = [add_cut(self.program, self.segments, len(self.kinds)) for _ in range(devices - 1)]
        for before, after in pairwise(cuts):
            self.program.at_most([*before.terms, *((v, -f) for v, f in after.terms)], 0.0)
        return cuts


def _groups(first: Mapping[int, int], last: Mapping[int, int]) -> list[list[int]]:
    """Return kinds by where they lie: all of one group before all of the next, those that mix together."""
    groups: list[list[int]] = []
    reach = -1
    for kind in sorted(first, key=lambda own: first[own]):
        if first[kind] > reach:
            groups.append([])
        groups[-1].append(kind)
        reach = max(reach, last[kind])
    return groups


def _key(task: Task, index: int, rungs: Ladder) -> Hashable:
    """Return all that the program knows of a block: blocks with equal keys may stand for each other."""
    constraints = task.constraints
    ties = tuple(
        (number, tie.positions[0] == index)
        for number, tie in enumerate(task.chain.ties)
        if index in tie.positions
    )
    cost = msgspec.structs.replace(
        task.chain.costs[index],
        first="",
        class_name="",
        prefill_activation_bytes=0,
        decode_activation_bytes=0,
        prefill_output_bytes=0,
        decode_output_bytes=0,
    )
    levels = tuple(rungs.level(index, form) for form in range(len(cost.forms)))
    pins = constraints.device[index], constraints.residency[index], constraints.form[index]
    return cost, levels, ties, pins
