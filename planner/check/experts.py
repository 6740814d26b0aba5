"""Routed experts that live apart from their block: how many a call needs, and what is cached.

The rest of the block is on its device as ever. Some experts are in slots there and the others come from host
memory or disk when they are routed to, or all are in host memory and its CPU computes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from bayplan.planner.check.basis import PlacedBlock, Placement, Problem, apart_from
from bayplan.schemas.plan import Experts
from bayplan.schemas.types import Residency

MILLION = 1_000_000

_PAGE_BYTES = 4096
"""A slot is a multiple of this and one more, as reads past the page cache need it."""

_NUM_ON_THE_WAY = 4
"""Experts that are on their way at once, besides those of the call before."""

_TIERS = {"cache-host": Residency.STREAM_HOST, "cache-disk": Residency.STREAM_DISK}
"""Whence the experts come that are not in their cache."""


def tier_of(experts: Experts) -> Residency | None:
    """Return whence missing experts come; None: the host computes all of them."""
    return _TIERS.get(experts.residency)


def unit_slot_bytes(unit_bytes: int) -> int:
    """Return what a slot for one expert takes, in bytes."""
    return (-(-unit_bytes // _PAGE_BYTES) + 1) * _PAGE_BYTES


def cache_bytes(blocks: tuple[PlacedBlock, ...]) -> int:
    """Return what the caches of one device take, with what is on its way to any of them, in bytes."""
    cached = [(entry.form.unit_bytes, experts) for entry, experts in _apart(blocks) if tier_of(experts)]
    on_the_way = [
        (_NUM_ON_THE_WAY + experts.per_token) * unit_slot_bytes(unit_bytes) for unit_bytes, experts in cached
    ]
    slots = sum(experts.slots * unit_slot_bytes(unit_bytes) for unit_bytes, experts in cached)
    return slots + max(on_the_way, default=0)


def host_bytes(entry: PlacedBlock) -> int:
    """Return what the experts of a block take of host memory, in bytes."""
    experts = apart_from(entry.block)
    if experts is None or tier_of(experts) == Residency.STREAM_DISK:
        return 0
    return experts.count * entry.form.unit_bytes


@lru_cache(maxsize=1024)
def needed_ppm(count: int, per_token: int, num_tokens: int) -> int:
    """Return how many experts some tokens need that go to all alike, in millionths of one, rounded up."""
    if num_tokens * per_token > 64 * count:
        return MILLION * count  # what is missing is less than a millionth
    unneeded: int = MILLION * count * (count - per_token) ** num_tokens // count**num_tokens
    return MILLION * count - unneeded


def hit_ppm(experts: Experts, num_tokens: int) -> int:
    """Return the share of needed experts that is taken to be in the cache, in millionths, rounded down.

    Of one sequence the share of slots to the power of 3/4; of several the share itself; nothing where one
    token needs more than there is room for.
    """
    slots, count = experts.slots, experts.count
    if slots < experts.per_token:
        return 0
    if num_tokens != 1:
        return MILLION * slots // count
    share: int = round(MILLION * (slots / count) ** 0.75)
    while share**4 * count**3 > MILLION**4 * slots**3:
        share -= 1
    while (share + 1) ** 4 * count**3 <= MILLION**4 * slots**3:
        share += 1
    return share


def missing_bytes(placement: Placement, entry: PlacedBlock, experts: Experts, *, is_decode: bool) -> int:
    """Return the bytes of the experts that one call has to wait for, rounded up."""
    num_tokens = tokens_of(placement, is_decode=is_decode)
    needed = needed_ppm(experts.count, experts.per_token, num_tokens)
    if is_decode:
        missing = -(-needed * (MILLION - hit_ppm(experts, num_tokens)) // MILLION)
    else:
        missing = max(0, needed - MILLION * experts.slots)
    return -(-missing * entry.form.unit_bytes // MILLION)


def tokens_of(placement: Placement, *, is_decode: bool) -> int:
    """Return how many positions one call has."""
    workload = placement.plan.workload
    return workload.batch if is_decode else workload.batch * workload.prefill_chunk


def expert_problems(placement: Placement, entry: PlacedBlock) -> Iterator[Problem]:
    """Yield what a block says of its experts that is not so."""
    experts, known = entry.block.experts, entry.run.experts
    if experts is None or known is None:
        if experts is not None or known is not None:
            yield f"{entry.path}.experts", "its run says otherwise whether it has some"
        return
    is_cached, is_hosted = tier_of(experts) is not None, experts.residency == "compute-host"
    num_tokens = tokens_of(placement, is_decode=True)
    for field, needed in (
        ("count", known.count),
        ("per_token", known.per_token),
        ("unit_bytes", entry.form.unit_bytes),
        ("format", entry.block.format),
        ("floor_slots", known.per_token if is_cached else 0),
        ("compute", "host" if is_hosted else "device"),
        ("hit_ppm", hit_ppm(experts, num_tokens) if is_cached else 0),
        ("hit_source", "default"),
    ):
        said = getattr(experts, field)
        if said != needed:
            yield f"{entry.path}.experts.{field}", f"{said}, but the plan gives {needed}"
    fewest, most = (known.per_token, known.count) if is_cached else (0, 0)
    if not fewest <= experts.slots <= most:
        yield f"{entry.path}.experts.slots", f"{experts.slots}, but {fewest} to {most} are of use"
    if experts.residency == "resident":
        yield f"{entry.path}.experts.residency", "resident, which is with their block"
    if apart_from(entry.block) is None:
        return
    if entry.streams:
        yield f"{entry.path}.experts.residency", f"{experts.residency}, but their block streams"
    if placement.plan.problem.no_spill:
        yield f"{entry.path}.experts.residency", f"{experts.residency}, but nothing may spill"


def _apart(blocks: tuple[PlacedBlock, ...]) -> list[tuple[PlacedBlock, Experts]]:
    found = ((entry, apart_from(entry.block)) for entry in blocks)
    return [(entry, experts) for entry, experts in found if experts is not None]
