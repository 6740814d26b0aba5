from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_problems import make_chain, make_cost
from planned import (
    EMBEDDING_BYTES,
    INVENTORY,
    LAYER_BYTES,
    MIB,
    make_graph,
    make_inputs,
    place,
    plan_streamed,
)

from bayplan.planner.solve.chain import (
    ChainTie,
    chain_from_graph,
    chain_from_plan,
    fold,
    owning_block,
    unfold,
)
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.placement import Solver
from bayplan.schemas.graph import GraphBlock, TensorRecord, TiedGroup, Work
from bayplan.schemas.plan import PlannedEdge
from bayplan.schemas.types import Reason

GRAPH = make_graph(num_layers=3)


def test_blocks_in_order_with_aligned_bytes() -> None:
    chain = chain_from_graph(GRAPH, scratch_bytes=11)
    assert len(chain) == 6
    assert chain.ids == (
        "model.embed",
        "model.layers.0",
        "model.layers.1",
        "model.layers.2",
        "model.norm",
        "head",
    )
    layer = chain.costs[1]
    assert (layer.parameter_bytes, layer.buffer_bytes, layer.kv_bytes) == (LAYER_BYTES, 128, 65_536)
    assert chain.exact_bytes[1] == 3 * MIB + 250 + 100
    assert (chain.scratch_bytes, chain.base_activation_bytes) == (11, 4_096)
    assert [cost.resident_reason for cost in chain.costs] == [Reason.TIED, *[None] * 4, Reason.TIED]


def test_a_tie_names_the_blocks_that_use_it() -> None:
    chain = chain_from_graph(GRAPH, scratch_bytes=0)
    assert chain.ties == (ChainTie(positions=(0, 5), num_bytes=EMBEDDING_BYTES),)


def test_edges_are_kept() -> None:
    chain = chain_from_graph(GRAPH, scratch_bytes=0)
    assert chain.edges == (
        PlannedEdge(source="model.embed", target="head", prefill_bytes=64, decode_bytes=4),
    )


def test_what_a_token_reads() -> None:
    """A table its rows, a layer its weights and cache, the head the tied weight, a norm what it uses."""
    embed, layer, *_, norm, head = chain_from_graph(GRAPH, scratch_bytes=0).costs
    assert embed.decode_read_bytes == 1_024
    assert layer.decode_read_bytes == 3 * MIB + 250 + 65_536
    assert norm.decode_read_bytes == 100 // 2 * 2
    assert (head.parameter_bytes, head.decode_read_bytes) == (0, EMBEDDING_BYTES)


def mixture(flops: int) -> int:
    block = GraphBlock(
        id="experts",
        class_name="Experts",
        tensors=(TensorRecord(fqn="experts.w", shape=(1000,), dtype="fp32", num_bytes=4000),),
        kv_bytes=5,
        prefill=Work(flops=0, activation_bytes=0, output_bytes=0),
        decode=Work(flops=flops, activation_bytes=0, output_bytes=70),
    )
    graph = msgspec.structs.replace(GRAPH, blocks=(block,), ties=(), edges=())
    return chain_from_graph(graph, scratch_bytes=0).costs[0].decode_read_bytes


@pytest.mark.parametrize(
    ("flops", "read_bytes"), [(0, 70), (2, 4 + 5), (500, 1000 + 5), (2000, 4005), (10**6, 4005)]
)
def test_no_more_weights_are_read_than_operations_can_use(flops: int, read_bytes: int) -> None:
    assert mixture(flops) == read_bytes


@pytest.mark.parametrize(
    ("flops", "read_bytes"), [(2, 1 + 5), (500, 125 + 5), (2000, 500 + 5), (2400, 600 + 5), (10**6, 664 + 5)]
)
def test_a_packed_weight_counts_by_the_weights_it_holds(flops: int, read_bytes: int) -> None:
    """Its scales, which hold none, are no weights that an operation could use."""
    packed = TensorRecord(fqn="experts.w", shape=(500,), dtype="uint8", num_bytes=500, num_values=1000)
    scales = TensorRecord(fqn="experts.absmax", shape=(41,), dtype="fp32", num_bytes=164, num_values=0)
    block = GraphBlock(
        id="experts",
        class_name="Experts",
        tensors=(packed, scales),
        kv_bytes=5,
        prefill=Work(flops=0, activation_bytes=0, output_bytes=0),
        decode=Work(flops=flops, activation_bytes=0, output_bytes=70),
    )
    graph = msgspec.structs.replace(GRAPH, blocks=(block,), ties=(), edges=())
    assert chain_from_graph(graph, scratch_bytes=0).costs[0].decode_read_bytes == read_bytes


def test_a_block_without_parameters() -> None:
    block = GraphBlock(
        id="mix",
        class_name="Mix",
        tensors=(),
        kv_bytes=3,
        prefill=Work(flops=9, activation_bytes=8, output_bytes=7),
        decode=Work(flops=2, activation_bytes=5, output_bytes=4),
    )
    graph = msgspec.structs.replace(GRAPH, blocks=(block,), ties=(), edges=())
    (cost,) = chain_from_graph(graph, scratch_bytes=0).costs
    assert (cost.parameter_bytes, cost.prefill_read_bytes, cost.decode_read_bytes) == (0, 3, 3)


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
    chain = chain_from_graph(msgspec.structs.replace(GRAPH, ties=(group,)), scratch_bytes=0)
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
@settings(max_examples=30, deadline=None)
def test_a_plan_holds_what_solving_again_needs(num_layers: int, extra_mib: int) -> None:
    graph = make_graph(num_layers)
    budgets = {"node0/gpu0": (12 + extra_mib) * MIB, "node0/gpu1": 16 * MIB}
    inputs = make_inputs(graph, INVENTORY, budgets)
    placement, plan = place(graph, inputs)
    chain = chain_from_plan(plan)
    constraints = resolve(chain, plan.problem.pins, no_spill=plan.problem.no_spill)
    again = Solver(chain, plan.inventory, inputs.budgets, constraints, plan.problem.objective).solve()
    assert again == placement


def test_the_chain_of_a_plan_is_that_of_the_graph() -> None:
    from_plan = chain_from_plan(plan_streamed())
    from_graph = chain_from_graph(make_graph(), scratch_bytes=65_536)
    for field in ("ids", "exact_bytes", "ties", "edges", "base_activation_bytes", "scratch_bytes"):
        assert getattr(from_plan, field) == getattr(from_graph, field)
    assert fold(from_plan) == fold(from_graph)
