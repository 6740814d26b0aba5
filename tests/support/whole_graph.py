"""A whole model as the one block of a graph, without a trace: for what looks at tensors only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayplan.schemas.graph import GraphBlock, ModelGraph, TiedGroup, Work
from bayplan.skeleton.kept import kept_in_fp32, unquantized_weights
from bayplan.skeleton.tree import tensor_records, tie_groups, tree_digest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NO_WORK = Work(flops=0, activation_bytes=0, output_bytes=0)


def whole_graph(built: PreTrainedModel, in_bf16: PreTrainedModel | None = None) -> ModelGraph:
    """The whole model as one block; a storage is listed under its first name."""
    records = {record.fqn: record for record in tensor_records(built)}
    ties = tie_groups(built)
    later = {fqn for fqns in ties for fqn in sorted(fqns, key=list(records).index)[1:]}
    block = GraphBlock(
        id="",
        class_name=type(built).__name__,
        tensors=tuple(record for fqn, record in records.items() if fqn not in later),
        kv_bytes=0,
        prefill=_NO_WORK,
        decode=_NO_WORK,
    )
    return ModelGraph(
        class_name=type(built).__name__,
        blocks=(block,),
        edges=(),
        ties=tuple(TiedGroup(fqns=fqns, num_bytes=records[fqns[0]].num_bytes) for fqns in ties),
        tree_digest=tree_digest(built),
        num_params=0,
        generates=False,
        max_context=None,
        traced=False,
        kept_fp32=kept_in_fp32(built, in_bf16),
        unquantized=unquantized_weights(built),
    )
