from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from maximal_plan import maximal_plan

from bayplan.schemas.codec import decode_plan, encode_plan
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.plan import Plan
from bayplan.schemas.strict_json import JsonValue
from bayplan.schemas.structure import float_problems, merged, problems

TREE: dict[str, Any] = json.loads(encode_plan(maximal_plan()))
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(
        ["bf16", "nf4", "node0/cpu", "node9/x", "stream-host", "resident", "sha256:" + "0" * 64]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abid._", max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def nodes_of(tree: JsonValue) -> list[tuple[Any, Any]]:
    """Return every node of `tree` but its root, as its container and its key or index."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, child in children for place in ((tree, key), *nodes_of(child))]


NUM_NODES = len(nodes_of(TREE))


def test_a_valid_plan_has_no_problem() -> None:
    assert list(problems(TREE, Plan)) == []


def still_valid(tree: dict[str, Any]) -> bool:
    """Whether there are no problems; then msgspec must agree, and every path must be one."""
    found = list(problems(tree, Plan))
    assert all(path.startswith("$") and text for path, text in found)
    try:
        msgspec.convert(tree, Plan)
    except msgspec.ValidationError:
        assert found
    else:
        assert not found
    try:
        result = decode_plan(json.dumps(tree).encode(), where="p.json")
    except BayplanError:
        return not found
    assert not found
    assert result.tree == tree
    return True


@given(st.integers(0, NUM_NODES - 1), VALUES)
def test_a_replaced_node_is_a_problem_or_a_plan(number: int, value: JsonValue) -> None:
    tree = copy.deepcopy(TREE)
    container, key = nodes_of(tree)[number]
    container[key] = value
    still_valid(tree)


def test_every_deleted_node_is_a_problem_or_a_plan() -> None:
    refused = 0
    for number in range(NUM_NODES):
        tree = copy.deepcopy(TREE)
        container, key = nodes_of(tree)[number]
        del container[key]
        refused += not still_valid(tree)
    assert 200 < refused < NUM_NODES


@pytest.mark.parametrize("value", [None, 1, 1.5, "x", [], [[]], {"a": 1}, {}, True])
def test_a_root_of_another_type(value: JsonValue) -> None:
    names = {type(None): "null", int: "int", float: "float", str: "str", list: "array", bool: "bool"}
    expected = "Object missing required field `format_version`"
    if not isinstance(value, dict):
        expected = f"Expected `object`, got `{names[type(value)]}`"
    assert next(problems(value, Plan)) == ("$", expected)


def test_keys_that_are_no_names_are_quoted_in_paths() -> None:
    tree = copy.deepcopy(TREE)
    tree["formats"]["a.b \x1b"] = {"kind": 1}
    assert list(problems(tree, Plan)) == [('$.formats["a.b \\u001b"].kind', "Expected `str`, got `int`")]


def test_a_long_value_is_cut() -> None:
    tree = copy.deepcopy(TREE)
    tree["blocks"][0]["reason"] = "x" * 10_000
    assert list(problems(tree, Plan)) == [
        ("$.blocks[0].reason", "Invalid enum value '" + "x" * 280),
    ]


def test_floats_are_found_wherever_they_are() -> None:
    tree: JsonValue = {"a": 1, "b": [1.5, {"c d": 2.0}], "e": True, "f": None}
    assert list(float_problems(tree)) == [
        ("$.b[0]", "got the float 1.5, needed an integer"),
        ('$.b[1]["c d"]', "got the float 2.0, needed an integer"),
    ]


class Part(msgspec.Struct, omit_defaults=True):
    kind: str
    size: int = 0


class Whole(msgspec.Struct):
    source: str
    target: str
    parts: tuple[Part, ...] = ()
    pair: tuple[int, int] = (0, 0)
    named: dict[str, Part] = {}
    maybe: Part | None = None


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        # Known fields are always the new ones, unknown ones always the old ones, after the known.
        ({"source": "a", "x": 1}, {"source": "b"}, {"source": "b", "x": 1}),
        ({"source": "a", "pair": [1, 2]}, {"source": "a"}, {"source": "a"}),
        # Parts have no name: those that are equal in all that is known are the same, in order.
        (
            {"parts": [{"kind": "k", "x": 1}, {"kind": "k", "x": 2}, {"kind": "l", "x": 3}]},
            {"parts": [{"kind": "l"}, {"kind": "k"}, {"kind": "k"}, {"kind": "k"}, {"kind": "l", "size": 1}]},
            {
                "parts": [
                    {"kind": "l", "x": 3},
                    {"kind": "k", "x": 1},
                    {"kind": "k", "x": 2},
                    {"kind": "k"},
                    {"kind": "l", "size": 1},
                ]
            },
        ),
        (
            {"named": {"a": {"kind": "k", "x": 1}, "b": {"kind": "k", "x": 2}}},
            {"named": {"b": {"kind": "l"}, "c": {"kind": "m"}}},
            {"named": {"b": {"kind": "l", "x": 2}, "c": {"kind": "m"}}},
        ),
        ({"maybe": {"kind": "k", "x": 1}}, {"maybe": {"kind": "l"}}, {"maybe": {"kind": "l", "x": 1}}),
        ({"maybe": {"kind": "k", "x": 1}}, {"maybe": None}, {"maybe": None}),
        ({"maybe": None}, {"maybe": {"kind": "l"}}, {"maybe": {"kind": "l"}}),
        ({"parts": "nonsense"}, {"parts": [{"kind": "k"}]}, {"parts": [{"kind": "k"}]}),
        ({"parts": ["nonsense", 1]}, {"parts": [{"kind": "k"}]}, {"parts": [{"kind": "k"}]}),
    ],
)
def test_merged(old: JsonValue, new: JsonValue, result: JsonValue) -> None:
    assert json.dumps(merged(old, new, Whole)) == json.dumps(result)


def test_what_is_named_by_two_fields_is_matched_by_both() -> None:
    old: JsonValue = [{"source": "a", "target": "z", "x": 1}, {"source": "b", "target": "z", "x": 2}]
    new: JsonValue = [{"source": "b", "target": "z"}, {"source": "c", "target": "z"}]
    assert merged(old, new, tuple[Whole, ...]) == [
        {"source": "b", "target": "z", "x": 2},
        {"source": "c", "target": "z"},
    ]
