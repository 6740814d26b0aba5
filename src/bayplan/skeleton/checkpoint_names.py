"""Which tensor of a checkpoint becomes which tensor of a model.

Owns the judgement of what is missing or left over. The renamings themselves are transformers' own, asked of
`transformers_adapter`. Knows names only: neither shapes, files nor values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from transformers import PreTrainedModel

from bayplan.schemas.errors import BayplanError
from bayplan.skeleton import transformers_adapter
from bayplan.skeleton.transformers_adapter import RenamedTensor
from bayplan.skeleton.tree import named_tensors, tie_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


class UnsupportedConversion(BayplanError):
    """A checkpoint whose tensors must be changed, not only renamed, to fit the model.

    Attributes:
        model: Class of the model.
        target: The first tensor concerned.
        operations: What transformers does to make it.
    """

    def __init__(self, model: str, target: str, operations: tuple[str, ...], num_targets: int) -> None:
        """Keep the facts; the message is made from them."""
        super().__init__(
            f"{model}: {num_targets} tensor{'s' if num_targets != 1 else ''} must be converted on loading,"
            " which this version does not do",
            where=target,
            got=" then ".join(operations),
            needed="tensors that are stored as the model holds them",
            hint="saving the model with save_original_format=False stores them so",
        )
        self.model = model
        self.target = target
        self.operations = operations


class CheckpointNames(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint's names meet a model's."""

    sources: dict[str, tuple[str, ...]]
    """Model tensor to the checkpoint tensors that it is made of, one each so far; sorted by model tensor."""
    missing: tuple[str, ...]
    """Parameters that nothing in the checkpoint gives, under no name of their tied group; sorted."""
    default_buffers: tuple[str, ...]
    """Persistent buffers that the checkpoint lacks: they keep their computed values; sorted."""
    unexpected: tuple[str, ...]
    """Checkpoint tensors that the model has no place for; sorted."""
    ignored: tuple[str, ...]
    """The same, where transformers drops them without a warning; sorted."""
    stored_ties: tuple[tuple[str, ...], ...]
    """Names of one tied group that are in the checkpoint more than once, each with a source of its own.

    `from_pretrained` ties them only if their values are equal.
    """


def match_names(model: nn.Module, names: Iterable[str]) -> CheckpointNames:
    """Return which checkpoint tensor becomes which parameter or buffer.

    Args:
        model: Built by `build`; a transformers model's renamings are applied as `from_pretrained` does it,
            any other module's tensors must have the names of its `state_dict()`.
        names: All tensors of the checkpoint.

    Returns:
        The match. Of several checkpoint tensors with one target, the first in natural order is its source
        and the others are `ignored`, as in `from_pretrained`.

    Raises:
        UnsupportedConversion: A tensor is stacked, split or otherwise changed on loading.
    """
    state = {entry.fqn: entry for entry in named_tensors(model) if entry.is_persistent}
    renamed = _renamed(model, names)
    converted = [entry for entry in renamed if entry.operations and entry.target in state]
    if converted:
        targets = {entry.target for entry in converted}
        raise UnsupportedConversion(
            type(model).__name__, converted[0].target, converted[0].operations, len(targets)
        )
    sources: dict[str, tuple[str, ...]] = {}
    unexpected, ignored = [], []
    ignorable = transformers_adapter.ignored_names(model) if isinstance(model, PreTrainedModel) else ()
    for entry in renamed:
        if entry.target in state:
            if entry.target in sources:
                ignored.append(entry.source)
            sources.setdefault(entry.target, (entry.source,))
        elif any(pattern.search(entry.target) for pattern in ignorable):
            ignored.append(entry.source)
        else:
            unexpected.append(entry.source)
    groups = tie_groups(model)
    tied = {fqn for group in groups if any(name in sources for name in group) for fqn in group}
    unmet = sorted(fqn for fqn in state if fqn not in sources and fqn not in tied)
    stored = (tuple(fqn for fqn in group if fqn in sources) for group in groups)
    return CheckpointNames(
        sources=dict(sorted(sources.items())),
        missing=tuple(fqn for fqn in unmet if not state[fqn].is_buffer),
        default_buffers=tuple(fqn for fqn in unmet if state[fqn].is_buffer),
        unexpected=tuple(sorted(unexpected)),
        ignored=tuple(sorted(ignored)),
        stored_ties=tuple(names for names in stored if len(names) > 1),
    )


def unlisted_parameters(model: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """Return the parameters that no tensor of these names would make, converted or not; sorted.

    For an index without its shards, which cannot say more. Names of one tied group count as one.
    """
    targets = {entry.target for entry in _renamed(model, names)}
    met = targets | {fqn for group in tie_groups(model) if not targets.isdisjoint(group) for fqn in group}
    return tuple(
        sorted(entry.fqn for entry in named_tensors(model) if not entry.is_buffer and entry.fqn not in met)
    )


def _renamed(model: nn.Module, names: Iterable[str]) -> tuple[RenamedTensor, ...]:
    if isinstance(model, PreTrainedModel):
        return transformers_adapter.renamed_tensors(model, names)
    return tuple(RenamedTensor(name, name, ()) for name in sorted(names))
