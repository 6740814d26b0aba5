from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from bayplan.schemas.pretty_json import pretty
from bayplan.schemas.strict_json import JsonValue

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=30,
)


@given(VALUES)
def test_reads_back_as_the_same_value(value: JsonValue) -> None:
    text = pretty(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert text.endswith(b"\n")


def test_layout() -> None:
    value: JsonValue = {
        "b": [0, 3145792],
        "a": {"text": 'a "quote" \u00e9', "none": None, "empty": {}},
        "mixed": [1, "x"],
        "list": [],
        "nested": [[1, 2], [], {"k": [True, 2]}],
    }
    assert pretty(value).decode() == (
        "{\n"
        '  "b": [0, 3145792],\n'
        '  "a": {\n'
        '    "text": "a \\"quote\\" \\u00e9",\n'
        '    "none": null,\n'
        '    "empty": {}\n'
        "  },\n"
        '  "mixed": [\n'
        "    1,\n"
        '    "x"\n'
        "  ],\n"
        '  "list": [],\n'
        '  "nested": [\n'
        "    [1, 2],\n"
        "    [],\n"
        "    {\n"
        '      "k": [true, 2]\n'
        "    }\n"
        "  ]\n"
        "}\n"
    )


def test_a_scalar() -> None:
    assert pretty("x") == b'"x"\n'
