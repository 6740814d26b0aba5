"""Which formats a plan may choose from for each block, what the model is in each, and the rules of a choice.

Owns the choices: a model once in every format that is asked for, and which of them differ in which block.
What a block takes in each is `block_forms`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bayplan.planner.chosen_forms import asked_forms, check_decided, check_rules, own_form, own_forms
from bayplan.planner.format_choice import AUTO_FORMATS, WHERE_FORMAT, FormatRequest, parse_request
from bayplan.planner.held_tensors import (
    HeldTensor,
    NamedForm,
    held_tensors,
    main_format,
    rules_for,
    used_formats,
)
from bayplan.planner.model.facts import ReadModel
from bayplan.planner.stored_form import with_forms, with_tensors
from bayplan.schemas.dtypes import tensor_num_bytes
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_bytes import WeightForm
from bayplan.schemas.graph import ModelGraph, TensorRecord
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.types import FloatFormat, Fqn


class PlannedForm(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it would be held if every block were in one of the formats asked for."""

    graph: ModelGraph
    """With the tensors that are stored."""
    formats: dict[str, Format]
    format_rules: tuple[FormatRule, ...]
    block_formats: tuple[str, ...]
    """Per block, a key of `formats`."""
    held: tuple[tuple[HeldTensor, ...], ...]
    """Per block, its tensors before they are quantized, each with its format."""


class PlannedForms(msgspec.Struct, frozen=True, kw_only=True):
    """A model in all formats that blocks may be in."""

    choices: tuple[PlannedForm, ...]
    """In the order asked; the first is the base, with which the others are compared."""
    formats: dict[str, Format]
    """Of all choices."""
    dtype: FloatFormat
    """The model's own data type, that of what is not quantized and of products."""
    block_choices: tuple[tuple[int, ...], ...]
    """Per block, the indexes into `choices` of its forms. The base is always first; left out is a choice in
    which the block is no other than in an earlier one."""


def planned_form(read: ReadModel, asked: str | None) -> PlannedForm:
    """Return what a model is held as: the one format asked for, or else the checkpoint's own.

    Args:
        read: The model.
        asked: One name, as `--format` has it.

    Raises:
        UsageError: `asked` is no format.
    """
    (choice,) = planned_forms(read, parse_request(asked)).choices
    return choice


def planned_forms(read: ReadModel, request: FormatRequest) -> PlannedForms:
    """Return what a model is held as in each of the formats asked for.

    Args:
        read: The model, read in the plain data type of `request` if that names one.
        request: From `parse_request`.

    Raises:
        UsageError: A rule does not make sense for the model, see `check_rules` and `check_decided`.
        UsageError: A format has the name of another one, which the checkpoint is quantized in.
    """
    assert request.plain in (None, read.dtype), f"the model was read in {read.dtype}"
    names = choice_names(read, request)
    check_rules(read, request, names)
    decided: set[FormatRule] = set()
    choices = tuple(_choice(read, request, name, decided) for name in names)
    check_decided(request, decided)
    block_choices = tuple(_distinct(choices, index) for index in range(len(read.graph.blocks)))
    formats: dict[str, Format] = {}
    for choice in choices:
        for name, entry in choice.formats.items():
            if formats.setdefault(name, entry) != entry:
                raise _ambiguous(name)
    for index, distinct in enumerate(block_choices):
        seen: set[str] = set()
        for name in (choices[number].block_formats[index] for number in distinct):
            if name in seen:
                raise _ambiguous(name)
            seen.add(name)
    return PlannedForms(
        choices=choices,
        formats=dict(sorted(formats.items())),
        dtype=read.dtype,
        block_choices=block_choices,
    )


def mixed_rules(forms: PlannedForms, chosen: Sequence[int]) -> tuple[FormatRule, ...]:
    """Return the rules for the tensors that differ from their block, with every block in a form of its own.

    Args:
        forms: The choices.
        chosen: Per block, which of its forms: an index into its entry of `forms.block_choices`, which are in
            the order of `block_forms`.
    """
    numbers = [own[index] for own, index in zip(forms.block_choices, chosen, strict=True)]
    return rules_for(
        [forms.choices[number].held[block] for block, number in enumerate(numbers)],
        [forms.choices[number].block_formats[block] for block, number in enumerate(numbers)],
        forms.dtype,
    )


