"""A small language model made by hand, as a reading of it would be: what estimates are tested on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

import bayplan.planner.model.cached
from bayplan.planner.model.facts import ReadModel
from bayplan.schemas.graph import GraphBlock, Linears, ModelGraph, TensorRecord, TensorRole, TiedGroup, Work
from bayplan.schemas.plan import Model, Workload
from bayplan.schemas.strict_json import sha256_digest
from bayplan.schemas.types import FloatFormat

if TYPE_CHECKING:
    import pytest

    from bayplan.planner.options import PlanOptions

WIDTH, INNER, WORDS, LAYERS = 128, 256, 1000, 3
MAX_CONTEXT = 600
LAYER_PARAMS = 4 * WIDTH * WIDTH + 2 * WIDTH * INNER + WIDTH
NUM_PARAMS = WORDS * WIDTH + LAYERS * LAYER_PARAMS + WIDTH
BUFFER_BYTES = WIDTH // 4 * 4 + 8
"""Frequencies in fp32 and a counter of 64 bits."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int64": 8}


def record(
    fqn: str, *shape: int, dtype: FloatFormat | str = "bf16", role: TensorRole = TensorRole.OTHER
) -> TensorRecord:
    """A parameter."""
    count = 1
    for size in shape:
        count *= size
    linears = None
    if role is TensorRole.LINEAR:
        linears = Linears(count=1, out_features=shape[0], in_features=shape[1])
    return TensorRecord(
        fqn=fqn, shape=shape, dtype=dtype, num_bytes=count * _BYTES[dtype], role=role, linears=linears
    )


def block(name: str, *tensors: TensorRecord, kv_bytes: int = 0, activation_bytes: int = 0) -> GraphBlock:
    """A block that computes nothing."""
    work = Work(flops=0, activation_bytes=activation_bytes, output_bytes=0)
    return GraphBlock(
        id=name, class_name="Block", tensors=tensors, kv_bytes=kv_bytes, prefill=work, decode=work
    )


def graph_of(*blocks: GraphBlock, declared_no_split: tuple[str, ...] = (), **fields: object) -> ModelGraph:
    """A graph of these blocks."""
    params = sum(
        tensor.num_bytes // _BYTES[tensor.dtype]
        for each in blocks
        for tensor in each.tensors
        if not tensor.is_buffer
    )
    graph = ModelGraph(
        class_name="HandMade",
        blocks=blocks,
        edges=(),
        ties=(),
        tree_digest=sha256_digest(b"tree"),
        num_params=params,
        generates=True,
        max_context=MAX_CONTEXT,
        traced=True,
        declared_no_split=declared_no_split,
    )
    return msgspec.structs.replace(graph, **fields)


def language_model(dtype: FloatFormat = "bf16", *, context: int = 64) -> ReadModel:
    """An embedding tied to the head, layers with attention and a gated half, a norm, two kinds of buffers."""
    width = _BYTES[dtype]
    rotary = (
        msgspec.structs.replace(
            record("model.rotary.inv_freq", WIDTH // 4, dtype="fp32"), is_buffer=True, is_persistent=False
        ),
        msgspec.structs.replace(record("model.rotary.seen", 1, dtype="int64"), is_buffer=True),
    )
    graph = graph_of(
        block(
            "model.embed", record("model.embed.weight", WORDS, WIDTH, dtype=dtype, role=TensorRole.EMBEDDING)
        ),
        block("model.rotary", *rotary),
        *(_layer(number, dtype, 2 * width * WIDTH * context) for number in range(LAYERS)),
        block("model.norm", record("model.norm.weight", WIDTH, dtype=dtype)),
        block("head", activation_bytes=width * WORDS),
        declared_no_split=tuple(f"model.layers.{number}" for number in range(LAYERS)),
        ties=(TiedGroup(fqns=("head.weight", "model.embed.weight"), num_bytes=width * WORDS * WIDTH),),
        unquantized=("head.weight",),
        base_activation_bytes=width * WIDTH * context,
    )
    return ReadModel(
        graph=graph,
        model=_model(graph, dtype),
        workload=Workload(
            batch=1, context=context, encoder_context=None, prefill_chunk=context, kv_dtype=dtype
        ),
        dtype=dtype,
        sources={},
        scratch_bytes=0,
        warnings=(),
    )


def _layer(number: int, dtype: FloatFormat, kv_bytes: int) -> GraphBlock:
    name = f"model.layers.{number}"
    linear = TensorRole.LINEAR
    return block(
        name,
        *(record(f"{name}.attn.{part}.weight", WIDTH, WIDTH, dtype=dtype, role=linear) for part in "qkvo"),
        record(f"{name}.mlp.up.weight", INNER, WIDTH, dtype=dtype, role=linear),
        record(f"{name}.mlp.down.weight", WIDTH, INNER, dtype=dtype, role=linear),
        record(f"{name}.norm.weight", WIDTH, dtype=dtype),
        kv_bytes=kv_bytes,
        activation_bytes=4 * kv_bytes,
    )


def _model(graph: ModelGraph, dtype: FloatFormat) -> Model:
    return Model(
        source="hand/made",
        revision="0123456789abcdef",
        class_name=graph.class_name,
        library="transformers",
        library_version="5.24.0",
        trust_remote_code=False,
        config_digest=sha256_digest(b"config"),
        attn_implementation=None,
        experts_implementation=None,
        dtype=dtype,
        tree_digest=graph.tree_digest,
        num_params=graph.num_params,
        generates=True,
        traced=True,
    )


class StandInReader:
    """A reader that remembers what it was asked and gives the model made by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the real one for as long as the test runs."""
        self.asked: list[tuple[str, PlanOptions]] = []
        self.changes: dict[str, object] = {}
        """Fields of every reading to replace."""
        self.graph_changes: dict[str, object] = {}
        monkeypatch.setattr(bayplan.planner.model.cached, "cached_read_model", self.read)

    def read(self, name: str, options: PlanOptions, progress: object) -> ReadModel:
        """Return the model in the data type and at the context asked for."""
        self.asked.append((name, options))
        context = min(options.context or 64, MAX_CONTEXT)
        read = language_model("fp32" if options.format == "fp32" else "bf16", context=context)
        graph = msgspec.structs.replace(read.graph, **self.graph_changes)
        return msgspec.structs.replace(read, graph=graph, **self.changes)
