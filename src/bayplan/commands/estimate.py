"""`bayplan estimate`: how big a model is, before anything is loaded or planned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayplan.commands.forms import AsForm, AsJson, OutputForm
from bayplan.commands.output import emit, emit_picture, say
from bayplan.commands.plan_options import (
    Batch,
    ClassName,
    Context,
    EncoderContext,
    FactoryCheckpoint,
    Library,
    ModelName,
    NoCache,
    TrustRemoteCode,
    Variant,
)
from bayplan.commands.progress import ProgressBars
from bayplan.schemas.codec import read_inventory

Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtypes",
        metavar="FORMAT ...",
        help="Formats to show, such as float32 bf16 int8 nf4; several words after MODEL. Default: all.",
    ),
]
Lora = Annotated[
    str | None,
    typer.Option(
        metavar="RANK[,TARGETS]",
        help="Add training of low-rank adapters; targets as peft names them, default all-linear.",
    ),
]
FitsFile = Annotated[
    Path | None,
    typer.Option(
        "--fits",
        metavar="INVENTORY",
        help="Which formats fit this machine; a file that `bayplan inventory -o` wrote.",
    ),
]


def estimate(
    model: ModelName,
    dtypes: Dtypes = None,
    batch: Batch = 1,
    context: Context = None,
    encoder_context: EncoderContext = None,
    class_name: ClassName = None,
    library: Library = None,
    lora: Lora = None,
    fits: FitsFile = None,
    checkpoint: FactoryCheckpoint = None,
    variant: Variant = None,
    trust_remote_code: TrustRemoteCode = False,
    no_cache: NoCache = False,
    form: AsForm = OutputForm.TEXT,
    json: AsJson = False,
) -> None:
    """Say how much memory a model takes: per format, for inference, for training, and where it fits."""
    from bayplan.planner.estimate.options import EstimateOptions

    options = EstimateOptions(
        dtypes=tuple(dtypes or ()),
        batch=batch,
        context=context,
        encoder_context=encoder_context,
        class_name=class_name,
        library=library,
        lora=lora,
        fits=None if fits is None else read_inventory(fits),
        variant=variant,
        trust_remote_code=trust_remote_code,
        checkpoint=checkpoint,
        use_cache=not no_cache,
    )
    with ProgressBars() as bars:
        bars("estimate", 0, 1)  # a bar from the start: loading the libraries takes longest
        from bayplan.planner.estimate.api import make_estimate

        found = make_estimate(model, options, bars)
    for warning in found.warnings:
        say(f"warning: {warning}")
    if json or form is OutputForm.JSON:
        from bayplan.schemas.estimate import encode_estimate

        emit(encode_estimate(found).decode())
    else:
        from bayplan.planner.present.show_estimate import render_estimate

        emit_picture(render_estimate(found))
