"""Run bayplan so that every read of a shard comes from the disk.

Usage: python benchmarks/cold_reads.py ARGUMENT ...
What has been read is dropped from the page cache behind the reader, by a thread of its own: as on a machine
whose memory the checkpoint does not fit, and without touching what the system has read ahead.
"""

from __future__ import annotations

import contextlib
import os
import queue
import runpy
import threading
from collections.abc import Sequence

Range = tuple[int, int, int]
"""Descriptor, offset, bytes."""


def drop_behind() -> None:
    """Have every range that is read through `os.preadv` from now on dropped from the page cache."""
    ranges: queue.SimpleQueue[Range] = queue.SimpleQueue()
    read = os.preadv

    def reading(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        num_bytes = read(descriptor, buffers, offset)
        ranges.put((descriptor, offset, num_bytes))
        return num_bytes

    def drop() -> None:
        while True:
            with contextlib.suppress(OSError):  # the file has been closed meanwhile
                os.posix_fadvise(*ranges.get(), os.POSIX_FADV_DONTNEED)

    os.preadv = reading  # type: ignore[assignment]
    threading.Thread(target=drop, daemon=True).start()


if __name__ == "__main__":
    drop_behind()
    runpy.run_module("bayplan", run_name="__main__", alter_sys=True)
