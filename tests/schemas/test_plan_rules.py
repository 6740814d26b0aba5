"""One case for each contradiction that a plan may hold: what is changed, and where and how it is reported."""

from __future__ import annotations

import ast
import copy
import json
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from maximal_plan import maximal_plan

from bayplan.schemas import plan_rules
from bayplan.schemas.codec import decode_plan, encode_plan
from bayplan.schemas.errors import PlanFormatError
from bayplan.schemas.plan import Plan
from bayplan.schemas.plan_rules import plan_problems

if TYPE_CHECKING:
    from _typeshed import TraceFunction

TREE: dict[str, Any] = json.loads(encode_plan(maximal_plan()))

Place = tuple[str | int, ...]


def changed(*changes: tuple[Place, object]) -> Plan:
    """Return the maximal plan with the value at each place replaced."""
    tree = copy.deepcopy(TREE)
    for place, value in changes:
        *parents, last = place
        node: Any = tree
        for parent in parents:
            node = node[parent]
        node[last] = value
    return msgspec.convert(tree, Plan)


def value_at(*place: str | int) -> Any:
    node: Any = copy.deepcopy(TREE)
    for part in place:
        node = node[part]
    return node


def twice(*place: str | int) -> list[Any]:
    """Return the list at `place` with its first entry once more at the end."""
    items = value_at(*place)
    return [*items, items[0]]


SHARD_FAULT = 'names a shard that may not be opened: with an empty part, "." or "..": got "../a.safetensors"'

