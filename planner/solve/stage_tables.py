"""Every stretch of the chain that fits a device, with what is known of its window; devices alike share them.

Stretches of equal blocks have one entry wherever they lie, so what is worked out for one holds for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec

from bayplan.planner.solve.answer import Choice
from bayplan.planner.solve.chain import peak_bytes
from bayplan.planner.solve.machine import STREAM_TIERS
from bayplan.planner.solve.segments import number_kinds
from bayplan.planner.solve.split import split_residencies
from bayplan.planner.solve.stage_apart import apart_floor_ns, known_window
from bayplan.planner.solve.stage_experts import Apart, apart_of
from bayplan.planner.solve.stage_slots import Part, Streaming, Stretch, floor_ns
from bayplan.planner.solve.stage_windows import Window, WindowSearch
from bayplan.planner.solve.task import Task
from bayplan.schemas.problem import BlockForm, BlockRun


class Entry:
    """What is known of the window of a stretch.

    Attributes:
        stretch: The blocks.
        least_ns: What it takes at least; None: it turned out not to fit.
        window: The best one; None: not worked out, or none of the kinds that are searched.
        is_settled: Whether nothing more can be found out.
    """

    def __init__(self, stretch: Stretch, least_ns: int) -> None:
        self.stretch = stretch
        self.least_ns: int | None = least_ns
        self.window: Window | None = None
        self.is_settled = False

    def settle(self, search: WindowSearch, below_ns: int | None) -> None:
        """Work the window out, or show that it is `below_ns` at least."""
        apart = self.stretch.apart
        if apart is not None:
            known = known_window(self.stretch, apart, search)
            self.least_ns, self.window, self.is_settled = known.least_ns, known.window, True
            return
        self.window = search.least(self.stretch, below_ns)
        if self.window is not None:
            self.least_ns, self.is_settled = self.window.window_ns, True
        elif below_ns is not None and self.least_ns is not None:
            self.least_ns = max(self.least_ns, below_ns)
        else:
            self.least_ns, self.is_settled = None, True

    @property
    def moved_bytes(self) -> int:
        """Bytes brought in per step, as far as is known."""
        return 0 if self.window is None else self.window.moved_bytes


class StageTable:
    """The stretches of one device, and of those that are like it.

    Attributes:
        kinds: Kind of each block, as far as these devices can tell.
    """

    def __init__(
        self, task: Task, parts: tuple[Part | None, ...], budget_bytes: int, *, copies: bool
    ) -> None:
        """Prepare it; nothing is looked at yet.

        Args:
            task: The problem.
            parts: Blocks as the devices can have them; None: they cannot.
            budget_bytes: Of each device.
            copies: Whether steps may copy experts.
        """
        self._task = task
        self._copies = copies
        self._parts = parts
        self._budget_bytes = budget_bytes
        self.kinds = number_kinds(parts)
        self._known: dict[tuple[int, tuple[int, ...]], Entry] = {}
        self._entries: dict[int, tuple[list[Entry], Iterator[Entry]]] = {}

    def least_ns(self, index: int) -> int | None:
        """Return what a block computes at least; None: it cannot be there."""
        part = self._parts[index]
        return None if part is None else part.least_ns

    def from_start(self, start: int) -> Iterator[Entry]:
        """Yield what fits from block `start` on, shortest first."""
        known, others = self._entries.setdefault(start, ([], self._growing(start)))
        yield from known
        for entry in others:
            known.append(entry)
            yield entry

    def entry(self, start: int, stop: int) -> Entry:
        """Return one that was yielded."""
        return self._entries[start][0][stop - start - 1]

    def _growing(self, start: int) -> Iterator[Entry]:
        chain = self._task.chain
        always = chain.scratch_bytes
        peak = 0
        for index in range(start, len(chain)):
            cost, form = chain.costs[index], the_form(self._task, index)
            always += form.buffer_bytes + cost.kv_bytes + chain.replica_bytes(start, index)
            peak = max(peak, peak_bytes(cost, form, copies=self._copies))
            room_bytes = self._budget_bytes - always - chain.activation_bytes(peak)
            entry = self._entry(start, index + 1, room_bytes)
            if entry is None:
                return
            yield entry

    def _entry(self, start: int, stop: int, room_bytes: int) -> Entry | None:
        key = room_bytes, self.kinds[start:stop]
        if key not in self._known:
            parts = self._parts[start:stop]
            able = tuple(part for part in parts if part is not None)
            if len(able) < len(parts) or room_bytes < 0:
                return None
            stretch = Stretch(parts=able, room_bytes=room_bytes)
            apart = stretch.apart
            least_ns = floor_ns(stretch) if apart is None else apart_floor_ns(stretch, apart)
            if least_ns is None:
                return None
            self._known[key] = Entry(stretch, least_ns)
        return self._known[key]


def stage_tables(task: Task, only: frozenset[int]) -> dict[int, StageTable] | None:
    """Return the stretches of each device of `only`, one table for all that are alike.

    None: blocks have several forms, or experts apart from them that are not alike.
    """
    chain = task.chain
    if any(len(task.constraints.forms(chain, index)) > 1 for index in range(len(chain))):
        return None
    parts = {device: _parts(task, device) for device in sorted(only)}
    if any(len({part.apart for part in own if part and part.apart}) > 1 for own in parts.values()):
        return None
    # Where the experts of any block are apart, none are copied.
    copies = all(part is None or part.apart is None for own in parts.values() for part in own)
    known: dict[Hashable, StageTable] = {}
    tables: dict[int, StageTable] = {}
    for device, own in parts.items():
        budget_bytes = task.machine.budgets[device]
        key = budget_bytes, own
        if key not in known:
            known[key] = StageTable(task, own, budget_bytes, copies=copies)
        tables[device] = known[key]
    return tables


def _parts(task: Task, device: int) -> tuple[Part | None, ...]:
    """Return the blocks as a device can have them."""
    aparts: dict[BlockRun, Apart | None] = {}
    found: list[Part | None] = []
    for index, cost in enumerate(task.chain.costs):
        part = _part(task, index, device)
        if part is not None and split_residencies(task, index, device):
            key = msgspec.structs.replace(cost, first="")
            if key not in aparts:
                (form,) = task.constraints.forms(task.chain, index)
                aparts[key] = apart_of(task, index, form, device)
            part = msgspec.structs.replace(part, apart=aparts[key])
        found.append(part)
    return tuple(found)


def the_form(task: Task, index: int) -> BlockForm:
    """Return the form of a block that may have one only."""
    (number,) = task.constraints.forms(task.chain, index)
    return task.chain.costs[index].forms[number]


def _part(task: Task, index: int, device: int) -> Part | None:
    """Return a block as `device` can have it; None: it cannot."""
    (form,) = task.constraints.forms(task.chain, index)
    resident = Choice(device=device, form=form)
    ways: list[Streaming] = []
    for tier in STREAM_TIERS:
        choice = Choice(device=device, residency=tier, form=form)
        if task.may(index, choice):
            transfer_ns = task.transfer_ns(index, form, device, tier)
            assert transfer_ns is not None, "a choice that may be has a way"
            compute_ns = task.visit_ns(index, choice)
            ways.append(Streaming(residency=tier, compute_ns=compute_ns, transfer_ns=transfer_ns))
    may_stay = task.may(index, resident)
    if not may_stay and not ways:
        return None
    return Part(
        num_bytes=task.chain.costs[index].forms[form].parameter_bytes,
        resident_ns=task.visit_ns(index, resident) if may_stay else None,
        streaming=tuple(_useful(ways)),
    )


def _useful(ways: list[Streaming]) -> Iterator[Streaming]:
    """Yield the ways that no other is as good as; of equal ones the first, that from host memory."""
    least_ns: int | None = None
    for way in sorted(ways, key=lambda own: (own.transfer_ns, own.compute_ns)):
        if least_ns is None or way.compute_ns < least_ns:
            least_ns = way.compute_ns
            yield way
