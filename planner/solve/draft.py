"""What all rows of the placement's program refer to: blocks as kinds, the cuts, the solver's program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise

import msgspec

from bayplan.planner.solve.cuts import Cut, add_cut, prefix_terms
from bayplan.planner.solve.integer_program import IntegerProgram
from bayplan.planner.solve.ladder import Ladder
from bayplan.planner.solve.modes import Narrowing, Rounding, Term
from bayplan.planner.solve.segments import Segment, number_kinds, segments
from bayplan.planner.solve.task import Task
from bayplan.schemas.problem import BlockForm

GIBIBYTE = 2**30

MAX_UNITS = 2.0**30
"""Of a limit. Nothing small has as many, nor anything that is counted in GiB."""


class Draft:
    """A program that is being set up.

    Attributes:
        task: What is to be placed.
        narrowing: Which ways are looked at.
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
        is_apart: Variable: whether the experts of any block are apart from it; None: it makes no difference.
        unit_bytes: In what the rows count bytes: a power of two, by which integers divide exactly.
    """

    def __init__(
        self,
        task: Task,
        rounding: Rounding | None = None,
        marks: Sequence[Hashable] = (),
        narrowing: Narrowing | None = None,
    ) -> None:
        self.task = task
        self.narrowing = narrowing or Narrowing()
        self.program = IntegerProgram()
        self._rungs = Ladder(task, is_above=rounding is not None and rounding.is_above)
        keys = [_key(task, index, self._rungs) for index in range(len(task.chain))]
        self.kinds = number_kinds(list(zip(keys, marks, strict=True)) if marks else keys)
        self.first = {kind: index for index, kind in reversed(list(enumerate(self.kinds)))}
        self.last = {kind: index for index, kind in enumerate(self.kinds)}
        self.count = Counter(self.kinds)
        self.groups = _groups(self.first, self.last)
        self.group = {kind: number for number, kinds in enumerate(self.groups) for kind in kinds}
        self.segments: tuple[Segment, ...] = segments(self.kinds)
        self.levels = sorted(
            {
                self.activation_level(kind, form, copies=copies)
                for kind in self.first
                for form in self.forms(kind)
                for copies in {True, not task.splits_experts}
            }
        )
        self.unit_bytes = _unit_bytes(self._total_bytes())
        margin_bytes = 0 if rounding is None else rounding.margin_bytes
        self._margin_bytes = -(-margin_bytes * self.unit_bytes // GIBIBYTE)
        self.time = self.program.number()
        self.is_apart = self.program.switch() if task.may_split_copied else None
        self.cuts = self._add_cuts()

    def forms(self, kind: int) -> tuple[int, ...]:
        """Return which of its forms a block of `kind` may have."""
        return self.task.constraints.forms(self.task.chain, self.first[kind])

    def form(self, kind: int, form: int) -> BlockForm:
        """Return one of the forms of a block of `kind`."""
        return self.task.chain.costs[self.first[kind]].forms[form]

    def activation_level(self, kind: int, form: int, *, copies: bool) -> int:
        """Return the activations of a device whose most demanding block is of this kind, in bytes."""
        return self._rungs.level(self.first[kind], form, copies=copies)

    def units(self, num_bytes: int) -> float:
        """Return bytes as the rows have them."""
        return num_bytes / self.unit_bytes

    def limit_units(self, budget_bytes: int) -> float:
        """Return a budget as the rows have it; more than anything could take is as good as that."""
        return min(self.units(budget_bytes - self._margin_bytes), MAX_UNITS)

    def _total_bytes(self) -> int:
        """Return all that there is to place, and the activations of one device."""
        chain = self.task.chain
        blocks = sum(max(form.num_bytes for form in cost.forms) + cost.kv_bytes for cost in chain.costs)
        return blocks + chain.scratch_bytes + self.levels[-1]

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


def _unit_bytes(total_bytes: int) -> int:
    """Return in what bytes are counted: in GiB, or, of fewer bytes, in the power of two below their number.

    The solver takes a row for kept that is missed by a millionth of a unit, which must be nothing beside any
    block. Nor may units be much smaller than the whole: it scales rows, and calls programs impossible where a
    row is missed by more than that, but by less than a millionth of itself (seen with 1.16.0).
    """
    return min(GIBIBYTE, 1 << max(0, total_bytes.bit_length() - 1))


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
    levels = tuple(
        rungs.level(index, form, copies=copies)
        for form in range(len(cost.forms))
        for copies in sorted({True, not task.splits_experts})
    )
    pins = constraints.device[index], constraints.residency[index], constraints.form[index]
    return cost, levels, ties, pins
