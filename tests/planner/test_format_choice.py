from __future__ import annotations

import msgspec
import pytest

from bayplan.planner.format_choice import OWN_FORMAT, FormatRequest, builtin_entry, parse_request
from bayplan.planner.stored_form import FORMAT_NAMES
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.types import Residency

NAMES = "fp32, bf16, fp16, fp64, int8, nf4, fp4, fp8, mxfp4"
AUTO_HINT = "\nhint: or auto, to quantize as little as possible"
KINDS = "fp32, bf16, fp16, fp64, int8, nf4, fp4, fp8, mxfp4"
OF_4BIT = "only kind, blocksize, double_quant, compute_dtype, storage_dtype"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nf4", ("nf4",)),
        ("bf16,nf4", ("bf16", "nf4")),
        ("nf4, bf16", ("nf4", "bf16")),
        ("torch.bfloat16,int8-bnb,float8", ("bf16", "int8", "fp8")),
        ("float32", ("fp32",)),
    ],
)
def test_names_in_any_spelling(text: str, names: tuple[str, ...]) -> None:
    assert parse_request(text) == FormatRequest(names=names)


def test_nothing_asked_is_the_models_own() -> None:
    assert parse_request(None) == OWN_FORMAT
    assert OWN_FORMAT.plain is None


def test_auto() -> None:
    assert parse_request("auto") == FormatRequest(is_auto=True)


