"""Whether a model that the caller brings can be filled: a built tree without weights, held by nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayplan.executor.state import is_loaded
from bayplan.schemas.errors import UsageError, first_and_more
from bayplan.skeleton.tree import named_tensors

if TYPE_CHECKING:
    from torch import nn

_SHOWN_NAMES = 3
_HINT = "build it under bayplan.empty_weights()"


def check_given_model(model: nn.Module) -> None:
    """Check a model that `load_model` is asked to fill. One that was released may be filled again.

    Args:
        model: From the caller.

    Raises:
        UsageError: It is loaded.
        UsageError: A parameter has real values, which would be lost.
        UsageError: A buffer that no checkpoint holds is on meta, so that nothing says its values.
    """
    if is_loaded(model):
        raise UsageError(
            "the model is loaded already",
            where="model",
            hint="release it first, or leave `model` out for a second one",
        )
    real = [entry.fqn for entry in named_tensors(model) if not entry.is_buffer and not entry.tensor.is_meta]
    if real:
        raise UsageError(
            "the model to fill has weights",
            where="model",
            got=first_and_more(real, _SHOWN_NAMES),
            needed="every parameter on meta",
            hint=_HINT,
        )
    empty = [
        entry.fqn
        for entry in named_tensors(model)
        if entry.is_buffer and not entry.is_persistent and entry.tensor.is_meta
    ]
    if empty:
        raise UsageError(
            "the model to fill has buffers without values",
            where="model",
            got=first_and_more(empty, _SHOWN_NAMES),
            needed="values for every buffer that is not in a checkpoint",
            hint=_HINT,
        )
