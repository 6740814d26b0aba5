"""The entries of the catalogue. Data only; what they mean is said in `bayplan.planner.catalogue`.

A device whose figures could not be traced to a datasheet or a measurement is left out rather than guessed.
"""

from __future__ import annotations

from bayplan.planner.catalogue import AcceleratorEntry, CpuEntry, DiskEntry, Figure, LinkEntry
from bayplan.schemas.types import Backend

_GIB = 2**30
_GB = 10**9
_TFLOPS = 10**12

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

DEFAULT_DISK = DiskEntry(
    read_bytes_per_second=2_200_000_000,
    latency_ns=70_000,
    source=(
        "cold buffered read of 512 MiB in 8 MiB requests 2.2-2.3 GB/s, of 4 KiB 60-70 us; ext4 on the virtio disk of a "
        "2-core EPYC virtual machine, 2026-11"
    ),
)
"""A disk that nobody described."""

_EAGER_OVERHEAD = Figure(
    420_000,
    "0.41-0.44 ms per block, from the gap between measured and memory-bound decode on H100 and L4 (arXiv 2605.30571)",
)


def _accelerator(
    name: str,
    device_name: str,
    memory: tuple[float, str],
    bandwidth: tuple[int, str],
    flops: tuple[float, str],
    links: tuple[str, str | None],
) -> AcceleratorEntry:
    """Return a CUDA or ROCm entry; memory in GiB, bandwidth in GB/s, operations in TFLOP/s."""
    return AcceleratorEntry(
        name=name,
        device_name=device_name,
        backend=Backend.CUDA,
        memory=Figure(int(memory[0] * _GIB), memory[1]),
        bandwidth=Figure(bandwidth[0] * _GB, bandwidth[1]),
        flops=Figure(round(flops[0] * _TFLOPS), flops[1]),
        block_overhead=_EAGER_OVERHEAD,
        host_link=links[0],
        peer_link=links[1],
    )


_H100 = "NVIDIA H100 datasheet, 2023"
_A100 = "NVIDIA A100 datasheet, 2021"
_NVIDIA_SMI = "nvidia-smi totals in modal-client pull request 2797, 2025; torch shows up to 1.1 GiB less"
_MEMORY_80GB = (79.0, f"81559 MiB (H100) and 81920 MiB (A100): {_NVIDIA_SMI}")
_MEMORY_40GB = (39.0, f"40960 MiB: {_NVIDIA_SMI}; 39.50 GiB in a torch report (CoSeR issue 10, 2025)")
_MEMORY_23028MIB = (21.75, f"23028 MiB (A10) and 23034 MiB (L4): {_NVIDIA_SMI}; 22.03 GiB (evo2 issue 190, 2025)")
_HALF_OF_SPARSE = "half of the figure with sparsity"

