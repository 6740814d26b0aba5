"""The catalogue's accelerators. Data only; `bayplan.planner.hardware.catalogue` says what it means.

A device whose figures could not be traced to a datasheet or a measurement is left out rather than guessed.
"""

from __future__ import annotations

from bayplan.planner.hardware.catalogue import AcceleratorEntry, Figure
from bayplan.schemas.types import Backend

_GIB = 2**30
_GB = 10**9
_TFLOPS = 10**12

_EAGER_OVERHEAD = Figure(
    9_800,
    "0.41-0.44 ms per block, measured less memory-bound decode on H100 and L4 (arXiv 2605.30571), "
    "of a decoder's 43 operations in transformers 5.24",
)
_SWITCHED_PAIR = Figure(
    2, "pairs share a PCIe switch: topology of 8 A100 SXM (NVIDIA nvbandwidth issue 53, 2025)"
)


def _accelerator(
    name: str,
    device_name: str,
    memory: tuple[float, str],
    bandwidth: tuple[int, str],
    flops: tuple[float, str],
    links: tuple[str, str | None],
    sharers: Figure | None = None,
) -> AcceleratorEntry:
    """Return a CUDA or ROCm entry; memory in GiB, bandwidth in GB/s, operations in TFLOP/s."""
    return AcceleratorEntry(
        name=name,
        device_name=device_name,
        backend=Backend.CUDA,
        memory=Figure(int(memory[0] * _GIB), memory[1]),
        bandwidth=Figure(bandwidth[0] * _GB, bandwidth[1]),
        flops=Figure(round(flops[0] * _TFLOPS), flops[1]),
        operation_overhead=_EAGER_OVERHEAD,
        host_link=links[0],
        host_link_sharers=sharers,
        peer_link=links[1],
    )


_H100 = "NVIDIA H100 datasheet, 2023"
_A100 = "NVIDIA A100 datasheet, 2021"
_NVIDIA_SMI = "nvidia-smi totals in modal-client pull request 2797, 2025; torch shows up to 1.1 GiB less"
_MEMORY_80GB = (79.0, f"81559 MiB (H100) and 81920 MiB (A100): {_NVIDIA_SMI}")
_MEMORY_40GB = (39.0, f"40960 MiB: {_NVIDIA_SMI}; 39.50 GiB in a torch report (CoSeR issue 10, 2025)")
_MEMORY_23028MIB = (
    21.75,
    f"23028 MiB (A10) and 23034 MiB (L4): {_NVIDIA_SMI}; 22.03 GiB (evo2 issue 190, 2025)",
)
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
            _SWITCHED_PAIR,
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
            _SWITCHED_PAIR,
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
            (23.5, "as rtx-4090, another board of 24 GB: 23.52 GiB (SoulX-FlashTalk issue 5, 2026)"),
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
            memory=Figure(
                96 * _GIB,
                "under the 107.52 GiB that Metal recommends on 128 GiB (ds4 pull request 893, 2026)",
            ),
            bandwidth=Figure(546 * _GB, "Apple MacBook Pro specifications, 2024 (40-core GPU)"),
            flops=Figure(
                12_500_000_000_000,
                "bf16 product of 4096 x 4096 matrices in torch 2.8, 12.51 TFLOP/s "
                "(torch-performance-test-data issue 65, 2025)",
            ),
            operation_overhead=_EAGER_OVERHEAD,
            host_link="unified-m4-max",
            host_memory_bytes=128 * _GIB,
        ),
    )
}
"""Accelerators by name."""
