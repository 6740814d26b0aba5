"""Folding long lists of ids into few lines: `model.layers.0-29` for thirty blocks that are alike.

Owns how ids are grouped and how a group is named. Knows nothing of plans: it is given ids and, for each, the
facts that must agree within one line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise

import msgspec

# No leading zeros, since `01` and `1` would fold into one; no more digits than any real model has layers.
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,8})(?![0-9])")
_MAX_RANGES = 4
_ORDINAL_ENDINGS = {1: "st", 2: "nd", 3: "rd"}

_Template = tuple[str, str]
"""The text before and after the number that varies."""


class Fold(msgspec.Struct, frozen=True):
    """Ids that one line stands for."""

    label: str
    """What to print: the id itself, or the ids' common text with their numbers folded."""
    ids: tuple[str, ...]
    """In their given order; at least one."""


def fold_ids(ids: Sequence[str], facts: Sequence[Hashable]) -> tuple[Fold, ...]:
    """Return `ids` in groups that differ in one number only and agree in their facts.

    Args:
        ids: Distinct, in the order in which they run.
        facts: For each id, whatever its line will say about it.

    Returns:
        The groups in the order of their first ids; together they hold every id once.
    """
    templates = _choose_templates(ids)
    groups: dict[tuple[_Template, Hashable, int], list[str]] = {}
    last: dict[tuple[_Template, Hashable], tuple[int, int]] = {}
    for block_id, fact in zip(ids, facts, strict=True):
        template = templates[block_id]
        number = _number(block_id, template)
        stretch, previous = last.get((template, fact), (0, -1))
        if number <= previous:
            stretch += 1  # Numbers that run backwards would not be in the order that the label suggests.
        last[template, fact] = (stretch, number)
        groups.setdefault((template, fact, stretch), []).append(block_id)
    return tuple(
        Fold(_label(template, members), tuple(members)) for (template, _, _), members in groups.items()
    )


def ordinal(number: int) -> str:
    """Return `number` as an English ordinal: `1st`, `2nd`, `3rd`, `4th`, `11th`, `21st`."""
    ending = "th" if number % 100 in (11, 12, 13) else _ORDINAL_ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"


def _choose_templates(ids: Sequence[str]) -> dict[str, _Template]:
    """Return for each id the template that most ids share; of equals, the one of its last number."""
    candidates = {
        block_id: [
            (block_id[: found.start()], block_id[found.end() :]) for found in _NUMBER.finditer(block_id)
        ]
        for block_id in ids
    }
    sizes = Counter(template for templates in candidates.values() for template in templates)
    return {
        block_id: max(reversed(templates), key=sizes.__getitem__) if templates else (block_id, "")
        for block_id, templates in candidates.items()
    }


def _number(block_id: str, template: _Template) -> int:
    """Return the number of `block_id` that its template leaves open, 0 if it has none."""
    before, after = template
    digits = block_id[len(before) : len(block_id) - len(after)]
    return int(digits) if digits else 0


def _label(template: _Template, members: list[str]) -> str:
    if len(members) == 1:
        return members[0]
    before, after = template
    numbers = [_number(member, template) for member in members]
    span = f"{numbers[0]}-{numbers[-1]}"
    ranges = _ranges(numbers)
    spacing = _spacing(numbers)
    num_missing = numbers[-1] - numbers[0] + 1 - len(numbers)
    if len(ranges) == 1:
        shown = span
    elif len(numbers) > 2 and spacing and (" or " not in spacing or len(ranges) > _MAX_RANGES):
        shown = f"{span} (every {spacing})"
    elif len(ranges) <= _MAX_RANGES:
        shown = ",".join(ranges)
    elif num_missing < len(numbers) and (gaps := _spacing(_missing(numbers))):
        shown = f"{span} (all but every {gaps})"
    else:
        shown = f"{','.join(ranges[: _MAX_RANGES - 1])},..,{ranges[-1]}"
    # What follows the number would read as part of the remark in brackets, so that comes last.
    number, blank, remark = shown.partition(" ")
    return f"{before}{number}{after}{blank}{remark}"


def _spacing(numbers: list[int]) -> str:
    """Return `3rd` for every third number, `3rd or 4th` for nearly so, empty for any other spacing."""
    gaps = sorted({right - left for left, right in pairwise(numbers)})
    if gaps and gaps[0] > 1 and gaps[-1] - gaps[0] <= 1:
        return " or ".join(ordinal(gap) for gap in gaps)
    return ""


def _missing(numbers: list[int]) -> list[int]:
    present = set(numbers)
    return [number for number in range(numbers[0], numbers[-1]) if number not in present]


def _ranges(numbers: list[int]) -> list[str]:
    """Return ascending numbers as `3` and `5-9`."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
