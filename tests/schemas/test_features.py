from __future__ import annotations

from typing import Any

import msgspec
import pytest
from maximal_plan import maximal_plan
from sample_plans import smol_plan

from bayplan.schemas import features
from bayplan.schemas.features import Feature, features_used, formats_used, not_yet_run, quantized_formats
from bayplan.schemas.plan import Experts, Format, FormatRule, Operation, Plan, TensorRule
from bayplan.schemas.types import Backend, Residency

EXPERTS = Experts(count=8, per_token=2, unit_bytes=64, format="bf16", residency="cache-disk")


def plan_with(**changes: Any) -> Plan:
    """A plan that every version runs, with some top-level fields replaced."""
    return msgspec.structs.replace(smol_plan(), **changes)


def with_first_block(**changes: Any) -> Plan:
    first, *others = smol_plan().blocks
    return plan_with(blocks=(msgspec.structs.replace(first, **changes), *others))


def with_device(**changes: Any) -> Plan:
    (device,) = smol_plan().devices
    return plan_with(devices=(msgspec.structs.replace(device, **changes),))


def with_rule(kind: str) -> Plan:
    operation = msgspec.convert({"kind": kind}, Operation)
    return plan_with(rules=(TensorRule(target="*", sources=("*",), operations=(operation,)),))


MODEL = smol_plan().model
CASES: list[tuple[Plan, tuple[Feature, ...]]] = [
    (smol_plan(), ()),
    (smol_plan(streamed=range(3)), ()),
    (with_rule("rename"), ()),
    (with_rule("stack"), (Feature.CONVERSIONS,)),
    (with_device(backend=Backend.CUDA), (Feature.ACCELERATOR,)),
    (with_first_block(residency=Residency.STREAM_HOST), (Feature.STREAM_HOST,)),
    (with_first_block(device="node0/cpu1"), (Feature.SEVERAL_DEVICES,)),
    (with_first_block(device="node1/cpu"), (Feature.SEVERAL_DEVICES, Feature.SEVERAL_NODES)),
    (with_first_block(experts=EXPERTS), (Feature.SPLIT_EXPERTS,)),
    (with_first_block(experts=msgspec.structs.replace(EXPERTS, residency="with-block")), ()),
    (plan_with(model=msgspec.structs.replace(MODEL, library="torch")), (Feature.ANY_MODULE,)),
    (plan_with(model=msgspec.structs.replace(MODEL, quantization="fp8")), (Feature.PREQUANTIZED,)),
    (plan_with(formats={"bf16": Format(kind="nf4")}), (Feature.QUANTIZED,)),
    (plan_with(formats={"bf16": Format(kind="mxfp4")}), (Feature.QUANTIZED,)),
    (plan_with(formats={"bf16": Format(kind="bf16"), "spare": Format(kind="int8")}), ()),
    (
        plan_with(
            formats={"bf16": Format(kind="bf16"), "q": Format(kind="fp4")},
            format_rules=(FormatRule(pattern="*", format="q"),),
        ),
        (Feature.QUANTIZED,),
    ),
]


@pytest.mark.parametrize(("plan", "needed"), CASES)
def test_features_used(plan: Plan, needed: tuple[Feature, ...]) -> None:
    assert features_used(plan) == needed


def test_which_formats_something_has() -> None:
    """By blocks, by experts and by single tensors; what could only have been chosen is nobody's."""
    names = ("bf16", "by-block", "by-experts", "by-rule", "spare")
    kinds = ("bf16", "nf4", "int8", "fp8", "nf4")
    plan = with_first_block(
        format="by-block",
        experts=msgspec.structs.replace(EXPERTS, residency="with-block", format="by-experts"),
    )
    formats = {name: Format(kind=kind) for name, kind in zip(names, kinds, strict=True)}
    rules = (FormatRule(pattern="*", format="by-rule"),)
    plan = msgspec.structs.replace(plan, formats=formats, format_rules=rules)
    assert formats_used(plan) == {"bf16", "by-block", "by-experts", "by-rule"}
    assert quantized_formats(plan) == ("by-block", "by-experts", "by-rule")


def test_every_feature_is_tested() -> None:
    assert {feature for _, needed in CASES for feature in needed} == set(Feature)


def test_not_yet_run_keeps_those_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "NOT_YET_RUN", {Feature.QUANTIZED, Feature.ANY_MODULE, Feature.CONVERSIONS})
    assert Feature.ACCELERATOR in features_used(maximal_plan())
    assert not_yet_run(maximal_plan()) == (Feature.CONVERSIONS, Feature.QUANTIZED)


def test_this_version_runs_what_it_does_not_list() -> None:
    assert not_yet_run(smol_plan(streamed=range(3))) == ()


def test_experts_in_a_quantized_format() -> None:
    plan = with_first_block(experts=msgspec.structs.replace(EXPERTS, residency="with-block", format="q"))
    plan = msgspec.structs.replace(plan, formats={**plan.formats, "q": Format(kind="nf4")})
    assert features_used(plan) == (Feature.QUANTIZED,)
