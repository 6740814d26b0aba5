"""Images and sound beside the text: what the towers do, against real forwards on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
import transformers
from tiny_models import build, workload_for
from torch import nn
from tower_models import IMAGE_ID, TOWERS, build_tower

from bayplan.planner.model.blocks import partition
from bayplan.planner.model.forwards import Observation, TowerForward, observe
from bayplan.planner.model.inputs import Attempt, make_inputs
from bayplan.planner.model.modalities import accepts
from bayplan.planner.model.tensor_arguments import tensors_in
from bayplan.planner.model.towers import observe_towers
from bayplan.planner.model.trace import trace_model
from bayplan.schemas.graph import ModelGraph
from bayplan.schemas.plan import Workload
from bayplan.schemas.types import Reason
from bayplan.skeleton.tree import named_tensors

CONTEXT = 24
# The others refuse text alone, so that their tower is part of every prefill.
BESIDE_TEXT = sorted(set(TOWERS) - {"idefics"})


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)


@functools.cache
def trace(name: str, *, batch: int = 1, chunk: int | None = None) -> ModelGraph:
    model = build_tower(name)
    return trace_model(model, workload_for(model, CONTEXT, batch=batch, chunk=chunk))


def reasons(graph: ModelGraph) -> dict[str, Reason | None]:
    return {block.id: block.resident_reason for block in graph.blocks}


def seen_with_tower(name: str, workload: Workload) -> tuple[Observation, TowerForward]:
    model = build_tower(name)
    blocks = partition(model)
    attempt = Attempt(has_mask=workload.batch > 1)
    observation = observe(model, blocks, workload, attempt)
    (tower,) = observe_towers(model, blocks, workload, attempt, observation.prefill.num_calls.keys())
    return observation, tower


def edges(graph: ModelGraph) -> dict[tuple[str, str], tuple[int, int]]:
    return {(edge.source, edge.target): (edge.prefill_bytes, edge.decode_bytes) for edge in graph.edges}


class Calls:
    """The calls of a real forward: blocks in order, and the bytes that each hands on."""

    def __init__(self, name: str, tower: TowerForward, num_tokens: int, batch: int) -> None:
        self.order: list[int] = []
        self.output_bytes: dict[int, int] = {}
        model = build_tower(name, on_meta=False)
        for index, block in enumerate(partition(model)):
            if not block.is_own:
                self._watch(block.module, index)
        inputs = make_inputs(model, tower.attempt, batch=batch, num_tokens=num_tokens)
        for argument, tensor in inputs.items():
            if tensor.is_meta:
                inputs[argument] = torch.rand(tensor.shape)
        options = {"logits_to_keep": 1} if accepts(model, "logits_to_keep") else {}
        with torch.no_grad():
            self.output = model(**inputs, **options, use_cache=True)

    def _watch(self, module: nn.Module, index: int) -> None:
        def returned(module: nn.Module, args: object, output: object) -> None:
            self.order.append(index)
            handed = {one.untyped_storage().data_ptr(): one.nbytes for one in tensors_in(output)}
            self.output_bytes[index] = sum(handed.values())

        module.register_forward_hook(returned)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", sorted(set(BESIDE_TEXT) - {"llama4_mm"}))
def test_a_real_forward_takes_the_inputs_and_calls_the_same_blocks(name: str, batch: int) -> None:
    workload = workload_for(build_tower(name), CONTEXT, batch=batch)
    _, tower = seen_with_tower(name, workload)
    real = Calls(name, tower, CONTEXT, batch)
    figures = tower.figures
    traced = sorted(figures.first_call, key=lambda index: figures.first_call[index])
    assert tower.is_whole
    assert traced == list(dict.fromkeys(real.order))[: len(traced)]
    assert [figures.num_calls[index] for index in traced[:-1]] == [
        real.order.count(index) for index in traced[:-1]
    ]
    assert {index: figures.output_bytes[index] for index in figures.output_bytes} == {
        index: real.output_bytes[index] for index in figures.output_bytes
    }


@pytest.mark.parametrize(
    ("name", "block_id"),
    [
        ("llama4_mm", "vision_model:own"),
        ("mllama", "model.vision_model:own"),
        ("qwen2_audio", "model.audio_tower.embed_positions"),
    ],
)
def test_what_a_tower_reads_without_a_call_is_done_somewhere(name: str, block_id: str) -> None:
    """Whoever has these tensors may have to do all that runs between two calls."""
    block = next(block for block in trace(name).blocks if block.id == block_id)
    assert block.num_calls == 0
    assert block.prefill.activation_bytes > 0


@pytest.mark.parametrize("name", sorted(TOWERS))
def test_a_second_trace_of_a_model_is_equal(name: str) -> None:
    """Transformers registers hooks in a forward that collects hidden states; none may stay."""
    model = build_tower(name)
    workload = workload_for(model, CONTEXT)
    first = trace_model(model, workload)
    assert sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()) == 0
    assert trace_model(model, workload) == first


@pytest.mark.parametrize("name", BESIDE_TEXT)
def test_every_block_is_called_and_what_text_does_not_call_is_conditional(name: str) -> None:
    graph = trace(name)
    assert (graph.traced, graph.trace_note) == (True, "")
    assert Reason.NOT_CALLED not in reasons(graph).values()
    for block in graph.blocks:
        is_text = "language_model" in block.id or block.id.startswith("lm_head")
        if block.resident_reason is Reason.CONDITIONAL:
            assert (block.num_calls, block.decode.flops, block.decode.activation_bytes) == (1, 0, 0)
            assert block.prefill.output_bytes > 0
            # mllama's text reads its images in layers that text alone does not call.
            assert not is_text or block.id.endswith("layers.1")
        else:
            assert is_text or block.resident_reason in (
                Reason.OWN_TENSORS,
                Reason.USED_OUTSIDE,
                Reason.TIED,
            )
    firsts = ("layers.0", "layer.0", "blocks.0")
    tower = next(block for block in graph.blocks if any(first in block.id for first in firsts))
    assert tower.resident_reason is Reason.CONDITIONAL
    assert tower.prefill.flops > 0


@pytest.mark.parametrize("name", BESIDE_TEXT)
def test_text_keeps_its_figures_but_for_what_the_images_take(name: str) -> None:
    observation, _ = seen_with_tower(name, workload_for(build_tower(name), CONTEXT))
    graph = trace(name)
    blocks = partition(build_tower(name))
    flops = {blocks[index].id: flops for index, flops in observation.prefill.flops.items()}
    for block in graph.blocks:
        if block.resident_reason is not Reason.CONDITIONAL:
            assert block.prefill.flops == flops.get(block.id, 0)
    assert sum(block.kv_bytes for block in graph.blocks) >= sum(observation.kv_bytes.values()) > 0


def test_the_image_goes_from_the_tower_into_the_first_layer() -> None:
    graph = trace("llava")
    ids = [block.id for block in graph.blocks]
    assert ids[:3] == [
        "model.language_model.embed_tokens",
        "model.vision_tower.embeddings",
        "model.vision_tower.pre_layrnorm",
    ]
    assert ids.index("model.multi_modal_projector") < ids.index("model.language_model.layers.0")
    handed = edges(graph)
    embedded = CONTEXT * 32 * 4
    assert handed["model.multi_modal_projector", "model.language_model.layers.0"] == (embedded, 0)
    assert handed["model.language_model.embed_tokens", "model.language_model.layers.0"] == (embedded, 128)
    targets = {target for source, target in handed if source == "model.multi_modal_projector"}
    assert targets == {"model.language_model.layers.0"}


def test_features_of_the_towers_depth_go_behind_the_first_layer() -> None:
    """Qwen3-VL adds what its tower's first layer has seen to the stream behind the text's first layer."""
    handed = edges(trace("qwen3_vl"))
    assert handed["model.visual.deepstack_merger_list.0", "model.language_model.layers.1"][0] > 0


def test_a_model_that_asks_for_images_is_traced_with_them() -> None:
    graph = trace("idefics")
    assert graph.traced
    assert set(reasons(graph).values()) == {None}
    last = "model.vision_model.encoder.layers.1"
    crossings = {target: sizes for (source, target), sizes in edges(graph).items() if source == last}
    features = 5 * 32 * 4
    assert crossings["model.gated_cross_attn_layers.0"] == crossings["model.gated_cross_attn_layers.1"]
    assert crossings["model.gated_cross_attn_layers.0"] == (features, features)
    tower = next(block for block in graph.blocks if block.id == last)
    assert tower.prefill.flops > tower.decode.flops == 0


def test_the_cache_of_layers_that_read_images_is_counted() -> None:
    graph = trace("mllama")
    _, tower = seen_with_tower("mllama", workload_for(build_tower("mllama"), CONTEXT))
    real = Calls("mllama", tower, CONTEXT, 1).output
    (crossing,) = [block for block in graph.blocks if block.id == "model.language_model.layers.1"]
    layer = real.cache.layers[1]
    assert crossing.kv_bytes == layer.keys.nbytes + layer.values.nbytes > 0


def test_an_image_that_is_longer_than_a_chunk_leaves_the_texts_memory_alone() -> None:
    workload = workload_for(build_tower("llava"), CONTEXT, chunk=3)
    observation, tower = seen_with_tower("llava", workload)
    assert tower.attempt.num_placeholders == 4
    assert not tower.fits
    graph = trace("llava", chunk=3)
    layer = next(block for block in graph.blocks if block.id == "model.language_model.layers.1")
    index = [block.id for block in partition(build_tower("llava"))].index(layer.id)
    peak = layer.prefill.activation_bytes + graph.base_activation_bytes
    assert peak == observation.prefill.activation_bytes[index]
    assert reasons(graph)["model.multi_modal_projector"] is Reason.CONDITIONAL


def test_what_lives_beside_the_text_is_added_to_layers_that_were_not_watched() -> None:
    observation, tower = seen_with_tower("llava", workload_for(build_tower("llava"), CONTEXT))
    graph = trace("llava")
    ids = [block.id for block in partition(build_tower("llava"))]
    norm = ids.index("model.language_model.norm")
    more = tower.figures.activation_bytes[tower.last] - observation.prefill.activation_bytes[tower.last]
    block = next(block for block in graph.blocks if block.id == ids[norm])
    if norm not in tower.figures.activation_bytes:
        expected = observation.prefill.activation_bytes[norm] + max(0, more)
    else:
        expected = max(observation.prefill.activation_bytes[norm], tower.figures.activation_bytes[norm])
    assert block.prefill.activation_bytes + graph.base_activation_bytes == expected


def test_placeholders_stand_where_the_image_is() -> None:
    _, tower = seen_with_tower("qwen2_vl", workload_for(build_tower("qwen2_vl"), CONTEXT, batch=2))
    inputs = make_inputs(build_tower("qwen2_vl"), tower.attempt, batch=2, num_tokens=CONTEXT)
    assert inputs["image_grid_thw"].tolist() == [[1, 6, 6]] * 2
    assert tuple(inputs["pixel_values"].shape) == (2 * 36, 3 * 2 * 4 * 4)
    assert (inputs["input_ids"] == IMAGE_ID).sum(1).tolist() == [9, 9]
    assert inputs["mm_token_type_ids"].sum(1).tolist() == [9, 9]


def test_the_model_keeps_nothing_of_the_images() -> None:
    """Qwen2-VL notes how far the positions of an image are off, for the forwards that follow."""
    model = build_tower("qwen2_vl")
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    tensors = {named.fqn: named.tensor for named in named_tensors(model)}
    trace_model(model, workload_for(model, CONTEXT))
    assert model.model.rope_deltas is None
    for path, module in model.named_modules():
        assert vars(module).keys() == before[path].keys()
    assert all(named.tensor is tensors[named.fqn] for named in named_tensors(model))


def test_a_tower_whose_layout_is_not_known_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.planner.model.towers.layouts", lambda model, modality, batch: iter(()))
    graph = trace.__wrapped__("llava")
    assert graph.traced
    assert reasons(graph)["model.multi_modal_projector"] is Reason.NOT_CALLED
    assert next(b for b in graph.blocks if b.id == "model.multi_modal_projector").num_calls == 0


def test_a_tower_whose_sizes_make_no_sense_is_not_called() -> None:
    model = build_tower("qwen2_vl")
    model.config.vision_config.patch_size = 0
    graph = trace_model(model, workload_for(model, CONTEXT))
    assert graph.traced
    assert reasons(graph)["model.visual.merger"] is Reason.NOT_CALLED


def test_figures_of_the_tower_hold_where_its_language_model_does_not_take_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build_tower("llava")
    monkeypatch.setattr(
        type(model.model), "get_placeholder_mask", lambda *args, **kwargs: 1 / torch.zeros(2, 2)[3]
    )
    graph = trace_model(model, workload_for(model, CONTEXT))
    projector = next(block for block in graph.blocks if block.id == "model.multi_modal_projector")
    whole = next(block for block in trace("llava").blocks if block.id == "model.multi_modal_projector")
    assert projector.resident_reason is Reason.CONDITIONAL
    assert projector.prefill.flops == whole.prefill.flops
    assert [block.id for block in graph.blocks] == [block.id for block in trace("llava").blocks]
    assert not [edge for edge in graph.edges if edge.source == projector.id]


def test_text_models_have_no_towers() -> None:
    model = build("llama")
    workload = workload_for(model, CONTEXT)
    assert observe_towers(model, partition(model), workload, Attempt(has_mask=False), ()) == ()
