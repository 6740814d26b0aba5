from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
import transformers
from live_bytes import run_forwards
from tiny_models import TEXT, build, build_class, workload_for
from torch import nn
from transformers import PreTrainedModel
from transformers.generation.utils import GenerationMixin
from truth_models import MORE, build_meta

from bayplan.planner.model.activity import ActivityMode
from bayplan.planner.model.blocks import partition
from bayplan.planner.model.experts import experts_copied_in_steps, find_experts, hook_experts
from bayplan.planner.model.trace import trace_model
from bayplan.schemas.graph import BlockExperts, ModelGraph
from bayplan.skeleton.transformers_adapter import replaceable_experts

CONTEXT = 24
HIDDEN = 32
QWEN3 = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "head_dim": 8}
NEMOTRON = {
    **MORE["nemotron_h"][1],
    "layers_block_type": ["mamba", "moe", "attention", "moe"],
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
FAMILIES: dict[str, tuple[str, dict[str, object], tuple[str, ...], int, int, int]] = {
    "deepseek_v3": (*MORE["deepseek_v3"], ("model.layers.1", "model.layers.2"), 4, 2, 3 * 32),
    "gpt_oss": (*MORE["gpt_oss"], ("model.layers.0", "model.layers.1", "model.layers.2"), 4, 2, 3 * 64),
    "granitemoe": (
        "GraniteMoeForCausalLM",
        {**TEXT, "num_hidden_layers": 1, "num_local_experts": 4, "num_experts_per_tok": 2},
        ("model.layers.0",),
        4,
        2,
        3 * 64,
    ),
    "jamba": (*MORE["jamba"], ("model.layers.1",), 4, 2, 3 * 64),
    "mixtral": (
        "MixtralForCausalLM",
        {**TEXT, "num_hidden_layers": 1, "num_local_experts": 8, "num_experts_per_tok": 2},
        ("model.layers.0",),
        8,
        2,
        3 * 64,
    ),
    "nemotron_h": ("NemotronHForCausalLM", NEMOTRON, ("model.layers.1", "model.layers.3"), 4, 2, 2 * 16),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {**TEXT, **QWEN3, "num_hidden_layers": 2, "mlp_only_layers": [0]},
        ("model.layers.1",),
        8,
        3,
        3 * 16,
    ),
}
"""Class, config, blocks with experts, experts, routes of a position, and the rows of one expert's matrices if
each has as many columns as the hidden state."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)


def trace(model: PreTrainedModel, *, batch: int = 1, chunk: int | None = None) -> ModelGraph:
    graph = trace_model(model, workload_for(model, CONTEXT, batch=batch, chunk=chunk))
    assert graph.traced, graph.trace_note
    return graph


def experts_of(graph: ModelGraph) -> dict[str, BlockExperts]:
    return {block.id: block.experts for block in graph.blocks if block.experts is not None}


def found_in(model: PreTrainedModel) -> dict[str, tuple[str, int]]:
    blocks = partition(model)
    return {
        blocks[index].id: (found.fqn, found.count) for index, found in find_experts(model, blocks).items()
    }


@pytest.mark.parametrize("implementation", ["batched_mm", "eager", "grouped_mm"])
@pytest.mark.parametrize("name", FAMILIES)
def test_experts_by_formula(name: str, implementation: str) -> None:
    """Whatever computes them, and in chunks, of which the last whole one is the prefill."""
    class_name, values, ids, count, per_token, rows = FAMILIES[name]
    model = build_class(class_name, values, on_meta=True)
    model.set_experts_implementation(implementation)
    graph = trace(model, batch=2, chunk=8)
    found = experts_of(graph)
    routed_flops = 2 * per_token * rows * HIDDEN
    assert tuple(found) == ids
    for block_id, experts in found.items():
        assert experts == BlockExperts(
            module=experts.module,
            count=count,
            per_token=per_token,
            prefill_flops=2 * 8 * routed_flops,
            decode_flops=2 * routed_flops,
            prefill_hidden_bytes=2 * 8 * HIDDEN * 4,
            decode_hidden_bytes=2 * HIDDEN * 4,
        )
        assert experts.module.startswith(f"{block_id}.")
        tensors = model.get_submodule(experts.module).state_dict()
        assert {tensor.shape[0] for tensor in tensors.values()} == {count}


@pytest.mark.parametrize("implementation", ["batched_mm", "eager", "grouped_mm"])
def test_the_rest_of_the_block_is_its_dense_part(implementation: str) -> None:
    model = build("qwen2_moe")
    model.set_experts_implementation(implementation)
    layer = next(block for block in trace(model).blocks if block.id == "model.layers.1")
    assert layer.experts is not None
    attention = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * 16
    shared = 3 * HIDDEN * 32 + HIDDEN
    dense = 2 * (attention + HIDDEN * 4 + shared)
    assert layer.prefill.flops - layer.experts.prefill_flops == CONTEXT * (dense + 4 * CONTEXT * HIDDEN)
    assert layer.decode.flops - layer.experts.decode_flops == dense + 4 * (CONTEXT + 1) * HIDDEN


def test_one_by_one_takes_no_more_than_is_planned() -> None:
    """Where nobody knows which experts are routed to, all positions go to the same ones."""
    values = {**TEXT, "num_local_experts": 8, "num_experts_per_tok": 2}
    models = [build_class("MixtralForCausalLM", values, on_meta=on_meta) for on_meta in (True, False)]
    for model in models:
        model.set_experts_implementation("eager")
    for router in (module for name, module in models[1].named_modules() if name.endswith("mlp.gate")):
        router.weight.data.zero_()  # ties go to the same experts
    graph = trace(models[0])
    planned = graph.base_activation_bytes + max(block.prefill.activation_bytes for block in graph.blocks)
    measured = run_forwards(models[1], [CONTEXT], use_cache=True, logits_to_keep=1)
    assert measured.activations <= planned <= 1.02 * measured.activations


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_step_on_an_accelerator_copies(name: str) -> None:
    """The weights of every route, and the biases, as `generate()` has them by `batched_mm`: both traced."""
    class_name, values, ids, _, per_token, rows = FAMILIES[name]
    copied: dict[str, dict[str, int]] = {}
    steps: dict[str, dict[str, int]] = {}
    for implementation in ("batched_mm", "eager", "grouped_mm"):
        model = build_class(class_name, values, on_meta=True)
        model.set_experts_implementation(implementation)
        blocks = trace(model, batch=2, chunk=8).blocks
        copied[implementation] = {block.id: block.copied_bytes for block in blocks if block.copied_bytes}
        steps[implementation] = {block.id: block.decode.activation_bytes for block in blocks}
    assert copied["batched_mm"] == copied["eager"] == {}
    assert tuple(copied["grouped_mm"]) == ids
    for block_id, num_bytes in copied["grouped_mm"].items():
        weights = 2 * per_token * rows * HIDDEN * 4
        assert weights <= num_bytes <= 1.1 * weights
        # The largest moment of a step may be another one, such as that of attention.
        without = steps["grouped_mm"][block_id]
        assert max(without, num_bytes) <= steps["batched_mm"][block_id] <= without + num_bytes


def test_a_step_by_copies_takes_no_more_than_is_planned() -> None:
    """What `generate()` does on an accelerator, on the CPU: another implementation for the step alone."""
    values = {**TEXT, "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 512}
    meta, real = (build_class("MixtralForCausalLM", values, on_meta=on_meta) for on_meta in (True, False))
    graph = trace(meta, chunk=1)
    most = max(block.decode.activation_bytes + block.copied_bytes for block in graph.blocks)
    real.set_experts_implementation("batched_mm")
    measured = run_forwards(real, [1] * CONTEXT, use_cache=True, logits_to_keep=1)
    without = max(block.decode.activation_bytes for block in graph.blocks)
    assert graph.base_activation_bytes + without < measured.activations
    assert measured.activations <= graph.base_activation_bytes + most <= 1.1 * measured.activations


def test_experts_that_stay_with_their_block_are_copied_too() -> None:
    model = build("mixtral", num_hidden_layers=2)
    experts = model.get_submodule("model.layers.0.mlp.experts")
    experts.register_parameter("norm", nn.Parameter(torch.ones(HIDDEN)))
    graph = trace(model)
    assert list(experts_of(graph)) == ["model.layers.1"]
    first, second = (block.copied_bytes for block in graph.blocks if block.copied_bytes)
    assert first == second > 0


def test_which_experts_are_copied() -> None:
    model = build("mixtral", num_hidden_layers=2)
    assert experts_copied_in_steps(model) == replaceable_experts(model)
    assert len(experts_copied_in_steps(model)) == 2
    model.set_experts_implementation("eager")
    assert experts_copied_in_steps(model) == ()


def test_without_a_step_nothing_is_copied() -> None:
    model = build("mixtral", num_hidden_layers=2).model
    assert not any(block.copied_bytes for block in trace(model).blocks)


def test_where_generate_keeps_to_one_implementation_nothing_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(GenerationMixin, "_optimize_model_for_decode")
    assert not any(block.copied_bytes for block in trace(build("mixtral")).blocks)


@pytest.mark.parametrize("name", ["llama", "llama4"])
def test_no_experts_or_none_that_can_be_replaced(name: str) -> None:
    """Llama 4 sends every position through all experts in one product of its own."""
    model = build_meta(name)
    assert found_in(model) == {}
    assert experts_of(trace(model)) == {}


def test_a_block_may_be_nothing_but_experts() -> None:
    model = build("mixtral", num_hidden_layers=1)
    blocks = partition(model, no_split=["MixtralExperts"])
    ((index, found),) = find_experts(model, blocks).items()
    assert found.fqn == blocks[index].id == "model.layers.0.mlp.experts"


def test_two_groups_of_experts_stay_with_their_block() -> None:
    model = build("mixtral", num_hidden_layers=2)
    first, second = (model.get_submodule(f"model.layers.{number}.mlp") for number in (0, 1))
    first.more_experts = type(second.experts)(model.config)
    assert found_in(model) == {"model.layers.1": ("model.layers.1.mlp.experts", 4)}


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("norm", nn.Parameter(torch.ones(HIDDEN))),
        ("scale", nn.Parameter(torch.ones(4))),
        ("table", nn.Parameter(torch.ones(3, HIDDEN))),
    ],
)
def test_experts_that_share_a_tensor_stay_with_their_block(name: str, extra: nn.Parameter) -> None:
    model = build("mixtral", num_hidden_layers=2)
    experts = model.get_submodule("model.layers.0.mlp.experts")
    experts.register_parameter(name, extra)
    assert list(found_in(model)) == ["model.layers.1"]
    experts._parameters.pop(name)
    experts.act_fn.register_buffer(name, extra.data)
    assert list(found_in(model)) == ["model.layers.1"]


def test_tied_experts_stay_with_their_blocks() -> None:
    model = build("mixtral", num_hidden_layers=3)
    first, second = (model.get_submodule(f"model.layers.{number}.mlp.experts") for number in (0, 1))
    second.down_proj = first.down_proj
    assert list(experts_of(trace(model))) == ["model.layers.2"]


def test_experts_that_something_else_reads_stay_with_their_block() -> None:
    model = build("mixtral", num_hidden_layers=2)
    block = model.get_submodule("model.layers.0.mlp")

    def read(module: nn.Module, args: object) -> None:
        block.experts.down_proj.sum()

    block.gate.register_forward_pre_hook(read)
    assert list(experts_of(trace(model))) == ["model.layers.1"]


def test_experts_that_no_forward_calls_stay_with_their_block() -> None:
    model = build("mixtral", num_hidden_layers=2)
    block = model.get_submodule("model.layers.0.mlp")
    block.forward = lambda hidden_states: hidden_states
    assert list(experts_of(trace(model))) == ["model.layers.1"]


def test_calls_that_route_differently_leave_the_experts_with_their_block() -> None:
    model = build("mixtral", num_hidden_layers=2)
    block = model.get_submodule("model.layers.0.mlp")

    def one_fewer(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        hidden_states, top_k_index, top_k_weights = args
        return None if len(hidden_states) > 1 else (hidden_states, top_k_index[:, :1], top_k_weights[:, :1])

    block.experts.register_forward_pre_hook(one_fewer)
    assert list(experts_of(trace(model))) == ["model.layers.1"]


def test_a_model_that_is_not_traced_says_nothing_of_its_experts() -> None:
    model = build("mixtral", num_hidden_layers=1)

    def fail(module: nn.Module, args: object) -> None:
        raise RuntimeError

    model.get_submodule("lm_head").register_forward_pre_hook(fail)
    graph = trace_model(model, workload_for(model, CONTEXT))
    assert not graph.traced
    assert experts_of(graph) == {}


def test_the_experts_are_left_as_they_were() -> None:
    model = build("mixtral", num_hidden_layers=1)
    trace(model)
    experts = model.get_submodule("model.layers.0.mlp.experts")
    assert not experts._forward_hooks
    assert not experts._forward_pre_hooks
    assert model.config._experts_implementation == "grouped_mm"


class Routed(nn.Module):
    """Takes anything and multiplies the positions once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 6, device="meta"))

    def forward(self, hidden_states: object, *args: object, **kwargs: object) -> object:
        return hidden_states @ self.weight if isinstance(hidden_states, torch.Tensor) else None


