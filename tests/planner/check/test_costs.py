from __future__ import annotations

import pytest
from changed_plans import replace, with_problem
from hypothesis import HealthCheck, given, settings
from placement_problems import make_cost, make_device, make_form
from planned import plan_resident
from sound_plans import sound_plans

from bayplan.planner.check.basis import PlacedBlock, Placement
from bayplan.planner.check.costs import call_ns, experts_ns
from bayplan.planner.solve.cost import compute_ns
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.hardware import Device, FormatRates
from bayplan.schemas.plan import Format, Plan
from bayplan.schemas.problem import PlainForm
from bayplan.schemas.types import Objective

EXPERTS = BlockExperts(
    module="",
    count=8,
    per_token=2,
    prefill_flops=300,
    decode_flops=30,
    prefill_hidden_bytes=0,
    decode_hidden_bytes=0,
)
UNQUANTIZED = PlainForm(kind="bf16", prefill_read_bytes=2000, decode_read_bytes=1000, unit_bytes=100)
RUN = make_cost(
    1000,
    others=(
        make_form(250, "nf4", unit_bytes=25, plain=UNQUANTIZED),
        make_form(500, "int8", unit_bytes=50, plain=UNQUANTIZED),
    ),
    unit_bytes=100,
    kv_bytes=400,
    decode_flops=100,
    prefill_flops=10_000,
    decode_operations=3,
    prefill_operations=5,
    experts=EXPERTS,
)
PLAN = replace(
    with_problem(plan_resident(), runs=(RUN,), edges=()),
    formats={name: Format(kind=name) for name in ("bf16", "nf4", "int8")},
    ties=(),
)
DEVICE = make_device("gpu0", block_overhead_ns=7, operation_overhead_ns=11)
MEASURED = FormatRates(
    kind="nf4",
    memory_bytes_per_second=2 * 10**9,
    cache_bytes_per_second=10**8,
    flops_per_second=10**10,
    block_overhead_ns=13,
)


def entry(form: int) -> PlacedBlock:
    own = RUN.forms[form]
    return PlacedBlock(index=0, block=replace(PLAN.blocks[0], format=own.format), run=RUN, form=own)


def call(form: int, device: Device, *, is_decode: bool = True, plan: Plan = PLAN) -> int:
    return call_ns(Placement(plan, (entry(form),)), entry(form), device, is_decode=is_decode)


def products(form: int, device: Device, *, is_decode: bool = True) -> int:
    return experts_ns(Placement(PLAN, (entry(form),)), entry(form), device, is_decode=is_decode)


def test_overhead_and_the_longer_of_reading_and_computing() -> None:
    assert call(0, DEVICE) == 7 + 3 * 11 + 1000
    assert call(0, DEVICE, is_decode=False) == 7 + 5 * 11 + 10_000
    assert call(0, replace(DEVICE, memory_bytes_per_second=3 * 10**9)) == 7 + 3 * 11 + 334


def test_a_quantized_kind_that_was_not_measured_saves_no_time() -> None:
    assert call(1, DEVICE) == call(2, DEVICE) == call(0, DEVICE)


def test_a_plain_kind_that_was_not_measured_reads_its_own_bytes() -> None:
    plain = replace(RUN.forms[2], plain=None)
    block = replace(entry(2), form=plain)
    assert call_ns(Placement(PLAN, (block,)), block, DEVICE, is_decode=True) == 7 + 3 * 11 + 500


def test_a_measured_kind_has_its_own_rates_and_reads_its_cache_at_another() -> None:
    device = replace(DEVICE, format_rates=(MEASURED,))
    # Of the 250 bytes that are read, all could be cache.
    assert call(1, device) == 13 + 3 * 11 + 2500
    assert call(1, device, is_decode=False) == 13 + 5 * 11 + 50 + 4000
    assert call(0, device) == 7 + 3 * 11 + 1000


def test_of_several_batches_a_call_reads_the_cache_of_one() -> None:
    device = replace(DEVICE, format_rates=(MEASURED,))
    plan = replace(PLAN, workload=replace(PLAN.workload, batches_in_flight=4))
    assert call(1, device, plan=plan) == 13 + 3 * 11 + 75 + 1000


def test_a_block_that_computes_nothing_reads_no_cache() -> None:
    device = replace(DEVICE, format_rates=(MEASURED,))
    idle = replace(RUN, decode_flops=0)
    block = replace(entry(1), run=idle)
    assert call_ns(Placement(PLAN, (block,)), block, device, is_decode=True) == 13 + 3 * 11 + 125


def test_the_products_of_experts() -> None:
    """One token needs two of eight experts, a chunk of 64 tokens all of them but one in a million."""
    assert products(0, DEVICE) == 200
    assert products(0, DEVICE, is_decode=False) == 800
    assert products(1, DEVICE) == products(0, DEVICE)
    assert products(1, replace(DEVICE, format_rates=(MEASURED,))) == 25
    assert products(0, replace(DEVICE, memory_bytes_per_second=10**10)) == 30


def test_a_block_without_experts_has_no_such_products() -> None:
    block = replace(entry(0), run=replace(RUN, experts=None))
    assert experts_ns(Placement(PLAN, (block,)), block, DEVICE, is_decode=True) == 0


@pytest.mark.parametrize("phase", [Objective.DECODE, Objective.PREFILL])
@given(plan=sound_plans())
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
def test_the_searchs_costs_are_the_same(phase: Objective, plan: Plan) -> None:
    kinds = {name: own.kind for name, own in plan.formats.items()}
    for run in plan.problem.runs:
        for form in run.forms:
            block = PlacedBlock(index=0, block=plan.blocks[0], run=run, form=form)
            one_batch = replace(run, kv_bytes=run.kv_bytes // plan.workload.batches_in_flight)
            for device in plan.inventory.devices:
                own = call_ns(Placement(plan, (block,)), block, device, is_decode=phase is Objective.DECODE)
                assert own == compute_ns(one_batch, form, device, phase, kinds)
