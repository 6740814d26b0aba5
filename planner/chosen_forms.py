"""The weights that a choice of format changes: by a scheme, by a checkpoint's own, and by a user's rules.

Owns who decides over a weight. Tied weights are never changed; heads and embeddings only by a user's rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import msgspec

from bayplan.planner.format_choice import WHERE_CONFIG, FormatRequest
from bayplan.planner.held_tensors import NamedForm
from bayplan.planner.model.facts import ReadModel
from bayplan.planner.plan_format import plan_format, weight_form
from bayplan.planner.stored_form import FLOATS
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_bytes import Bnb4Bit, LlmInt8, WeightForm
from bayplan.schemas.format_names import form_name
from bayplan.schemas.graph import GraphBlock, ModelGraph, TensorRecord, TensorRole
from bayplan.schemas.plan import FormatRule
from bayplan.schemas.quantization import ASKED_SCHEMES, Group, Scheme, quantized_weights
from bayplan.schemas.rules import matched_texts
from bayplan.schemas.types import FloatFormat, Fqn


def own_form(form: WeightForm) -> NamedForm:
    """Return a checkpoint's own form under the name that follows from its parameters."""
    return NamedForm(name=form_name(form), form=form, entry=plan_format(form))


def own_forms(read: ReadModel, scheme: Scheme) -> dict[Fqn, NamedForm]:
    """Return what a quantized checkpoint stores packed: by its headers if it has any, else by its config."""
    forms = quantized_weights(read.graph, scheme)
    if read.stored is None:
        return {fqn: own_form(form) for fqn, form in forms.items()}
    packed = {fqn for fqn, dtype in read.stored_dtypes.items() if dtype is None}
    roles = {record.fqn: record.role for block in read.graph.blocks for record in block.tensors}
    found: dict[Fqn, NamedForm] = {}
    for fqn in packed:
        by_role = (group.form for group in scheme.groups if roles.get(fqn) in group.roles)
        form = forms.get(fqn) or next(by_role, None)
        if form is not None:
            found[fqn] = own_form(form)
    return found


class AskedForms(NamedTuple):
    """What becomes of the weights if every block is in one of the formats asked for."""

    forms: dict[Fqn, NamedForm]
    """Those that are quantized."""
    changed: frozenset[Fqn]
    """Blocks that are in the format, since it or a rule within it quantizes some of their weights. The others
    are in the model's own data type."""
    decided: frozenset[FormatRule]
    """Rules that decide over any weight."""


def asked_forms(graph: ModelGraph, request: FormatRequest, choice: str, dtype: FloatFormat) -> AskedForms:
    """Return what becomes of the weights in one of the formats asked for.

    Args:
        graph: The model, nothing quantized.
        request: The formats and the rules.
        choice: Name of the format.
        dtype: The model's own data type.
    """
    by_scheme: dict[Fqn, NamedForm] = {}
    if choice not in FLOATS:
        named, scheme = _named_scheme(request, choice)
        by_scheme = dict.fromkeys(quantized_weights(graph, scheme), named)
    tied = {fqn for group in graph.ties for fqn in group.fqns}
    forms: dict[Fqn, NamedForm] = {}
    changed: set[Fqn] = set()
    decided: set[FormatRule] = set()
    for block in graph.blocks:
        found, rules = _with_rules(block, by_scheme, tied, request, choice)
        decided.update(rules)
        if found and choice not in FLOATS:
            changed.add(block.id)
        elif choice != dtype:
            found, rules = _with_rules(block, {}, tied, request, dtype)
            decided.update(rules)
        forms.update(found)
    return AskedForms(forms, frozenset(changed), frozenset(decided))


