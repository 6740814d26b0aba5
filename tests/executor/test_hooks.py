from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_models import LAYERS, TOKENS, reference
from plan_maker import make_plan
from torch import nn
from transformers import LlamaForCausalLM

from bayplan.executor.errors import ConcurrentUseError, GradientModeError, StreamedWeightsError
from bayplan.executor.hooks import _called_parts, running_test
from bayplan.executor.load import loaded
from bayplan.executor.state import state_of


@pytest.fixture
def streamed(llama: Path) -> Any:
    with loaded(make_plan(llama, stream=LAYERS), llama) as model:
        yield model


def test_forward_with_grad_mode_on_but_nothing_to_differentiate(streamed: Any, llama: Path) -> None:
    streamed.requires_grad_(False)
    assert torch.is_grad_enabled()
    expected = reference(LlamaForCausalLM, llama)(TOKENS).logits
    assert torch.equal(streamed(TOKENS).logits, expected)


def test_input_that_requires_grad(streamed: Any) -> None:
    streamed.requires_grad_(False)
    embedded = torch.zeros(1, 3, 64, requires_grad=True)
    with pytest.raises(GradientModeError) as raised:
        streamed(inputs_embeds=embedded)
    assert str(raised.value) == (
        "model.layers.0: gradients through a streamed block would be wrong: "
        "got an input that requires grad, needed no gradient\n"
        "hint: run under torch.inference_mode(), or plan with more memory so that nothing streams"
    )
    assert raised.value.block == "model.layers.0"
    with torch.inference_mode():
        streamed(inputs_embeds=embedded)


def test_streamed_weight_that_requires_grad(streamed: Any) -> None:
    streamed.requires_grad_(False)
    streamed.model.layers[3].mlp.up_proj.weight.requires_grad_(True)
    with pytest.raises(GradientModeError) as raised:
        streamed(TOKENS)
    assert raised.value.got == "mlp.up_proj.weight requires grad"
    assert raised.value.block == "model.layers.3"
    with torch.no_grad():
        streamed(TOKENS)


def test_gradient_inside_a_nested_argument(streamed: Any) -> None:
    streamed.requires_grad_(False)
    needs = torch.zeros(1, requires_grad=True)
    with pytest.raises(GradientModeError):
        streamed.model.layers[0](torch.zeros(1, 3, 64), position_embeddings=([{"a": needs}],))


def test_second_thread_during_a_forward(streamed: Any) -> None:
    caught: list[BaseException] = []

    def other() -> None:
        try:
            with torch.no_grad():
                streamed(TOKENS)
        except ConcurrentUseError as error:
            caught.append(error)

    def inside(module: nn.Module, args: object) -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    with torch.no_grad():
        expected = streamed(TOKENS).logits
        handle = streamed.model.layers[2].mlp.register_forward_pre_hook(inside)
        got = streamed(TOKENS).logits
        handle.remove()
        assert torch.equal(got, expected)
        assert torch.equal(streamed(TOKENS).logits, expected)
    assert len(caught) == 1
    assert isinstance(caught[0], ConcurrentUseError)
    assert (caught[0].block, caught[0].held) == ("model.layers.0", "model.layers.2")


def test_compiled_block_gives_the_same(streamed: Any) -> None:
    with torch.no_grad():
        expected = streamed(TOKENS).logits
        for layer in streamed.model.layers:
            layer.compile(backend="eager")
        for _ in range(2):
            assert torch.equal(streamed(TOKENS).logits, expected)


@pytest.mark.slow
def test_whole_model_compiled_gives_the_same(streamed: Any) -> None:
    with torch.no_grad():
        expected = streamed(TOKENS).logits
        compiled = torch.compile(streamed, backend="eager")
        for _ in range(2):
            assert torch.equal(compiled(TOKENS).logits, expected)


def test_slots_stay_where_they_are(streamed: Any) -> None:
    def addresses() -> list[int]:
        return [layer.mlp.up_proj.weight.data_ptr() for layer in streamed.model.layers]

    before = addresses()
    with torch.no_grad():
        streamed(TOKENS)
    assert addresses() == before
    assert before[0] == before[2] == before[4] != before[1] == before[3]


