"""What each tensor is to its module: which are the weights of linear layers, of which size, and how many.

Owns the recognition of linear layers in a module tree, the experts of a fused tensor included. Works on meta
and on real modules alike. Decides nothing about what becomes of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from transformers.pytorch_utils import Conv1D

from bayplan.schemas.graph import Linears, TensorRole

if TYPE_CHECKING:
    import torch

Known = tuple[TensorRole, Linears | None]
"""A role, and for those of linear layers their number and size."""

_OTHER: Known = (TensorRole.OTHER, None)


def tensor_roles(model: nn.Module) -> dict[str, Known]:
    """Return the role of every parameter that has one, under every name."""
    roles: dict[str, Known] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None and (known := _role(module, name, parameter)) is not _OTHER:
                roles[dot + name] = known
    return roles


def _role(module: nn.Module, name: str, parameter: torch.Tensor) -> Known:
    if parameter.dim() == 2 and name == "weight":
        return _role_of_weight(module, parameter)
    if parameter.dim() == 3 and _is_experts(module, parameter):
        return TensorRole.EXPERTS, _experts(module, name, parameter)
    return _OTHER


def _role_of_weight(module: nn.Module, weight: torch.Tensor) -> Known:
    if isinstance(module, nn.Embedding):
        return TensorRole.EMBEDDING, None
    if isinstance(module, Conv1D):
        return TensorRole.CONV1D, Linears(count=1, out_features=weight.shape[1], in_features=weight.shape[0])
    if not isinstance(module, nn.Linear):
        return _OTHER
    is_grouped = "GroupedLinear" in type(module).__name__
    return (
        TensorRole.GROUPED_LINEAR if is_grouped else TensorRole.LINEAR,
        Linears(count=1, out_features=weight.shape[0], in_features=weight.shape[1]),
    )


def _is_experts(module: nn.Module, parameter: torch.Tensor) -> bool:
    """Return whether the first dimension counts experts, whose linear layers the others are."""
    return getattr(module, "num_experts", None) == parameter.shape[0] or "Experts" in type(module).__name__


def _experts(module: nn.Module, name: str, parameter: torch.Tensor) -> Linears:
    count, rows, columns = parameter.shape
    if _is_transposed(module, name, rows, columns):
        rows, columns = columns, rows
    if name.startswith("gate_up") and rows % 2 == 0:
        count, rows = 2 * count, rows // 2
    return Linears(count=count, out_features=rows, in_features=columns)


def _is_transposed(module: nn.Module, name: str, rows: int, columns: int) -> bool:
    """Return whether the inputs are the second dimension instead of the third."""
    declared = getattr(module, "is_transposed", None)
    if isinstance(declared, bool):
        return declared
    hidden_size = getattr(module, "hidden_size", None)
    if "down" in name:
        return columns == hidden_size and rows != hidden_size
    return rows == hidden_size and columns != hidden_size
