"""Checkpoints that are quantized already: planned in their own format, exact to the byte, and not run."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest
from quantized_checkpoints import (
    awq,
    bitsandbytes_4bit,
    bitsandbytes_8bit,
    compressed,
    fp8,
    gptq,
    mxfp4,
    tiny,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bayplan.planner.api import plan_model
from bayplan.planner.bind import bind_plan
from bayplan.planner.check import check
from bayplan.planner.formats import planned_form
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.model.read_model import read_model
from bayplan.planner.options import PlanOptions
from bayplan.schemas.codec import decode_plan, encode_plan
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.features import Feature, not_yet_run
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.safetensors_header import read_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from command_line import Cli

MACHINE = declare_inventory(cpu="epyc-9354", host_memory="64GiB", disk="3GB/s")
MAKERS: dict[str, Callable[[Path], Path]] = {
    "nf4": partial(bitsandbytes_4bit, quant_type="nf4", double_quant=False),
    "nf4-dq": partial(bitsandbytes_4bit, quant_type="nf4", double_quant=True),
    "fp4": partial(bitsandbytes_4bit, quant_type="fp4", double_quant=False),
    "int8": bitsandbytes_8bit,
    "fp8-b40x40": fp8,
    "mxfp4": mxfp4,
    "gptq-int4-g32": gptq,
    "awq-int4-g32": awq,
    "int4-packed-g32": compressed,
}
FORMATS = {
    "nf4": Format(kind="nf4"),
    "nf4-dq": Format(kind="nf4", double_quant=True),
    "fp4": Format(kind="fp4"),
    "int8": Format(kind="int8", threshold_milli=5500),
    "fp8-b40x40": Format(kind="fp8", block_shape=(40, 40), scale_dtype="fp32"),
    "mxfp4": Format(kind="mxfp4", block_shape=(1, 32), scale_dtype="fp8_e8m0"),
    "gptq-int4-g32": Format(kind="gptq", bits=4, block_shape=(1, 32), scale_dtype="fp16", is_asymmetric=True),
    "awq-int4-g32": Format(kind="awq", bits=4, block_shape=(1, 32), scale_dtype="fp16", is_asymmetric=True),
    "int4-packed-g32": Format(kind="pack-quantized", bits=4, block_shape=(1, 32), scale_dtype="bf16"),
}
IN_FILES_ONLY = ("quant_state", "weight_format")
"""Text of bitsandbytes that is not alive once the model is loaded."""
ROTARY_BYTES = 64
"""Two fp32 buffers of 8, which no checkpoint holds."""


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = request.param
    return name, MAKERS[name](tmp_path_factory.mktemp("quantized") / name)


def sizes(folder: Path) -> dict[str, int]:
    header = read_header(folder / "model.safetensors")
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {entry.fqn for entry in header.tensors} == set(file.keys())
    return {entry.fqn: entry.num_bytes for entry in header.tensors}


def test_every_byte_of_the_files_is_in_one_block_or_unused(made: tuple[str, Path]) -> None:
    _, folder = made
    read = read_model(str(folder), PlanOptions(context=16))
    assert read.stored is not None
    assert read.model.checkpoint is not None
    found = [record for records in read.stored.values() for record in records]
    in_files = sizes(folder)
    unused = set(read.model.checkpoint.unused)
    assert unused == ({"model.layers.2.enorm.weight"} if folder.name == "fp8-b40x40" else set())
    assert {
        record.fqn: record.num_bytes
        for record in found
        if not (record.is_buffer and not record.is_persistent)
    } == {fqn: num_bytes for fqn, num_bytes in in_files.items() if fqn not in unused}
    # Each block has what lies under its own name.
    for block_id, records in read.stored.items():
        assert all(record.fqn.startswith(f"{block_id}.") for record in records), block_id


def test_a_plan_in_the_checkpoints_own_format(made: tuple[str, Path]) -> None:
    name, folder = made
    plan = plan_model(folder, inventory=MACHINE, context=16)
    assert plan.formats == {"bf16": Format(kind="bf16"), name: FORMATS[name]}
    layers = [block for block in plan.blocks if ".layers." in block.id]
    assert {block.format for block in layers} == {name}
    assert {block.format for block in plan.blocks if block not in layers} == {"bf16"}
    left = {
        "mxfp4": ("k_proj", "o_proj", "q_proj", "v_proj"),
        "int4-packed-g32": ("k_proj", "o_proj", "q_proj", "v_proj"),
    }.get(name, ())
    assert plan.format_rules == tuple(
        FormatRule(pattern=f"model.layers.#.self_attn.{part}.weight", format="bf16") for part in left
    )
    in_files = sizes(folder)
    for block in plan.blocks:
        own = sum(num_bytes for fqn, num_bytes in in_files.items() if fqn.startswith(f"{block.id}."))
        is_rotary = block.id == "model.rotary_emb"
        assert block.num_bytes == (ROTARY_BYTES if is_rotary else own)
    assert not plan.applyable
    assert not_yet_run(plan) == (Feature.QUANTIZED, Feature.PREQUANTIZED)
    assert check(plan) == ()
    assert decode_plan(encode_plan(plan), where="").plan == plan


def test_a_config_alone_gives_the_same_but_for_text(made: tuple[str, Path]) -> None:
    """What only files hold is missing, and what only memory holds is there."""
    name, folder = made
    bound = plan_model(folder, inventory=MACHINE, context=16)
    unbound = plan_model(folder / "config.json", inventory=MACHINE, context=16)
    assert (unbound.formats, unbound.format_rules) == (bound.formats, bound.format_rules)
    assert unbound.model.quantization == bound.model.quantization
    text = {
        fqn: num_bytes
        for fqn, num_bytes in sizes(folder).items()
        if any(kind in fqn for kind in IN_FILES_ONLY)
    }
    for ours, theirs in zip(unbound.blocks, bound.blocks, strict=True):
        in_files_only = sum(size for fqn, size in text.items() if fqn.startswith(f"{ours.id}."))
        offsets = 4 * sum(fqn.startswith(f"{ours.id}.") for fqn in text) if name == "nf4-dq" else 0
        assert ours.num_bytes == theirs.num_bytes - in_files_only + offsets


def test_dequantized_in_a_plain_data_type(made: tuple[str, Path]) -> None:
    _, folder = made
    plan = plan_model(folder, inventory=MACHINE, context=16, format="bf16")
    assert plan.formats == {"bf16": Format(kind="bf16")}
    assert sum(block.num_bytes for block in plan.blocks) == 2 * plan.model.num_params + ROTARY_BYTES
    assert not plan.applyable
    assert not_yet_run(plan) == (Feature.PREQUANTIZED,)


def test_in_another_quantized_format(made: tuple[str, Path]) -> None:
    _, folder = made
    plan = plan_model(folder, inventory=MACHINE, context=16, format="nf4")
    assert plan.formats == {"bf16": Format(kind="bf16"), "nf4": Format(kind="nf4")}
    assert not_yet_run(plan) == (Feature.QUANTIZED, Feature.PREQUANTIZED)


def test_show_and_run_say_what_is_not_run(made: tuple[str, Path], cli: Cli, tmp_path: Path) -> None:
    name, folder = made
    plan = tmp_path / "plan.json"
    assert cli("plan", folder, "--context", 16, "-o", plan).code == 0
    shown = cli("show", plan)
    assert shown.code == 0
    assert name in shown.out
    assert "checkpoints that are" in shown.out
    done = cli("run", plan, "--checkpoint", folder, "--prompt", "w4")
    assert done.code == 4
    assert "checkpoints that are quantized already" in done.err


def test_work_does_not_depend_on_the_format(tmp_path: Path) -> None:
    read = read_model(str(gptq(tmp_path / "gptq")), PlanOptions(context=16))
    form = planned_form(read, None)
    for plain, stored in zip(read.graph.blocks, form.graph.blocks, strict=True):
        assert (plain.prefill, plain.decode, plain.kv_bytes) == (
            stored.prefill,
            stored.decode,
            stored.kv_bytes,
        )


def test_binding_a_quantized_plan_is_refused(tmp_path: Path) -> None:
    folder = gptq(tmp_path / "gptq")
    unbound = plan_model(folder / "config.json", inventory=MACHINE, context=16)
    with pytest.raises(BayplanError) as caught:
        bind_plan(unbound, str(folder))
    assert str(caught.value) == (
        "LlamaForCausalLM: a plan in a quantized format cannot be bound: got gptq-int4-g32, needed a plan in"
        " floating point\nhint: plan again, naming the checkpoint itself as the model"
    )


def test_a_method_that_is_not_known_is_measured_but_not_planned_for(tmp_path: Path) -> None:
    folder = gptq(tmp_path / "gptq")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "made-up"}
    (folder / "config.json").write_text(json.dumps(config))
    text = (
        f'{folder}: the checkpoint is quantized by a method that this version does not know: got "made-up",'
        " needed one of fp8, mxfp4, bitsandbytes, gptq, awq, compressed-tensors\n"
        "hint: the unquantized checkpoint of the same model can be read"
    )
    with pytest.raises(BayplanError) as caught:
        plan_model(folder, inventory=MACHINE, context=16)
    assert str(caught.value) == text
    read = read_model(str(folder), PlanOptions(context=16))
    assert (read.scheme, read.warnings) == (None, (f"cannot be planned for: {text}",))
    assert read.stored is not None
    stored = {record.fqn: record.num_bytes for records in read.stored.values() for record in records}
    assert {fqn: stored[fqn] for fqn in sizes(folder)} == sizes(folder)


def test_experts_that_must_be_merged_are_measured_but_not_planned_for(tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    model.save_pretrained(tmp_path)
    with pytest.raises(BayplanError) as caught:
        plan_model(tmp_path, inventory=MACHINE, context=16)
    assert "4 tensors must be converted on loading, which this version does not do" in str(caught.value)
    read = read_model(str(tmp_path), PlanOptions(context=16))
    assert (read.scheme, read.warnings) == (None, (f"cannot be planned for: {caught.value}",))
    assert read.stored is not None
    for block in read.graph.blocks:
        assert sum(record.num_bytes for record in read.stored[block.id]) == block.num_bytes


def test_a_packed_checkpoint_that_lacks_a_weight(tmp_path: Path) -> None:
    folder = gptq(tmp_path / "gptq")
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.down_proj" not in name}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(BayplanError) as caught:
        plan_model(folder, inventory=MACHINE, context=16)
    assert str(caught.value).startswith(
        f"{folder}: the checkpoint lacks parameters of the model: got no tensor for 1 of them:"
        " model.layers.1.mlp.down_proj.weight, needed every parameter of LlamaForCausalLM\nhint: "
    )


def test_a_packed_checkpoint_with_a_norm_of_another_shape(tmp_path: Path) -> None:
    folder = gptq(tmp_path / "gptq")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:8].clone()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BayplanError) as caught:
        plan_model(folder, inventory=MACHINE, context=16)
    assert str(caught.value) == (
        f"{folder}: tensors of the checkpoint do not fit the model: got model.norm.weight is bf16 [8],"
        " model.norm.weight needs bf16 [64]\n"
        "hint: the config belongs to another checkpoint, or a shard does"
    )
