"""How fast blocks are read from a disk, measured with a file of our own.

Reads as a stream of a checkpoint does: block by block, not in the file's order, in large requests through the
page cache, after dropping the file from it. Two sizes of block tell what each takes beyond its bytes. On a
file system that lives in memory, or one that keeps its own cache, the rate is that memory's.
"""

from __future__ import annotations

import errno
import mmap
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bayplan.planner.hardware.timing import NANOSECONDS, Clock, rate_of, round_rate
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.hardware import Disk
from bayplan.schemas.progress import Progress
from bayplan.schemas.sizes import format_size

if TYPE_CHECKING:
    from bayplan.planner.hardware.calibration_effort import Effort

_REQUEST_BYTES = 8 * 2**20
"""As the executor's reader asks."""


class CalibrationError(BayplanError):
    """A rate cannot be measured here."""


class MeasuredDisk(NamedTuple):
    """What reading a checkpoint takes."""

    disk: Disk
    copy_bytes_per_second: int | None
    """Bytes per second of a core's own time; None: too little to be seen."""


class _Reads(NamedTuple):
    """Blocks of one size."""

    median_ns: int
    cpu_ns: int
    """Of all of them."""


def measure_disk(
    folder: Path, progress: Progress, *, effort: Effort, clock: Clock, cpu_clock: Clock
) -> MeasuredDisk:
    """Return rate and latency of the disk that holds `folder`, and what reading costs the CPU.

    The blocks lie in a new file of random bytes. It has no name, so nothing stays behind even if the process
    is killed.

    Args:
        folder: Where the file is written.
        progress: Told the bytes written and read.
        effort: Size of the file and of the blocks.
        clock: Nanoseconds from any start.
        cpu_clock: Nanoseconds that a core worked for this thread.

    Raises:
        CalibrationError: The disk is full.
        CalibrationError: The folder cannot be written to, or the file not be read back.
        CalibrationError: The system cannot drop a file from its page cache.
    """
    if not hasattr(os, "posix_fadvise"):
        raise CalibrationError(
            "this system cannot drop a file from its cache, so no cold read can be timed",
            hint="leave out --calibrate, or declare the machine with --disk",
        )
    sizes = (effort.small_read_bytes, effort.large_read_bytes)
    total_bytes = effort.file_bytes + effort.reads * sum(sizes)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file, mmap.mmap(-1, _REQUEST_BYTES) as buffer:
            for done_bytes in _write(file.fileno(), effort.file_bytes):
                progress("measure disk", done_bytes, total_bytes)
            _read_block(file.fileno(), buffer, 0, sizes[0])  # fills the buffer's pages, which is not timed
            small, large = (
                _timed_reads(file.fileno(), buffer, size, effort, (clock, cpu_clock)) for size in sizes
            )
            progress("measure disk", total_bytes, total_bytes)
    except OSError as error:
        raise _failure(error, folder, effort.file_bytes) from error
    cpu_ns = small.cpu_ns + large.cpu_ns
    return MeasuredDisk(
        disk=_fitted(small, large, sizes),
        copy_bytes_per_second=rate_of(effort.reads * sum(sizes), cpu_ns) if cpu_ns else None,
    )


def _fitted(small: _Reads, large: _Reads, sizes: tuple[int, int]) -> Disk:
    """Return the disk on which blocks of two sizes take what they took."""
    more_ns = large.median_ns - small.median_ns
    # Noise may make the larger block look no slower: then only what it surely does is known.
    if more_ns <= 0:
        return Disk(read_bytes_per_second=rate_of(sizes[1], max(1, large.median_ns)), latency_ns=0)
    bytes_per_second = rate_of(sizes[1] - sizes[0], more_ns)
    latency_ns = small.median_ns - sizes[0] * NANOSECONDS // bytes_per_second
    return Disk(read_bytes_per_second=bytes_per_second, latency_ns=round_rate(max(0, latency_ns)))


def _write(descriptor: int, file_bytes: int) -> Iterator[int]:
    """Write random bytes, which no file system makes smaller, and yield how many there are so far."""
    done_bytes = 0
    while done_bytes < file_bytes:
        done_bytes += os.write(descriptor, os.urandom(min(_REQUEST_BYTES, file_bytes - done_bytes)))
        yield done_bytes
    # Pages that are not yet on the disk cannot be dropped.
    os.fsync(descriptor)


def _timed_reads(
    descriptor: int, buffer: mmap.mmap, num_bytes: int, effort: Effort, clocks: tuple[Clock, Clock]
) -> _Reads:
    """Return the times of cold blocks at places spread over the file."""
    clock, cpu_clock = clocks
    num_places = max(1, effort.file_bytes // num_bytes)
    times_ns, cpu_ns = [], 0
    for number in range(effort.reads):
        # Every third place, so that no block continues the one before it.
        offset = number * 3 % num_places * num_bytes
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        start_ns, cpu_start_ns = clock(), cpu_clock()
        _read_block(descriptor, buffer, offset, num_bytes)
        cpu_ns += cpu_clock() - cpu_start_ns
        times_ns.append(clock() - start_ns)
    return _Reads(median_ns=statistics.median_low(times_ns), cpu_ns=cpu_ns)


def _read_block(descriptor: int, buffer: mmap.mmap, offset: int, num_bytes: int) -> None:
    done_bytes = 0
    while done_bytes < num_bytes:
        wanted_bytes = min(_REQUEST_BYTES, num_bytes - done_bytes)
        done_bytes += _read(descriptor, buffer, wanted_bytes, offset + done_bytes)


def _read(descriptor: int, buffer: mmap.mmap, num_bytes: int, offset: int) -> int:
    with memoryview(buffer) as view:
        got_bytes = os.preadv(descriptor, [view[:num_bytes]], offset)
    if got_bytes == 0:
        raise OSError(errno.EIO, "the file ends too early")
    return got_bytes


def _failure(error: OSError, folder: Path, file_bytes: int) -> CalibrationError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CalibrationError(
            "no room for the file that the disk is measured with",
            where=str(folder),
            needed=f"{file_bytes} free bytes ({format_size(file_bytes)})",
            hint="free some, or give a folder on another disk",
        )
    return CalibrationError(
        "cannot measure the disk",
        where=str(folder),
        got=error.strerror or type(error).__name__,
        needed="a folder that can be written to",
    )
