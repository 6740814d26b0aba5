"""Our header reader and the safetensors library, each checked against the other.

Where we are stricter, the module docstring of `safetensors_header` says so; here those cases are told apart
by the rule.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.schemas.dtypes import DTYPE_BY_SAFETENSORS_NAME, DTYPES, parse_dtype
from bayplan.schemas.safetensors_header import (
    SafetensorsFormatError,
    SafetensorsHeader,
    SafetensorsRule,
    parse_header,
    read_header,
)

STRICTER = {SafetensorsRule.DUPLICATE_KEY, SafetensorsRule.ENTRY_KEYS}
"""Rules under which we refuse what the library lets through."""

TORCH_NAMES = [
    dtype.torch_name
    for dtype in DTYPES
    if dtype.torch_name is not None and dtype.values_per_torch_element == 1
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TENSORS = st.dictionaries(
    TEXT.filter(lambda fqn: fqn != "__metadata__"),
    st.tuples(st.sampled_from(TORCH_NAMES), st.lists(st.integers(0, 3), max_size=3)),
    max_size=6,
)


def saved_by_the_library(tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None) -> bytes:
    made = {
        fqn: torch.zeros(shape, dtype=torch.uint8).to(getattr(torch, dtype))
        for fqn, (dtype, shape) in tensors.items()
    }
    return safetensors.torch.save(made, metadata)


@settings(deadline=None)
@given(TENSORS, st.none() | st.dictionaries(TEXT, TEXT, min_size=1, max_size=3))
def test_what_the_library_saves_is_read_alike(
    tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None
) -> None:
    # Not with metadata {}: with no tensor beside it, the library writes a header that it cannot read itself.
    data = saved_by_the_library(tensors, metadata)
    header = parse_header(data, len(data), "m.safetensors")
    assert header.metadata == (metadata or {})
    assert {entry.fqn: (entry.dtype, list(entry.shape)) for entry in header.tensors} == {
        fqn: (parse_dtype(dtype).name, shape) for fqn, (dtype, shape) in tensors.items()
    }
    assert sum(entry.num_bytes for entry in header.tensors) == len(data) - header.num_bytes


def test_offsets_lead_to_the_bytes_that_the_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = {f"t{index}": torch.arange(index + 1, dtype=torch.int32) * (index + 7) for index in range(5)}
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    header, data = read_header(path), path.read_bytes()
    assert header.file_bytes == len(data)
    for entry in header.tensors:
        begin = header.file_offset(entry)
        held = torch.frombuffer(bytearray(data[begin : begin + entry.num_bytes]), dtype=torch.int32)
        assert torch.equal(held, tensors[entry.fqn])


def test_packed_fp4_counts_single_values() -> None:
    pairs = torch.zeros(3, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    data = safetensors.torch.save({"a": pairs})
    (entry,) = parse_header(data, len(data), "m.safetensors").tensors
    assert (entry.dtype, entry.shape, entry.num_bytes) == ("fp4", (3, 8), 12)


def library_entries(data: bytes) -> dict[str, tuple[str, tuple[int, ...], int]] | None:
    """Return what the library finds in a file, or None where it refuses it."""
    try:
        found = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return None
    return {
        fqn: (DTYPE_BY_SAFETENSORS_NAME[tensor["dtype"]].name, tuple(tensor["shape"]), len(tensor["data"]))
        for fqn, tensor in found
    }


def our_entries(data: bytes) -> SafetensorsHeader | SafetensorsFormatError:
    try:
        return parse_header(data, len(data), "m.safetensors")
    except SafetensorsFormatError as error:
        return error


def assert_same_verdict(data: bytes) -> None:
    theirs, ours = library_entries(data), our_entries(data)
    if isinstance(ours, SafetensorsHeader):
        assert theirs == {entry.fqn: (entry.dtype, entry.shape, entry.num_bytes) for entry in ours.tensors}
    elif ours.rule not in STRICTER:
        assert theirs is None, f"we refuse with {ours.rule} what the library reads as {theirs}"


@settings(deadline=None, max_examples=400)
@given(TENSORS, st.randoms(use_true_random=False), st.binary(min_size=1, max_size=3))
def test_same_verdict_on_files_with_changed_bytes(
    tensors: dict[str, tuple[str, list[int]]], chooser: random.Random, change: bytes
) -> None:
    data = bytearray(saved_by_the_library(tensors, None))
    # At least the two braces follow the prefix; a change of the prefix is mostly a length beyond the file.
    at = chooser.randrange(8, len(data))
    match chooser.randrange(4):
        case 0:
            data[at : at + len(change)] = change
        case 1:
            del data[at:]
        case 2:
            data += change
        case _:
            data[chooser.randrange(8)] ^= change[0]
    # White space before the first brace is a documented difference.
    if data[8:9].strip():
        assert_same_verdict(bytes(data))


SIZES = st.integers(-1, 9) | st.sampled_from([2**31, 2**32, 2**61, 2**64 - 1, 2**64, 1.0, True, None, "1"])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["I8", "F16", "F32", "F4", "F6_E2M3", "C64", "F128", 1]),
        "shape": st.lists(SIZES, max_size=3),
        "data_offsets": st.lists(st.integers(0, 9), min_size=2, max_size=2).map(sorted)
        | st.lists(SIZES, max_size=3),
    }
)


@settings(deadline=None, max_examples=600)
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), ENTRIES, max_size=3), st.integers(0, 12))
def test_same_verdict_on_headers_made_up(entries: dict[str, object], data_bytes: int) -> None:
    text = json.dumps(entries).encode()
    assert_same_verdict(len(text).to_bytes(8, "little") + text + bytes(data_bytes))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_same_verdict_on_covers_with_one_offset_moved(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    entries = {
        f"t{index}": {"dtype": "I8", "shape": [size], "data_offsets": [end - size, end]}
        for index, (size, end) in enumerate(zip(sizes, ends, strict=True))
    }
    moved = entries[f"t{data.draw(st.integers(0, len(sizes) - 1))}"]
    by = data.draw(st.integers(-2, 2))
    moved["data_offsets"] = [offset + by for offset in moved["data_offsets"] if isinstance(offset, int)]
    order = data.draw(st.permutations(sorted(entries)))
    text = json.dumps({fqn: entries[fqn] for fqn in order}).encode()
    whole = len(text).to_bytes(8, "little") + text + bytes(ends[-1])
    if by == 0:
        assert isinstance(our_entries(whole), SafetensorsHeader)
    assert_same_verdict(whole)


PLAIN = '{"dtype":"I8","shape":[1],"data_offsets":[0,1]}'


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f'{{"a":{PLAIN},"a":{PLAIN}}}', SafetensorsRule.DUPLICATE_KEY),
        (f'{{"a":{PLAIN[:-1]},"x":0}}}}', SafetensorsRule.ENTRY_KEYS),
        ('{"a":["I8",[1],[0,1]]}', SafetensorsRule.ENTRY_KEYS),
        (PLAIN.replace('"I8"', '{"I8":null}').join(['{"a":', "}"]), SafetensorsRule.UNKNOWN_DTYPE),
        (f' {{"a":{PLAIN}}}', SafetensorsRule.HEADER_START),
        (f'{{"__metadata__":null,"a":{PLAIN}}}', SafetensorsRule.METADATA),
    ],
)
def test_where_we_are_stricter(text: str, rule: SafetensorsRule) -> None:
    data = len(text).to_bytes(8, "little") + text.encode() + bytes(1)
    assert library_entries(data) == {"a": ("int8", (1,), 1)}
    ours = our_entries(data)
    assert isinstance(ours, SafetensorsFormatError)
    assert ours.rule is rule
