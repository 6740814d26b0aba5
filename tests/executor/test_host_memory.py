from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bayplan.executor.host_memory import (
    host_available_bytes,
    host_capacity_bytes,
    host_memory_notes,
    process_bytes,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 2**20


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = "MemTotal:  1048576 kB\nMemFree: 10 kB\nMemAvailable:  524288 kB\nHugePages_Total: 0\n"
STAT = f"anon 1\nactive_file {20 * MIB}\ninactive_file {30 * MIB}\n"


def group(folder: str, limit: str, used: int) -> dict[str, str]:
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": str(used),
        f"{folder}/memory.stat": STAT,
    }


def test_machine_without_control_groups(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/meminfo": MEMINFO})
    assert host_capacity_bytes(root) == 1024 * MIB
    assert host_available_bytes(root) == 512 * MIB


def test_limit_of_an_outer_group_counts(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/outer/inner\n"}
        | group("sys/fs/cgroup/outer", f"{300 * MIB}\n", 100 * MIB)
        | group("sys/fs/cgroup/outer/inner", "max\n", 100 * MIB),
    )
    assert host_capacity_bytes(root) == 300 * MIB
    assert host_available_bytes(root) == 250 * MIB


def test_container_that_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/not/here\n"}
        | group("sys/fs/cgroup", str(200 * MIB), 190 * MIB),
    )
    assert host_available_bytes(root) == 60 * MIB


def test_version_one_groups(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/job"
    root = write_tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/job\n",
            f"{folder}/memory.limit_in_bytes": str(128 * MIB),
            f"{folder}/memory.usage_in_bytes": str(60 * MIB),
            f"{folder}/memory.stat": f"total_active_file {8 * MIB}\ntotal_inactive_file {2 * MIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
        },
    )
    assert host_capacity_bytes(root) == 128 * MIB
    assert host_available_bytes(root) == 78 * MIB


def test_group_that_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"}
        | group("sys/fs/cgroup", str(100 * MIB), 500 * MIB),
    )
    assert host_available_bytes(root) == 0


def test_process_counts_anonymous_and_locked_memory(tmp_path: Path) -> None:
    status = "Name:\tx\nVmRSS:\t  900 kB\nRssAnon:\t  300 kB\nRssFile:\t 600 kB\nVmLck:\t  5 kB\n"
    assert process_bytes(write_tree(tmp_path, {"proc/self/status": status})) == 305 * 1024


STATUS = "RssAnon:\t300 kB\nVmLck:\t5 kB\n"


def test_ordinary_system_has_nothing_to_note(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/status": STATUS, "proc/self/cgroup": "0::/\n"}
    root = write_tree(tmp_path, files | group("sys/fs/cgroup", str(100 * MIB), 50 * MIB))
    assert host_memory_notes(root) == ()


@pytest.mark.parametrize(
    ("status", "num_kb", "note"),
    [
        (
            "VmRSS:\t900 kB\nVmLck:\t5 kB\n",
            900,
            "memory of the process includes mapped files: the kernel reports no RssAnon",
        ),
        (
            "VmRSS:\t900 kB\nRssAnon:\t300 kB\n",
            300,
            "memory of the process leaves out locked memory: the kernel reports no VmLck",
        ),
    ],
)
def test_kernel_that_tells_less_of_a_process(tmp_path: Path, status: str, num_kb: int, note: str) -> None:
    root = write_tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/status": status})
    assert process_bytes(root) == num_kb * 1024
    assert host_memory_notes(root) == (note,)


def test_kernel_that_tells_nothing_of_a_process(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/self/status": "Name:\tx\n"})
    assert process_bytes(root) > MIB


def test_kernel_that_does_not_tell_what_is_available(tmp_path: Path) -> None:
    meminfo = "MemTotal: 1048576 kB\nMemFree: 2048 kB\n"
    root = write_tree(tmp_path, {"proc/meminfo": meminfo, "proc/self/status": STATUS})
    assert host_available_bytes(root) == 2 * MIB
    assert host_memory_notes(root) == (
        "page cache counts as used memory: the kernel reports no MemAvailable",
    )


def test_kernel_that_tells_nothing_of_its_memory(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/meminfo": "", "proc/self/status": STATUS})
    assert 0 < host_available_bytes(root) < host_capacity_bytes(root)


@pytest.mark.parametrize("stat", [None, "anon 1\n", f"inactive_file {30 * MIB}\n"])
def test_group_that_does_not_tell_its_page_cache(tmp_path: Path, stat: str | None) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/status": STATUS, "proc/self/cgroup": "0::/\n"}
    files |= group("sys/fs/cgroup", str(100 * MIB), 80 * MIB)
    del files["sys/fs/cgroup/memory.stat"]
    root = write_tree(tmp_path, files | ({} if stat is None else {"sys/fs/cgroup/memory.stat": stat}))
    assert host_available_bytes(root) == (50 * MIB if stat and "inactive" in stat else 20 * MIB)
    assert host_memory_notes(root) == (
        "page cache counts as used memory: the control group does not report it",
    )


def test_this_machine_answers() -> None:
    before = process_bytes()
    block = os.urandom(32 * MIB)
    assert process_bytes() - before >= len(block) * 0.9
    assert 0 < host_available_bytes() <= host_capacity_bytes()
