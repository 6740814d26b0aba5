"""What `--format` and `--format-config` ask for: the formats that a plan may choose from.

Owns spellings, and what of a user's own formats makes sense. Knows no model: whether a rule of a config
decides anything is found out where it is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

import msgspec

from bayplan.planner.plan_format import SETTINGS, stray_fields, usual_entry, weight_form
from bayplan.planner.stored_form import FLOATS, FORMAT_NAMES, known_format
from bayplan.schemas.dtypes import DTYPE_BY_SPELLING
from bayplan.schemas.errors import UsageError
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.plan import Format, FormatRule
from bayplan.schemas.strict_json import join_path, quote
from bayplan.schemas.types import FloatFormat, PackedFormat, QuantizedFormat, Residency

AUTO = "auto"
"""The model's own format and `AUTO_FORMATS`, the fewest quantized bytes first."""
AUTO_FORMATS = ("int8", "nf4")
"""What `auto` may quantize to, the more exact one first."""
WHERE_FORMAT = "--format"
WHERE_CONFIG = "--format-config"

_BLOCKSIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Those of bitsandbytes 0.50 `functional.quantize_4bit`."""
_STORAGES = ("uint8", "bf16", "fp16", "fp32")
"""Those of bitsandbytes 0.50 `Params4bit`."""


class FormatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The formats that a plan may choose from."""

    names: tuple[str, ...] = ()
    """In the order asked, each once: of `FORMAT_NAMES` or a key of `formats`; empty: the model's own format,
    and with `is_auto` those of `AUTO_FORMATS`."""
    is_auto: bool = False
    formats: dict[str, Format] = {}
    """The user's own formats, by name; equal formats are equal entries."""
    rules: tuple[FormatRule, ...] = ()
    """For the weights that differ; formats by the names of `names`."""

    @property
    def plain(self) -> FloatFormat | None:
        """The one plain data type that is asked for; None: the model's own."""
        return next((cast(FloatFormat, name) for name in self.names if name in FLOATS), None)

    def format_name(self, text: str) -> str | None:
        """Return the name of the format that `text` spells; None: there is none."""
        return text if text in self.formats else known_format(text)

    def entry(self, name: str) -> Format:
        """Return what a plan says of a format, by its name."""
        return self.formats.get(name) or builtin_entry(name)

    def known_names(self) -> str:
        """Return every name that there is, for messages."""
        return ", ".join(dict.fromkeys((*FORMAT_NAMES, *self.formats)))


OWN_FORMAT = FormatRequest()
"""The model's own format."""


def builtin_entry(name: str) -> Format:
    """Return what a plan says of one of `FORMAT_NAMES`."""
    return usual_entry(Format(kind=cast(FloatFormat | QuantizedFormat | PackedFormat, name)))


def parse_request(text: str | None, config: FormatConfig | None = None) -> FormatRequest:
    """Return what the two options ask for.

    Args:
        text: `--format`: a name, several with commas between, or `auto`; None: the model's own format.
        config: What the file of `--format-config` holds.

    Raises:
        UsageError: The set is empty or holds an empty name.
        UsageError: `auto` stands among other names.
        UsageError: A name is unknown.
        UsageError: A format is one in which checkpoints come, but weights are not converted to it.
        UsageError: A format is given twice, under whatever names.
        UsageError: More than one plain data type is asked for.
        UsageError: An entry or a rule of the config makes no sense; see `own_formats` and below.
        UsageError: A rule names an unknown format.
    """
    known = FormatRequest(formats={} if config is None else own_formats(config.formats))
    rules = () if config is None else _rules(config.format_rules, known)
    if text is None:
        return msgspec.structs.replace(known, rules=rules)
    words = tuple(word.strip() for word in text.split(","))
    if "" in words:
        raise UsageError(
            "not a set of formats",
            where=WHERE_FORMAT,
            got=repr(text),
            needed=f"names such as bf16 or bf16,nf4, or {AUTO}",
        )
    if words == (AUTO,):
        return msgspec.structs.replace(known, rules=rules, is_auto=True)
    if AUTO in words:
        raise UsageError(
            f"{AUTO} stands alone",
            where=WHERE_FORMAT,
            got=repr(text),
            needed=f"{AUTO}, or names of formats",
            hint=f"{AUTO} is the model's own format with {' and '.join(AUTO_FORMATS)}",
        )
    names = tuple(_named(word, known) for word in words)
    _check_distinct(words, names, known)
    return msgspec.structs.replace(known, rules=rules, names=names)


