"""One stage: a stretch of the chain on one device, with what it needs and the least that it must stream.

The inner part of the placement search. Grows a stretch block by block, so that all stretches from one start
cost one pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.cost import compute_ns
from bayplan.planner.solve.margins import activation_bounds
from bayplan.planner.solve.residents import NOTHING_STREAMS, StreamChoice, least_streamed
from bayplan.schemas.hardware import Device
from bayplan.schemas.types import Objective


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks `start` to `stop` (exclusive) on one device."""

    device: Device
    start: int
    stop: int
    compute_ns: int
    choice: StreamChoice
    serial_ns: int
    """Computing that no transfer overlaps: with a single slot, that of the streamed blocks."""
    used_bytes: int
    """Of the device, with this choice."""


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a stretch that are there whatever streams."""

    parameter_bytes: int
    """Of blocks that must stay, and of tied storages whose first block is elsewhere."""
    buffer_bytes: int
    kv_bytes: int
    activation_bytes: int
    scratch_bytes: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return (
            self.parameter_bytes
            + self.buffer_bytes
            + self.kv_bytes
            + self.activation_bytes
            + self.scratch_bytes
        )


class StageSearch:
    """Costs of all stretches of one chain, for one number of slots (0: nothing may stream)."""

    def __init__(self, chain: Chain, constraints: Constraints, phase: Objective, num_slots: int) -> None:
        self._chain = chain
        self._constraints = constraints
        self._phase = phase
        self._num_slots = num_slots
        self._choices: dict[tuple[object, ...], StreamChoice | None] = {}

    def stages(
        self, device: Device, budget_bytes: int, start: int, *, is_last: bool = False
    ) -> Iterator[Stage]:
        """Yield every stage on `device` that begins at `start` and fits `budget_bytes`, shortest first.

        Args:
            device: Where it computes.
            budget_bytes: For all that it needs there.
            start: Position of its first block.
            is_last: No device follows, so only a stage that reaches the end of the chain is of use.
        """
        fixed_parameters = buffers = kv = activations = time = 0
        free: Counter[int] = Counter()
        forced: Counter[int] = Counter()
        end = len(self._chain)
        least_visit: int | None = None
        for stop in range(start + 1, end + 1):
            index = stop - 1
            cost = self._chain.costs[index]
            if self._constraints.device[index] not in (None, device.id):
                return
            visit = compute_ns(cost, device, self._phase)
            time += visit
            buffers += cost.buffer_bytes
            kv += cost.kv_bytes
            activations = max(activations, cost.prefill_activation_bytes, cost.decode_activation_bytes)
            fixed_parameters += self._replicas(start, index)
            if self._constraints.may_stream(self._chain, index):
                least_visit = visit if least_visit is None else min(visit, least_visit)
            if self._constraints.must_stream[index]:
                forced[cost.parameter_bytes] += 1
            elif self._constraints.may_stream(self._chain, index):
                free[cost.parameter_bytes] += 1
            else:
                fixed_parameters += cost.parameter_bytes
            fixed = Fixed(
                parameter_bytes=fixed_parameters,
                buffer_bytes=buffers,
                kv_bytes=kv,
                activation_bytes=activation_bounds(activations + self._chain.base_activation_bytes)[1],
                scratch_bytes=self._chain.scratch_bytes,
            )
            capacity = budget_bytes - fixed.total
            if capacity < 0:
                return
            if is_last and stop < end:
                continue
            choice = self._choice(free, forced, capacity)
            if choice is None:
                return  # with more blocks it fits even less
            weights = sum(size * count for sizes in (free, forced) for size, count in sizes.items())
            slots = choice.num_slots * choice.slot_bytes
            yield Stage(
                device=device,
                start=start,
                stop=stop,
                compute_ns=time,
                choice=choice,
                serial_ns=choice.least_streamed_blocks * (least_visit or 0) if self._num_slots == 1 else 0,
                used_bytes=fixed.total + weights - choice.streamed_bytes + slots,
            )

    def _replicas(self, start: int, index: int) -> int:
        """Return bytes of tied storages that block `index` uses and no block of the stage before it holds."""
        return sum(
            tie.num_bytes
            for tie in self._chain.ties
            if index in tie.positions[1:] and not any(start <= position < index for position in tie.positions)
        )

    def _choice(self, free: Counter[int], forced: Counter[int], capacity: int) -> StreamChoice | None:
        if self._num_slots == 0:
            fits = not forced and sum(size * count for size, count in free.items()) <= capacity
            return NOTHING_STREAMS if fits else None
        key = (tuple(sorted(free.items())), tuple(sorted(forced.items())), capacity)
        if key not in self._choices:
            self._choices[key] = least_streamed(free, forced, capacity, self._num_slots)
        return self._choices[key]
