from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from bayplan.schemas.dtypes import DTYPES
from bayplan.schemas.safetensors_header import (
    MAX_HEADER_BYTES,
    SafetensorsFormatError,
    SafetensorsHeader,
    SafetensorsRule,
    TensorEntry,
    header_digest,
    header_length,
    parse_header,
    read_header,
    read_raw_header,
)

CUT_SHORT = "\nhint: the file is cut short: copy or download it again"
ENTRY = '{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'


def with_prefix(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def parsed(text: str | bytes, data_bytes: int) -> SafetensorsHeader:
    """Parse a header with this JSON part, of a file with so many bytes of data."""
    data = with_prefix(text.encode() if isinstance(text, str) else text)
    return parse_header(data, len(data) + data_bytes, "m.safetensors")


def refused(text: str | bytes, data_bytes: int) -> SafetensorsFormatError:
    with pytest.raises(SafetensorsFormatError) as caught:
        parsed(text, data_bytes)
    assert caught.value.file == "m.safetensors"
    return caught.value


def entry(dtype: object, shape: object, offsets: object) -> str:
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


def test_a_whole_file(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [4, 16]},
            "__metadata__": {"format": "pt"},
            "empty.z": {"dtype": "F32", "shape": [0, 7], "data_offsets": [4, 4]},
            "a": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]},
            "empty.y": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]},
        }
    )
    head = with_prefix(text.encode() + b"   ")
    path = tmp_path / "m.safetensors"
    path.write_bytes(head + bytes(16))
    header = read_header(path)
    assert header == SafetensorsHeader(
        num_bytes=len(head),
        file_bytes=len(head) + 16,
        digest=f"sha256:{hashlib.sha256(head).hexdigest()}",
        tensors=(
            TensorEntry(fqn="a", dtype="int32", shape=(), begin=0, end=4),
            TensorEntry(fqn="empty.y", dtype="fp32", shape=(0,), begin=4, end=4),
            TensorEntry(fqn="empty.z", dtype="fp32", shape=(0, 7), begin=4, end=4),
            TensorEntry(fqn="b", dtype="bf16", shape=(2, 3), begin=4, end=16),
        ),
        metadata={"format": "pt"},
    )
    last = header.tensors[-1]
    assert last.fqn == "b"
    assert last.data_offsets == (4, 16)
    assert last.num_bytes == 12
    assert header.file_offset(last) == len(head) + 4
    assert [entry.fqn for entry in header.tensors] == ["a", "empty.y", "empty.z", "b"]


def test_an_empty_file_of_tensors() -> None:
    assert parsed("{}", 0).tensors == ()
    assert parsed('{"__metadata__": {}}', 0).metadata == {}


def test_digest_needs_no_valid_json(tmp_path: Path) -> None:
    """The digest decides whether the JSON is looked at at all."""
    path = tmp_path / "m.safetensors"
    head = with_prefix(b"{ not JSON")
    path.write_bytes(head + b"data")
    assert header_digest(path) == f"sha256:{hashlib.sha256(head).hexdigest()}"
    raw = read_raw_header(path)
    assert (raw.data, raw.file_bytes, raw.digest) == (head, len(head) + 4, header_digest(path))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype(dtype: object) -> None:
    known = next(candidate for candidate in DTYPES if candidate == dtype)
    (tensor,) = parsed(entry(known.safetensors_name, [8], [0, known.num_bits]), known.num_bits).tensors
    assert tensor == TensorEntry(fqn="a", dtype=known.name, shape=(8,), begin=0, end=known.num_bits)


def test_a_range_request_may_bring_more_than_the_header() -> None:
    head = with_prefix(f'{{"a": {ENTRY}}}'.encode())
    more = parse_header(head + b"\x01\x02", len(head) + 4, "m.safetensors")
    assert more == parse_header(head, len(head) + 4, "m.safetensors")


def test_header_length_counts_the_prefix() -> None:
    assert header_length(b"\x02\0\0\0\0\0\0\0", 10, "m.safetensors") == 10