ACCELERATORS = {
    entry.name: entry
    for entry in (
        _accelerator(
            "h200",
            "NVIDIA H200",
            (139, "about 139 GiB to torch on one H200, 2026"),
            (4800, "NVIDIA H200 datasheet, 2024"),
            (989.5, f"NVIDIA H200 datasheet, 2024, {_HALF_OF_SPARSE}"),
            ("pcie5-x16", "nvlink4"),
        ),
        _accelerator(
            "h100-80gb",
            "NVIDIA H100 80GB HBM3",
            _MEMORY_80GB,
            (3350, f"{_H100} (SXM)"),
            (989.5, f"{_H100} (SXM), {_HALF_OF_SPARSE}"),
            ("pcie5-x16", "nvlink4"),
        ),
        _accelerator(
            "h100-pcie-80gb",
            "NVIDIA H100 PCIe",
            _MEMORY_80GB,
            (2000, f"{_H100} (PCIe)"),
            (756.5, f"{_H100} (PCIe), {_HALF_OF_SPARSE}"),
            ("pcie5-x16", None),
        ),
        _accelerator(
            "a100-80gb",
            "NVIDIA A100-SXM4-80GB",
            _MEMORY_80GB,
            (2039, f"{_A100} (SXM)"),
            (312, _A100),
            ("pcie4-x16", "nvlink3"),
        ),
        _accelerator(
            "a100-pcie-80gb",
            "NVIDIA A100 80GB PCIe",
            _MEMORY_80GB,
            (1935, f"{_A100} (PCIe)"),
            (312, _A100),
            ("pcie4-x16", None),
        ),
        _accelerator(
            "a100-40gb",
            "NVIDIA A100-SXM4-40GB",
            _MEMORY_40GB,
            (1555, "NVIDIA A100 40GB datasheet, 2020"),
            (312, "NVIDIA A100 40GB datasheet, 2020"),
            ("pcie4-x16", "nvlink3"),
        ),
        _accelerator(
            "a100-pcie-40gb",
            "NVIDIA A100-PCIE-40GB",
            _MEMORY_40GB,
            (1555, "NVIDIA A100 40GB datasheet, 2020"),
            (312, "NVIDIA A100 40GB datasheet, 2020"),
            ("pcie4-x16", None),
        ),
        _accelerator(
            "l40s",
            "NVIDIA L40S",
            (44, f"46068 MiB: {_NVIDIA_SMI}; 44.42 GiB in a torch report (Step-Video-T2V issue 8, 2025)"),
            (864, "NVIDIA L40S datasheet, 2023"),
            (362.05, "NVIDIA L40S datasheet, 2023"),
            ("pcie4-x16", None),
        ),
        _accelerator(
            "l4",
            "NVIDIA L4",
            _MEMORY_23028MIB,
            (300, "NVIDIA L4 datasheet, 2023"),
            (121, f"NVIDIA L4 datasheet, 2023, {_HALF_OF_SPARSE}"),
            ("pcie4-x16", None),
        ),
        _accelerator(
            "a10",
            "NVIDIA A10",
            _MEMORY_23028MIB,
            (600, "NVIDIA A10 datasheet, 2021"),
            (125, "NVIDIA A10 datasheet, 2021"),
            ("pcie4-x16", None),
        ),
        _accelerator(
            "t4",
            "Tesla T4",
            (14.5, f"15360 MiB: {_NVIDIA_SMI}; 14.75 GiB in a torch report (Open-Sora issue 697, 2024)"),
            (320, "NVIDIA T4 datasheet, 2019"),
            (65, "NVIDIA T4 datasheet, 2019: fp16, its tensor cores know no bf16"),
            ("pcie3-x16", None),
        ),
        _accelerator(
            "v100-32gb",
            "Tesla V100-SXM2-32GB",
            (31.5, "31.74 GiB in a torch report (LLaVA issue 812, 2023)"),
            (900, "NVIDIA V100 datasheet, 2018"),
            (125, "NVIDIA V100 datasheet, 2018: fp16, its tensor cores know no bf16"),
            ("pcie3-x16", None),
        ),
        _accelerator(
            "rtx-5090",
            "NVIDIA GeForce RTX 5090",
            (31.25, "31.36 GiB in a torch report (TrajectoryCrafter issue 20, 2025)"),
            (1792, "NVIDIA RTX Blackwell architecture paper, 2025"),
            (209.5, "NVIDIA RTX Blackwell architecture paper, 2025"),
            ("pcie5-x16", None),
        ),
        _accelerator(
            "rtx-4090",
            "NVIDIA GeForce RTX 4090",
            (23.5, "23.52 GiB in a torch report (SoulX-FlashTalk issue 5, 2026)"),
            (1008, "NVIDIA Ada architecture paper, 2022"),
            (165.2, "NVIDIA Ada architecture paper, 2022"),
            ("pcie4-x16", None),
        ),
        _accelerator(
            "rtx-3090",
            "NVIDIA GeForce RTX 3090",
            (23.5, "24 GB board as of rtx-4090, of which torch shows 23.52 GiB or more"),
            (936, "NVIDIA GA102 architecture paper, 2020"),
            (71, "NVIDIA GA102 architecture paper, 2020"),
            ("pcie4-x16", None),
        ),
        _accelerator(
            "mi300x",
            "AMD Instinct MI300X",
            (191, "192 GB of HBM3 in 8 stacks of 24 GiB (AMD Instinct MI300X data sheet, 2023), less 1 GiB"),
            (5300, "AMD Instinct MI300X data sheet, 2023"),
            (1307.4, "AMD Instinct MI300X data sheet, 2023"),
            ("pcie5-x16", "infinity-fabric4"),
        ),
        AcceleratorEntry(
            name="m4-max-128gb",
            device_name="Apple M4 Max",
            backend=Backend.MPS,
            memory=Figure(96 * _GIB, "Metal recommends 107.52 GiB on two 128 GiB machines (ds4 pull request 893, 2026), older systems 3/4"),
            bandwidth=Figure(546 * _GB, "Apple MacBook Pro specifications, 2024 (40-core GPU)"),
            flops=Figure(
                12_500_000_000_000,
                "bf16 product of 4096 x 4096 matrices in torch 2.8, 12.51 TFLOP/s "
                "(torch-performance-test-data issue 65, 2025)",
            ),
            block_overhead=_EAGER_OVERHEAD,
            host_link="unified-m4-max",
            host_memory_bytes=128 * _GIB,
        ),
    )
}
"""Accelerators by name."""

