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
from bayplan.planner.device_map import MapReading, pins_of
from bayplan.planner.format_choice import AUTO
from bayplan.planner.formats import PlannedForms, mixed_rules
from bayplan.planner.hardware.budget import device_budgets
from bayplan.planner.model_chain import model_chain
from bayplan.planner.name_rules import tensor_rules
from bayplan.planner.options import PlanOptions
from bayplan.planner.present.map_notes import map_notes
from bayplan.planner.previous import moved_note, placement_before, unchanged_or
from bayplan.planner.ready import Ready, get_ready
from bayplan.planner.relaxations import certified
from bayplan.planner.representable import representable
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.infeasible import NoPlacement, infeasible
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Problem as SolverProblem
from bayplan.planner.solve.objectives import place_for
from bayplan.planner.solve.predict import predict
from bayplan.planner.solve.stability import keep
from bayplan.schemas.errors import BayplanError, Infeasible, PlanFormatError, UsageError
from bayplan.schemas.features import Feature, may_plan
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.keywords import from_keywords
from bayplan.schemas.plan import Plan
from bayplan.schemas.problem import Pin
from bayplan.schemas.progress import Progress, untold
from bayplan.schemas.types import DeviceId, Objective

if TYPE_CHECKING:
    from bayplan.planner.model.facts import ReadModel


_STEPS = 2
"""Of planning, for progress: reading the model, and placing it."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and what its maker should tell the user."""

    plan: Plan
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """How the plan differs from an earlier one, or from a device map that it is compared with."""


class PlanKeywords(TypedDict, total=False):
    """Keywords of `plan_model`: the fields of `PlanOptions`."""

    inventory: Inventory | None
    max_memory: tuple[str, ...]
    format: str | None
    format_config: FormatConfig | None
    batch: int
    context: int | None
    encoder_context: int | None
    prefill_chunk: int | None
    objective: Objective | None
    class_name: str | None
    no_split: tuple[str, ...]
    pins: tuple[str, ...]
    device_map: dict[str, int | str] | None
    free: bool
    previous: Plan | None
    no_spill: bool
    hash_content: bool
    variant: str | None
    trust_remote_code: bool
    checkpoint: str | Path | None
    library: str | None
    use_cache: bool
    time_limit_s: float | None


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
    from bayplan.planner.model.cached import cached_read_model

    tell = progress if progress is not None else untold

    def read_model(own: PlanOptions) -> ReadModel:
        return cached_read_model(model, own, progress)

    tell("plan", 0, _STEPS)
    ready = get_ready(options, read_model)
    tell("plan", 1, _STEPS)
    try:
        plan = solve_ready(ready)
    except NoPlacement as error:
        raise certified(error, ready, read_model, progress) from None
    notes: tuple[str, ...] = ()
    if options.previous is not None:
        notes = (moved_note(plan, options.previous),)
    if ready.map is not None and options.free:
        notes = (*notes, *map_notes(plan, ready.map.places, _like_map(ready, ready.map)))
    tell("plan", _STEPS, _STEPS)
    return Planned(plan=plan, warnings=ready.warnings, notes=notes)


def solve_ready(ready: Ready, more_pins: tuple[Pin, ...] = ()) -> Plan:
    """Return the checked plan for what is ready.

    Args:
        ready: What it is made of.
        more_pins: Demands besides, which those of the user come after.

    Raises:
        Infeasible: No placement satisfies the budgets.
        UsageError: A pin matches nothing or contradicts the model.
    """
    pins = (*more_pins, *ready.pins)
    return solve(ready.read, ready.forms, ready.inventory, ready.max_memory, pins, ready.options)


def _like_map(ready: Ready, reading: MapReading) -> Plan | BayplanError:
    """Return the best plan that is like a map, or why there is none."""
    try:
        return solve_ready(ready, pins_of(reading))
    except (Infeasible, PlanFormatError, UsageError) as error:
        return error


def solve(
    read: ReadModel,
    forms: PlannedForms,
    inventory: Inventory,
    max_memory: dict[DeviceId, int],
    pins: tuple[Pin, ...],
    options: PlanOptions,
) -> Plan:
    """Return the checked plan that places a model on `inventory`.

    Raises:
        Infeasible: No placement satisfies the budgets.
        UsageError: A pin matches nothing or contradicts the model.
        UsageError: A step takes longer than a plan can say.
    """
    objective = _objective(read, options.objective)
    budgets = device_budgets(inventory, max_memory)
    chain = model_chain(read, forms, inventory)
    problem = SolverProblem(
        chain=chain,
        machine=Machine(inventory, budgets),
        constraints=resolve(chain, pins, no_spill=options.no_spill),
        objective=objective,
        generates=read.graph.generates,
        is_auto=options.format == AUTO,
        splits_experts=may_plan(Feature.SPLIT_EXPERTS, inventory),
        time_limit_s=options.time_limit_s,
    )
    deadline = Deadline(options.time_limit_s)
    placed = place_for(problem, deadline)
    if placed is None:
        raise infeasible(problem)
    moved_bytes: int | None = None
    if options.previous is not None:
        before = placement_before(options.previous, chain, problem.machine, forms.formats)
        kept = keep(problem, placed, before, deadline)
        placed, moved_bytes = kept.placed, kept.moved_bytes
    answer = placed.solution.answer
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
        formats=forms.formats,
        format_rules=mixed_rules(forms, [choice.form for choice in answer.choices]),
        format_names=tuple(dict.fromkeys(form.format for cost in chain.costs for form in cost.forms)),
        is_auto=problem.is_auto,
        rules=tensor_rules(read.sources),
        ties=forms.choices[0].graph.ties,
        moved_bytes=moved_bytes,
    )
    prediction = representable(predict(placed, read.workload, generates=read.graph.generates))
    plan = assemble(inputs, placed, prediction)
    if options.previous is not None:
        plan = unchanged_or(plan, options.previous)
    problems = check(plan)
    assert not problems, f"the planner made an unsound plan: {problems}"
    return plan


def _objective(read: ReadModel, asked: Objective | None) -> Objective:
    objective = asked or (Objective.DECODE if read.graph.generates else Objective.PREFILL)
    if objective is Objective.DECODE and not read.graph.generates:
        raise UsageError(
            "the model does not generate",
            where="--objective",
            got="decode",
            needed="prefill",
            hint=f"{read.graph.class_name} has no generation step",
        )
    return objective
