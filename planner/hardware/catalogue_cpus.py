"""The catalogue's CPUs. Data only; `bayplan.planner.hardware.catalogue` says what it means."""

from __future__ import annotations

from bayplan.planner.hardware.catalogue import CpuEntry, Figure

_CPU_OVERHEAD = Figure(
    5_800,
    "0.24-0.27 ms per Llama block of negligible size and 43 operations, transformers 5.24, torch 2.13, "
    "Zen 4 core, 2026-11",
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

    Operations a cycle: 32 with two 256-bit multiply-add units (Zen 2 to 4), 64 with two of 512 bits (Zen 5,
    Xeon), by the makers' optimization guides.
    """
    num_cores, megahertz, flops_per_cycle = cores
    num_channels, megatransfers = channels
    return CpuEntry(
        name=name,
        model_pattern=pattern,
        cores=num_cores,
        bandwidth=Figure(
            num_channels * 8 * megatransfers * 10**6,
            f"{source}: {num_channels} channels, {megatransfers} MT/s",
        ),
        flops=Figure(
            num_cores * megahertz * 10**6 * flops_per_cycle,
            f"{source}: {num_cores} cores, {megahertz} MHz base clock, {flops_per_cycle} operations a cycle",
        ),
        operation_overhead=_CPU_OVERHEAD,
        features=features,
    )


GENERIC_CPU = CpuEntry(
    name="generic",
    model_pattern=r"(?!)",
    cores=2,
    bandwidth=Figure(16_000_000_000, "fp32 matrix-vector products 15.1-16.9 GB/s on 2 Zen 4 cores, 2026-11"),
    flops=Figure(160_000_000_000, "fp32 matrix product 162-179 GFLOP/s on 2 Zen 4 cores, 2026-11"),
    operation_overhead=_CPU_OVERHEAD,
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
            "epyc-7763",
            r"EPYC 7763\b",
            (64, 2450, 32),
            (8, 3200),
            ("avx2",),
            "AMD EPYC 7003 data sheet, 2021",
        ),
        _cpu(
            "epyc-7742",
            r"EPYC 7742\b",
            (64, 2250, 32),
            (8, 3200),
            ("avx2",),
            "AMD EPYC 7002 data sheet, 2019",
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
