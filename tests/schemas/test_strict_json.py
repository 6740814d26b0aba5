from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.schemas.strict_json import (
    MAX_DEPTH,
    JsonError,
    JsonRule,
    JsonValue,
    canonical,
    digest,
    join_path,
    parse,
    quote,
)
from bayplan.schemas.types import MAX_INTEGER

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | TEXT
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=30
)


def parsed(data: bytes) -> JsonValue:
    return parse(data, where="f.json", max_bytes=10_000_000)


def refused(data: bytes) -> JsonError:
    with pytest.raises(JsonError) as caught:
        parsed(data)
    return caught.value


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": [1, -2, true, false, null, "x"]}', {"a": [1, -2, True, False, None, "x"]}),
        (b" [1.5, 1e3] ", [1.5, 1000.0]),
        ('"\u00e9\\u00e9\\ud83d\\ude00\U0001f600"'.encode(), "\u00e9\u00e9\U0001f600\U0001f600"),
        (b"9007199254740991", MAX_INTEGER),
        (b'{"b": 1, "a": 2}', {"b": 1, "a": 2}),
        (b'"\\u007f"', "\x7f"),
    ],
)
def test_valid_documents(data: bytes, value: JsonValue) -> None:
    assert parsed(data) == value


def test_key_order_is_kept() -> None:
    value = parsed(b'{"b": 1, "a": 2, "c": 3}')
    assert isinstance(value, dict)
    assert list(value) == ["b", "a", "c"]


def test_negative_zero_is_a_float() -> None:
    value = parsed(b"-0")
    assert isinstance(value, float)
    assert str(value) == "-0.0"


def test_too_large() -> None:
    with pytest.raises(JsonError) as caught:
        parse(b"[1, 2]", where="f.json", max_bytes=5)
    assert caught.value.rule is JsonRule.TOO_LARGE
    assert str(caught.value) == "f.json: too large: got 6 bytes, needed at most 5"
    assert parse(b"[1, 2]", where="f.json", max_bytes=6) == [1, 2]


def test_byte_order_mark() -> None:
    error = refused(b"\xef\xbb\xbf{}")
    assert error.rule is JsonRule.BYTE_ORDER_MARK
    assert str(error) == "f.json: starts with a byte order mark: needed UTF-8 without one"


@pytest.mark.parametrize("data", [b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\xaf"'])
def test_not_utf8(data: bytes) -> None:
    error = refused(data)
    assert error.rule is JsonRule.NOT_UTF8
    assert str(error) == f"f.json: not UTF-8: got byte {data[1]:#04x} at offset 1"


def test_utf16_is_not_utf8() -> None:
    assert refused('{"a": 1}'.encode("utf-16")).rule is JsonRule.NOT_UTF8


def test_too_deep() -> None:
    error = refused(nested(MAX_DEPTH + 1))
    assert error.rule is JsonRule.TOO_DEEP
    assert str(error) == f"f.json: nested too deeply: needed at most {MAX_DEPTH} levels"


def test_depth_limit_is_exact_and_reachable() -> None:
    assert json.dumps(parsed(nested(MAX_DEPTH))).encode() == nested(MAX_DEPTH)
    assert parse(b"[[1]]", where="f", max_bytes=99, max_depth=2) == [[1]]
    with pytest.raises(JsonError):
        parse(b'[{"a": []}]', where="f", max_bytes=99, max_depth=2)


def test_siblings_and_brackets_in_strings_are_not_depth() -> None:
    assert parsed(b"[" + b"[]," * 500 + b"[]]") == [[] for _ in range(501)]
    assert parsed(b'["' + b"[" * 500 + b'\\"[{"]') == ["[" * 500 + '"[{']


@pytest.mark.parametrize("opener", [b"[", b'{"a":', b'[{"a":'])
def test_a_million_levels_are_no_recursion_error(opener: bytes) -> None:
    assert refused(opener * 1_000_000).rule is JsonRule.TOO_DEEP


def test_depth_scan_does_not_backtrack() -> None:
    """An unclosed string of escaped quotes is quadratic for a careless pattern: it would not end."""
    assert refused(b"[" * 200 + b'"' + b'\\"' * 1_000_000).rule is JsonRule.TOO_DEEP
    assert refused(b'["' + b"[" * 200 + b'\\"' * 1_000_000).rule is JsonRule.SYNTAX
    assert refused(b'["' + b"[" * 200 + b'\\"' * 1_000_000 + b"\\").rule is JsonRule.SYNTAX


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (b"", "'Expecting value' at line 1 column 1"),
        (b"{} {}", "'Extra data' at line 1 column 4"),
        (b"01", "'Extra data' at line 1 column 2"),
        (b'{"a": 1}\0\0', "'Extra data' at line 1 column 9"),
        (b'["a\x01"]', "'Invalid control character at' at line 1 column 4"),
        (b"[\n+1]", "'Expecting value' at line 2 column 1"),
    ],
)
def test_syntax(data: bytes, got: str) -> None:
    error = refused(data)
    assert error.rule is JsonRule.SYNTAX
    assert str(error) == f"f.json: not JSON: got {got}"


