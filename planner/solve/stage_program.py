"""The least sum of windows and ways over all cuts: a dynamic program over devices and positions, both ways.

Backward it gives what is still to come from every position, forward the best way, and which windows are not
settled that a better one might have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from bayplan.planner.solve.stage_tables import Entry, StageTable
from bayplan.planner.solve.task import Task

Handed = tuple[int, int]
"""How many values are handed on, and their bytes."""


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """The best way to have the blocks before `stop` on devices up to one, the last of them on it."""

    time_ns: int
    moved_bytes: int
    """Brought in per step, as far as is known."""
    num_stages: int
    device: int
    start: int
    stop: int
    before: Arrived | None

    @property
    def rank(self) -> tuple[int, int, int]:
        """What makes one better than another; smaller is better."""
        return self.time_ns, self.moved_bytes, self.num_stages

    def stages(self) -> tuple[Arrived, ...]:
        """Return it and those before it, in chain order."""
        return (self,) if self.before is None else (*self.before.stages(), self)


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """A window that is not settled, on a way that may be better than the best."""

    entry: Entry
    others_ns: int
    """All other windows and ways of it, at least."""
    time_ns: int
    """All of it, at least."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one program found."""

    best: Arrived | None
    """None: nothing fits, or nothing is fast enough."""
    doubts: tuple[Doubt, ...]
    """The most promising first."""
    is_cut: bool
    """Whether something was left out because it takes too long."""


