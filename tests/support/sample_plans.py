"""Plans as a planner would write them, for tests that only read: small, valid, with no model behind them."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from bayplan.schemas.codec import sealed
from bayplan.schemas.hardware import INVENTORY_FORMAT_VERSION, Device, Disk, Inventory, Link, Node
from bayplan.schemas.plan import (
    PLAN_FORMAT_VERSION,
    PLAN_SEMANTICS,
    Block,
    Checkpoint,
    Format,
    Ledger,
    Model,
    Plan,
    PlannedDevice,
    PlannedHost,
    Schedule,
    Shard,
    Summary,
    Tie,
    Workload,
    aligned_bytes,
)
from bayplan.schemas.problem import BlockForm, BlockRun, Pin, Problem
from bayplan.schemas.strict_json import sha256_digest
from bayplan.schemas.types import Backend, BoundClass, Objective, Reason, Residency, SolverStatus

MIB = 2**20
GIB = 2**30

SMOL_LAYER_BYTES = 7_080_192
SMOL_EMBEDDING_BYTES = 49_152 * 576 * 2
SMOL_KV_BYTES = 393_216
LARGE_LAYER_BYTES = 1_711_292_416
LARGE_EMBEDDING_BYTES = 128_256 * 8_192 * 2
LARGE_KV_BYTES = 4 * MIB


def smol_plan(streamed: Collection[int] = ()) -> Plan:
    """SmolLM2-135M on a CPU, bound to its checkpoint; the layers with these numbers stream from disk."""
    blocks = (
        _block("model.embed_tokens", num_bytes=SMOL_EMBEDDING_BYTES, reason=Reason.TIED),
        *(_smol_layer(number, number in streamed, bool(streamed)) for number in range(30)),
        _block("model.norm", num_bytes=1152, reason=Reason.KEPT if streamed else Reason.FITS),
        _block("lm_head", num_bytes=0, reason=Reason.TIED),
    )
    order = tuple(block.id for block in blocks if block.residency != Residency.RESIDENT)
    weights = sum(block.num_bytes for block in blocks if block.residency == Residency.RESIDENT)
    # Streaming plans get the next full 50 MiB, as if somebody had given just enough.
    budget_bytes = (weights // (50 * MIB) + 2) * 50 * MIB if streamed else 14 * GIB
    step_ns = 77_800_000 if streamed else 14_800_000
    return sealed(
        Plan(
            format_version=PLAN_FORMAT_VERSION,
            semantics=PLAN_SEMANTICS,
            complete=True,
            applyable=True,
            errored=False,
            producer="bayplan 0.1.0",
            digest=sha256_digest(b""),
            model=_smol_model(),
            workload=Workload(batch=1, context=512, encoder_context=None, prefill_chunk=512, kv_dtype="bf16"),
            inventory=_cpu_inventory(),
            formats={"bf16": Format(kind="bf16")},
            format_rules=(),
            rules=(),
            devices=(_cpu(weights, budget_bytes, streams=bool(streamed)),),
            hosts=(
                PlannedHost(id="node0", budget_bytes=14 * GIB, pinned_budget_bytes=14 * GIB, waiting_bytes=0),
            ),
            blocks=blocks,
            ties=(
                Tie(
                    fqns=("lm_head.weight", "model.embed_tokens.weight"),
                    num_bytes=SMOL_EMBEDDING_BYTES,
                    policy="co-located",
                    devices=("node0/cpu",),
                ),
            ),
            schedule=_schedule("node0/cpu", SMOL_LAYER_BYTES, order),
            problem=Problem(
                objective=Objective.DECODE,
                formats=("bf16",),
                is_auto=False,
                max_memory_bytes={"node0/cpu": budget_bytes} if streamed else {},
                pins=(),
                no_spill=False,
                no_split=(),
                base_activation_bytes=65_536,
                scratch_bytes=MIB,
                runs=(
                    _run("model.embed_tokens", 1, "Embedding", SMOL_EMBEDDING_BYTES, 0),
                    _run("model.layers.0", 30, "LlamaDecoderLayer", SMOL_LAYER_BYTES, SMOL_KV_BYTES),
                ),
                edges=(),
            ),
            summary=_summary(blocks, step_ns=step_ns, bound_ns=step_ns - (1_800_000 if streamed else 0)),
        )
    )


def large_plan() -> Plan:
    """Llama-70B from a config alone on two declared accelerators, every eighth layer streamed."""
    base = smol_plan()
    streamed = range(1, 80, 8)
    blocks = (
        _block("model.embed_tokens", "node0/gpu0", num_bytes=LARGE_EMBEDDING_BYTES, reason=Reason.KEPT),
        *(
            _block(
                f"model.layers.{number}",
                "node0/gpu0" if number < 38 else "node0/gpu1",
                residency=Residency.STREAM_HOST if number in streamed else Residency.RESIDENT,
                num_bytes=LARGE_LAYER_BYTES,
                kv_bytes=LARGE_KV_BYTES,
                reason=Reason.CAPACITY if number in streamed else Reason.KEPT,
            )
            for number in range(80)
        ),
        _block("model.norm", "node0/gpu1", num_bytes=16_384, reason=Reason.KEPT),
        _block("lm_head", "node0/gpu1", num_bytes=LARGE_EMBEDDING_BYTES, reason=Reason.PINNED),
    )
    inventory = _two_accelerators()
    schedule = [
        entry
        for device in inventory.devices
        for entry in _schedule(
            device.id,
            LARGE_LAYER_BYTES,
            tuple(b.id for b in blocks if b.device == device.id and b.residency != Residency.RESIDENT),
        )
    ]
    return sealed(
        msgspec.structs.replace(
            base,
            applyable=False,
            inventory=inventory,
            blocks=blocks,
            devices=tuple(_accelerator_share(device, blocks) for device in inventory.devices),
            hosts=(
                PlannedHost(
                    id="node0",
                    budget_bytes=462 * GIB,
                    pinned_budget_bytes=462 * GIB,
                    waiting_bytes=len(streamed) * aligned_bytes(LARGE_LAYER_BYTES),
                ),
            ),
            ties=(),
            schedule=tuple(schedule),
            model=msgspec.structs.replace(
                base.model,
                source=None,
                revision=None,
                checkpoint=None,
                num_params=70_553_706_496,
                config_digest=sha256_digest(b"large config"),
                tree_digest=sha256_digest(b"large tree"),
            ),
            problem=msgspec.structs.replace(
                base.problem,
                pins=(Pin(pattern="lm_head", device="node0/gpu1", residency=Residency.RESIDENT),),
                runs=(
                    _run("model.embed_tokens", 1, "Embedding", LARGE_EMBEDDING_BYTES, 0),
                    _run("model.layers.0", 80, "LlamaDecoderLayer", LARGE_LAYER_BYTES, LARGE_KV_BYTES),
                ),
            ),
            summary=_summary(blocks, step_ns=391_000_000, bound_ns=388_000_000),
        )
    )


def _block(
    block_id: str,
    device: str = "node0/cpu",
    *,
    num_bytes: int,
    reason: Reason,
    residency: Residency = Residency.RESIDENT,
    kv_bytes: int = 0,
) -> Block:
    return Block(
        id=block_id,
        device=device,
        residency=residency,
        format="bf16",
        num_bytes=num_bytes,
        kv_bytes=kv_bytes,
        reason=reason,
    )


def _smol_layer(number: int, streams: bool, others_stream: bool) -> Block:
    return _block(
        f"model.layers.{number}",
        residency=Residency.STREAM_DISK if streams else Residency.RESIDENT,
        num_bytes=SMOL_LAYER_BYTES,
        kv_bytes=SMOL_KV_BYTES,
        reason=Reason.CAPACITY if streams else Reason.KEPT if others_stream else Reason.FITS,
    )


def _smol_model() -> Model:
    return Model(
        source="HuggingFaceTB/SmolLM2-135M",
        revision="93efa2f097d58c2a74874c7e644dbc9b0cee75a2",
        class_name="LlamaForCausalLM",
        library="transformers",
        library_version="5.24.0",
        trust_remote_code=False,
        config_digest=sha256_digest(b"config"),
        attn_implementation="sdpa",
        experts_implementation=None,
        dtype="bf16",
        tree_digest=sha256_digest(b"tree"),
        num_params=134_515_008,
        generates=True,
        traced=True,
        checkpoint=Checkpoint(
            shards=(
                Shard(
                    file="model.safetensors",
                    num_bytes=269_060_552,
                    header_digest=sha256_digest(b"header"),
                ),
            )
        ),
    )


def _cpu_inventory() -> Inventory:
    return Inventory(
        format_version=INVENTORY_FORMAT_VERSION,
        source="probed",
        nodes=(
            Node(
                id="node0",
                host_memory_bytes=16 * GIB,
                host_reserve_bytes=2 * GIB,
                disk=Disk(read_bytes_per_second=1_500_000_000, latency_ns=100_000),
            ),
        ),
        devices=(
            Device(
                id="node0/cpu",
                kind="generic",
                backend=Backend.CPU,
                capacity_bytes=16 * GIB,
                reserve_bytes=2 * GIB,
                memory_bytes_per_second=22_000_000_000,
                flops_per_second=150_000_000_000,
                block_overhead_ns=200_000,
                shares_host_memory=True,
                features=("avx2", "avx512_bf16"),
            ),
        ),
    )


def _two_accelerators() -> Inventory:
    devices = tuple(
        Device(
            id=f"node0/gpu{number}",
            kind="h100-80gb",
            backend=Backend.CUDA,
            capacity_bytes=85_000_000_000,
            reserve_bytes=GIB,
            memory_bytes_per_second=3_350_000_000_000,
            flops_per_second=989_000_000_000_000,
            block_overhead_ns=420_000,
        )
        for number in range(2)
    )
    host_links = tuple(
        Link(source="node0", target=device.id, bytes_per_second=55_000_000_000, latency_ns=10_000)
        for device in devices
    )
    peer = Link(source="node0/gpu0", target="node0/gpu1", bytes_per_second=450_000_000_000, latency_ns=5_000)
    return Inventory(
        format_version=INVENTORY_FORMAT_VERSION,
        source="declared",
        nodes=(Node(id="node0", host_memory_bytes=512 * GIB, host_reserve_bytes=50 * GIB),),
        devices=devices,
        links=(*host_links, peer),
    )


def _cpu(weights: int, budget_bytes: int, *, streams: bool) -> PlannedDevice:
    staging = 2 * SMOL_LAYER_BYTES if streams else 0
    return PlannedDevice(
        id="node0/cpu",
        kind="generic",
        backend=Backend.CPU,
        capacity_bytes=16 * GIB,
        reserve_bytes=2 * GIB,
        budget_bytes=budget_bytes,
        ledger=Ledger(
            weights=(weights, weights + 4096),
            kv=(30 * SMOL_KV_BYTES, 30 * SMOL_KV_BYTES),
            activations=(0, 9 * MIB),
            staging=(staging, staging),
            load_transient=(0, 0),
            runtime=(250 * MIB, 600 * MIB),
        ),
    )


def _accelerator_share(device: Device, blocks: Collection[Block]) -> PlannedDevice:
    mine = [block for block in blocks if block.device == device.id]
    weights = sum(block.num_bytes for block in mine if block.residency == Residency.RESIDENT)
    kv_bytes = sum(block.kv_bytes for block in mine)
    staging = 2 * aligned_bytes(LARGE_LAYER_BYTES)
    return PlannedDevice(
        id=device.id,
        kind=device.kind,
        backend=device.backend,
        capacity_bytes=device.capacity_bytes,
        reserve_bytes=device.reserve_bytes,
        budget_bytes=device.capacity_bytes - device.reserve_bytes,
        ledger=Ledger(
            weights=(weights, weights),
            kv=(kv_bytes, kv_bytes),
            activations=(0, 900 * MIB),
            staging=(staging, staging),
            load_transient=(0, 64 * MIB),
            runtime=(400 * MIB, 600 * MIB),
        ),
    )


def _schedule(device: str, layer_bytes: int, order: tuple[str, ...]) -> tuple[Schedule, ...]:
    if not order:
        return ()
    return (Schedule(device=device, num_slots=2, slot_bytes=aligned_bytes(layer_bytes), stream_order=order),)


def _run(first: str, count: int, class_name: str, num_bytes: int, kv_bytes: int) -> BlockRun:
    return BlockRun(
        first=first,
        count=count,
        class_name=class_name,
        forms=(
            BlockForm(
                format="bf16",
                num_bytes=num_bytes,
                parameter_bytes=aligned_bytes(num_bytes),
                buffer_bytes=0,
                prefill_read_bytes=num_bytes,
                decode_read_bytes=num_bytes + kv_bytes,
            ),
        ),
        kv_bytes=kv_bytes,
        prefill_flops=512 * num_bytes,
        decode_flops=num_bytes,
        prefill_operations=70,
        decode_operations=70,
        prefill_activation_bytes=4 * MIB,
        decode_activation_bytes=8192,
        prefill_output_bytes=1_179_648,
        decode_output_bytes=1152,
    )


def _summary(blocks: Collection[Block], *, step_ns: int, bound_ns: int) -> Summary:
    streamed = [block for block in blocks if block.residency != Residency.RESIDENT]
    return Summary(
        objective=Objective.DECODE,
        resident_blocks=len(blocks) - len(streamed),
        streamed_blocks=len(streamed),
        resident_bytes=sum(block.num_bytes for block in blocks) - sum(b.num_bytes for b in streamed),
        streamed_bytes_per_step=sum(block.num_bytes for block in streamed),
        predicted_load_ns=179_400_000,
        predicted_first_output_ns=1_210_000_000,
        predicted_decode_ns=step_ns,
        predicted_step_ns=step_ns,
        lower_bound_ns=bound_ns,
        bound_class=BoundClass.CONTIGUOUS,
        gap_ppm=-(-1_000_000 * (step_ns - bound_ns) // step_ns),
        solver_status=SolverStatus.OPTIMAL,
        reproducible=True,
    )
