"""Graphs of tiny models of many architectures; their bytes in real forwards are in the tests of the truth."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
import transformers
from tiny_models import ARCHITECTURES, GENERATORS, build, workload_for
from torch import nn

from bayplan.planner.model.blocks import declared_no_split, partition
from bayplan.planner.model.forwards import observe
from bayplan.planner.model.inputs import Attempt
from bayplan.planner.model.trace import trace_model
from bayplan.planner.model.workload import make_workload
from bayplan.schemas.graph import GraphBlock, ModelGraph
from bayplan.schemas.types import Reason
from bayplan.skeleton.tree import named_tensors, tie_groups, tree_digest

CONTEXT = 24


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)


@functools.cache
def trace(name: str, context: int = CONTEXT, *, batch: int = 1, chunk: int | None = None) -> ModelGraph:
    model = build(name)
    return trace_model(model, workload_for(model, context, batch=batch, chunk=chunk))


def block_of(graph: ModelGraph, block_id: str) -> GraphBlock:
    return next(block for block in graph.blocks if block.id == block_id)


def kv_bytes(graph: ModelGraph) -> int:
    return sum(block.kv_bytes for block in graph.blocks)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_architecture_is_traced(name: str) -> None:
    graph = trace(name)
    assert (graph.traced, graph.trace_note) == (True, "")
    assert graph.generates is (name in GENERATORS)


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - set(GENERATORS)))
def test_no_cache_where_nothing_is_generated(name: str) -> None:
    assert kv_bytes(trace(name)) == 0


def test_llama_in_full() -> None:
    graph = trace("llama")
    assert [block.id for block in graph.blocks] == [
        "model.embed_tokens",
        "model.rotary_emb",
        "model.layers.0",
        "model.layers.1",
        "model.layers.2",
        "model.norm",
        "lm_head",
    ]
    layer = block_of(graph, "model.layers.1")
    hidden, intermediate, kv_dim = 32, 64, 16
    weights = 2 * hidden * hidden + 2 * hidden * kv_dim + 3 * hidden * intermediate
    assert layer.num_bytes == 4 * (weights + 2 * hidden)
    assert layer.kv_bytes == 2 * CONTEXT * kv_dim * 4
    assert layer.prefill.flops == 2 * weights * CONTEXT + 4 * CONTEXT * CONTEXT * hidden
    assert layer.decode.flops == 2 * weights + 4 * (CONTEXT + 1) * hidden
    assert layer.prefill.output_bytes == CONTEXT * hidden * 4
    assert layer.decode.output_bytes == hidden * 4
    assert layer.resident_reason is None
    assert block_of(graph, "lm_head").prefill.output_bytes == 96 * 4
    assert graph.max_context == 64
    embedded, rotary = CONTEXT * hidden * 4, 2 * CONTEXT * 8 * 4
    stream = ["model.embed_tokens", *(f"model.layers.{number}" for number in range(3)), "model.norm"]
    expected = {pair: (embedded, hidden * 4) for pair in pairwise(stream)}
    expected |= {("model.rotary_emb", name): (rotary, 2 * 8 * 4) for name in stream[1:-1]}
    expected["model.norm", "lm_head"] = (hidden * 4, hidden * 4)
    assert handed(graph) == expected


def handed(graph: ModelGraph) -> dict[tuple[str, str], tuple[int, int]]:
    return {(edge.source, edge.target): (edge.prefill_bytes, edge.decode_bytes) for edge in graph.edges}


def test_a_residual_stream_between_the_blocks_comes_from_the_last_of_them() -> None:
    """Norms, attention and MLP are blocks here; what is added up between them is none."""
    model = build("llama")
    graph = trace_model(model, workload_for(model, CONTEXT), no_split=("LlamaMLP",))
    layer = "model.layers.1"
    sources = {source for source, target in handed(graph) if target == f"{layer}.input_layernorm"}
    assert sources == {"model.layers.0.mlp"}
    sources = {source for source, target in handed(graph) if target == f"{layer}.post_attention_layernorm"}
    assert sources == {f"{layer}.self_attn"}
    assert {source for source, target in handed(graph) if target == f"{layer}.mlp"} == {
        f"{layer}.post_attention_layernorm"
    }


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe"])
def test_experts_work_on_what_is_routed_to_them(name: str) -> None:
    layer = block_of(trace(name), "model.layers.1")
    hidden, kv_dim, routed = 32, 16, 2
    expert = 3 * hidden * (64 if name == "mixtral" else 32)
    shared = 0 if name == "mixtral" else 3 * hidden * 32 + hidden
    attention = 2 * hidden * hidden + 2 * hidden * kv_dim
    weights = attention + hidden * 4 + routed * expert + shared
    assert layer.prefill.flops == 2 * weights * CONTEXT + 4 * CONTEXT * CONTEXT * hidden
    assert layer.decode.flops == 2 * weights + 4 * (CONTEXT + 1) * hidden


def test_order_is_that_of_the_calls() -> None:
    """Whisper registers the decoder's embedding after its layers' parts; BERT's head is registered last."""
    ids = [block.id for block in trace("whisper").blocks]
    assert ids.index("model.encoder.layer_norm") < ids.index("model.decoder.embed_tokens")
    assert ids.index("model.decoder.embed_tokens") < ids.index("model.decoder.layers.0")
    assert ids[-1] == "proj_out"


