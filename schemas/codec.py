"""The bytes of plan, inventory, report and format config files to structs and back.

Reading goes in two passes: the version first, so that a plan of another version never shows as a field
error, then the structure, with every problem listed. Fields that a newer minor version added are ignored
and, on rewriting, kept.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from bayplan.schemas.errors import BayplanError, OtherVersion, PlanFormatError
from bayplan.schemas.format_config import FormatConfig, unknown_members
from bayplan.schemas.hardware import INVENTORY_FORMAT_VERSION, Inventory
from bayplan.schemas.inventory_rules import inventory_problems
from bayplan.schemas.json_tree import json_tree
from bayplan.schemas.plan import PLAN_FORMAT_VERSION, Plan
from bayplan.schemas.plan_rules import plan_problems
from bayplan.schemas.pretty_json import pretty
from bayplan.schemas.report import REPORT_FORMAT_VERSION, Report
from bayplan.schemas.strict_json import JsonError, JsonValue, digest, parse
from bayplan.schemas.structure import float_problems, merged, problems

JsonObject = dict[str, JsonValue]

MAX_FILE_BYTES = 64 * 2**20
"""A 671B mixture-of-experts plan is under 1 MiB; anything near this is no plan."""

_OUTSIDE_DIGEST = ("digest", "summary", "producer")
"""Derived or volatile members: they may change while the plan stays the same."""

_CONFLICT = re.compile(rb"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)

T = TypeVar("T", bound=msgspec.Struct)


class DecodedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with the tree it was read from."""

    plan: Plan
    tree: JsonObject
    """As read, unknown members included."""
    digest_matches: bool
    """False: edited since it was written. `show` and `diff` warn, the executor refuses."""


def read_plan(path: Path | str) -> DecodedPlan:
    """Return the plan in the file at `path`.

    Raises:
        PlanFormatError: The file is no valid plan; every problem is listed.
        OtherVersion: Of another major format version.
        BayplanError: The file cannot be read.
    """
    return decode_plan(_read_file(path, "plan"), where=str(path))


def decode_plan(data: bytes, *, where: str) -> DecodedPlan:
    """Return the plan in `data`; `where` names it in messages.

    Raises:
        PlanFormatError: The bytes are no valid plan; every problem is listed.
        OtherVersion: Of another major format version.
    """
    tree = _parse_object(data, where, "plan")
    plan = _convert(tree, Plan, PLAN_FORMAT_VERSION, where, "plan")
    digested = {key: value for key, value in tree.items() if key not in _OUTSIDE_DIGEST}
    contradictions = (*plan_problems(plan), *float_problems(digested))
    if contradictions:
        raise PlanFormatError(where, "plan", contradictions, hint="do not edit a plan by hand; plan again")
    return DecodedPlan(plan=plan, tree=tree, digest_matches=plan.digest == tree_digest(tree))


def tree_digest(tree: JsonObject) -> str:
    """Return the digest of a plan's tree: all of it but `digest`, `summary` and `producer`."""
    return digest({key: value for key, value in tree.items() if key not in _OUTSIDE_DIGEST})


def sealed(plan: Plan) -> Plan:
    """Return `plan` with the digest that belongs to it."""
    return msgspec.structs.replace(plan, digest=tree_digest(_tree(plan)))


def encode_plan(plan: Plan, *, onto: JsonObject | None = None) -> bytes:
    """Return the text of `plan`, with its digest renewed.

    Args:
        plan: What to write.
        onto: The tree of the file that is rewritten: its unknown members are kept.
    """
    tree = _tree(plan)
    if onto is not None:
        tree = cast(JsonObject, merged(onto, tree, Plan))
    tree["digest"] = tree_digest(tree)
    return pretty(tree)


def read_inventory(path: Path | str) -> Inventory:
    """Return the inventory in the file at `path`.

    Raises:
        PlanFormatError: The file is no valid inventory; every problem is listed.
        OtherVersion: Of another major format version.
        BayplanError: The file cannot be read.
    """
    tree = _parse_object(_read_file(path, "inventory"), str(path), "inventory")
    inventory = _convert(tree, Inventory, INVENTORY_FORMAT_VERSION, str(path), "inventory")
    contradictions = tuple(inventory_problems(inventory))
    if contradictions:
        raise PlanFormatError(str(path), "inventory", contradictions)
    return inventory


