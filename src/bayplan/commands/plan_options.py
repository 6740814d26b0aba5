"""The options of `bayplan plan` and `bayplan bind`: their names, metavars and help, one type each."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class ObjectiveName(enum.StrEnum):
    """What `plan` makes as small as it can; `bayplan.schemas.types.Objective` says more."""

    DECODE = "decode"
    PREFILL = "prefill"
    THROUGHPUT = "throughput"
    LOAD = "load"
    BALANCED = "balanced"
    SEQUENTIAL = "sequential"


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Folder, config file, Hub id (org/name\\[@revision]) or package.module:factory.",
        show_default=False,
    ),
]
InventoryFile = Annotated[
    Path | None,
    typer.Option("--inventory", "-i", metavar="FILE", help="Machine to plan for; default: this one."),
]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="PLAN", help="Write the plan here.")
]
MaxMemory = Annotated[
    list[str] | None,
    typer.Option(metavar="DEV=SIZE", help="Budget of a device, such as cpu=300MiB. Repeatable."),
]
FormatName = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="SET|auto",
        help="Data type, int8 (estimate's int8-bnb), nf4, fp4, fp8 or mxfp4; several, such as bf16,nf4: "
        "each block in one of them; auto: int8 and nf4 where they are needed; default: the checkpoint's own.",
    ),
]
FormatConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--format-config",
        metavar="FILE",
        help="JSON with formats and format_rules of your own, as in a plan.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(min=1, help="Positions, prompt and output; default: 1024, or the model's maximum if less."),
]
EncoderContext = Annotated[
    int | None, typer.Option(min=1, help="Positions of the encoder; default: the model's maximum.")
]
Batch = Annotated[int, typer.Option(min=1, help="Sequences at a time.")]
PrefillChunk = Annotated[
    int | None, typer.Option(min=1, help="Positions per forward; default: the whole context.")
]
ObjectiveChoice = Annotated[
    ObjectiveName | None,
    typer.Option(
        help="What comes first: the time of a token, of a prompt, between batches, or to load; or even or"
        " consecutive shares as accelerate makes them. Default: decode if the model generates, else prefill."
    ),
]
ClassName = Annotated[
    str | None,
    typer.Option("--class", metavar="NAME", help="Model class; default: by the config's architectures."),
]
Library = Annotated[
    str | None,
    typer.Option(
        "--library",
        "--library_name",
        metavar="transformers|timm|diffusers",
        help="Where the model's class is from; default: found out.",
    ),
]
NoSplit = Annotated[
    list[str] | None,
    typer.Option(metavar="CLASS", help="Never divide modules of this class. Repeatable."),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", metavar="GLOB=DEV[,RESIDENCY][,FORMAT]", help="Put blocks on a device. Repeatable."
    ),
]
DeviceMapFile = Annotated[
    Path | None,
    typer.Option(
        "--from-device-map",
        metavar="FILE",
        help="Put blocks where a device_map of accelerate or transformers (JSON) has them.",
    ),
]
Free = Annotated[
    bool, typer.Option("--free", help="With --from-device-map: only compare the best plan with the map.")
]
PreviousPlan = Annotated[
    Path | None,
    typer.Option(
        "--previous",
        metavar="PLAN",
        help="Of the placements within 2 % of the best, the one that moves the fewest bytes from this plan.",
    ),
]
Pareto = Annotated[
    bool,
    typer.Option(
        "--pareto",
        help="List plans that trade latency against precision and context; -o is then a folder for them.",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="End the search by the clock; another run may then give another plan. Default: by its work.",
    ),
]
NoSpill = Annotated[bool, typer.Option("--no-spill", help="Stream nothing: say infeasible instead.")]
FactoryCheckpoint = Annotated[
    str | None, typer.Option("--checkpoint", metavar="DIR", help="Weights, where MODEL is a factory.")
]
Hash = Annotated[
    bool, typer.Option("--hash", help="Hash local shards too, so that a fine-tune is told from its base.")
]
Variant = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which checkpoint of the folder, such as fp16.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Read the model anew; neither use nor fill the graph cache.")
]

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.", show_default=False)]
BoundCheckpoint = Annotated[
    str,
    typer.Option("--checkpoint", metavar="DIR", help="Folder or Hub id of the weights.", show_default=False),
]
BoundOutput = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="PLAN", help="Default: PLAN itself is rewritten."),
]