class StageProgram:
    """The program of one task."""

    def __init__(self, task: Task, tables: Mapping[int, StageTable]) -> None:
        """Prepare it.

        Args:
            task: The problem.
            tables: The stretches of each device that may be used, in chain order.
        """
        self._task = task
        self._tables = tables
        self._end = len(task.chain)
        self._handed: dict[tuple[int, int], Handed] = {}
        self._hops: dict[tuple[Handed, int, int], int | None] = {}
        self._below_ns = 0
        self._is_cut = False

    def solve(self, below_ns: int) -> Round:
        """Return the best of all ways that take less than `below_ns`, by what is known of windows now."""
        self._below_ns, self._is_cut = below_ns, False
        rests = self._rests()
        fronts: dict[int, dict[int, Arrived]] = {}
        doubts: list[Doubt] = []
        for device in self._tables:
            reached = {0}.union(*fronts.values()) - {self._end}
            own: dict[int, Arrived] = {}
            for start in sorted(reached):
                for arrived, doubt in self._extended(fronts, rests[device], device, start):
                    known = own.get(arrived.stop)
                    if known is None or arrived.rank < known.rank:
                        own[arrived.stop] = arrived
                    if doubt is not None:
                        doubts.append(doubt)
            fronts[device] = own
        complete: list[Arrived] = []
        for device, front in fronts.items():
            back_ns = rests[device][self._end]
            if self._end in front and back_ns is not None:
                last = front[self._end]
                complete.append(msgspec.structs.replace(last, time_ns=last.time_ns + back_ns))
        return Round(
            best=min(complete, key=lambda one: one.rank, default=None),
            doubts=tuple(sorted(doubts, key=lambda doubt: doubt.time_ns)),
            is_cut=self._is_cut,
        )

    def total_ns(self, best: Arrived) -> int | None:
        """Return the time of a whole step with the windows that were found; None: one was not."""
        stages = best.stages()
        total_ns = self._task.way_back_ns(best.device) or 0
        for before, stage in zip((None, *stages), stages, strict=False):
            window = self._tables[stage.device].entry(stage.start, stage.stop).window
            if window is None:
                return None
            total_ns += window.window_ns
            if before is not None:
                total_ns += self._hop_ns(stage.start, stage.stop, before.device, stage.device) or 0
        return total_ns

    def _extended(
        self, fronts: Mapping[int, Mapping[int, Arrived]], rest: list[int | None], device: int, start: int
    ) -> Iterator[tuple[Arrived, Doubt | None]]:
        """Yield the ways that begin at `start` on a device and may still be the best one."""
        arrivals: dict[Handed, tuple[int, Arrived | None] | None] = {}
        for stop, least_ns, entry in self._stretches(device, start):
            handed = self._handed_on(start, stop)
            if handed not in arrivals:
                arrivals[handed] = self._arrival(fronts, device, start, stop)
            arrival, rest_ns = arrivals[handed], rest[stop]
            if arrival is None:
                return
            if rest_ns is None:
                continue
            others_ns = arrival[0] + rest_ns
            if others_ns + least_ns >= self._below_ns:
                self._is_cut = True
                continue
            before = arrival[1]
            arrived = Arrived(
                time_ns=arrival[0] + least_ns,
                moved_bytes=entry.moved_bytes + (0 if before is None else before.moved_bytes),
                num_stages=1 if before is None else before.num_stages + 1,
                device=device,
                start=start,
                stop=stop,
                before=before,
            )
            yield (
                arrived,
                Doubt(entry=entry, others_ns=others_ns, time_ns=others_ns + least_ns)
                if not entry.is_settled
                else None,
            )

    def _stretches(self, device: int, start: int) -> Iterator[tuple[int, int, Entry]]:
        """Yield stretches from `start` on, each with its end and least time, until they take too long."""
        least_ns = 0
        for stop, entry in enumerate(self._tables[device].from_start(start), start + 1):
            if entry.least_ns is None:
                return
            least_ns = max(least_ns, entry.least_ns)  # one block more takes no less
            if least_ns >= self._below_ns:
                self._is_cut = True
                return
            yield stop, least_ns, entry

    def _arrival(
        self, fronts: Mapping[int, Mapping[int, Arrived]], device: int, start: int, stop: int
    ) -> tuple[int, Arrived | None] | None:
        """Return when blocks `start` to `stop` have what they need, and the way before; None: none."""
        if start == 0:
            return 0, None
        found: tuple[tuple[int, int, int], Arrived] | None = None
        for source, front in fronts.items():
            before = front.get(start)
            hop_ns = None if before is None else self._hop_ns(start, stop, source, device)
            if before is None or hop_ns is None:
                continue
            rank = before.time_ns + hop_ns, before.moved_bytes, before.num_stages
            if found is None or rank < found[0]:
                found = rank, before
        return None if found is None else (found[0][0], found[1])

    def _rests(self) -> dict[int, list[int | None]]:
        """Return the least time from each position to the end, per device that has the block before."""
        rests: dict[int, list[int | None]] = {}
        tails: dict[int, list[dict[Handed, tuple[int, int]]]] = {}
        for device in sorted(self._tables, reverse=True):
            rest = [self._least_rest(tails, device, start) for start in range(self._end)]
            rest.append(self._task.way_back_ns(device))
            rests[device] = rest
            tails[device] = [{}, *(self._tails(device, start, rest) for start in range(1, self._end))]
        return rests

    def _tails(self, device: int, start: int, rest: list[int | None]) -> dict[Handed, tuple[int, int]]:
        """Return the least time from `start` on, those blocks being on a device, and where they end.

        Per what they are handed.
        """
        found: dict[Handed, tuple[int, int]] = {}
        for stop, least_ns, _ in self._stretches(device, start):
            rest_ns = rest[stop]
            if rest_ns is None:
                continue
            handed, tail = self._handed_on(start, stop), (least_ns + rest_ns, stop)
            if handed not in found or tail < found[handed]:
                found[handed] = tail
        return found

    def _least_rest(
        self, tails: Mapping[int, list[dict[Handed, tuple[int, int]]]], device: int, start: int
    ) -> int | None:
        times: list[int] = []
        for target, own in tails.items():
            for time_ns, stop in own[start].values():
                hop_ns = self._hop_ns(start, stop, device, target)
                if hop_ns is not None:
                    times.append(time_ns + hop_ns)
        return min(times, default=None)

    def _handed_on(self, start: int, stop: int) -> Handed:
        if (start, stop) not in self._handed:
            self._handed[start, stop] = self._task.handed(start, stop) if start else (0, 0)
        return self._handed[start, stop]

    def _hop_ns(self, start: int, stop: int, source: int, target: int) -> int | None:
        key = self._handed_on(start, stop), source, target
        if key not in self._hops:
            self._hops[key] = self._task.hop_ns(start, stop, source, target)
        return self._hops[key]
