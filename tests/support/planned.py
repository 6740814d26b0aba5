"""A hand-made model and the plan that the planner makes for it: what checks and predictions are tested on."""

from __future__ import annotations

from collections.abc import Mapping

import form_graphs
import msgspec
from placement_problems import make_device, make_inventory, make_link

from bayplan.planner.assemble import Inputs, assemble
from bayplan.planner.block_forms import block_forms
from bayplan.planner.format_choice import parse_request
from bayplan.planner.formats import plan_formats, planned_forms
from bayplan.planner.hardware.budget import device_budgets
from bayplan.planner.solve.chain import chain_from_graph
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Placed, Problem, place_for
from bayplan.planner.solve.predict import predict
from bayplan.schemas.graph import Edge, GraphBlock, ModelGraph, TensorRecord, TiedGroup, Work
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Checkpoint, Model, Plan, Shard, Workload
from bayplan.schemas.problem import Pin
from bayplan.schemas.strict_json import sha256_digest
from bayplan.schemas.types import Objective, Reason

MIB = 2**20
EMBEDDING_BYTES = 4 * MIB
LAYER_BYTES = 3 * MIB + 256
"""Weight of 3 MiB, norm of 250 bytes in 256."""

INVENTORY = make_inventory(
    [make_device("gpu0", block_overhead_ns=5_000), make_device("gpu1", block_overhead_ns=5_000)],
    [
        make_link("node0/gpu0", rate=300_000_000, latency_ns=1_000),
        make_link("node0/gpu1", rate=300_000_000, latency_ns=1_000),
    ],
    disk_rate=250_000_000,
)


WIDE_BYTES = 4 * MIB
"""What the norm hands on for a token: so much that a head on the first device would not pay."""


def make_graph(num_layers: int = 8, *, wide_bytes: int = WIDE_BYTES) -> ModelGraph:
    """An embedding tied to the head, layers with a cache and a buffer, a norm."""
    embedding = GraphBlock(
        id="model.embed",
        class_name="Embedding",
        tensors=(_tensor("model.embed.weight", EMBEDDING_BYTES, dtype="bf16"),),
        kv_bytes=0,
        prefill=_work(0, 16_384),
        decode=_work(0, 1_024),
        resident_reason=Reason.TIED,
    )
    norm = GraphBlock(
        id="model.norm",
        class_name="Norm",
        tensors=(_tensor("model.norm.weight", 250, dtype="bf16"),),
        kv_bytes=0,
        prefill=_work(1_000, 16_384),
        decode=msgspec.structs.replace(_work(100, 1_024), output_bytes=wide_bytes),
    )
    head = GraphBlock(
        id="head",
        class_name="Linear",
        tensors=(),
        kv_bytes=0,
        prefill=_work(64 * EMBEDDING_BYTES, 8_192),
        decode=_work(EMBEDDING_BYTES, 8_192),
        resident_reason=Reason.TIED,
    )
    return ModelGraph(
        class_name="HandMade",
        blocks=(embedding, *(_layer(number) for number in range(num_layers)), norm, head),
        edges=(Edge(source="model.embed", target="head", prefill_bytes=64, decode_bytes=4),),
        ties=(TiedGroup(fqns=("head.weight", "model.embed.weight"), num_bytes=EMBEDDING_BYTES),),
        tree_digest=sha256_digest(b"tree"),
        num_params=(EMBEDDING_BYTES + num_layers * LAYER_BYTES) // 2,
        generates=True,
        max_context=64,
        traced=True,
        base_activation_bytes=4_096,
    )


def _layer(number: int) -> GraphBlock:
    name = f"model.layers.{number}"
    return GraphBlock(
        id=name,
        class_name="Layer",
        tensors=(
            _tensor(f"{name}.weight", 3 * MIB, dtype="bf16"),
            _tensor(f"{name}.norm.weight", 250, dtype="fp32"),
            _tensor(f"{name}.mask", 100, dtype="bool", is_buffer=True),
        ),
        kv_bytes=65_536,
        prefill=_work(64 * 3 * MIB, 16_384),
        decode=_work(3 * MIB, 1_024),
    )


