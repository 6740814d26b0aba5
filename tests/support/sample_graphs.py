"""What reading a small model gives, written down: for tests of those who only keep it or pass it on."""

from __future__ import annotations

import itertools

from bayplan.planner.model.facts import ReadModel
from bayplan.schemas.graph import (
    BlockExperts,
    Edge,
    GraphBlock,
    ModelGraph,
    TensorRecord,
    TensorRole,
    TiedGroup,
    Work,
)
from bayplan.schemas.plan import Checkpoint, Model, Shard, Workload
from bayplan.schemas.types import Reason

DIGEST = f"sha256:{'0' * 64}"


def experts_of(block: str) -> BlockExperts:
    """Return experts that two of four rows are routed to."""
    return BlockExperts(
        module=block,
        count=4,
        per_token=2,
        prefill_flops=6,
        decode_flops=5,
        prefill_hidden_bytes=8,
        decode_hidden_bytes=4,
    )


def read_model_of(name: str, *, layers: int) -> ReadModel:
    """Return a model with an embedding and `layers` equal layers; every field differs from its default."""
    ids = ["embed", *(f"layers.{number}" for number in range(layers))]
    work = Work(flops=7, activation_bytes=64, output_bytes=32)
    blocks = tuple(
        GraphBlock(
            id=block,
            class_name=f"{name}Block",
            tensors=(
                TensorRecord(
                    fqn=f"{block}.weight", dtype="bf16", shape=(4, 8), num_bytes=64, role=TensorRole.LINEAR
                ),
            ),
            kv_bytes=16,
            prefill=work,
            decode=work,
            resident_reason=Reason.TIED if block == "embed" else None,
            experts=None if block == "embed" else experts_of(block),
        )
        for block in ids
    )
    graph = ModelGraph(
        class_name=name,
        blocks=blocks,
        edges=tuple(
            Edge(source=source, target=target, prefill_bytes=32, decode_bytes=8)
            for source, target in itertools.pairwise(ids)
        ),
        ties=(TiedGroup(fqns=("embed.weight", "head.weight"), num_bytes=64),),
        tree_digest=DIGEST,
        num_params=32 * len(ids),
        generates=True,
        max_context=128,
        traced=True,
        trace_note="",
        base_activation_bytes=5,
        declared_no_split=("layers.0",),
        kept_fp32={"bf16": ("embed.weight",)},
        unquantized=("embed.weight",),
    )
    shard = Shard(file="model.safetensors", num_bytes=1000, header_digest=DIGEST, content_sha256="1" * 64)
    return ReadModel(
        graph=graph,
        model=Model(
            source="org/name",
            revision="2" * 40,
            class_name=name,
            library="transformers",
            library_version="5.24.0",
            trust_remote_code=False,
            config_digest=DIGEST,
            attn_implementation="sdpa",
            experts_implementation=None,
            dtype="bf16",
            tree_digest=DIGEST,
            num_params=graph.num_params,
            generates=True,
            traced=True,
            trace_note="",
            checkpoint=Checkpoint(shards=(shard,), unused=("rotary.#",)),
        ),
        workload=Workload(batch=1, context=128, encoder_context=None, prefill_chunk=64, kv_dtype="bf16"),
        dtype="bf16",
        sources={f"{block}.weight": f"model.{block}.weight" for block in ids},
        scratch_bytes=12,
        warnings=("a warning",),
    )