def test_the_encoder_runs_once_and_hands_its_output_to_every_decoder_layer() -> None:
    graph = trace("t5")
    encoder, decoder = block_of(graph, "encoder.block.1"), block_of(graph, "decoder.block.1")
    assert encoder.prefill.flops > 0
    assert encoder.decode.flops == encoder.decode.activation_bytes == 0
    assert decoder.decode.flops > 0
    encoded = {
        edge.target: edge.prefill_bytes for edge in graph.edges if edge.source == "encoder.final_layer_norm"
    }
    assert encoded["decoder.block.1"] == 12 * 32 * 4


def test_cross_attention_is_part_of_the_cache() -> None:
    layer = block_of(trace("t5"), "decoder.block.0")
    assert layer.kv_bytes == 2 * (CONTEXT + 12) * 32 * 4


def test_sliding_layers_keep_less() -> None:
    graph = trace("gemma3")
    per_position = 2 * 2 * 8 * 4
    assert [block_of(graph, f"model.layers.{index}").kv_bytes for index in range(3)] == [
        7 * per_position + 8,
        7 * per_position + 8,
        CONTEXT * per_position,
    ]


def test_a_state_space_cache_does_not_grow() -> None:
    assert kv_bytes(trace("mamba", 12)) == kv_bytes(trace("mamba", 24)) > 0


def test_tied_storage_is_listed_by_the_first_block_in_order() -> None:
    graph = trace("gpt2")
    first, last = block_of(graph, "transformer.wte"), block_of(graph, "lm_head")
    assert [tensor.fqn for tensor in first.tensors] == ["transformer.wte.weight"]
    assert last.tensors == ()
    assert first.resident_reason is last.resident_reason is Reason.TIED
    (tie,) = graph.ties
    assert (tie.fqns, tie.num_bytes) == (("lm_head.weight", "transformer.wte.weight"), 96 * 32 * 4)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_storage_is_counted_once(name: str) -> None:
    model = build(name)
    graph = trace_model(model, workload_for(model, CONTEXT))
    groups = {fqn: group for group in tie_groups(model) for fqn in group}
    names = {groups.get(named.fqn, (named.fqn,)) for named in named_tensors(model)}
    listed = [tensor.fqn for block in graph.blocks for tensor in block.tensors]
    assert sorted(groups.get(fqn, (fqn,)) for fqn in listed) == sorted(names)
    assert sum(block.num_bytes for block in graph.blocks) == sum(
        tensor.nbytes for tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.values()
    )
    assert graph.num_params == sum(param.numel() for param in model.parameters())
    assert graph.tree_digest == tree_digest(model)


def test_own_tensors_stay() -> None:
    own = block_of(trace("bart"), ":own")
    assert own.resident_reason is Reason.OWN_TENSORS
    assert [tensor.fqn for tensor in own.tensors] == ["final_logits_bias"]


