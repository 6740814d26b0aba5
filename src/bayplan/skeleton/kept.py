"""What stays as it is when a model is put into another format: tensors that their class protects.

Owns which those are for a live module, by transformers' own rules. Others decide what becomes of the rest.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from bayplan.schemas.graph import TensorRole
from bayplan.skeleton import transformers_adapter
from bayplan.skeleton.roles import tensor_roles
from bayplan.skeleton.tree import named_tensors


def unquantized_weights(model: nn.Module) -> tuple[str, ...]:
    """Return the weights of linear layers that quantizers leave as they are unless told otherwise, sorted.

    transformers' own choice: the output head, tied weights, what the class keeps in fp32, and classes made of
    the linear layer, whose forward is their own. Of a module of another library none is known.
    """
    if not isinstance(model, PreTrainedModel):
        return ()
    skips = transformers_adapter.default_skips(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    kept = []
    for fqn, (role, _) in tensor_roles(model).items():
        module = fqn.rpartition(".")[0]
        is_own_class = role is TensorRole.LINEAR and type(modules[module]) is not nn.Linear
        if role is not TensorRole.EMBEDDING and (is_own_class or skips(module)):
            kept.append(fqn)
    return tuple(sorted(kept))


def kept_in_fp32(model: nn.Module, in_bf16: nn.Module | None = None) -> dict[str, tuple[str, ...]]:
    """Return what the class keeps in fp32 when it is built in `bf16` and in `fp16`, each sorted.

    Args:
        model: Of any library; of one of another than transformers nothing is known.
        in_bf16: The same built in bf16. In an fp32 model, what the class makes in fp32 in any case looks like
            the rest, so this must be given for it.
    """
    if not isinstance(model, PreTrainedModel):
        return {}
    always = set()
    if in_bf16 is not None:
        always = {entry.fqn for entry in named_tensors(in_bf16) if entry.tensor.dtype is torch.float32}
    return {
        name: tuple(sorted(always.union(transformers_adapter.planned_dtypes(model, dtype))))
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16))
    }
