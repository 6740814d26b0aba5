"""A `device_map` as accelerate and transformers write it, as demands on the blocks of a model.

Owns what such a map means here: a number is an accelerator; `cpu` and `disk` are where weights wait for one,
on a machine that has any; on one that has none, `cpu` is the CPU. Which device the blocks that wait for one
compute on, no map says; that is for the solver, as are slots and order. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from bayplan.planner.hardware.budget import device_aliases
from bayplan.planner.options import PlanOptions
from bayplan.planner.solve.chain import tied_positions
from bayplan.planner.solve.returning import tail_of
from bayplan.schemas.errors import PlanFormatError, UsageError
from bayplan.schemas.graph import GraphBlock, TiedGroup
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.problem import Pin
from bayplan.schemas.strict_json import join_path, quote
from bayplan.schemas.types import OWN_SUFFIX, Backend, DeviceId, Fqn, Residency

DeviceMap = Mapping[Fqn, int | str]
"""Path of a module, or of a tensor, to the number or the torch name of a device, `cpu` or `disk`; the longest
path that matches a tensor counts, and the empty one matches all."""

_WHERE = "--from-device-map"
_NOUN = "device map"
_ROOT = "$"


class MapPlace(msgspec.Struct, frozen=True, kw_only=True):
    """What a map says of one block."""

    device: DeviceId | None
    """Where it computes; None: left open."""
    residency: Residency


class MapReading(msgspec.Struct, frozen=True, kw_only=True):
    """A map, understood for one model on one machine."""

    places: dict[Fqn, MapPlace]
    """By block; those without weights of their own that the map leaves open are not in it."""
    pins: tuple[Pin, ...]
    """The same, with as few pins as there are entries where that can be said."""
    obstacles: tuple[tuple[str, str], ...]
    """Why no plan can be like the map: `(path, text)` each."""
    unused: tuple[str, ...]
    """Entries that decide nothing."""


def entry_of(entries: DeviceMap, name: Fqn) -> Fqn | None:
    """Return the key of `entries` that decides about a module or tensor; None: none does."""
    path = name
    while path:
        if path in entries:
            return path
        path = path.rpartition(".")[0]
    return "" if "" in entries else None


def block_entries(entries: DeviceMap, block: GraphBlock) -> dict[Fqn, Fqn | None]:
    """Return the deciding key of every tensor of a block; of the block itself where it has none."""
    names = [tensor.fqn for tensor in block.tensors] or [block.id.removesuffix(OWN_SUFFIX)]
    return {name: entry_of(entries, name) for name in names}


def asked_map(
    options: PlanOptions,
    blocks: Sequence[GraphBlock],
    inventory: Inventory,
    left_out: Sequence[DeviceId],
    ties: Sequence[TiedGroup] = (),
) -> MapReading | None:
    """Return what the device map says that the plan is to be like, or compared with; None: there is none.

    Args:
        options: What was asked.
        blocks: As for `read_map`.
        inventory: Likewise.
        left_out: Likewise.
        ties: Likewise.

    Raises:
        UsageError: `free` without a map.
        PlanFormatError: As `read_map`.
    """
    if options.device_map is not None:
        return read_map(options.device_map, blocks, inventory, left_out, ties)
    if options.free:
        raise UsageError("there is no map to be free of", where="--free", needed="--from-device-map")
    return None


def read_map(
    entries: DeviceMap,
    blocks: Sequence[GraphBlock],
    inventory: Inventory,
    left_out: Sequence[DeviceId] = (),
    ties: Sequence[TiedGroup] = (),
) -> MapReading:
    """Return what `entries` demand of `blocks`.

    Args:
        entries: The map.
        blocks: Of the model, in execution order, before anything is quantized.
        inventory: The machine; of a number, the accelerators in its order.
        left_out: Devices of it that are not used.
        ties: Of the model: its last blocks may come back to a storage that they use.

    Raises:
        PlanFormatError: A device is unknown, a block or part of it has none, or a block has several; every
            problem is listed.
        PlanFormatError: The machine has several nodes.
    """
    machine = _Machine(inventory, left_out)
    if len(inventory.nodes) > 1:
        text = f"got a machine of {len(inventory.nodes)} nodes, needed one: no map names a node"
        raise PlanFormatError(_WHERE, _NOUN, ((_ROOT, text),))
    keys: dict[Fqn, Fqn] = {}
    found = [*machine.unknown(entries)]
    for block in blocks:
        decided = block_entries(entries, block)
        found += _block_problems(entries, block, decided)
        key = next(iter(decided.values()))
        if key is not None:
            keys[block.id] = key
    if found:
        raise PlanFormatError(_WHERE, _NOUN, tuple(found))
    places: dict[Fqn, MapPlace] = {}
    obstacles: list[tuple[str, str]] = []
    for block in blocks:
        if block.id not in keys:
            continue
        place = machine.place(entries[keys[block.id]])
        streams = place.residency is not Residency.RESIDENT
        if streams and all(tensor.is_buffer for tensor in block.tensors):
            continue  # nothing waits anywhere: buffers are where the block computes
        places[block.id] = place
        if streams:
            obstacles += _stream_obstacles(machine, block, keys[block.id], entries)
    back = _blocks_back(tuple(block.id for block in blocks), places, ties)
    obstacles += _order_obstacles({key: places[key] for key in places if key not in back}, inventory)
    used = {key for block in blocks for key in block_entries(entries, block).values()}
    return MapReading(
        places=places,
        pins=tuple(_pins([block.id for block in blocks], places, keys)),
        obstacles=tuple(obstacles),
        unused=tuple(key for key in entries if key not in used),
    )


def pins_of(reading: MapReading) -> tuple[Pin, ...]:
    """Return the pins by which a plan is like the map.

    Raises:
        PlanFormatError: No plan can be like it; every reason is listed.
    """
    if reading.obstacles:
        hint = "--free makes the best plan and says where it differs from the map"
        raise PlanFormatError(_WHERE, "device map for this plan", reading.obstacles, hint=hint)
    return reading.pins


class _Machine:
    """The devices that a map can mean."""

    def __init__(self, inventory: Inventory, left_out: Sequence[DeviceId]) -> None:
        self.accelerators = [device for device in inventory.devices if device.backend is not Backend.CPU]
        self.usable = [device for device in self.accelerators if device.id not in left_out]
        self.cpu = next((device for device in inventory.devices if device.backend is Backend.CPU), None)
        self.left_out = frozenset(left_out)
        self.has_disk = any(node.disk is not None for node in inventory.nodes)
        self.aliases = device_aliases(inventory)

    def unknown(self, entries: DeviceMap) -> Iterator[tuple[str, str]]:
        """Yield a problem for every device that this machine does not have."""
        known = [str(index) for index in range(len(self.accelerators))]
        known += [name for name in ("cpu", "disk") if name == "disk" or self.usable or self.cpu]
        for key, name in entries.items():
            found = self._device(name)
            if found in self.left_out:
                yield join_path(_ROOT, key), f"this version does not run on {found}"
            if name == "disk" or (name == "cpu" and "cpu" in known) or found is not None:
                continue
            yield join_path(_ROOT, key), f"unknown device: got {name!r}, needed one of {', '.join(known)}"

    def place(self, name: int | str) -> MapPlace:
        """Return what the name of a known device says of the blocks that it decides about."""
        if name == "disk":
            device = None if self.usable or self.cpu is None else self.cpu.id
            return MapPlace(device=device, residency=Residency.STREAM_DISK)
        if name == "cpu" and self.usable:
            return MapPlace(device=None, residency=Residency.STREAM_HOST)
        found = self._device(name)
        assert found is not None, "unknown devices were refused"
        return MapPlace(device=found, residency=Residency.RESIDENT)

    def _device(self, name: int | str) -> DeviceId | None:
        if isinstance(name, int):
            return self.accelerators[name].id if 0 <= name < len(self.accelerators) else None
        return self.aliases.get(name) or self.aliases.get(f"{name}:0")


def _block_problems(
    entries: DeviceMap, block: GraphBlock, decided: Mapping[Fqn, Fqn | None]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the entries of one block."""
    path = join_path(_ROOT, block.id.removesuffix(OWN_SUFFIX))
    without = [name for name, key in decided.items() if key is None]
    if without and block.tensors:
        which = "it" if len(without) == len(decided) else without[0]
        yield path, f"no device for {which}"
        return
    named: dict[int | str, Fqn] = {}
    for key in decided.values():
        if key is not None:
            named.setdefault(entries[key], key)
    if len(named) > 1:
        parts = ", ".join(f"{key or quote(key)} on {name}" for name, key in named.items())
        yield path, f"a block that stays whole is split: {parts}"


