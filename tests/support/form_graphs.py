"""Graphs of a few tensors, for what looks at tensors only."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from bayplan.planner.model.facts import ReadModel
from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.graph import GraphBlock, Linears, ModelGraph, TensorRecord, TensorRole, Work
from bayplan.schemas.plan import Model, Workload
from bayplan.schemas.strict_json import sha256_digest

_NO_WORK = Work(flops=0, activation_bytes=0, output_bytes=0)
_EMPTY = ModelGraph(
    class_name="Model",
    blocks=(),
    edges=(),
    ties=(),
    tree_digest=sha256_digest(b""),
    num_params=0,
    generates=True,
    max_context=None,
    traced=True,
)


def record(fqn: str, shape: tuple[int, ...], dtype: str, **fields: Any) -> TensorRecord:
    num_bytes = math.prod(shape) * parse_dtype(dtype).num_bits // 8
    return TensorRecord(fqn=fqn, shape=shape, dtype=dtype, num_bytes=num_bytes, **fields)


def linear(fqn: str, out_features: int, in_features: int, dtype: str = "bf16") -> TensorRecord:
    linears = Linears(count=1, out_features=out_features, in_features=in_features)
    return record(fqn, (out_features, in_features), dtype, role=TensorRole.LINEAR, linears=linears)


def experts(fqn: str, shape: tuple[int, int, int], linears: Linears) -> TensorRecord:
    return record(fqn, shape, "bf16", role=TensorRole.EXPERTS, linears=linears)


def block(name: str, *tensors: TensorRecord) -> GraphBlock:
    return GraphBlock(
        id=name, class_name="Layer", tensors=tensors, kv_bytes=0, prefill=_NO_WORK, decode=_NO_WORK
    )


def graph(*blocks: GraphBlock, **fields: Any) -> ModelGraph:
    return msgspec.structs.replace(_EMPTY, blocks=blocks, **fields)


WORKLOAD = Workload(batch=1, context=8, encoder_context=None, prefill_chunk=8, kv_dtype="bf16")


def read_model(graph: ModelGraph, **fields: Any) -> ReadModel:
    """Return what reading a bf16 model with this graph gives."""
    model = Model(
        source=None,
        revision=None,
        class_name=graph.class_name,
        library="transformers",
        library_version="5.24.0",
        trust_remote_code=False,
        config_digest=None,
        attn_implementation=None,
        experts_implementation=None,
        dtype="bf16",
        tree_digest=graph.tree_digest,
        num_params=graph.num_params,
        generates=graph.generates,
        traced=graph.traced,
    )
    return ReadModel(
        graph=graph,
        model=model,
        workload=WORKLOAD,
        dtype="bf16",
        sources={},
        scratch_bytes=0,
        warnings=(),
        **fields,
    )