CASES: list[tuple[str, object, list[tuple[str, str]]]] = [
    (
        "model.checkpoint.shards",
        twice("model", "checkpoint", "shards"),
        [("$.model.checkpoint.shards", "shard 'model-00001-of-00002.safetensors' stands there 2 times")],
    ),
    (
        "model.checkpoint.shards",
        [],
        [("$.model.checkpoint.shards", "a checkpoint has at least one shard")],
    ),
    (
        "model.checkpoint.shards.1.file",
        "../a.safetensors",
        [("$.model.checkpoint.shards[1].file", SHARD_FAULT)],
    ),
    (
        "inventory.nodes",
        twice("inventory", "nodes"),
        [("$.inventory.nodes", "node 'node0' stands there 2 times")],
    ),
    (
        "inventory.devices",
        twice("inventory", "devices"),
        [("$.inventory.devices", "device 'node0/gpu0' stands there 2 times")],
    ),
    (
        "inventory.nodes",
        [],
        [
            ("$.inventory.nodes", "there is none"),
            ("$.inventory.devices[0].id", "node of 'node0/gpu0' is not in the inventory"),
            ("$.inventory.devices[1].id", "node of 'node0/cpu' is not in the inventory"),
            ("$.inventory.links[0].source", "'node0' is not in the inventory"),
        ],
    ),
    (
        "inventory.nodes.0.id",
        "node7",
        [
            ("$.inventory.devices[0].id", "node of 'node0/gpu0' is not in the inventory"),
            ("$.inventory.devices[1].id", "node of 'node0/cpu' is not in the inventory"),
            ("$.inventory.links[0].source", "'node0' is not in the inventory"),
        ],
    ),
    (
        "inventory.links.0.source",
        "node7",
        [
            (
                "$.inventory.devices[0]",
                "no link between 'node0/gpu0' and 'node0', so no weight reaches it",
            ),
            ("$.inventory.links[0].source", "'node7' is not in the inventory"),
        ],
    ),
    (
        "inventory.links.1.target",
        "node0/gpu7",
        [("$.inventory.links[1].target", "'node0/gpu7' is not in the inventory")],
    ),
    ("devices", twice("devices"), [("$.devices", "device 'node0/gpu0' stands there 2 times")]),
    (
        "devices",
        [*value_at("devices"), value_at("devices", 1) | {"id": "node1/cpu"}],
        [("$.devices[2].id", "'node1/cpu' is not in the inventory")],
    ),
    (
        "devices.0.kind",
        "other-gpu",
        [("$.devices[0].kind", "'other-gpu' but the inventory says 'test-gpu'")],
    ),
    (
        "devices.1.backend",
        "xpu",
        [("$.devices[1].backend", "'xpu' but the inventory says 'cpu'")],
    ),
    (
        "devices.1.capacity_bytes",
        1,
        [("$.devices[1].capacity_bytes", "1 but the inventory says 68719476736")],
    ),
    (
        "devices.0.ledger.kv",
        [9, 8],
        [("$.devices[0].ledger.kv", "lower bound 9 is above upper bound 8")],
    ),
    (
        "devices.0.ledger.runtime",
        [9, 8],
        [("$.devices[0].ledger.runtime", "lower bound 9 is above upper bound 8")],
    ),
    (
        "devices.0.budget_bytes",
        10 * 2**20,
        [("$.devices[0].ledger", "needs 10510400 bytes, budget is 10485760")],
    ),
    (
        "blocks",
        twice("blocks"),
        [
            ("$.blocks", "block 'model.embed_tokens' stands there 2 times"),
            ("$.summary.resident_blocks", "4, but the blocks say 5"),
        ],
    ),
    (
        "blocks",
        [],
        [
            ("$.blocks", "a complete plan has at least one block"),
            ("$.schedule[0].stream_order[0]", "'model.layers.1' is not among the blocks"),
            ("$.schedule[0].stream_order[1]", "'model.layers.2' is not among the blocks"),
            ("$.schedule[1].stream_order[0]", "'model.layers.3' is not among the blocks"),
            ("$.summary.streamed_blocks", "3, but the blocks say 0"),
            ("$.summary.resident_blocks", "4, but the blocks say 0"),
        ],
    ),
    (
        "blocks.0.device",
        "node1/cpu",
        [("$.blocks[0].device", "'node1/cpu' is not among the plan's devices")],
    ),
    (
        "blocks.4.residency",
        "stream-host",
        [("$.blocks[4].residency", "a block that computes on the CPU cannot stream from host memory")],
    ),
    ("blocks.0.format", "int4", [("$.blocks[0].format", "'int4' is not among the plan's formats")]),
    (
        "blocks.1.experts.per_token",
        9,
        [("$.blocks[1].experts.per_token", "more than the 8 experts there are")],
    ),
    (
        "blocks.1.experts.format",
        "int4",
        [("$.blocks[1].experts.format", "'int4' is not among the plan's formats")],
    ),
    (
        "schedule",
        [*value_at("schedule"), value_at("schedule", 0) | {"stream_order": []}],
        [("$.schedule", "device 'node0/gpu0' stands there 2 times")],
    ),
    (
        "schedule",
        [*value_at("schedule"), value_at("schedule", 0) | {"stream_order": [], "device": "node1/cpu"}],
        [
            ("$.schedule[2].device", "'node1/cpu' is not among the plan's devices"),
            ("$.schedule[2]", "slots take 4194304 bytes, the ledger has 0"),
        ],
    ),
    (
        "schedule.0.stream_order",
        twice("schedule", 0, "stream_order"),
        [("$.schedule[0].stream_order", "block 'model.layers.1' stands there 2 times")],
    ),
    (
        "schedule.0.num_slots",
        0,
        [("$.schedule[0].num_slots", "a device that streams needs at least one slot")],
    ),
    ("schedule.0.slot_bytes", 65, [("$.schedule[0].slot_bytes", "65 is not a multiple of 64")]),
    (
        "schedule.0.num_slots",
        3,
        [("$.schedule[0]", "slots take 6291456 bytes, the ledger has 4194304")],
    ),
    (
        "schedule.1.stream_order",
        ["model.layers.3", "model.layers.9"],
        [("$.schedule[1].stream_order[1]", "'model.layers.9' is not among the blocks")],
    ),
    (
        "schedule.1.stream_order",
        ["model.layers.3", "lm_head"],
        [("$.schedule[1].stream_order[1]", "'lm_head' is resident")],
    ),
    (
        "schedule.1.stream_order",
        ["model.layers.3", "model.layers.2"],
        [("$.schedule[1].stream_order[1]", "'model.layers.2' computes on 'node0/gpu0'")],
    ),
    (
        "schedule.1.stream_order",
        [],
        [("$.blocks[4].residency", "streams, but is in no device's stream order")],
    ),
    (
        "format_rules.1.format",
        "int4",
        [("$.format_rules[1].format", "'int4' is not among the plan's formats")],
    ),
    (
        "format_rules.1.within",
        "int4",
        [("$.format_rules[1].within", "'int4' is not among the plan's formats")],
    ),
    ("rules.0.sources", [], [("$.rules[0].sources", "a tensor is made of at least one")]),
    (
        "rules.0.sources",
        ["a.#", "b.#.*"],
        [("$.rules[0].sources[1]", "more wildcards than the 1 of 'model.layers.#.experts.gate_up'")],
    ),
    ("ties.0.fqns", ["lm_head.weight"], [("$.ties[0].fqns", "a tied group has at least two names")]),
    (
        "ties.0.devices",
        ["node0/gpu0", "node1/cpu"],
        [("$.ties[0].devices[1]", "'node1/cpu' is not among the plan's devices")],
    ),
    (
        "ties.1.devices",
        ["node0/gpu0", "node0/cpu"],
        [("$.ties[1].devices", "co-located weights lie on exactly one device")],
    ),
    ("summary.streamed_blocks", 4, [("$.summary.streamed_blocks", "4, but the blocks say 3")]),
    ("summary.resident_blocks", 3, [("$.summary.resident_blocks", "3, but the blocks say 4")]),
    ("model.checkpoint", None, [("$.applyable", "true, but the plan is bound to no checkpoint")]),
    ("errored", True, [("$.applyable", "true for a plan that is incomplete or errored")]),
    ("complete", False, [("$.applyable", "true for a plan that is incomplete or errored")]),
]


