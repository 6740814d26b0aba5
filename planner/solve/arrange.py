"""Stages with their streamed positions chosen, and the time that the simulator gives them.

The last step of the placement: the search says how many blocks stream, this module where, by trying the
even spacings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.cost import compute_ns, duration_ns, feed, hop_ns, node_of, output_bytes
from bayplan.planner.solve.host_memory import host_bytes
from bayplan.planner.solve.residents import StreamChoice
from bayplan.planner.solve.simulate import Visit, first_step_ns, steady_step_ns
from bayplan.planner.solve.spacing import PHASES, evenly_spaced
from bayplan.planner.solve.stages import Stage
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import Objective, Residency


class PlacedStage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage with the positions that stream."""

    stage: Stage
    choice: StreamChoice
    streamed: tuple[int, ...]
    """Positions in the chain, ascending."""


class Arranged(msgspec.Struct, frozen=True, kw_only=True):
    """Stages with positions and the times that follow."""

    stages: tuple[PlacedStage, ...]
    tier: Residency
    num_slots: int
    step_ns: int
    """Steady, of the objective's phase."""
    first_step_ns: int
    """Of the same phase, from empty slots."""

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Smaller is better: time, then bytes moved, then the first step, then slots."""
        streamed = sum(placed.choice.streamed_bytes for placed in self.stages)
        return self.step_ns, streamed, self.first_step_ns, self.num_slots

    @property
    def is_exact(self) -> bool:
        """Whether no choice of residents streams less, by an exhaustive search."""
        choices = [placed.stage.choice for placed in self.stages]
        return all(choice.least_streamed_bytes == choice.streamed_bytes for choice in choices)


class Arranger:
    """Chooses positions for the stages of one placement problem."""

    def __init__(
        self, chain: Chain, inventory: Inventory, constraints: Constraints, phase: Objective
    ) -> None:
        self._chain = chain
        self._inventory = inventory
        self._constraints = constraints
        self._phase = phase

    def arrange(self, stages: tuple[Stage, ...], tier: Residency, num_slots: int) -> Arranged:
        """Return the fastest even spacing of `stages`, which stream from `tier` through `num_slots` slots."""
        arranged: list[Arranged] = []
        for placed in self._spaced(stages, tier, num_slots):
            visits = self.visits(placed, tier, self._phase)
            arranged.append(
                Arranged(
                    stages=placed,
                    tier=tier,
                    num_slots=num_slots,
                    step_ns=steady_step_ns(visits, max(num_slots, 1)),
                    first_step_ns=first_step_ns(visits, max(num_slots, 1)),
                )
            )
        return min(arranged, key=lambda one: one.rank)

    def _spaced(
        self, stages: tuple[Stage, ...], tier: Residency, num_slots: int
    ) -> Iterator[tuple[PlacedStage, ...]]:
        """Yield the stages with positions chosen, in every phase.

        Where the number of streamed blocks is no multiple of the slots, the ring stalls once a step at its
        wrap: a few more streamed blocks may be faster, so that is tried too.
        """
        if not any(stage.choice.streamed for stage in stages):
            yield tuple(PlacedStage(stage=stage, choice=stage.choice, streamed=()) for stage in stages)
            return
        for rounded in (False, True):
            choices = [self._rounded(stage, num_slots) if rounded else stage.choice for stage in stages]
            if rounded and all(a == b.choice for a, b in zip(choices, stages, strict=True)):
                continue
            if rounded and not self._fits_hosts(stages, choices, tier):
                continue
            for phase in PHASES:
                yield tuple(
                    PlacedStage(stage=stage, choice=choice, streamed=self._positions(stage, choice, phase))
                    for stage, choice in zip(stages, choices, strict=True)
                )

    def _rounded(self, stage: Stage, num_slots: int) -> StreamChoice:
        """Return the choice with blocks added until they are a multiple of the slots, if there are."""
        streamed = dict(stage.choice.streamed)
        available = self._free_sizes(stage)
        while streamed and sum(streamed.values()) % num_slots:
            more = [
                size
                for size, count in sorted(available.items())
                if size <= stage.choice.slot_bytes and streamed.get(size, 0) < count
            ]
            if not more:
                return stage.choice
            streamed[more[0]] = streamed.get(more[0], 0) + 1
        return msgspec.structs.replace(
            stage.choice,
            streamed=tuple(sorted(streamed.items())),
            num_slots=min(num_slots, sum(streamed.values())),
            streamed_bytes=sum(size * count for size, count in streamed.items()),
        )

    def _fits_hosts(self, stages: tuple[Stage, ...], choices: list[StreamChoice], tier: Residency) -> bool:
        """Whether more streamed bytes than the search chose find room in host memory as well."""
        taken: Counter[str] = Counter()
        for stage, choice in zip(stages, choices, strict=True):
            taken[node_of(self._inventory, stage.device.id).id] += host_bytes(
                stage, tier, choice.streamed_bytes
            )
        return tier is not Residency.STREAM_HOST or all(
            taken[node.id] <= node.host_memory_bytes - node.host_reserve_bytes
            for node in self._inventory.nodes
        )

    def _free_sizes(self, stage: Stage) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for index in range(stage.start, stage.stop):
            if self._constraints.may_stream(self._chain, index):
                size = self._chain.costs[index].parameter_bytes
                sizes[size] = sizes.get(size, 0) + 1
        return sizes

    def _positions(self, stage: Stage, choice: StreamChoice, phase: int) -> tuple[int, ...]:
        indices = range(stage.start, stage.stop)
        chosen = evenly_spaced(
            [self._chain.costs[index].parameter_bytes for index in indices],
            [self._constraints.may_stream(self._chain, index) for index in indices],
            [self._constraints.must_stream[index] for index in indices],
            dict(choice.streamed),
            phase,
        )
        return tuple(stage.start + position for position in chosen)

    def visits(self, stages: tuple[PlacedStage, ...], tier: Residency, phase: Objective) -> list[Visit]:
        """Return one step of the placement for the simulator."""
        hops = {0: 0}
        for before, after in pairwise(stages):
            num_bytes = output_bytes(self._chain.costs[after.stage.start - 1], phase)
            hop = hop_ns(self._inventory, before.stage.device, after.stage.device, num_bytes)
            assert hop is not None, "the search only joins devices with a way between them"
            hops[after.stage.start] = hop
        visits: list[Visit] = []
        for placed in stages:
            device = placed.stage.device
            source = feed(self._inventory, device, tier) if placed.streamed else None
            for index in range(placed.stage.start, placed.stage.stop):
                cost = self._chain.costs[index]
                streams = index in placed.streamed
                assert not streams or source is not None
                visits.append(
                    Visit(
                        device=device.id,
                        compute_ns=compute_ns(cost, device, phase),
                        hop_ns=hops.get(index, 0),
                        transfer_ns=duration_ns(cost.parameter_bytes, source[0])
                        if streams and source
                        else None,
                        link=(source[1] or device.id) if source else "",
                    )
                )
        return visits
