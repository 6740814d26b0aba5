import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bayplan.planner.hardware.catalogue_cpus import GENERIC_CPU
from bayplan.planner.hardware.host import ProbeError, read_host
from bayplan.planner.hardware.probe import FoundAccelerator, kind_of, probe_inventory, torch_accelerators
from bayplan.schemas.codec import encode_inventory
from bayplan.schemas.types import Backend

GIB = 2**30
UNLIMITED_V1 = 9223372036854771712


class Tree:
    """A machine's `/proc` and control groups in a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def processors(self, count: int, *, per_core: int = 1, model: str = "AMD EPYC", flags: str = "") -> None:
        paragraphs = (
            f"processor\t: {index}\nmodel name\t: {model}\nphysical id\t: 0\n"
            f"core id\t\t: {index // per_core}\nflags\t\t: fpu {flags}\n"
            for index in range(count)
        )
        self.write("proc/cpuinfo", "\n".join(paragraphs))

    def v2(self, group: str, mount_root: str = "/") -> None:
        self.write("proc/self/cgroup", f"0::{group}\n")
        self.write(
            "proc/self/mountinfo",
            f"30 23 0:26 {mount_root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        )

    def v1(self, group: str, mount_root: str = "/") -> None:
        self.write("proc/self/cgroup", f"5:cpu,cpuacct:{group}\n4:memory:{group}\n1:name=systemd:/\n0::/\n")
        self.write(
            "proc/self/mountinfo",
            f"31 30 0:31 {mount_root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            f"32 30 0:32 {mount_root} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
            "33 30 0:33 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
            "34 30 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    result = Tree(tmp_path)
    result.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1 kB\n")
    result.processors(8, per_core=2)
    return result


def test_memory_is_what_is_installed_where_no_group_limits(tree: Tree) -> None:
    assert read_host(tree.root).memory_bytes == 16 * GIB


def test_free_memory_changes_nothing(tree: Tree) -> None:
    before = encode_inventory(probe_inventory(tree.root, tuple))
    tree.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         9 kB\nMemAvailable:    9 kB\n")
    assert encode_inventory(probe_inventory(tree.root, tuple)) == before


def test_v2_smallest_limit_of_a_group_and_its_parents_counts(tree: Tree) -> None:
    tree.v2("/user.slice/job")
    tree.write("sys/fs/cgroup/user.slice/job/memory.max", f"{8 * GIB}\n")
    tree.write("sys/fs/cgroup/user.slice/memory.max", f"{4 * GIB}\n")
    assert read_host(tree.root).memory_bytes == 4 * GIB


def test_v2_soft_limit_counts(tree: Tree) -> None:
    tree.v2("/job")
    tree.write("sys/fs/cgroup/job/memory.max", f"{8 * GIB}\n")
    tree.write("sys/fs/cgroup/job/memory.high", f"{2 * GIB}\n")
    assert read_host(tree.root).memory_bytes == 2 * GIB


def test_v2_limit_at_the_mount_of_a_container_counts(tree: Tree) -> None:
    tree.v2("/")
    tree.write("sys/fs/cgroup/memory.max", f"{3 * GIB}\n")
    assert read_host(tree.root).memory_bytes == 3 * GIB


@pytest.mark.parametrize("text", ["max\n", f"{64 * GIB}\n"])
def test_v2_limit_above_what_is_installed_does_not_count(text: str, tree: Tree) -> None:
    tree.v2("/job")
    tree.write("sys/fs/cgroup/job/memory.max", text)
    assert read_host(tree.root).memory_bytes == 16 * GIB


def test_v2_group_of_another_branch_does_not_count(tree: Tree) -> None:
    tree.v2("/job")
    tree.write("sys/fs/cgroup/other/memory.max", f"{GIB}\n")
    tree.write("sys/fs/cgroup/job/child/memory.max", f"{GIB}\n")
    assert read_host(tree.root).memory_bytes == 16 * GIB


def test_v1_smallest_limit_of_a_group_and_its_parents_counts(tree: Tree) -> None:
    tree.v1("/outer/inner")
    tree.write("sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes", f"{UNLIMITED_V1}\n")
    tree.write("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", f"{5 * GIB}\n")
    assert read_host(tree.root).memory_bytes == 5 * GIB


def test_v1_group_seen_from_inside_a_container_counts(tree: Tree) -> None:
    tree.v1("/docker/abc", mount_root="/docker/abc")
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{6 * GIB}\n")
    assert read_host(tree.root).memory_bytes == 6 * GIB


def test_v1_parent_that_a_container_does_not_see_counts(tree: Tree) -> None:
    tree.v1("/docker/abc", mount_root="/docker/abc")
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{6 * GIB}\n")
    tree.write("sys/fs/cgroup/memory/memory.stat", f"cache 7\nhierarchical_memory_limit {2 * GIB}\n")
    assert read_host(tree.root).memory_bytes == 2 * GIB


def test_group_that_the_mount_does_not_show_falls_to_its_root(tree: Tree) -> None:
    tree.v1("/elsewhere", mount_root="/docker/abc")
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{6 * GIB}\n")
    assert read_host(tree.root).memory_bytes == 6 * GIB


def test_mount_point_with_a_space(tree: Tree) -> None:
    tree.write("proc/self/cgroup", "0::/\n")
    tree.write("proc/self/mountinfo", "30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n")
    tree.write("my groups/memory.max", f"{GIB}\n")
    assert read_host(tree.root).memory_bytes == GIB


def test_logical_processors_of_one_core_count_once(tree: Tree) -> None:
    assert read_host(tree.root).cores == 4


def test_processors_without_core_ids_count_each(tree: Tree) -> None:
    tree.write("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp bf16 sve\n\nprocessor\t: 1\nFeatures\t: fp\n")
    facts = read_host(tree.root)
    assert (facts.cores, facts.model_name, facts.flags) == (2, "", {"fp", "bf16", "sve"})


@pytest.mark.parametrize(("quota", "cores"), [("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1)])
def test_v2_cpu_quota_counts_rounded_up(quota: str, cores: int, tree: Tree) -> None:
    tree.v2("/job")
    tree.write("sys/fs/cgroup/job/cpu.max", f"{quota}\n")
    assert read_host(tree.root).cores == cores


def test_v1_cpu_quota_counts(tree: Tree) -> None:
    tree.v1("/job")
    tree.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n")
    tree.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    assert read_host(tree.root).cores == 3


def test_no_cpu_quota_leaves_all_cores(tree: Tree) -> None:
    tree.v1("/job")
    tree.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n")
    tree.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    assert read_host(tree.root).cores == 4


def test_memory_not_told(tree: Tree) -> None:
    tree.write("proc/meminfo", "MemFree: 1 kB\n")
    with pytest.raises(ProbeError) as caught:
        read_host(tree.root)
    assert str(caught.value) == (
        f"{tree.root}/proc/meminfo: cannot tell how much memory this machine has: needed a line MemTotal\n"
        "hint: declare the machine with --cpu and --host-memory"
    )


def test_unreadable_file(tree: Tree) -> None:
    tree.v2("/job")
    (tree.root / "sys/fs/cgroup/job/memory.max").mkdir(parents=True)
    with pytest.raises(ProbeError) as caught:
        read_host(tree.root)
    assert str(caught.value) == (
        f"{tree.root}/sys/fs/cgroup/job/memory.max: cannot read what the kernel says of this machine: "
        "got Is a directory\nhint: declare the machine with --cpu and --host-memory"
    )


def test_system_without_proc_still_has_memory_and_cores(tmp_path: Path) -> None:
    facts = read_host(tmp_path)
    assert facts.memory_bytes > 0
    assert facts.cores > 0
    assert facts.flags == frozenset()


def test_known_cpu_is_rated_by_its_share_of_cores(tree: Tree) -> None:
    tree.processors(
        8, model="AMD EPYC 9354 32-Core Processor", flags="avx512f avx2 avx512_bf16 not_of_interest"
    )
    (cpu,) = probe_inventory(tree.root, tuple).devices
    assert (cpu.id, cpu.kind) == ("node0/cpu", "epyc-9354")
    assert cpu.memory_bytes_per_second == 460_800_000_000 // 4
    assert cpu.flops_per_second == 3_328_000_000_000 // 4
    assert cpu.features == ("avx2", "avx512_bf16", "avx512f")


def test_unknown_cpu_is_generic_by_its_cores_up_to_two_memory_channels(tree: Tree) -> None:
    tree.processors(4)
    (few,) = probe_inventory(tree.root, tuple).devices
    tree.processors(64)
    (many,) = probe_inventory(tree.root, tuple).devices
    assert (few.kind, many.kind) == ("generic", "generic")
    assert few.memory_bytes_per_second == GENERIC_CPU.bandwidth.value * 2
    assert many.memory_bytes_per_second == 51_200_000_000
    assert many.flops_per_second == GENERIC_CPU.flops.value * 32


def test_accelerators_come_first_with_the_memory_that_torch_tells(tree: Tree) -> None:
    found = FoundAccelerator(
        device_name="NVIDIA L4", backend=Backend.CUDA, memory_bytes=22 * GIB, is_integrated=False
    )
    inventory = probe_inventory(tree.root, lambda: (found, found))
    assert [device.id for device in inventory.devices] == ["node0/gpu0", "node0/gpu1", "node0/cpu"]
    assert inventory.source == "probed"
    first = inventory.devices[0]
    assert (first.kind, first.capacity_bytes, first.reserve_bytes) == ("l4", 22 * GIB, GIB)
    assert first.memory_bytes_per_second == 300_000_000_000


def test_unknown_accelerator_gets_the_lowest_figures(tree: Tree) -> None:
    found = FoundAccelerator(
        device_name="NVIDIA A30", backend=Backend.CUDA, memory_bytes=24 * GIB, is_integrated=False
    )
    inventory = probe_inventory(tree.root, lambda: (found,))
    device = inventory.devices[0]
    assert device.kind == "nvidia-a30"
    assert device.memory_bytes_per_second == 300_000_000_000
    assert device.flops_per_second == 65_000_000_000_000
    assert inventory.links[0].bytes_per_second == 12_300_000_000


def test_integrated_accelerator_has_no_more_than_the_host(tree: Tree) -> None:
    found = FoundAccelerator(
        device_name="NVIDIA GB10", backend=Backend.CUDA, memory_bytes=24 * GIB, is_integrated=True
    )
    device = probe_inventory(tree.root, lambda: (found,)).devices[0]
    assert device.shares_host_memory
    assert device.capacity_bytes == 16 * GIB


def test_kind_has_the_form_of_a_catalogue_name() -> None:
    assert kind_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb") == "nvidia-a100-sxm4-40gb-mig-1g-5gb"


def test_this_machine_gives_the_same_bytes_twice() -> None:
    assert encode_inventory(probe_inventory()) == encode_inventory(probe_inventory())


@pytest.mark.parametrize("device", [None, torch.device("hpu")])
def test_no_accelerator_or_one_that_no_plan_can_use(
    device: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *, check_available: device)
    assert torch_accelerators() == ()


def test_every_accelerator_of_torch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = [
        SimpleNamespace(name="NVIDIA L4", total_memory=22 * GIB, is_integrated=0),
        SimpleNamespace(name="NVIDIA GB10", total_memory=120 * GIB, is_integrated=1),
    ]
    module = SimpleNamespace(get_device_properties=lambda index: properties[index])
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *, check_available: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert torch_accelerators() == (
        FoundAccelerator(
            device_name="NVIDIA L4", backend=Backend.CUDA, memory_bytes=22 * GIB, is_integrated=False
        ),
        FoundAccelerator(
            device_name="NVIDIA GB10", backend=Backend.CUDA, memory_bytes=120 * GIB, is_integrated=True
        ),
    )


def test_metal_is_one_integrated_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *, check_available: torch.device("mps")
    )
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 96 * GIB)
    assert torch_accelerators() == (
        FoundAccelerator(
            device_name="Apple MPS", backend=Backend.MPS, memory_bytes=96 * GIB, is_integrated=True
        ),
    )


def test_importing_the_probe_imports_neither_torch_nor_the_solvers() -> None:
    code = (
        "import sys, bayplan.planner.hardware.probe, bayplan.planner.hardware.calibrate\n"
        "import bayplan.planner.hardware.budget\n"
        "print(sorted({'torch', 'transformers', 'networkx', 'highspy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
