"""`bayplan demo`: the whole path on a small real model, with nothing to configure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayplan.commands.output import emit, emit_picture, picture_width, write_file
from bayplan.commands.progress import ProgressBars
from bayplan.schemas.codec import encode_inventory, encode_plan
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.sizes import format_duration_ns, format_size

if TYPE_CHECKING:
    from bayplan.demo import PlannedRun
    from bayplan.schemas.hardware import Inventory
    from bayplan.schemas.plan import Plan


def demo(
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Folder or Hub id; default: what the extra `demo` brings."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Leave inventory and plans here; default: nowhere.")
    ] = None,
) -> None:
    """Probe this machine, plan a model twice, run both plans, and compare with plain transformers."""
    started = time.perf_counter()
    from bayplan import demo as steps

    name = steps.find_model(model)
    with ProgressBars() as bars:
        inventory = steps.measured_inventory(name, bars)
        resident, streaming = steps.two_plans(name, inventory, bars)
    _show_plans(inventory, resident, streaming)
    with ProgressBars() as bars:
        runs = [steps.carry_out(plan, name, bars) for plan in (resident, streaming)]
        expected, reference_load_ns = steps.reference(resident, name)
    _show_runs(runs, reference_load_ns)
    if keep is not None:
        _keep(keep, inventory, resident, streaming)
    differing = [
        label for label, run in zip(("resident", "streaming"), runs, strict=True) if run.outcome != expected
    ]
    if differing:
        raise BayplanError(
            f"the {' and the '.join(differing)} plan gave other outputs than transformers",
            got=", ".join(run.outcome.outputs_digest for run in runs),
            needed=expected.outputs_digest,
            hint="this is a fault of bayplan; please report it with the plans (--keep DIR)",
        )
    tokens = f", {len(expected.token_ids[0])} generated tokens" if expected.token_ids else ""
    emit(
        "\nresident = streaming = transformers, bit for bit"
        f" (outputs {expected.outputs_digest[:19]}{tokens})\n"
        f"done in {time.perf_counter() - started:.0f} s\n"
    )


def _show_plans(inventory: Inventory, resident: Plan, streaming: Plan) -> None:
    """Print both plans and what changed between them."""
    from rich.console import Group
    from rich.text import Text

    from bayplan.planner.present.diff import diff_plans
    from bayplan.planner.present.diff_show import render_diff
    from bayplan.planner.present.show import render_memory
    from bayplan.planner.present.wording import millions_text, printable

    disk = inventory.nodes[0].disk
    rate = f"{disk.read_bytes_per_second / 1e9:.2f} GB/s" if disk is not None else "none"
    width = picture_width()
    model = resident.model
    emit_picture(
        Group(
            Text(
                f"{printable(model.class_name)}, {millions_text(model.num_params)} parameters,"
                f" {len(resident.blocks)} blocks; disk {rate}, {inventory.source}"
            ),
            Text("\nplan 1: everything resident", style="bold"),
            render_memory(resident, width),
            Text("\nplan 2: with a budget that forces streaming", style="bold"),
            render_memory(streaming, width),
            Text("\nplan 1 -> plan 2", style="bold"),
            render_diff(diff_plans(resident, streaming)),
        )
    )


def _show_runs(runs: list[PlannedRun], reference_load_ns: int) -> None:
    """Print predicted beside measured for both runs."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("")
    for label in ("resident", "streaming"):
        table.add_column(f"{label}: predicted", justify="right")
        table.add_column("measured", justify="right")
    table.add_column("transformers", justify="right")
    rows = (
        ("load", "load_ns", format_duration_ns(reference_load_ns)),
        ("first output", "first_output_ns", ""),
        ("generation step", "decode_ns", ""),
    )
    for word, field, beside in rows:
        cells = []
        for run in runs:
            for figures in (run.predicted, run.measured):
                value = getattr(figures, field)
                cells.append("-" if value is None else format_duration_ns(value))
        if set(cells) != {"-"}:
            table.add_row(word, *cells, beside)
    peaks = []
    for run in runs:
        device = next(iter(run.predicted.peak_bytes))
        peaks += [
            f"<= {format_size(run.predicted.peak_bytes[device])}",
            format_size(run.measured.peak_bytes[device]),
        ]
    table.add_row("peak memory", *peaks, "")
    emit("\n")
    emit_picture(table)
    emit(
        "\npredicted for the planned context, measured on short prompts;"
        " memory with interpreter and libraries\n"
    )


def _keep(folder: Path, inventory: Inventory, resident: Plan, streaming: Plan) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "inventory.json", encode_inventory(inventory))
    write_file(folder / "resident.json", encode_plan(resident))
    write_file(folder / "streaming.json", encode_plan(streaming))
