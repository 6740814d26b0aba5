"""A checkpoint's config file, read for what any library may make of it.

Owns what is refused before a library sees it, and how the faults of other people's code are told. Knows no
library: neither classes nor defaults.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from huggingface_hub.errors import StrictDataclassError

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.strict_json import MAX_DEPTH, is_deeper, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FOREIGN_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What other people's configs and constructors are seen to raise; anything else shows as it is."""

_MAX_FAULT_CHARS = 300

MAX_CONFIG_BYTES = 16 * 2**20
"""Far over any config: the largest list every label of a classifier, about 1 MiB."""
_MAX_LAYERS = 10_000
"""Far over any model; a million would keep this machine busy for hours before anything is known."""
_MAX_LABELS = 1_000_000
"""Far over any classifier; transformers makes a name for each."""
_LAYERS = ("n_layer", "n_layers", "num_hidden_layers", "num_layers")
_STACK_LAYERS = (
    "decoder_layers",
    "depth",
    "encoder_layers",
    "num_blocks",
    "num_decoder_layers",
    "num_encoder_blocks",
    "num_encoder_layers",
)
"""Of one stack of two, which a model may lack."""


class ModelError(BayplanError):
    """A config, class or factory from which no model can be built."""


def read_config_object(file: Path) -> dict[str, object]:
    """Return the members of a config file, of whatever library.

    Raises:
        ModelError: There is no such file.
        ModelError: It is larger or nested deeper than any config.
        ModelError: It is not a JSON object, or gives one key two values.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ModelError(
            "cannot read the model's config",
            where=str(file),
            got=error.strerror or one_line(error),
            needed="a folder with config.json, or a config file",
        ) from error
    # The libraries read the file again, and their parser recurses: what passes here passes there.
    if len(data) > MAX_CONFIG_BYTES:
        raise ModelError(
            "the model's config is too large", where=str(file), needed=f"at most {MAX_CONFIG_BYTES} bytes"
        )
    if is_deeper(data, MAX_DEPTH):
        raise ModelError(
            "the model's config is nested too deeply", where=str(file), needed=f"at most {MAX_DEPTH} levels"
        )
    twice: list[str] = []
    try:
        raw = json.loads(data.decode("utf-8"), object_pairs_hook=lambda pairs: _members(pairs, twice))
    except ValueError as error:  # bad JSON and bad UTF-8
        raise ModelError("the model's config is not JSON", where=str(file), got=one_line(error)) from error
    if not isinstance(raw, dict):
        raise ModelError("the model's config is not a JSON object", where=str(file), got=type(raw).__name__)
    if twice:
        raise ModelError(
            "the model's config gives one key two values", where=str(file), got=quote(twice[0]), needed="one"
        )
    return raw


def _members(pairs: list[tuple[str, object]], twice: list[str]) -> dict[str, object]:
    """Return an object's members, and note each key whose later value is another than its first."""
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members and members[key] != value:
            twice.append(key)
        members[key] = value
    return members


def check_counts(config: Mapping[str, object], *, where: str) -> None:
    """Check what a transformers config says of layers, labels and heads, where its class would not.

    Negative counts make an empty model, huge ones one that is never built, and a head that no key belongs to
    a model that fails in its first forward.

    Args:
        config: From `read_config_object`.
        where: Its file.

    Raises:
        ModelError: A number of layers is negative, zero for a whole model, or over any model's.
        ModelError: The number of labels is over any model's.
        ModelError: The attention heads cannot share the key-value heads evenly.
    """
    for prefix, part in _parts(config):
        least = 1 if prefix in ("", "text_config.") else 0
        for name, lowest in (*((name, least) for name in _LAYERS), *((name, 0) for name in _STACK_LAYERS)):
            count = part.get(name)
            if isinstance(count, int) and not lowest <= count <= _MAX_LAYERS:
                raise ModelError(
                    "the config has an impossible number of layers",
                    where=where,
                    got=f"{prefix}{name} {count}",
                    needed=f"{lowest} to {_MAX_LAYERS}",
                )
        labels = part.get("num_labels")
        if isinstance(labels, int) and labels > _MAX_LABELS:
            raise ModelError(
                "the config has an impossible number of labels",
                where=where,
                got=f"{prefix}num_labels {labels}",
                needed=f"at most {_MAX_LABELS}",
            )
        heads, shared = part.get("num_attention_heads"), part.get("num_key_value_heads")
        if isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared:
            raise ModelError(
                "the config's attention heads cannot share its key-value heads evenly",
                where=where,
                got=f"{prefix}num_attention_heads {heads}, {prefix}num_key_value_heads {shared}",
                needed="a multiple",
            )


def _parts(config: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield a config and those of its towers, each with what comes before its members' names."""
    yield "", config
    for name, value in config.items():
        if name.endswith("_config") and isinstance(value, dict):
            yield f"{name}.", value


def code_files(auto_map: object) -> tuple[str, ...]:
    """Return the Python files that a config's `auto_map` names, sorted.

    A reference is `module.Class`, or `org/name--module.Class`.
    """
    values = auto_map.values() if isinstance(auto_map, dict) else ()
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    files = set()
    for reference in flat:
        if isinstance(reference, str) and "." in reference:
            repo, _, module = reference.rpartition("--")
            file = f"{module.rpartition('.')[0].replace('.', '/')}.py"
            files.add(quote(f"{file} of {repo}" if repo else file)[1:-1])
    return tuple(sorted(files))


def one_line(error: BaseException) -> str:
    """Return an error's class and its text on one line, cut where a screen would end: some span several."""
    try:
        text = " ".join(str(error).split())
    except FOREIGN_FAULTS:  # the text too is made by other people's code
        text = ""
    if len(text) > _MAX_FAULT_CHARS:
        text = f"{text[:_MAX_FAULT_CHARS]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ForeignCode:
    """Within it runs a user's code, which may raise anything: all of it becomes one `ModelError`.

    What bayplan itself raises inside passes, and so does an interrupt.

    Args:
        what: Says what fails.
        where: Whose code it is.
        hint: One thing to do about it.
    """

    def __init__(self, what: str, where: str, hint: str = "") -> None:
        self._what = what
        self._where = where
        self._hint = hint

    def __enter__(self) -> None:
        """Begin to watch."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tell a fault as bayplan's own.

        Raises:
            ModelError: The code inside has failed.
        """
        if error is not None and not isinstance(error, BayplanError | KeyboardInterrupt):
            raise ModelError(self._what, where=self._where, got=one_line(error), hint=self._hint) from error
