"""show_estimate: what is known, nothing wider than the terminal, sizes in accelerate's spelling."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from placement_problems import NO_ACTIVATIONS, make_device, make_inventory, make_link
from rich.console import Console
from sized_models import StandInReader

from bayplan.planner.estimate.api import make_estimate
from bayplan.planner.estimate.options import EstimateOptions
from bayplan.planner.present.columns import split_columns
from bayplan.planner.present.estimate_facts import footnotes, header_facts
from bayplan.planner.present.estimate_tables import (
    fits_table,
    inference_table,
    peer_size,
    range_text,
    training_table,
)
from bayplan.planner.present.plan_tables import Table
from bayplan.planner.present.show_estimate import render_estimate
from bayplan.schemas.estimate import Estimate, FitDevice, Fits, FormatFit, encode_estimate
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import Backend

GOLDEN = Path(__file__).parents[2] / "golden" / "estimate"
MIB = 2**20


def machine() -> Inventory:
    sizes = {"gpu0": 1400, "gpu1": 1400, "gpu2": 2100, "cpu": 3200}
    devices = [make_device(name, capacity_bytes=NO_ACTIVATIONS + size * 1024) for name, size in sizes.items()]
    return make_inventory(devices, [make_link(device.id) for device in devices[:3]])


OPTIONS = {
    "plain": EstimateOptions(),
    "full": EstimateOptions(
        dtypes=("fp32", "bf16", "int8", "nf4"), lora="8,q,v", fits=machine(), context=128, batch=1
    ),
}


@pytest.fixture(params=OPTIONS)
def named(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Estimate]:
    StandInReader(monkeypatch)
    return request.param, make_estimate("hand/made", OPTIONS[request.param])


def picture(estimate: Estimate, width: int = 100) -> str:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(render_estimate(estimate))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def test_picture_is_as_approved(named: tuple[str, Estimate]) -> None:
    name, estimate = named
    assert picture(estimate) == (GOLDEN / f"{name}.txt").read_text()


def test_json_is_as_approved(named: tuple[str, Estimate]) -> None:
    name, estimate = named
    assert encode_estimate(estimate) == (GOLDEN / f"{name}.json").read_bytes()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(named: tuple[str, Estimate], width: int) -> None:
    assert max(map(len, picture(named[1], width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 70, 80, 100])
def test_no_cell_is_cut_short_on_a_narrow_terminal(named: tuple[str, Estimate], width: int) -> None:
    """Whatever is on a wide terminal is on a narrow one too, in rows that still bear their names."""
    estimate = named[1]
    lines = [line.split() for line in picture(estimate, width).splitlines()]
    for table in (inference_table(estimate), training_table(estimate)):
        for row in table.rows:
            own = [line[1:] for line in lines if line and line[0] == row[0]]
            for cell in row[1:]:
                words = cell.split()
                assert any(
                    line[start : start + len(words)] == words for line in own for start in range(len(line))
                ), (row[0], cell)


def test_tables_are_split_between_columns_and_not_oftener_than_needed() -> None:
    table = Table(("format", "size", "much", "words"), (("nf4", "12 KiB", "7", "x" * 50),), frozenset((1, 2)))
    assert split_columns(table, 6 + 8 + 6 + 22) == (table,)
    assert split_columns(table, 6 + 8 + 6 + 21) == (
        Table(("format", "size", "much"), (("nf4", "12 KiB", "7"),), frozenset((1, 2))),
        Table(("format", "words"), (("nf4", "x" * 50),), frozenset()),
    )
    assert [part.header for part in split_columns(table, 1)] == [
        ("format", "size"),
        ("format", "much"),
        ("format", "words"),
    ]


def test_what_is_not_known_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = StandInReader(monkeypatch)
    reader.graph_changes["traced"] = False
    text = picture(make_estimate("hand/made", EstimateOptions(dtypes=("fp32",))))
    assert "cache and activations are not known" in text
    assert "inference" not in text
    assert "divided" not in text


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_a_quantized_format_leaves_is_in_the_model_s_own_data_type(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    StandInReader(monkeypatch).changes["dtype"] = dtype
    found = footnotes(make_estimate("hand/made", EstimateOptions(dtypes=("bf16", "int8", "fp8", "nf4"))))
    assert ("scales", f"counted in fp8, nf4; what these leave unquantized is in {dtype}") in found
    plain = footnotes(make_estimate("hand/made", EstimateOptions(dtypes=("bf16", "int8"))))
    assert "scales" not in dict(plain)


@pytest.mark.parametrize(
    ("library", "text"),
    [
        ("transformers", "left out: fp32, unless named with --dtypes"),
        ("torch", "left out: fp32, which the factory does not choose"),
    ],
)
def test_why_a_format_has_no_inference(monkeypatch: pytest.MonkeyPatch, library: str, text: str) -> None:
    StandInReader(monkeypatch)
    estimate = msgspec.structs.replace(make_estimate("hand/made", EstimateOptions()), library=library)
    assert dict(footnotes(estimate))["inference"].endswith(f"; {text}")


@pytest.mark.parametrize(("batch", "is_said"), [(1, False), (2, True)])
def test_a_batch_is_of_unequal_prompts(monkeypatch: pytest.MonkeyPatch, batch: int, is_said: bool) -> None:
    StandInReader(monkeypatch)
    estimate = make_estimate("hand/made", EstimateOptions())
    found = dict(footnotes(msgspec.structs.replace(estimate, batch=batch)))
    assert ("prefill in one go; prompts of unequal length, so with a mask;" in found["inference"]) is is_said


def test_names_of_others_drive_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = StandInReader(monkeypatch)
    reader.graph_changes["class_name"] = "Evil\x1b[31m"
    estimate = make_estimate("hand/made", EstimateOptions())
    evil = msgspec.structs.replace(estimate, model="a\x07b", scheme="\x9b1m", library="\u202e")
    assert picture(evil).isascii()
    assert "\x1b" not in picture(evil)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KB"),
        (433249280, "413.18 MB"),
        (90669056, "86.47 MB"),
        (1732997120, "1.61 GB"),
        (102441032, "97.7 MB"),
        (9437184, "9.0 MB"),
        (3240165632, "3.02 GB"),
        (2**50, "1.0 PB"),
        (3 * 2**60, "3072.0 PB"),
    ],
)
def test_sizes_in_accelerate_s_spelling(num_bytes: int, text: str) -> None:
    assert peer_size(num_bytes) == text


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((MIB, MIB), "1.00 MiB"),
        ((MIB, 2 * MIB), "1.00 - 2.00 MiB"),
        ((MIB, 2048 * MIB), "1.00 MiB - 2.00 GiB"),
        ((0, 5), "0 - 5 B"),
        ((MIB, MIB + 1), "1.00 MiB"),
    ],
)
def test_ranges(bounds: tuple[int, int], text: str) -> None:
    assert range_text(bounds) == text


@pytest.mark.parametrize(
    ("ids", "alone", "text"),
    [
        (["node0/gpu0"], [], "none"),
        (["node0/gpu0"], [0], "gpu0"),
        (["node0/gpu0", "node0/gpu1", "node0/cpu"], [0, 1], "gpu0-1"),
        (["node0/gpu0", "node0/gpu1", "node0/cpu"], [0, 1, 2], "each of 3 devices"),
        (["node0/gpu0", "node1/gpu0"], [1], "node1/gpu0"),
    ],
)
def test_devices_that_hold_it_alone(
    monkeypatch: pytest.MonkeyPatch, ids: list[str], alone: list[int], text: str
) -> None:
    StandInReader(monkeypatch)
    fit = FormatFit(devices=tuple(ids[number] for number in alone), accelerators_context=None, max_context=64)
    fits = Fits(
        devices=tuple(device(name) for name in ids),
        formats={"nf4": fit, "int4": None},
    )
    estimate = msgspec.structs.replace(make_estimate("hand/made", EstimateOptions()), fits=fits)
    table = fits_table(estimate)
    assert table is not None
    assert table.rows == (("nf4", text, "no", "64"),)


def device(name: str) -> FitDevice:
    backend = Backend.CPU if name.endswith("cpu") else Backend.CUDA
    return FitDevice(id=name, kind="test", backend=backend, budget_bytes=1)


def test_without_accelerators_nothing_is_said_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    StandInReader(monkeypatch)
    fit = FormatFit(devices=("node0/cpu",), accelerators_context=None, max_context=64)
    fits = Fits(devices=(device("node0/cpu"),), formats={"nf4": fit})
    table = fits_table(msgspec.structs.replace(make_estimate("hand/made", EstimateOptions()), fits=fits))
    assert table == Table(
        ("fits", "alone on", "all devices up to context"), (("nf4", "cpu", "64"),), frozenset((2,))
    )


def test_where_nothing_has_positions_no_context_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    StandInReader(monkeypatch).changes["has_positions"] = False
    estimate = make_estimate("hand/made", EstimateOptions(dtypes=("nf4",), fits=machine()))
    assert ("assumes", "batch 1") in header_facts(estimate)
    assert "context" not in picture(estimate)
    table = fits_table(estimate)
    assert table is not None
    assert table.header == ("fits", "alone on", "accelerators", "all devices")
    assert table.rows == (("nf4", "each of 4 devices", "yes", "yes"),)
    assert b'"context": 64' in encode_estimate(estimate)
