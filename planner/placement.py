"""Which device computes which stretch of the chain, and how much of it streams, with a lower bound.

The class: devices in inventory order, each with one contiguous stretch or none; weights resident, or
streamed from one tier through one to three slots. What fits is never streamed. A dynamic program over
(device, position) keeps for every state the pairs of path time and link time that no other pair beats.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.planner.arrange import Arranged, Arranger, PlacedStage
from bayplan.planner.chain import Chain
from bayplan.planner.constraints import Constraints
from bayplan.planner.cost import duration_ns, feed, hop_ns, node_of, output_bytes
from bayplan.planner.stages import Stage, StageSearch
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import DeviceId, Objective, Residency, SolverStatus

SLOT_COUNTS = (1, 2, 3)
"""Slots tried per streaming device. One is the least memory and no overlap; evenly spaced blocks reach the
bound with two; a third evens out unequal ones."""

MAX_FRONT = 256
"""Path and link times kept per state at most; more than a handful needs many streaming devices."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, before it is written down."""

    stages: tuple[PlacedStage, ...]
    tier: Residency
    """`resident` where nothing streams."""
    step_ns: int
    """Of the objective's phase, steady, simulated: an upper bound."""
    lower_bound_ns: int
    status: SolverStatus


class _Path(msgspec.Struct, frozen=True, kw_only=True):
    """A partial placement; `link_ns` is the sum on a shared link, the maximum over separate ones."""

    path_ns: int
    link_ns: int
    host_bytes: int
    stages: tuple[Stage, ...]

    def beats(self, other: _Path) -> bool:
        """Whether it is at least as good in every respect."""
        return (
            self.path_ns <= other.path_ns
            and self.link_ns <= other.link_ns
            and self.host_bytes <= other.host_bytes
        )


class Solver:
    """One placement problem; `solve` answers it."""

    def __init__(
        self,
        chain: Chain,
        inventory: Inventory,
        budgets: Mapping[DeviceId, int],
        constraints: Constraints,
        phase: Objective,
    ) -> None:
        self._chain = chain
        self._inventory = inventory
        self._devices = [device for device in inventory.devices if budgets[device.id] > 0]
        self._budgets = budgets
        self._constraints = constraints
        self._phase = phase
        self._arranger = Arranger(chain, inventory, constraints, phase)
        self._exhaustive = True

    def solve(self) -> Placement | None:
        """Return the best placement, or None if none satisfies the constraints."""
        if not any(self._constraints.must_stream):
            resident = self._paths(Residency.RESIDENT, 0)
            if resident:
                return self._best([(Residency.RESIDENT, 0, path) for path in resident])
        if self._constraints.no_spill:
            return None
        found = [
            (tier, num_slots, path)
            for tier in (Residency.STREAM_HOST, Residency.STREAM_DISK)
            for num_slots in SLOT_COUNTS
            for path in self._paths(tier, num_slots)
        ]
        return self._best(found) if found else None

    def _paths(self, tier: Residency, num_slots: int) -> list[_Path]:
        """Return the complete placements for one tier that no other beats."""
        search = StageSearch(self._chain, self._constraints, self._phase, num_slots)
        end = len(self._chain)
        fronts: list[dict[int, list[_Path]]] = []
        for number, device in enumerate(self._devices):
            front: dict[int, list[_Path]] = {}
            for start in range(end):
                arriving = self._arriving(fronts, number, start)
                if not arriving:
                    continue
                for stage in search.stages(device, self._budgets[device.id], start):
                    reached = front.setdefault(stage.stop, [])
                    for path in arriving:
                        extended = self._extended(path, stage, tier, num_slots)
                        if extended is not None:
                            self._add(reached, extended)
            fronts.append(front)
        complete: list[_Path] = []
        for front in fronts:
            for path in front.get(end, []):
                self._add(complete, path)
        return complete

    def _arriving(self, fronts: list[dict[int, list[_Path]]], number: int, start: int) -> list[_Path]:
        """Return the paths that end at `start` on an earlier device, with the hop to device `number`."""
        if start == 0:
            return [_Path(path_ns=0, link_ns=0, host_bytes=0, stages=())]
        num_bytes = output_bytes(self._chain.costs[start - 1], self._phase)
        arriving: list[_Path] = []
        for earlier, front in enumerate(fronts[:number]):
            hop = hop_ns(self._inventory, self._devices[earlier], self._devices[number], num_bytes)
            if hop is None:
                continue
            for path in front.get(start, []):
                self._add(arriving, msgspec.structs.replace(path, path_ns=path.path_ns + hop))
        return arriving

    def _extended(self, path: _Path, stage: Stage, tier: Residency, num_slots: int) -> _Path | None:
        """Return `path` with `stage` behind it, or None if the tier cannot feed it."""
        choice = stage.choice
        window_ns, link_ns, host_bytes = stage.compute_ns, path.link_ns, path.host_bytes
        if choice.streamed:
            source = feed(self._inventory, stage.device, tier)
            if source is None:
                return None
            rate, link = source
            transfer_ns = duration_ns(choice.least_streamed_bytes, rate)
            early_ns = duration_ns(num_slots * choice.slot_bytes, rate)
            window_ns = max(window_ns, transfer_ns - early_ns)
            shared = bool(link)
            link_ns = link_ns + transfer_ns if shared else max(link_ns, transfer_ns)
            if tier is Residency.STREAM_HOST:
                host_bytes += choice.streamed_bytes
                node = node_of(self._inventory, stage.device.id)
                if host_bytes > node.host_memory_bytes - node.host_reserve_bytes:
                    return None
        return _Path(
            path_ns=path.path_ns + window_ns,
            link_ns=link_ns,
            host_bytes=host_bytes,
            stages=(*path.stages, stage),
        )

    def _add(self, front: list[_Path], path: _Path) -> None:
        """Put `path` into `front` unless another beats it; drop those that it beats."""
        if any(other.beats(path) for other in front):
            return
        front[:] = [other for other in front if not path.beats(other)]
        front.append(path)
        if len(front) > MAX_FRONT:
            self._exhaustive = False
            front.sort(key=lambda other: max(other.path_ns, other.link_ns))
            del front[MAX_FRONT:]

    def _best(self, found: list[tuple[Residency, int, _Path]]) -> Placement:
        """Return the simulated best of the candidates with the smallest bounds."""
        lower_bound = min(max(path.path_ns, path.link_ns) for _, _, path in found)
        arranged: list[Arranged] = []
        for tier, num_slots in sorted({(tier, slots) for tier, slots, _ in found}):
            paths = [path for own, slots, path in found if (own, slots) == (tier, num_slots)]
            path = min(paths, key=lambda path: (max(path.path_ns, path.link_ns), path.path_ns))
            arranged.append(self._arranger.arrange(path.stages, tier, num_slots))
        best = min(arranged, key=lambda one: one.rank)
        return Placement(
            stages=best.stages,
            tier=best.tier,
            step_ns=best.step_ns,
            lower_bound_ns=min(lower_bound, best.step_ns),
            status=SolverStatus.OPTIMAL if self._exhaustive and best.is_exact else SolverStatus.WORK_LIMIT,
        )