_CPU_OVERHEAD = Figure(
    250_000,
    "0.24-0.27 ms per Llama block of negligible size, transformers 5.24, torch 2.13, Zen 4 core, 2026-11",
)
_AVX512_BF16 = ("avx2", "avx512_bf16", "avx512_vnni", "avx512f")
_AMX = ("amx_bf16", "amx_int8", "avx2", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx512f")


def _cpu(
    name: str,
    pattern: str,
    cores: tuple[int, int, int],
    channels: tuple[int, int],
    features: tuple[str, ...],
    source: str,
) -> CpuEntry:
    """Return an entry; `cores` is number, base MHz, fp32 operations a cycle; `channels` number and MT/s.

    Operations a cycle: 32 with two 256-bit multiply-add units (Zen 2 to 4), 64 with two of 512 bits (Zen 5, Xeon), by the
    makers' optimization guides.
    """
    num_cores, megahertz, flops_per_cycle = cores
    num_channels, megatransfers = channels
    return CpuEntry(
        name=name,
        model_pattern=pattern,
        cores=num_cores,
        bandwidth=Figure(
            num_channels * 8 * megatransfers * 10**6, f"{source}: {num_channels} channels, {megatransfers} MT/s"
        ),
        flops=Figure(
            num_cores * megahertz * 10**6 * flops_per_cycle,
            f"{source}: {num_cores} cores at {megahertz} MHz base clock, {flops_per_cycle} operations a cycle",
        ),
        block_overhead=_CPU_OVERHEAD,
        features=features,
    )


GENERIC_CPU = CpuEntry(
    name="generic",
    model_pattern=r"(?!)",
    cores=2,
    bandwidth=Figure(16_000_000_000, "fp32 matrix-vector products 15.1-16.9 GB/s on 2 Zen 4 cores, 2026-11"),
    flops=Figure(160_000_000_000, "fp32 matrix product 162-179 GFLOP/s on 2 Zen 4 cores, 2026-11"),
    block_overhead=_CPU_OVERHEAD,
    features=(),
)
"""A CPU that is not in the catalogue; as declared it has two cores."""

GENERIC_CPU_BANDWIDTH_LIMIT = Figure(51_200_000_000, "two channels of DDR4-3200 (JEDEC JESD79-4)")
"""However many cores: what a machine without a known memory system surely has."""

CPUS = {
    entry.name: entry
    for entry in (
        _cpu(
            "epyc-9654",
            r"EPYC 9654P?\b",
            (96, 2400, 32),
            (12, 4800),
            _AVX512_BF16,
            "AMD EPYC 9004 data sheet, 2022",
        ),
        _cpu(
            "epyc-9354",
            r"EPYC 9354P?\b",
            (32, 3250, 32),
            (12, 4800),
            _AVX512_BF16,
            "AMD EPYC 9004 data sheet, 2022",
        ),
        _cpu(
            "epyc-7763", r"EPYC 7763\b", (64, 2450, 32), (8, 3200), ("avx2",), "AMD EPYC 7003 data sheet, 2021"
        ),
        _cpu(
            "epyc-7742", r"EPYC 7742\b", (64, 2250, 32), (8, 3200), ("avx2",), "AMD EPYC 7002 data sheet, 2019"
        ),
        _cpu(
            "xeon-8592",
            r"Platinum 8592\+",
            (64, 1900, 64),
            (8, 5600),
            _AMX,
            "Intel Xeon Platinum 8592+ specifications, 2023",
        ),
        _cpu(
            "xeon-8480",
            r"Platinum 8480(\+|C\b)",
            (56, 2000, 64),
            (8, 4800),
            _AMX,
            "Intel Xeon Platinum 8480+ specifications, 2023",
        ),
        _cpu(
            "xeon-8380",
            r"Platinum 8380\b",
            (40, 2300, 64),
            (8, 3200),
            ("avx2", "avx512_vnni", "avx512f"),
            "Intel Xeon Platinum 8380 specifications, 2021",
        ),
        _cpu(
            "ryzen-9-9950x",
            r"Ryzen 9 9950X\b",
            (16, 4300, 64),
            (2, 5600),
            _AVX512_BF16,
            "AMD Ryzen 9 9950X specifications, 2024",
        ),
        _cpu(
            "ryzen-9-7950x",
            r"Ryzen 9 7950X\b",
            (16, 4500, 32),
            (2, 5200),
            _AVX512_BF16,
            "AMD Ryzen 9 7950X specifications, 2022",
        ),
        _cpu(
            "ryzen-9-5950x",
            r"Ryzen 9 5950X\b",
            (16, 3400, 32),
            (2, 3200),
            ("avx2",),
            "AMD Ryzen 9 5950X specifications, 2020",
        ),
        GENERIC_CPU,
    )
}
"""CPUs by name."""