def test_skipped_layers_are_noted(streamed: Any) -> None:
    ring = state_of(streamed).stream.ring
    with ring._changed:
        state = ring._state
        assert ring._changed.wait_for(lambda: state.next_fill() is None and state.filling is None, 60)
    with torch.no_grad():
        hidden = torch.zeros(1, 3, 64)
        angles = streamed.model.rotary_emb(hidden, torch.arange(3)[None])
        streamed.model.layers[1](hidden, position_embeddings=angles)
    assert ring.num_skipped == 1


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, ask: Any) -> None:
        self.inner(lambda: self.seen.append((ask(0), ask(1))))


class Inner(nn.Module):
    def forward(self, look: Any) -> None:
        look()


def test_calls_on_this_stack_are_found() -> None:
    inner, idle = Inner(), Inner()
    outer = Outer(inner)
    is_running = running_test([inner, idle])
    me = threading.get_ident()
    outer(lambda position: is_running(position, me))
    assert outer.seen == [(True, False)]
    assert not is_running(0, me)


def test_calls_on_another_stack_are_found() -> None:
    inner = Inner()
    is_running = running_test([inner])
    entered, done = threading.Event(), threading.Event()

    def look() -> None:
        entered.set()
        assert done.wait(60)

    thread = threading.Thread(target=lambda: inner(look))
    thread.start()
    assert entered.wait(60)
    assert thread.ident is not None
    assert is_running(0, thread.ident)
    done.set()
    thread.join()
    assert not is_running(0, thread.ident)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda layer: layer.mlp(torch.zeros(1, 3, 64)), "LlamaMLP"),
        (lambda layer: layer.input_layernorm(torch.zeros(1, 3, 64)), "LlamaRMSNorm"),
    ],
)
def test_part_called_outside_its_block(streamed: Any, call: Callable[[Any], object], part: str) -> None:
    streamed.requires_grad_(False)
    expected = streamed(TOKENS).logits
    with pytest.raises(StreamedWeightsError) as raised:
        call(streamed.model.layers[4])
    assert str(raised.value) == (
        f"model.layers.4: calling {part} outside its block does not work on a model with streamed blocks: "
        "got weights that share a slot with those of other blocks, needed weights that are all in memory\n"
        "hint: call the block as a whole, or plan with more memory"
    )
    assert torch.equal(streamed(TOKENS).logits, expected)


def test_part_called_from_inside_another_block(streamed: Any) -> None:
    def elsewhere(module: nn.Module, args: tuple[torch.Tensor]) -> None:
        streamed.model.layers[2].mlp(args[0])

    handle = streamed.model.layers[4].mlp.register_forward_pre_hook(elsewhere)
    with torch.no_grad(), pytest.raises(StreamedWeightsError, match=r"model\.layers\.2: calling LlamaMLP"):
        streamed(TOKENS)
    handle.remove()


def test_part_called_again_inside_its_own_block(streamed: Any) -> None:
    layer = streamed.model.layers[4]
    seen: list[torch.Tensor] = []
    with torch.no_grad():
        handle = layer.self_attn.register_forward_hook(lambda *_: seen.append(layer.mlp(torch.ones(1, 64))))
        streamed(TOKENS)
        handle.remove()
    assert seen[0].shape == (1, 64)


def test_parts_in_a_list_are_hooked_themselves() -> None:
    block = nn.ModuleDict({"parts": nn.ModuleList([nn.Linear(2, 2), nn.ReLU()]), "norm": nn.LayerNorm(2)})
    assert list(_called_parts(block)) == [block["parts"][0], block["norm"]]


def test_compiled_block_is_one_graph(streamed: Any) -> None:
    graphs: list[object] = []

    def backend(graph: Any, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    with torch.no_grad():
        angles = streamed.model.rotary_emb(torch.zeros(1, 3, 64), torch.arange(3)[None])
        layer = streamed.model.layers[0]
        layer.compile(backend=backend)
        layer(torch.zeros(1, 3, 64), position_embeddings=angles)
    assert len(graphs) == 1