def test_unreadable_missing(tmp_path: Path) -> None:
    with pytest.raises(SafetensorsFormatError) as caught:
        read_header(tmp_path / "none.safetensors")
    assert caught.value.rule is SafetensorsRule.UNREADABLE
    assert str(caught.value) == f"{tmp_path}/none.safetensors: cannot be read: got No such file or directory"


def test_unreadable_named_pipe(tmp_path: Path) -> None:
    """Opening one would wait for ever."""
    pipe = tmp_path / "m.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(SafetensorsFormatError) as caught:
        read_header(pipe)
    assert caught.value.rule is SafetensorsRule.UNREADABLE
    assert str(caught.value) == f"{pipe}: not a regular file"


@pytest.mark.parametrize("num_bytes", [0, 7])
def test_too_short(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(bytes(num_bytes))
    with pytest.raises(SafetensorsFormatError) as caught:
        read_header(path)
    assert caught.value.rule is SafetensorsRule.TOO_SHORT
    needed = f"got {num_bytes} bytes, needed at least 8"
    assert str(caught.value) == f"{path}: not a safetensors file: too short: {needed}{CUT_SHORT}"


@pytest.mark.parametrize("json_bytes", [MAX_HEADER_BYTES + 1, 2**64 - 1])
def test_header_cap(json_bytes: int) -> None:
    with pytest.raises(SafetensorsFormatError) as caught:
        header_length(json_bytes.to_bytes(8, "little"), 2**63, "m.safetensors")
    assert caught.value.rule is SafetensorsRule.HEADER_CAP
    assert str(caught.value) == (
        f"m.safetensors: header too long: got {json_bytes} bytes, needed at most 100000000\n"
        "hint: this is probably no safetensors file: its first 8 bytes are not the length of a header"
    )
    assert header_length(MAX_HEADER_BYTES.to_bytes(8, "little"), 2**63, "m") == MAX_HEADER_BYTES + 8


def test_header_past_end() -> None:
    with pytest.raises(SafetensorsFormatError) as caught:
        header_length(b"\x03\0\0\0\0\0\0\0", 10, "m.safetensors")
    assert caught.value.rule is SafetensorsRule.HEADER_PAST_END
    needed = "got 10 bytes, needed at least 11"
    assert str(caught.value) == f"m.safetensors: truncated inside its header: {needed}{CUT_SHORT}"


def test_header_incomplete() -> None:
    with pytest.raises(SafetensorsFormatError) as caught:
        parse_header(with_prefix(b"{}")[:9], 10, "m.safetensors")
    assert caught.value.rule is SafetensorsRule.HEADER_INCOMPLETE
    assert str(caught.value) == "m.safetensors: header read in part only: got 9 bytes, needed 10"


@pytest.mark.parametrize(
    ("text", "got"),
    [("", "an empty header"), (" {}", "byte 0x20"), ("[]", "byte 0x5b"), ("\ufeff{}", "byte 0xef")],
)
def test_header_start(text: str, got: str) -> None:
    error = refused(text, 0)
    assert error.rule is SafetensorsRule.HEADER_START
    assert str(error) == (
        f"m.safetensors: header does not start with a brace: got {got}, needed {{\n"
        "hint: this is probably no safetensors file"
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"{} {}", "not JSON: got 'Extra data' at line 1 column 4"),
        (b"{}\0", "not JSON: got 'Extra data' at line 1 column 3"),
        (b'{"\xff": 1}', "not UTF-8: got byte 0xff at offset 2"),
        (b'{"a": NaN}', "not a JSON number: got NaN"),
        (
            b'{"a": 18446744073709551616}',
            f"integer out of range: got {2**64}, needed at most {2**64 - 1} in magnitude",
        ),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply: needed at most 100 levels"),
    ],
)
def test_not_json(text: bytes, what: str) -> None:
    error = refused(text, 0)
    assert error.rule is SafetensorsRule.NOT_JSON
    assert str(error) == f"m.safetensors: header: {what}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f'{{"a": {ENTRY}, "a": {ENTRY}}}', "a"),
        ('{"a": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', "dtype"),
        ('{"__metadata__": {"x": "1", "x": "2"}}', "x"),
    ],
)
def test_duplicate_key(text: str, key: str) -> None:
    error = refused(text, 4)
    assert error.rule is SafetensorsRule.DUPLICATE_KEY
    assert str(error) == (f'm.safetensors: header: an object has the same key twice: got "{key}"')


