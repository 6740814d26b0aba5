from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from executor_models import LAYERS, TOKENS, save
from plan_maker import CPU, make_plan
from torch import nn
from transformers import BertConfig, BertModel

from bayplan.executor.load import load_model, loaded, release
from bayplan.executor.report import report
from bayplan.executor.state import state_of
from bayplan.schemas.codec import encode_report, read_report
from bayplan.schemas.errors import UsageError
from bayplan.schemas.report import Report
from bayplan.schemas.types import Residency


def test_report_tells_what_was_carried_out(llama: Path, tmp_path: Path) -> None:
    plan = make_plan(llama, stream=LAYERS[:4], num_slots=2)
    with loaded(plan, llama) as model:
        with torch.no_grad():
            for _ in range(2):
                model(TOKENS)
        told = report(model, token_ids=[[1, 2], [3]])
    assert told.plan_digest == plan.digest
    assert told.honoured
    assert not told.content_verified
    assert told.token_ids == ((1, 2), (3,))
    assert told.predicted.load_ns == 1
    assert told.predicted.decode_ns == 3
    assert told.predicted.peak_bytes[CPU] == sum(
        hi
        for _, hi in (
            plan.devices[0].ledger.weights,
            plan.devices[0].ledger.kv,
            plan.devices[0].ledger.activations,
            plan.devices[0].ledger.staging,
            plan.devices[0].ledger.runtime,
        )
    )
    assert told.measured.load_ns > 0
    assert told.measured.peak_bytes[CPU] > sum(block.num_bytes for block in plan.blocks)
    assert [(block.id, block.device, block.residency, block.num_bytes) for block in told.blocks] == [
        (block.id, block.device, block.residency, block.num_bytes) for block in plan.blocks
    ]
    streamed = [block for block in told.blocks if block.residency == Residency.STREAM_DISK]
    assert [block.visits for block in streamed] == [2, 2, 2, 2]
    assert all(block.read_bytes >= 2 * block.num_bytes and block.read_ns > 0 for block in streamed)
    resident = [block for block in told.blocks if block.residency == Residency.RESIDENT]
    assert {(block.visits, block.read_bytes, block.wait_ns) for block in resident} == {(0, 0, 0)}
    (tmp_path / "report.json").write_bytes(encode_report(told))
    assert read_report(tmp_path / "report.json") == told


def realized(told: Report, block_id: str) -> tuple[Residency, int]:
    return next((block.residency, block.num_bytes) for block in told.blocks if block.id == block_id)


def test_parameter_that_was_replaced_is_not_honoured(llama: Path) -> None:
    with loaded(make_plan(llama, stream=LAYERS), llama) as model:
        head = model.lm_head.weight
        model.lm_head.weight = nn.Parameter(head.clone(), requires_grad=False)
        told = report(model)
        assert not told.honoured
        assert realized(told, "lm_head") == (Residency.RESIDENT, 0)
        model.lm_head.weight = head
        assert report(model).honoured


def test_streamed_parameter_that_was_replaced_is_not_honoured(llama: Path) -> None:
    plan = make_plan(llama, stream=LAYERS)
    with loaded(plan, llama) as model:
        norm = model.model.layers[2].input_layernorm
        norm.weight = nn.Parameter(norm.weight.clone(), requires_grad=False)
        told = report(model)
        assert not told.honoured
        planned = next(block.num_bytes for block in plan.blocks if block.id == LAYERS[2])
        assert realized(told, LAYERS[2]) == (Residency.STREAM_DISK, planned - 256)


class Wrapped(nn.Module):
    """A layer inside another, as adapters are put on: its tensors have other names then."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base_layer(hidden) * self.scale


@pytest.mark.parametrize("stream", [(), LAYERS])
def test_wrapped_modules_are_found_and_let_go_of(llama: Path, stream: tuple[str, ...]) -> None:
    model = load_model(make_plan(llama, stream=stream), llama)
    with torch.no_grad():
        expected = model(TOKENS).logits
        for layer in model.model.layers:
            layer.self_attn.q_proj = Wrapped(layer.self_attn.q_proj)
        assert torch.equal(model(TOKENS).logits, expected)
    told = report(model)
    assert told.honoured
    mappings = [weakref.ref(arena._region._mapping) for arena in state_of(model).arenas]
    release(model)
    assert {fqn for fqn, param in model.named_parameters() if not param.is_meta} == {
        f"{layer}.self_attn.q_proj.scale" for layer in LAYERS
    }
    gc.collect()
    assert [mapping() for mapping in mappings] == [None] * len(mappings)


def test_parameters_that_changed_places_are_not_honoured(llama: Path) -> None:
    with loaded(make_plan(llama), llama) as model:
        first, second = (layer.mlp.up_proj for layer in model.model.layers[:2])
        first.weight, second.weight = second.weight, first.weight
        assert not report(model).honoured


def test_what_the_system_does_not_report_is_noted(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.executor.backend.host_memory_notes", lambda: ("no figure here",))
    with loaded(make_plan(llama), llama) as model:
        assert report(model).notes[1:] == ("no figure here",)


def test_block_in_the_slot_of_another_is_not_honoured(llama: Path) -> None:
    with loaded(make_plan(llama, stream=LAYERS), llama) as model:
        layers = model.model.layers
        for module, other in zip(layers[0].modules(), layers[1].modules(), strict=True):
            module._parameters.update(other._parameters)
        assert not report(model).honoured


def test_unused_tensors_and_notes_are_passed_on(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48
    )
    folder = save(BertModel, config, tmp_path)
    stream = tuple(f"encoder.layer.{layer}" for layer in (2, 1, 0))
    with loaded(make_plan(folder, stream=stream), folder) as model:
        with torch.no_grad():
            model(TOKENS % 64)
        told = report(model)
    assert told.unused == ()
    assert told.notes[0] == "content unverified: the plan has no hash of some shards"
    assert told.notes[1].endswith("the model") or told.notes[1].endswith("on demand")


def test_model_that_bayplan_did_not_load() -> None:
    with pytest.raises(UsageError) as raised:
        report(nn.Linear(2, 2))
    assert str(raised.value) == (
        "not a model that bayplan holds: got Linear, needed a model from load_model that was not released"
    )
