"""inventory: declared or probed, shown, printed and written."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bayplan.commands.app import run_command_line
from bayplan.planner.hardware import calibrate, other_work
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.present.show_inventory import render_inventory
from bayplan.schemas.codec import encode_inventory, read_inventory
from bayplan.schemas.hardware import FormatRates

DECLARED = ["--device", "h100-80gb*2", "--cpu", "epyc-9354", "--host-memory", "1TiB", "--disk", "7GB/s"]


def test_a_declared_machine_is_written_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.json"
    assert run_command_line(["inventory", *DECLARED, "-o", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    wanted = declare_inventory(("h100-80gb*2",), cpu="epyc-9354", host_memory="1TiB", disk="7GB/s")
    assert out.encode() == path.read_bytes() == encode_inventory(wanted)
    assert err == f"wrote {path}\n"
    assert read_inventory(path) == wanted


def test_the_picture_folds_equal_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["inventory", *DECLARED]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "inventory  declared, rates of the catalogue, not measured"
    assert [line.split()[:2] for line in lines if "h100-80gb" in line] == [["node0/gpu0-1", "h100-80gb"]]


def test_without_options_this_machine_is_probed_to_the_same_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command_line(["inventory", "--json"]) == 0
    first = capsys.readouterr().out
    assert run_command_line(["inventory", "--json"]) == 0
    assert capsys.readouterr().out == first
    assert json.loads(first)["source"] == "probed"


@pytest.mark.parametrize("size", ["1Gib", "-1", "ten", "5MBB"])
def test_a_malformed_size_is_a_usage_error(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["inventory", "--cpu", "epyc-9354", f"--host-memory={size}"]) == 64
    assert capsys.readouterr().err.startswith(f'error: --host-memory: not a size: got "{size}", needed')


def test_a_declared_machine_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["inventory", *DECLARED, "--calibrate"]) == 64
    assert capsys.readouterr().err.startswith("error: ")


def test_no_half_written_file_where_there_is_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none" / "machine.json"
    assert run_command_line(["inventory", *DECLARED, "-o", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"error: {path}: cannot write the file: got No such file or directory\n"
        "hint: create the folder first\n"
    )


def test_several_machines_are_declared(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["inventory", *DECLARED, "--nodes", "2", "--network", "50GB/s", "--json"]) == 0
    out = capsys.readouterr().out
    wanted = declare_inventory(
        ("h100-80gb*2",), cpu="epyc-9354", host_memory="1TiB", disk="7GB/s", nodes=2, network="50GB/s"
    )
    assert out.encode() == encode_inventory(wanted)


@pytest.mark.parametrize("options", [["--nodes", "2"], ["--network", "50GB/s"], ["--nodes", "1"]])
def test_machines_need_parts_and_a_network(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["inventory", *options]) == 64
    assert capsys.readouterr().err.startswith("error: --")


def test_measured_rates_are_shown_by_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = FormatRates(
        kind="bf16",
        memory_bytes_per_second=16 * 10**9,
        cache_bytes_per_second=10**9,
        flops_per_second=10**12,
        block_overhead_ns=540_000,
    )
    machine = declare_inventory(("h100-80gb*2",), cpu="epyc-9354", host_memory="1TiB")
    devices = tuple(
        msgspec.structs.replace(device, format_rates=(rates,)) if device.id != "node0/cpu" else device
        for device in machine.devices
    )
    Console(width=100).print(render_inventory(msgspec.structs.replace(machine, devices=devices)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["device", "format", "reads", "reads", "cache", "computes", "block"] in lines
    row = "node0/gpu0-1 bf16 16.00 GB/s 1.00 GB/s 1.00 TFLOP/s 540.0 us"
    assert row.split() in lines


@pytest.mark.parametrize("warning", [None, "other processes used 1.5 cores"])
def test_rates_of_a_busy_machine_come_with_a_warning(
    warning: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "calibrate", lambda inventory, folder, bars: inventory)
    monkeypatch.setattr(other_work.OtherWork, "warning", lambda self: warning)
    assert run_command_line(["inventory", "--calibrate", "--json"]) == 0
    assert capsys.readouterr().err == ("" if warning is None else f"warning: {warning}\n")
