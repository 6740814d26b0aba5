"""Planning from end to end: read the model, place it, check the answer, write it down.

`plan_model` reads top to bottom as the pipeline.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import msgspec

from bayplan.planner.assemble import Inputs, assemble
from bayplan.planner.check import check
from bayplan.planner.formats import PlannedForm, planned_form
from bayplan.planner.hardware.budget import device_budgets, parse_max_memory, resolve_device
from bayplan.planner.name_rules import tensor_rules
from bayplan.planner.options import PlanOptions
from bayplan.planner.solve.arrange import Arranger
from bayplan.planner.solve.chain import Chain, chain_from_graph
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.infeasible import infeasible
from bayplan.planner.solve.placement import Solver
from bayplan.planner.solve.predict import predict
from bayplan.schemas.errors import UsageError
from bayplan.schemas.features import NOT_YET_RUN, Feature
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.keywords import from_keywords
from bayplan.schemas.plan import Pin, Plan
from bayplan.schemas.progress import Progress, untold
from bayplan.schemas.types import Backend, DeviceId, Objective, Residency

if TYPE_CHECKING:
    from bayplan.planner.model.facts import ReadModel


_STEPS = 2
"""Of planning, for progress: reading the model, and placing it."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and what its maker should tell the user."""

    plan: Plan
    warnings: tuple[str, ...]


class PlanKeywords(TypedDict, total=False):
    """Keywords of `plan_model`: the fields of `PlanOptions`."""

    inventory: Inventory | None
    max_memory: tuple[str, ...]
    format: str | None
    batch: int
    context: int | None
    encoder_context: int | None
    prefill_chunk: int | None
    objective: Objective | None
    class_name: str | None
    no_split: tuple[str, ...]
    pins: tuple[str, ...]
    no_spill: bool
    hash_content: bool
    variant: str | None
    trust_remote_code: bool
    checkpoint: str | Path | None
    library: str | None
    use_cache: bool


def plan_model(model: str | Path, **options: Unpack[PlanKeywords]) -> Plan:
    """Return the plan for `model`; the same inputs give the same plan.

    Args:
        model: Local folder, config file, Hub id with or without `@revision`, or `package.module:factory`.
        **options: As the fields of `bayplan.planner.options.PlanOptions`.

    Raises:
        Infeasible: No placement satisfies the budgets.
        UsageError: An option is malformed.
        BayplanError: The model cannot be read.
    """
    return make_plan(str(model), from_keywords(PlanOptions, options)).plan


def make_plan(model: str, options: PlanOptions, progress: Progress | None = None) -> Planned:
    """Return the plan for `model` with its warnings.

    Args:
        model: As for `plan_model`.
        options: What was asked.
        progress: Told of hashing.

    Raises:
        Infeasible: No placement satisfies the budgets.
        UsageError: An option is malformed.
        BayplanError: The model cannot be read.
    """
    from bayplan.planner.hardware.probe import probe_inventory  # torch, only if this machine is asked
    from bayplan.planner.model.cached import cached_read_model

    tell = progress if progress is not None else untold
    tell("plan", 0, _STEPS)
    inventory = options.inventory or probe_inventory()
    max_memory = parse_max_memory(options.max_memory, inventory)
    pins = parse_pins(options.pins, inventory)
    read = cached_read_model(model, options, progress)
    if read.obstacle is not None:
        raise read.obstacle.error()
    tell("plan", 1, _STEPS)
    left_out = _cannot_run(inventory) if inventory.source != "declared" else ()
    _check_unused(left_out, max_memory, pins)
    max_memory = {**max_memory, **dict.fromkeys(left_out, 0)}
    warnings = read.warnings
    if left_out:
        warnings = (*warnings, f"left unused, since this version does not run on it: {', '.join(left_out)}")
    form = planned_form(read, options.format)
    chain = chain_from_graph(form.graph, scratch_bytes=read.scratch_bytes)
    plan = solve(chain, read, form, inventory, max_memory, pins, options)
    tell("plan", _STEPS, _STEPS)
    return Planned(plan=plan, warnings=warnings)


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


def solve(
    chain: Chain,
    read: ReadModel,
    form: PlannedForm,
    inventory: Inventory,
    max_memory: dict[DeviceId, int],
    pins: tuple[Pin, ...],
    options: PlanOptions,
) -> Plan:
    """Return the checked plan that places `chain` on `inventory`.

    Raises:
        Infeasible: No placement satisfies the budgets.
        UsageError: A pin matches nothing or contradicts the model.
    """
    objective = options.objective or (Objective.DECODE if read.graph.generates else Objective.PREFILL)
    if objective is Objective.DECODE and not read.graph.generates:
        raise UsageError(
            "the model does not generate",
            where="--objective",
            got="decode",
            needed="prefill",
            hint=f"{read.graph.class_name} has no generation step",
        )
    budgets = device_budgets(inventory, max_memory)
    constraints = resolve(chain, pins, no_spill=options.no_spill)
    placement = Solver(chain, inventory, budgets, constraints, objective).solve()
    if placement is None:
        raise infeasible(chain, inventory, budgets, constraints)
    prediction = predict(
        placement,
        Arranger(chain, inventory, constraints, objective),
        chain,
        inventory,
        read.workload,
        objective,
        generates=read.graph.generates,
    )
    inputs = Inputs(
        producer=f"bayplan {version('bayplan')}",
        model=read.model,
        workload=read.workload,
        inventory=inventory,
        budgets=budgets,
        max_memory=max_memory,
        objective=objective,
        pins=pins,
        no_spill=options.no_spill,
        no_split=options.no_split,
        formats=form.formats,
        format_rules=form.format_rules,
        block_formats=form.block_formats,
        rules=tensor_rules(read.sources),
        ties=form.graph.ties,
    )
    plan = assemble(inputs, chain, constraints, placement, prediction)
    problems = check(plan)
    assert not problems, f"the planner made an unsound plan: {problems}"
    return plan


def parse_pins(options: tuple[str, ...], inventory: Inventory) -> tuple[Pin, ...]:
    """Return the pins that `GLOB=DEVICE[,RESIDENCY]` options describe.

    Raises:
        UsageError: An option is malformed or names an unknown device.
    """
    pins = []
    for option in options:
        pattern, equals, rest = option.partition("=")
        parts = rest.split(",")
        if not pattern or not equals or not parts[0] or len(parts) > 2:
            raise UsageError("not a pin", where="--pin", got=repr(option), needed="GLOB=DEVICE[,RESIDENCY]")
        residency = None
        if len(parts) == 2:
            if parts[1] not in set(Residency):
                raise UsageError(
                    "unknown residency",
                    where="--pin",
                    got=repr(parts[1]),
                    needed=f"one of {', '.join(Residency)}",
                )
            residency = Residency(parts[1])
        device = resolve_device(parts[0], inventory, where="--pin")
        pins.append(Pin(pattern=pattern, device=device, residency=residency))
    return tuple(pins)


def _cannot_run(inventory: Inventory) -> tuple[DeviceId, ...]:
    """Return the devices of this machine that this version's executor does not run."""
    if Feature.ACCELERATOR not in NOT_YET_RUN:
        return ()
    return tuple(device.id for device in inventory.devices if device.backend != Backend.CPU)