def _stream_obstacles(
    machine: _Machine, block: GraphBlock, key: Fqn, entries: DeviceMap
) -> Iterator[tuple[str, str]]:
    """Yield why a block cannot be brought in from where its weights would wait."""
    path, name = join_path(_ROOT, key), entries[key]
    if block.resident_reason is not None:
        yield path, f"{block.id} must stay where it computes ({block.resident_reason.value}): got {name!r}"
    elif name == "disk" and not machine.has_disk:
        yield path, f"{block.id} is on a disk, and the machine has none"
    elif name == "cpu" and all(device.shares_host_memory for device in machine.usable):
        yield path, f"{block.id} is in host memory, which the accelerator shares: got 'cpu', needed 0"


def _blocks_back(
    ids: tuple[Fqn, ...], places: Mapping[Fqn, MapPlace], ties: Sequence[TiedGroup]
) -> frozenset[Fqn]:
    """Return the last blocks where they are on one device with all up to the storage that they use."""
    tail = tail_of(tied_positions(ids, group.fqns) for group in ties)
    if tail is None:
        return frozenset()
    last = ids[tail.start :]
    devices = {places[one].device for one in (*ids[: tail.owner + 1], *last) if one in places}
    return frozenset(last) if len(devices) == 1 else frozenset()


def _order_obstacles(places: Mapping[Fqn, MapPlace], inventory: Inventory) -> Iterator[tuple[str, str]]:
    """Yield where the chain of blocks comes back to a device that it has left."""
    order = {device.id: index for index, device in enumerate(inventory.devices)}
    before: DeviceId | None = None
    for block_id, place in places.items():
        if place.device is None:
            continue
        if before is not None and order[place.device] < order[before]:
            text = f"on {place.device} after blocks on {before}: activations go through the devices once"
            yield join_path(_ROOT, block_id.removesuffix(OWN_SUFFIX)), text
        before = place.device


def _pins(ids: Sequence[Fqn], places: Mapping[Fqn, MapPlace], keys: Mapping[Fqn, Fqn]) -> Iterator[Pin]:
    """Yield one pin per entry where a pattern says which blocks it decides about, else one per block."""
    groups: dict[tuple[Fqn, MapPlace], set[Fqn]] = {}
    for block_id, place in places.items():
        groups.setdefault((keys[block_id], place), set()).add(block_id)
    for (key, place), wanted in groups.items():
        name = _escaped(key)
        patterns = [f"{name}.*", f"{name}*"] if key else ["*"]
        fitting = [
            pattern for pattern in patterns if {one for one in ids if fnmatchcase(one, pattern)} == wanted
        ]
        alone = [_escaped(block_id) for block_id in ids if block_id in wanted]
        for pattern in alone if len(alone) == 1 or not fitting else fitting[:1]:
            yield Pin(pattern=pattern, device=place.device, residency=place.residency)


def _escaped(name: str) -> str:
    """Return the pattern that matches `name` alone."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
