"""Plans for small real checkpoints, written without the planner: what the executor is tested with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import transformers
from torch import nn

from bayplan.schemas.checkpoint import open_folder
from bayplan.schemas.codec import sealed
from bayplan.schemas.dtypes import tensor_num_bytes
from bayplan.schemas.hardware import Device, Disk, Inventory, Node
from bayplan.schemas.plan import (
    CAST_SCRATCH_BYTES,
    GAP_SCRATCH_BYTES,
    PLAN_FORMAT_VERSION,
    Block,
    Checkpoint,
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
    aligned_bytes,
)
from bayplan.schemas.problem import Problem
from bayplan.schemas.safetensors_header import read_header
from bayplan.schemas.strict_json import sha256_digest
from bayplan.schemas.types import (
    Backend,
    BoundClass,
    Objective,
    Reason,
    Residency,
    SolverStatus,
)
from bayplan.skeleton.build import build_model
from bayplan.skeleton.checkpoint_names import match_names
from bayplan.skeleton.config import choose_class, load_config
from bayplan.skeleton.formats import short_dtype, torch_dtype
from bayplan.skeleton.tree import named_tensors, tie_groups, tree_digest

CPU = "node0/cpu"
GIB = 2**30


def make_plan(
    folder: Path,
    *,
    stream: tuple[str, ...] = (),
    num_slots: int = 2,
    dtype: str | None = None,
    batch: int = 2,
    context: int = 64,
    class_name: str | None = None,
) -> Plan:
    """Return a sealed plan for the checkpoint in `folder`; the blocks of `stream` stream in that order."""
    config = load_config(folder)
    model_class = choose_class(config, name=class_name)
    local = open_folder(folder)
    headers = {name: read_header(local.shard_path(name)) for name in local.shard_names}
    built_dtype = dtype or (short_dtype(config.dtype) if config.dtype is not None else "fp32")
    model = build_model(config, model_class, torch_dtype(built_dtype), folder=folder)
    names = match_names(model, [entry.fqn for header in headers.values() for entry in header.tensors])
    seen: set[int] = set()
    blocks, weights, slot_bytes = [], 0, 0
    for block_id in block_ids(model):
        own = [entry for entry in tensors_of(model, block_id) if id(entry.tensor) not in seen]
        seen.update(id(entry.tensor) for entry in own)
        sizes = {
            entry.fqn: tensor_num_bytes(entry.tensor.shape, short_dtype(entry.tensor.dtype)) for entry in own
        }
        parameters = sum(aligned_bytes(sizes[entry.fqn]) for entry in own if not entry.is_buffer)
        weights += sum(aligned_bytes(size) for size in sizes.values())
        if block_id in stream:
            weights -= parameters
            slot_bytes = max(slot_bytes, parameters)
        blocks.append(
            Block(
                id=block_id,
                device=CPU,
                residency=Residency.STREAM_DISK if block_id in stream else Residency.RESIDENT,
                format=built_dtype,
                num_bytes=sum(sizes.values()),
                kv_bytes=0,
                reason=Reason.CAPACITY if block_id in stream else Reason.FITS,
            )
        )
    scratch = GAP_SCRATCH_BYTES + CAST_SCRATCH_BYTES
    staging = (num_slots * slot_bytes if stream else 0) + scratch
    odd = {
        entry.fqn: short_dtype(entry.tensor.dtype)
        for entry in named_tensors(model)
        if entry.tensor.is_floating_point()
        and not entry.is_buffer
        and short_dtype(entry.tensor.dtype) != built_dtype
    }
    plan = Plan(
        format_version=PLAN_FORMAT_VERSION,
        semantics=1,
        complete=True,
        applyable=True,
        errored=False,
        producer="tests",
        digest="sha256:" + "0" * 64,
        model=Model(
            source=None,
            revision=None,
            class_name=model_class.__name__,
            library="transformers",
            library_version=transformers.__version__,
            trust_remote_code=False,
            config_digest=sha256_digest((folder / "config.json").read_bytes()),
            attn_implementation=model.config._attn_implementation,
            experts_implementation=None,
            dtype=built_dtype,
            tree_digest=tree_digest(model),
            num_params=sum(param.numel() for param in model.parameters()),
            generates=model.can_generate(),
            traced=True,
            checkpoint=Checkpoint(
                shards=tuple(
                    Shard(file=name, num_bytes=header.file_bytes, header_digest=header.digest)
                    for name, header in headers.items()
                ),
                unused=names.unexpected,
            ),
        ),
        workload=Workload(
            batch=batch,
            context=context,
            encoder_context=context if model.config.is_encoder_decoder else None,
            prefill_chunk=context,
            kv_dtype=built_dtype,
        ),
        inventory=inventory(),
        formats={name: Format(kind=name) for name in sorted({built_dtype, *odd.values()})},
        format_rules=tuple(FormatRule(pattern=fqn, format=name) for fqn, name in odd.items()),
        rules=tuple(
            TensorRule(target=target, sources=sources, operations=(Operation(kind="rename"),))
            for target, sources in names.sources.items()
            if sources != (target,)
        ),
        devices=(device(weights=weights, staging=staging),),
        hosts=(PlannedHost(id="node0", budget_bytes=2 * GIB, pinned_budget_bytes=2 * GIB, waiting_bytes=0),),
        blocks=tuple(blocks),
        ties=tuple(
            Tie(fqns=fqns, num_bytes=0, policy="co-located", devices=(CPU,)) for fqns in tie_groups(model)
        ),
        schedule=(Schedule(device=CPU, num_slots=num_slots, slot_bytes=slot_bytes, stream_order=stream),)
        if stream
        else (),
        problem=Problem(
            objective=Objective.DECODE,
            formats=(built_dtype,),
            is_auto=False,
            max_memory_bytes={},
            pins=(),
            no_spill=False,
            no_split=(),
            base_activation_bytes=0,
            scratch_bytes=scratch,
            runs=(),
            edges=(),
        ),
        summary=summary(num_blocks=len(blocks), num_streamed=len(stream)),
    )
    return sealed(plan)


def changed(plan: Plan, **fields: object) -> Plan:
    """Return `plan` with other fields and the digest that belongs to them."""
    return sealed(msgspec.structs.replace(plan, **fields))


def block_ids(model: nn.Module) -> Iterator[str]:
    """Yield the ids of the blocks: no-split modules, leaves, and the own tensors of what is split."""
    no_split = set(getattr(model, "_no_split_modules", None) or ())

    def is_split(module: nn.Module) -> bool:
        return type(module).__name__ not in no_split and any(
            type(inner).__name__ in no_split for inner in module.modules()
        )

    def walk(module: nn.Module, fqn: str) -> Iterator[str]:
        if fqn and not is_split(module):
            if any(True for _ in module.state_dict(keep_vars=True)) or list(module.buffers()):
                yield fqn
            return
        if list(module.parameters(recurse=False)) or list(module.buffers(recurse=False)):
            yield f"{fqn}:own"
        for name, child in module.named_children():
            yield from walk(child, f"{fqn}.{name}" if fqn else name)

    yield from walk(model, "")


def tensors_of(model: nn.Module, block_id: str):
    """Return the named tensors of a block."""
    root = block_id.removesuffix(":own")
    dot = f"{root}." if root else ""
    for entry in named_tensors(model):
        if entry.fqn.startswith(dot):
            rest = entry.fqn[len(dot) :]
            if not block_id.endswith(":own") or "." not in rest:
                yield entry


def inventory() -> Inventory:
    return Inventory(
        format_version="1.0",
        source="declared",
        nodes=(
            Node(
                id="node0",
                host_memory_bytes=2 * GIB,
                host_reserve_bytes=0,
                disk=Disk(read_bytes_per_second=10**9, latency_ns=10**5),
            ),
        ),
        devices=(
            Device(
                id=CPU,
                kind="generic",
                backend=Backend.CPU,
                capacity_bytes=2 * GIB,
                reserve_bytes=0,
                memory_bytes_per_second=10**10,
                flops_per_second=10**11,
                block_overhead_ns=10**5,
            ),
        ),
    )


def device(*, weights: int, staging: int) -> PlannedDevice:
    return PlannedDevice(
        id=CPU,
        kind="generic",
        backend=Backend.CPU,
        capacity_bytes=2 * GIB,
        reserve_bytes=0,
        budget_bytes=GIB,
        ledger=Ledger(
            weights=(0, weights),
            kv=(0, 2**20),
            activations=(0, 2**20),
            staging=(staging, staging),
            load_transient=(0, 0),
            runtime=(0, GIB),
        ),
    )


def summary(*, num_blocks: int, num_streamed: int) -> Summary:
    return Summary(
        objective=Objective.DECODE,
        resident_blocks=num_blocks - num_streamed,
        streamed_blocks=num_streamed,
        resident_bytes=0,
        streamed_bytes_per_step=0,
        predicted_load_ns=1,
        predicted_first_output_ns=2,
        predicted_decode_ns=3,
        predicted_step_ns=3,
        lower_bound_ns=3,
        bound_class=BoundClass.CONTIGUOUS,
        gap_ppm=0,
        solver_status=SolverStatus.OPTIMAL,
        reproducible=True,
    )
