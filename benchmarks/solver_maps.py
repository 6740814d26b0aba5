"""A device map of accelerate's as a placement, with the rules by which accelerate runs it.

Modules on `cpu` and `disk` run on the main device, the first accelerator of the map, to which their weights
are copied before each visit; without an accelerator in the map, the CPU is the main device and `cpu` is where
they stay. Buffers are never offloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from bayplan.planner.device_map import DeviceMap, block_entries
from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.ledger import shortages
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.task import Task
from bayplan.planner.solve.timeline import step_ns
from bayplan.schemas.graph import GraphBlock
from bayplan.schemas.types import Backend, Residency

SLOT_COUNTS = (1, 2, 3)
"""Those that our own plans choose from."""


class MapError(Exception):
    """A map that accelerate itself would refuse, or that cuts what we place whole."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a map takes on our simulator."""

    step_ns: int | None
    """With the fastest number of slots that fits; None: there is no way for something."""
    num_slots: tuple[int, ...]
    streamed_blocks: int
    is_contiguous: bool
    """Whether the chain never comes back to a device that it has left; ours does for a tied head only."""
    shortages: tuple[tuple[str, int], ...]
    """What is too small for it, with the fewest slots; empty: it fits."""


def answer_of(entries: DeviceMap, blocks: Sequence[GraphBlock], machine: Machine) -> Answer:
    """Return the placement that a map means.

    Raises:
        MapError: A block has no device, or several.
    """
    names = list(_names(entries, blocks))
    accelerators = [
        index for index, device in enumerate(machine.devices) if device.backend is not Backend.CPU
    ]
    cpus = [index for index, device in enumerate(machine.devices) if device.backend is Backend.CPU]
    used = sorted({_number(name) for name in names if name not in ("cpu", "disk", None)})
    main = accelerators[used[0]] if used else cpus[0]
    stays = None if used else "cpu"
    choices: list[Choice] = []
    for name, block in zip(names, blocks, strict=True):
        residency = Residency.RESIDENT
        device = main
        if name is None:
            device = choices[-1].device if choices else main
        elif name in ("cpu", "disk"):
            has_parameters = any(not tensor.is_buffer for tensor in block.tensors)
            if name != stays and has_parameters:
                residency = Residency.STREAM_HOST if name == "cpu" else Residency.STREAM_DISK
        else:
            device = accelerators[_number(name)]
        choices.append(Choice(device=device, residency=residency))
    return Answer(choices=tuple(choices), num_slots=(1,) * len(machine.devices))


def cost(task: Task, answer: Answer) -> Cost:
    """Return what a placement takes, with the fastest number of slots per device that fits."""
    streaming = [device for device in range(len(task.machine.devices)) if answer.streamed_on(device)]
    best: tuple[int, Answer] | None = None
    for own in _with_slots(answer, streaming):
        time_ns = step_ns(task, own)
        if time_ns is not None and not shortages(task, own) and (best is None or time_ns < best[0]):
            best = time_ns, own
    chosen = answer if best is None else best[1]
    return Cost(
        step_ns=step_ns(task, answer) if best is None else best[0],
        num_slots=chosen.num_slots,
        streamed_blocks=sum(choice.streams for choice in answer.choices),
        is_contiguous=all(a.device <= b.device for a, b in pairwise(answer.choices)),
        shortages=shortages(task, chosen),
    )


def _with_slots(answer: Answer, streaming: Sequence[int]) -> Iterator[Answer]:
    """Yield `answer` with each number of slots; accelerate streams to one device only."""
    if not streaming:
        yield answer
        return
    for number in SLOT_COUNTS:
        slots = [number if device in streaming else 1 for device in range(len(answer.num_slots))]
        yield msgspec.structs.replace(answer, num_slots=tuple(slots))


def _names(entries: DeviceMap, blocks: Sequence[GraphBlock]) -> Iterator[int | str | None]:
    """Yield the device of each block; None: it has no tensors and the map leaves it out."""
    for block in blocks:
        keys = block_entries(entries, block)
        missing = [name for name, key in keys.items() if key is None]
        if missing and block.tensors:
            raise MapError(f"no device for {missing[0]}")
        found = {entries[key] for key in keys.values() if key is not None}
        if len(found) > 1:
            raise MapError(f"{block.id} is split over {', '.join(map(str, sorted(map(str, found))))}")
        yield next(iter(found), None)


def _number(name: int | str) -> int:
    """Return the number of an accelerator; a machine with Apple's has one."""
    return 0 if name == "mps" else int(name)
