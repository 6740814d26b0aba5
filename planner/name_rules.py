"""Tensor names to the plan's few rules and patterns: what keeps a plan of many tensors readable.

A set of rules is only used if it gives back exactly the names that it was made from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bayplan.schemas.plan import Operation, TensorRule
from bayplan.schemas.rules import filled_in, matched_texts, source_names
from bayplan.schemas.types import Fqn

_NUMBER = re.compile(r"(?<![0-9])[0-9]+(?![0-9])")
_RENAME = (Operation(kind="rename"),)


def folded(name: str) -> str:
    """Return `name` with `#` for each number."""
    return _NUMBER.sub("#", name)


def folded_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of `names`, sorted, each once; a name alone in its pattern stands as it is."""
    by_pattern: dict[str, list[str]] = {}
    for name in names:
        by_pattern.setdefault(folded(name), []).append(name)
    return tuple(sorted(own[0] if len(own) == 1 else pattern for pattern, own in by_pattern.items()))


def tensor_rules(sources: Mapping[Fqn, str]) -> tuple[TensorRule, ...]:
    """Return rules that give every target its source; empty where all names are alike.

    Args:
        sources: Every tensor of the model that is read -> its name in the checkpoint.
    """
    if all(target == source for target, source in sources.items()):
        return ()
    for rules in (_prefix_rules(sources), _numbered_rules(sources)):
        if rules and all(source_names(target, rules) == (source,) for target, source in sources.items()):
            return rules
    return tuple(
        TensorRule(target=target, sources=(source,), operations=_RENAME)
        for target, source in sorted(sources.items())
        if target != source
    )


def _prefix_rules(sources: Mapping[Fqn, str]) -> tuple[TensorRule, ...]:
    """Return the one rule for a prefix that only the checkpoint or only the model has, if it may be that."""
    target, source = min(sources.items())
    if source.endswith(target):
        prefix = source.removesuffix(target)
        return (TensorRule(target="*", sources=(f"{prefix}*",), operations=_RENAME),)
    if target.endswith(source):
        prefix = target.removesuffix(source)
        return (TensorRule(target=f"{prefix}*", sources=("*",), operations=_RENAME),)
    return ()


def _numbered_rules(sources: Mapping[Fqn, str]) -> tuple[TensorRule, ...]:
    """Return one rule per pair of patterns, for names that differ by more than a prefix."""
    rules: dict[tuple[str, str], TensorRule] = {}
    for target, source in sorted(sources.items()):
        pattern = folded(target), folded(source)
        texts = matched_texts(pattern[0], target)
        if target == source:
            continue
        if texts is None or pattern[1].count("#") > len(texts) or filled_in(pattern[1], texts) != source:
            pattern = target, source
        rules[pattern] = TensorRule(target=pattern[0], sources=(pattern[1],), operations=_RENAME)
    return tuple(rules.values())
