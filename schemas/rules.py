"""The plan's name rules: which checkpoint tensors make a parameter, and which format a tensor has.

Patterns are matched against whole names. `*` stands for any text, empty text included, and `#` for a number
in ASCII digits; where a pattern can match in several ways, an earlier wildcard takes as little as it can.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bayplan.schemas.plan import FormatRule, TensorRule
    from bayplan.schemas.types import Fqn

_WILDCARD = re.compile(r"[*#]")
_WILDCARD_PATTERNS = {"*": "(.*?)", "#": "([0-9]+)"}


def matched_texts(pattern: str, name: str) -> tuple[str, ...] | None:
    """Return what each wildcard of `pattern` stands for in `name`, or None where it does not match."""
    match = _compiled(pattern).fullmatch(name)
    return None if match is None else match.groups()


def filled_in(pattern: str, texts: Sequence[str]) -> str:
    """Return `pattern` with its n-th wildcard replaced by the n-th of `texts`; there must be enough."""
    remaining = iter(texts)
    return _WILDCARD.sub(lambda _: next(remaining), pattern)


def rule_for(target: Fqn, rules: Sequence[TensorRule]) -> TensorRule | None:
    """Return the first rule that matches `target`; None: it has its own name in the checkpoint."""
    return next((rule for rule in rules if _compiled(rule.target).fullmatch(target)), None)


def source_names(target: Fqn, rules: Sequence[TensorRule]) -> tuple[str, ...]:
    """Return the checkpoint tensors that the parameter `target` is made of.

    Args:
        target: Name of a parameter or persistent buffer of the model.
        rules: The plan's rules, of which the first that matches holds.

    Returns:
        At least one name, in the order in which the rule's operations take them; without a rule, `target`.
    """
    rule = rule_for(target, rules)
    if rule is None:
        return (target,)
    texts = matched_texts(rule.target, target)
    assert texts is not None, "rule_for returns a rule that matches"
    return tuple(filled_in(source, texts) for source in rule.sources)


def format_for(target: Fqn, block_format: str, rules: Sequence[FormatRule]) -> str:
    """Return the name of the format that tensor `target` of a block in `block_format` is held in.

    Where no rule says so, a quantized format is that of linear weights only: the rest of the block is in the
    model's own data type. `ruled_format` tells whether one does.
    """
    return ruled_format(target, block_format, rules) or block_format


def ruled_format(target: Fqn, block_format: str, rules: Sequence[FormatRule]) -> str | None:
    """Return the format by the first rule that holds for tensor `target`; None: none does."""
    holding = (rule for rule in rules if rule.within in (None, block_format))
    matching = (rule.format for rule in holding if _compiled(rule.pattern).fullmatch(target))
    return next(matching, None)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = (_WILDCARD_PATTERNS.get(part) or re.escape(part) for part in re.split(r"([*#])", pattern))
    return re.compile("".join(parts), re.DOTALL)