def _tensor(fqn: str, num_bytes: int, *, dtype: str, is_buffer: bool = False) -> TensorRecord:
    width = {"bf16": 2, "fp32": 4, "bool": 1}[dtype]
    return TensorRecord(
        fqn=fqn,
        shape=(num_bytes // width,),
        dtype=dtype,
        num_bytes=num_bytes,
        is_buffer=is_buffer,
        is_persistent=not is_buffer,
    )


def _work(flops: int, output_bytes: int) -> Work:
    return Work(flops=flops, activation_bytes=2 * output_bytes, output_bytes=output_bytes)


def make_inputs(
    graph: ModelGraph,
    inventory: Inventory,
    max_memory: Mapping[str, int],
    *,
    pins: tuple[Pin, ...] = (),
    no_spill: bool = False,
    objective: Objective = Objective.DECODE,
    prefill_chunk: int = 64,
) -> Inputs:
    formats, format_rules, _ = plan_formats(graph, "bf16")
    return Inputs(
        producer="bayplan 0.1.0",
        model=Model(
            source="hand/made",
            revision=None,
            class_name=graph.class_name,
            library="transformers",
            library_version="5.20.0",
            trust_remote_code=False,
            config_digest=sha256_digest(b"config"),
            attn_implementation="sdpa",
            experts_implementation=None,
            dtype="bf16",
            tree_digest=graph.tree_digest,
            num_params=graph.num_params,
            generates=graph.generates,
            traced=graph.traced,
            checkpoint=Checkpoint(
                shards=(
                    Shard(
                        file="model.safetensors",
                        num_bytes=EMBEDDING_BYTES + 25 * MIB,
                        header_digest=sha256_digest(b"header"),
                    ),
                )
            ),
        ),
        workload=Workload(
            batch=1, context=64, encoder_context=None, prefill_chunk=prefill_chunk, kv_dtype="bf16"
        ),
        inventory=inventory,
        budgets=device_budgets(inventory, max_memory),
        max_memory=dict(max_memory),
        objective=objective,
        pins=pins,
        no_spill=no_spill,
        no_split=(),
        formats=formats,
        format_rules=format_rules,
        format_names=("bf16",),
        is_auto=False,
        rules=(),
        ties=graph.ties,
    )


def place(graph: ModelGraph, inputs: Inputs) -> tuple[Placed, Plan]:
    """Return the placement of a feasible problem and its plan."""
    forms = planned_forms(form_graphs.read_model(graph), parse_request(None))
    chain = chain_from_graph(
        graph,
        block_forms(forms, inputs.workload),
        {name: entry.kind for name, entry in forms.formats.items()},
        inputs.workload,
        scratch_bytes=65_536,
    )
    placed = place_for(
        Problem(
            chain=chain,
            machine=Machine(inputs.inventory, inputs.budgets),
            constraints=resolve(chain, inputs.pins, no_spill=inputs.no_spill),
            objective=inputs.objective,
            generates=graph.generates,
        )
    )
    assert placed is not None
    return placed, assemble(inputs, placed, predict(placed, inputs.workload, generates=graph.generates))


def plan_streamed() -> Plan:
    """Two accelerators of 14 MiB, which must stream part of eight layers."""
    graph = make_graph()
    max_memory = {"node0/gpu0": 14 * MIB, "node0/gpu1": 14 * MIB}
    return place(graph, make_inputs(graph, INVENTORY, max_memory))[1]


def plan_resident() -> Plan:
    """The same with all the room there is."""
    graph = make_graph()
    return place(graph, make_inputs(graph, INVENTORY, {}))[1]


def without(plan: Plan, **fields: object) -> Plan:
    """Return `plan` with other values in top-level fields."""
    return msgspec.structs.replace(plan, **fields)
