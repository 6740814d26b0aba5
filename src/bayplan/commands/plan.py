"""`bayplan plan` and `bayplan bind`: from a model to a plan, and from a config's plan to a checkpoint's."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from bayplan.commands.forms import AsForm, AsJson, OutputForm
from bayplan.commands.frontier import list_frontier
from bayplan.commands.output import check_target, emit, emit_picture, picture_width, say, write_file
from bayplan.commands.plan_options import (
    Batch,
    BoundCheckpoint,
    BoundOutput,
    ClassName,
    Context,
    DeviceMapFile,
    EncoderContext,
    FactoryCheckpoint,
    FormatConfigFile,
    FormatName,
    Free,
    Hash,
    InventoryFile,
    Library,
    MaxMemory,
    ModelName,
    NoCache,
    NoSpill,
    NoSplit,
    ObjectiveChoice,
    OutputFile,
    Pareto,
    Pins,
    PlanFile,
    PrefillChunk,
    PreviousPlan,
    TimeLimit,
    TrustRemoteCode,
    Variant,
)
from bayplan.commands.progress import ProgressBars
from bayplan.planner.options import PlanOptions
from bayplan.schemas.certificate import CertifiedInfeasible, encode_certificate
from bayplan.schemas.codec import encode_plan, read_device_map, read_format_config, read_inventory, read_plan
from bayplan.schemas.dtypes import DTYPE_BY_SPELLING
from bayplan.schemas.errors import PlanRefused, RefusalKind
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import PLAN_SEMANTICS, Plan
from bayplan.schemas.types import Objective


def plan(
    model: ModelName,
    inventory: InventoryFile = None,
    output: OutputFile = None,
    max_memory: MaxMemory = None,
    format_name: FormatName = None,
    format_config: FormatConfigFile = None,
    context: Context = None,
    encoder_context: EncoderContext = None,
    batch: Batch = 1,
    prefill_chunk: PrefillChunk = None,
    objective: ObjectiveChoice = None,
    class_name: ClassName = None,
    no_split: NoSplit = None,
    pins: Pins = None,
    from_device_map: DeviceMapFile = None,
    free: Free = False,
    no_spill: NoSpill = False,
    previous: PreviousPlan = None,
    pareto: Pareto = False,
    time_limit: TimeLimit = None,
    checkpoint: FactoryCheckpoint = None,
    variant: Variant = None,
    hash_content: Hash = False,
    trust_remote_code: TrustRemoteCode = False,
    library: Library = None,
    no_cache: NoCache = False,
    form: AsForm = OutputForm.TEXT,
    json: AsJson = False,
) -> None:
    """Work out where every block of a model goes, and write it down."""
    _plan(
        model,
        PlanOptions(
            **_files(inventory, format_config, from_device_map, previous),
            max_memory=tuple(max_memory or ()),
            format=_short_format(format_name),
            batch=batch,
            context=context,
            encoder_context=encoder_context,
            prefill_chunk=prefill_chunk,
            objective=None if objective is None else Objective(objective.value),
            class_name=class_name,
            no_split=tuple(no_split or ()),
            pins=tuple(pins or ()),
            free=free,
            no_spill=no_spill,
            time_limit_s=time_limit,
            hash_content=hash_content,
            variant=variant,
            trust_remote_code=trust_remote_code,
            checkpoint=checkpoint,
            library=library,
            use_cache=not no_cache,
        ),
        output,
        is_frontier=pareto,
        as_json=json or form is OutputForm.JSON,
    )


def _plan(model: str, options: PlanOptions, output: Path | None, *, is_frontier: bool, as_json: bool) -> None:
    """Make one plan, or many, and hand over what there is."""
    check_target(output)
    try:
        if is_frontier:
            list_frontier(model, options, output, as_json=as_json)
        else:
            _one_plan(model, options, output, as_json=as_json)
    except CertifiedInfeasible as error:
        if as_json:
            emit(encode_certificate(error.certificate).decode())
        raise


def _one_plan(model: str, options: PlanOptions, output: Path | None, *, as_json: bool) -> None:
    with ProgressBars() as bars:
        bars("plan", 0, 1)  # a bar from the start: loading the libraries takes longer than placing
        from bayplan.planner.api import make_plan

        planned = make_plan(model, options, bars)
    for warning in planned.warnings:
        say(f"warning: {warning}")
    for note in planned.notes:
        say(note)
    data = encode_plan(planned.plan)
    _hand_over(planned.plan, data, output, json=as_json)


class _Files(TypedDict):
    """Options that are read from files."""

    inventory: Inventory | None
    format_config: FormatConfig | None
    device_map: dict[str, int | str] | None
    previous: Plan | None


def _files(
    inventory: Path | None, format_config: Path | None, device_map: Path | None, previous: Path | None
) -> _Files:
    return _Files(
        inventory=None if inventory is None else read_inventory(inventory),
        format_config=None if format_config is None else read_format_config(format_config),
        device_map=None if device_map is None else read_device_map(device_map),
        previous=None if previous is None else _read_previous(previous),
    )


def bind(
    plan: PlanFile,
    checkpoint: BoundCheckpoint,
    variant: Variant = None,
    hash_content: Hash = False,
    output: BoundOutput = None,
    trust_remote_code: TrustRemoteCode = False,
    form: AsForm = OutputForm.TEXT,
    json: AsJson = False,
) -> None:
    """Give a plan that was made from a config the identity of its checkpoint."""
    check_target(output)
    decoded = read_plan(plan)
    if not decoded.digest_matches:
        raise PlanRefused(
            RefusalKind.EDITED,
            "binding would give an edited plan a digest that matches",
            where=str(plan),
            hint="plan again",
        )
    if decoded.plan.semantics > PLAN_SEMANTICS:
        raise PlanRefused(
            RefusalKind.UNSUPPORTED,
            "newer semantics",
            where=str(plan),
            got=str(decoded.plan.semantics),
            needed=f"at most {PLAN_SEMANTICS}",
            hint="use the version of bayplan that wrote it",
        )
    from bayplan.planner.bind import bind_plan

    with ProgressBars() as bars:
        bound = bind_plan(
            decoded.plan,
            checkpoint,
            hash_content=hash_content,
            variant=variant,
            trust_remote_code=trust_remote_code,
            progress=bars,
        )
    data = encode_plan(bound, onto=decoded.tree)
    _hand_over(bound, data, output or plan, json=json or form is OutputForm.JSON)


def _hand_over(plan: Plan, data: bytes, output: Path | None, *, json: bool) -> None:
    """Write the plan if there is a file for it, and print it: itself, or as a picture."""
    if output is not None:
        write_file(output, data)
    if json:
        emit(data.decode())
        return
    from bayplan.planner.present.show import render_plan

    emit_picture(render_plan(plan, digest_matches=True, width=picture_width()))
    if output is None:
        say("not written to a file: add -o plan.json")


def _read_previous(path: Path) -> Plan:
    decoded = read_plan(path)
    if not decoded.digest_matches:
        say(f"warning: {path} was edited since it was written; it is taken as it is")
    return decoded.plan


def _short_format(name: str | None) -> str | None:
    """Return the short name of a data type in any spelling; which are allowed is for the planner to say."""
    dtype = None if name is None else DTYPE_BY_SPELLING.get(name)
    return name if dtype is None else dtype.name
