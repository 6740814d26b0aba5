"""Fifty-one published configs: what the planner finds out about each, beside what is known of it.

Each is read once, at 32 positions and batch 1, and everything is asked of that one graph: equality, always.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest

from bayplan.planner.estimate.sizes import Forms
from bayplan.planner.model.read_model import ReadModel, read_model
from bayplan.planner.options import PlanOptions
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.graph import ModelGraph, TensorRecord

MODELS = Path(__file__).parents[1] / "data" / "models"
FACTS = json.loads((MODELS / "facts.json").read_text())
CODE_NEEDED = {
    "moonshotai--Kimi-K2-Instruct": ("kimi_k2", "configuration_deepseek.py, modeling_deepseek.py"),
    "tiiuae--falcon-40b": ("RefinedWeb", "configuration_RW.py, modelling_RW.py"),
}
STORED_APART = {"tiiuae--falcon-7b-instruct": 65_024 * 4_544 * 2}
"""Bytes of a head that the published file holds although the model ties it."""


def read(name: str) -> ReadModel:
    is_t5 = FACTS[name]["class"].startswith("T5") if name in FACTS else False
    options = PlanOptions(context=8 if is_t5 else 32, encoder_context=32 if is_t5 else None)
    return read_model(str(MODELS / f"{name}.json"), options)


def tensors_of(graph: ModelGraph) -> list[TensorRecord]:
    return [tensor for block in graph.blocks for tensor in block.tensors]


def plain_bytes(graph: ModelGraph, width: int) -> int:
    """Every parameter at one width, and the persistent buffers as they are."""
    tensors = tensors_of(graph)
    params = sum(prod(tensor.shape) * width for tensor in tensors if not tensor.is_buffer)
    return params + sum(tensor.num_bytes for tensor in tensors if tensor.is_buffer and tensor.is_persistent)


def known(model: ReadModel, no_split_classes: list[str]) -> dict[str, object]:
    """Return what `facts.json` holds, as the planner has it."""
    graph, forms = model.graph, Forms(model)
    fp32, bf16 = forms.row("fp32"), forms.row("bf16")
    return {
        "class": graph.class_name,
        "params": graph.num_params,
        "fp32_bytes": plain_bytes(graph, 4),
        "bf16_bytes": plain_bytes(graph, 2),
        "fp32_with_buffers_bytes": fp32.total_bytes,
        "bf16_with_buffers_bytes": bf16.total_bytes,
        "largest_fp32_bytes": fp32.largest_layer_bytes,
        "ties": sorted(list(tie.fqns) for tie in graph.ties),
        "no_split": sum(block.class_name in no_split_classes for block in graph.blocks),
        "kv_bytes": sum(block.kv_bytes for block in graph.blocks),
        "experts": experts_of(graph),
    }


def experts_of(graph: ModelGraph) -> list[int] | None:
    """Return blocks with experts that can be handled apart, experts of each, and routes of a token."""
    found = [block.experts for block in graph.blocks if block.experts is not None]
    if not found:
        return None
    ((count, per_token),) = {(experts.count, experts.per_token) for experts in found}
    return [len(found), count, per_token]


@pytest.mark.parametrize("name", FACTS)
def test_a_published_model_is_known_exactly(name: str) -> None:
    facts, model = FACTS[name], read(name)
    graph, found = model.graph, known(model, facts["no_split_classes"])
    assert found == {key: facts[key] for key in found}
    assert (graph.traced, graph.trace_note) == (True, "")
    assert len(graph.declared_no_split) == facts["no_split"]
    assert len({block.id for block in graph.blocks}) == len(graph.blocks)
    assert Forms(model).row("fp32").largest_layer in names_of_layer(graph, facts["largest"])
    if "checkpoint_bytes" in facts:
        published = facts["checkpoint_bytes"] - STORED_APART.get(name, 0)
        assert published in (found["fp32_bytes"], found["bf16_bytes"])


def names_of_layer(graph: ModelGraph, layer: str) -> set[str]:
    """Return the layer and those that are tied to it as a whole: one of them lists the weight."""
    tied = (tie.fqns for tie in graph.ties if f"{layer}.weight" in tie.fqns)
    return {layer, *(fqn.removesuffix(".weight") for fqns in tied for fqn in fqns)}


@pytest.mark.parametrize("name", CODE_NEEDED)
def test_a_model_that_comes_as_code_is_refused(name: str) -> None:
    model_type, files = CODE_NEEDED[name]
    with pytest.raises(BayplanError) as raised:
        read(name)
    assert str(raised.value) == (
        f'{MODELS / name}.json: the model type "{model_type}" is defined by code that comes with the'
        f" checkpoint: got {files}, needed permission to run that code\n"
        "hint: read the code first; --trust-remote-code runs it"
    )


def test_every_config_is_asked_about() -> None:
    configs = {path.stem for path in MODELS.glob("*--*.json")}
    assert configs == {*FACTS, *CODE_NEEDED}
    assert len(configs) == 51
