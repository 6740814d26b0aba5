"""`bayplan run`: carrying a plan out."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayplan.commands.forms import AsForm, AsJson, OutputForm
from bayplan.commands.output import check_target, emit, emit_foreign, say_picture, write_file
from bayplan.commands.plan_options import PlanFile, TrustRemoteCode
from bayplan.commands.progress import ProgressBars
from bayplan.schemas.codec import encode_report, read_plan
from bayplan.schemas.errors import BayplanError, PlanRefused, UsageError
from bayplan.schemas.strict_json import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bayplan.executor.run import RunResult


Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder or Hub id of the weights; default: the plan's own source."),
]
Prompts = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Continue this text. Repeatable; after PLAN also several words."),
]
InputsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Safetensors file with the arguments of one forward, by name."),
]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens to generate for each prompt; default: 20.")
]
ExpectDigest = Annotated[
    str | None, typer.Option(metavar="DIGEST", help="Refuse any plan but the one that was approved.")
]
Devices = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=DEV", help="Use this torch device for a device of the plan. Repeatable."),
]
ReportFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write predicted beside measured here.")
]


def run(
    plan: PlanFile,
    checkpoint: Checkpoint = None,
    prompt: Prompts = None,
    inputs: InputsFile = None,
    max_new_tokens: MaxNewTokens = None,
    expect_digest: ExpectDigest = None,
    on: Devices = None,
    trust_remote_code: TrustRemoteCode = False,
    report: ReportFile = None,
    form: AsForm = OutputForm.TEXT,
    json: AsJson = False,
) -> None:
    """Load a model by its plan and generate, or run one forward."""
    check_target(report)
    devices = _devices(on or (), plan)
    with ProgressBars() as bars, _naming(plan):
        bars("libraries", 0, 1)
        from bayplan.executor.run import DEFAULT_NEW_TOKENS, run_plan

        bars("libraries", 1, 1)
        result = run_plan(
            plan,
            checkpoint,
            prompts=tuple(prompt or ()),
            inputs=inputs,
            max_new_tokens=DEFAULT_NEW_TOKENS if max_new_tokens is None else max_new_tokens,
            expect_digest=expect_digest,
            on=devices,
            trust_remote_code=trust_remote_code,
            progress=bars,
        )
    data = encode_report(result.report)
    # The output first: it must not be lost where the report cannot be written.
    if json or form is OutputForm.JSON:
        emit(data.decode())
    else:
        from bayplan.planner.present.show_report import render_report

        emit_foreign(_output_text(result))
        say_picture(render_report(result.report))
    if report is not None:
        write_file(report, data)
    if not result.report.honoured:
        raise BayplanError(
            "the plan was not honoured: see `blocks` and `notes` of the report",
            where=str(plan),
            hint="this is a fault of bayplan; please report it with the plan and the report",
        )


@contextlib.contextmanager
def _naming(plan: Path) -> Iterator[None]:
    """Name the file in refusals of a plan as such, which know only its content."""
    try:
        yield
    except PlanRefused as error:
        error.where = error.where or str(plan)
        raise


def _devices(options: Sequence[str], plan: Path) -> dict[str, str]:
    """Return torch devices by the plan's device ids.

    Raises:
        UsageError: An option is not of the form `ID=DEV`, names no device of the plan, or one twice.
    """
    if not options:
        return {}
    from bayplan.planner.hardware.budget import resolve_device

    inventory = read_plan(plan).plan.inventory
    devices: dict[str, str] = {}
    for option in options:
        name, equals, device = option.partition("=")
        if not (name and equals and device):
            raise UsageError(
                "not a choice of device",
                where="--on",
                got=quote(option),
                needed="ID=DEV, such as gpu0=cuda:1",
            )
        device_id = resolve_device(name, inventory, where="--on")
        if device_id in devices:
            raise UsageError(f"{device_id} is given twice", where="--on", got=quote(option))
        devices[device_id] = device
    return devices


def _output_text(result: RunResult) -> str:
    """Return what the model gave: the texts, or the shapes of a forward's outputs and their digest."""
    if result.outputs_digest is None:
        return "".join(f"{text}\n" for text in result.texts)
    shapes = "".join(f"{name}: {list(tensor.shape)}\n" for name, tensor in result.outputs.items())
    return f"{shapes}digest: {result.outputs_digest}\n"
