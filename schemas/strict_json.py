"""JSON without surprises: one document has one meaning, one value has one text, one text has one digest.

Owns reading untrusted JSON bytes (RFC 8259 within the limits of RFC 7493, I-JSON), the canonical text of
RFC 8785 and its SHA-256. Knows nothing of plans, structs or files: it is given bytes and says where they came
from only in its messages.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Never, TypeAlias

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.types import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Callable

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
"""What a JSON document decodes to."""

MAX_DEPTH = 100
"""Levels of objects and arrays; far over any file of ours and far under Python's recursion limit of 1000."""

# Strings, closed or not, are dropped before brackets are counted. Possessive: no input makes it backtrack.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SHOWN_CHARS = 100


class JsonRule(enum.StrEnum):
    """Why bytes or a value are refused. Stable strings: tests and callers rely on them."""

    TOO_LARGE = "too-large"
    BYTE_ORDER_MARK = "byte-order-mark"
    NOT_UTF8 = "not-utf8"
    TOO_DEEP = "too-deep"
    SYNTAX = "syntax"
    DUPLICATE_KEY = "duplicate-key"
    NOT_FINITE = "not-finite"
    INTEGER_RANGE = "integer-range"
    LONE_SURROGATE = "lone-surrogate"
    FLOAT = "float"
    NOT_JSON = "not-json"


class JsonError(BayplanError):
    """Bytes that are not strict JSON, or a value that has no canonical text.

    Attributes:
        rule: The rule that is broken.
    """

    def __init__(
        self, rule: JsonRule, what: str, *, where: str = "", got: str = "", needed: str = "", hint: str = ""
    ) -> None:
        """Keep the rule beside the facts of `BayplanError`."""
        super().__init__(what, where=where, got=got, needed=needed, hint=hint)
        self.rule = rule


def quote(text: str) -> str:
    """Return `text` in double quotes, ASCII only and cut to 100 characters, fit for a message.

    Names come from files that others wrote: control characters must not reach a terminal.
    """
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
    return json.dumps(shown).replace("\x7f", "\\u007f")


def parse(
    data: bytes, *, where: str, max_bytes: int, max_depth: int = MAX_DEPTH, max_integer: int = MAX_INTEGER
) -> JsonValue:
    """Return the value of one strict JSON document.

    Stricter than `json.loads`: equal keys, NaN, numbers out of range, a byte order mark, encodings other than
    UTF-8 and lone surrogates are errors. `-0` is the float -0.0, as in JavaScript. Noncharacters pass.

    Args:
        data: The whole document.
        where: File or other origin, for the message.
        max_bytes: Largest accepted length of `data`.
        max_depth: Most levels of objects and arrays; the same for any Python version.
        max_integer: Largest accepted magnitude of an integer.

    Returns:
        The decoded value; object keys keep their order.

    Raises:
        JsonError: TOO_LARGE: more than `max_bytes`.
        JsonError: BYTE_ORDER_MARK: starts with one.
        JsonError: NOT_UTF8: some byte is not UTF-8.
        JsonError: TOO_DEEP: more than `max_depth` levels.
        JsonError: SYNTAX: not JSON; the message names line and column.
        JsonError: DUPLICATE_KEY: an object has the same key twice.
        JsonError: NOT_FINITE: NaN, Infinity, or a number over the range of a double.
        JsonError: INTEGER_RANGE: an integer over `max_integer`.
        JsonError: LONE_SURROGATE: half of an escaped surrogate pair.
    """

    def fail(rule: JsonRule, what: str, got: str = "", needed: str = "") -> Never:
        raise JsonError(rule, what, where=where, got=got, needed=needed)

    if len(data) > max_bytes:
        fail(JsonRule.TOO_LARGE, "too large", f"{len(data)} bytes", f"at most {max_bytes}")
    if data.startswith(b"\xef\xbb\xbf"):
        fail(JsonRule.BYTE_ORDER_MARK, "starts with a byte order mark", needed="UTF-8 without one")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        fail(JsonRule.NOT_UTF8, "not UTF-8", f"byte {data[error.start]:#04x} at offset {error.start}")
    if is_deeper(data, max_depth):
        fail(JsonRule.TOO_DEEP, "nested too deeply", needed=f"at most {max_depth} levels")
    try:
        value: JsonValue = json.loads(
            text,
            object_pairs_hook=_object_reader(fail),
            parse_int=_integer_reader(fail, max_integer),
            parse_float=_float_reader(fail),
            parse_constant=lambda name: fail(JsonRule.NOT_FINITE, "not a JSON number", name),
        )
    except json.JSONDecodeError as error:
        fail(JsonRule.SYNTAX, "not JSON", f"{error.msg!r} at line {error.lineno} column {error.colno}")
    if _SURROGATE_ESCAPE.search(text):
        _refuse_surrogates(value, fail, "$")
    return value


def is_deeper(data: bytes, max_depth: int) -> bool:
    """Return whether brackets outside strings nest beyond `max_depth`, found without recursion.

    Args:
        data: JSON, or what claims to be.
        max_depth: Most levels of objects and arrays.
    """
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return False
    depth = 0
    for match in _BRACKET.finditer(_STRING.sub(b"", data)):
        depth += 1 if match[0] in b"[{" else -1
        if depth > max_depth:
            return True
    return False