def test_prefill_in_chunks_needs_less_and_keeps_the_same_cache() -> None:
    whole, chunked = trace("llama"), trace("llama", chunk=8)
    assert kv_bytes(chunked) == kv_bytes(whole)
    layer, chunked_layer = block_of(whole, "model.layers.0"), block_of(chunked, "model.layers.0")
    assert chunked_layer.prefill.output_bytes == 8 * 32 * 4
    assert chunked_layer.prefill.activation_bytes < layer.prefill.activation_bytes
    assert chunked_layer.decode == layer.decode


def test_encoder_work_is_counted_when_the_decoder_prefills_in_chunks() -> None:
    graph = trace("t5", chunk=8)
    assert block_of(graph, "encoder.block.0").prefill == block_of(trace("t5"), "encoder.block.0").prefill
    assert block_of(graph, "encoder.block.0").num_calls == 1


@pytest.mark.parametrize("name", ["gpt2", "whisper", "llama"])
def test_the_whole_table_of_positions_can_be_planned_for(name: str) -> None:
    model = build(name)
    workload, _ = make_workload(model.config, context=10**6, dtype="fp32")
    graph = trace_model(model, workload)
    assert graph.traced
    assert workload.context == graph.max_context
    decoder = [block for block in graph.blocks if block.kv_bytes]
    assert all(block.decode.flops > 0 for block in decoder)


def test_one_position_is_a_context() -> None:
    assert kv_bytes(trace("llama", 1)) == 3 * 2 * 16 * 4


def test_a_batch_is_planned_with_a_mask() -> None:
    """Prompts of unequal length need one, which a single prompt does not."""
    model = build("llama")
    workload = workload_for(model, CONTEXT, batch=2)
    masked, plain = (
        observe(model, partition(model), workload, Attempt(has_mask=has_mask)) for has_mask in (True, False)
    )
    layer = [block.id for block in partition(model)].index("model.layers.1")
    peaks = [one.prefill.activation_bytes[layer] for one in (masked, plain)]
    assert peaks[0] >= peaks[1] + 2 * CONTEXT * CONTEXT
    graph = trace("llama", batch=2)
    assert (
        graph.base_activation_bytes + block_of(graph, "model.layers.1").prefill.activation_bytes == peaks[0]
    )


def test_the_model_is_left_as_it_was() -> None:
    model = build("llama")
    model.get_submodule("model.rotary_emb").register_buffer("mark", torch.arange(3))
    before = {named.fqn: named.tensor for named in named_tensors(model)}
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    trace_model(model, workload_for(model, CONTEXT))
    after = {named.fqn: named.tensor for named in named_tensors(model)}
    assert list(before) == list(after)
    assert all(before[fqn] is after[fqn] for fqn in before)
    assert hooks == sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


def test_two_traces_are_equal() -> None:
    assert trace("qwen2_moe", batch=2) == trace.__wrapped__("qwen2_moe", batch=2)


class Twisted(transformers.LlamaForCausalLM):
    """Reads a layer's weights from outside, calls one twice, skips one, counts in a buffer."""

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        self.counter = Counter(config.hidden_size)
        self.probe = nn.Linear(config.hidden_size, config.hidden_size)
        self.twice = nn.Linear(config.vocab_size, config.vocab_size)
        self.never = nn.Linear(4, 4)

    def forward(self, *args: object, **kwargs: object) -> object:
        output = super().forward(*args, **kwargs)
        output.logits = self.twice(self.twice(output.logits))
        self.counter(self.probe.weight.sum())
        self.probe(self.model.embed_tokens.weight[:1])
        return output


