from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from executor_models import LAYERS
from plan_maker import make_plan

from bayplan.executor.errors import PlanContradictionError, TensorMismatchError, TensorMissingError
from bayplan.executor.identity import build_planned_model
from bayplan.executor.layout import Layout, PlacedTensor, make_layout
from bayplan.executor.materialize import check_nothing_on_meta
from bayplan.executor.sources import TensorSources, find_sources
from bayplan.schemas.checkpoint import TensorPlace, locate_tensors, open_folder
from bayplan.schemas.plan import (
    ALIGNMENT_BYTES,
    Block,
    FormatRule,
    Operation,
    Plan,
    TensorRule,
    aligned_bytes,
)
from bayplan.schemas.safetensors_header import read_header
from bayplan.schemas.types import Residency


def layout_of(plan: Plan, folder: Path) -> Layout:
    return make_layout(plan, build_planned_model(plan, folder))


def problems_of(plan: Plan, folder: Path) -> list[str]:
    with pytest.raises(PlanContradictionError) as raised:
        layout_of(plan, folder)
    assert str(raised.value) == (
        "the plan contradicts the model:"
        + "".join(f"\n  {problem}" for problem in raised.value.problems)
        + "\nhint: plan again with this version of bayplan"
    )
    return list(raised.value.problems)


def with_block(plan: Plan, block_id: str, **fields: object) -> Plan:
    blocks = tuple(
        msgspec.structs.replace(block, **fields) if block.id == block_id else block for block in plan.blocks
    )
    return msgspec.structs.replace(plan, blocks=blocks)


def of_block(layout: Layout, block_id: str) -> list[PlacedTensor]:
    return [placed for placed in layout.tensors if placed.block == block_id]


def block_of(plan: Plan, block_id: str) -> Block:
    return next(block for block in plan.blocks if block.id == block_id)


def test_streamed_tensors_lie_aligned_and_apart_in_their_slot(llama: Path) -> None:
    plan = make_plan(llama, stream=LAYERS)
    for layer in LAYERS:
        end = 0
        for placed in of_block(layout_of(plan, llama), layer):
            assert placed.slot_offset == end
            assert placed.slot_offset % ALIGNMENT_BYTES == 0
            end += aligned_bytes(placed.num_bytes)
        assert 0 < end <= plan.schedule[0].slot_bytes


def test_tied_tensor_counts_once_for_its_first_block(sharded_llama: Path) -> None:
    layout = layout_of(make_plan(sharded_llama), sharded_llama)
    tied = [placed for placed in layout.tensors if len(placed.fqns) > 1]
    assert [(placed.fqns, placed.block) for placed in tied] == [
        (("model.embed_tokens.weight", "lm_head.weight"), "model.embed_tokens")
    ]
    assert of_block(layout, "lm_head") == []


def test_buffers_are_resident_in_streamed_blocks_too(llama: Path) -> None:
    layout = layout_of(make_plan(llama, stream=LAYERS), llama)
    assert {placed.slot_offset for placed in layout.tensors if placed.is_buffer} == {None}
    resident = [placed for placed in layout.tensors if placed.slot_offset is None and not placed.is_buffer]
    assert {placed.block for placed in resident} == {"model.embed_tokens", "model.norm", "lm_head"}


def test_block_that_is_no_module(llama: Path) -> None:
    plan = with_block(make_plan(llama), "lm_head", id="head")
    assert problems_of(plan, llama) == [
        "block head is no module of LlamaForCausalLM",
        "lm_head.weight is in no block",
    ]


def test_tensor_in_two_blocks(llama: Path) -> None:
    plan = make_plan(llama)
    inner = msgspec.structs.replace(plan.blocks[0], id="lm_head:own")
    assert problems_of(msgspec.structs.replace(plan, blocks=(*plan.blocks, inner)), llama) == [
        "lm_head.weight is in block lm_head and in block lm_head:own"
    ]


def test_tied_tensor_that_would_stream(sharded_llama: Path) -> None:
    plan = with_block(make_plan(sharded_llama), "lm_head", residency=Residency.STREAM_DISK)
    assert problems_of(plan, sharded_llama) == [
        "model.embed_tokens.weight and lm_head.weight are one storage, but block lm_head streams"
    ]


def test_block_with_other_bytes(llama: Path) -> None:
    plan = make_plan(llama)
    actual = block_of(plan, "lm_head").num_bytes
    assert problems_of(with_block(plan, "lm_head", num_bytes=7), llama) == [
        f"block lm_head has {actual} bytes, planned 7"
    ]


def test_format_that_the_model_is_not_built_in(llama: Path) -> None:
    plan = make_plan(llama)
    rules = (FormatRule(pattern="model.norm.*", format="bf16"),)
    formats = {**plan.formats, "bf16": msgspec.structs.replace(plan.formats["fp32"], kind="bf16")}
    plan = msgspec.structs.replace(plan, formats=formats, format_rules=rules)
    assert problems_of(plan, llama) == ["model.norm.weight is built in fp32, planned in bf16"]