def _object_reader(fail: Callable[..., Never]) -> Callable[[list[tuple[str, JsonValue]]], JsonValue]:
    def read(pairs: list[tuple[str, JsonValue]]) -> JsonValue:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    fail(JsonRule.DUPLICATE_KEY, "an object has the same key twice", quote(key))
                seen.add(key)
        return members

    return read


def _integer_reader(fail: Callable[..., Never], max_integer: int) -> Callable[[str], int | float]:
    max_chars = len(str(max_integer)) + 1

    def read(digits: str) -> int | float:
        if digits == "-0":
            return -0.0
        # Length first: Python refuses to convert thousands of digits, with an error of its own.
        if len(digits) > max_chars or abs(int(digits)) > max_integer:
            shown = digits if len(digits) <= _SHOWN_CHARS else f"{len(digits)} digits"
            fail(JsonRule.INTEGER_RANGE, "integer out of range", shown, f"at most {max_integer} in magnitude")
        return int(digits)

    return read


def _float_reader(fail: Callable[..., Never]) -> Callable[[str], float]:
    def read(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            shown = digits if len(digits) <= _SHOWN_CHARS else f"{len(digits)} characters"
            fail(JsonRule.NOT_FINITE, "number out of range", shown, "a finite double")
        return number

    return read


def _refuse_surrogates(value: JsonValue, fail: Callable[..., Never], path: str) -> None:
    """Fail at the first string or key that UTF-8 cannot hold."""
    match value:
        case str() if _SURROGATE.search(value):
            fail(JsonRule.LONE_SURROGATE, "half of a surrogate pair", f"{quote(value)} at {path}")
        case dict():
            for key, member in value.items():
                _refuse_surrogates(key, fail, path)
                _refuse_surrogates(member, fail, join_path(path, key))
        case list():
            for index, member in enumerate(value):
                _refuse_surrogates(member, fail, f"{path}[{index}]")


def join_path(path: str, key: str) -> str:
    """Return the path of member `key` of the object at `path`: `$.blocks`, or `$["a.b"]` for other keys."""
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{quote(key)}]"


def canonical(value: JsonValue) -> bytes:
    """Return the one text of `value` by RFC 8785: no white space, keys in UTF-16 order, UTF-8.

    Args:
        value: Objects, arrays, strings, booleans, null, and integers up to 2^53 - 1 in magnitude.

    Returns:
        UTF-8 bytes. Values that are equal as JSON give equal bytes, whatever the order of their keys.

    Raises:
        JsonError: FLOAT: a float, at the path named; nothing that bayplan digests holds one.
        JsonError: INTEGER_RANGE: an integer over 2^53 - 1.
        JsonError: LONE_SURROGATE: a string that UTF-8 cannot hold.
        JsonError: TOO_DEEP: more than `MAX_DEPTH` levels.
        JsonError: NOT_JSON: another type, such as a tuple, or a key that is no string.
    """
    ordered = _ordered(value, "$", 0)
    return json.dumps(ordered, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def digest(value: JsonValue) -> str:
    """Return `sha256:` and the hex SHA-256 of the canonical text of `value`.

    Raises:
        JsonError: As `canonical`.
    """
    return sha256_digest(canonical(value))


def sha256_digest(data: bytes) -> str:
    """Return `sha256:` and the hex SHA-256 of `data`: the one spelling of a digest in bayplan's files."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _ordered(value: JsonValue, path: str, depth: int) -> JsonValue:
    """Return `value` checked and with the keys of every object in UTF-16 order."""
    match value:
        case None | bool():
            return value
        case str():
            return _checked_text(value, path)
        case int():
            if abs(value) > MAX_INTEGER:
                needed = f"at most {MAX_INTEGER} in magnitude"
                raise JsonError(
                    JsonRule.INTEGER_RANGE,
                    "integer out of range",
                    where=path,
                    got=f"{value:#x}",
                    needed=needed,
                )
            return value
        case float():
            raise JsonError(
                JsonRule.FLOAT,
                "a float has no canonical text here",
                where=path,
                got=repr(value),
                needed="an integer",
            )
        case list() | dict() if depth == MAX_DEPTH:
            needed = f"at most {MAX_DEPTH} levels"
            raise JsonError(JsonRule.TOO_DEEP, "nested too deeply", where=path, needed=needed)
        case list():
            return [_ordered(member, f"{path}[{index}]", depth + 1) for index, member in enumerate(value)]
        case dict():
            return _ordered_object(value, path, depth)
        case _:
            raise _not_json(value, path)


def _ordered_object(members: dict[str, JsonValue], path: str, depth: int) -> JsonValue:
    for key in members:
        if not isinstance(key, str):
            raise _not_json(key, path)
        _checked_text(key, path)
    # RFC 8785 3.2.3 sorts by UTF-16 code units: U+E000..U+FFFF after the pairs of higher planes.
    keys = sorted(members, key=lambda key: key.encode("utf-16-be"))
    return {key: _ordered(members[key], join_path(path, key), depth + 1) for key in keys}


def _checked_text(text: str, path: str) -> str:
    if _SURROGATE.search(text):
        raise JsonError(JsonRule.LONE_SURROGATE, "half of a surrogate pair", where=path, got=quote(text))
    return text


def _not_json(value: object, path: str) -> JsonError:
    return JsonError(
        JsonRule.NOT_JSON,
        "not a JSON value",
        where=path,
        got=type(value).__name__,
        needed="dict with str keys, list, str, int, bool or None",
    )
