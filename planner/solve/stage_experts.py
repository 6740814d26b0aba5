"""Experts apart from their blocks on one device: what that saves and costs, those of all blocks being alike.

A block whose experts are apart takes longer by a time that depends on the slots of its cache alone. Then it
makes no difference which of the blocks they are: only how many there are, and how many slots they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import msgspec

from bayplan.planner.solve.experts import ExpertsResidency, SplitExperts, in_flight_bytes, slot_bytes
from bayplan.planner.solve.split import dense_bytes, missing_fetch, split_residencies, split_visit
from bayplan.planner.solve.task import Task


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """How the experts of a block can be apart from it on one device."""

    num_bytes: int
    """Of its experts."""
    slot_bytes: int
    """Of one slot of a cache."""
    in_flight_bytes: int
    """Of those on their way; once, however many blocks have caches."""
    first_slots: int
    """The fewest that a cache has."""
    cached: ExpertsResidency | None
    """Whence caches are filled; None: there are none."""
    cached_ns: tuple[int, ...]
    """What the block takes longer with a cache of `first_slots` and more, up to all experts but one."""
    least_ns: tuple[int, ...]
    """The largest convex bound of that, from wherever it is filled: under it caches are best equal."""
    host_ns: int | None
    """What it takes longer where the host computes them; None: it cannot."""
    shortest_ns: int
    """The least of all; below 0 where the host is faster than the device."""
    cheapest: Fraction
    """The least nanoseconds per byte that is saved."""

    @property
    def most_saved_bytes(self) -> int:
        """The most that one block can do without."""
        cached = self.num_bytes - self.first_slots * self.slot_bytes if self.cached_ns else 0
        return max(0, cached if self.host_ns is None else self.num_bytes)


class Shed(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one device whose experts are apart."""

    num_host: int
    """Of which the host computes them."""
    num_cached: int
    num_slots: int
    """Of all caches together, which are as equal as can be."""

    def extra_ns(self, apart: Apart, cached_ns: Sequence[int]) -> int:
        """Return what all together take longer, if those with a cache do so by `cached_ns`."""
        host_ns = 0 if apart.host_ns is None else self.num_host * apart.host_ns
        if not self.num_cached:
            return host_ns
        each, more = divmod(self.num_slots, self.num_cached)
        place = each - apart.first_slots
        larger_ns = more * cached_ns[place + 1] if more else 0
        return host_ns + (self.num_cached - more) * cached_ns[place] + larger_ns

    def splits(self, apart: Apart) -> tuple[SplitExperts, ...]:
        """Return how the experts of each block are apart."""
        found = [SplitExperts(residency=ExpertsResidency.COMPUTE_HOST)] * self.num_host
        for number in range(self.num_cached):
            assert apart.cached is not None, "what has slots has a cache"
            slots = (self.num_slots + number) // self.num_cached
            found.append(SplitExperts(residency=apart.cached, slots=slots))
        return tuple(found)


def apart_of(task: Task, index: int, form: int, device: int) -> Apart | None:
    """Return how the experts of a block can be apart from it; None: they cannot."""
    allowed, cost = split_residencies(task, index, device), task.chain.costs[index]
    own, experts = cost.forms[form], cost.experts
    if not allowed or experts is None:
        return None
    whole_ns = task.compute_ns(index, form, device)
    curves: list[tuple[tuple[int, ...], ExpertsResidency]] = []
    host_ns: int | None = None
    for residency in allowed:
        visit = split_visit(task, index, form, device, SplitExperts(residency=residency), task.phase)
        if residency is ExpertsResidency.COMPUTE_HOST:
            host_ns = visit.dense_ns - whole_ns
            continue
        times: list[int] = []
        for slots in range(experts.per_token, experts.count):
            split = SplitExperts(residency=residency, slots=slots)
            fetch = missing_fetch(task, index, form, device, split, task.phase)
            times.append(visit.dense_ns + max(fetch.duration_ns, visit.experts_ns) - whole_ns)
        if times:
            curves.append((tuple(times), residency))
    best, cached = min(curves, key=lambda curve: curve[0], default=((), None))
    least_ns = _convex([min(own) for own in zip(*(times for times, _ in curves), strict=True)])
    num_bytes, slot = own.parameter_bytes - dense_bytes(own, experts), slot_bytes(own.unit_bytes)
    saving = [
        (time_ns, num_bytes - slots * slot) for slots, time_ns in enumerate(least_ns, experts.per_token)
    ]
    if host_ns is not None:
        saving.append((host_ns, num_bytes))
    worthwhile = [Fraction(time_ns, saved) for time_ns, saved in saving if saved > 0]
    if not worthwhile:
        return None
    return Apart(
        num_bytes=num_bytes,
        slot_bytes=slot,
        in_flight_bytes=in_flight_bytes(own.unit_bytes, experts.per_token),
        first_slots=experts.per_token,
        cached=cached,
        cached_ns=best,
        least_ns=least_ns,
        host_ns=host_ns,
        shortest_ns=min(time_ns for time_ns, _ in saving),
        cheapest=min(worthwhile),
    )


def _convex(times: Sequence[int]) -> tuple[int, ...]:
    """Return the largest convex curve that is nowhere above `times`, each of its values rounded down."""
    corners: list[int] = []
    for place, time_ns in enumerate(times):
        while len(corners) > 1:
            first, second = corners[-2:]
            if (times[second] - times[first]) * (place - first) < (time_ns - times[first]) * (second - first):
                break
            corners.pop()
        corners.append(place)
    found = list(times[:1])
    for first, second in pairwise(corners):
        rise, width = times[second] - times[first], second - first
        found += [times[first] + rise * step // width for step in range(1, width + 1)]
    return tuple(found)


def best_shed(apart: Apart, num_blocks: int, saved_bytes: int) -> Shed | None:
    """Return how at most so many blocks save so many bytes in the least time; None: they cannot."""
    choices = _choices(apart, num_blocks, saved_bytes)
    return min(choices, key=lambda own: own.extra_ns(apart, apart.cached_ns), default=None)


def least_extra_ns(apart: Apart, num_blocks: int, saved_bytes: int) -> int | None:
    """Return a lower bound of what any such blocks take longer; None: they cannot save it."""
    choices = _choices(apart, num_blocks, saved_bytes)
    return min((own.extra_ns(apart, apart.least_ns) for own in choices), default=None)


def _choices(apart: Apart, num_blocks: int, saved_bytes: int) -> Iterator[Shed]:
    """Yield every number of blocks with experts apart, with as many slots as leave the bytes saved."""
    most_slots = apart.first_slots + len(apart.cached_ns) - 1
    for num_host in range(1 if apart.host_ns is None else num_blocks + 1):
        if num_host * apart.num_bytes >= saved_bytes:
            yield Shed(num_host=num_host, num_cached=0, num_slots=0)
        for num_cached in range(1, num_blocks - num_host + 1 if apart.cached_ns else 1):
            saved = (num_host + num_cached) * apart.num_bytes - apart.in_flight_bytes
            num_slots = min((saved - saved_bytes) // apart.slot_bytes, num_cached * most_slots)
            if num_slots >= num_cached * apart.first_slots:
                yield Shed(num_host=num_host, num_cached=num_cached, num_slots=num_slots)
