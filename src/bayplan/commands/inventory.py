"""`bayplan inventory`: what machines have, probed here or declared from the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayplan.commands.forms import AsForm, AsJson, OutputForm
from bayplan.commands.output import check_target, emit, emit_picture, say, write_file
from bayplan.schemas.codec import encode_inventory

DeclaredDevices = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[*N]", help="Declare accelerators of the catalogue, such as h100-80gb*8. Repeatable."
    ),
]
DeclaredCpu = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Declare a CPU of the catalogue; without it the host computes nothing."
    ),
]
HostMemory = Annotated[str | None, typer.Option(metavar="SIZE", help="Declare host memory, such as 64GiB.")]
DiskRate = Annotated[str | None, typer.Option(metavar="RATE", help="Declare the disk's rate, such as 3GB/s.")]
NumNodes = Annotated[
    int | None, typer.Option(metavar="N", help="Declare so many machines of this kind; needs --network.")
]
NetworkRate = Annotated[
    str | None, typer.Option(metavar="RATE", help="Declare the rate between two machines, such as 50GB/s.")
]
Calibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Measure disk (in the current folder), devices and links instead of the catalogue's rates.",
    ),
]
InventoryOutput = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the inventory here, for plan -i."),
]


def inventory(
    device: DeclaredDevices = None,
    cpu: DeclaredCpu = None,
    host_memory: HostMemory = None,
    disk: DiskRate = None,
    nodes: NumNodes = None,
    network: NetworkRate = None,
    calibrate: Calibrate = False,
    output: InventoryOutput = None,
    form: AsForm = OutputForm.TEXT,
    json: AsJson = False,
) -> None:
    """Probe this machine, or declare another one from the catalogue."""
    check_target(output)
    if device or any(option is not None for option in (cpu, host_memory, disk, nodes, network)):
        from bayplan.planner.hardware.declare import declare_inventory

        found = declare_inventory(
            tuple(device or ()),
            cpu=cpu,
            host_memory=host_memory,
            disk=disk,
            nodes=1 if nodes is None else nodes,
            network=network,
        )
    else:
        from bayplan.planner.hardware.probe import probe_inventory

        found = probe_inventory()
    if calibrate:
        from bayplan.commands.progress import ProgressBars
        from bayplan.planner.hardware.calibrate import calibrate as measure
        from bayplan.planner.hardware.other_work import OtherWork

        others = OtherWork()
        with ProgressBars() as bars:
            found = measure(found, Path.cwd(), bars)
        warning = others.warning()
        if warning is not None:
            say(f"warning: {warning}")
    data = encode_inventory(found)
    if output is not None:
        write_file(output, data)
    if json or form is OutputForm.JSON:
        emit(data.decode())
    else:
        from bayplan.planner.present.show_inventory import render_inventory

        emit_picture(render_inventory(found))
