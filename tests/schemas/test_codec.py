from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from maximal_plan import INVENTORY, REPORT, maximal_plan

from bayplan.schemas import hardware, plan, report
from bayplan.schemas.codec import (
    MAX_FILE_BYTES,
    DecodedPlan,
    decode_plan,
    encode_inventory,
    encode_plan,
    encode_report,
    read_inventory,
    read_plan,
    read_report,
    sealed,
    tree_digest,
)
from bayplan.schemas.errors import BayplanError, PlanFormatError, PlanRefused

GOLDEN = Path(__file__).parents[1] / "golden" / "plan_maximal.json"
DATA = encode_plan(maximal_plan())
DIGEST = maximal_plan().digest


def tree() -> dict[str, Any]:
    """Return the maximal plan as JSON, to be changed."""
    changeable: dict[str, Any] = json.loads(DATA)
    return changeable


def decoded(value: object) -> DecodedPlan:
    return decode_plan(json.dumps(value).encode(), where="p.json")


def message(data: bytes) -> str:
    with pytest.raises(PlanFormatError) as caught:
        decode_plan(data, where="p.json")
    return str(caught.value)


def structs_in(value: object) -> list[msgspec.Struct]:
    """Return `value` and every struct inside it."""
    if isinstance(value, msgspec.Struct):
        members = [getattr(value, name) for name in value.__struct_fields__]
        return [value, *(inner for member in members for inner in structs_in(member))]
    if isinstance(value, dict):
        return structs_in(tuple(value.values()))
    if isinstance(value, tuple):
        return [inner for member in value for inner in structs_in(member)]
    return []


def test_the_sample_uses_every_field() -> None:
    """Every optional field is somewhere other than its default, or a new one would go untested."""
    found = structs_in((maximal_plan(), REPORT))
    struct_types = {
        value
        for module in (plan, hardware, report)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
    }
    for struct in struct_types:
        instances = [instance for instance in found if type(instance) is struct]
        assert instances, struct
        for field in msgspec.structs.fields(struct):
            values = [getattr(instance, field.name) for instance in instances]
            assert any(value != field.default for value in values), (struct, field.name)


def test_round_trip() -> None:
    result = decode_plan(DATA, where="p.json")
    assert result.plan == maximal_plan()
    assert result.digest_matches
    assert result.tree == json.loads(DATA)
    assert encode_plan(result.plan) == DATA
    assert encode_plan(result.plan, onto=result.tree) == DATA


def test_golden_bytes() -> None:
    assert GOLDEN.read_bytes() == DATA
    assert read_plan(GOLDEN).plan == maximal_plan()


def test_inventory_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "inventory.json"
    file.write_bytes(encode_inventory(INVENTORY))
    assert read_inventory(file) == INVENTORY


def test_report_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_bytes(encode_report(REPORT))
    assert read_report(file) == REPORT


def test_encoding_renews_the_digest() -> None:
    stale = msgspec.structs.replace(maximal_plan(), digest="sha256:" + "0" * 64)
    assert sealed(stale).digest == DIGEST
    assert encode_plan(stale) == DATA


def test_the_order_of_keys_and_white_space_do_not_matter() -> None:
    backwards = dict(reversed(tree().items()))
    assert decoded(backwards).digest_matches


# Version: read first, so that nothing else can hide it.


@pytest.mark.parametrize("found", ["0.9", "2.0", "10.0", "999999.0"])
def test_another_major_version(found: str) -> None:
    nonsense = {"format_version": found, "blocks": "none", "digest": 7}
    with pytest.raises(PlanRefused) as caught:
        decoded(nonsense)
    assert caught.value.kind == "unsupported"
    assert str(caught.value) == (
        "p.json: plan refused (unsupported): plan of another major format version:"
        f" got {found}, needed 1.x (this is bayplan's 1.0)\n"
        "hint: use the version of bayplan that wrote it, or plan again with this one"
    )


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (None, "None"),
        (1, "1"),
        (1.0, "1.0"),
        ("1", "'1'"),
        ("v1.0", "'v1.0'"),
        ("1.0\n", "'1.0\\n'"),
        ("1.0.0", "'1.0.0'"),
        ("\u0661.0", "'\u0661.0'"),
        ({"a": 1}, "{'a': 1}"),
        ("9" * 200, "'" + "9" * 99),
    ],
)
def test_version_that_is_none(found: object, shown: str) -> None:
    text = message(json.dumps({"format_version": found}).encode())
    assert text == (
        "p.json: not a valid plan: 1 problem\n"
        f"  $.format_version: got {shown}, needed MAJOR.MINOR such as '1.0'"
    )


