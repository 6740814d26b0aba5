"""The best placement of a small problem by trying every one: what the solver's answer is compared with.

Feasibility, ways and bytes are worked out here once more from the problem's own words; of the planner only
the time of one block, the margin of activations and the simulator are used, which have tests of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import combinations_with_replacement, pairwise, product

import msgspec
from placement_problems import PlacementProblem

from bayplan.planner.solve.cost import compute_ns
from bayplan.planner.solve.margins import activation_bounds
from bayplan.planner.solve.simulate import Transfer, Visit, steady_step_ns
from bayplan.schemas.hardware import Device, Link, Node
from bayplan.schemas.problem import BlockForm
from bayplan.schemas.types import Backend, Objective, Residency

MAX_SLOTS = 3
TIERS = (Residency.STREAM_HOST, Residency.STREAM_DISK)


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """One block on one device in one form and residency."""

    form: int
    residency: Residency
    visit: Visit


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks on one device that fit it: neighbours, and perhaps the last ones besides."""

    positions: tuple[int, ...]
    modes: tuple[Mode, ...]
    num_slots: int
    used_bytes: int
    waiting_bytes: int
    quantized_bytes: int


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A placement of the whole chain."""

    step_ns: int
    quantized_bytes: int
    devices: tuple[int, ...]
    """Per block, the index of its device in the inventory."""
    modes: tuple[Mode, ...]
    num_slots: dict[int, int]
    visits: tuple[Visit, ...]


class Optimum(msgspec.Struct, frozen=True, kw_only=True):
    """The best there is under the rules."""

    best: Placed
    is_resident: bool
    """Whether only placements that keep everything were looked at."""


def optimum(problem: PlacementProblem, *, num_batches: int = 1) -> Optimum | None:
    """Return the best placement with so many batches in flight, or None if there is none.

    What fits the accelerators is never streamed; without them, or where the user forbids to stream, the CPUs
    are as good. Else everything is allowed.
    """
    search = _Search(problem)
    if all(search.pinned(index, "residency") not in TIERS for index in range(len(problem.chain))):
        for is_any in (False, True) if problem.no_spill else (False,):
            found = search.best(
                _usable(problem, is_any),
                (Residency.RESIDENT,),
                fewest_first=problem.is_auto,
                num_batches=num_batches,
            )
            if found is not None:
                return Optimum(best=found, is_resident=True)
    if problem.no_spill:
        return None
    found = search.best(_usable(problem, True), (Residency.RESIDENT, *TIERS), num_batches=num_batches)
    return None if found is None else Optimum(best=found, is_resident=False)


def fastest(problem: PlacementProblem, *, can_stream: bool, num_batches: int = 1) -> Placed | None:
    """Return the fastest placement on any devices, whatever comes first by the rules; None: there is none.

    Args:
        problem: A small one.
        can_stream: Whether something may stream.
        num_batches: In flight; the step is then the time from one batch's end to the next one's.
    """
    tiers = TIERS if can_stream and not problem.no_spill else ()
    return _Search(problem).best(
        _usable(problem, True), (Residency.RESIDENT, *tiers), num_batches=num_batches
    )


def every_stretch(
    problem: PlacementProblem, device: int, *, limit: int
) -> Iterator[tuple[int, int, Stretch]]:
    """Yield ways to have neighbouring blocks on a device of the inventory, with where they begin and end.

    Args:
        problem: A small one.
        device: Index in the inventory.
        limit: Ways at most for the same blocks, the last ones, which stream most.
    """
    search, end = _Search(problem), len(problem.chain)
    for start in range(end):
        for stop in range(start + 1, end + 1):
            ways = list(search.stretches(device, tuple(range(start, stop)), (Residency.RESIDENT, *TIERS)))
            for stretch in ways[-limit:]:
                yield start, stop, stretch


def is_order(problem: PlacementProblem, devices: Sequence[str], streams: Sequence[bool]) -> bool:
    """Whether blocks may be on these devices, given by id, while these stream."""
    names = [device.id for device in problem.inventory.devices]
    wanted = tuple(names.index(device) for device in devices)
    return any(
        wanted == own and not any(streams[len(streams) - num_last :])
        for own, num_last in _Search(problem).orders(_usable(problem, True))
    )


def _usable(problem: PlacementProblem, is_any: bool) -> list[int]:
    """Return the devices with a budget: any, or where there are some the accelerators."""
    devices = problem.inventory.devices
    usable = [number for number, device in enumerate(devices) if problem.budgets[device.id] > 0]
    accelerators = [number for number in usable if devices[number].backend is not Backend.CPU]
    return usable if is_any or not accelerators else accelerators


class _Search:
    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self._chain = problem.chain
        self._devices = problem.inventory.devices
        self._nodes = {node.id: node for node in problem.inventory.nodes}
        self._place = {name: index for index, name in enumerate(self._chain.ids)}

    def pinned(self, index: int, field: str) -> object:
        """Return what the last pin that says something about the block demands."""
        said: object = None
        for pin in self._problem.pins:
            if fnmatchcase(self._chain.ids[index], pin.pattern):
                said = getattr(pin, field) or said
        return said

    def best(
        self,
        only: list[int],
        residencies: tuple[Residency, ...],
        *,
        fewest_first: bool = False,
        num_batches: int = 1,
    ) -> Placed | None:
        """Return the fastest placement on the devices `only`, or of those with the fewest rounded bytes."""
        candidates = []
        stretches: dict[tuple[int, tuple[int, ...], int], list[Stretch]] = {}
        for devices, num_last in self.orders(only):
            hops = self._hops(devices)
            if hops is None:
                continue
            used = sorted(set(devices))
            choices = []
            for device in used:
                own = tuple(index for index, other in enumerate(devices) if other == device)
                back = num_last if device == devices[-1] else 0
                if (device, own, back) not in stretches:
                    stretches[device, own, back] = list(
                        self.stretches(device, own, residencies, num_last=back)
                    )
                choices.append(stretches[device, own, back])
            for chosen in product(*choices):
                if not self._fits_hosts(used, chosen):
                    continue
                quantized = sum(stretch.quantized_bytes for stretch in chosen)
                serial_ns = sum(hops) + sum(
                    mode.visit.compute_ns for stretch in chosen for mode in stretch.modes
                )
                least_ns = -(-serial_ns // num_batches)
                for stretch in chosen:
                    transfers = [mode.visit.transfer for mode in stretch.modes if mode.visit.transfer]
                    least_ns = max(least_ns, sum(transfer.duration_ns for transfer in transfers))
                order = (quantized if fewest_first else 0, least_ns)
                candidates.append((order, len(candidates), devices, hops, chosen))
        # No step is shorter than what it computes, or than what one courier brings: the rest is not tried.
        candidates.sort(key=lambda one: one[:2])
        best: Placed | None = None
        for (fewest, least_ns), _, devices, hops, chosen in candidates:
            if best is not None and (
                least_ns >= best.step_ns or (fewest_first and fewest > best.quantized_bytes)
            ):
                break
            placed = _placed(devices, hops, chosen, num_batches)
            if best is None or placed.step_ns < best.step_ns:
                best = placed
        return best

    def orders(self, only: list[int]) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield the device of each block, and how many of the last ones have come back to theirs.

        Devices follow each other. The last blocks, from the last use of a tied storage on, may also be on
        the device that has all blocks up to the one that holds it: the first accelerator, or without one the
        first device, or where one of these blocks is pinned.
        """
        end = len(self._chain)
        for devices in combinations_with_replacement(only, end):
            yield devices, 0
        ties = [tie.positions for tie in self._chain.ties if len(tie.positions) > 1]
        if not ties:
            return
        start = max(positions[-1] for positions in ties)
        num_first = 1 + max(positions[0] for positions in ties if positions[-1] == start)
        pinned = {self.pinned(index, "device") for index in (*range(num_first), *range(start, end))} - {None}
        names = [device.id for device in self._devices]
        homes = {names.index(str(name)) for name in pinned} or {_usable(self._problem, False)[0]}
        for home in homes.intersection(only) if len(homes) == 1 else ():
            for devices in combinations_with_replacement(only, start):
                if set(devices[:num_first]) == {home} and devices[-1] != home:
                    yield (*devices, *[home] * (end - start)), end - start

    def stretches(
        self,
        device: int,
        positions: tuple[int, ...],
        residencies: tuple[Residency, ...],
        *,
        num_last: int = 0,
    ) -> Iterator[Stretch]:
        """Yield every way to have some blocks on one device that fits it alone; the last few stay there."""
        chain, budget = self._chain, self._problem.budgets[self._devices[device].id]
        replicas = sum(
            tie.num_bytes
            for tie in chain.ties
            if tie.positions[0] not in positions and not set(tie.positions).isdisjoint(positions)
        )
        each = [list(self._modes(index, device, residencies)) for index in positions]
        for number in range(len(each) - num_last, len(each)):
            each[number] = [mode for mode in each[number] if mode.residency is Residency.RESIDENT]
        for modes in product(*each):
            held = chain.scratch_bytes + replicas
            activations = waiting = quantized = 0
            moving: list[int] = []
            for index, mode in zip(positions, modes, strict=True):
                cost = chain.costs[index]
                form = cost.forms[mode.form]
                held += form.buffer_bytes + cost.kv_bytes
                if mode.residency is Residency.RESIDENT:
                    held += form.parameter_bytes
                else:
                    moving.append(form.parameter_bytes)
                if mode.residency is Residency.STREAM_HOST:
                    waiting += form.parameter_bytes
                quantized += form.quantized_bytes
                decode_bytes = cost.decode_activation_bytes + form.copied_bytes
                own = max(cost.prefill_activation_bytes, decode_bytes) + form.workspace_bytes
                activations = max(activations, own)
            held += activation_bounds(chain.base_activation_bytes + activations)[1]
            for num_slots in range(1, max(1, min(MAX_SLOTS, len(moving))) + 1):
                used = held + num_slots * max(moving, default=0)
                if used <= budget:
                    yield Stretch(
                        positions=positions,
                        modes=modes,
                        num_slots=num_slots,
                        used_bytes=used,
                        waiting_bytes=waiting,
                        quantized_bytes=quantized,
                    )

    def _modes(self, index: int, device: int, residencies: tuple[Residency, ...]) -> Iterator[Mode]:
        cost, own = self._chain.costs[index], self._devices[device]
        if self.pinned(index, "device") not in (None, own.id):
            return
        wanted_format = self.pinned(index, "format") if len(cost.forms) > 1 else None
        # What a call reads of the cache is that of its own batch.
        call = msgspec.structs.replace(cost, kv_bytes=cost.kv_bytes // self._chain.num_batches)
        for number, form in enumerate(cost.forms):
            if wanted_format not in (None, form.format):
                continue
            for residency in residencies:
                if self.pinned(index, "residency") not in (None, residency):
                    continue
                transfer = None
                if residency is not Residency.RESIDENT:
                    if cost.resident_reason is not None or not form.parameter_bytes:
                        continue
                    transfer = self._transfer(own, form, residency)
                    if transfer is None:
                        continue
                time_ns = compute_ns(call, call.forms[number], own, self._problem.phase, self._chain.kinds)
                visit = Visit(device=device, compute_ns=time_ns, transfer=transfer)
                yield Mode(form=number, residency=residency, visit=visit)

    def _transfer(self, device: Device, form: BlockForm, residency: Residency) -> Transfer | None:
        node = self._nodes[device.id.partition("/")[0]]
        links = [] if device.backend is Backend.CPU else [self._link(device.id, node.id)]
        if None in links:
            return None
        ways = [(link.bytes_per_second, link.latency_ns) for link in links if link is not None]
        groups = tuple(link.group for link in links if link is not None and link.group)
        if residency is Residency.STREAM_HOST:
            if not ways or device.shares_host_memory:
                return None
        else:
            if node.disk is None:
                return None
            if device.shares_host_memory:
                ways = []
            ways.append((node.disk.read_bytes_per_second, node.disk.latency_ns))
            groups = ("the disk", *groups)
        rate = min(rate for rate, _ in ways)
        return Transfer(
            duration_ns=sum(latency for _, latency in ways) + _ns(form.parameter_bytes, rate),
            resources=tuple(f"{group} of {node.id}" for group in groups),
        )

    def _fits_hosts(self, devices: list[int], chosen: tuple[Stretch, ...]) -> bool:
        for node in self._nodes.values():
            taken = waiting = 0
            for device, stretch in zip(devices, chosen, strict=True):
                if self._devices[device].id.startswith(f"{node.id}/"):
                    waiting += stretch.waiting_bytes
                    taken += stretch.used_bytes if _is_in_host_memory(self._devices[device]) else 0
            limit = self._host_limit(node)
            spare = max(0, node.host_memory_bytes - node.host_reserve_bytes)
            pinned = spare if node.pinned_memory_bytes is None else node.pinned_memory_bytes
            if taken + waiting > limit or waiting > pinned:
                return False
        return True

    def _host_limit(self, node: Node) -> int:
        own = [device for device in self._devices if device.id.startswith(f"{node.id}/")]
        budgets = [self._problem.budgets[device.id] for device in own if _is_in_host_memory(device)]
        return max([0, node.host_memory_bytes - node.host_reserve_bytes, *budgets])

    def _hops(self, devices: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the time before each block for values to arrive; None: something finds no way."""
        hops = []
        for index, device in enumerate(devices):
            if index == 0 or devices[index - 1] == device:
                hops.append(0)
                continue
            links = self._way(self._devices[devices[index - 1]], self._devices[device])
            if links is None:
                return None
            stop = index + devices[index:].count(device)
            sizes = self._handed(index, stop)
            latencies = sum(link.latency_ns for link in links)
            hops.append(
                len(sizes) * latencies + sum(_ns(sum(sizes), link.bytes_per_second) for link in links)
            )
        return tuple(hops)

    def _handed(self, start: int, stop: int) -> list[int]:
        """Return the bytes of each value that blocks `start` to `stop` need from before."""
        is_decode = self._problem.phase is Objective.DECODE
        last = self._chain.costs[start - 1]
        values = {start - 1: last.decode_output_bytes if is_decode else last.prefill_output_bytes}
        for edge in self._chain.edges:
            source, target = self._place[edge.source], self._place[edge.target]
            if source < start - 1 and start <= target < stop:
                of_source = [other for other in self._chain.edges if other.source == edge.source]
                values[source] = max(
                    other.decode_bytes if is_decode else other.prefill_bytes for other in of_source
                )
        return list(values.values())

    def _way(self, source: Device, target: Device) -> list[Link] | None:
        direct = self._link(source.id, target.id)
        if direct is not None:
            return [direct]
        stations = [source.id] if source.backend is not Backend.CPU else []
        stations.append(source.id.partition("/")[0])
        if target.id.partition("/")[0] != stations[-1]:
            stations.append(target.id.partition("/")[0])
        stations += [target.id] if target.backend is not Backend.CPU else []
        links = [self._link(one, other) for one, other in pairwise(stations)]
        found = [link for link in links if link is not None]
        return found if len(found) == len(links) else None

    def _link(self, one: str, other: str) -> Link | None:
        for link in self._problem.inventory.links:
            if {link.source, link.target} == {one, other}:
                return link
        return None


def _placed(
    devices: tuple[int, ...], hops: tuple[int, ...], chosen: tuple[Stretch, ...], num_batches: int
) -> Placed:
    placed = [own for stretch in chosen for own in zip(stretch.positions, stretch.modes, strict=True)]
    modes = tuple(mode for _, mode in sorted(placed, key=lambda own: own[0]))
    visits = tuple(
        msgspec.structs.replace(mode.visit, hop_ns=hop) for mode, hop in zip(modes, hops, strict=True)
    )
    num_slots = {stretch.modes[0].visit.device: stretch.num_slots for stretch in chosen}
    return Placed(
        step_ns=_paced_ns(visits, num_slots, num_batches),
        quantized_bytes=sum(stretch.quantized_bytes for stretch in chosen),
        devices=devices,
        modes=modes,
        num_slots=num_slots,
        visits=visits,
    )


def _paced_ns(visits: tuple[Visit, ...], num_slots: dict[int, int], num_batches: int) -> int:
    """Return the time of a step, or with several batches that in which the slowest device serves one."""
    alone = steady_step_ns(visits, num_slots)
    if num_batches == 1:
        return alone
    owners: dict[str, int] = {}
    for visit in visits:
        for resource in visit.transfer.resources if visit.transfer else ():
            if owners.setdefault(resource, visit.device) != visit.device:
                return alone  # devices that share a way take turns
    slowest = -(-alone // num_batches)
    for device in num_slots:
        own = [msgspec.structs.replace(visit, hop_ns=0) for visit in visits if visit.device == device]
        slowest = max(slowest, steady_step_ns(own, num_slots))
    return max(slowest, *(visit.hop_ns for visit in visits))


def _is_in_host_memory(device: Device) -> bool:
    return device.backend is Backend.CPU or device.shares_host_memory


def _ns(num_bytes: int, per_second: int) -> int:
    return -(-num_bytes * 10**9 // per_second)
