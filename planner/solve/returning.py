"""Placements whose last blocks come back to the device on which a storage lies that they use.

A head that shares the weights of the embeddings needs no replica where they are. Steps follow each other, and
a steady step may be counted from any block on: begun with the head, a placement that comes back has one
stretch per device again. So the chain is turned, its last blocks first, and all that searches, bounds and
proves takes it as any other; one more way, from the last device to the first, closes the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from bayplan.planner.solve.chain import Chain, ChainTie
from bayplan.planner.solve.constraints import Constraints
from bayplan.planner.solve.task import Task, Turn, turned_order
from bayplan.schemas.problem import PlannedEdge
from bayplan.schemas.types import Residency


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """The last blocks of a chain, as far as they may come back."""

    start: int
    """Position of the last block that uses a storage which an earlier block holds."""
    owner: int
    """Position of the last of the blocks that hold what it uses."""


def tail_of(ties: Iterable[tuple[int, ...]]) -> Tail | None:
    """Return what may come back, given the positions of each tied storage; None: none is used again."""
    shared = [positions for positions in ties if len(positions) > 1]
    if not shared:
        return None
    start = max(positions[-1] for positions in shared)
    return Tail(start=start, owner=max(positions[0] for positions in shared if positions[-1] == start))


def views(task: Task) -> Iterator[Task]:
    """Yield `task` and, where blocks may come back, the task of the turned chain."""
    yield task
    other = turned(task)
    if other is not None:
        yield other


def turned(task: Task, only: frozenset[int] | None = None) -> Task | None:
    """Return the task of the turned chain: placements whose last blocks come back; None: there are none.

    They are resident on the first accelerator, without one on the first device, or where they or the storage
    are pinned; it has all blocks up to the one that holds the storage.

    Args:
        task: The problem, not turned.
        only: Devices that may be used; None: all.
    """
    assert task.turn is None, "a chain is turned once"
    tail, num_blocks = tail_of(tie.positions for tie in task.chain.ties), len(task.chain)
    home = None if tail is None else _home(task, tail)
    usable = frozenset(range(len(task.machine.devices))) if only is None else only
    # Without a device after it, nothing leaves it that could come back.
    if tail is None or home is None or home not in usable or home == max(usable):
        return None
    if any(task.constraints.must_stream(index) for index in range(tail.start, num_blocks)):
        return None
    return Task(
        _turned_chain(task.chain, tail.start),
        task.machine,
        _turned_constraints(task.constraints, tail, task.machine.devices[home].id),
        task.phase,
        splits_experts=task.splits_experts,
        loads_first=task.loads_first,
        turn=Turn(whole=task, num_blocks=num_blocks - tail.start, home=home),
    )


def _home(task: Task, tail: Tail) -> int | None:
    """Return the device that the last blocks come back to; None: pins forbid it."""
    machine, pins = task.machine, task.constraints.device
    pinned = {*pins[: tail.owner + 1], *pins[tail.start :]} - {None}
    if not pinned:
        return min(machine.accelerators or range(len(machine.devices)), default=None)
    places = [place for place, device in enumerate(machine.devices) if {device.id} == pinned]
    return places[0] if places else None


def _turned_chain(chain: Chain, start: int) -> Chain:
    """Return the chain with the blocks from `start` on first.

    What they use is on their device. Values for them come by the way that closes the step.
    """
    num_blocks = len(chain) - start
    place = {block_id: index for index, block_id in enumerate(chain.ids)}
    inside = [edge for edge in chain.edges if not place[edge.source] < start <= place[edge.target]]
    return msgspec.structs.replace(
        chain,
        ids=turned_order(chain.ids, start),
        costs=turned_order(chain.costs, start),
        ties=tuple(
            ChainTie(
                positions=tuple(position + num_blocks for position in tie.positions if position < start),
                num_bytes=tie.num_bytes,
            )
            for tie in chain.ties
            if tie.positions[0] < start
        ),
        edges=tuple(_as_large(edge, chain.edges) for edge in inside),
    )


def _as_large(edge: PlannedEdge, edges: Sequence[PlannedEdge]) -> PlannedEdge:
    """Return `edge` with the bytes of the largest of its source: some of those may be left out."""
    same = [other for other in edges if other.source == edge.source]
    return msgspec.structs.replace(
        edge,
        decode_bytes=max(other.decode_bytes for other in same),
        prefill_bytes=max(other.prefill_bytes for other in same),
    )


def _turned_constraints(constraints: Constraints, tail: Tail, home: str) -> Constraints:
    end = len(constraints.device)
    device = [
        home if index <= tail.owner or index >= tail.start else constraints.device[index]
        for index in range(end)
    ]
    residency = [
        Residency.RESIDENT if index >= tail.start else constraints.residency[index] for index in range(end)
    ]
    return Constraints(
        device=turned_order(device, tail.start),
        residency=turned_order(residency, tail.start),
        form=turned_order(constraints.form, tail.start),
        no_spill=constraints.no_spill,
    )