def place_of(path: str) -> Place:
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))


@pytest.mark.parametrize(
    ("path", "value", "found"), CASES, ids=[f"{path}-{n}" for n, (path, *_) in enumerate(CASES)]
)
def test_contradiction(path: str, value: object, found: list[tuple[str, str]]) -> None:
    assert list(plan_problems(changed((place_of(path), value)))) == found


def test_the_unchanged_plan_has_none() -> None:
    assert list(plan_problems(changed())) == []


def test_runtime_is_outside_the_budget() -> None:
    assert list(plan_problems(changed((("devices", 0, "ledger", "runtime"), [0, 2**50])))) == []


def test_a_plan_that_is_bound_to_nothing_may_exist() -> None:
    unbound = changed((("model", "checkpoint"), None), (("applyable",), False))
    assert list(plan_problems(unbound)) == []


def test_a_plan_of_several_contradictions_is_refused_with_all_of_them() -> None:
    plan = changed(
        (("ties", 0, "fqns"), []), (("blocks", 0, "format"), "int4"), (("schedule", 0, "num_slots"), 9)
    )
    with pytest.raises(PlanFormatError) as caught:
        decode_plan(encode_plan(plan), where="p.json")
    assert str(caught.value) == (
        "p.json: not a valid plan: 3 problems\n"
        "  $.blocks[0].format: 'int4' is not among the plan's formats\n"
        "  $.schedule[0]: slots take 18874368 bytes, the ledger has 4194304\n"
        "  $.ties[0].fqns: a tied group has at least two names\n"
        "hint: do not edit a plan by hand; plan again"
    )


def test_every_rule_has_a_case() -> None:
    reported: set[int] = set()

    def note_lines(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if frame.f_code.co_filename != plan_rules.__file__:
            return None
        if event == "line":
            reported.add(frame.f_lineno)
        return note_lines

    before = sys.gettrace()
    sys.settrace(note_lines)
    try:
        for path, value, _ in CASES:
            list(plan_problems(changed((place_of(path), value))))
    finally:
        sys.settrace(before)
    tree = ast.parse(Path(plan_rules.__file__).read_text())
    rules = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Yield)}
    assert len(rules) > 20
    assert rules <= reported