@pytest.mark.parametrize(
    ("metadata", "got"),
    [
        ("null", "NoneType"),
        ("[]", "list"),
        ('{"x": 1}', 'int at key "x"'),
        ('{"x": null}', 'NoneType at key "x"'),
    ],
)
def test_metadata(metadata: str, got: str) -> None:
    error = refused(f'{{"__metadata__": {metadata}}}', 0)
    assert error.rule is SafetensorsRule.METADATA
    assert str(error) == f"m.safetensors: malformed __metadata__: got {got}, needed an object of strings"


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("{}", "no key"),
        ('["F32", [1], [0, 4]]', "list"),
        ('{"dtype": "F32", "shape": [1]}', '"dtype", "shape"'),
        (ENTRY.replace("}", ', "extra": 0}'), '"dtype", "shape", "data_offsets", "extra"'),
    ],
)
def test_entry_keys(value: str, got: str) -> None:
    error = refused(f'{{"a": {value}}}', 4)
    assert error.rule is SafetensorsRule.ENTRY_KEYS
    assert str(error) == (
        f'm.safetensors: tensor "a": malformed entry: got {got}, needed exactly dtype, shape and data_offsets'
    )


@pytest.mark.parametrize("dtype", ["F128", "f32", "fp32", "", 32, None, {"F32": None}])
def test_unknown_dtype(dtype: object) -> None:
    error = refused(entry(dtype, [1], [0, 4]), 4)
    assert error.rule is SafetensorsRule.UNKNOWN_DTYPE
    assert str(error) == (
        f'm.safetensors: tensor "a": unknown dtype: got {json.dumps(dtype)}, needed one of F64, F32, BF16, '
        "F16, F8_E4M3, F8_E4M3FNUZ, F8_E5M2, F8_E5M2FNUZ, F8_E8M0, F6_E2M3, F6_E3M2, F4, I64, I32, I16, I8, "
        "U64, U32, U16, U8, BOOL, C64"
    )


@pytest.mark.parametrize("shape", [[-1], [1.0], [True], ["1"], [None], [[1]], 1, None, {"0": 1}])
def test_shape(shape: object) -> None:
    error = refused(entry("F32", shape, [0, 4]), 4)
    assert error.rule is SafetensorsRule.SHAPE
    assert str(error) == (
        f'm.safetensors: tensor "a": malformed shape: got {json.dumps(shape)}, needed a list of sizes'
    )


def test_shape_of_negative_zero() -> None:
    assert (
        refused('{"a": {"dtype": "F32", "shape": [-0], "data_offsets": [0, 0]}}', 0).rule
        is SafetensorsRule.SHAPE
    )


@pytest.mark.parametrize("offsets", [[0], [0, 2, 4], [], [-4, 0], [0, 4.0], [False, 4], 4, None])
def test_data_offsets(offsets: object) -> None:
    error = refused(entry("F32", [1], offsets), 4)
    assert error.rule is SafetensorsRule.DATA_OFFSETS
    assert str(error) == (
        f'm.safetensors: tensor "a": malformed data_offsets: got {json.dumps(offsets)}, needed [begin, end]'
    )


def test_begin_after_end() -> None:
    error = refused(entry("F32", [1], [4, 0]), 4)
    assert error.rule is SafetensorsRule.BEGIN_AFTER_END
    assert str(error) == 'm.safetensors: tensor "a": data_offsets end before they begin: got [4, 0]'


@pytest.mark.parametrize("shape", [[2**32, 2**32], [2**40, 2**40, 0], [2**60]])
def test_size_overflow(shape: list[int]) -> None:
    error = refused(entry("F32", shape, [0, 0]), 0)
    assert error.rule is SafetensorsRule.SIZE_OVERFLOW
    assert str(error) == (
        f'm.safetensors: tensor "a": size overflows: got F32 {shape}, needed a size in bits below 2^64'
    )