def encode_inventory(inventory: Inventory) -> bytes:
    """Return the text of `inventory`."""
    return pretty(_tree(inventory))


def read_format_config(path: Path | str) -> FormatConfig:
    """Return the formats and rules in the file at `path`.

    Raises:
        PlanFormatError: The file is no valid format config; every problem is listed.
        BayplanError: The file cannot be read.
    """
    noun = "format config"
    tree = _parse_object(_read_file(path, noun), str(path), noun)
    found_problems = (*problems(tree, FormatConfig), *unknown_members(tree))
    if found_problems:
        raise PlanFormatError(
            str(path), noun, found_problems, hint="write formats and format_rules as they are in a plan"
        )
    return msgspec.convert(tree, FormatConfig)


def read_device_map(path: Path | str) -> dict[str, int | str]:
    """Return the `device_map` of accelerate or transformers in the file at `path`.

    Raises:
        PlanFormatError: The file is no valid device map; every problem is listed.
        BayplanError: The file cannot be read.
    """
    noun = "device map"
    tree = _parse_object(_read_file(path, noun), str(path), noun)
    found = tuple(problems(tree, dict[str, int | str])) if tree else (("$", "holds no entry"),)
    if found:
        hint = 'write modules with numbers or names of devices, such as {"model": 0, "lm_head": "cpu"}'
        raise PlanFormatError(str(path), noun, found, hint=hint)
    return msgspec.convert(tree, dict[str, int | str])


def read_report(path: Path | str) -> Report:
    """Return the run report in the file at `path`.

    Raises:
        PlanFormatError: The file is no valid report; every problem is listed.
        OtherVersion: Of another major format version.
        BayplanError: The file cannot be read.
    """
    tree = _parse_object(_read_file(path, "report"), str(path), "report")
    return _convert(tree, Report, REPORT_FORMAT_VERSION, str(path), "report")


def encode_report(report: Report) -> bytes:
    """Return the text of `report`."""
    return pretty(_tree(report))


def encode_schema(struct: type[msgspec.Struct], title: str) -> bytes:
    """Return the JSON Schema of `struct` as it is committed."""
    head: JsonObject = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return pretty(head | _tree(msgspec.json.schema(struct)))


def _tree(value: msgspec.Struct | dict[str, object]) -> JsonObject:
    return cast(JsonObject, json_tree(value))


def _read_file(path: Path | str, noun: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes > MAX_FILE_BYTES:
                text = f"too large: got {num_bytes} bytes, needed at most {MAX_FILE_BYTES}"
                raise PlanFormatError(str(path), noun, (("$", text),))
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BayplanError(
            f"cannot read the {noun}", where=str(path), got=error.strerror or type(error).__name__
        ) from error


def _parse_object(data: bytes, where: str, noun: str) -> JsonObject:
    if _CONFLICT.search(data):
        hint = "take one side with `git checkout --ours` or `--theirs`, then plan again"
        raise PlanFormatError(where, noun, (("$", "holds merge conflict markers"),), hint=hint)
    try:
        tree = parse(data, where=where, max_bytes=MAX_FILE_BYTES)
    except JsonError as error:
        text = str(BayplanError(error.what, got=error.got, needed=error.needed))
        raise PlanFormatError(where, noun, (("$", text),)) from error
    if not isinstance(tree, dict):
        raise PlanFormatError(where, noun, (("$", "not a JSON object"),))
    return tree


def _convert(tree: JsonObject, struct: type[T], version: str, where: str, noun: str) -> T:
    """Check version and structure of `tree`, in this order, and return it as `struct`."""
    found = tree.get("format_version")
    if not isinstance(found, str) or not re.fullmatch(r"[0-9]{1,6}\.[0-9]{1,6}", found):
        raise PlanFormatError(
            where,
            noun,
            (("$.format_version", f"got {found!r:.100}, needed MAJOR.MINOR such as {version!r}"),),
        )
    if found.partition(".")[0] != version.partition(".")[0]:
        identity = ((member, tree.get(member)) for member in ("format_version", "producer", "digest"))
        raise OtherVersion(
            noun,
            where=where,
            got=found,
            needed=f"{version.partition('.')[0]}.x (this is bayplan's {version})",
            identity=tuple((member, text) for member, text in identity if isinstance(text, str)),
        )
    found_problems = tuple(problems(tree, struct))
    if found_problems:
        raise PlanFormatError(where, noun, found_problems)
    return msgspec.convert(tree, struct)
