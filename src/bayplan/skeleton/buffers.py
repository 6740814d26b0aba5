"""Buffers of a model without weights: the values that `from_pretrained` would give them.

Owns the order of the two sources: the constructors' values first, which an empty build keeps, then, for a
transformers model, its own initialization, which is what `from_pretrained` relies on. Where a class has no
initialization for a buffer, `from_pretrained` leaves it undefined; here it keeps its constructor's value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from bayplan.skeleton.transformers_adapter import initialize_buffers

if TYPE_CHECKING:
    from torch import nn


def compute_buffers(model: nn.Module) -> None:
    """Compute all buffers of a model whose parameters are on meta; those stay there.

    Persistent buffers get values too, which hold where the checkpoint lacks them. Any module that is no
    transformers model keeps the values of its constructor. The random state is as before afterwards.
    """
    if isinstance(model, PreTrainedModel):
        with torch.random.fork_rng(devices=()), torch.no_grad():
            initialize_buffers(model)
