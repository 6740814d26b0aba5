"""One placement problem: chain, machine, demands and objective, with the times of all blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.cost import compute_ns, reading_ns
from bayplan.planner.solve.machine import Machine
from bayplan.schemas.problem import BlockForm, BlockRun
from bayplan.schemas.types import Objective, Residency

T = TypeVar("T")

Times = tuple[tuple[int, ...], ...]
"""Nanoseconds by form and device."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A chain that begins with its last blocks, since steps follow each other: see `returning`."""

    whole: Task
    """The task of the chain as it is."""
    num_blocks: int
    """That were taken from the end to the front."""
    home: int
    """Device that they are on."""

    def straight(self, answer: Answer) -> Answer:
        """Return a placement of the turned chain as one of the chain as it is."""
        choices = turned_order(answer.choices, self.num_blocks)
        return msgspec.structs.replace(answer, choices=choices)

    def turned(self, answer: Answer) -> Answer:
        """Return a placement of the chain as it is as one of the turned chain."""
        choices = turned_order(answer.choices, len(answer.choices) - self.num_blocks)
        return msgspec.structs.replace(answer, choices=choices)


def turned_order(values: Sequence[T], start: int) -> tuple[T, ...]:
    """Return values of all blocks with those from `start` on first."""
    return (*values[start:], *values[:start])