@pytest.mark.parametrize(("read", "noun"), [(read_inventory, "inventory"), (read_report, "report")])
def test_other_files_of_another_major_version(
    read: Callable[[Path], object], noun: str, tmp_path: Path
) -> None:
    file = tmp_path / "f.json"
    file.write_text('{"format_version": "2.0"}')
    with pytest.raises(PlanRefused) as caught:
        read(file)
    assert str(caught.value) == (
        f"{file}: plan refused (unsupported): {noun} of another major format version:"
        " got 2.0, needed 1.x (this is bayplan's 1.0)\n"
        "hint: use the version of bayplan that wrote it, or plan again with this one"
    )


# Newer minor versions: unknown fields are read over, digested, and kept.


def newer() -> dict[str, Any]:
    """Return a plan of a newer minor version: fields that we do not know in every kind of place."""
    value = tree()
    value["format_version"] = "1.7"
    value["novelty"] = {"a": [1, {"b": None}]}
    value["model"]["color"] = "blue"
    value["model"]["checkpoint"]["shards"][1]["mirror"] = "elsewhere"
    value["formats"]["nf4-a"]["codebook"] = [1, 2]
    value["blocks"][2]["owner"] = "alice"
    value["blocks"][1]["experts"]["shared"] = 1
    value["ties"][1]["since"] = "1.7"
    value["rules"][0]["operations"][1]["exact"] = True
    value["inventory"]["links"][1]["lanes"] = 16
    value["problem"]["pins"][1]["why"] = "asked"
    value["problem"]["edges"][1]["tensor"] = "x"
    value["summary"]["energy"] = 12
    value["digest"] = tree_digest(value)
    return value


def test_newer_minor_version_is_read() -> None:
    result = decoded(newer())
    assert result.digest_matches
    assert result.plan == msgspec.structs.replace(
        maximal_plan(), format_version="1.7", digest=newer()["digest"]
    )


def test_unknown_fields_survive_rewriting() -> None:
    result = decoded(newer())
    assert json.loads(encode_plan(result.plan, onto=result.tree)) == newer()


def test_unknown_fields_follow_their_entity() -> None:
    """A rewrite may drop, reorder and move blocks; what is unknown stays with the block of the same id."""
    result = decoded(newer())
    kept = [block for block in result.plan.blocks if block.id != "model.layers.1"]
    other = msgspec.structs.replace(result.plan, blocks=tuple(reversed(kept)))
    rewritten = json.loads(encode_plan(other, onto=result.tree))
    assert [block["id"] for block in rewritten["blocks"] if "owner" in block] == []
    moved = tuple(
        msgspec.structs.replace(block, device="node0/cpu") for block in reversed(result.plan.blocks)
    )
    rewritten = json.loads(encode_plan(msgspec.structs.replace(result.plan, blocks=moved), onto=result.tree))
    assert [block["id"] for block in rewritten["blocks"] if "owner" in block] == ["model.layers.1"]
    assert {block["device"] for block in rewritten["blocks"]} == {"node0/cpu"}


def test_a_known_field_that_was_taken_away_does_not_come_back() -> None:
    result = decoded(newer())
    plain = tuple(msgspec.structs.replace(block, experts=None) for block in result.plan.blocks)
    rewritten = json.loads(encode_plan(msgspec.structs.replace(result.plan, blocks=plain), onto=result.tree))
    assert not any("experts" in block for block in rewritten["blocks"])


def test_the_digest_covers_unknown_fields() -> None:
    value = newer()
    value["blocks"][2]["owner"] = "bob"
    assert not decoded(value).digest_matches


# Edits.


@pytest.mark.parametrize(
    "edit",
    [
        lambda value: value["blocks"][0].update(reason="kept"),
        lambda value: value["workload"].update(batch=3),
        lambda value: value["model"].update(trace_note=""),
        lambda value: value["inventory"].update(source="probed"),
        lambda value: value["problem"].update(no_spill=False),
        lambda value: value.update(format_version="1.1"),
        lambda value: value.update(added=None),
        lambda value: value.update(digest="sha256:" + "0" * 64),
        lambda value: value["ties"].reverse(),
    ],
)
def test_an_edit_shows(edit: Callable[[dict[str, Any]], None]) -> None:
    value = tree()
    edit(value)
    assert not decoded(value).digest_matches


