import pytest
import torch

from bayplan.planner.hardware import calibrate_blocks
from bayplan.planner.hardware.calibrate_blocks import BlockStack, BlockTimes
from bayplan.planner.hardware.calibrate_compute import (
    Overheads,
    measure_accelerator_format,
    measure_cpu_format,
    measure_overheads,
    measure_product_rate,
)
from bayplan.planner.hardware.calibration_effort import BlockSize, Effort
from bayplan.planner.hardware.timing import Stopwatch
from bayplan.schemas.hardware import FormatRates

CPU = torch.device("cpu")
TINY = BlockSize(
    hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8, fewer=1, more=2
)
WIDE = BlockSize(
    hidden_size=128, intermediate_size=256, num_heads=4, num_kv_heads=2, head_dim=32, fewer=1, more=2
)
EFFORT = Effort(
    tiny=TINY,
    narrow=TINY,
    wide=WIDE,
    context=4,
    steps=1,
    repeats=1,
    matrix_side=8,
    product_rows=4,
    large_side=16,
)
NONE = Overheads(operation_ns=0, num_operations=1)


def ticking(*taken_ns: int) -> Stopwatch:
    """Return a stopwatch by which runs take these times one after the other, the last one for ever."""
    times = list(taken_ns)
    start = True

    def clock() -> int:
        nonlocal start
        start = not start
        if not start:
            return 0
        return times.pop(0) if len(times) > 1 else times[0]

    return Stopwatch(clock)


def fitted(
    narrow: BlockTimes, wide: BlockTimes, monkeypatch: pytest.MonkeyPatch, overheads: Overheads = NONE
) -> FormatRates:
    """Return the rates of a CPU on which two blocks take what they are said to."""
    known = iter((narrow, wide))
    monkeypatch.setattr(calibrate_blocks.BlockStack, "times", lambda self, context, watch: next(known))
    return measure_cpu_format("bf16", CPU, overheads, EFFORT, ticking(1000))


def times(
    weight_bytes: int, empty_ns: int, cache_bytes: int = 1000, full_ns: int | None = None
) -> BlockTimes:
    return BlockTimes(
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        empty_ns=empty_ns,
        full_ns=empty_ns + 1000 if full_ns is None else full_ns,
    )


def test_two_blocks_tell_bandwidth_and_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fitted(times(10_000, 12_000), times(110_000, 62_000), monkeypatch)
    assert found.kind == "bf16"
    assert found.memory_bytes_per_second == 2 * 10**9
    assert found.block_overhead_ns == 12_000 - 5_000


def test_operations_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    overheads = Overheads(operation_ns=100, num_operations=30)
    found = fitted(times(10_000, 12_000), times(110_000, 62_000), monkeypatch, overheads)
    assert found.block_overhead_ns == 12_000 - 5_000 - 3_000


def test_an_overhead_is_not_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    overheads = Overheads(operation_ns=1000, num_operations=30)
    found = fitted(times(10_000, 12_000), times(110_000, 62_000), monkeypatch, overheads)
    assert found.block_overhead_ns == 0


def test_noise_may_make_the_wider_block_look_no_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fitted(times(10_000, 60_000), times(110_000, 55_000), monkeypatch)
    assert found.memory_bytes_per_second == 2 * 10**9


def test_caches_of_both_blocks_tell_how_fast_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = times(10_000, 12_000, cache_bytes=4_000, full_ns=22_000)
    wide = times(110_000, 62_000, cache_bytes=8_000, full_ns=76_000)
    assert fitted(narrow, wide, monkeypatch).cache_bytes_per_second == 500_000_000


@pytest.mark.parametrize("full_ns", [12_001, 12_000, 10_000])
def test_a_cache_is_read_no_faster_than_weights(full_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = times(10_000, 12_000, cache_bytes=4_000, full_ns=full_ns)
    wide = times(110_000, 62_000, cache_bytes=8_000, full_ns=62_000)
    found = fitted(narrow, wide, monkeypatch)
    assert found.cache_bytes_per_second == found.memory_bytes_per_second


def test_a_cpu_is_really_measured() -> None:
    found = measure_cpu_format("fp16", CPU, NONE, EFFORT, Stopwatch())
    assert found.kind == "fp16"
    assert min(found.memory_bytes_per_second, found.cache_bytes_per_second, found.flops_per_second) > 1


def test_an_operation_is_its_share_of_a_small_block() -> None:
    num_operations = BlockStack(TINY, torch.float32, CPU, repeats=1).num_operations()
    # Two models, first to warm up and then again.
    found = measure_overheads(CPU, EFFORT, ticking(7, 9, 1_000, 1_000 + 50 * num_operations))
    assert found == Overheads(operation_ns=50, num_operations=num_operations)
    assert found.block_ns == 50 * num_operations


@pytest.mark.parametrize(
    ("small_ns", "large_ns", "rate"),
    [(1_000, 1_384, 10**9), (1_000, 1_000, 512_000_000), (2_000, 1_000, 512_000_000)],
)
def test_two_matrices_tell_an_accelerator_s_bandwidth(small_ns: int, large_ns: int, rate: int) -> None:
    found = measure_accelerator_format("bf16", CPU, EFFORT, ticking(small_ns, large_ns, 512))
    assert found == FormatRates(
        kind="bf16",
        memory_bytes_per_second=rate,
        cache_bytes_per_second=rate,
        flops_per_second=10**9,
        block_overhead_ns=0,
    )


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32"])
def test_operations_of_a_product_are_two_for_each_pair(kind: str) -> None:
    assert measure_product_rate(kind, CPU, EFFORT, ticking(512)) == 10**9
