import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from bayplan.planner.hardware.calibrate import Probe, calibrate, torch_devices
from bayplan.planner.hardware.calibrate_links import Copy
from bayplan.planner.hardware.calibration_effort import BlockSize, Effort
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.hardware.probe import probe_inventory
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Disk, Inventory, Link

BLOCK = BlockSize(
    hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8, fewer=1, more=2
)
WIDE = BlockSize(
    hidden_size=128, intermediate_size=256, num_heads=4, num_kv_heads=2, head_dim=32, fewer=1, more=2
)
TINY = Effort(
    file_bytes=2**20,
    small_read_bytes=2**14,
    large_read_bytes=2**16,
    reads=3,
    tiny=BLOCK,
    narrow=BLOCK,
    wide=WIDE,
    context=4,
    steps=1,
    repeats=1,
    matrix_side=32,
    product_rows=4,
    large_side=64,
    small_copy_bytes=1000,
    large_copy_bytes=9000,
)
RATES = {
    "memory_bytes_per_second",
    "flops_per_second",
    "block_overhead_ns",
    "operation_overhead_ns",
    "format_rates",
}


def _ticks(step_ns: int) -> Iterator[int]:
    return itertools.count(0, step_ns)


def all_on_the_cpu(inventory: Inventory) -> dict[str, torch.device]:
    return {device.id: torch.device("cpu") for device in inventory.devices}


def probed(machine: Inventory) -> Inventory:
    """Return a declared machine as if it had been found here."""
    return msgspec.structs.replace(machine, source="probed")


@pytest.fixture
def inventory() -> Inventory:
    return probe_inventory(find_accelerators=tuple)


def test_only_rates_and_source_change(inventory: Inventory, tmp_path: Path) -> None:
    result = calibrate(inventory, tmp_path, effort=TINY)
    (before,), (after,) = inventory.devices, result.devices
    assert result.source == "calibrated"
    kept = {field: getattr(before, field) for field in RATES}
    assert msgspec.structs.replace(after, **kept) == before
    (node,) = result.nodes
    own = {"disk": inventory.nodes[0].disk, "copy_bytes_per_second": None}
    assert msgspec.structs.replace(node, **own) == inventory.nodes[0]
    assert (result.links, result.format_version) == (inventory.links, inventory.format_version)


def test_a_calibrated_inventory_can_be_calibrated_again(inventory: Inventory, tmp_path: Path) -> None:
    again = calibrate(calibrate(inventory, tmp_path, effort=TINY), tmp_path, effort=TINY)
    assert again.source == "calibrated"


def test_a_cpu_s_own_rates_are_those_of_fp32(inventory: Inventory, tmp_path: Path) -> None:
    (cpu,) = calibrate(inventory, tmp_path, effort=TINY).devices
    assert [rates.kind for rates in cpu.format_rates] == ["bf16", "fp16", "fp32"]
    own = cpu.format_rates[2]
    assert cpu.memory_bytes_per_second == own.memory_bytes_per_second
    assert (cpu.flops_per_second, cpu.block_overhead_ns) == (own.flops_per_second, own.block_overhead_ns)


def test_figures_follow_from_the_clocks(inventory: Inventory, tmp_path: Path) -> None:
    ticks, worked = _ticks(1000), _ticks(500)
    probe = Probe(clock=lambda: next(ticks), cpu_clock=lambda: next(worked))
    result = calibrate(inventory, tmp_path, effort=TINY, probe=probe)
    (cpu,) = result.devices
    assert cpu.flops_per_second == 8_190_000_000  # 2 x 4 x 32 x 32 in a tick
    assert (cpu.operation_overhead_ns, cpu.block_overhead_ns) == (0, 0)
    (node,) = result.nodes
    # Blocks of both sizes take one tick: what the larger one does is all that is known.
    assert node.disk == Disk(read_bytes_per_second=65_500_000_000, latency_ns=0)
    assert node.copy_bytes_per_second == 81_900_000_000


def test_accelerators_and_their_links_are_measured_too(tmp_path: Path) -> None:
    machine = probed(declare_inventory(("h100-80gb*2",), cpu="generic", host_memory="8GiB"))
    copied: list[tuple[str, str, int]] = []
    ticks = _ticks(1000)

    def copies(link: Link, num_bytes: int) -> Copy:
        copied.append((link.source, link.target, num_bytes))
        return lambda: None

    probe = Probe(clock=lambda: next(ticks), cpu_clock=lambda: 0, devices=all_on_the_cpu, copies=copies)
    result = calibrate(machine, tmp_path, effort=TINY, probe=probe)
    first, second, cpu = result.devices
    assert [rates.kind for rates in first.format_rates] == ["bf16", "fp16", "fp32"]
    assert first.memory_bytes_per_second == first.format_rates[0].memory_bytes_per_second == 8_190_000_000
    assert first == msgspec.structs.replace(second, id=first.id)
    assert cpu.memory_bytes_per_second == cpu.format_rates[2].memory_bytes_per_second
    assert [link.bytes_per_second for link in result.links] == [9_000_000_000] * 3
    ends = [("node0", "node0/gpu0"), ("node0", "node0/gpu1"), ("node0/gpu0", "node0/gpu1")]
    assert copied == [(*pair, num_bytes) for pair in ends for num_bytes in (1000, 9000)]


def test_links_are_copied_over_by_torch(tmp_path: Path) -> None:
    machine = probed(declare_inventory(("l4",), host_memory="8GiB"))
    result = calibrate(machine, tmp_path, effort=TINY, probe=Probe(devices=all_on_the_cpu))
    assert result.links != machine.links


def test_devices_of_one_backend_are_numbered_in_chain_order() -> None:
    found = torch_devices(declare_inventory(("l4", "t4"), cpu="generic", host_memory="8GiB"))
    assert found == {
        "node0/gpu0": torch.device("cuda", 0),
        "node0/gpu1": torch.device("cuda", 1),
        "node0/cpu": torch.device("cpu"),
    }


def test_progress_reaches_the_end_of_every_stage(tmp_path: Path) -> None:
    machine = probed(declare_inventory(("l4",), cpu="generic", host_memory="8GiB"))
    reports: list[tuple[str, int, int]] = []
    probe = Probe(devices=all_on_the_cpu)
    calibrate(machine, tmp_path, lambda *report: reports.append(report), effort=TINY, probe=probe)
    stages = ["measure disk", "measure node0/gpu0", "measure node0/cpu", "measure links"]
    assert [stage for stage, _ in itertools.groupby(report[0] for report in reports)] == stages
    for stage in stages:
        done = [report[1] for report in reports if report[0] == stage]
        assert done == sorted(done)
        assert done[-1] == {report[2] for report in reports if report[0] == stage}.pop()


def test_declared_inventory(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        calibrate(declare_inventory(("l4",), host_memory="8GiB"), tmp_path, effort=TINY)
    assert str(caught.value) == (
        "--calibrate: only the machine at hand can be measured: "
        "got a declared inventory of 1 node(s), needed a probed one\n"
        "hint: leave out --device, --cpu, --host-memory, --disk and --nodes"
    )
