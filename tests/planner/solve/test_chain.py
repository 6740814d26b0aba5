from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_problems import FORMATS, make_chain, make_cost, make_form
from planned import EMBEDDING_BYTES, INVENTORY, MIB, make_graph, make_inputs, place, plan_streamed

from bayplan.planner.solve.chain import (
    Chain,
    ChainTie,
    chain_from_graph,
    chain_from_plan,
    fold,
    owning_block,
    unfold,
)
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Problem, place_for
from bayplan.schemas.graph import BlockExperts, ModelGraph, TiedGroup, Work
from bayplan.schemas.plan import Workload
from bayplan.schemas.problem import BlockForm, PlannedEdge
from bayplan.schemas.types import Reason

GRAPH = make_graph(num_layers=3)
WORKLOAD = Workload(batch=3, context=64, encoder_context=None, prefill_chunk=16, kv_dtype="bf16")


def chain_of(graph: ModelGraph = GRAPH, *, forms: tuple[BlockForm, ...] = (make_form(64),)) -> Chain:
    """Every block has these forms."""
    return chain_from_graph(
        graph, (forms,) * len(graph.blocks), dict.fromkeys(FORMATS, "bf16"), WORKLOAD, scratch_bytes=11
    )


def test_blocks_in_order_with_their_forms() -> None:
    forms = (make_form(64), make_form(16, "nf4"))
    chain = chain_of(forms=forms)
    assert len(chain) == 6
    assert chain.ids == (
        "model.embed",
        "model.layers.0",
        "model.layers.1",
        "model.layers.2",
        "model.norm",
        "head",
    )
    assert all(cost.forms == forms for cost in chain.costs)
    assert (chain.scratch_bytes, chain.base_activation_bytes) == (11, 4_096)
    assert [cost.resident_reason for cost in chain.costs] == [Reason.TIED, *[None] * 4, Reason.TIED]


def test_what_a_call_of_a_block_takes() -> None:
    prefill = Work(flops=1, activation_bytes=2, output_bytes=3, num_operations=4)
    decode = Work(flops=5, activation_bytes=6, output_bytes=7, num_operations=8)
    experts = BlockExperts(
        module="model.layers.0.experts",
        count=4,
        per_token=2,
        prefill_flops=6,
        decode_flops=5,
        prefill_hidden_bytes=8,
        decode_hidden_bytes=4,
    )
    block = msgspec.structs.replace(GRAPH.blocks[1], prefill=prefill, decode=decode, experts=experts)
    graph = msgspec.structs.replace(GRAPH, blocks=(block,), ties=(), edges=())
    assert chain_of(graph).costs == (
        make_cost(
            64,
            first="model.layers.0",
            kv_bytes=65_536,
            prefill_flops=1,
            decode_flops=5,
            prefill_operations=4,
            decode_operations=8,
            prefill_activation_bytes=2,
            decode_activation_bytes=6,
            prefill_output_bytes=3,
            decode_output_bytes=7,
            experts=msgspec.structs.replace(experts, module=""),
        ),
    )


def test_how_many_positions_a_call_has() -> None:
    assert (chain_of().decode_tokens, chain_of().prefill_tokens) == (3, 48)


def test_a_tie_names_the_blocks_that_use_it() -> None:
    assert chain_of().ties == (ChainTie(positions=(0, 5), num_bytes=EMBEDDING_BYTES),)


def test_edges_that_skip_blocks_are_kept() -> None:
    near = msgspec.structs.replace(GRAPH.edges[0], source="model.norm")
    graph = msgspec.structs.replace(GRAPH, edges=(near, *GRAPH.edges))
    assert chain_of(graph).edges == (
        PlannedEdge(source="model.embed", target="head", prefill_bytes=64, decode_bytes=4),
    )


IDS = ("model:own", "model.embed", "model.layers.0", "model.layers.10", "model.layers.1", "head")


@pytest.mark.parametrize(
    ("fqn", "owner"),
    [
        ("model.scale", "model:own"),
        ("model.embed.weight", "model.embed"),
        ("model.layers.1.a.b.weight", "model.layers.1"),
        ("model.layers.10.w", "model.layers.10"),
        ("head.weight", "head"),
        ("model.other.weight", None),
        ("weight", None),
    ],
)
def test_owning_block(fqn: str, owner: str | None) -> None:
    assert owning_block(IDS, fqn) == owner


def test_a_tie_within_one_block_is_in_one_position() -> None:
    group = TiedGroup(fqns=("model.layers.0.norm.weight", "model.layers.0.weight"), num_bytes=250)
    chain = chain_of(msgspec.structs.replace(GRAPH, ties=(group,)))
    assert chain.ties == (ChainTie(positions=(1,), num_bytes=256),)


@given(st.lists(st.sampled_from((64, 128)), min_size=1, max_size=12))
def test_runs_unfold_to_what_they_were_folded_from(sizes: list[int]) -> None:
    chain = make_chain([make_cost(size) for size in sizes])
    runs = fold(chain)
    assert sum(run.count for run in runs) == len(chain)
    assert [run.first for run in runs] == [
        name
        for name, size, before in zip(chain.ids, sizes, [None, *sizes[:-1]], strict=True)
        if size != before
    ]
    unfolded = unfold(runs)
    assert [msgspec.structs.replace(cost, first="") for cost in unfolded] == [
        msgspec.structs.replace(cost, first="") for cost in chain.costs
    ]


@given(st.integers(1, 9), st.integers(0, 40))
@settings(max_examples=15, deadline=None)
def test_a_plan_holds_what_solving_again_needs(num_layers: int, extra_mib: int) -> None:
    graph = make_graph(num_layers)
    budgets = {"node0/gpu0": (12 + extra_mib) * MIB, "node0/gpu1": 16 * MIB}
    inputs = make_inputs(graph, INVENTORY, budgets)
    placed, plan = place(graph, inputs)
    chain = chain_from_plan(plan)
    again = place_for(
        Problem(
            chain=chain,
            machine=Machine(plan.inventory, inputs.budgets),
            constraints=resolve(chain, plan.problem.pins, no_spill=plan.problem.no_spill),
            objective=plan.problem.objective,
            generates=plan.model.generates,
        )
    )
    assert again is not None
    assert again.solution == placed.solution


def test_the_chain_of_a_plan_is_that_of_its_problem() -> None:
    plan = plan_streamed()
    chain = chain_from_plan(plan)
    assert chain.ids == tuple(block.id for block in plan.blocks)
    assert fold(chain) == plan.problem.runs
    assert chain.kinds == {"bf16": "bf16", "fp32": "fp32"}
    assert chain.ties == (ChainTie(positions=(0, 10), num_bytes=EMBEDDING_BYTES),)
    assert chain.edges == plan.problem.edges
    assert (chain.base_activation_bytes, chain.scratch_bytes) == (4_096, 65_536)
    assert (chain.decode_tokens, chain.prefill_tokens) == (1, 64)
