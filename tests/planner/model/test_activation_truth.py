"""Planned activations against the bytes that are alive in real forwards, counted by other code."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from live_bytes import (
    LiveStorages,
    RunBytes,
    cache_layers,
    highest_of,
    one_forward,
    run_forwards,
    run_once,
)
from placement_problems import make_device, make_inventory
from tiny_models import GENERATORS
from torch import nn
from transformers import PreTrainedModel
from truth_models import (
    ENCODER_CONTEXT,
    MORE,
    build_meta,
    build_real,
    encoder_context,
    encoder_inputs,
)

from bayplan.planner.model.trace import trace_model
from bayplan.planner.model.workload import make_workload
from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.chain import chain_from_graph
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.ledger import ledger_of
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.task import Task
from bayplan.schemas.graph import ModelGraph
from bayplan.schemas.plan import Ledger, Workload
from bayplan.schemas.problem import BlockForm
from bayplan.schemas.types import Objective
from bayplan.skeleton.formats import short_dtype

CONTEXT = 24
TEXT = sorted({*GENERATORS, *MORE} - {"llava", "rwkv"})
"""All but RWKV, whose cache is no cache object of transformers, and those that take images too."""


@functools.cache
def trace(
    name: str, *, batch: int = 1, chunk: int | None = None, dtype: torch.dtype = torch.float32
) -> ModelGraph:
    model = build_meta(name, dtype)
    workload, _ = make_workload(
        model.config,
        batch=batch,
        context=CONTEXT,
        encoder_context=encoder_context(model),
        prefill_chunk=chunk,
        dtype=short_dtype(dtype),
    )
    graph = trace_model(model, workload)
    assert graph.traced, graph.trace_note
    return graph


def ledger(graph: ModelGraph, start: int = 0, stop: int | None = None) -> Ledger:
    """Return the ledger of a device that has the blocks from `start` to `stop`, all resident."""
    inside = range(start, len(graph.blocks) if stop is None else stop)
    form = BlockForm(
        format="bf16",
        num_bytes=0,
        parameter_bytes=0,
        buffer_bytes=0,
        prefill_read_bytes=0,
        decode_read_bytes=0,
    )
    workload = Workload(
        batch=1, context=CONTEXT, encoder_context=None, prefill_chunk=CONTEXT, kv_dtype="bf16"
    )
    forms = ((form,),) * len(graph.blocks)
    chain = chain_from_graph(graph, forms, {"bf16": "bf16"}, workload, scratch_bytes=0)
    devices = [make_device("cpu0"), make_device("cpu1")]
    machine = Machine(make_inventory(devices), {device.id: 1 for device in devices})
    task = Task(chain, machine, resolve(chain, (), no_spill=False), Objective.PREFILL)
    choices = tuple(Choice(device=0 if index in inside else 1) for index in range(len(chain)))
    return ledger_of(task, Answer(choices=choices, num_slots=(1, 1)), 0)


def options(model: PreTrainedModel) -> dict[str, object]:
    has_all_logits = model.config.is_encoder_decoder or model.config.model_type in ("mpt", "rwkv")
    return {"use_cache": True} if has_all_logits else {"use_cache": True, "logits_to_keep": 1}


def run(model: PreTrainedModel, chunk: int, *, batch: int = 1, is_padded: bool = False) -> RunBytes:
    """Fill the context in chunks, and all but its last position with a step after that."""
    found = [
        run_forwards(
            model,
            pieces,
            batch=batch,
            first=encoder_inputs(model, batch),
            is_padded=is_padded,
            **options(model),
        )
        for pieces in (in_chunks(CONTEXT, chunk), [*in_chunks(CONTEXT - 1, chunk), 1])
    ]
    assert found[0].cache == found[1].cache
    return RunBytes(*map(max, *found))


def in_chunks(num_positions: int, chunk: int) -> list[int]:
    return [min(chunk, num_positions - done) for done in range(0, num_positions, chunk)]


def assert_bounded(planned: Ledger, measured: RunBytes) -> None:
    assert measured.activations <= planned.activations[1] <= 1.10 * measured.activations
    assert measured.everything <= planned.kv[1] + planned.activations[1]


@pytest.mark.parametrize("name", TEXT)
def test_a_batch_of_unequal_prompts(name: str) -> None:
    model = build_real(name)
    measured = run(model, CONTEXT, batch=2, is_padded=name != "whisper")
    assert_bounded(ledger(trace(name, batch=2)), measured)


@pytest.mark.parametrize(
    "name",
    [
        "bart",
        "bloom",
        "deepseek_v3",
        "falcon",
        "gemma3",
        "gpt_oss",
        "jamba",
        "llama",
        "llama4",
        "mamba2",
        "mixtral",
        "mpt",
        "qwen3_next",
        "t5",
    ],
)
def test_one_prompt_in_chunks(name: str) -> None:
    """The context is no multiple of the chunk, and all figures are those of bf16."""
    model = build_real(name, torch.bfloat16)
    assert_bounded(ledger(trace(name, chunk=7, dtype=torch.bfloat16)), run(model, 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "clip", "vit"])
def test_one_forward(name: str, dtype: torch.dtype) -> None:
    model = build_real(name, dtype)
    inputs = {
        "input_ids": torch.randint(3, 90, (1, CONTEXT)),
        "pixel_values": torch.rand(1, 3, 16, 16, dtype=dtype),
    }
    taken = {"bert": ["input_ids"], "clip": ["input_ids", "pixel_values"], "vit": ["pixel_values"]}[name]
    measured = run_once(model, {argument: inputs[argument] for argument in taken})
    assert_bounded(ledger(trace(name, dtype=dtype)), measured)


@pytest.mark.parametrize("batch", [1, 2])
def test_images_beside_text(batch: int) -> None:
    model = build_real("llava")
    ids = torch.randint(3, 90, (batch, CONTEXT))
    ids[:, :4] = model.config.image_token_id
    first = {"input_ids": ids, "pixel_values": torch.rand(batch, 3, 16, 16)}
    measured = run_forwards(model, [CONTEXT], batch=batch, first=first, is_padded=batch > 1, **options(model))
    assert_bounded(ledger(trace("llava", batch=batch)), measured)


class Places:
    """The place in the chain of the block that was last called."""

    def __init__(self, model: nn.Module, graph: ModelGraph) -> None:
        self.last = 0
        modules = dict(model.named_modules())
        for place, block in enumerate(graph.blocks):
            if block.id in modules:
                modules[block.id].register_forward_pre_hook(functools.partial(self._enter, place))

    def _enter(self, place: int, module: nn.Module, args: object) -> None:
        self.last = place


class PlacedStorages(LiveStorages):
    """Notes too where a storage was made: on the device of the block that was last called."""

    def __init__(self, model: nn.Module, places: Places) -> None:
        super().__init__(model)
        self._places = places
        self.place_of: dict[int, int] = {}

    def _note(self, storage: torch.UntypedStorage) -> None:
        before = len(self.changes)
        super()._note(storage)
        for name, _ in self.changes[before:]:
            self.place_of.setdefault(name, self._places.last)


@pytest.mark.parametrize("name", ["bart", "clip", "gemma3", "llama", "mamba", "mixtral", "vit"])
def test_a_device_that_has_some_of_the_blocks(name: str) -> None:
    """Whatever is made on either side of a cut stays under what is planned for that side alone."""
    model, graph = build_real(name), trace(name)
    live = PlacedStorages(model, Places(model, graph))
    inputs = {
        "input_ids": torch.randint(3, 90, (1, CONTEXT)),
        "decoder_input_ids": torch.randint(3, 90, (1, CONTEXT)),
        "pixel_values": torch.rand(1, 3, 16, 16),
    }
    if name == "bart":
        inputs["input_ids"] = inputs["input_ids"][:, :ENCODER_CONTEXT].clone()
    accepted = set(inspect.signature(model.forward).parameters)
    carried: dict[str, object] = {}
    with torch.no_grad(), live:
        given = {argument: value.clone() for argument, value in inputs.items() if argument in accepted}
        one_forward(model, live, given, carried, {})
    cached = {live.name_of(state) for layer in cache_layers(carried) for state in layer}
    for cut in range(1, len(graph.blocks)):
        for start, stop in ((0, cut), (cut, len(graph.blocks))):
            here = [
                (number, change)
                for number, change in live.changes
                if start <= live.place_of[number] < stop and number not in cached
            ]
            highest = highest_of(here, [], [])
            assert highest.activations <= ledger(graph, start, stop).activations[0]
