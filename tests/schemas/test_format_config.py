from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.schemas.codec import read_format_config
from bayplan.schemas.errors import BayplanError, PlanFormatError
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.plan import Format, FormatRule

HINT = "hint: write formats and format_rules as they are in a plan"


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "formats.json"
    file.write_text(text)
    return file


def test_formats_and_rules_as_in_a_plan(tmp_path: Path) -> None:
    text = """{
      "formats": {"nf4-a": {"kind": "nf4", "double_quant": true, "compute_dtype": "fp32"}},
      "format_rules": [{"pattern": "lm_head.weight", "format": "int8", "within": "nf4-a"}]
    }"""
    assert read_format_config(written(tmp_path, text)) == FormatConfig(
        formats={"nf4-a": Format(kind="nf4", double_quant=True, compute_dtype="fp32")},
        format_rules=(FormatRule(pattern="lm_head.weight", format="int8", within="nf4-a"),),
    )


def test_both_members_may_be_left_out(tmp_path: Path) -> None:
    assert read_format_config(written(tmp_path, "{}")) == FormatConfig()


def test_every_fault_of_structure_has_its_path(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """{
      "fromats": {},
      "formats": {"a-b": {"kind": "nf5", "blocksise": 64}, "c": {}, "d": 3},
      "format_rules": [{"pattern": 1, "format": "nf4"}, {"format": "nf4", "in": "a"}, 7]
    }""",
    )
    with pytest.raises(PlanFormatError) as caught:
        read_format_config(file)
    known = ", ".join(Format.__struct_fields__)
    assert str(caught.value) == (
        f"{file}: not a valid format config: 9 problems\n"
        "  $.formats[\"a-b\"].kind: Invalid enum value 'nf5'\n"
        "  $.formats.c: Object missing required field `kind`\n"
        "  $.formats.d: Expected `object`, got `int`\n"
        "  $.format_rules[0].pattern: Expected `str`, got `int`\n"
        "  $.format_rules[1]: Object missing required field `pattern`\n"
        "  $.format_rules[2]: Expected `object`, got `int`\n"
        '  $: no member "fromats", only formats, format_rules\n'
        f'  $.formats["a-b"]: no member "blocksise", only {known}\n'
        '  $.format_rules[1]: no member "in", only pattern, format, within\n'
        f"{HINT}"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "not a JSON object"),
        ('{"formats": {}, "formats": {}}', 'an object has the same key twice: got "formats"'),
        ('{"formats": [], "format_rules": {}}', None),
    ],
)
def test_no_format_config(text: str, problem: str | None, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    with pytest.raises(PlanFormatError) as caught:
        read_format_config(file)
    if problem is None:
        assert [path for path, _ in caught.value.problems] == ["$.formats", "$.format_rules"]
    else:
        assert caught.value.problems == (("$", problem),)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BayplanError) as caught:
        read_format_config(tmp_path / "no.json")
    assert str(caught.value) == (
        f"{tmp_path / 'no.json'}: cannot read the format config: got No such file or directory"
    )
