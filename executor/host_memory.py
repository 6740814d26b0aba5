"""How much host memory there is, how much is free now, and how much this process holds.

Control groups count: in a container /proc/meminfo tells of the machine, not of what the container may use.
Memory that the kernel would give back on demand (page cache) counts as free. Knows nothing of plans.
"""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath

import psutil

_V1_UNLIMITED = 2**62  # version 1 writes a huge number where there is no limit


def host_capacity_bytes(root: Path = Path("/")) -> int:
    """Return the memory that processes here may use: installed, or the tightest control group's limit.

    Args:
        root: Where `proc` and `sys` are; for tests.
    """
    limits = [limit for limit, _used in _groups(root)]
    return min([_meminfo(root, "MemTotal", psutil.virtual_memory().total), *limits])


def host_available_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process can still get without anything being swapped or killed.

    Args:
        root: Where `proc` and `sys` are; for tests.
    """
    rooms = [max(0, limit - used) for limit, used in _groups(root)]
    return min([_meminfo(root, "MemAvailable", psutil.virtual_memory().available), *rooms])


def process_bytes(root: Path = Path("/")) -> int:
    """Return anonymous plus locked memory of this process; elsewhere than on Linux, its resident memory.

    Page cache is not counted: the kernel drops it when it is needed. Memory that is both anonymous and locked
    counts twice, so the figure is an upper bound.

    Args:
        root: Where `proc` is; for tests.
    """
    if sys.platform != "linux":
        return int(psutil.Process().memory_info().rss)
    fields = _fields(root / "proc/self/status")
    return fields["RssAnon"] + fields["VmLck"]


def _meminfo(root: Path, field: str, otherwise: int) -> int:
    if sys.platform != "linux":
        return otherwise
    return _fields(root / "proc/meminfo")[field]


def _fields(path: Path) -> dict[str, int]:
    """Return the fields of a proc file that are sizes, in bytes."""
    fields = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if unit == "kB":
            fields[name] = int(number) * 1024
    return fields


def _groups(root: Path) -> list[tuple[int, int]]:
    """Return limit and use, page cache not counted, of the control groups that limit this process."""
    membership = root / "proc/self/cgroup"
    if sys.platform != "linux" or not membership.exists():
        return []
    found = []
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files = ("memory.max", "memory.current", "")
            mount = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            mount = root / "sys/fs/cgroup/memory"
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        # In a container the path may be the host's, which is not there: then the mount is the group itself.
        folders = [mount / part for part in (inner, *inner.parents)]
        found += [group for folder in folders if (group := _group(folder, *files)) is not None]
    return found


def _group(folder: Path, limit_name: str, used_name: str, prefix: str) -> tuple[int, int] | None:
    limit_file, used_file = folder / limit_name, folder / used_name
    if not limit_file.exists() or not used_file.exists():
        return None
    limit = limit_file.read_text().strip()
    if limit == "max" or int(limit) >= _V1_UNLIMITED:
        return None
    stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
    page_cache = int(stat[f"{prefix}active_file"]) + int(stat[f"{prefix}inactive_file"])
    return int(limit), max(0, int(used_file.read_text()) - page_cache)
