"""`--pin`: a user's demands on where blocks are and in which format."""

from __future__ import annotations

from bayplan.planner.format_choice import AUTO_FORMATS, FormatRequest
from bayplan.planner.hardware.budget import resolve_device
from bayplan.planner.stored_form import FLOATS
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Residency

_WHERE = "--pin"


def parse_pins(options: tuple[str, ...], inventory: Inventory, request: FormatRequest) -> tuple[Pin, ...]:
    """Return the pins that `GLOB=DEVICE[,RESIDENCY][,FORMAT]` options describe.

    Args:
        options: In any order of residency and format, such as `model.layers.0=cpu,nf4`.
        inventory: The devices there are.
        request: The formats to choose from. Whether a block can be in one is for the model to say.

    Raises:
        UsageError: An option is not of that form.
        UsageError: A word after the device is neither a residency nor a format.
        UsageError: A residency or a format is given twice.
        UsageError: A format is none of those to choose from.
        UsageError: A device is unknown.
    """
    return tuple(_parse_pin(option, inventory, request) for option in options)


def _parse_pin(option: str, inventory: Inventory, request: FormatRequest) -> Pin:
    pattern, equals, rest = option.partition("=")
    device, *words = rest.split(",")
    if not pattern or not equals or not device or "" in words:
        raise UsageError(
            "not a pin", where=_WHERE, got=repr(option), needed="GLOB=DEVICE[,RESIDENCY][,FORMAT]"
        )
    residency: Residency | None = None
    name: str | None = None
    for word in words:
        is_second = residency is not None if word in set(Residency) else name is not None
        if is_second:
            raise UsageError("a pin has one residency and one format at most", where=_WHERE, got=repr(option))
        if word in set(Residency):
            residency = Residency(word)
        else:
            name = _format_name(word, request)
    return Pin(
        pattern=pattern,
        device=resolve_device(device, inventory, where=_WHERE),
        residency=residency,
        format=name,
    )


def _format_name(word: str, request: FormatRequest) -> str:
    name = request.format_name(word)
    if name is None:
        raise UsageError(
            "neither a residency nor a format",
            where=_WHERE,
            got=repr(word),
            needed=f"one of {', '.join(Residency)}, or of {request.known_names()}",
        )
    # A model's own format is known once it is read; a plain one may be it.
    allowed = AUTO_FORMATS if request.is_auto else request.names
    is_open = not request.names and name in FLOATS
    if name not in allowed and not is_open:
        raise UsageError(
            "the format is none of those to choose from",
            where=_WHERE,
            got=repr(word),
            needed=f"one of {', '.join(allowed)}" if allowed else "the model's own format",
            hint=f"--format with {name} among its names allows it",
        )
    return name
