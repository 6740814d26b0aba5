"""What the host has: memory that processes may use, CPU cores, instruction sets. Static facts only.

Reads files of the kernel below a root folder, so that a test can bring its own tree. Never what is free at
the moment: a plan made from it must be the same tomorrow. Knows nothing of torch and of the catalogue.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bayplan.schemas.errors import BayplanError


class ProbeError(BayplanError):
    """The machine does not tell what the inventory needs."""


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The host as the kernel describes it."""

    memory_bytes: int
    """Installed memory, or what the control groups allow where that is less."""
    cores: int
    """Physical cores, or what the control groups' CPU quota comes to, rounded up, where that is less."""
    model_name: str
    """Empty where the kernel gives none, as on ARM."""
    flags: frozenset[str]
    """Instruction sets as the kernel spells them."""


class _Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A control-group hierarchy."""

    root: str
    """Which group of the hierarchy is seen at the mount point; not `/` inside a container."""
    folder: Path
    controllers: frozenset[str]
    """Of a version 1 hierarchy; empty for version 2."""
    is_v2: bool


def read_host(root: Path) -> HostFacts:
    """Return the facts of the host.

    Args:
        root: `/`, or a folder that stands for it and holds `proc` and the control groups' mount points.

    Raises:
        ProbeError: There is a `proc`, but it does not tell the installed memory.
        ProbeError: A file that is there cannot be read.
    """
    proc = root / "proc"
    if not proc.is_dir():
        return _host_without_proc()
    processors = list(_processors(proc / "cpuinfo"))
    groups = list(_groups(root))
    limits = [limit for folder, is_v2 in groups for limit in _memory_limits(folder, is_v2=is_v2)]
    quotas = [quota for folder, is_v2 in groups for quota in _cpu_quotas(folder, is_v2=is_v2)]
    first = processors[0] if processors else {}
    return HostFacts(
        memory_bytes=min([_installed_bytes(proc / "meminfo"), *limits]),
        cores=min([_physical_cores(processors), *quotas]),
        model_name=first.get("model name", ""),
        flags=frozenset((first.get("flags") or first.get("Features") or "").split()),
    )


def _host_without_proc() -> HostFacts:
    """Return what POSIX tells, for systems without `/proc`: no instruction sets, logical cores."""
    return HostFacts(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cores=os.cpu_count() or 1,
        model_name=platform.processor(),
        flags=frozenset(),
    )


def _installed_bytes(meminfo: Path) -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB$", _text(meminfo), re.MULTILINE)
    if match is None:
        raise ProbeError(
            "cannot tell how much memory this machine has",
            where=str(meminfo),
            needed="a line MemTotal",
            hint="declare the machine with --cpu and --host-memory",
        )
    return int(match[1]) * 1024


def _processors(cpuinfo: Path) -> Iterator[dict[str, str]]:
    """Yield one dict of fields per logical processor."""
    for paragraph in _text(cpuinfo).split("\n\n"):
        fields = dict(_field(line) for line in paragraph.splitlines() if ":" in line)
        if "processor" in fields:
            yield fields


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _physical_cores(processors: list[dict[str, str]]) -> int:
    """Return the number of cores, several logical processors of one core counted once."""
    cores = {
        (fields.get("physical id", ""), fields.get("core id", f"processor {fields['processor']}"))
        for fields in processors
    }
    return max(1, len(cores))


def _groups(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield `(folder, is version 2)` for this process's control groups and all their parents in sight."""
    mounts = list(_mounts(root))
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        wanted = frozenset(controllers.split(",")) & {"memory", "cpu"}
        for mount in mounts:
            if mount.is_v2 != (not controllers) or not wanted <= mount.controllers:
                continue
            if not mount.is_v2 and not wanted:
                continue
            # A group outside the mount's root is not shown by it: the root is the nearest that is.
            inside = Path(path).relative_to(mount.root) if Path(path).is_relative_to(mount.root) else Path()
            leaf = mount.folder / inside
            for folder in (leaf, *leaf.parents):
                if folder.is_relative_to(mount.folder):
                    yield folder, mount.is_v2


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if kind[0] not in ("cgroup", "cgroup2"):
            continue
        folder = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        yield _Mount(
            root=fields[3],
            folder=root / folder.lstrip("/"),
            controllers=frozenset() if kind[0] == "cgroup2" else frozenset(kind[2].split(",")),
            is_v2=kind[0] == "cgroup2",
        )


def _memory_limits(folder: Path, *, is_v2: bool) -> Iterator[int]:
    """Yield limits in bytes; files that are not there and the word `max` limit nothing."""
    # Above memory.high a process is stalled rather than killed, which is no memory to plan with either.
    names = ("memory.max", "memory.high") if is_v2 else ("memory.limit_in_bytes",)
    for name in names:
        text = _text(folder / name).strip()
        if text.isdecimal():
            yield int(text)
    if not is_v2:
        # Also counts parents that a container does not see.
        match = re.search(r"^hierarchical_memory_limit (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
        if match is not None:
            yield int(match[1])


def _cpu_quotas(folder: Path, *, is_v2: bool) -> Iterator[int]:
    """Yield quotas in cores, rounded up; no quota yields nothing."""
    if is_v2:
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    else:
        quota = _text(folder / "cpu.cfs_quota_us").strip()
        period = _text(folder / "cpu.cfs_period_us").strip()
    # Unlimited is the word `max` in version 2 and -1 in version 1.
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield max(1, -(-int(quota) // int(period)))


def _text(file: Path) -> str:
    """Return the file's text, empty where there is none: the kernel shows only what it has."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ProbeError(
            "cannot read what the kernel says of this machine",
            where=str(file),
            got=error.strerror or type(error).__name__,
            hint="declare the machine with --cpu and --host-memory",
        ) from error
