"""Why nothing can be placed, and what would be enough: the certificate of an infeasible answer, and its JSON.

Computed, shown and printed; never read back. Owns the error that carries it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from bayplan.schemas.errors import Infeasible, first_and_more
from bayplan.schemas.json_tree import json_tree
from bayplan.schemas.pretty_json import pretty
from bayplan.schemas.sizes import format_size
from bayplan.schemas.types import Count, NumBytes


class Axis(enum.StrEnum):
    """One thing that could be otherwise, all else being as it was asked for."""

    CONTEXT = "context"
    ENCODER_CONTEXT = "encoder-context"
    BATCH = "batch"
    PREFILL_CHUNK = "prefill-chunk"
    FORMAT = "format"
    DEVICE_MEMORY = "device-memory"
    """Budget of one device."""
    HOST_MEMORY = "host-memory"
    """Of one node, with the devices that lie in it unless the user gave them budgets."""
    PINNED_MEMORY = "pinned-memory"
    """Of one node, where the inventory says how much of the host's can be locked."""
    DISK = "disk"
    """To stream from, on a node that has none."""
    STREAMING = "streaming"
    """Allowed, where `--no-spill` forbids it."""


Value = int | str | None


class Relaxation(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest change on one axis with which a placement exists."""

    axis: Axis
    subject: str = ""
    """Device or node; empty: an option of the call."""
    given: Value = None
    """What was asked for or is there; None: nothing."""
    enough: Value = None
    """What would do: placed again to be sure. None: nothing on this axis does, all else being equal."""
    too_little: Value = None
    """One step less, refused when placed again; where nothing does, the last value tried. None: there is no
    step in between."""
    step: Count | None = None
    """The step, in the axis's own unit: bytes, positions, sequences."""
    limit: NumBytes | None = None
    """What the device holds at most, for its memory."""
    note: str = ""
    """What to know about it, in one clause."""

    @property
    def helps(self) -> bool:
        """Whether it is enough by itself."""
        return self.enough is not None


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about an infeasible answer."""

    what: str
    where: str
    got: str
    needed: str
    relaxations: tuple[Relaxation, ...]
    """Every axis that the call has."""


class CertifiedInfeasible(Infeasible):
    """No placement exists, with the smallest change on each axis that would allow one.

    Attributes:
        certificate: The facts of the error, and the changes.
    """

    def __init__(self, certificate: Certificate, *, hint: str = "") -> None:
        """Keep the certificate beside the facts of `BayplanError`."""
        super().__init__(
            certificate.what,
            where=certificate.where,
            got=certificate.got,
            needed=certificate.needed,
            hint=hint,
        )
        self.certificate = certificate

    def __str__(self) -> str:
        """Return the facts, one line for each change that is enough, one for those that are not, the hint."""
        facts, newline, hint = super().__str__().partition("\nhint: ")
        lines = [facts]
        relaxations = self.certificate.relaxations
        enough = _texts([one for one in relaxations if one.helps])
        others = _texts([one for one in relaxations if not one.helps])
        for title, texts in (
            ("any one of these is enough, and one step less is not", enough),
            ("not enough by itself", others),
        ):
            if texts:
                lines.append(f"  {title}:")
                lines += [f"    {text}" for text in texts]
        return "\n".join(lines) + newline + hint


_MAX_NAMES = 3
"""Devices that are named one by one."""
_OPTIONS = {
    Axis.CONTEXT: "--context",
    Axis.ENCODER_CONTEXT: "--encoder-context",
    Axis.BATCH: "--batch",
    Axis.PREFILL_CHUNK: "--prefill-chunk",
    Axis.FORMAT: "--format",
}
_MEMORY = {
    Axis.HOST_MEMORY: "host memory",
    Axis.PINNED_MEMORY: "pinned memory",
}


def _texts(relaxations: Sequence[Relaxation]) -> list[str]:
    """Return changes in words, devices that need the same in one line."""
    alike: dict[Relaxation, list[str]] = {}
    for one in relaxations:
        key = msgspec.structs.replace(one, subject="") if one.axis is Axis.DEVICE_MEMORY else one
        alike.setdefault(key, []).append(one.subject)
    return [
        relaxation_text(msgspec.structs.replace(key, subject=_one_of(subjects)))
        for key, subjects in alike.items()
    ]


def _one_of(subjects: Sequence[str]) -> str:
    names = first_and_more(subjects, _MAX_NAMES)
    return f"one of {names}" if len(subjects) > 1 else names


def relaxation_text(relaxation: Relaxation) -> str:
    """Return a change in words, as the option to give where there is one."""
    one = relaxation
    match one.axis:
        case Axis.DEVICE_MEMORY:
            text = _device_text(one)
        case Axis.HOST_MEMORY | Axis.PINNED_MEMORY:
            text = f"more {_MEMORY[one.axis]} on {one.subject}"
            if isinstance(one.enough, int):
                text = f"{_exact(one.enough)} of {_MEMORY[one.axis]} on {one.subject}"
            if isinstance(one.given, int):
                text += f" instead of {format_size(one.given)}"
        case Axis.DISK:
            text = f"a disk on {one.subject}"
        case Axis.STREAMING:
            text = "streaming: without --no-spill"
        case Axis.CONTEXT | Axis.ENCODER_CONTEXT | Axis.BATCH | Axis.PREFILL_CHUNK | Axis.FORMAT:
            value = one.enough if one.helps else one.too_little
            text = f"{_OPTIONS[one.axis]} {value} instead of {one.given}"
            if value is None:
                text = f"{_OPTIONS[one.axis]}: {one.given}"
            if one.axis is not Axis.FORMAT and one.helps and one.too_little != one.given:
                text += f" ({one.too_little} is too much)"
    return f"{text}, {one.note}" if one.note else text


def _device_text(one: Relaxation) -> str:
    given = one.given if isinstance(one.given, int) else 0
    if not isinstance(one.enough, int):
        return f"more memory on {one.subject}"
    if one.limit is not None and one.enough <= one.limit:
        option = f"--max-memory {one.subject}={one.enough}"
        if " " in one.subject:
            option = f"--max-memory DEVICE={one.enough} for {one.subject}"
        return f"{option} ({format_size(one.enough)}) instead of {format_size(given)}"
    return f"{_exact(one.enough)} to use on {one.subject} instead of {format_size(given)}"


def _exact(num_bytes: int) -> str:
    return f"{num_bytes} bytes ({format_size(num_bytes)})"


def encode_certificate(certificate: Certificate) -> bytes:
    """Return the text of `certificate`, laid out as a plan is."""
    return pretty(json_tree(certificate))
