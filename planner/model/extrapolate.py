"""Figures of a long context from two short ones, for models whose forward runs a loop over the positions.

Owns the straight line through two points: such layers take the same work and memory for every position. Knows
nothing of how the points are measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from bayplan.planner.model.activity import TraceTooLongError
from bayplan.planner.model.forwards import ForwardFigures, Observation, observe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedModel

    from bayplan.planner.model.blocks import BlockSpec
    from bayplan.planner.model.inputs import Attempt
    from bayplan.schemas.plan import Workload

_Key = TypeVar("_Key")

# Two lengths at which a 64-layer Mamba stays under the limit of operations; longer ones only take longer.
_SHORT_CONTEXT = 32
_LONG_CONTEXT = 64
# Fields of caches that stop growing somewhere: no straight line.
_WINDOW_FIELDS = ("sliding_window", "attention_chunk_size")


def observe_extrapolated(
    model: PreTrainedModel, blocks: Sequence[BlockSpec], workload: Workload, attempt: Attempt
) -> Observation:
    """Return what `observe` would at the workload's context, measured at two short contexts.

    The context is taken as one prefill chunk, which needs at least as much as a shorter one.

    Args:
        model: As for `observe`.
        blocks: As for `observe`.
        workload: As for `observe`.
        attempt: As for `observe`.

    Returns:
        Figures on the line through both measurements, rounded up.

    Raises:
        TraceTooLongError: Short contexts take too many operations too.
        TraceTooLongError: The context is short already.
        TraceTooLongError: The cache ends at a window, so there is no line.
    """
    text = model.config.get_text_config(decoder=True)
    windows = [getattr(text, field, None) for field in _WINDOW_FIELDS]
    if workload.context <= _LONG_CONTEXT or any(
        window is not None and window < workload.context for window in windows
    ):
        raise TraceTooLongError("a forward takes too many operations to be traced")
    short, long = (
        observe(model, blocks, _shortened(workload, context), attempt)
        for context in (_SHORT_CONTEXT, _LONG_CONTEXT)
    )
    context = workload.context
    return Observation(
        prefill=_figures(short.prefill, long.prefill, context),
        decode=None
        if short.decode is None or long.decode is None
        else _figures(short.decode, long.decode, context),
        filled=None,
        kv_bytes=_on_line(short.kv_bytes, long.kv_bytes, context),
        replaced_buffers=long.replaced_buffers,
        excess_cache_bytes=_point(short.excess_cache_bytes, long.excess_cache_bytes, context),
    )


def _shortened(workload: Workload, context: int) -> Workload:
    return msgspec.structs.replace(workload, context=context, prefill_chunk=context)


def _figures(short: ForwardFigures, long: ForwardFigures, context: int) -> ForwardFigures:
    return ForwardFigures(
        flops=_on_line(short.flops, long.flops, context),
        activation_bytes=_on_line(short.activation_bytes, long.activation_bytes, context),
        output_bytes=_on_line(short.output_bytes, long.output_bytes, context),
        handed_bytes=_on_line(short.handed_bytes, long.handed_bytes, context),
        outside_bytes=_point(short.outside_bytes, long.outside_bytes, context),
        num_calls=long.num_calls,
        first_call=long.first_call,
        first_read=long.first_read,
        used_outside=long.used_outside,
        mutated=long.mutated,
    )


def _on_line(short: Mapping[_Key, int], long: Mapping[_Key, int], context: int) -> dict[_Key, int]:
    return {key: _point(short.get(key, 0), value, context) for key, value in long.items()}


def _point(short: int, long: int, context: int) -> int:
    """Return the value at `context`, rounded up, of a line that does not fall."""
    rise = max(0, long - short) * (context - _LONG_CONTEXT)
    return long - (-rise // (_LONG_CONTEXT - _SHORT_CONTEXT))