@pytest.mark.parametrize(
    "edit",
    [
        lambda value: value.update(producer="somebody else 9"),
        lambda value: value["summary"].update(predicted_load_ns=1, solver_status="optimal"),
        lambda value: value["summary"].update(added={"a": 0.5}),
    ],
)
def test_summary_and_producer_are_outside_the_digest(edit: Callable[[dict[str, Any]], None]) -> None:
    value = tree()
    edit(value)
    assert decoded(value).digest_matches
    assert encode_plan(decoded(value).plan)[: DATA.index(b'"producer"')] == DATA[: DATA.index(b'"producer"')]
    assert decoded(value).plan.digest == DIGEST


# Bytes that are no plan.


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not JSON: got 'Expecting value' at line 1 column 1"),
        (b"\x89PNG\r\n", "not UTF-8: got byte 0x89 at offset 0"),
        (b"[1, 2]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a": 1, "a": 2}', 'an object has the same key twice: got "a"'),
        (b'{"a": NaN}', "not a JSON number: got NaN"),
        (b'{"a": 1e999}', "number out of range: got 1e999, needed a finite double"),
        (
            b'{"a": 9007199254740992}',
            "integer out of range: got 9007199254740992, needed at most 9007199254740991 in magnitude",
        ),
        (
            b'{"a": ' + b"9" * 5000 + b"}",
            "integer out of range: got 5000 digits, needed at most 9007199254740991 in magnitude",
        ),
        (b"\xef\xbb\xbf{}", "starts with a byte order mark: needed UTF-8 without one"),
        (b'{"a":' * 101 + b"}" * 101, "nested too deeply: needed at most 100 levels"),
        (b'{"a": "\\ud800"}', 'half of a surrogate pair: got "\\ud800" at $.a'),
    ],
)
def test_bytes_that_are_no_plan(data: bytes, problem: str) -> None:
    assert message(data) == f"p.json: not a valid plan: 1 problem\n  $: {problem}"


def test_every_cut_is_refused() -> None:
    for length in range(0, len(DATA) - 2, 97):
        assert message(DATA[:length]).startswith("p.json: not a valid plan: 1 problem\n  $: not JSON: got ")


def test_cut_off_file() -> None:
    assert message(DATA[:100]) == (
        "p.json: not a valid plan: 1 problem\n  $: not JSON: got 'Expecting value' at line 6 column 13"
    )


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_merge_conflict(newline: bytes) -> None:
    lines = DATA.split(b"\n")
    sides = [b"<<<<<<< HEAD", lines[4], b"=======", lines[4], b">>>>>>> branch"]
    assert message(newline.join(lines[:4] + sides + lines[5:])) == (
        "p.json: not a valid plan: 1 problem\n"
        "  $: holds merge conflict markers\n"
        "hint: take one side with `git checkout --ours` or `--theirs`, then plan again"
    )


def test_text_that_looks_like_a_conflict_marker_is_none() -> None:
    value = tree()
    value["model"]["trace_note"] = "<<<<<<< HEAD\n>>>>>>> branch"
    assert decoded(value).plan.model.trace_note == "<<<<<<< HEAD\n>>>>>>> branch"


def test_float_in_an_unknown_field() -> None:
    value = tree()
    value["extra"] = {"ratio": 0.5, "a.b": [1, -0.0]}
    assert message(json.dumps(value).encode()) == (
        "p.json: not a valid plan: 2 problems\n"
        "  $.extra.ratio: got the float 0.5, needed an integer\n"
        '  $.extra["a.b"][1]: got the float -0.0, needed an integer\n'
        "hint: do not edit a plan by hand; plan again"
    )


def test_an_unknown_field_may_be_as_deep_as_the_reader_allows() -> None:
    deep: Any = 1
    for _ in range(99):
        deep = [deep]
    value = tree() | {"deep": deep}
    assert not decoded(value).digest_matches


