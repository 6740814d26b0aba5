"""One valid plan that uses every field of the format, and an inventory and a report to go with it."""

from __future__ import annotations

from bayplan.schemas.codec import sealed
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.hardware import Device, Disk, FormatRates, Inventory, Link, Node
from bayplan.schemas.plan import (
    Block,
    Checkpoint,
    Experts,
    Format,
    FormatRule,
    Ledger,
    Model,
    Operation,
    Plan,
    PlannedDevice,
    PlannedHost,
    Schedule,
    Shard,
    Summary,
    TensorRule,
    Tie,
    Workload,
)
from bayplan.schemas.problem import BlockForm, BlockRun, Pin, PlainForm, PlannedEdge, Problem
from bayplan.schemas.report import Figures, RealizedBlock, Report
from bayplan.schemas.strict_json import sha256_digest
from bayplan.schemas.types import Backend, BoundClass, Objective, Reason, Residency, SolverStatus

KIB = 2**10
MIB = 2**20
GIB = 2**30

INVENTORY = Inventory(
    format_version="1.0",
    source="declared",
    nodes=(
        Node(
            id="node0",
            host_memory_bytes=64 * GIB,
            host_reserve_bytes=4 * GIB,
            disk=Disk(read_bytes_per_second=7_000_000_000, latency_ns=80_000),
            pinned_memory_bytes=32 * GIB,
            copy_bytes_per_second=9_000_000_000,
        ),
        Node(id="node1", host_memory_bytes=8 * GIB, host_reserve_bytes=0),
    ),
    devices=(
        Device(
            id="node0/gpu0",
            kind="test-gpu",
            backend=Backend.CUDA,
            capacity_bytes=8 * GIB,
            reserve_bytes=GIB,
            memory_bytes_per_second=900_000_000_000,
            flops_per_second=80_000_000_000_000,
            block_overhead_ns=40_000,
        ),
        Device(
            id="node0/cpu",
            kind="test-cpu",
            backend=Backend.CPU,
            capacity_bytes=64 * GIB,
            reserve_bytes=4 * GIB,
            memory_bytes_per_second=40_000_000_000,
            flops_per_second=900_000_000_000,
            block_overhead_ns=60_000,
            operation_overhead_ns=4_000,
            shares_host_memory=True,
            features=("avx2", "avx512_bf16"),
            format_rates=(
                FormatRates(
                    kind="bf16",
                    memory_bytes_per_second=30_000_000_000,
                    cache_bytes_per_second=10_000_000_000,
                    flops_per_second=700_000_000_000,
                    block_overhead_ns=50_000,
                ),
            ),
        ),
    ),
    links=(
        Link(
            source="node0",
            target="node0/gpu0",
            bytes_per_second=25_000_000_000,
            latency_ns=9_000,
            group="pcie0",
        ),
        Link(source="node0/cpu", target="node0/gpu0", bytes_per_second=24_000_000_000, latency_ns=9_000),
    ),
)

REPORT = Report(
    format_version="1.0",
    plan_digest=sha256_digest(b"plan"),
    honoured=True,
    content_verified=True,
    token_ids=((5, 6, 7), (8,)),
    measured=Figures(load_ns=9, first_output_ns=8, decode_ns=7, peak_bytes={"node0/cpu": 6}),
    predicted=Figures(load_ns=10, first_output_ns=None, decode_ns=None, peak_bytes={"node0/cpu": 60}),
    blocks=(
        RealizedBlock(
            id="model.layers.0",
            device="node0/cpu",
            residency=Residency.STREAM_DISK,
            num_bytes=1,
            visits=2,
            read_bytes=3,
            read_ns=4,
            wait_ns=5,
        ),
    ),
    unused=("embeddings.position_ids",),
    notes=("content unverified",),
)


def maximal_plan() -> Plan:
    """Return a mixture of experts over an accelerator and a CPU, with every optional field in use."""
    return sealed(
        Plan(
            format_version="1.0",
            semantics=1,
            complete=True,
            applyable=True,
            errored=False,
            producer="bayplan 0.1.0",
            digest=sha256_digest(b"renewed by sealed"),
            model=_model(),
            workload=Workload(
                batch=2,
                context=64,
                encoder_context=32,
                prefill_chunk=16,
                kv_dtype="bf16",
                logits="all",
                batches_in_flight=2,
            ),
            inventory=INVENTORY,
            formats=_formats(),
            format_rules=(
                FormatRule(pattern="*.norm.weight", format="fp32"),
                FormatRule(pattern="model.layers.#.router.*", format="bf16", within="nf4-a"),
            ),
            rules=_rules(),
            devices=_devices(),
            hosts=(
                PlannedHost(
                    id="node0", budget_bytes=60 * GIB, pinned_budget_bytes=32 * GIB, waiting_bytes=2 * MIB
                ),
                PlannedHost(id="node1", budget_bytes=8 * GIB, pinned_budget_bytes=8 * GIB, waiting_bytes=0),
            ),
            blocks=_blocks(),
            ties=(
                Tie(
                    fqns=("lm_head.weight", "model.embed_tokens.weight"),
                    num_bytes=MIB,
                    policy="replicated",
                    devices=("node0/gpu0", "node0/cpu"),
                ),
                Tie(
                    fqns=("model.norm.bias", "model.norm.scale"),
                    num_bytes=512,
                    policy="co-located",
                    devices=("node0/cpu",),
                ),
            ),
            schedule=(
                Schedule(
                    device="node0/gpu0",
                    num_slots=2,
                    slot_bytes=2 * MIB,
                    stream_order=("model.layers.1", "model.layers.2"),
                ),
                Schedule(
                    device="node0/cpu", num_slots=1, slot_bytes=3 * MIB, stream_order=("model.layers.3",)
                ),
            ),
            problem=_problem(),
            summary=_summary(),
        )
    )


