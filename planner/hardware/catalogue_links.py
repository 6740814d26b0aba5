"""The catalogue's links and its default disk. Data only; `catalogue` says what it means."""

from __future__ import annotations

from bayplan.planner.hardware.catalogue import DiskEntry, LinkEntry

_LATENCY_PCIE_NS = 15_000
_LATENCY_PCIE_SOURCE = "latency 11-20 us between devices over the host (NVIDIA cuda-samples issue 230)"
_LATENCY_PEER_NS = 2_000
_LATENCY_PEER_SOURCE = "latency 1.8-2.3 us (NVIDIA cuda-samples issue 230)"

LINKS = {
    entry.name: entry
    for entry in (
        LinkEntry(
            name="pcie3-x16",
            bytes_per_second=12_300_000_000,
            latency_ns=_LATENCY_PCIE_NS,
            source=f"pinned copy 12.36 GB/s of 15.75 (nvbandwidth README); {_LATENCY_PCIE_SOURCE}",
        ),
        LinkEntry(
            name="pcie4-x16",
            bytes_per_second=24_800_000_000,
            latency_ns=_LATENCY_PCIE_NS,
            source=f"pinned copy 24.8 GB/s on an A100 (nvbandwidth issue 53, 2025); {_LATENCY_PCIE_SOURCE}",
        ),
        LinkEntry(
            name="pcie5-x16",
            bytes_per_second=55_000_000_000,
            latency_ns=_LATENCY_PCIE_NS,
            source=f"pinned copy 55.63 GB/s (NVIDIA's article on nvbandwidth); {_LATENCY_PCIE_SOURCE}",
        ),
        LinkEntry(
            name="nvlink3",
            bytes_per_second=300_000_000_000,
            latency_ns=_LATENCY_PEER_NS,
            source=f"600 GB/s both ways (NVIDIA A100 datasheet, 2021); {_LATENCY_PEER_SOURCE}",
        ),
        LinkEntry(
            name="nvlink4",
            bytes_per_second=370_000_000_000,
            latency_ns=_LATENCY_PEER_NS,
            source=f"371-377 GB/s one way on HGX H100 (NVIDIA nccl issue 1264, 2024); {_LATENCY_PEER_SOURCE}",
        ),
        LinkEntry(
            name="infinity-fabric4",
            bytes_per_second=64_000_000_000,
            latency_ns=_LATENCY_PEER_NS,
            source="128 GB/s both ways per peer (AMD Instinct MI300X data sheet, 2023); latency as of NVLink",
        ),
        LinkEntry(
            name="unified-m4-max",
            bytes_per_second=273_000_000_000,
            latency_ns=0,
            source="a copy inside unified memory reads and writes every byte: half of 546 GB/s (Apple, 2024)",
        ),
    )
}
"""Links by name; PCIe figures are pinned copies, which is what streaming uses."""

NETWORK = LinkEntry(
    name="network",
    bytes_per_second=50_000_000_000,
    latency_ns=30_000,
    source=(
        "400 Gbit/s (InfiniBand NDR); 31-34 us for messages up to 8 KiB between two machines "
        "(NVIDIA nccl-tests issue 214, 2024)"
    ),
)
"""Between two machines; whoever declares several says how fast theirs is."""

DEFAULT_DISK = DiskEntry(
    read_bytes_per_second=2_200_000_000,
    latency_ns=70_000,
    source=(
        "cold buffered read of 512 MiB in 8 MiB requests 2.2-2.3 GB/s, of 4 KiB 60-70 us; "
        "ext4 on the virtio disk of a 2-core EPYC virtual machine, 2026-11"
    ),
)
"""A disk that nobody described."""
