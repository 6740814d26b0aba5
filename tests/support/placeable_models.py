"""A model whose layers can be quantized, streamed and timed, as read, and machines for it."""

from __future__ import annotations

import msgspec
from placement_problems import make_device, make_inventory, make_link
from sized_models import graph_of, language_model, record

from bayplan.planner.model.facts import ReadModel
from bayplan.planner.options import PlanOptions
from bayplan.schemas.graph import GraphBlock, TensorRole, Work
from bayplan.schemas.hardware import Inventory

MIB = 2**20
LAYER_BYTES = 2 * MIB
KV_BYTES_PER_POSITION = 1024


def placeable_model(num_layers: int = 12, *, context: int = 64, max_context: int = 256) -> ReadModel:
    """An embedding, layers of one weight each, a head; the cache grows with the context."""
    layers = (_block(f"layers.{number}", context * KV_BYTES_PER_POSITION) for number in range(num_layers))
    graph = graph_of(_block("embed", 0), *layers, _block("head", 0), max_context=max_context)
    small = language_model(context=context)
    model = msgspec.structs.replace(small.model, num_params=graph.num_params)
    return msgspec.structs.replace(small, graph=graph, model=model)


def read_placeable(options: PlanOptions) -> ReadModel:
    """The same in the place of a reader, in the context asked for."""
    return placeable_model(context=options.context or 64)


def _block(name: str, kv_bytes: int) -> GraphBlock:
    weight = record(f"{name}.weight", 1024, 1024, dtype="bf16", role=TensorRole.LINEAR)
    work = Work(flops=MIB, activation_bytes=4096, output_bytes=2048)
    return GraphBlock(
        id=name, class_name="Layer", tensors=(weight,), kv_bytes=kv_bytes, prefill=work, decode=work
    )


def two_gpus() -> Inventory:
    """Two equal accelerators beside each other, with a slow way to host memory and disk."""
    devices = [make_device(name, block_overhead_ns=5_000) for name in ("gpu0", "gpu1")]
    links = [make_link(device.id, rate=300_000_000, latency_ns=1_000) for device in devices]
    return make_inventory(devices, links, disk_rate=250_000_000)
