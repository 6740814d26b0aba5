import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from bayplan.planner.hardware.calibrate import (
    Effort,
    calibrate,
    measure_block_overhead_ns,
    measure_memory_rate,
    measure_product_rate,
)
from bayplan.planner.hardware.calibrate_disk import CalibrationError, measure_disk, round_rate
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.hardware.probe import probe_inventory
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Disk, Inventory

TINY = Effort(file_bytes=3 * 2**20 + 1, matrices=2, matrix_side=32, product_rows=4, blocks=2, steps=3)


def _ticks(step_ns: int) -> Iterator[int]:
    return itertools.count(0, step_ns)


def _no_progress(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def inventory() -> Inventory:
    return probe_inventory(find_accelerators=tuple)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0, 0), (7, 7), (999, 999), (1234, 1230), (1235, 1240), (99_960, 100_000), (2_345_678, 2_350_000)],
)
def test_rates_have_three_significant_digits(value: int, rounded: int) -> None:
    assert round_rate(value) == rounded


def test_only_rates_and_source_change(inventory: Inventory, tmp_path: Path) -> None:
    result = calibrate(inventory, tmp_path, effort=TINY)
    (before,), (after,) = inventory.devices, result.devices
    assert result.source == "calibrated"
    kept = {
        "memory_bytes_per_second": before.memory_bytes_per_second,
        "flops_per_second": before.flops_per_second,
        "block_overhead_ns": before.block_overhead_ns,
    }
    assert msgspec.structs.replace(after, **kept) == before
    (node,) = result.nodes
    assert msgspec.structs.replace(node, disk=inventory.nodes[0].disk) == inventory.nodes[0]
    assert (result.links, result.format_version) == (inventory.links, inventory.format_version)


def test_a_calibrated_inventory_can_be_calibrated_again(inventory: Inventory, tmp_path: Path) -> None:
    again = calibrate(calibrate(inventory, tmp_path, effort=TINY), tmp_path, effort=TINY)
    assert again.source == "calibrated"


def test_figures_follow_from_the_clock(inventory: Inventory, tmp_path: Path) -> None:
    ticks = _ticks(1000)
    result = calibrate(inventory, tmp_path, effort=TINY, clock=lambda: next(ticks))
    (cpu,) = result.devices
    assert cpu.memory_bytes_per_second == round_rate(2 * 32 * 32 * 4 * 1_000_000)
    assert cpu.flops_per_second == round_rate(2 * 4 * 32 * 32 * 1_000_000)
    assert cpu.block_overhead_ns == 0
    assert result.nodes[0].disk == Disk(
        read_bytes_per_second=round_rate(TINY.file_bytes * 1_000_000), latency_ns=1000
    )


def test_block_overhead_is_what_more_blocks_add() -> None:
    # Three timed runs, of two readings each, of models of 1, 2 and 2 + 2 blocks.
    steps = [5_000] * 3 + [40_000] * 3 + [100_000] * 3
    readings = iter([reading for step in steps for reading in (0, step)])
    assert measure_block_overhead_ns(TINY, lambda: next(readings)) == 30_000


def test_block_overhead_is_not_negative() -> None:
    steps = [0] * 3 + [40_000] * 3 + [10_000] * 3
    readings = iter([reading for step in steps for reading in (0, step)])
    assert measure_block_overhead_ns(TINY, lambda: next(readings)) == 0


def test_median_ignores_what_a_busy_machine_does_to_a_few_runs() -> None:
    readings = iter(
        [reading for step in (2000, 9_000_000, 2000, 1, 2000, 9_000_000, 1) for reading in (0, step)]
    )
    assert measure_memory_rate(TINY, lambda: next(readings)) == round_rate(2 * 32 * 32 * 4 * 500_000)


def test_a_clock_that_stands_still_gives_a_rate() -> None:
    assert measure_product_rate(TINY, lambda: 0) == round_rate(2 * 4 * 32 * 32 * 10**9)


def test_measuring_takes_no_random_numbers_away() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    ticks = _ticks(1)
    measure_block_overhead_ns(TINY, lambda: next(ticks))
    assert torch.equal(torch.rand(3), expected)


def test_progress_reaches_the_end_of_every_stage(inventory: Inventory, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    calibrate(inventory, tmp_path, lambda *report: reports.append(report), effort=TINY)
    assert [stage for stage, _ in itertools.groupby(report[0] for report in reports)] == [
        "measure disk",
        "measure CPU",
    ]
    for stage in ("measure disk", "measure CPU"):
        done = [report[1] for report in reports if report[0] == stage]
        assert done == sorted(done)
        assert done[-1] == {report[2] for report in reports if report[0] == stage}.pop()


def test_no_file_is_left_behind_nor_seen_meanwhile(tmp_path: Path) -> None:
    seen: list[list[Path]] = []
    ticks = _ticks(1000)
    measure_disk(
        tmp_path,
        lambda stage, done, total: seen.append(list(tmp_path.iterdir())),
        file_bytes=2**20,
        clock=lambda: next(ticks),
    )
    assert seen == [[]] * 4
    assert list(tmp_path.iterdir()) == []


def test_declared_inventory(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        calibrate(declare_inventory(("l4",), host_memory="8GiB"), tmp_path, effort=TINY)
    assert str(caught.value) == (
        "--calibrate: only the machine at hand can be measured: "
        "got a declared inventory of 1 node(s), needed a probed one\n"
        "hint: leave out --device, --cpu, --host-memory and --disk"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_disk_full(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CalibrationError) as caught:
        measure_disk(tmp_path, _no_progress, file_bytes=2**20, clock=lambda: 0)
    assert str(caught.value) == (
        f"{tmp_path}: no room for the file that the disk is measured with: "
        "needed 1048576 free bytes (1.00 MiB)\nhint: free some, or give a folder on another disk"
    )
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError) as caught:
        measure_disk(tmp_path / "missing", _no_progress, file_bytes=2**20, clock=lambda: 0)
    assert str(caught.value) == (
        f"{tmp_path}/missing: cannot measure the disk: "
        "got No such file or directory, needed a folder that can be written to"
    )


def test_file_that_ends_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, offset: 0)
    with pytest.raises(CalibrationError) as caught:
        measure_disk(tmp_path, _no_progress, file_bytes=2**20, clock=lambda: 0)
    assert str(caught.value) == (
        f"{tmp_path}: cannot measure the disk: "
        "got the file ends too early, needed a folder that can be written to"
    )


def test_system_that_cannot_drop_files_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    with pytest.raises(CalibrationError) as caught:
        measure_disk(tmp_path, _no_progress, file_bytes=2**20, clock=lambda: 0)
    assert str(caught.value) == (
        "this system cannot drop a file from its cache, so no cold read can be timed\n"
        "hint: leave out --calibrate, or declare the machine with --disk"
    )