class Task:
    """What is to be placed where, under which demands.

    Attributes:
        chain: The blocks.
        machine: The devices.
        constraints: The user's demands.
        phase: Which step the objective is about: `decode` or `prefill`.
        splits_experts: Whether experts may live apart from their block.
        loads_first: Whether the time to load counts, which what streams from disk does not add to.
        turn: Of a turned chain; None: the chain is as it is.
    """

    def __init__(
        self,
        chain: Chain,
        machine: Machine,
        constraints: Constraints,
        phase: Objective,
        *,
        splits_experts: bool = False,
        loads_first: bool = False,
        turn: Turn | None = None,
    ) -> None:
        self.chain = chain
        self.machine = machine
        self.constraints = constraints
        self.phase = phase
        self.splits_experts = splits_experts
        self.loads_first = loads_first
        self.turn = turn
        self._times = {own: self._table(own) for own in (Objective.DECODE, Objective.PREFILL)}
        self._sources = _sources(chain)
        self._host_holds_all = _host_holds_all(chain, machine)

    @property
    def may_split_copied(self) -> bool:
        """Whether experts that steps copy while they are with their block may be apart instead."""
        return self.splits_experts and any(
            form.copied_bytes for cost in self.chain.costs for form in cost.forms
        )

    def form(self, index: int, answer: Answer) -> BlockForm:
        """Return the form that `answer` gives the block at `index`."""
        return self.chain.costs[index].forms[answer.choices[index].form]

    def compute_ns(self, index: int, form: int, device: int, phase: Objective | None = None) -> int:
        """Return the time of one call of a block, in nanoseconds.

        Args:
            index: Position of the block.
            form: Which of its forms.
            device: Where it computes, its weights being there.
            phase: One token (`decode`) or a prefill chunk; None: the objective's.
        """
        return self._times[phase or self.phase][index][form][device]

    def visit_ns(self, index: int, choice: Choice, phase: Objective | None = None) -> int:
        """Return the time of one call of a block, what its device loses to reading its weights included.

        Args:
            index: Position of the block.
            choice: Where it is.
            phase: None: the objective's.
        """
        own = self.compute_ns(index, choice.form, choice.device, phase)
        if choice.residency is not Residency.STREAM_DISK:
            return own
        node = self.machine.inventory.nodes[self.machine.nodes[choice.device]]
        num_bytes = self.chain.costs[index].forms[choice.form].parameter_bytes
        return own + reading_ns(num_bytes, self.machine.devices[choice.device], node)

    def transfer_ns(self, index: int, form: int, device: int, residency: Residency) -> int | None:
        """Return the time to bring a block's weights in, in nanoseconds; None: there is no way."""
        way = self.machine.feed(device, residency)
        if way is None:
            return None
        return way.transfer_ns(self.chain.costs[index].forms[form].parameter_bytes)

    def handed(self, start: int, stop: int, phase: Objective | None = None) -> tuple[int, int]:
        """Return how many values come in where `start` to `stop` begin on another device, and their bytes.

        What the block before `start` hands on, and what these blocks use of earlier ones; each value once.
        """
        own = phase or self.phase
        before = self.chain.costs[start - 1]
        count, num_bytes = 1, _bytes_of(own, before.decode_output_bytes, before.prefill_output_bytes)
        for source, (targets, decode_bytes, prefill_bytes) in self._sources.items():
            if source >= start - 1:
                break
            if any(start <= target < stop for target in targets):
                count += 1
                num_bytes += _bytes_of(own, decode_bytes, prefill_bytes)
        return count, num_bytes

    def hop_ns(
        self, start: int, stop: int, source: int, target: int, phase: Objective | None = None
    ) -> int | None:
        """Return the time for what blocks `start` to `stop` on `target` need to come from `source`.

        Args:
            start: First block on `target`; 0: nothing has to come.
            stop: Behind its last block there.
            source: Device of the block before.
            target: Device of these blocks.
            phase: None: the objective's.

        Returns:
            Nanoseconds: every value is a copy of its own; None: there is no way.
        """
        if start == 0 or source == target:
            return 0
        count, num_bytes = self.handed(start, stop, phase)
        first = self.machine.hop_ns(source, target, num_bytes)
        empty = self.machine.hop_ns(source, target, 0)
        return None if first is None or empty is None else first + (count - 1) * empty

    def way_back_ns(self, source: int) -> int | None:
        """Return the time of the way that closes a step, in nanoseconds; None: there is none.

        From the last block, on `source`, to the first of a turned chain. Else the first begins with a token.
        """
        if self.turn is None:
            return 0
        start = len(self.chain) - self.turn.num_blocks
        return self.turn.whole.hop_ns(start, len(self.chain), source, self.turn.home)

    def residencies(self, index: int, device: int) -> tuple[Residency, ...]:
        """Return the residencies that make sense for a block on a device.

        Where host memory holds all that could ever wait there, nothing streams from disk of its own accord:
        the way from host memory is no slower, and nobody shares it who does not share the other too. Only
        loading is faster where weights stay on the disk.
        """
        allowed = self.constraints.residencies(self.chain, index)
        if len(allowed) == 1 or self.loads_first or not self._host_holds_all[self.machine.nodes[device]]:
            return allowed
        if self.machine.feed(device, Residency.STREAM_HOST) is None:
            return allowed
        return tuple(residency for residency in allowed if residency is not Residency.STREAM_DISK)

    def host_holds_all(self, node: int) -> bool:
        """Whether the host memory of a node holds every block at once beside the devices that lie in it."""
        return self._host_holds_all[node]

    def may(self, index: int, choice: Choice) -> bool:
        """Whether the demands on the block at `index` allow `choice`, and a way brings its weights in."""
        constraints, chain = self.constraints, self.chain
        pinned = constraints.device[index]
        if choice.streams:
            has_weights = chain.costs[index].forms[choice.form].parameter_bytes > 0
            if not has_weights or self.machine.feed(choice.device, choice.residency) is None:
                return False
        return (
            choice.residency in constraints.residencies(chain, index)
            and choice.form in constraints.forms(chain, index)
            and pinned in (None, self.machine.devices[choice.device].id)
        )

    def _table(self, phase: Objective) -> tuple[Times, ...]:
        known: dict[BlockRun, Times] = {}
        tables = []
        for cost in self.chain.costs:
            key = msgspec.structs.replace(cost, first="")
            if key not in known:
                call = msgspec.structs.replace(key, kv_bytes=cost.kv_bytes // self.chain.num_batches)
                known[key] = tuple(
                    tuple(
                        compute_ns(call, form, device, phase, self.chain.kinds)
                        for device in self.machine.devices
                    )
                    for form in cost.forms
                )
            tables.append(known[key])
        return tuple(tables)


def _bytes_of(phase: Objective, decode_bytes: int, prefill_bytes: int) -> int:
    return decode_bytes if phase is Objective.DECODE else prefill_bytes


def _host_holds_all(chain: Chain, machine: Machine) -> tuple[bool, ...]:
    """Return, per node, whether its host memory holds all blocks at once beside the devices in it."""
    most = sum(max(form.parameter_bytes for form in cost.forms) for cost in chain.costs)
    inside = [0] * len(machine.inventory.nodes)
    for device, node in enumerate(machine.nodes):
        if machine.lies_in_host_memory(device):
            inside[node] += machine.budgets[device]
    return tuple(
        most <= pinned and most + own <= host
        for own, host, pinned in zip(inside, machine.host_budgets, machine.pinned_budgets, strict=True)
    )


def _sources(chain: Chain) -> dict[int, tuple[tuple[int, ...], int, int]]:
    """Return, for blocks that others than their successors use: these, and the bytes in both phases."""
    place = {block_id: index for index, block_id in enumerate(chain.ids)}
    targets: dict[int, list[int]] = {}
    sizes: dict[int, tuple[int, int]] = {}
    for edge in chain.edges:
        source = place[edge.source]
        targets.setdefault(source, []).append(place[edge.target])
        before = sizes.get(source, (0, 0))
        sizes[source] = max(before[0], edge.decode_bytes), max(before[1], edge.prefill_bytes)
    return {source: (tuple(targets[source]), *sizes[source]) for source in sorted(targets)}