def _model() -> Model:
    return Model(
        source="org/name",
        revision="93efa2f097d58c2a74874c7e644dbc9b0cee75a2",
        class_name="SparseForCausalLM",
        library="transformers",
        library_version="5.24.0",
        trust_remote_code=True,
        config_digest=sha256_digest(b"config"),
        attn_implementation="sdpa",
        experts_implementation="eager",
        dtype="bf16",
        tree_digest=sha256_digest(b"tree"),
        num_params=6 * MIB,
        generates=True,
        traced=False,
        trace_note="the forward needs a mask that could not be made",
        quantization="compressed-tensors",
        checkpoint=Checkpoint(
            shards=(
                Shard(
                    file="model-00001-of-00002.safetensors",
                    num_bytes=9 * MIB,
                    header_digest=sha256_digest(b"first header"),
                    content_sha256="0" * 64,
                ),
                Shard(
                    file="part/model-00002-of-00002.safetensors",
                    num_bytes=4 * MIB,
                    header_digest=sha256_digest(b"second header"),
                ),
            ),
            unused=("model.layers.#.rotary_emb.inv_freq",),
        ),
    )


def _formats() -> dict[str, Format]:
    return {
        "bf16": Format(kind="bf16"),
        "fp32": Format(kind="fp32"),
        "nf4-a": Format(
            kind="nf4",
            blocksize=64,
            double_quant=True,
            compute_dtype="bf16",
            storage_dtype="uint8",
            layout="cpu-avx512bf16",
        ),
        "int8": Format(kind="int8", threshold_milli=6000),
        "int4-packed": Format(
            kind="pack-quantized",
            bits=4,
            block_shape=(1, 32),
            scale_dtype="bf16",
            is_asymmetric=True,
            is_static=True,
        ),
    }


def _rules() -> tuple[TensorRule, ...]:
    return (
        TensorRule(
            target="model.layers.#.experts.gate_up",
            sources=("model.layers.#.experts.gate", "model.layers.#.experts.up"),
            operations=(
                Operation(kind="stack", dim=0),
                Operation(kind="concatenate", dim=-1),
                Operation(kind="transpose", dims=(1, 2)),
            ),
        ),
        TensorRule(
            target="model.layers.#.attn.q",
            sources=("model.layers.#.attn.qkv",),
            operations=(Operation(kind="split", dim=0, part=1, parts=3),),
        ),
        TensorRule(target="model.*", sources=("transformer.*",), operations=(Operation(kind="rename"),)),
    )


def _devices() -> tuple[PlannedDevice, ...]:
    return (
        PlannedDevice(
            id="node0/gpu0",
            kind="test-gpu",
            backend=Backend.CUDA,
            capacity_bytes=8 * GIB,
            reserve_bytes=GIB,
            budget_bytes=16 * MIB,
            ledger=Ledger(
                weights=(3 * MIB, 3 * MIB + 64),
                kv=(24 * KIB, 24 * KIB),
                activations=(0, 2 * MIB),
                staging=(4 * MIB, 4 * MIB),
                load_transient=(0, MIB),
                runtime=(300 * MIB, 600 * MIB),
            ),
        ),
        PlannedDevice(
            id="node0/cpu",
            kind="test-cpu",
            backend=Backend.CPU,
            capacity_bytes=64 * GIB,
            reserve_bytes=4 * GIB,
            budget_bytes=60 * GIB,
            ledger=Ledger(
                weights=(2 * MIB, 2 * MIB),
                kv=(8 * KIB, 8 * KIB),
                activations=(0, MIB),
                staging=(3 * MIB, 3 * MIB),
                load_transient=(0, 0),
                runtime=(250 * MIB, 600 * MIB),
            ),
        ),
    )


