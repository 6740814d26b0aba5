"""The placement as a mixed-integer program over counts of blocks: its optimum bounds every placement.

Variables say how many blocks of each kind each device computes in each mode; where the chain is cut; how
many slots of which size a device has. Which of equal blocks stream is left open, so the program is small and
its optimum is a lower bound: no schedule does better. The inequalities are explained where they are made
(`memory_rows`, `windows`, `ways`); the formulation is that of Tarnawski et al. (2020) for contiguous cuts,
over counts instead of single blocks, with prefetch windows added.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from bayplan.planner.solve.answer import Choice
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.draft import Draft
from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts
from bayplan.planner.solve.integer_program import MAX_NODES, End, Found
from bayplan.planner.solve.memory_rows import add_apart, add_hosts, add_memory, add_slots, reads_at_load
from bayplan.planner.solve.modes import MILLISECOND, Counts, Mode, Narrowing, Rounding, Stage, Term
from bayplan.planner.solve.split import split_residencies, split_visit
from bayplan.planner.solve.symmetry import add_symmetry
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.ways import add_fetching, add_resources, add_step
from bayplan.planner.solve.windows import add_window


class PlacementProgram:
    """The program of one task."""

    def __init__(
        self,
        task: Task,
        *,
        can_stream: bool,
        only: frozenset[int] | None = None,
        num_batches: int = 1,
        rounding: Rounding | None = None,
        narrowing: Narrowing | None = None,
        marks: Sequence[Hashable] = (),
    ) -> None:
        """Set the program up.

        Args:
            task: What is to be placed.
            can_stream: False: only placements that keep everything resident.
            only: Devices that may be used; None: all.
            num_batches: Batches in flight: the step is then the time from one batch's end to the next one's.
            rounding: None: a relaxation, whose optimum is a lower bound.
            narrowing: Which ways are looked at; None: all there are.
            marks: Per block, what else tells it from blocks that are alike; empty: nothing.
        """
        self._only = frozenset(range(len(task.machine.devices))) if only is None else only
        self._task = task
        self._can_stream = can_stream
        self._draft = Draft(task, rounding, marks, narrowing)
        self._stages = [self._stage(device) for device in range(len(task.machine.devices))]
        add_hosts(self._draft, self._stages)
        add_apart(self._draft, self._stages)
        add_symmetry(self._draft)
        hops = add_step(self._draft, self._stages, num_batches)
        add_resources(self._draft, self._stages, hops)

    @property
    def kinds(self) -> tuple[int, ...]:
        """Kind of each block."""
        return self._draft.kinds

    @property
    def time(self) -> int:
        """Variable: the step, in milliseconds."""
        return self._draft.time

    def minimise(
        self,
        objective: list[Term],
        *,
        relative_gap: float,
        max_nodes: int = MAX_NODES,
        deadline: Deadline | None = None,
        start: Sequence[float] = (),
    ) -> Found:
        """Return the best solution found for `objective`, beginning with `start` if there is one."""
        found = self._draft.program.minimise(
            objective,
            relative_gap=relative_gap,
            max_nodes=max_nodes,
            time_limit_s=None if deadline is None else deadline.left_s(),
            start=dict(enumerate(start)),
        )
        if deadline is not None and found.end is End.TIME_LIMIT:
            deadline.has_ended_search = True
        return found

    @property
    def num_variables(self) -> int:
        """Variables of the program."""
        return self._draft.program.num_variables

    def limit(self, terms: list[Term], limit: float) -> None:
        """Demand of all further solutions that the sum is `limit` at most."""
        self._draft.program.at_most(terms, limit)

    def number(self, upper: float) -> int:
        """Add a variable from 0 to `upper` and return it."""
        return self._draft.program.number(upper)

    def modes(self) -> tuple[Mode, ...]:
        """Return every way to have blocks of a kind on a device."""
        return tuple(mode for stage in self._stages for mode in stage.modes)

    def units(self, num_bytes: int) -> float:
        """Return bytes as the terms have them."""
        return self._draft.units(num_bytes)

    def quantized(self) -> list[Term]:
        """Return the terms of the weights that are rounded, in units of bytes of the model's own format."""
        return [
            (mode.variable, self.units(mode.form.quantized_bytes))
            for mode in self.modes()
            if mode.form.quantized_bytes
        ]

    def moved(self) -> list[Term]:
        """Return the terms of the bytes brought in per step; of experts, what the caches could lack."""
        moved = [(m.variable, self.units(m.form.parameter_bytes)) for m in self.modes() if m.choice.streams]
        for mode in self.modes():
            if mode.slots is not None:
                unit = self.units(mode.form.unit_bytes)
                experts = self._task.chain.costs[self._draft.first[mode.kind]].experts
                assert experts is not None
                moved += [(mode.variable, experts.count * unit), (mode.slots, -unit)]
        return moved

    def add_load_time(self) -> int:
        """Add a variable for the time to read what stays on devices or waits in host memory; return it."""
        program, machine = self._draft.program, self._task.machine
        load = program.number()
        for node, own in enumerate(machine.inventory.nodes):
            if own.disk is None:
                continue
            per_unit = self._draft.unit_bytes * 1000 / own.disk.read_bytes_per_second
            reading = [
                mode
                for stage in self._stages
                if machine.nodes[stage.device] == node
                for mode in stage.modes
                if mode.form.num_bytes and reads_at_load(mode)
            ]
            terms = [(mode.variable, -per_unit * self.units(mode.form.num_bytes)) for mode in reading]
            # Whatever is read, the disk's latency is waited for once.
            reads = program.switch()
            most = float(sum(self._draft.count[mode.kind] for mode in reading))
            program.at_most([*((mode.variable, 1.0) for mode in reading), (reads, -most)], 0.0)
            program.at_least([(load, 1.0), *terms, (reads, -own.disk.latency_ns / MILLISECOND)], 0.0)
        return load

    def counts(self, found: Found) -> Counts:
        """Return what the values of a solution mean."""
        values = [round(value) for value in found.values]
        ends = [cut.position(values) for cut in self._draft.cuts]
        ends.append(len(self._task.chain))
        return Counts(
            cuts=tuple(ends),
            modes=tuple(
                tuple(part for mode in stage.modes for part in _parts(mode, found.values))
                for stage in self._stages
            ),
            num_slots=tuple(
                next((slots for (slots, _), switch in stage.slots.items() if values[switch]), 1)
                for stage in self._stages
            ),
            bound=found.bound,
        )

    def _stage(self, device: int) -> Stage:
        draft, program = self._draft, self._draft.program
        stage = Stage(
            device=device,
            is_used=program.switch(),
            window=program.number(),
            modes=[],
            slots={},
            memory=[],
            fetching=[],
            early=[],
        )
        for kind in sorted(draft.first):
            own = list(self._modes(stage, kind)) if device in self._only else []
            stage.modes += own
            # Blocks of a kind on a device are those between its cut and the one before.
            between, constant = draft.between_cuts(device, kind)
            there = [(mode.variable, 1.0) for mode in own]
            program.equal([*there, *((variable, -factor) for variable, factor in between)], constant)
            program.at_most([*there, (stage.is_used, -float(draft.count[kind]))], 0.0)
        # Without blocks a device is not used: else values could go over it where there is no other way.
        program.at_least([*((mode.variable, 1.0) for mode in stage.modes), (stage.is_used, -1.0)], 0.0)
        add_slots(draft, stage)
        add_memory(draft, stage)
        add_window(draft, stage)
        return stage

    def _modes(self, stage: Stage, kind: int) -> Iterator[Mode]:
        task, draft, device = self._task, self._draft, stage.device
        index = draft.first[kind]
        for residency in task.residencies(index, device):
            for form in draft.forms(kind):
                choice = Choice(device=device, residency=residency, form=form)
                if not task.may(index, choice) or (choice.streams and not self._can_stream):
                    continue
                transfer_ns = task.transfer_ns(index, form, device, residency) if choice.streams else 0
                assert transfer_ns is not None, "a choice that may be has a way"
                yield Mode(
                    kind=kind,
                    choice=choice,
                    variable=draft.program.integer(draft.count[kind]),
                    form=draft.form(kind, form),
                    compute_ns=task.visit_ns(index, choice),
                    transfer_ns=transfer_ns,
                )
        if self._can_stream:
            yield from self._split_modes(stage, kind)

    def _split_modes(self, stage: Stage, kind: int) -> Iterator[Mode]:
        """Yield the ways to have the experts of blocks apart from them."""
        task, draft, device = self._task, self._draft, stage.device
        index = draft.first[kind]
        experts = task.chain.costs[index].experts
        narrow = draft.narrowing.experts
        for residency in (own for own in split_residencies(task, index, device) if own in narrow):
            for form in draft.forms(kind):
                split = SplitExperts(residency=residency)
                choice = Choice(device=device, form=form, experts=split)
                if experts is None or not task.may(index, choice):
                    continue
                visit = split_visit(task, index, form, device, split, task.phase)
                caches = residency is not ExpertsResidency.COMPUTE_HOST
                mode = Mode(
                    kind=kind,
                    choice=choice,
                    variable=draft.program.integer(draft.count[kind]),
                    form=draft.form(kind, form),
                    compute_ns=visit.dense_ns,
                    transfer_ns=0,
                    slots=draft.program.integer(draft.count[kind] * experts.count) if caches else None,
                    fetch=draft.program.number() if caches else None,
                )
                if caches:
                    add_fetching(draft, stage, mode, visit.experts_ns)
                yield mode


def _parts(mode: Mode, values: Sequence[float]) -> Iterator[tuple[int, Choice, int]]:
    """Yield kind, choice and number of the blocks in a mode; slots of a cache are dealt out evenly."""
    number = round(values[mode.variable])
    split = mode.choice.experts
    if not number:
        return
    if mode.slots is None or split is None:
        yield mode.kind, mode.choice, number
        return
    slots, more = divmod(round(values[mode.slots]), number)
    for own, count in ((slots, number - more), (slots + 1, more)):
        if count:
            experts = SplitExperts(residency=split.residency, slots=own)
            yield (
                mode.kind,
                Choice(device=mode.choice.device, form=mode.choice.form, experts=experts),
                count,
            )