def plan_formats(
    graph: ModelGraph, default: FloatFormat, forms: Mapping[Fqn, WeightForm] | None = None
) -> tuple[dict[str, Format], tuple[FormatRule, ...], tuple[str, ...]]:
    """Return the plan's formats, its rules for single tensors, and each block's format by name.

    Args:
        graph: As traced, tensors in the data types in which they will be bound if not quantized.
        default: The model's own data type, also that of blocks without floating-point parameters.
        forms: Weight -> the form in which a checkpoint has it instead.
    """
    held = held_tensors(graph, {fqn: own_form(form) for fqn, form in (forms or {}).items()})
    names = tuple(main_format(tensors, default) for tensors in held)
    return used_formats(held, names, {}), rules_for(held, names, default), names


def choice_names(read: ReadModel, request: FormatRequest) -> tuple[str, ...]:
    """Return the names of the formats that blocks may be in."""
    if request.is_auto and read.scheme is None:
        return (read.own_format, *AUTO_FORMATS)
    return request.names or (read.own_format,)


def _choice(read: ReadModel, request: FormatRequest, name: str, decided: set[FormatRule]) -> PlannedForm:
    """Return the model with every block in the format `name`; `decided` gets the rules that do something."""
    plain = read.graph
    entries: dict[str, Format] = {}
    if read.scheme is not None and name == read.scheme.name and name not in request.formats:
        forms = own_forms(read, read.scheme)
        if read.stored is None:
            graph = _stored_graph(plain, forms)
        else:
            graph = with_tensors(plain, read.stored)
            plain = _as_stored(plain, read.stored_dtypes)
        held = held_tensors(plain, forms)
        names = tuple(main_format(tensors, read.dtype) for tensors in held)
    else:
        forms, changed, rules = asked_forms(plain, request, name, read.dtype)
        decided.update(rules)
        graph = _stored_graph(plain, forms)
        held = held_tensors(plain, forms)
        names = tuple(
            name if block.id in changed else _plain_name(tensors, read.dtype)
            for block, tensors in zip(plain.blocks, held, strict=True)
        )
        entries = {name: request.entry(name)}
    return PlannedForm(
        graph=graph,
        formats=used_formats(held, names, entries),
        format_rules=rules_for(held, names, read.dtype),
        block_formats=names,
        held=held,
    )


def _plain_name(held: Sequence[HeldTensor], default: FloatFormat) -> str:
    """Return what a block is called that no format changes, whatever rules then quantize."""
    return main_format([msgspec.structs.replace(tensor, form=None) for tensor in held], default)


def _stored_graph(plain: ModelGraph, forms: Mapping[Fqn, NamedForm]) -> ModelGraph:
    return with_forms(plain, {fqn: named.form for fqn, named in forms.items()}) if forms else plain


def _distinct(choices: Sequence[PlannedForm], block: int) -> tuple[int, ...]:
    """Return the choices in which a block is not what it is in an earlier one."""
    first: dict[tuple[tuple[Fqn, str | None, int], ...], int] = {}
    for number, choice in enumerate(choices):
        num_bytes = choice.graph.blocks[block].num_bytes
        content = (("", None, num_bytes), *((one.record.fqn, one.format, 0) for one in choice.held[block]))
        first.setdefault(content, number)
    return tuple(first.values())


def _ambiguous(name: str) -> UsageError:
    return UsageError(
        "the checkpoint's own format has the same name",
        where=WHERE_FORMAT,
        got=name,
        needed="one of the two",
        hint="--format-config gives a format another name",
    )


def _as_stored(graph: ModelGraph, dtypes: Mapping[Fqn, str | None]) -> ModelGraph:
    """Return `graph` with the parameters that are not packed in the data types of the files."""

    def stored(record: TensorRecord) -> TensorRecord:
        dtype = dtypes.get(record.fqn)
        if dtype is None:
            return record
        num_bytes = tensor_num_bytes(record.shape, dtype)
        return msgspec.structs.replace(record, dtype=dtype, num_bytes=num_bytes)

    return with_tensors(graph, {block.id: tuple(map(stored, block.tensors)) for block in graph.blocks})
