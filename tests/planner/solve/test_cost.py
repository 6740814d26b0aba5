from __future__ import annotations

import msgspec
import pytest
from placement_problems import FORMATS, GIGA, make_cost, make_device, make_form, make_node

from bayplan.planner.solve.cost import compute_ns, duration_ns, reading_ns
from bayplan.schemas.hardware import Device, FormatRates
from bayplan.schemas.problem import BlockRun, PlainForm
from bayplan.schemas.types import Objective

KINDS = {name: name for name in FORMATS} | {"mine": "nf4"}


def time_ns(cost: BlockRun, device: Device, phase: Objective = Objective.DECODE, *, form: int = 0) -> int:
    return compute_ns(cost, cost.forms[form], device, phase, KINDS)


@pytest.mark.parametrize(
    ("amount", "per_second", "nanoseconds"),
    [
        (0, 7, 0),
        (1, GIGA, 1),
        (1, 2 * GIGA, 1),
        (3, 2 * GIGA, 2),
        (5, 3, 1_666_666_667),
        (2**53, 1, 2**53 * GIGA),
    ],
)
def test_durations_are_whole_and_never_too_short(amount: int, per_second: int, nanoseconds: int) -> None:
    assert duration_ns(amount, per_second) == nanoseconds


def test_a_block_takes_the_larger_of_reading_and_computing() -> None:
    device = make_device("gpu0", flops_per_second=2 * GIGA, block_overhead_ns=7)
    cost = make_cost(64, decode_read_bytes=100, decode_flops=100, prefill_read_bytes=100, prefill_flops=900)
    assert time_ns(cost, device) == 7 + 100
    assert time_ns(cost, device, Objective.PREFILL) == 7 + 450


def test_each_operation_has_an_overhead() -> None:
    device = make_device("gpu0", block_overhead_ns=7, operation_overhead_ns=11)
    cost = make_cost(64, decode_operations=3, prefill_operations=4)
    assert time_ns(cost, device) == 7 + 3 * 11 + 64
    assert time_ns(cost, device, Objective.PREFILL) == 7 + 4 * 11 + 128


RATES = FormatRates(
    kind="nf4",
    memory_bytes_per_second=2 * GIGA,
    cache_bytes_per_second=GIGA // 2,
    flops_per_second=GIGA // 10,
    block_overhead_ns=1000,
)
PLAIN = PlainForm(kind="bf16", prefill_read_bytes=128, decode_read_bytes=64)
TWO_FORMS = make_cost(64, others=[make_form(16, "mine", plain=PLAIN)], kv_bytes=6)


def test_a_quantized_form_saves_no_time_where_it_was_not_measured() -> None:
    assert time_ns(TWO_FORMS, make_device("gpu0"), form=1) == 64


def test_another_floating_point_form_is_read_as_it_is() -> None:
    cost = make_cost(64, others=[make_form(16)])
    assert time_ns(cost, make_device("gpu0"), form=1) == 16


def test_a_measured_form_has_its_own_rates_and_its_cache_apart() -> None:
    device = make_device("gpu0", format_rates=(RATES,), block_overhead_ns=7)
    cost = msgspec.structs.replace(TWO_FORMS, decode_flops=1)
    assert time_ns(cost, device, form=1) == 1000 + (16 - 6) // 2 + 6 * 2
    assert time_ns(cost, device, form=0) == 7 + 64


def test_measured_operations_can_take_longer_than_bytes() -> None:
    cost = msgspec.structs.replace(TWO_FORMS, decode_flops=50)
    device = make_device("gpu0", format_rates=(RATES,))
    assert time_ns(cost, device, form=1) == 1000 + 500


def test_a_block_that_computes_nothing_reads_no_cache() -> None:
    device = make_device("gpu0", format_rates=(RATES,))
    assert time_ns(TWO_FORMS, device, form=1) == 1000 + 8


def test_no_more_cache_is_read_than_is_read() -> None:
    device = make_device("gpu0", format_rates=(RATES,))
    cost = msgspec.structs.replace(TWO_FORMS, kv_bytes=10**6, decode_flops=1)
    assert time_ns(cost, device, form=1) == 1000 + 2 * 16


def test_what_the_model_is_in_may_have_been_measured_too() -> None:
    """And stands in for a quantized form that was not."""
    device = make_device("gpu0", format_rates=(msgspec.structs.replace(RATES, kind="bf16"),))
    assert [time_ns(TWO_FORMS, device, form=form) for form in (0, 1)] == [1000 + 32] * 2


def test_a_cpu_that_reads_its_disk_computes_less() -> None:
    node = make_node(copy_bytes_per_second=GIGA // 2)
    assert reading_ns(100, make_device("cpu0"), node) == 200
    assert reading_ns(100, make_device("cpu0"), make_node()) == 0
    assert reading_ns(100, make_device("gpu0"), node) == 0
