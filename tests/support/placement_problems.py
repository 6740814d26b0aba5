"""Small placement problems, made by hand or by hypothesis.

By hand, rates are such that a byte takes a nanosecond wherever nothing else is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

import msgspec
from hypothesis import strategies as st

from bayplan.planner.solve.chain import Chain, ChainTie
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.margins import activation_bounds
from bayplan.planner.solve.task import Task
from bayplan.schemas.hardware import (
    INVENTORY_FORMAT_VERSION,
    Device,
    Disk,
    FormatRates,
    Inventory,
    Link,
    Node,
)
from bayplan.schemas.problem import BlockForm, BlockRun, Pin, PlainForm, PlannedEdge
from bayplan.schemas.types import Backend, Objective, Reason, Residency

GIGA = 10**9
"""Bytes per second at which a byte takes a nanosecond."""

MIB = 2**20

NO_ACTIVATIONS = activation_bounds(0)[1]
"""Budget that a model without activations needs for them all the same."""

FORMATS = ("bf16", "int8", "nf4")
"""What the first, second and third form of a block is called."""


def make_form(size: int, name: str = "bf16", **overrides: object) -> BlockForm:
    """What a block takes that reads all of its bytes for a token, and twice as many for a chunk."""
    form = BlockForm(
        format=name,
        num_bytes=size,
        parameter_bytes=size,
        buffer_bytes=0,
        prefill_read_bytes=2 * size,
        decode_read_bytes=size,
    )
    return msgspec.structs.replace(form, **overrides)


def make_cost(size: int, *, others: Sequence[BlockForm] = (), **overrides: object) -> BlockRun:
    """A block of `size` bytes that needs nothing else.

    Args:
        size: Of its first form.
        others: Its further forms.
        overrides: Fields of the block, or of its first form.
    """
    of_form = {name: value for name, value in overrides.items() if name in BlockForm.__struct_fields__}
    if "buffer_bytes" in of_form and "num_bytes" not in of_form:
        of_form["num_bytes"] = size + of_form["buffer_bytes"]
    first = make_form(size, **of_form)
    plain = PlainForm(
        kind="bf16",
        prefill_read_bytes=first.prefill_read_bytes,
        decode_read_bytes=first.decode_read_bytes,
        unit_bytes=first.unit_bytes,
    )
    others = [
        form if form.format == "bf16" or form.plain else msgspec.structs.replace(form, plain=plain)
        for form in others
    ]
    cost = BlockRun(
        first="",
        count=1,
        class_name="Layer",
        forms=(first, *others),
        kv_bytes=0,
        prefill_flops=0,
        decode_flops=0,
        prefill_operations=0,
        decode_operations=0,
        prefill_activation_bytes=0,
        decode_activation_bytes=0,
        prefill_output_bytes=0,
        decode_output_bytes=0,
    )
    of_block = {name: value for name, value in overrides.items() if name not in of_form}
    return msgspec.structs.replace(cost, **of_block)


def make_chain(
    costs: Sequence[BlockRun | int],
    *,
    ties: Sequence[ChainTie] = (),
    edges: Mapping[tuple[int, int], int] | None = None,
    base_activation_bytes: int = 0,
    scratch_bytes: int = 0,
) -> Chain:
    """Blocks `layers.0`, `layers.1`, ... of these costs, or of these sizes.

    Args:
        costs: In order.
        ties: Storages of several blocks.
        edges: Bytes from one position to a later one, in both phases.
        base_activation_bytes: Of the chain.
        scratch_bytes: Of the chain.
    """
    blocks = [make_cost(cost) if isinstance(cost, int) else cost for cost in costs]
    ids = tuple(f"layers.{index}" for index in range(len(blocks)))
    return Chain(
        ids=ids,
        costs=tuple(
            msgspec.structs.replace(block, first=name) for name, block in zip(ids, blocks, strict=True)
        ),
        kinds={name: name for name in FORMATS},
        ties=tuple(ties),
        edges=tuple(
            PlannedEdge(
                source=ids[source], target=ids[target], prefill_bytes=num_bytes, decode_bytes=num_bytes
            )
            for (source, target), num_bytes in (edges or {}).items()
        ),
        base_activation_bytes=base_activation_bytes,
        scratch_bytes=scratch_bytes,
    )


def make_device(name: str, *, node: str = "node0", **overrides: object) -> Device:
    device = Device(
        id=f"{node}/{name}",
        kind="test",
        backend=Backend.CPU if name.startswith("cpu") else Backend.CUDA,
        capacity_bytes=2**50,
        reserve_bytes=0,
        memory_bytes_per_second=GIGA,
        flops_per_second=GIGA,
        block_overhead_ns=0,
    )
    return msgspec.structs.replace(device, **overrides)


def make_link(source: str, target: str = "node0", rate: int = GIGA, **overrides: object) -> Link:
    link = Link(source=source, target=target, bytes_per_second=rate, latency_ns=0)
    return msgspec.structs.replace(link, **overrides)


def make_node(name: str = "node0", *, disk_rate: int | None = GIGA, **overrides: object) -> Node:
    disk = None if disk_rate is None else Disk(read_bytes_per_second=disk_rate, latency_ns=0)
    node = Node(id=name, host_memory_bytes=2**50, host_reserve_bytes=0, disk=disk)
    return msgspec.structs.replace(node, **overrides)


def make_inventory(
    devices: Sequence[Device],
    links: Sequence[Link] = (),
    *,
    nodes: Sequence[Node] = (),
    host_memory_bytes: int = 2**50,
    disk_rate: int | None = GIGA,
) -> Inventory:
    """One node of this host memory and disk, or these nodes."""
    one = make_node(disk_rate=disk_rate, host_memory_bytes=host_memory_bytes)
    return Inventory(
        format_version=INVENTORY_FORMAT_VERSION,
        source="declared",
        nodes=tuple(nodes) or (one,),
        devices=tuple(devices),
        links=tuple(links),
    )


def gpus(count: int, **overrides: object) -> Inventory:
    """Equal accelerators, each with a link of its own to the host."""
    devices = [make_device(f"gpu{number}") for number in range(count)]
    return make_inventory(devices, [make_link(device.id, **overrides) for device in devices])


def make_task(
    chain: Chain,
    inventory: Inventory,
    budgets: Mapping[str, int] | None = None,
    *,
    pins: tuple[Pin, ...] = (),
    no_spill: bool = False,
    phase: Objective = Objective.DECODE,
) -> Task:
    """A task; devices without a budget are given none that could be reached."""
    every = {device.id: 2**50 for device in inventory.devices} | dict(budgets or {})
    return Task(chain, Machine(inventory, every), resolve(chain, pins, no_spill=no_spill), phase)


class PlacementProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What a task is made of, and how it is to be solved."""

    chain: Chain
    inventory: Inventory
    budgets: dict[str, int]
    pins: tuple[Pin, ...]
    no_spill: bool
    is_auto: bool
    phase: Objective

    def task(self) -> Task:
        return make_task(
            self.chain,
            self.inventory,
            self.budgets,
            pins=self.pins,
            no_spill=self.no_spill,
            phase=self.phase,
        )


