from __future__ import annotations

import msgspec

from bayplan.planner.formats import plan_formats
from bayplan.schemas.graph import GraphBlock, ModelGraph, TensorRecord, Work
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.strict_json import sha256_digest

NO_WORK = Work(flops=0, activation_bytes=0, output_bytes=0)


def block(name: str, *tensors: tuple[str, str, int], is_buffer: bool = False) -> GraphBlock:
    return GraphBlock(
        id=name,
        class_name="Layer",
        tensors=tuple(
            TensorRecord(
                fqn=f"{name}.{suffix}", shape=(1,), dtype=dtype, num_bytes=num_bytes, is_buffer=is_buffer
            )
            for suffix, dtype, num_bytes in tensors
        ),
        kv_bytes=0,
        prefill=NO_WORK,
        decode=NO_WORK,
    )


def graph(*blocks: GraphBlock) -> ModelGraph:
    return ModelGraph(
        class_name="Model",
        blocks=blocks,
        edges=(),
        ties=(),
        tree_digest=sha256_digest(b""),
        num_params=0,
        generates=True,
        max_context=None,
        traced=True,
    )


def test_one_format() -> None:
    found = plan_formats(graph(block("a", ("w", "bf16", 8)), block("b", ("w", "bf16", 8))), "bf16")
    assert found == ({"bf16": Format(kind="bf16")}, (), ("bf16", "bf16"))


def test_a_block_is_in_the_format_of_most_of_its_bytes() -> None:
    mixed = block("h.0", ("w", "fp16", 100), ("norm", "fp32", 60), ("scale", "fp32", 30))
    assert plan_formats(graph(mixed), "bf16") == (
        {"fp16": Format(kind="fp16"), "fp32": Format(kind="fp32")},
        (FormatRule(pattern="h.#.norm", format="fp32"), FormatRule(pattern="h.#.scale", format="fp32")),
        ("fp16",),
    )


def test_equal_bytes_are_decided_by_name() -> None:
    assert plan_formats(graph(block("a", ("x", "fp32", 8), ("y", "bf16", 8))), "fp16")[2] == ("bf16",)


def test_a_block_without_floating_point_parameters_has_the_default() -> None:
    codes = block("codes", ("table", "int64", 80))
    mask = block("mask", ("m", "fp32", 80), is_buffer=True)
    assert plan_formats(graph(codes, mask), "bf16") == ({"bf16": Format(kind="bf16")}, (), ("bf16", "bf16"))


def test_only_some_of_like_tensors_differ() -> None:
    first = block("h.0", ("w", "bf16", 100), ("norm", "fp32", 8))
    second = msgspec.structs.replace(block("h.1", ("w", "bf16", 100), ("norm", "bf16", 8)))
    assert plan_formats(graph(first, second), "bf16")[1] == (FormatRule(pattern="h.0.norm", format="fp32"),)
