"""What single torch operations cost, and which kernel real tensors would get.

Owns the floating-point operations of each kind of operation, and the mode that makes attention on meta
tensors take the way of attention on real ones. Knows nothing of blocks or models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten


def run_on_meta(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Run one operation; on meta tensors also those that torch refuses there and allows on real ones."""
    if func is _aten._grouped_mm.default:
        left, right = args[:2]
        assert isinstance(left, torch.Tensor)
        assert isinstance(right, torch.Tensor)
        if left.is_meta and left.dim() == 2 and right.dim() == 3 and left.dtype != torch.bfloat16:
            return left.new_empty((left.shape[0], right.shape[-1]))
    return func(*args, **kwargs)


def operation_flops(
    packet: torch._ops.OpOverloadPacket, args: tuple[object, ...], kwargs: dict[str, object], output: object
) -> int:
    """Return the floating-point operations of one call; a multiply-add is two, anything but products is none.

    Args:
        packet: The operation, such as `torch.ops.aten.mm`.
        args: What it was called with.
        kwargs: Likewise.
        output: What it returned.
    """
    if packet is _aten._grouped_mm or packet.__name__ == "grouped_mm_fallback":
        return _grouped_mm_flops(*args[:2])  # type: ignore[arg-type]
    formula = _EXTRA_FORMULAS.get(packet) or flop_registry.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=output))


def _grouped_mm_flops(left: torch.Tensor, right: torch.Tensor) -> int:
    """Return 2 m k n: each row of `left` `[m, k]` meets one of the matrices `right` `[groups, k, n]`."""
    return 2 * left.shape[-2] * left.shape[-1] * right.shape[-1]


def _attention_flops(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: object, **kwargs: object
) -> int:
    """Return the work of attention, causal or not: shapes `[batch, heads, positions, dim]`."""
    batch, num_heads, num_queries, dim = query.shape
    return 2 * batch * num_heads * num_queries * key.shape[-2] * (dim + value.shape[-1])


# What torch's own table (2.7 to 2.13) leaves out.
_EXTRA_FORMULAS: dict[object, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    _aten.mv: lambda matrix, vector, **kwargs: 2 * matrix.numel(),
}


# These make real tensors below the level at which operations are seen.
_LITERALS: tuple[Callable[..., object], ...] = (torch.tensor, torch.as_tensor, torch.asarray)


class RealPathMode(TorchFunctionMode):
    """Sends calls on meta tensors where real ones would go.

    On meta tensors torch takes the plain formula of attention, which holds the whole score matrix; on real
    ones it takes a fused kernel that holds none, for shapes that the kernel can do. Numbers that a model
    writes down keep their values.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)  # type: ignore[arg-type]
        if func in _LITERALS and kwargs.get("device") is not None and not isinstance(args[0], torch.Tensor):
            return func(*args, **{**kwargs, "device": "cpu"})
        if func is torch.Tensor.new_tensor and not isinstance(args[1], torch.Tensor):
            like = args[0]
            assert isinstance(like, torch.Tensor)
            return torch.tensor(args[1], dtype=kwargs.get("dtype") or like.dtype)  # type: ignore[arg-type]
        return func(*args, **kwargs)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Run `scaled_dot_product_attention` as on real tensors; shapes `[batch, heads, positions, dim]`."""
    if not (
        query.is_meta and dropout_p == 0.0 and _has_fused_kernel(query, key, value, attn_mask, enable_gqa)
    ):
        return torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = attn_mask.to(query.dtype)  # As torch does before it calls the kernel.
    output, _ = _aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )
    assert isinstance(output, torch.Tensor)
    return output


def _has_fused_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_grouped: bool,
) -> bool:
    """Return whether torch has one for these shapes: the choice of `torch._fused_sdp_choice` on the CPU."""
    return (
        query.dim() == key.dim() == value.dim() == 4
        and query.shape[0] == key.shape[0] == value.shape[0]
        and (is_grouped or query.shape[1] == key.shape[1] == value.shape[1])
        and query.shape[-1] == key.shape[-1] == value.shape[-1]
        and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        and query.shape[-2] > 0
        and key.shape[-2] > 0
        and (mask is None or mask.dim() in (2, 4))
    )
