import errno
import itertools
import os
from pathlib import Path

import pytest

from bayplan.planner.hardware.calibrate_disk import CalibrationError, MeasuredDisk, measure_disk
from bayplan.planner.hardware.calibration_effort import Effort
from bayplan.schemas.hardware import Disk

EFFORT = Effort(file_bytes=2**20, small_read_bytes=2**14, large_read_bytes=2**16, reads=3)


def _no_progress(stage: str, done: int, total: int) -> None:
    pass


def measured(folder: Path, *block_ns: int, cpu_ns: int = 0) -> MeasuredDisk:
    """Return what is found where the blocks, small ones first, take these times."""
    readings = iter([reading for taken_ns in block_ns for reading in (0, taken_ns)])
    worked = itertools.count(0, cpu_ns)
    return measure_disk(
        folder,
        _no_progress,
        effort=EFFORT,
        clock=lambda: next(readings),
        cpu_clock=lambda: next(worked),
    )


def test_two_sizes_of_block_tell_rate_and_latency(tmp_path: Path) -> None:
    """The median counts: 16 KiB in 21 us and 64 KiB in 70 us."""
    found = measured(tmp_path, 21_384, 1, 10**9, 70_536, 10**9, 1)
    assert found.disk == Disk(read_bytes_per_second=10**9, latency_ns=5_000)


def test_a_latency_is_not_negative(tmp_path: Path) -> None:
    found = measured(tmp_path, *[1_000] * 3, *[50_152] * 3)
    assert found.disk == Disk(read_bytes_per_second=10**9, latency_ns=0)


def test_noise_may_make_the_larger_block_look_no_slower(tmp_path: Path) -> None:
    found = measured(tmp_path, *[70_000] * 3, *[65_536] * 3)
    assert found.disk == Disk(read_bytes_per_second=10**9, latency_ns=0)


def test_time_of_a_core_is_counted_over_all_blocks(tmp_path: Path) -> None:
    found = measured(tmp_path, *[1_000] * 3, *[50_152] * 3, cpu_ns=8_192)
    assert found.copy_bytes_per_second == 5 * 10**9


def test_a_core_whose_work_is_not_seen_has_no_rate(tmp_path: Path) -> None:
    assert measured(tmp_path, *[1_000] * 6).copy_bytes_per_second is None


def test_blocks_do_not_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, places = os.preadv, []

    def noted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        places.append((offset, len(buffers[0])))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", noted)
    measured(tmp_path, *[1_000] * 6)
    small, large = [(n * 3 * 2**14, 2**14) for n in range(3)], [(n * 3 * 2**16, 2**16) for n in range(3)]
    assert places == [(0, 2**14), *small, *large]


def test_no_file_is_left_behind_nor_seen_meanwhile(tmp_path: Path) -> None:
    seen: list[list[Path]] = []
    measure_disk(
        tmp_path,
        lambda stage, done, total: seen.append(list(tmp_path.iterdir())),
        effort=EFFORT,
        clock=lambda: 0,
        cpu_clock=lambda: 0,
    )
    assert seen == [[]] * 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_disk_full(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CalibrationError) as caught:
        measure_disk(tmp_path, _no_progress, effort=EFFORT, clock=lambda: 0, cpu_clock=lambda: 0)
    assert str(caught.value) == (
        f"{tmp_path}: no room for the file that the disk is measured with: "
        "needed 1048576 free bytes (1.00 MiB)\nhint: free some, or give a folder on another disk"
    )
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError) as caught:
        measure_disk(tmp_path / "missing", _no_progress, effort=EFFORT, clock=lambda: 0, cpu_clock=lambda: 0)
    assert str(caught.value) == (
        f"{tmp_path}/missing: cannot measure the disk: "
        "got No such file or directory, needed a folder that can be written to"
    )


def test_file_that_ends_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, offset: 0)
    with pytest.raises(CalibrationError) as caught:
        measure_disk(tmp_path, _no_progress, effort=EFFORT, clock=lambda: 0, cpu_clock=lambda: 0)
    assert str(caught.value) == (
        f"{tmp_path}: cannot measure the disk: "
        "got the file ends too early, needed a folder that can be written to"
    )


def test_system_that_cannot_drop_files_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    with pytest.raises(CalibrationError) as caught:
        measure_disk(tmp_path, _no_progress, effort=EFFORT, clock=lambda: 0, cpu_clock=lambda: 0)
    assert str(caught.value) == (
        "this system cannot drop a file from its cache, so no cold read can be timed\n"
        "hint: leave out --calibrate, or declare the machine with --disk"
    )
