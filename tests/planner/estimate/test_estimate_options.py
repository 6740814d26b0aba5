"""options: the words of `--dtypes` and `--lora`."""

from __future__ import annotations

import pytest

from bayplan.planner.estimate.options import (
    ALL_FORMATS,
    DIVISORS,
    FLOATS,
    QUANTIZED,
    LoraOptions,
    parse_formats,
    parse_lora,
)
from bayplan.schemas.errors import UsageError


def test_every_format_is_of_one_kind() -> None:
    assert sorted([*FLOATS, *QUANTIZED, *DIVISORS]) == sorted(ALL_FORMATS)


def test_none_means_all() -> None:
    assert parse_formats(()) == ALL_FORMATS


def test_both_spellings_once_in_the_order_of_the_table() -> None:
    words = ("nf4", "float16", "fp32", "float32", "torch.bfloat16", "half", "int8-bnb", "float8", "int4")
    assert parse_formats(words) == ("fp32", "bf16", "fp16", "fp8", "int8-bnb", "nf4", "int4")


@pytest.mark.parametrize("word", ["", "int2", "float64", "FP32", "int16", "bool"])
def test_unknown_format(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_formats(("fp32", word))
    assert str(caught.value) == (
        f"--dtypes: unknown format: got {word!r}, needed any of fp32, bf16, fp16, fp8, int8, int8-bnb, nf4, "
        "fp4, mxfp4, int4\nhint: torch's names work too, such as float32 or bfloat16"
    )


@pytest.mark.parametrize(
    ("text", "rank", "targets"),
    [
        ("16", 16, ()),
        ("8,all-linear", 8, ()),
        ("1,q_proj", 1, ("q_proj",)),
        ("8,q_proj,model.layers.0.attn.v", 8, ("q_proj", "model.layers.0.attn.v")),
    ],
)
def test_rank_and_targets(text: str, rank: int, targets: tuple[str, ...]) -> None:
    assert parse_lora(text) == LoraOptions(rank=rank, targets=targets)


@pytest.mark.parametrize("text", ["", "0", "-1", "r16", "1.5", "8,", "8,,q", ",q", "3000000000", "\u0663"])
def test_no_rank_with_targets(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lora(text)
    assert str(caught.value) == (
        f"--lora: not a rank with targets: got {text!r}, needed RANK[,TARGET,...], such as 16 or "
        "8,q_proj,v_proj"
    )
