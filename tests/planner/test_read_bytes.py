from __future__ import annotations

from form_graphs import linear, record
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planner.read_bytes import UsedWeights, read_bytes
from bayplan.schemas.graph import Work

WORK = Work(flops=2 * 8 * 64 * 64, activation_bytes=0, output_bytes=1024)


def test_nothing_computes_more_than_it_has() -> None:
    parameters = [linear("w", 64, 64), record("n", (64,), "fp32")]
    assert read_bytes(WORK, UsedWeights(parameters, tied_bytes=100), 7) == 8192 + 256 + 100 + 7


def test_a_table_reads_the_rows_that_it_hands_out() -> None:
    work = Work(flops=0, activation_bytes=0, output_bytes=300)
    assert read_bytes(work, UsedWeights([linear("w", 64, 64)]), 7) == 300


def test_tied_weights_are_the_last_that_are_counted() -> None:
    """Nobody knows how wide they are: four bytes at most."""
    work = Work(flops=2 * 80, activation_bytes=0, output_bytes=0)
    assert read_bytes(work, UsedWeights([record("n", (64,), "bf16")], tied_bytes=1000), 0) == 128 + 16 * 4
    assert read_bytes(work, UsedWeights([], tied_bytes=1000), 0) == 320


@given(
    st.integers(0, 10**4), st.lists(st.tuples(st.integers(1, 99), st.sampled_from(("fp32", "bf16", "int8"))))
)
def test_no_set_of_weights_that_the_work_allows_is_larger(count: int, sizes: list[tuple[int, str]]) -> None:
    parameters = [record(f"w{index}", (size,), dtype) for index, (size, dtype) in enumerate(sizes)]
    widths = sorted(
        (tensor.num_bytes // tensor.shape[0] for tensor in parameters for _ in range(tensor.shape[0])),
        reverse=True,
    )
    work = Work(flops=2 * count, activation_bytes=0, output_bytes=0)
    assert read_bytes(work, UsedWeights(parameters), 0) == sum(widths[:count])


def test_experts_read_as_many_as_their_own_work_allows() -> None:
    """Though the rest of the block works far more, such as on every position of a cache."""
    weights = UsedWeights([linear("q", 64, 64)], [linear("experts", 640, 64)], tied_bytes=0)
    work = Work(flops=10**9, activation_bytes=0, output_bytes=0)
    assert read_bytes(work, weights, 7, experts_flops=2 * 2 * 64 * 64) == 8192 + 2 * 8192 + 7
    assert read_bytes(work, weights, 0, experts_flops=10**9) == 10 * 8192
    assert read_bytes(Work(flops=0, activation_bytes=0, output_bytes=9), weights, 0) == 9
