"""bind: a plan made from a config gets the identity of a checkpoint, nothing else; what differs is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from tiny_checkpoints import tiny_llama

from bayplan.planner.api import plan_model
from bayplan.planner.bind import bind_plan
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.schemas.codec import sealed
from bayplan.schemas.errors import BayplanError, PlanFormatError, PlanRefused, RefusalKind
from bayplan.schemas.features import not_yet_run, quantized_formats
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.plan import FormatRule, Plan
from bayplan.schemas.types import Objective

MACHINE = declare_inventory(cpu="epyc-9354", host_memory="64GiB")
replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bind") / "llama"
    tiny_llama(made)
    return made


@pytest.fixture(scope="module")
def unbound(folder: Path) -> Plan:
    return plan_model(folder / "config.json", inventory=MACHINE)


def test_binding_adds_identity_and_changes_no_decision(folder: Path, unbound: Plan) -> None:
    bound = bind_plan(unbound, str(folder))
    assert (unbound.applyable, bound.applyable) == (False, True)
    checkpoint = plan_model(folder, inventory=MACHINE).model.checkpoint
    assert checkpoint is not None
    model = replace(unbound.model, checkpoint=checkpoint)
    assert bound == sealed(replace(unbound, model=model, rules=bound.rules, applyable=True))


def assert_bound_as_it_was(folder: Path, plan: Plan) -> None:
    """What was decided stays, and what is bound is what the checkpoint itself would have been planned as."""
    bound = bind_plan(plan, str(folder))
    assert bound.model.checkpoint is not None
    model = replace(plan.model, checkpoint=bound.model.checkpoint)
    applyable = not not_yet_run(bound)
    assert bound == sealed(replace(plan, model=model, rules=bound.rules, applyable=applyable))


@pytest.mark.parametrize("formats", ["auto", "fp32,nf4", "nf4,fp32", "bf16,int8"])
def test_formats_that_no_block_has_are_no_obstacle(folder: Path, formats: str) -> None:
    plan = plan_model(folder / "config.json", inventory=MACHINE, format=formats)
    assert not quantized_formats(plan)
    assert {entry.kind for entry in plan.formats.values()} & {"int8", "nf4"}
    assert_bound_as_it_was(folder, plan)


def test_a_plan_with_something_quantized_is_refused(folder: Path) -> None:
    pins = ("model.layers.1=node0/cpu,nf4",)
    plan = plan_model(folder / "config.json", inventory=MACHINE, format="auto", pins=pins)
    assert {block.format for block in plan.blocks} == {"fp32", "nf4"}
    with pytest.raises(BayplanError) as caught:
        bind_plan(plan, str(folder))
    assert str(caught.value) == (
        "LlamaForCausalLM: a plan in a quantized format cannot be bound: "
        "got nf4, needed a plan in floating point\n"
        "hint: plan again, naming the checkpoint itself as the model"
    )


def test_a_rule_alone_quantizes_too(folder: Path) -> None:
    """All blocks are in floating point, and one weight is not."""
    rule = FormatRule(pattern="model.layers.0.mlp.up_proj.weight", format="int8")
    plan = plan_model(
        folder / "config.json", inventory=MACHINE, format_config=FormatConfig(format_rules=(rule,))
    )
    assert {block.format for block in plan.blocks} == {"fp32"}
    with pytest.raises(BayplanError, match="cannot be bound: got int8, needed"):
        bind_plan(plan, str(folder))


def test_several_batches_in_flight_are_bound(folder: Path) -> None:
    machine = declare_inventory(["l4*2"], host_memory="64GiB")
    plan = plan_model(folder / "config.json", inventory=machine, objective=Objective.THROUGHPUT)
    assert plan.workload.batches_in_flight == 2
    assert_bound_as_it_was(folder, plan)


def test_a_config_alone_binds_nothing(folder: Path, unbound: Plan) -> None:
    with pytest.raises(BayplanError, match="there are no weights to bind to"):
        bind_plan(unbound, str(folder / "config.json"))


def test_another_model_is_foreign(tmp_path: Path, unbound: Plan) -> None:
    tiny_llama(tmp_path / "other", layers=3)
    with pytest.raises(PlanRefused) as caught:
        bind_plan(unbound, str(tmp_path / "other"))
    assert caught.value.kind is RefusalKind.FOREIGN


def test_a_config_that_changes_results_alone_is_stale(tmp_path: Path, folder: Path, unbound: Plan) -> None:
    """Same shapes, other rotary base: the same bytes would give other outputs."""
    shutil.copytree(folder, tmp_path / "changed")
    config = tmp_path / "changed" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 0.5}))
    with pytest.raises(PlanRefused, match=r"another config\.json") as caught:
        bind_plan(unbound, str(tmp_path / "changed"))
    assert caught.value.kind is RefusalKind.STALE


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("base_activation_bytes", 0, "activations outside blocks"),
        ("scratch_bytes", 1, "reader's scratch"),
    ],
)
def test_a_plan_from_another_graph_is_stale(
    folder: Path, unbound: Plan, field: str, value: int, said: str
) -> None:
    other = sealed(replace(unbound, problem=replace(unbound.problem, **{field: value})))
    with pytest.raises(PlanRefused, match=said) as caught:
        bind_plan(other, str(folder))
    assert caught.value.kind is RefusalKind.STALE


def test_another_attention_is_stale(folder: Path, unbound: Plan) -> None:
    other = sealed(replace(unbound, model=replace(unbound.model, attn_implementation="flash_attention_2")))
    with pytest.raises(PlanRefused, match="attention: sdpa instead of flash_attention_2"):
        bind_plan(other, str(folder))


def test_a_plan_that_contradicts_itself_is_not_made_applyable(folder: Path, unbound: Plan) -> None:
    (device,) = unbound.devices
    ledger = replace(device.ledger, weights=(0, 0))
    other = sealed(replace(unbound, devices=(replace(device, ledger=ledger),)))
    with pytest.raises(PlanFormatError, match="weights"):
        bind_plan(other, str(folder))


def test_a_plan_may_not_run_code_by_being_bound(folder: Path, unbound: Plan) -> None:
    other = sealed(replace(unbound, model=replace(unbound.model, trust_remote_code=True)))
    with pytest.raises(BayplanError) as caught:
        bind_plan(other, str(folder))
    assert str(caught.value) == (
        "LlamaForCausalLM: binding would run code that the plan names: "
        "got code that comes with the checkpoint, needed permission to run that code\n"
        "hint: read the code first; --trust-remote-code runs it"
    )
