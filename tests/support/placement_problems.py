"""Small placement problems made by hand or by hypothesis, and their answer by trying everything.

Rates are such that a byte takes a nanosecond wherever nothing else is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain as chained
from itertools import combinations, combinations_with_replacement

import msgspec
from hypothesis import strategies as st

from bayplan.planner.solve.chain import Chain, ChainTie
from bayplan.planner.solve.constraints import Constraints, resolve
from bayplan.planner.solve.cost import compute_ns, duration_ns, feed, hop_ns, output_bytes
from bayplan.planner.solve.margins import activation_bounds
from bayplan.planner.solve.simulate import Visit, steady_step_ns
from bayplan.schemas.hardware import INVENTORY_FORMAT_VERSION, Device, Disk, Inventory, Link, Node
from bayplan.schemas.plan import BlockRun, Pin
from bayplan.schemas.types import Backend, Objective, Reason, Residency

GIGA = 10**9
"""Bytes per second at which a byte takes a nanosecond."""

NO_ACTIVATIONS = activation_bounds(0)[1]
"""Budget that a model without activations needs for them all the same."""


def make_cost(size: int, **overrides: object) -> BlockRun:
    """A block that reads all of its parameters for a token and needs nothing else."""
    cost = BlockRun(
        first="",
        count=1,
        class_name="Layer",
        parameter_bytes=size,
        buffer_bytes=0,
        kv_bytes=0,
        prefill_flops=0,
        prefill_read_bytes=2 * size,
        decode_flops=0,
        decode_read_bytes=size,
        prefill_activation_bytes=0,
        decode_activation_bytes=0,
        prefill_output_bytes=0,
        decode_output_bytes=0,
    )
    return msgspec.structs.replace(cost, **overrides)


def make_chain(
    costs: Sequence[BlockRun | int],
    *,
    ties: Sequence[ChainTie] = (),
    base_activation_bytes: int = 0,
    scratch_bytes: int = 0,
) -> Chain:
    """Blocks `layers.0`, `layers.1`, ... of these costs, or of these sizes."""
    blocks = [make_cost(cost) if isinstance(cost, int) else cost for cost in costs]
    ids = tuple(f"layers.{index}" for index in range(len(blocks)))
    return Chain(
        ids=ids,
        exact_bytes=tuple(block.parameter_bytes + block.buffer_bytes for block in blocks),
        costs=tuple(
            msgspec.structs.replace(block, first=name) for name, block in zip(ids, blocks, strict=True)
        ),
        ties=tuple(ties),
        edges=(),
        base_activation_bytes=base_activation_bytes,
        scratch_bytes=scratch_bytes,
    )


def make_device(name: str, **overrides: object) -> Device:
    device = Device(
        id=f"node0/{name}",
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


def make_inventory(
    devices: Sequence[Device],
    links: Sequence[Link] = (),
    *,
    host_memory_bytes: int = 2**50,
    disk_rate: int | None = GIGA,
) -> Inventory:
    disk = None if disk_rate is None else Disk(read_bytes_per_second=disk_rate, latency_ns=0)
    return Inventory(
        format_version=INVENTORY_FORMAT_VERSION,
        source="declared",
        nodes=(Node(id="node0", host_memory_bytes=host_memory_bytes, host_reserve_bytes=0, disk=disk),),
        devices=tuple(devices),
        links=tuple(links),
    )


class PlacementProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What `Solver` takes."""

    chain: Chain
    inventory: Inventory
    budgets: dict[str, int]
    constraints: Constraints
    phase: Objective


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One placement among all of them."""

    devices: tuple[int, ...]
    """Index of the device of each block."""
    streamed: tuple[int, ...]
    num_slots: int
    tier: Residency


def every_answer(problem: PlacementProblem, *, resident: bool) -> Iterator[tuple[Candidate, int]]:
    """Yield every allowed placement with its steady step, in nanoseconds.

    Args:
        problem: A small one.
        resident: Only placements that stream nothing, else only those that stream something.
    """
    blocks = range(len(problem.chain))
    constraints = problem.constraints
    free = [index for index in blocks if constraints.may_stream(problem.chain, index)]
    subsets = [()] if resident else chained(*(combinations(free, size + 1) for size in range(len(free))))
    if any(constraints.must_stream) if resident else constraints.no_spill:
        return
    for streamed in subsets:
        if any(must and index not in streamed for index, must in enumerate(constraints.must_stream)):
            continue
        for devices in combinations_with_replacement(range(len(problem.inventory.devices)), len(blocks)):
            for tier in (Residency.RESIDENT,) if resident else constraints.tiers:
                for num_slots in (1,) if resident else (1, 2, 3):
                    candidate = Candidate(devices=devices, streamed=streamed, num_slots=num_slots, tier=tier)
                    visits = _visits(problem, candidate)
                    if visits is not None and _fits(problem, candidate):
                        yield candidate, steady_step_ns(visits, num_slots)


def _visits(problem: PlacementProblem, candidate: Candidate) -> list[Visit] | None:
    """Return one step, or None where something cannot travel or is pinned elsewhere."""
    visits: list[Visit] = []
    for index, cost in enumerate(problem.chain.costs):
        device = problem.inventory.devices[candidate.devices[index]]
        if problem.constraints.device[index] not in (None, device.id) or not problem.budgets[device.id]:
            return None
        hop: int | None = 0
        if index and candidate.devices[index] != candidate.devices[index - 1]:
            before = problem.inventory.devices[candidate.devices[index - 1]]
            num_bytes = output_bytes(problem.chain.costs[index - 1], problem.phase)
            hop = hop_ns(problem.inventory, before, device, num_bytes)
        if hop is None:
            return None
        transfer_ns, link = None, ""
        if index in candidate.streamed:
            source = feed(problem.inventory, device, candidate.tier)
            if source is None:
                return None
            transfer_ns, link = duration_ns(cost.parameter_bytes, source[0]), source[1] or device.id
        visits.append(
            Visit(
                device=device.id,
                compute_ns=compute_ns(cost, device, problem.phase),
                hop_ns=hop,
                transfer_ns=transfer_ns,
                link=link,
            )
        )
    return visits


def needed_bytes(problem: PlacementProblem, candidate: Candidate) -> dict[str, int]:
    """Return what the candidate takes of each device that it uses, added up block by block."""
    chain = problem.chain
    needed: dict[str, int] = {}
    for number, device in enumerate(problem.inventory.devices):
        mine = [index for index, own in enumerate(candidate.devices) if own == number]
        if not mine:
            continue
        total = chain.scratch_bytes
        for index in mine:
            total += chain.costs[index].buffer_bytes + chain.costs[index].kv_bytes
            if index not in candidate.streamed:
                total += chain.costs[index].parameter_bytes
        for tie in chain.ties:
            if set(mine) & set(tie.positions) and tie.positions[0] not in mine:
                total += tie.num_bytes
        sizes = [chain.costs[index].parameter_bytes for index in mine if index in candidate.streamed]
        total += candidate.num_slots * max(sizes, default=0)
        activations = [chain.costs[index].prefill_activation_bytes for index in mine]
        activations += [chain.costs[index].decode_activation_bytes for index in mine]
        needed[device.id] = total + activation_bounds(chain.base_activation_bytes + max(activations))[1]
    return needed


def _fits(problem: PlacementProblem, candidate: Candidate) -> bool:
    needed = needed_bytes(problem, candidate)
    if any(num_bytes > problem.budgets[device_id] for device_id, num_bytes in needed.items()):
        return False
    node = problem.inventory.nodes[0]
    in_host = [device.id for device in problem.inventory.devices if device.backend is Backend.CPU]
    limit = max(
        node.host_memory_bytes - node.host_reserve_bytes, *(problem.budgets[name] for name in in_host), 0
    )
    taken = sum(needed.get(name, 0) for name in in_host)
    if candidate.tier is Residency.STREAM_HOST:
        taken += sum(problem.chain.costs[index].parameter_bytes for index in candidate.streamed)
    return taken <= limit


@st.composite
def placement_problems(draw: st.DrawFn, *, max_blocks: int = 5) -> PlacementProblem:
    """Draw a problem with one or two devices, ties, pins, blocks that must stay, budgets about the need."""
    num_blocks = draw(st.integers(1, max_blocks))
    sizes = st.sampled_from(draw(st.sampled_from([(64,), (64, 192), (64, 320, 128), (0, 128, 448)])))
    small = st.sampled_from((0, 0, 64, 256))
    costs = [
        make_cost(
            draw(sizes),
            buffer_bytes=draw(small),
            kv_bytes=draw(small),
            decode_activation_bytes=draw(small),
            decode_read_bytes=draw(st.integers(0, 300)),
            decode_output_bytes=draw(small),
            resident_reason=draw(st.sampled_from((None, None, None, None, Reason.REPEATED))),
        )
        for _ in range(num_blocks)
    ]
    ties: list[ChainTie] = []
    if num_blocks > 1 and draw(st.booleans()):
        positions = draw(st.sets(st.integers(0, num_blocks - 1), min_size=2, max_size=3))
        ties.append(ChainTie(positions=tuple(sorted(positions)), num_bytes=draw(st.sampled_from((64, 128)))))
    chain = make_chain(costs, ties=ties, scratch_bytes=draw(small))
    inventory = draw(_inventories())
    always = chain.scratch_bytes + sum(cost.buffer_bytes + cost.kv_bytes for cost in costs)
    weights = sum(cost.parameter_bytes for cost in costs)
    eighths = st.sampled_from((3, 4, 5, 6, 2, 8, 1))
    budgets = {
        device.id: NO_ACTIVATIONS + 320 + always + draw(eighths) * weights // 8
        for device in inventory.devices
    }
    if len(budgets) > 1 and not draw(st.integers(0, 7)):
        budgets[inventory.devices[0].id] = 0
    pins = draw(_pins(num_blocks, inventory))
    pins = tuple(pin for pin in pins if costs[int(pin.pattern.rpartition(".")[2])].resident_reason is None)
    no_spill = not any(pin.residency for pin in pins) and draw(st.sampled_from((False, False, False, True)))
    return PlacementProblem(
        chain=chain,
        inventory=inventory,
        budgets=budgets,
        constraints=resolve(chain, pins, no_spill=no_spill),
        phase=draw(st.sampled_from(Objective)),
    )


@st.composite
def _inventories(draw: st.DrawFn) -> Inventory:
    names = draw(st.sampled_from((("gpu0",), ("cpu",), ("gpu0", "gpu1"), ("gpu0", "cpu"))))
    rates = st.sampled_from((GIGA, GIGA // 2, 4 * GIGA, 700_000_001))
    devices = [
        make_device(
            name, memory_bytes_per_second=draw(rates), block_overhead_ns=draw(st.sampled_from((0, 40)))
        )
        for name in names
    ]
    group = draw(st.sampled_from(("", "switch")))
    links = [
        make_link(device.id, rate=draw(rates), latency_ns=draw(st.sampled_from((0, 25))), group=group)
        for device in devices
        if device.backend is not Backend.CPU and draw(st.sampled_from((True, True, True, False)))
    ]
    return make_inventory(
        devices,
        links,
        host_memory_bytes=draw(st.sampled_from((2**50, 2**50, NO_ACTIVATIONS + 1500, 500))),
        disk_rate=draw(st.sampled_from((GIGA // 2, GIGA, None))),
    )


@st.composite
def _pins(draw: st.DrawFn, num_blocks: int, inventory: Inventory) -> tuple[Pin, ...]:
    if draw(st.integers(0, 2)):
        return ()
    tier = draw(st.sampled_from((Residency.STREAM_HOST, Residency.STREAM_DISK)))
    blocks = draw(st.lists(st.integers(0, num_blocks - 1), max_size=2, unique=True))
    return tuple(
        Pin(
            pattern=f"layers.{block}",
            device=draw(st.sampled_from((None, *(device.id for device in inventory.devices)))),
            residency=draw(st.sampled_from((None, Residency.RESIDENT, tier))),
        )
        for block in blocks
    )


def permuted(budgets: Mapping[str, int]) -> dict[str, int]:
    """Return the same budgets in the opposite order."""
    return dict(reversed(budgets.items()))