@pytest.mark.parametrize(
    ("dtype", "count", "num_bits"), [("F4", 7, 28), ("F6_E2M3", 3, 18), ("F6_E3M2", 1, 6)]
)
def test_partial_byte(dtype: str, count: int, num_bits: int) -> None:
    error = refused(entry(dtype, [count], [0, 4]), 4)
    assert error.rule is SafetensorsRule.PARTIAL_BYTE
    assert str(error) == (
        f'm.safetensors: tensor "a": values do not fill whole bytes: got {num_bits} bits for {dtype} '
        f"[{count}], needed a multiple of 8"
    )


@pytest.mark.parametrize("num_bytes", [11, 13, 0])
def test_size_mismatch(num_bytes: int) -> None:
    error = refused(entry("BF16", [2, 3], [0, num_bytes]), num_bytes)
    assert error.rule is SafetensorsRule.SIZE_MISMATCH
    assert str(error) == (
        f'm.safetensors: tensor "a": data_offsets do not match dtype and shape: got {num_bytes} bytes, '
        "needed 12 for BF16 [2, 3]"
    )


def test_past_end() -> None:
    error = refused(entry("F32", [1], [0, 4]), 3)
    assert error.rule is SafetensorsRule.PAST_END
    assert str(error) == (
        'm.safetensors: tensor "a": ends past the end of the file: got 3 bytes of data, needed at least 4'
        + CUT_SHORT
    )


def two_tensors(begin: int) -> str:
    first = {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}
    second = {"dtype": "I8", "shape": [4], "data_offsets": [begin, begin + 4]}
    return json.dumps({"second": second, "first": first})


def test_hole() -> None:
    error = refused(two_tensors(5), 9)
    assert error.rule is SafetensorsRule.HOLE
    assert str(error) == (
        'm.safetensors: tensor "second": a hole lies between it and tensor "first": got begin 5, needed 4'
    )


def test_hole_at_the_start() -> None:
    error = refused(entry("F32", [1], [2, 6]), 6)
    assert error.rule is SafetensorsRule.HOLE
    assert str(error) == (
        'm.safetensors: tensor "a": a hole lies between it and the start of the data: got begin 2, needed 0'
    )


def test_overlap() -> None:
    error = refused(two_tensors(3), 7)
    assert error.rule is SafetensorsRule.OVERLAP
    assert str(error) == 'm.safetensors: tensor "second": overlaps tensor "first": got begin 3, needed 4'
    assert error.fqn == "second"


def test_an_empty_tensor_inside_another_overlaps() -> None:
    empty = '{"dtype": "F32", "shape": [0], "data_offsets": [2, 2]}'
    assert refused(f'{{"a": {ENTRY}, "e": {empty}}}', 4).rule is SafetensorsRule.OVERLAP


def test_trailing_bytes() -> None:
    error = refused(f'{{"a": {ENTRY}}}', 5)
    assert error.rule is SafetensorsRule.TRAILING_BYTES
    assert str(error) == "m.safetensors: bytes after the last tensor: got 5 bytes of data, needed 4"
    assert error.fqn is None


def test_long_values_are_cut_in_messages() -> None:
    error = refused(entry("x" * 500, [1], [0, 4]), 4)
    assert error.got == '"' + "x" * 99 + "..."


@pytest.mark.parametrize(
    ("dtype", "dims", "rule"),
    [
        ("F32", [1] * 100_000, SafetensorsRule.SIZE_MISMATCH),
        ("F32", [2] * 100_000, SafetensorsRule.SIZE_OVERFLOW),
        ("F4", [1] * 100_000, SafetensorsRule.PARTIAL_BYTE),
    ],
)
def test_message_about_a_shape_of_many_dimensions_is_short(
    dtype: str, dims: list[int], rule: SafetensorsRule
) -> None:
    error = refused(entry(dtype, dims, [0, 3]), 3)
    assert error.rule is rule
    assert f"{dtype} [{dims[0]}, {dims[0]}, " in str(error)
    assert len(str(error)) < 300