def test_weights_that_exceed_the_ledger(llama: Path) -> None:
    plan = make_plan(llama)
    ledger = msgspec.structs.replace(plan.devices[0].ledger, weights=(0, 100))
    plan = msgspec.structs.replace(plan, devices=(msgspec.structs.replace(plan.devices[0], ledger=ledger),))
    assert len(problems_of(plan, llama)) == 1
    assert problems_of(plan, llama)[0].endswith("bytes, planned 100")


def test_slot_that_is_too_small(llama: Path) -> None:
    plan = make_plan(llama, stream=LAYERS[:1])
    needed = plan.schedule[0].slot_bytes
    schedule = msgspec.structs.replace(plan.schedule[0], slot_bytes=needed - 64)
    assert problems_of(msgspec.structs.replace(plan, schedule=(schedule,)), llama) == [
        f"block model.layers.0 needs a slot of {needed} bytes, planned {needed - 64}"
    ]


def test_tensors_left_on_meta_are_named(llama: Path) -> None:
    model = build_planned_model(make_plan(llama), llama)
    with pytest.raises(PlanContradictionError) as raised:
        check_nothing_on_meta(model.model.norm)
    assert raised.value.problems == ("weight is still on meta",)


# --- sources -----------------------------------------------------------------------------------------------


def sources_of(plan: Plan, folder: Path, **replaced: TensorPlace | None) -> TensorSources:
    local = open_folder(folder)
    headers = {name: read_header(local.shard_path(name)) for name in local.shard_names}
    places = locate_tensors(local, headers)
    for fqn, place in replaced.items():
        fqn = fqn.replace("__", ".")
        if place is None:
            del places[fqn]
        else:
            places[fqn] = place
    return find_sources(plan, layout_of(plan, folder), places, folder="folder")


def place_of(folder: Path, fqn: str, **fields: object) -> TensorPlace:
    local = open_folder(folder)
    headers = {name: read_header(local.shard_path(name)) for name in local.shard_names}
    place = locate_tensors(local, headers)[fqn]
    return msgspec.structs.replace(place, entry=msgspec.structs.replace(place.entry, **fields))


def test_rule_gives_the_name_in_the_checkpoint(llama: Path) -> None:
    rule = TensorRule(
        target="model.layers.#.input_layernorm.*",
        sources=("model.layers.#.post_attention_layernorm.*",),
        operations=(Operation(kind="rename"),),
    )
    plan = msgspec.structs.replace(make_plan(llama), rules=(rule,))
    sources = sources_of(plan, llama)
    assert sources.main["model.layers.3.input_layernorm.weight"].fqn == (
        "model.layers.3.post_attention_layernorm.weight"
    )
    assert sources.main["model.norm.weight"].fqn == "model.norm.weight"


def test_missing_tensor(llama: Path) -> None:
    with pytest.raises(TensorMissingError) as raised:
        sources_of(make_plan(llama), llama, model__norm__weight=None)
    assert str(raised.value) == (
        "folder: tensor missing from the checkpoint: got no model.norm.weight, "
        "needed the bytes of model.norm.weight\n"
        "hint: the checkpoint is of another model, or incomplete: plan again from this folder"
    )
    assert (raised.value.fqn, raised.value.sources) == ("model.norm.weight", ("model.norm.weight",))


def test_missing_tied_tensor_names_all_its_names(sharded_llama: Path) -> None:
    with pytest.raises(TensorMissingError) as raised:
        sources_of(make_plan(sharded_llama), sharded_llama, model__embed_tokens__weight=None)
    assert raised.value.sources == ("model.embed_tokens.weight", "lm_head.weight")


@pytest.mark.parametrize(
    ("fields", "got"),
    [({"shape": (63,)}, "fp32 [63]"), ({"dtype": "int32"}, "int32 [64]")],
)
def test_tensor_that_does_not_fit(llama: Path, fields: dict[str, object], got: str) -> None:
    place = place_of(llama, "model.norm.weight", **fields)
    with pytest.raises(TensorMismatchError) as raised:
        sources_of(make_plan(llama), llama, model__norm__weight=place)
    assert str(raised.value) == (
        "model.safetensors: tensor model.norm.weight does not fit model.norm.weight: "
        f"got {got}, needed fp32 [64]"
    )
    facts = raised.value
    assert (facts.fqn, facts.source, facts.file) == (
        "model.norm.weight", "model.norm.weight", "model.safetensors",
    )  # fmt: skip


def test_scratch_that_the_plan_does_not_reserve(llama: Path) -> None:
    plan = make_plan(llama, stream=LAYERS)
    slots = plan.schedule[0].num_slots * plan.schedule[0].slot_bytes
    ledger = msgspec.structs.replace(plan.devices[0].ledger, staging=(slots, slots + 5))
    plan = msgspec.structs.replace(plan, devices=(msgspec.structs.replace(plan.devices[0], ledger=ledger),))
    with pytest.raises(PlanContradictionError) as raised:
        sources_of(plan, llama)
    assert raised.value.problems == ("the reader on node0/cpu needs 1048576 bytes of scratch, planned 5",)


def test_cast_is_noticed(llama: Path) -> None:
    assert not sources_of(make_plan(llama), llama).casts
    assert sources_of(make_plan(llama, dtype="bf16"), llama).casts