class Counter(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return value * self.scale


def test_reasons_not_to_stream() -> None:
    values = ARCHITECTURES["llama"][1]
    with torch.device("meta"):
        model = Twisted._from_config(transformers.LlamaConfig(**values)).eval()
    graph = trace_model(model, workload_for(model, CONTEXT))
    reasons = {block.id: block.resident_reason for block in graph.blocks}
    assert reasons["probe"] is Reason.USED_OUTSIDE
    assert reasons["model.embed_tokens"] is Reason.USED_OUTSIDE
    assert reasons["twice"] is Reason.REPEATED
    assert reasons["never"] is Reason.NOT_CALLED
    assert reasons["counter"] is Reason.MUTATED
    assert reasons["model.layers.0"] is None
    assert block_of(graph, "twice").num_calls == 2


def test_no_split_is_the_users() -> None:
    model = build("llama")
    graph = trace_model(model, workload_for(model, CONTEXT), no_split=("LlamaMLP",))
    ids = [block.id for block in graph.blocks]
    assert ids[2:6] == [
        "model.layers.0.input_layernorm",
        "model.layers.0.self_attn",
        "model.layers.0.post_attention_layernorm",
        "model.layers.0.mlp",
    ]
    assert kv_bytes(graph) == kv_bytes(trace("llama"))


class Stubborn(transformers.LlamaForCausalLM):
    """A model whose forward looks at values."""

    def forward(self, *args: object, **kwargs: object) -> object:
        output = super().forward(*args, **kwargs)
        if output.logits.sum().item() > 0:
            return output
        return output


def test_a_forward_that_cannot_be_traced_is_said_so() -> None:
    values = ARCHITECTURES["llama"][1]
    with torch.device("meta"):
        model = Stubborn._from_config(transformers.LlamaConfig(**values)).eval()
    graph = trace_model(model, workload_for(model, CONTEXT))
    assert not graph.traced
    assert graph.trace_note == (
        "a forward on meta tensors fails with RuntimeError: Tensor.item() cannot be called on meta tensors"
    )
    assert [block.id for block in graph.blocks][:3] == [
        "model.embed_tokens",
        "model.layers.0",
        "model.layers.1",
    ]
    assert kv_bytes(graph) == kv_bytes(trace("llama"))
    assert graph.edges == ()
    assert block_of(graph, "model.layers.0").prefill.flops > 0


def test_no_block_streams_of_a_model_that_was_never_seen_running() -> None:
    """Its code may read a weight without calling the module, as `F.linear` does: only a trace would tell."""
    values = ARCHITECTURES["llama"][1]
    with torch.device("meta"):
        model = Stubborn._from_config(transformers.LlamaConfig(**values)).eval()
    graph = trace_model(model, workload_for(model, CONTEXT))
    assert {block.resident_reason for block in graph.blocks} <= {Reason.UNTRACED, Reason.TIED}
    assert block_of(graph, "model.layers.0").resident_reason is Reason.UNTRACED


class Undefined(transformers.LlamaForCausalLM):
    """A model whose config leads it to divide by nothing."""

    def forward(self, *args: object, **kwargs: object) -> object:
        return 1 // 0


def test_a_forward_that_divides_by_nothing_is_said_so() -> None:
    values = ARCHITECTURES["llama"][1]
    with torch.device("meta"):
        model = Undefined._from_config(transformers.LlamaConfig(**values)).eval()
    graph = trace_model(model, workload_for(model, CONTEXT))
    assert not graph.traced
    assert graph.trace_note == (
        "a forward on meta tensors fails with ZeroDivisionError: integer division or modulo by zero"
    )


class Talkative(transformers.LlamaForCausalLM):
    """A model whose complaint names things of one machine."""

    def forward(self, *args: object, **kwargs: object) -> object:
        raise ValueError(f"{object.__repr__(self)}\n of /home/someone/model.py wants a/b")


def test_the_note_holds_nothing_of_this_machine() -> None:
    values = ARCHITECTURES["llama"][1]
    with torch.device("meta"):
        model = Talkative._from_config(transformers.LlamaConfig(**values)).eval()
    note = trace_model(model, workload_for(model, CONTEXT)).trace_note
    assert note.startswith("a forward on meta tensors fails with ValueError: <")
    assert note.endswith("Talkative object at ...> of ... wants a/b")


class Preallocating(transformers.LlamaPreTrainedModel, transformers.GenerationMixin):
    """Makes its cache before the layers run, which write into it."""

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(WritingLayer(config.hidden_size) for _ in range(2))

    def forward(
        self, input_ids: torch.Tensor, state: list[torch.Tensor] | None = None
    ) -> transformers.utils.ModelOutput:
        hidden = self.embed(input_ids)
        state = state or [hidden.new_zeros(hidden.shape[0], 7, hidden.shape[2]) for _ in self.layers]
        for layer, kept in zip(self.layers, state, strict=True):
            hidden = layer(hidden, kept)
        return transformers.utils.ModelOutput(logits=hidden, state=state)


class WritingLayer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.proj = nn.Linear(size, size)

    def forward(self, hidden: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        kept.copy_(self.proj(self.norm(hidden))[:, -1:])
        return hidden + kept[:, :1]


def test_a_cache_made_beforehand_belongs_to_the_block_that_fills_it() -> None:
    with torch.device("meta"):
        model = Preallocating(transformers.LlamaConfig(**ARCHITECTURES["llama"][1])).eval()
    graph = trace_model(model, workload_for(model, CONTEXT))
    assert graph.traced, graph.trace_note
    assert {block.id: block.kv_bytes for block in graph.blocks} == {
        "embed": 0,
        "layers.0": 7 * 32 * 4,
        "layers.1": 7 * 32 * 4,
    }


def test_what_a_model_declares_indivisible() -> None:
    """The outermost of them, of the model's own declaration, whatever the user says."""
    model = build("llama")
    expected = tuple(f"model.layers.{number}" for number in range(3))
    assert trace("llama").declared_no_split == expected
    graph = trace_model(model, workload_for(model, CONTEXT), no_split=("LlamaMLP",))
    assert graph.declared_no_split == expected
    model._no_split_modules = ["LlamaAttention", "LlamaDecoderLayer", "LlamaRotaryEmbedding"]
    assert declared_no_split(model) == (*expected, "model.rotary_emb")
    assert declared_no_split(nn.Linear(1, 1)) == ()


def test_a_module_is_traced_with_the_inputs_that_are_given() -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.ReLU(), nn.Linear(4, 2, device="meta")).eval()
    workload, _ = make_workload(None, batch=3, context=8, dtype="fp32")
    graph = trace_model(model, workload, inputs=lambda batch: {"": (torch.empty(batch, 4, device="meta"),)})
    assert (graph.traced, graph.trace_note) == (True, "")
    assert [block.prefill.flops for block in graph.blocks] == [2 * 3 * 4 * 4, 2 * 3 * 4 * 2]
    assert [block.prefill.num_operations for block in graph.blocks] == [2, 1]  # the first one's with the ReLU
    assert [block.decode for block in graph.blocks] == [block.prefill for block in graph.blocks]
    assert handed(graph) == {("0", "2"): (3 * 4 * 4, 3 * 4 * 4)}
    assert [block.resident_reason for block in graph.blocks] == [None, None]
    named = trace_model(model, workload, inputs=lambda batch: {"input": torch.empty(batch, 4, device="meta")})
    assert named == graph


def test_a_module_that_does_not_take_the_inputs_is_not_traced() -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"))
    workload, _ = make_workload(None, context=8, dtype="fp32")
    graph = trace_model(model, workload, inputs=lambda batch: {"": (torch.empty(batch, 5, device="meta"),)})
    assert not graph.traced
    assert graph.trace_note == (
        "a forward on meta tensors fails with RuntimeError: a and b must have same reduction dim, but got"
        " [1, 5] X [4, 4]."
    )


def test_a_module_of_unknown_inputs_is_not_traced() -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.ReLU(), nn.Linear(4, 2, device="meta"))
    workload, _ = make_workload(None, context=8, dtype="fp32")
    graph = trace_model(model, workload)
    assert not graph.traced
    assert graph.trace_note == "the inputs of a module that is no transformers model are not known"
    assert [block.id for block in graph.blocks] == ["0", "2"]
    assert graph.max_context is None
    assert graph.generates is False
    assert graph.blocks[0].prefill.flops == 2 * (4 * 4 + 4) * 8
