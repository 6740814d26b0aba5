"""Plans as the planner makes them for drawn problems: all that a plan may hold occurs in them."""

from __future__ import annotations

import msgspec
from hypothesis import assume
from hypothesis import strategies as st
from placement_problems import MIB, PlacementProblem, placement_problems
from planned import make_graph, make_inputs

from bayplan.planner.assemble import Inputs, assemble
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Problem, place_for
from bayplan.planner.solve.predict import predict
from bayplan.schemas.graph import BlockExperts, TiedGroup
from bayplan.schemas.hardware import Device, FormatRates, Inventory
from bayplan.schemas.plan import Format, Plan
from bayplan.schemas.problem import BlockRun
from bayplan.schemas.types import Objective

replace = msgspec.structs.replace


@st.composite
def sound_plans(draw: st.DrawFn, *, max_blocks: int = 6) -> Plan:
    """Draw a problem that has a solution, and return its plan."""
    drawn = draw(placement_problems(max_blocks=max_blocks))
    context, chunk, batch = draw(st.sampled_from(((64, 64, 1), (64, 24, 1), (4, 0, 1), (24, 2, 2))))
    chain = drawn.chain
    if draw(st.booleans()):
        chain = draw(_with_experts(chain))
    chain = replace(chain, decode_tokens=batch, prefill_tokens=batch * chunk)
    problem = replace(drawn, chain=chain, inventory=draw(_with_rates(drawn.inventory)))
    objective = draw(st.sampled_from(Objective))
    generates = objective is Objective.DECODE or draw(st.sampled_from((True, True, False)))
    inputs = _inputs(problem, objective, generates=generates)
    workload = replace(inputs.workload, context=context, prefill_chunk=chunk, batch=batch)
    plan = plan_for(problem, replace(inputs, workload=workload))
    assume(plan is not None)
    assert plan is not None
    return plan


def plan_for(drawn: PlacementProblem, inputs: Inputs) -> Plan | None:
    """Return the plan for a drawn problem; None: it has no solution."""
    problem = Problem(
        chain=drawn.chain,
        machine=Machine(drawn.inventory, drawn.budgets),
        constraints=resolve(drawn.chain, drawn.pins, no_spill=drawn.no_spill),
        objective=inputs.objective,
        generates=inputs.model.generates,
        is_auto=drawn.is_auto,
        splits_experts=True,
    )
    placed = place_for(problem)
    if placed is None:
        return None
    prediction = predict(placed, inputs.workload, generates=inputs.model.generates)
    return assemble(inputs, placed, prediction)


def _inputs(drawn: PlacementProblem, objective: Objective, *, generates: bool) -> Inputs:
    inputs = make_inputs(make_graph(), drawn.inventory, {}, objective=objective)
    return replace(
        inputs,
        model=replace(inputs.model, generates=generates),
        budgets=drawn.budgets,
        max_memory=drawn.budgets,
        pins=drawn.pins,
        no_spill=drawn.no_spill,
        formats={name: Format(kind=kind) for name, kind in drawn.chain.kinds.items()},
        format_names=tuple(drawn.chain.kinds),
        format_rules=(),
        is_auto=drawn.is_auto,
        ties=tuple(
            TiedGroup(
                fqns=tuple(f"{drawn.chain.ids[position]}.weight{number}" for position in tie.positions),
                num_bytes=tie.num_bytes,
            )
            for number, tie in enumerate(drawn.chain.ties)
        ),
    )


@st.composite
def _with_experts(draw: st.DrawFn, chain: Chain) -> Chain:
    """Give some blocks experts, alike where the blocks are."""
    known: dict[BlockRun, BlockRun] = {}
    for cost in chain.costs:
        kind = replace(cost, first="")
        if kind not in known:
            known[kind] = draw(_expert_block(cost)) if draw(st.booleans()) else cost
    costs = tuple(replace(known[replace(cost, first="")], first=cost.first) for cost in chain.costs)
    return replace(chain, costs=costs)


@st.composite
def _expert_block(draw: st.DrawFn, cost: BlockRun) -> BlockRun:
    count = draw(st.sampled_from((4, 8)))
    share = draw(st.sampled_from((1, 2)))
    forms = tuple(
        replace(form, unit_bytes=form.parameter_bytes // (share * count) // 64 * 64) for form in cost.forms
    )
    hidden_bytes = draw(st.sampled_from((0, 4096)))
    experts = BlockExperts(
        module="",
        count=count,
        per_token=draw(st.integers(1, 2)),
        prefill_flops=cost.prefill_flops // 2,
        decode_flops=cost.decode_flops // 2,
        prefill_hidden_bytes=2 * hidden_bytes,
        decode_hidden_bytes=hidden_bytes,
    )
    return replace(cost, forms=forms, experts=experts, prefill_operations=7, decode_operations=5)


@st.composite
def _with_rates(draw: st.DrawFn, inventory: Inventory) -> Inventory:
    """Give some devices measured rates and a cost of operations."""
    devices = tuple(
        draw(_measured(device)) if draw(st.booleans()) else device for device in inventory.devices
    )
    return replace(inventory, devices=devices)


@st.composite
def _measured(draw: st.DrawFn, device: Device) -> Device:
    rates = st.sampled_from((10**9, 3 * 10**8, 700_000_001))
    kinds = draw(st.sets(st.sampled_from(("bf16", "int8", "nf4"))))
    measured = tuple(
        FormatRates(
            kind=kind,
            memory_bytes_per_second=draw(rates),
            cache_bytes_per_second=draw(rates),
            flops_per_second=draw(rates),
            block_overhead_ns=draw(st.sampled_from((0, MIB // 4))),
        )
        for kind in sorted(kinds)
    )
    return replace(device, format_rates=measured, operation_overhead_ns=draw(st.sampled_from((0, 1_000))))
