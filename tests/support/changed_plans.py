"""Plans with one thing changed that no longer belongs to the rest, for what has to notice it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from bayplan.schemas.plan import Plan

replace = msgspec.structs.replace

Path = tuple[str | int, ...]
"""Keys and positions from the root of a plan's JSON tree."""


def with_fields(plan: Plan, section: str, index: int, **fields: object) -> Plan:
    """Return `plan` with other fields in one of the structs of a top-level section."""
    structs = list(getattr(plan, section))
    structs[index] = replace(structs[index], **fields)
    return replace(plan, **{section: tuple(structs)})


def with_block(plan: Plan, index: int, **fields: object) -> Plan:
    return with_fields(plan, "blocks", index, **fields)


def with_ledger(plan: Plan, index: int, **components: tuple[int, int]) -> Plan:
    """Return `plan` with other components in the ledger of a device."""
    return with_fields(plan, "devices", index, ledger=replace(plan.devices[index].ledger, **components))


def with_problem(plan: Plan, **fields: object) -> Plan:
    return replace(plan, problem=replace(plan.problem, **fields))


def with_run(plan: Plan, index: int, **fields: object) -> Plan:
    runs = list(plan.problem.runs)
    runs[index] = replace(runs[index], **fields)
    return with_problem(plan, runs=tuple(runs))


def with_form(plan: Plan, index: int, **fields: object) -> Plan:
    """Return `plan` with other fields in the first form of a run."""
    first, *others = plan.problem.runs[index].forms
    return with_run(plan, index, forms=(replace(first, **fields), *others))


def with_summary(plan: Plan, **fields: object) -> Plan:
    return replace(plan, summary=replace(plan.summary, **fields))


def leaves(plan: Plan, sections: tuple[str, ...]) -> Iterator[tuple[Path, object]]:
    """Yield path and value of everything in these sections that is neither a list nor an object."""
    tree = msgspec.to_builtins(plan)
    for section in sections:
        yield from _leaves((section,), tree[section])


def with_leaf(plan: Plan, path: Path, value: object) -> Plan:
    """Return `plan` with another value at one place of its JSON tree."""
    tree: Any = msgspec.json.decode(msgspec.json.encode(plan))
    node = tree
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return msgspec.convert(tree, Plan)


def json_path(path: Path) -> str:
    """Return the place as messages have it."""
    return "$" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)


def _leaves(path: Path, node: object) -> Iterator[tuple[Path, object]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves((*path, key), value)
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from _leaves((*path, index), value)
    else:
        yield path, node