@pytest.mark.parametrize(
    "data", [b"{'a': 1}", b"[1,]", b'{"a" 1}', b"\xc2\xa0[1]", "\u0661".encode(), b"nul"]
)
def test_lenient_forms_are_syntax_errors(data: bytes) -> None:
    assert refused(data).rule is JsonRule.SYNTAX


@pytest.mark.parametrize(
    "data", [b'{"a": 1, "a": 1}', b'[{"b": {"a": 1, "c": 0, "a": 2}}]', b'{"a": 1, "\\u0061": 2}']
)
def test_duplicate_key(data: bytes) -> None:
    error = refused(data)
    assert error.rule is JsonRule.DUPLICATE_KEY
    assert str(error) == 'f.json: an object has the same key twice: got "a"'


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_not_finite(name: str) -> None:
    error = refused(f"[{name}]".encode())
    assert error.rule is JsonRule.NOT_FINITE
    assert str(error) == f"f.json: not a JSON number: got {name}"


@pytest.mark.parametrize(("digits", "shown"), [("1e999", "1e999"), ("9" * 400 + ".0", "402 characters")])
def test_number_over_a_double(digits: str, shown: str) -> None:
    error = refused(digits.encode())
    assert error.rule is JsonRule.NOT_FINITE
    assert str(error) == f"f.json: number out of range: got {shown}, needed a finite double"


@pytest.mark.parametrize(
    ("digits", "shown"),
    [
        ("9007199254740992", "9007199254740992"),
        ("-9007199254740992", "-9007199254740992"),
        ("9" * 5000, "5000 digits"),
    ],
)
def test_integer_range(digits: str, shown: str) -> None:
    error = refused(digits.encode())
    assert error.rule is JsonRule.INTEGER_RANGE
    assert (
        str(error)
        == f"f.json: integer out of range: got {shown}, needed at most 9007199254740991 in magnitude"
    )


def test_integer_range_can_be_widened() -> None:
    assert parse(b"18446744073709551615", where="f", max_bytes=99, max_integer=2**64 - 1) == 2**64 - 1


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b'{"a": ["\\ud800"]}', '"\\ud800" at $.a[0]'),
        (b'{"\\udfff": 1}', '"\\udfff" at $'),
        (b'{"a.b": "\\uDC00x"}', '"\\udc00x" at $["a.b"]'),
    ],
)
def test_lone_surrogate(data: bytes, shown: str) -> None:
    error = refused(data)
    assert error.rule is JsonRule.LONE_SURROGATE
    assert str(error) == f"f.json: half of a surrogate pair: got {shown}"


@settings(deadline=None)
@given(VALUES)
def test_canonical_text_reads_back_and_is_a_fixed_point(value: JsonValue) -> None:
    text = canonical(value)
    assert parsed(text) == value
    assert canonical(parsed(text)) == text


@settings(deadline=None)
@given(st.dictionaries(TEXT, SCALARS), st.randoms(use_true_random=False))
def test_canonical_text_does_not_depend_on_key_order(
    members: dict[str, JsonValue], shuffler: random.Random
) -> None:
    keys = list(members)
    shuffler.shuffle(keys)
    assert canonical({key: members[key] for key in keys}) == canonical(members)