def test_the_plain_data_type_that_is_asked_for() -> None:
    assert parse_request("nf4,float16,int8").plain == "fp16"
    assert parse_request("nf4,int8").plain is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a set of formats: got '', needed names such as bf16 or bf16,nf4, or auto"),
        (
            "bf16,,nf4",
            "not a set of formats: got 'bf16,,nf4', needed names such as bf16 or bf16,nf4, or auto",
        ),
        (
            "auto,nf4",
            "auto stands alone: got 'auto,nf4', needed auto, or names of formats\n"
            "hint: auto is the model's own format with int8 and nf4",
        ),
        ("fp7", f"unknown format: got 'fp7', needed one of {NAMES}{AUTO_HINT}"),
        ("bf16,int4", f"unknown format: got 'int4', needed one of {NAMES}{AUTO_HINT}"),
        (
            "bf16,gptq",
            "weights cannot be converted to this format, checkpoints come in it: got 'gptq',"
            f" needed one of {NAMES}",
        ),
        ("bf16,bfloat16", "the same format twice: got bf16 and bfloat16, needed each once"),
        (
            "nf4,fp32,bf16",
            "more than one plain data type: got fp32 and bf16, needed one, for all that is not quantized\n"
            "hint: the layers of a forward hand each other tensors of one data type",
        ),
    ],
)
def test_no_set_of_formats(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_request(text)
    assert str(caught.value) == f"--format: {message}"


def config(**formats: Format) -> FormatConfig:
    return FormatConfig(formats={name.replace("_", "-"): entry for name, entry in formats.items()})


def test_formats_of_ones_own() -> None:
    mine = Format(kind="nf4", blocksize=128, double_quant=True, compute_dtype="fp32", storage_dtype="bf16")
    found = parse_request("bf16,nf4-a,nf4", config(nf4_a=mine))
    assert found == FormatRequest(names=("bf16", "nf4-a", "nf4"), formats={"nf4-a": mine})
    assert found.entry("nf4-a") == mine
    assert found.entry("nf4") == Format(kind="nf4")


def test_what_is_usual_may_be_given() -> None:
    entries = {
        "a": Format(kind="fp4", blocksize=64, storage_dtype="uint8"),
        "b": Format(kind="int8", threshold_milli=6000),
        "c": Format(kind="fp8", block_shape=(0, 0)),
        "d": Format(kind="mxfp4", block_shape=(1, 32), scale_dtype="fp8_e8m0"),
    }
    assert parse_request(None, FormatConfig(formats=entries)).formats == {
        "a": Format(kind="fp4"),
        "b": Format(kind="int8"),
        "c": Format(kind="fp8", block_shape=(0, 0), scale_dtype="fp32"),
        "d": Format(kind="mxfp4", block_shape=(1, 32), scale_dtype="fp8_e8m0"),
    }


def test_the_formats_of_a_plan_may_be_copied() -> None:
    entries = {name: builtin_entry(name) for name in FORMAT_NAMES}
    assert parse_request("nf4", FormatConfig(formats=entries)) == parse_request("nf4")


def test_one_format_under_two_names() -> None:
    with pytest.raises(UsageError) as caught:
        parse_request("mine,nf4", config(mine=Format(kind="nf4", blocksize=64)))
    assert str(caught.value) == "--format: the same format twice: got mine and nf4, needed each once"


def test_an_unknown_name_beside_a_config_shows_its_names() -> None:
    with pytest.raises(UsageError) as caught:
        parse_request("mime", config(mine=Format(kind="nf4", double_quant=True)))
    assert (
        str(caught.value) == f"--format: unknown format: got 'mime', needed one of {NAMES}, mine{AUTO_HINT}"
    )


@pytest.mark.parametrize(
    "name", ["auto", "bf16", "float16", "int8-bnb", "a,b", "a b", "", "\u00e4", *Residency]
)
def test_a_name_that_means_something_else(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_request(None, FormatConfig(formats={name: Format(kind="nf4", double_quant=True)}))
    lines = str(caught.value).split(": ", 2)
    assert lines[0] == "--format-config"
    assert lines[1].startswith("$.formats")
    assert lines[2].startswith("not a name for a format: got ")
    assert lines[2].endswith(", needed letters, digits, - and _, and no name that means something else")


def test_a_builtin_name_with_other_parameters() -> None:
    with pytest.raises(UsageError) as caught:
        parse_request("nf4", config(nf4=Format(kind="nf4", double_quant=True)))
    assert str(caught.value) == (
        '--format-config: $.formats.nf4: not a name for a format: got "nf4",'
        " needed letters, digits, - and _, and no name that means something else"
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            Format(kind="gptq", bits=4, block_shape=(1, 128)),
            ".kind: weights cannot be converted to this kind, checkpoints come in it: got 'gptq',"
            f" needed one of {KINDS}",
        ),
        (Format(kind="bf16"), ': a plain data type has no second name: got "x", needed "bf16"'),
        (Format(kind="nf4", bits=4), f".bits: not to be chosen for nf4: got 4, needed {OF_4BIT}"),
        (
            Format(kind="nf4", layout="cpu-avx512bf16"),
            f".layout: not to be chosen for nf4: got 'cpu-avx512bf16', needed {OF_4BIT}",
        ),
        (
            Format(kind="int8", compute_dtype="fp32"),
            ".compute_dtype: not to be chosen for int8: got 'fp32', needed only kind, threshold_milli",
        ),
        (
            Format(kind="fp8", is_static=True),
            ".is_static: not to be chosen for fp8: got True, needed only kind, block_shape",
        ),
        (
            Format(kind="mxfp4", blocksize=32),
            ".blocksize: not to be chosen for mxfp4: got 32, needed only kind",
        ),
        (
            Format(kind="nf4", blocksize=96),
            ".blocksize: bitsandbytes does not have this: got 96,"
            " needed one of 32, 64, 128, 256, 512, 1024, 2048, 4096",
        ),
        (
            Format(kind="fp4", storage_dtype="int8"),
            ".storage_dtype: bitsandbytes does not have this: got 'int8',"
            " needed one of uint8, bf16, fp16, fp32",
        ),
        (
            Format(kind="fp8", block_shape=(0, 128)),
            ".block_shape: not a block: got [0, 128],"
            " needed rows and columns, or [0, 0] for the whole weight",
        ),
    ],
)
def test_an_entry_that_makes_no_sense(entry: Format, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_request(None, config(x=entry))
    assert str(caught.value) == f"--format-config: $.formats.x{message}"


def ruled(*rules: FormatRule) -> FormatConfig:
    return FormatConfig(formats={"mine": Format(kind="nf4", double_quant=True)}, format_rules=rules)


def test_rules_have_formats_by_their_short_names() -> None:
    rules = (
        FormatRule(pattern="a", format="int8-bnb", within="mine"),
        FormatRule(pattern="b", format="bfloat16", within="float8"),
        FormatRule(pattern="c", format="mine", within="gptq"),
    )
    assert parse_request("auto", ruled(*rules)).rules == (
        FormatRule(pattern="a", format="int8", within="mine"),
        FormatRule(pattern="b", format="bf16", within="fp8"),
        FormatRule(pattern="c", format="mine", within="gptq"),
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nf5", f"unknown format: got 'nf5', needed one of {NAMES}, mine"),
        (
            "awq",
            "weights cannot be converted to this format, checkpoints come in it: got 'awq',"
            f" needed one of {NAMES}, mine",
        ),
    ],
)
def test_a_rule_with_an_unknown_format(name: str, message: str) -> None:
    good = FormatRule(pattern="a", format="mine")
    with pytest.raises(UsageError) as caught:
        parse_request(None, ruled(good, msgspec.structs.replace(good, format=name)))
    assert str(caught.value) == f"--format-config: $.format_rules[1].format: {message}"