def check_rules(read: ReadModel, request: FormatRequest, choices: Sequence[str]) -> None:
    """Refuse rules that cannot hold for the model.

    Args:
        read: The model.
        request: The rules.
        choices: Names of the formats to choose from.

    Raises:
        UsageError: A rule names a plain data type that the model is not in.
        UsageError: A rule holds within a format that is neither among `choices` nor the model's own.
        UsageError: A rule would change the checkpoint's own quantized weights.
    """
    own = "" if read.scheme is None else read.scheme.name
    for index, rule in enumerate(request.rules):
        path = _path(index)
        if rule.format in FLOATS and rule.format != read.dtype:
            raise UsageError(
                "the model is in another data type",
                where=f"{path}.format",
                got=rule.format,
                needed=f"{read.dtype}, or a quantized format",
                hint="the layers of a forward hand each other tensors of one data type",
            )
        if rule.within is not None and rule.within not in (*choices, read.dtype):
            raise UsageError(
                "no block is ever in this format",
                where=f"{path}.within",
                got=rule.within,
                needed=f"one of {', '.join(dict.fromkeys((*choices, read.dtype)))}",
            )
        if own in choices and rule.within in (None, own):
            raise UsageError(
                "a rule cannot change what the checkpoint has quantized",
                where=path,
                got=repr(rule.pattern),
                needed="`within` another format than the checkpoint's own",
            )


def check_decided(request: FormatRequest, decided: Set[FormatRule]) -> None:
    """Refuse rules that do nothing.

    Args:
        request: The rules.
        decided: Those that decide over a weight in any of the formats to choose from.

    Raises:
        UsageError: A rule is not among `decided`.
    """
    for index, rule in enumerate(request.rules):
        if rule not in decided:
            raise UsageError(
                "the rule decides over no weight",
                where=_path(index),
                got=repr(rule.pattern),
                needed="the name of a weight of a linear layer or an embedding, such as lm_head.weight",
                hint="tied weights and all other tensors stay as they are; the first rule that matches holds",
            )


def _path(index: int) -> str:
    return f"{WHERE_CONFIG}: $.format_rules[{index}]"


def _with_rules(
    block: GraphBlock, by_scheme: Mapping[Fqn, NamedForm], tied: Set[Fqn], request: FormatRequest, name: str
) -> tuple[dict[Fqn, NamedForm], set[FormatRule]]:
    """Return the weights of a block that are quantized if it is in the format `name`, and who decided it."""
    rules = [rule for rule in request.rules if rule.within in (None, name)]
    forms: dict[Fqn, NamedForm] = {}
    decided: set[FormatRule] = set()
    for record in block.tensors:
        rule = None if record.fqn in tied else _deciding_rule(record, rules, request)
        form = by_scheme.get(record.fqn)
        if rule is not None:
            decided.add(rule)
            form = None if rule.format in FLOATS else _named_scheme(request, rule.format)[0]
        if form is not None:
            forms[record.fqn] = form
    return forms, decided


def _deciding_rule(
    record: TensorRecord, rules: Sequence[FormatRule], request: FormatRequest
) -> FormatRule | None:
    """Return the first rule that matches a weight and names a format that it can be in."""
    if record.linears is None and record.role is not TensorRole.EMBEDDING:
        return None
    for rule in rules:
        if matched_texts(rule.pattern, record.fqn) is None:
            continue
        if rule.format in FLOATS or record.role in _roles(request, rule.format):
            return rule
    return None


def _roles(request: FormatRequest, name: str) -> tuple[TensorRole, ...]:
    """Return the kinds of weights that can be in a quantized format; bitsandbytes has embeddings, too."""
    named, scheme = _named_scheme(request, name)
    roles = scheme.groups[0].roles
    return (*roles, TensorRole.EMBEDDING) if isinstance(named.form, LlmInt8 | Bnb4Bit) else roles


def _named_scheme(request: FormatRequest, name: str) -> tuple[NamedForm, Scheme]:
    """Return a quantized format that may be asked for, and which weights it changes where no rule decides."""
    entry = request.entry(name)
    form = weight_form(entry)
    assert form is not None, f"{name} is no quantized format"
    scheme = ASKED_SCHEMES[entry.kind]
    group = Group(form=form, roles=scheme.groups[0].roles)
    return (
        NamedForm(name=name, form=form, entry=entry),
        msgspec.structs.replace(scheme, name=name, groups=(group,)),
    )