def test_keys_sort_by_utf16_code_units() -> None:
    """The order of RFC 8785 3.2.3: the emoji's first code unit, D83D, sorts below FB33."""
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\x80", "\u00f6"]
    ordered = ["\r", "1", "\x80", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    expected = "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:0" for key in ordered) + "}"
    assert canonical(dict.fromkeys(keys, 0)) == expected.encode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('\x08\t\n\x0c\r"\\', rb'"\b\t\n\f\r\"\\"'),
        ("\x00\x0f\x1f", rb'"\u0000\u000f\u001f"'),
        ("/\x7f\u2028\u20ac", b'"/\x7f\xe2\x80\xa8\xe2\x82\xac"'),
        ([True, False, None, 0, -1, MAX_INTEGER], b"[true,false,null,0,-1,9007199254740991]"),
        ({"b": {}, "a": []}, b'{"a":[],"b":{}}'),
    ],
)
def test_canonical_vectors(value: JsonValue, text: bytes) -> None:
    assert canonical(value) == text


def test_digest_is_sha256_of_the_canonical_text() -> None:
    assert digest({}) == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}) != digest({"a": 1, "b": 2})


def not_canonical(value: object) -> JsonError:
    with pytest.raises(JsonError) as caught:
        canonical(value)  # type: ignore[arg-type]  # values outside the type are the point
    return caught.value


def test_canonical_refuses_floats() -> None:
    error = not_canonical({"blocks": [{"a.b": 1.5}]})
    assert error.rule is JsonRule.FLOAT
    assert str(error) == '$.blocks[0]["a.b"]: a float has no canonical text here: got 1.5, needed an integer'


@pytest.mark.parametrize(("value", "shown"), [(2**53, "0x20000000000000"), (-(2**53), "-0x20000000000000")])
def test_canonical_refuses_large_integers(value: int, shown: str) -> None:
    error = not_canonical([value])
    assert error.rule is JsonRule.INTEGER_RANGE
    assert str(error) == f"$[0]: integer out of range: got {shown}, needed at most {MAX_INTEGER} in magnitude"


@pytest.mark.parametrize("value", ["\ud800", {"\ud800": 1}])
def test_canonical_refuses_lone_surrogates(value: JsonValue) -> None:
    error = not_canonical(value)
    assert error.rule is JsonRule.LONE_SURROGATE
    assert str(error) == r'$: half of a surrogate pair: got "\ud800"'


def test_canonical_refuses_deep_and_endless_values() -> None:
    endless: list[JsonValue] = []
    endless.append(endless)
    error = not_canonical(endless)
    assert error.rule is JsonRule.TOO_DEEP
    assert str(error) == f"${'[0]' * MAX_DEPTH}: nested too deeply: needed at most {MAX_DEPTH} levels"


def test_canonical_and_parse_share_one_depth_limit() -> None:
    """What can be written can be read back; one level more can be neither."""
    deepest = parsed(nested(MAX_DEPTH))
    assert parsed(canonical(deepest)) == deepest
    assert not_canonical([deepest]).rule is JsonRule.TOO_DEEP


@pytest.mark.parametrize(
    ("value", "path", "got"), [({"a": (1,)}, "$.a", "tuple"), ({1: 2}, "$", "int"), (b"", "$", "bytes")]
)
def test_canonical_refuses_other_types(value: object, path: str, got: str) -> None:
    error = not_canonical(value)
    assert error.rule is JsonRule.NOT_JSON
    needed = "dict with str keys, list, str, int, bool or None"
    assert str(error) == f"{path}: not a JSON value: got {got}, needed {needed}"


def test_quote_shows_no_control_characters_and_is_cut() -> None:
    assert quote('a"\x1b[31m\x7f\u202e') == r'"a\"\u001b[31m\u007f\u202e"'
    assert quote("x" * 101) == '"' + "x" * 100 + '..."'


def test_join_path() -> None:
    assert join_path("$", "blocks") == "$.blocks"
    assert join_path("$.a[0]", "b c") == '$.a[0]["b c"]'