MAX_COMBINATIONS = 3_000
"""Residencies and forms of all blocks together that a drawn problem has at most."""


@st.composite
def placement_problems(
    draw: st.DrawFn, *, max_blocks: int = 8, max_devices: int = 3, unit: int = MIB
) -> PlacementProblem:
    """Draw a problem: all that the solver knows may occur in it, and budgets are about the need.

    Args:
        draw: Hypothesis' own.
        max_blocks: Blocks at most; fewer where each has many residencies and forms.
        max_devices: Devices at most.
        unit: All bytes and latencies are small multiples of it.
    """
    inventory = draw(_inventories(max_devices, unit))
    max_forms = draw(st.sampled_from((1, 1, 2, 3)))
    kinds = draw(st.lists(_costs(max_forms, unit), min_size=1, max_size=3))
    num_blocks = max(1, max_blocks - draw(st.integers(0, max_blocks - 1)))
    costs = [draw(st.sampled_from(kinds)) for _ in range(num_blocks)]
    if len(costs) > 1 and not draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(costs) - 1))
        costs[place] = msgspec.structs.replace(costs[place], resident_reason=Reason.REPEATED)
    num_tiers = 1 + (inventory.nodes[0].disk is not None) + bool(inventory.links)
    while prod(_num_modes(cost, num_tiers) for cost in costs) > MAX_COMBINATIONS:
        costs.pop()
    num_blocks = len(costs)
    ties: list[ChainTie] = []
    if num_blocks > 1 and not draw(st.integers(0, 2)):
        positions = draw(st.sets(st.integers(0, num_blocks - 1), min_size=2, max_size=3))
        ties.append(
            ChainTie(positions=tuple(sorted(positions)), num_bytes=draw(st.sampled_from((1, 2))) * unit)
        )
    edges: dict[tuple[int, int], int] = {}
    if num_blocks > 2 and not draw(st.integers(0, 2)):
        for _ in range(draw(st.integers(1, 2))):
            source = draw(st.integers(0, num_blocks - 3))
            target = draw(st.integers(source + 2, num_blocks - 1))
            edges[source, target] = draw(st.integers(1, 3)) * unit
    chain = make_chain(costs, ties=ties, edges=edges, scratch_bytes=draw(st.sampled_from((0, 0, unit))))
    budgets = draw(_budgets(chain, inventory, unit))
    pins = draw(_pins(costs, inventory))
    is_spilled = any(pin.residency not in (None, Residency.RESIDENT) for pin in pins)
    return PlacementProblem(
        chain=chain,
        inventory=inventory,
        budgets=budgets,
        pins=pins,
        no_spill=not is_spilled and draw(st.sampled_from((False, False, False, True))),
        is_auto=max_forms > 1 and draw(st.booleans()),
        phase=draw(st.sampled_from((Objective.DECODE, Objective.PREFILL))),
    )


