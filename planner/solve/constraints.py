"""What the user demands of the placement: pins and no spilling, resolved to block positions."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.machine import STREAM_TIERS
from bayplan.schemas.errors import UsageError
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import DeviceId, Residency


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """Demands per block position; None: none."""

    device: tuple[DeviceId | None, ...]
    """Where it must compute."""
    residency: tuple[Residency | None, ...]
    form: tuple[int | None, ...]
    """Which of its forms it must have."""
    no_spill: bool

    def residencies(self, chain: Chain, index: int) -> tuple[Residency, ...]:
        """Return the residencies that the block at `index` may have on a device that allows them all."""
        pinned = self.residency[index]
        if pinned is not None:
            return (pinned,)
        cost = chain.costs[index]
        has_parameters = any(form.parameter_bytes for form in cost.forms)
        if self.no_spill or cost.resident_reason is not None or not has_parameters:
            return (Residency.RESIDENT,)
        return (Residency.RESIDENT, *STREAM_TIERS)

    def may_stream(self, chain: Chain, index: int) -> bool:
        """Whether the block at `index` can stream; without parameters there is nothing to bring in."""
        return self.residencies(chain, index)[-1] is not Residency.RESIDENT

    def must_stream(self, index: int) -> bool:
        """Whether the block at `index` has to stream."""
        return self.residency[index] in STREAM_TIERS

    def forms(self, chain: Chain, index: int) -> tuple[int, ...]:
        """Return which of its forms the block at `index` may have."""
        pinned = self.form[index]
        return tuple(range(len(chain.costs[index].forms))) if pinned is None else (pinned,)


def resolve(chain: Chain, pins: tuple[Pin, ...], *, no_spill: bool) -> Constraints:
    """Return the constraints on `chain`; of several pins on a block, the last one that says something holds.

    Raises:
        UsageError: A pin matches no block.
        UsageError: Two pins demand different things of the same pattern.
        UsageError: A pin makes a block stream that must stay.
        UsageError: A pin makes a block stream while spilling is forbidden.
        UsageError: A pin demands a format that the block cannot have.
    """
    devices: list[DeviceId | None] = [None] * len(chain)
    residencies: list[Residency | None] = [None] * len(chain)
    formats: list[str | None] = [None] * len(chain)
    _check_contradictions(pins)
    for pin in pins:
        matched = [index for index, name in enumerate(chain.ids) if fnmatchcase(name, pin.pattern)]
        if not matched:
            raise UsageError(
                "the pin matches no block",
                where=f"--pin {pin.pattern}",
                needed=f"a pattern for block ids such as {chain.ids[len(chain) // 2]}",
            )
        for index in matched:
            devices[index] = pin.device or devices[index]
            residencies[index] = pin.residency or residencies[index]
            formats[index] = pin.format or formats[index]
    for index, residency in enumerate(residencies):
        if residency in (None, Residency.RESIDENT):
            continue
        reason = chain.costs[index].resident_reason
        if reason is not None or no_spill:
            raise UsageError(
                "the pin makes a block stream that must stay",
                where=f"--pin for {chain.ids[index]}",
                got=f"{residency}",
                needed=f"resident ({reason.value if reason is not None else '--no-spill'})",
            )
    return Constraints(
        device=tuple(devices),
        residency=tuple(residencies),
        form=tuple(_form(chain, index, name) for index, name in enumerate(formats)),
        no_spill=no_spill,
    )


def _check_contradictions(pins: tuple[Pin, ...]) -> None:
    """Refuse two demands on one pattern: no order of the options would say which is meant."""
    said: dict[tuple[str, str], str] = {}
    for pin in pins:
        for field in ("device", "residency", "format"):
            value = getattr(pin, field)
            if value is not None and said.setdefault((pin.pattern, field), value) != value:
                raise UsageError(
                    f"two pins demand different things of {pin.pattern}",
                    where="--pin",
                    got=f"{said[pin.pattern, field]} and {value}",
                    needed=f"one {field}",
                )


def _form(chain: Chain, index: int, name: str | None) -> int | None:
    """Return the form called `name` of the block at `index`.

    A block that has only one has nothing that another format would change.
    """
    forms = chain.costs[index].forms
    if name is None or len(forms) == 1:
        return None
    names = [form.format for form in forms]
    if name not in names:
        raise UsageError(
            "the block cannot have the format that it is pinned to",
            where=f"--pin for {chain.ids[index]}",
            got=name,
            needed=f"one of {', '.join(names)}",
        )
    return names.index(name)
