"""Which device computes which stretch of the chain, and how much of it streams, with a lower bound.

The class: devices in inventory order, each with one contiguous stretch or none; weights resident, or
streamed from one tier through one to three slots. What fits is never streamed. A dynamic program over
(device, position) keeps for every state the pairs of path time and link time that no other pair beats.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import le

import msgspec

from bayplan.planner.solve.arrange import Arranged, Arranger, PlacedStage
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.cost import compute_ns, duration_ns, feed, hop_ns, output_bytes
from bayplan.planner.solve.host_memory import host_bytes, host_limits, lies_in_host_memory
from bayplan.planner.solve.stages import Stage, StageSearch
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import DeviceId, Objective, Residency, SolverStatus

SLOT_COUNTS = (1, 2, 3)
"""Slots tried per streaming device. One is the least memory and no overlap; evenly spaced blocks reach the
bound with two; a third evens out unequal ones."""

MAX_FRONT = 256
"""Partial placements kept per state at most; more than a handful needs many streaming devices."""

MAX_EXTENSIONS = 400_000
"""Partial placements made at most per tier and number of slots: of long chains on many devices, fewer are
kept per state. A count, not a time, so that the answer is the same everywhere."""

MAX_SIMULATED = 8
"""Placements simulated at most per tier and number of slots, those with the smallest bounds."""


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
    """A partial placement."""

    path_ns: int
    link_ns: tuple[int, ...]
    """Time of the transfers per shared link; first the longest time of the transfers of one device."""
    host_bytes: tuple[int, ...]
    """Per node."""
    stages: tuple[Stage, ...]

    measures: tuple[int, ...]
    """All of the above in a row."""

    @property
    def bound_ns(self) -> int:
        """No step of this placement is faster, however it goes on."""
        return max(self.path_ns, *self.link_ns)

    def beats(self, other: _Path) -> bool:
        """Whether it is at least as good in every respect."""
        return all(map(le, self.measures, other.measures))


def _make_path(
    path_ns: int, link_ns: tuple[int, ...], host_bytes: tuple[int, ...], stages: tuple[Stage, ...]
) -> _Path:
    return _Path(
        path_ns=path_ns,
        link_ns=link_ns,
        host_bytes=host_bytes,
        stages=stages,
        measures=(path_ns, *link_ns, *host_bytes),
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
        limits = host_limits(inventory, budgets)
        most = sum(cost.parameter_bytes for cost in chain.costs) + sum(
            budgets[device.id] for device in inventory.devices if lies_in_host_memory(device)
        )
        self._nodes = [node for node, limit in limits.items() if limit < most]
        """Those whose host memory may be too small."""
        self._host_limits = tuple(limits[node] for node in self._nodes)
        stages = len(self._devices) * len(chain) * (len(chain) + 1) // 2
        self._max_front = max(2, min(MAX_FRONT, MAX_EXTENSIONS // max(1, stages)))
        self._least_rest_ns = self._least_compute_ns()
        self._given_up: list[int] = []
        """Bounds of partial placements that were left without a proof that others are better."""

    def solve(self) -> Placement | None:
        """Return the best placement, or None if none satisfies the constraints."""
        if not any(self._constraints.must_stream):
            search = StageSearch(self._chain, self._constraints, self._phase, 0)
            resident = self._paths(search, Residency.RESIDENT, 0)
            if resident:
                return self._best([(Residency.RESIDENT, 0, path) for path in resident])
        if self._constraints.no_spill:
            return None
        self._given_up.clear()
        found: list[tuple[Residency, int, _Path]] = []
        for num_slots in SLOT_COUNTS:
            search = StageSearch(self._chain, self._constraints, self._phase, num_slots)
            for tier in self._constraints.tiers:
                found += [(tier, num_slots, path) for path in self._paths(search, tier, num_slots)]
        return self._best(found) if found else None

    def _paths(self, search: StageSearch, tier: Residency, num_slots: int) -> list[_Path]:
        """Return the complete placements for one tier that no other beats."""
        end = len(self._chain)
        feeds = {device.id: feed(self._inventory, device, tier) for device in self._devices}
        links = ["", *sorted({source[1] for source in feeds.values() if source is not None} - {""})]
        empty = _make_path(0, (0,) * len(links), (0,) * len(self._nodes), ())
        fronts: list[dict[int, list[_Path]]] = []
        for number, device in enumerate(self._devices):
            front: dict[int, list[_Path]] = {}
            is_last = number == len(self._devices) - 1
            for start in range(end):
                arriving = self._arriving(fronts, number, start) if start else [empty]
                if not arriving:
                    continue
                for stage in search.stages(device, self._budgets[device.id], start, is_last=is_last):
                    reached = front.setdefault(stage.stop, [])
                    for path in arriving:
                        extended = self._extended(path, stage, tier, feeds[device.id], links)
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
        num_bytes = output_bytes(self._chain.costs[start - 1], self._phase)
        arriving: list[_Path] = []
        for earlier, front in enumerate(fronts[:number]):
            hop = hop_ns(self._inventory, self._devices[earlier], self._devices[number], num_bytes)
            if hop is None:
                continue
            for path in front.get(start, []):
                self._add(
                    arriving, _make_path(path.path_ns + hop, path.link_ns, path.host_bytes, path.stages)
                )
        return arriving

    def _extended(
        self, path: _Path, stage: Stage, tier: Residency, source: tuple[int, str] | None, links: list[str]
    ) -> _Path | None:
        """Return `path` with `stage` behind it, or None if there is no way or no host memory for it."""
        choice = stage.choice
        window_ns, link_ns = stage.compute_ns, path.link_ns
        if choice.streamed:
            if source is None:
                return None
            rate, link = source
            window_ns = max(window_ns, duration_ns(choice.least_late_bytes, rate) + stage.serial_ns)
            transfer_ns = duration_ns(choice.least_streamed_bytes, rate)
            busy_ns = [*link_ns]
            busy_ns[0] = max(busy_ns[0], transfer_ns + stage.serial_ns)
            if link:
                busy_ns[links.index(link)] += transfer_ns
            link_ns = tuple(busy_ns)
        held = path.host_bytes
        taken = host_bytes(stage, tier, choice.streamed_bytes)
        node_id = stage.device.id.partition("/")[0]
        if taken and node_id in self._nodes:
            node = self._nodes.index(node_id)
            held = (*held[:node], held[node] + taken, *held[node + 1 :])
        extended = _make_path(path.path_ns + window_ns, link_ns, held, (*path.stages, stage))
        if all(map(le, held, self._host_limits)):
            return extended
        if any(self._might_take_less(own, tier) for own in extended.stages):
            self._given_up.append(self._bound_ns(extended))
        return None

    def _might_take_less(self, stage: Stage, tier: Residency) -> bool:
        """Whether another choice for the stage, which is not searched for, might need less host memory."""
        if lies_in_host_memory(stage.device):
            return tier is not Residency.RESIDENT and feed(self._inventory, stage.device, tier) is not None
        return stage.choice.least_streamed_bytes < stage.choice.streamed_bytes

    def _add(self, front: list[_Path], path: _Path) -> None:
        """Put `path` into `front` unless another beats it; drop those that it beats."""
        if any(other.beats(path) for other in front):
            return
        front[:] = [other for other in front if not path.beats(other)]
        front.append(path)
        if len(front) > self._max_front:
            front.sort(key=self._bound_ns)
            self._given_up += [self._bound_ns(other) for other in front[self._max_front :]]
            del front[self._max_front :]

    def _least_compute_ns(self) -> list[int]:
        """Return, for each position and the end, the least time that the blocks from there on compute."""
        rest = [0]
        for cost in reversed(self._chain.costs):
            least = min((compute_ns(cost, device, self._phase) for device in self._devices), default=0)
            rest.append(rest[-1] + least)
        return rest[::-1]

    def _bound_ns(self, path: _Path) -> int:
        """Return a time that no placement beginning with `path` beats."""
        stop = path.stages[-1].stop if path.stages else 0
        return max(path.bound_ns, path.path_ns + self._least_rest_ns[stop])

    def _best(self, found: list[tuple[Residency, int, _Path]]) -> Placement:
        """Return the simulated best of the candidates with the smallest bounds."""
        arranged: list[Arranged] = []
        for tier, num_slots in sorted({(tier, slots) for tier, slots, _ in found}):
            paths = [path for own, slots, path in found if (own, slots) == (tier, num_slots)]
            paths.sort(key=lambda path: (path.bound_ns, path.path_ns))
            for path in paths[:MAX_SIMULATED]:
                arranged.append(self._arranger.arrange(path.stages, tier, num_slots))
        best = min(arranged, key=lambda one: one.rank)
        lower_bound_ns = min([best.step_ns, *(path.bound_ns for _, _, path in found), *self._given_up])
        is_exact = not self._given_up and best.is_exact
        return Placement(
            stages=best.stages,
            tier=best.tier,
            step_ns=best.step_ns,
            lower_bound_ns=lower_bound_ns,
            status=SolverStatus.OPTIMAL if is_exact else SolverStatus.WORK_LIMIT,
        )