def test_every_problem_is_listed_with_its_path() -> None:
    value = tree()
    del value["semantics"]
    value["complete"] = 1
    value["digest"] = "sha256:0"
    value["workload"] = []
    value["model"]["checkpoint"]["shards"][0]["num_bytes"] = -5
    value["model"]["dtype"] = "fp8"
    value["formats"]["fp32"]["kind"] = None
    value["devices"][1]["ledger"]["kv"] = [1.5, "8"]
    value["devices"][0]["ledger"]["staging"] = [1]
    value["blocks"][3] = "model.layers.2"
    value["blocks"][4]["device"] = "cuda:0"
    value["blocks"][1]["experts"] = 3
    value["problem"]["max_memory_bytes"] = {"gpu": True}
    assert message(json.dumps(value).encode()) == (
        "p.json: not a valid plan: 15 problems\n"
        "  $: Object missing required field `semantics`\n"
        "  $.complete: Expected `bool`, got `int`\n"
        "  $.digest: Expected `str` matching regex '^sha256:[0-9a-f]{64}$'\n"
        "  $.model.dtype: Invalid enum value 'fp8'\n"
        "  $.model.checkpoint.shards[0].num_bytes: Expected `int` >= 0\n"
        "  $.workload: Expected `object`, got `array`\n"
        "  $.formats.fp32.kind: Expected `str`, got `null`\n"
        "  $.devices[0].ledger.staging: Expected `array` of length 2, got 1\n"
        "  $.devices[1].ledger.kv[0]: Expected `int`, got `float`\n"
        "  $.devices[1].ledger.kv[1]: Expected `int`, got `str`\n"
        "  $.blocks[1].experts: Expected `object`, got `int`\n"
        "  $.blocks[3]: Expected `object`, got `str`\n"
        "  $.blocks[4].device: Expected `str` matching regex '^[a-z0-9_-]+/[a-z0-9_-]+$'\n"
        "  $.problem.max_memory_bytes key 'gpu': Expected `str` matching regex '^[a-z0-9_-]+/[a-z0-9_-]+$'\n"
        "  $.problem.max_memory_bytes.gpu: Expected `int`, got `bool`"
    )


# Files that cannot be read.

READERS = [(read_plan, "plan"), (read_inventory, "inventory"), (read_report, "report")]


@pytest.mark.parametrize(("read", "noun"), READERS)
def test_missing_file(read: Callable[[Path], object], noun: str, tmp_path: Path) -> None:
    with pytest.raises(BayplanError) as caught:
        read(tmp_path / "no.json")
    assert str(caught.value) == (
        f"{tmp_path / 'no.json'}: cannot read the {noun}: got No such file or directory"
    )


@pytest.mark.parametrize(("read", "noun"), READERS)
def test_directory(read: Callable[[Path], object], noun: str, tmp_path: Path) -> None:
    with pytest.raises(BayplanError) as caught:
        read(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot read the {noun}: got Is a directory"


@pytest.mark.parametrize(("read", "noun"), READERS)
def test_huge_file(read: Callable[[Path], object], noun: str, tmp_path: Path) -> None:
    file = tmp_path / "huge.json"
    with file.open("wb") as sparse:
        sparse.truncate(100_000_000)
    with pytest.raises(PlanFormatError) as caught:
        read(file)
    assert str(caught.value) == (
        f"{file}: not a valid {noun}: 1 problem\n"
        f"  $: too large: got 100000000 bytes, needed at most {MAX_FILE_BYTES}"
    )


def test_endless_input_is_not_read_to_its_end() -> None:
    """A device says that it has no bytes; reading stops all the same."""
    with pytest.raises(PlanFormatError) as caught:
        read_plan("/dev/zero")
    assert str(caught.value) == (
        "/dev/zero: not a valid plan: 1 problem\n"
        f"  $: too large: got {MAX_FILE_BYTES + 1} bytes, needed at most {MAX_FILE_BYTES}"
    )


def test_inventory_problems_are_listed(tmp_path: Path) -> None:
    value = json.loads(encode_inventory(INVENTORY))
    value["devices"][0]["flops_per_second"] = 0
    value["nodes"][1] = None
    file = tmp_path / "inventory.json"
    file.write_text(json.dumps(value))
    with pytest.raises(PlanFormatError) as caught:
        read_inventory(file)
    assert str(caught.value) == (
        f"{file}: not a valid inventory: 2 problems\n"
        "  $.nodes[1]: Expected `object`, got `null`\n"
        "  $.devices[0].flops_per_second: Expected `int` >= 1"
    )


def test_reading_leaves_the_tree_alone() -> None:
    value = newer()
    before = copy.deepcopy(value)
    encode_plan(maximal_plan(), onto=value)
    assert value == before