def _num_modes(cost: BlockRun, num_tiers: int) -> int:
    if cost.resident_reason is not None:
        return len(cost.forms)
    return sum(num_tiers if form.parameter_bytes else 1 for form in cost.forms)


@st.composite
def _costs(draw: st.DrawFn, max_forms: int, unit: int) -> BlockRun:
    small = st.sampled_from((0, 0, 1, 4))
    size = draw(st.sampled_from((8, 16, 8, 24, 16, 8, 0)))
    share = draw(st.sampled_from((1, 1, 1, 0, 2)))
    forms = [
        make_form(
            size * unit // divisor,
            name,
            buffer_bytes=draw(st.sampled_from((0, 0, 1))) * unit,
            decode_read_bytes=(share * size * unit // divisor if share else draw(small) * unit),
            quantized_bytes=0 if divisor == 1 else size * unit,
            workspace_bytes=0 if divisor == 1 else draw(small) * unit,
            copied_bytes=draw(st.sampled_from((0, 0, 0, 2))) * unit,
        )
        for name, divisor in zip(FORMATS[:max_forms], (1, 2, 4), strict=False)
    ]
    return make_cost(
        0,
        kv_bytes=draw(small) * unit,
        decode_flops=draw(st.integers(0, 20)) * unit,
        prefill_flops=draw(st.integers(0, 60)) * unit,
        decode_activation_bytes=draw(small) * unit,
        prefill_activation_bytes=draw(small) * unit,
        decode_output_bytes=draw(small) * unit,
        prefill_output_bytes=draw(small) * unit,
        forms=tuple(forms if size else forms[:1]),
    )


@st.composite
def _budgets(draw: st.DrawFn, chain: Chain, inventory: Inventory, unit: int) -> dict[str, int]:
    """Budgets that hold cache and buffers, something else, and some eighths of all weights."""
    first = [cost.forms[0] for cost in chain.costs]
    weights = sum(form.parameter_bytes for form in first)
    always = sum(form.buffer_bytes for form in first) + sum(cost.kv_bytes for cost in chain.costs)
    budgets = {}
    for device in inventory.devices:
        eighths = draw(st.sampled_from((1, 0, 1, 2, 0, 3, 6)))
        spare = draw(st.sampled_from((9, 17, 9, 25, 18, 2)))
        kept = always // draw(st.sampled_from((1, 1, 1, 2)))
        budgets[device.id] = max(64, kept + spare * unit + eighths * weights // 8)
    if len(budgets) > 1 and not draw(st.integers(0, 9)):
        budgets[inventory.devices[0].id] = 0
    return budgets


@st.composite
def _inventories(draw: st.DrawFn, max_devices: int, unit: int) -> Inventory:
    rates = st.sampled_from((GIGA, GIGA, GIGA // 2, GIGA // 4, 4 * GIGA, 700_000_001))
    latencies = st.sampled_from((0, 0, unit))
    num_nodes = draw(st.sampled_from((1, 1, 1, 2)))
    nodes = [
        make_node(
            f"node{number}",
            disk_rate=draw(st.sampled_from((GIGA // 2, GIGA, GIGA // 8, None))),
            host_memory_bytes=draw(st.sampled_from((2**50, 2**50, 2**50, 64 * unit, 24 * unit))),
            pinned_memory_bytes=draw(st.sampled_from((None, None, None, 32 * unit, 16 * unit))),
        )
        for number in range(num_nodes)
    ]
    names = draw(st.lists(st.sampled_from(("gpu", "gpu", "gpu", "cpu")), min_size=1, max_size=max_devices))
    devices = []
    for number, name in enumerate(names):
        node = nodes[0] if number == 0 else draw(st.sampled_from(nodes))
        devices.append(
            make_device(
                f"{name}{number}",
                node=node.id,
                memory_bytes_per_second=draw(rates),
                flops_per_second=draw(rates),
                block_overhead_ns=draw(st.sampled_from((0, 0, unit // 2))),
                shares_host_memory=name == "gpu" and not draw(st.integers(0, 5)),
                format_rates=() if draw(st.integers(0, 3)) else (_measured(draw(rates)),),
            )
        )
    devices.sort(key=lambda device: device.id.partition("/")[0])
    group = draw(st.sampled_from(("", "", "switch")))
    links = [
        make_link(
            device.id, device.id.partition("/")[0], draw(rates), latency_ns=draw(latencies), group=group
        )
        for device in devices
        if device.backend is not Backend.CPU and draw(st.integers(0, 7))
    ]
    if num_nodes > 1 and draw(st.integers(0, 5)):
        links.append(make_link("node0", "node1", draw(rates), latency_ns=draw(latencies)))
    if len(devices) > 1 and not draw(st.integers(0, 2)):
        source, target = draw(st.sampled_from(list(pairwise(devices))))
        links.append(make_link(source.id, target.id, draw(rates), latency_ns=draw(latencies)))
    return make_inventory(devices, links, nodes=nodes)


def _measured(rate: int) -> FormatRates:
    """What a device does with weights in four bits."""
    return FormatRates(
        kind="nf4",
        memory_bytes_per_second=rate,
        cache_bytes_per_second=rate,
        flops_per_second=rate,
        block_overhead_ns=1000,
    )


@st.composite
def _pins(draw: st.DrawFn, costs: Sequence[BlockRun], inventory: Inventory) -> tuple[Pin, ...]:
    if draw(st.integers(0, 2)):
        return ()
    tiers = (Residency.STREAM_HOST, Residency.STREAM_DISK)
    pins = []
    for index in draw(st.lists(st.integers(0, len(costs) - 1), max_size=2, unique=True)):
        can_stream = costs[index].resident_reason is None and costs[index].forms[-1].parameter_bytes > 0
        pins.append(
            Pin(
                pattern=f"layers.{index}",
                device=draw(st.sampled_from((None, None, *(device.id for device in inventory.devices)))),
                residency=draw(
                    st.sampled_from((None, None, Residency.RESIDENT, *(tiers if can_stream else ())))
                ),
                format=draw(st.sampled_from((None, *(form.format for form in costs[index].forms)))),
            )
        )
    return tuple(pins)


def permuted(budgets: Mapping[str, int]) -> dict[str, int]:
    """Return the same budgets in the opposite order."""
    return dict(reversed(budgets.items()))