def own_formats(entries: Mapping[str, Format]) -> dict[str, Format]:
    """Return the entries of a config, equal ones equal; those that only repeat a known format are left out.

    Args:
        entries: Name -> format as the user writes it.

    Raises:
        UsageError: A name is that of another format, of a residency, or has characters that options give a
            meaning.
        UsageError: Weights are not converted to the kind.
        UsageError: A field means nothing for the kind, or its value cannot be met.
    """
    found: dict[str, Format] = {}
    for name, entry in entries.items():
        where = f"{WHERE_CONFIG}: {join_path('$.formats', name)}"
        _check_entry(entry, where)
        usual = usual_entry(entry)
        if known_format(name) == name and usual == builtin_entry(name):
            continue
        is_taken = known_format(name) is not None or name in DTYPE_BY_SPELLING or name in {AUTO, *Residency}
        if is_taken or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise UsageError(
                "not a name for a format",
                where=where,
                got=quote(name),
                needed="letters, digits, - and _, and no name that means something else",
            )
        if weight_form(usual) is None:
            raise UsageError(
                "a plain data type has no second name",
                where=where,
                got=quote(name),
                needed=quote(entry.kind),
            )
        found[name] = usual
    return found


def _check_entry(entry: Format, where: str) -> None:
    if entry.kind not in SETTINGS:
        raise UsageError(
            "weights cannot be converted to this kind, checkpoints come in it",
            where=f"{where}.kind",
            got=repr(entry.kind),
            needed=f"one of {', '.join(SETTINGS)}",
        )
    for field in stray_fields(entry):
        raise UsageError(
            f"not to be chosen for {entry.kind}",
            where=f"{where}.{field}",
            got=repr(getattr(entry, field)),
            needed=f"only {', '.join(('kind', *SETTINGS[entry.kind]))}",
        )
    shape = entry.block_shape
    for field, choices in (("blocksize", _BLOCKSIZES), ("storage_dtype", _STORAGES)):
        value = getattr(entry, field)
        if value is not None and value not in choices:
            raise UsageError(
                "bitsandbytes does not have this",
                where=f"{where}.{field}",
                got=repr(value),
                needed=f"one of {', '.join(map(str, choices))}",
            )
    if shape is not None and 0 in shape and shape != (0, 0):
        raise UsageError(
            "not a block",
            where=f"{where}.block_shape",
            got=str(list(shape)),
            needed="rows and columns, or [0, 0] for the whole weight",
        )


def _rules(rules: tuple[FormatRule, ...], known: FormatRequest) -> tuple[FormatRule, ...]:
    found = []
    for index, rule in enumerate(rules):
        path = f"{WHERE_CONFIG}: $.format_rules[{index}]"
        within = rule.within
        # The own format of a quantized checkpoint has a name that only the checkpoint knows.
        found.append(
            FormatRule(
                pattern=rule.pattern,
                format=_named(rule.format, known, where=f"{path}.format"),
                within=None if within is None else known.format_name(within) or within,
            )
        )
    return tuple(found)


def _named(word: str, known: FormatRequest, *, where: str = WHERE_FORMAT) -> str:
    name = known.format_name(word)
    if name is not None:
        return name
    if word in get_args(PackedFormat):
        raise UsageError(
            "weights cannot be converted to this format, checkpoints come in it",
            where=where,
            got=repr(word),
            needed=f"one of {known.known_names()}",
        )
    hint = f"or {AUTO}, to quantize as little as possible" if where == WHERE_FORMAT else ""
    raise UsageError(
        "unknown format", where=where, got=repr(word), needed=f"one of {known.known_names()}", hint=hint
    )


def _check_distinct(words: tuple[str, ...], names: tuple[str, ...], known: FormatRequest) -> None:
    seen: dict[Format, str] = {}
    for word, name in zip(words, names, strict=True):
        entry = known.entry(name)
        if entry in seen:
            raise UsageError(
                "the same format twice",
                where=WHERE_FORMAT,
                got=f"{seen[entry]} and {word}",
                needed="each once",
            )
        seen[entry] = word
    plain = [name for name in names if name in FLOATS]
    if len(plain) > 1:
        raise UsageError(
            "more than one plain data type",
            where=WHERE_FORMAT,
            got=" and ".join(plain),
            needed="one, for all that is not quantized",
            hint="the layers of a forward hand each other tensors of one data type",
        )
