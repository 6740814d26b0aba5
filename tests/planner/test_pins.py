from __future__ import annotations

import pytest

from bayplan.planner.format_choice import parse_request
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.pins import parse_pins
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.plan import Format
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Residency

INVENTORY = declare_inventory(("l4",), cpu="epyc-9354", host_memory="64GiB")
NAMES = "fp32, bf16, fp16, fp64, int8, nf4, fp4, fp8, mxfp4"
MINE = FormatConfig(formats={"mine": Format(kind="nf4", double_quant=True)})


def pins(*options: str, formats: str | None = "bf16,nf4,mine") -> tuple[Pin, ...]:
    return parse_pins(options, INVENTORY, parse_request(formats, MINE))


def test_device_residency_and_format() -> None:
    assert pins(
        "a.*=gpu0",
        "b=node0/gpu0,stream-host",
        "c=gpu0,nf4",
        "d=gpu0,stream-disk,bfloat16",
        "e=gpu0,mine,resident",
    ) == (
        Pin(pattern="a.*", device="node0/gpu0"),
        Pin(pattern="b", device="node0/gpu0", residency=Residency.STREAM_HOST),
        Pin(pattern="c", device="node0/gpu0", format="nf4"),
        Pin(pattern="d", device="node0/gpu0", residency=Residency.STREAM_DISK, format="bf16"),
        Pin(pattern="e", device="node0/gpu0", residency=Residency.RESIDENT, format="mine"),
    )


@pytest.mark.parametrize(("formats", "name"), [("auto", "nf4"), ("auto", "fp16"), (None, "bf16")])
def test_a_format_that_may_be_the_models_own(formats: str | None, name: str) -> None:
    """Which one that is, nobody knows before the model is read."""
    assert pins(f"a=gpu0,{name}", formats=formats)[0].format == name


@pytest.mark.parametrize("option", ["a", "=gpu0", "a=", "a=,nf4", "a=gpu0,", "a=gpu0,,nf4"])
def test_no_pin(option: str) -> None:
    with pytest.raises(UsageError) as caught:
        pins(option)
    assert str(caught.value) == (f"--pin: not a pin: got {option!r}, needed GLOB=DEVICE[,RESIDENCY][,FORMAT]")


def test_neither_residency_nor_format() -> None:
    with pytest.raises(UsageError) as caught:
        pins("a=gpu0,stream")
    assert str(caught.value) == (
        "--pin: neither a residency nor a format: got 'stream',"
        f" needed one of resident, stream-host, stream-disk, or of {NAMES}, mine"
    )


@pytest.mark.parametrize("option", ["a=gpu0,nf4,bf16", "a=gpu0,resident,resident", "a=gpu0,nf4,resident,nf4"])
def test_twice(option: str) -> None:
    with pytest.raises(UsageError) as caught:
        pins(option)
    assert str(caught.value) == f"--pin: a pin has one residency and one format at most: got {option!r}"


@pytest.mark.parametrize(
    ("formats", "name", "needed"),
    [
        ("bf16,nf4", "int8", "one of bf16, nf4"),
        ("nf4", "bf16", "one of nf4"),
        ("auto", "fp8", "one of int8, nf4"),
        (None, "nf4", "the model's own format"),
    ],
)
def test_a_format_that_is_not_to_choose_from(formats: str | None, name: str, needed: str) -> None:
    with pytest.raises(UsageError) as caught:
        pins(f"a=gpu0,{name}", formats=formats)
    assert str(caught.value) == (
        f"--pin: the format is none of those to choose from: got {name!r}, needed {needed}\n"
        f"hint: --format with {name} among its names allows it"
    )


def test_unknown_device() -> None:
    with pytest.raises(UsageError) as caught:
        pins("a=gpu9,nf4")
    assert str(caught.value).startswith("--pin: unknown device: got 'gpu9', needed one of ")