def _blocks() -> tuple[Block, ...]:
    gpu, cpu = "node0/gpu0", "node0/cpu"
    resident, host, disk = Residency.RESIDENT, Residency.STREAM_HOST, Residency.STREAM_DISK
    experts = Experts(
        count=8,
        per_token=2,
        unit_bytes=64 * KIB,
        format="int8",
        residency="cache-host",
        slots=4,
        floor_slots=2,
        compute="host",
        hit_ppm=450_000,
        hit_source="heat file",
    )
    with_block = Experts(count=8, per_token=2, unit_bytes=64 * KIB, format="nf4-a", residency="with-block")
    return (
        _block("model.embed_tokens", gpu, resident, "bf16", MIB, Reason.TIED),
        _block("model.layers.0", gpu, resident, "bf16", 2 * MIB, Reason.PINNED, experts=experts),
        _block("model.layers.1", gpu, host, "nf4-a", 2 * MIB, Reason.CAPACITY, experts=with_block),
        _block("model.layers.2", gpu, disk, "bf16", 2 * MIB, Reason.CAPACITY),
        _block("model.layers.3", cpu, disk, "bf16", 3 * MIB, Reason.CAPACITY),
        _block("model:own", cpu, resident, "fp32", MIB, Reason.OWN_TENSORS),
        _block("lm_head", cpu, resident, "bf16", MIB, Reason.TIED),
    )


def _block(
    block_id: str,
    device: str,
    residency: Residency,
    format_name: str,
    num_bytes: int,
    reason: Reason,
    *,
    experts: Experts | None = None,
) -> Block:
    return Block(
        id=block_id,
        device=device,
        residency=residency,
        format=format_name,
        num_bytes=num_bytes,
        kv_bytes=8 * KIB if ".layers." in block_id else 0,
        reason=reason,
        experts=experts,
    )


def _problem() -> Problem:
    return Problem(
        objective=Objective.PREFILL,
        formats=("bf16", "nf4-a"),
        is_auto=True,
        max_memory_bytes={"node0/gpu0": 16 * MIB},
        pins=(
            Pin(pattern="*.0", device="node0/gpu0", residency=Residency.RESIDENT),
            Pin(pattern="model.layers.3", device="node0/cpu", format="bf16"),
        ),
        no_spill=True,
        no_split=("SparseLayer",),
        base_activation_bytes=4 * KIB,
        scratch_bytes=MIB,
        runs=(
            _run("model.embed_tokens", 1, "Embedding", Reason.TIED),
            _run("model.layers.0", 4, "SparseLayer", None),
            _run("model:own", 1, "SparseModel", Reason.OWN_TENSORS),
            _run("lm_head", 1, "Linear", Reason.TIED),
        ),
        edges=(
            PlannedEdge(
                source="model.embed_tokens", target="model.layers.2", prefill_bytes=512, decode_bytes=32
            ),
            PlannedEdge(
                source="model.embed_tokens", target="model.layers.3", prefill_bytes=512, decode_bytes=32
            ),
        ),
    )


def _run(first: str, count: int, class_name: str, resident_reason: Reason | None) -> BlockRun:
    return BlockRun(
        first=first,
        count=count,
        class_name=class_name,
        forms=(
            BlockForm(
                format="bf16",
                num_bytes=MIB - 24,
                parameter_bytes=MIB,
                buffer_bytes=64,
                prefill_read_bytes=MIB,
                decode_read_bytes=MIB + 64,
                unit_bytes=64 * KIB,
            ),
            BlockForm(
                format="nf4-a",
                num_bytes=MIB // 4 + 8,
                parameter_bytes=MIB // 4 + 64,
                buffer_bytes=64,
                prefill_read_bytes=MIB // 4,
                decode_read_bytes=MIB // 4 + 64,
                quantized_bytes=MIB,
                workspace_bytes=512 * KIB,
                unit_bytes=16 * KIB,
                plain=PlainForm(
                    kind="bf16", prefill_read_bytes=MIB, decode_read_bytes=MIB + 64, unit_bytes=64 * KIB
                ),
            ),
        ),
        kv_bytes=8 * KIB,
        prefill_flops=3_000_000,
        decode_flops=200_000,
        prefill_operations=71,
        decode_operations=65,
        prefill_activation_bytes=128 * KIB,
        decode_activation_bytes=8 * KIB,
        prefill_output_bytes=32 * KIB,
        decode_output_bytes=2 * KIB,
        resident_reason=resident_reason,
        experts=BlockExperts(
            module="",
            count=8,
            per_token=2,
            prefill_flops=2_000_000,
            decode_flops=100_000,
            prefill_hidden_bytes=32 * KIB,
            decode_hidden_bytes=2 * KIB,
        ),
    )


def _summary() -> Summary:
    return Summary(
        objective=Objective.PREFILL,
        resident_blocks=4,
        streamed_blocks=3,
        resident_bytes=5 * MIB,
        streamed_bytes_per_step=7 * MIB,
        predicted_load_ns=5_000_000,
        predicted_first_output_ns=4_000_000,
        predicted_decode_ns=2_000_000,
        predicted_step_ns=2_000_000,
        lower_bound_ns=1_900_000,
        bound_class=BoundClass.CONTIGUOUS,
        gap_ppm=50_000,
        solver_status=SolverStatus.TIME_LIMIT,
        reproducible=False,
        moved_bytes=3 * MIB,
    )
