"""The least bytes that the products of a call read: what a device's memory rate is held against.

Owns how many of a block's weights a call can use. Knows no format by name and no device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from bayplan.schemas.graph import TensorRecord, Work

_UNKNOWN_WIDTH = 4
"""Bytes of a weight of which nothing is known, such as a tied one that another block lists."""


class UsedWeights(NamedTuple):
    """The parameters of a block, as they are stored."""

    dense: Sequence[TensorRecord]
    experts: Sequence[TensorRecord] = ()
    """Of its routed experts, where the work of these is known apart."""
    tied_bytes: int = 0
    """Of weights that it uses and another block lists."""


def read_bytes(work: Work, weights: UsedWeights, kv_bytes: int, *, experts_flops: int = 0) -> int:
    """Return the least bytes that the products of one call read.

    A weight that takes part in a product costs at least two operations, so operations bound how many
    weights can be used: a look-up table reads only the rows that it hands out, a mixture of experts only
    the routed ones.

    Args:
        work: Of the call.
        weights: Of the block.
        kv_bytes: Of its cache.
        experts_flops: Of the work, that of the experts.
    """
    dense_bytes = sum(tensor.num_bytes for tensor in weights.dense) + weights.tied_bytes
    experts_bytes = sum(tensor.num_bytes for tensor in weights.experts)
    if not work.flops:
        return min(dense_bytes + experts_bytes, work.output_bytes)
    dense_flops = max(0, work.flops - experts_flops)
    return (
        min(dense_bytes, _bytes_of_weights(dense_flops // 2, weights.dense))
        + min(experts_bytes, _bytes_of_weights(experts_flops // 2, weights.experts))
        + kv_bytes
    )


def _bytes_of_weights(count: int, parameters: Sequence[TensorRecord]) -> int:
    """Return the most bytes that `count` weights have: the widest first, scales in proportion to theirs."""
    packed = sum(tensor.num_values or 0 for tensor in parameters)
    scale_bytes = sum(tensor.num_bytes for tensor in parameters if tensor.num_values == 0)
    found = used_packed = 0
    for tensor in sorted((one for one in parameters if _num_values(one)), key=_negative_width):
        used = min(count, _num_values(tensor))
        found += -(-used * tensor.num_bytes // _num_values(tensor))
        used_packed += used if tensor.num_values else 0
        count -= used
    scales = -(-scale_bytes * used_packed // packed) if packed else 0
    return found + scales + count * _UNKNOWN_WIDTH


def _num_values(tensor: TensorRecord) -> int:
    return math.prod(tensor.shape) if tensor.num_values is None else tensor.num_values


def _negative_width(tensor: TensorRecord) -> Fraction:
    return -Fraction(tensor.num_bytes, _num_values(tensor))
