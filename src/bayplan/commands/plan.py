"""`bayplan plan` and `bayplan bind`: from a model to a plan, and from a config's plan to a checkpoint's."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from bayplan.commands.output import emit, emit_picture, picture_width, say, write_file
from bayplan.commands.progress import ProgressBars
from bayplan.schemas.codec import encode_plan, read_inventory, read_plan
from bayplan.schemas.dtypes import DTYPE_BY_SPELLING
from bayplan.schemas.errors import PlanRefused, RefusalKind
from bayplan.schemas.plan import PLAN_SEMANTICS, Plan
from bayplan.schemas.types import Objective

Hash = Annotated[
    bool, typer.Option("--hash", help="Hash local shards too, so that a fine-tune is told from its base.")
]
Variant = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which checkpoint of the folder, such as fp16.")
]


class ObjectiveName(enum.StrEnum):
    """What `plan` makes as fast as it can."""

    DECODE = "decode"
    PREFILL = "prefill"


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder, config file, Hub id (org/name\\[@revision]) or package.module:factory.",
            show_default=False,
        ),
    ],
    inventory: Annotated[
        Path | None,
        typer.Option("--inventory", "-i", metavar="FILE", help="Machine to plan for; default: this one."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PLAN", help="Write the plan here.")
    ] = None,
    max_memory: Annotated[
        list[str] | None,
        typer.Option(metavar="DEV=SIZE", help="Budget of a device, such as cpu=300MiB. Repeatable."),
    ] = None,
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="fp32|bf16|fp16", help="Data type; default: the checkpoint's own."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Positions, prompt and output; default: 1024 or the model's maximum."),
    ] = None,
    encoder_context: Annotated[
        int | None, typer.Option(min=1, help="Positions of the encoder; default: the model's maximum.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at a time.")] = 1,
    prefill_chunk: Annotated[
        int | None, typer.Option(min=1, help="Positions per forward; default: the whole context.")
    ] = None,
    objective: Annotated[
        ObjectiveName | None,
        typer.Option(help="What to make fast; default: decode where the model generates, else prefill."),
    ] = None,
    class_name: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="Model class; default: by the config's architectures."),
    ] = None,
    no_split: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS", help="Never divide modules of this class. Repeatable."),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB=DEV[,RESIDENCY]", help="Put blocks on a device. Repeatable."),
    ] = None,
    no_spill: Annotated[
        bool, typer.Option("--no-spill", help="Stream nothing: say infeasible instead.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Weights, where MODEL is a factory.")
    ] = None,
    variant: Variant = None,
    hash_content: Hash = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the plan itself instead of a picture.")] = False,
) -> None:
    """Work out where every block of a model goes, and write it down."""
    from bayplan.planner.api import make_plan
    from bayplan.planner.options import PlanOptions

    options = PlanOptions(
        inventory=None if inventory is None else read_inventory(inventory),
        max_memory=tuple(max_memory or ()),
        format=_short_format(format_name),
        batch=batch,
        context=context,
        encoder_context=encoder_context,
        prefill_chunk=prefill_chunk,
        objective=None if objective is None else Objective(objective.value),
        class_name=class_name,
        no_split=tuple(no_split or ()),
        pins=tuple(pin or ()),
        no_spill=no_spill,
        hash_content=hash_content,
        variant=variant,
        trust_remote_code=trust_remote_code,
        checkpoint=checkpoint,
    )
    with ProgressBars() as bars:
        planned = make_plan(model, options, bars)
    for warning in planned.warnings:
        say(f"warning: {warning}")
    _hand_over(planned.plan, encode_plan(planned.plan), output, json=json)


def bind(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.", show_default=False)],
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Folder or Hub id of the weights.", show_default=False)
    ],
    variant: Variant = None,
    hash_content: Hash = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PLAN", help="Default: PLAN itself is rewritten.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan itself instead of a picture.")] = False,
) -> None:
    """Give a plan that was made from a config the identity of its checkpoint."""
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
        bound = bind_plan(decoded.plan, checkpoint, hash_content=hash_content, variant=variant, progress=bars)
    _hand_over(bound, encode_plan(bound, onto=decoded.tree), output or plan, json=json)


def _hand_over(plan: Plan, data: bytes, output: Path | None, *, json: bool) -> None:
    """Write the plan if there is a file for it, and print it: itself, or as a picture."""
    if output is not None:
        write_file(output, data)
    if json:
        emit(data.decode())
        return
    from bayplan.planner.show import render_plan

    emit_picture(render_plan(plan, digest_matches=True, width=picture_width()))
    if output is None:
        say("not written to a file: add -o plan.json")


def _short_format(name: str | None) -> str | None:
    """Return the short name of a data type in any spelling; which are allowed is for the planner to say."""
    dtype = None if name is None else DTYPE_BY_SPELLING.get(name)
    return name if dtype is None else dtype.name
