"""How much host memory there is, how much is free now, and how much this process holds.

Control groups count: in a container /proc/meminfo tells of the machine, not of what the container may use.
Memory that the kernel would give back on demand (page cache) counts as free. Where a kernel or a sandbox does
not report a figure, a more cautious one takes its place, and `host_memory_notes` says so. Knows nothing of
plans.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

import msgspec
import psutil

_V1_UNLIMITED = 2**62  # version 1 writes a huge number where there is no limit


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """A control group that limits this process."""

    limit_bytes: int
    used_bytes: int
    """Without page cache, as far as the group reports it."""
    reports_page_cache: bool


def host_capacity_bytes(root: Path = Path("/")) -> int:
    """Return the memory that processes here may use: installed, or the tightest control group's limit.

    Args:
        root: Where `proc` and `sys` are; for tests.
    """
    installed = (
        _fields(root / "proc/meminfo").get("MemTotal", _pages("SC_PHYS_PAGES"))
        if sys.platform == "linux"
        else int(psutil.virtual_memory().total)
    )
    return min([installed, *(group.limit_bytes for group in _groups(root))])


def host_available_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process can still get without anything being swapped or killed.

    Args:
        root: Where `proc` and `sys` are; for tests.
    """
    if sys.platform == "linux":
        fields = _fields(root / "proc/meminfo")
        available = fields.get("MemAvailable", fields.get("MemFree", _pages("SC_AVPHYS_PAGES")))
    else:
        available = int(psutil.virtual_memory().available)
    return min([available, *(max(0, group.limit_bytes - group.used_bytes) for group in _groups(root))])


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
    if "RssAnon" not in fields:
        return fields.get("VmRSS", int(psutil.Process().memory_info().rss))
    return fields["RssAnon"] + fields.get("VmLck", 0)


def host_memory_notes(root: Path = Path("/")) -> tuple[str, ...]:
    """Return one sentence for each figure that this system does not report; none on an ordinary Linux.

    Args:
        root: Where `proc` and `sys` are; for tests.
    """
    if sys.platform != "linux":
        return ("memory of the process includes mapped files: this system reports no anonymous memory",)
    notes = []
    status = _fields(root / "proc/self/status")
    if "RssAnon" not in status:
        notes.append("memory of the process includes mapped files: the kernel reports no RssAnon")
    elif "VmLck" not in status:
        notes.append("memory of the process leaves out locked memory: the kernel reports no VmLck")
    if "MemAvailable" not in _fields(root / "proc/meminfo"):
        notes.append("page cache counts as used memory: the kernel reports no MemAvailable")
    if not all(group.reports_page_cache for group in _groups(root)):
        notes.append("page cache counts as used memory: the control group does not report it")
    return tuple(notes)


def _pages(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _fields(path: Path) -> dict[str, int]:
    """Return the fields of a proc file that are sizes, in bytes."""
    fields = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if unit == "kB":
            fields[name] = int(number) * 1024
    return fields


def _groups(root: Path) -> list[_Group]:
    """Return the control groups that limit this process."""
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


def _group(folder: Path, limit_name: str, used_name: str, prefix: str) -> _Group | None:
    limit_file, used_file, stat_file = folder / limit_name, folder / used_name, folder / "memory.stat"
    if not limit_file.exists() or not used_file.exists():
        return None
    limit = limit_file.read_text().strip()
    if limit == "max" or int(limit) >= _V1_UNLIMITED:
        return None
    lines = stat_file.read_text().splitlines() if stat_file.exists() else []
    stat = dict(line.split(" ", 1) for line in lines)
    lists = [stat.get(f"{prefix}{name}_file") for name in ("active", "inactive")]
    page_cache = sum(int(size) for size in lists if size is not None)
    return _Group(
        limit_bytes=int(limit),
        used_bytes=max(0, int(used_file.read_text()) - page_cache),
        reports_page_cache=None not in lists,
    )
