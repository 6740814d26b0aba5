"""The formats of single tensors to the plan's few format rules, whatever mix of formats its blocks are in.

A set of rules is only used if it gives back exactly the formats that it was made from; the caller checks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bayplan.planner.name_rules import folded
from bayplan.schemas.plan import FormatRule
from bayplan.schemas.types import Fqn


class RuledTensor(NamedTuple):
    """A tensor of a block, as format rules must give it back."""

    fqn: Fqn
    format: str
    """Its own."""
    block_format: str
    needs_rule: bool
    """Whether a rule must name it. If not, a rule may match it that says its own format."""


def format_rules(tensors: Iterable[RuledTensor]) -> tuple[FormatRule, ...]:
    """Return the fewest rules that give every tensor its format.

    Tensors whose names differ in numbers only share a pattern. For each pattern: one rule for all, or one
    within each format of a block, and before them one by its name for each tensor that is not so; or names
    alone. Of equally many, what overrules nothing and names fewest comes first.

    Args:
        tensors: All that have a format, of all blocks.
    """
    by_pattern: dict[str, list[RuledTensor]] = {}
    for tensor in tensors:
        by_pattern.setdefault(folded(tensor.fqn), []).append(tensor)
    placed = [entry for pattern, members in by_pattern.items() for entry in _pattern_rules(pattern, members)]
    return tuple(rule for _, rule in sorted(placed, key=lambda entry: entry[0]))


_Order = tuple[Fqn, int, str]
"""Where a rule stands: at the first name that it decides, names before patterns of one block's format before
patterns of all."""
_OrderedRule = tuple[_Order, FormatRule]


class _Rules(NamedTuple):
    """Rules of one pattern."""

    by_name: tuple[FormatRule, ...] = ()
    within: tuple[FormatRule, ...] = ()
    whole: tuple[FormatRule, ...] = ()

    @property
    def cost(self) -> tuple[int, bool, int]:
        """Rules, whether some overrule others, and how many are by name: the least is best."""
        patterns = len(self.within) + len(self.whole)
        overrules = bool(patterns and self.by_name) or bool(self.within and self.whole)
        return patterns + len(self.by_name), overrules, len(self.by_name)


def _pattern_rules(pattern: str, members: list[RuledTensor]) -> list[_OrderedRule]:
    needed = sorted({tensor.format for tensor in members if tensor.needs_rule})
    if not needed:
        return []
    by_block_format: dict[str, list[RuledTensor]] = {}
    for tensor in sorted(members):
        by_block_format.setdefault(tensor.block_format, []).append(tensor)
    candidates = []
    for whole in (*needed, None):
        parts = [_within(pattern, group, whole) for _, group in sorted(by_block_format.items())]
        candidates.append(
            _Rules(
                by_name=tuple(rule for part in parts for rule in part.by_name),
                within=tuple(rule for part in parts for rule in part.within),
                whole=() if whole is None else (FormatRule(pattern=pattern, format=whole),),
            )
        )
    best = min(candidates, key=lambda rules: rules.cost)
    first = min(tensor.fqn for tensor in members if tensor.needs_rule)
    has_pattern = bool(best.within or best.whole)
    return [
        *((((first if has_pattern else rule.pattern), 0, rule.pattern), rule) for rule in best.by_name),
        *(((first, 1, rule.within or ""), rule) for rule in best.within),
        *(((first, 2, ""), rule) for rule in best.whole),
    ]


def _within(pattern: str, group: list[RuledTensor], whole: str | None) -> _Rules:
    """Return the rules for the tensors of a pattern that lie in blocks of one format.

    Args:
        pattern: Which all of them match.
        group: The tensors.
        whole: Format by a rule for all blocks that comes after; None: there is no such rule.
    """

    def by_name(tensors: Iterable[RuledTensor]) -> tuple[FormatRule, ...]:
        return tuple(FormatRule(pattern=tensor.fqn, format=tensor.format) for tensor in tensors)

    wrong = [tensor for tensor in group if (tensor.needs_rule if whole is None else tensor.format != whole)]
    candidates = [_Rules(by_name=by_name(wrong))]
    for name in sorted({tensor.format for tensor in wrong}):
        rule = FormatRule(pattern=pattern, format=name, within=group[0].block_format)
        others = (tensor for tensor in group if tensor.format != name)
        candidates.append(_Rules(by_name=by_name(others), within=(rule,)))
    return min(candidates, key=lambda rules: rules.cost)
