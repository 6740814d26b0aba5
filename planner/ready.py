"""What a call of the planner asks for, put together before anything is placed: options read, model read.

Owns which devices of this machine are left out, since this version does not run on them, and that it is said
where they are asked for. Places nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.device_map import MapReading, asked_map, pins_of
from bayplan.planner.format_choice import FormatRequest, parse_request
from bayplan.planner.formats import PlannedForms, planned_forms
from bayplan.planner.hardware.budget import parse_max_memory
from bayplan.planner.options import PlanOptions
from bayplan.planner.pins import parse_pins
from bayplan.planner.previous import check_objective
from bayplan.schemas.errors import UsageError, first_names
from bayplan.schemas.features import Feature, may_plan
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Backend, DeviceId

if TYPE_CHECKING:
    from bayplan.planner.model.facts import ReadModel

_SHOWN_NAMES = 5


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan is made of."""

    options: PlanOptions
    read: ReadModel
    request: FormatRequest
    forms: PlannedForms
    inventory: Inventory
    max_memory: dict[DeviceId, int]
    pins: tuple[Pin, ...]
    left_out: tuple[DeviceId, ...]
    """Devices that this version does not run on, whatever their memory."""
    map: MapReading | None
    """A device map that the plan is to be like, or compared with."""
    warnings: tuple[str, ...]


def get_ready(options: PlanOptions, read_model: Callable[[PlanOptions], ReadModel]) -> Ready:
    """Return what a plan is made of.

    Args:
        options: What was asked.
        read_model: Reads the model; called once, when the options have been found to make sense.

    Raises:
        UsageError: An option is malformed.
        UsageError: The limit of time is not a positive number.
        UsageError: A budget or a pin names a device of this machine that this version does not run on.
        BayplanError: The model cannot be read.
    """
    from bayplan.planner.hardware.probe import probe_inventory  # torch, only if this machine is asked

    _check_time_limit(options.time_limit_s)
    if options.previous is not None:
        check_objective(options.objective)
    inventory = options.inventory or probe_inventory()
    max_memory = parse_max_memory(options.max_memory, inventory)
    request = parse_request(options.format, options.format_config)
    pins = parse_pins(options.pins, inventory, request)
    read = read_model(options)
    if read.obstacle is not None:
        raise read.obstacle.error()
    left_out = _cannot_run(inventory)
    reading = asked_map(options, read.graph.blocks, inventory, left_out, read.graph.ties)
    if reading is not None and not options.free:
        pins = (*pins_of(reading), *pins)
    _check_unused(left_out, max_memory, pins)
    warnings = read.warnings
    if left_out:
        warnings = (*warnings, f"left unused, since this version does not run on it: {', '.join(left_out)}")
    if reading is not None and reading.unused:
        unused = first_names(reading.unused, _SHOWN_NAMES)
        warnings = (*warnings, f"the device map decides nothing with {unused}")
    request = _runnable(request, inventory)
    return Ready(
        options=options,
        read=read,
        request=request,
        forms=planned_forms(read, request),
        inventory=inventory,
        max_memory={**max_memory, **dict.fromkeys(left_out, 0)},
        pins=pins,
        left_out=left_out,
        map=reading,
        warnings=warnings,
    )


def _check_time_limit(limit_s: float | None) -> None:
    if limit_s is not None and not limit_s > 0:
        raise UsageError(
            "a limit of time must be positive",
            where="--time-limit",
            got=f"{limit_s:g}",
            needed="seconds, more than 0",
        )


def _runnable(request: FormatRequest, inventory: Inventory) -> FormatRequest:
    """Return `request`; for this machine `auto` chooses only among what this version runs."""
    if request.is_auto and not may_plan(Feature.QUANTIZED, inventory):
        return msgspec.structs.replace(request, names=(), is_auto=False)
    return request


def _check_unused(
    left_out: tuple[DeviceId, ...], max_memory: dict[DeviceId, int], pins: tuple[Pin, ...]
) -> None:
    """Say at once that a device which the user asks for cannot be used.

    Raises:
        UsageError: A budget or a pin names a device of this machine that this version does not run on.
    """
    named = {device for device, budget in max_memory.items() if budget} | {pin.device for pin in pins}
    for device in left_out:
        if device in named:
            raise UsageError(
                f"this version does not run on {device}",
                where="--max-memory or --pin",
                hint="plan for a declared inventory with -i to see what it would do",
            )


def _cannot_run(inventory: Inventory) -> tuple[DeviceId, ...]:
    """Return the devices of this machine that this version does not run on; of a declared one, none."""
    if may_plan(Feature.ACCELERATOR, inventory):
        return ()
    return tuple(device.id for device in inventory.devices if device.backend != Backend.CPU)