def positions(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, 4, device="meta")


def routes(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int64, device="meta")


@pytest.mark.parametrize(
    ("call", "per_token", "num_bytes"),
    [
        (lambda module: module(positions(5), routes(5, 2), None), 2, 80),
        (lambda module: module(positions(5), top_k_index=routes(5, 3)), 3, 80),
        (lambda module: module(hidden_states=positions(5), top_k_index=routes(5, 1)), 1, 80),
        (lambda module: module(positions(5)), None, None),
        (lambda module: module(None, routes(5, 2)), None, None),
        (lambda module: module(positions(5), (1, 2)), None, None),
        (lambda module: module(positions(1, 5), routes(5, 2)), None, None),
        (lambda module: module(positions(5), routes(5)), None, None),
        (lambda module: module(positions(5), routes(10, 2)), None, None),
    ],
)
def test_what_experts_are_called_with(
    call: Callable[[nn.Module], object], per_token: int | None, num_bytes: int | None
) -> None:
    module, mode = Routed(), ActivityMode({}, frozenset())
    with torch.no_grad(), mode, contextlib.ExitStack() as stack:
        hook_experts(module, 7, mode, stack)
        mode.enter(7)
        call(module)
        mode.exit(7, None)
    assert mode.log.expert_routes == {7: {per_token}}
    assert mode.log.expert_bytes.get(7) == num_bytes
    assert mode.log.expert_flops[7] == mode.log.flops.get(7, 0)
