"""Figures of a long context from short ones, for models whose forward runs a loop over the positions.

Owns the choice between a whole forward and short ones, and the curve through them: what every operation has
alive grows with the positions, or with their square, so three points tell it. Knows nothing of how the points
are measured.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from math import ceil, prod
from typing import TYPE_CHECKING, TypeVar

import msgspec

from bayplan.planner.model.activity import TraceTooLongError
from bayplan.planner.model.alignment import TOO_LONG, aligned_moments
from bayplan.planner.model.footprint import peaks
from bayplan.planner.model.forwards import ForwardFigures, Observation, observe
from bayplan.planner.model.workload import max_context

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedModel

    from bayplan.planner.model.blocks import BlockSpec
    from bayplan.planner.model.inputs import Attempt
    from bayplan.schemas.plan import Workload

_Key = TypeVar("_Key")

# A call of a block without such a loop takes some hundred operations; the most that was seen in real models
# is 900, for a delta rule that loops inside its chunks.
_MAX_HASTY_OPERATIONS = 2_500
"""Operations in one call of a block from which on short contexts are tried."""

# A state-space layer goes position by position, a delta rule by chunks of 64, lightning attention by 256.
_STRIDES = (1, 64, 256)
"""Positions of one turn of a loop."""

# Longer than the kernel of any convolution over positions, below which its cache is padded: 4 at most.
_MIN_CONTEXT = 5
_NUM_POINTS = 3
# Fields of caches that stop growing somewhere: no curve.
_WINDOW_FIELDS = ("sliding_window", "attention_chunk_size", "attention_window_size")


def observe_any_length(
    model: PreTrainedModel, blocks: Sequence[BlockSpec], workload: Workload, attempt: Attempt
) -> Observation:
    """Return what `observe` does, from short contexts where the whole one would take too many operations.

    Args:
        model: As for `observe`.
        blocks: As for `observe`.
        workload: As for `observe`.
        attempt: As for `observe`.

    Raises:
        TraceTooLongError: The whole context takes too many operations, and short ones tell nothing about it.
        UnknownInputsError: As `observe`.
    """
    try:
        return observe(model, blocks, workload, attempt, max_call_operations=_MAX_HASTY_OPERATIONS)
    except TraceTooLongError:
        pass
    try:
        return observe_extrapolated(model, blocks, workload, attempt)
    except TraceTooLongError:
        return observe(model, blocks, workload, attempt)


def observe_extrapolated(
    model: PreTrainedModel, blocks: Sequence[BlockSpec], workload: Workload, attempt: Attempt
) -> Observation:
    """Return what `observe` would at the workload's context, measured at three short contexts.

    What is alive is that of a prefill in one chunk, which needs at least as much as a shorter one; work and
    what is handed on are those of the workload's chunk.

    Args:
        model: As for `observe`.
        blocks: As for `observe`.
        workload: As for `observe`.
        attempt: As for `observe`.

    Returns:
        Figures on the curve through the measurements, rounded up.

    Raises:
        TraceTooLongError: The cache ends at a window, so there is no curve.
        TraceTooLongError: The context is short already, or no loop over the positions is seen.
        TraceTooLongError: Short contexts take too many operations too.
        TraceTooLongError: As `aligned_moments`.
    """
    text = model.config.get_text_config(decoder=True)
    windows = [getattr(text, field, None) for field in _WINDOW_FIELDS]
    if any(window is not None and window < workload.context for window in windows):
        raise TraceTooLongError(f"{TOO_LONG}, and its cache has a window")
    for stride in _STRIDES:
        # All lengths leave the same rest, so that what is padded to whole chunks lies on the curve too.
        first = _MIN_CONTEXT if stride == 1 else 2 * stride + workload.context % stride
        lengths = [first + stride * number for number in range(_NUM_POINTS)]
        if lengths[-1] >= workload.context:
            break
        points = [
            # A step takes no loop, and is a straight line: two points tell it.
            observe(model, blocks, _shortened(workload, length), attempt, has_decode=number != 1)
            for number, length in enumerate(lengths)
        ]
        sizes = [len(point.prefill.moments) for point in points]
        if sizes[0] < sizes[1] < sizes[2]:
            # A step on a full table of positions is the one that completes it.
            is_full = workload.context == max_context(model.config)
            return _on_curves(points, lengths, workload, num_past=workload.context - is_full)
    raise TraceTooLongError(f"{TOO_LONG}, and no loop over positions is seen")


def _shortened(workload: Workload, context: int) -> Workload:
    return msgspec.structs.replace(workload, context=context, prefill_chunk=context)


def _on_curves(
    points: Sequence[Observation], lengths: Sequence[int], workload: Workload, *, num_past: int
) -> Observation:
    curve = _Curve(lengths, workload.context)
    prefills = [point.prefill for point in points]
    prefill = curve.figures(prefills)
    first, last = points[0], points[-1]
    decode = None
    if first.decode is first.prefill:
        decode = prefill  # Without a cache every step is a forward over everything.
    elif first.decode is not None and last.decode is not None:
        decode = _Curve((lengths[0], lengths[-1]), num_past).figures([first.decode, last.decode])
    return Observation(
        prefill=_of_last_chunk(prefill, prefills, lengths, workload),
        decode=decode,
        filled=None,
        kv_bytes=curve.by_key([point.kv_bytes for point in points]),
        replaced_buffers=last.replaced_buffers,
    )


def _of_last_chunk(
    whole: ForwardFigures, points: Sequence[ForwardFigures], lengths: Sequence[int], workload: Workload
) -> ForwardFigures:
    """Return the figures of the whole context with the work of its last chunk alone.

    What grows with the positions is there in proportion; so is attention, each of whose rows is as long as
    the context. What does not grow is as in a forward over the chunk.
    """
    if workload.prefill_chunk >= workload.context:
        return whole
    curve = _Curve(lengths, workload.prefill_chunk)
    share = Fraction(workload.prefill_chunk, workload.context)

    def of_chunk(of_whole: Mapping[_Key, int], of_points: Sequence[Mapping[_Key, int]]) -> dict[_Key, int]:
        alone = curve.by_key(of_points)
        return {key: max(ceil(value * share), alone[key]) for key, value in of_whole.items()}

    return dataclasses.replace(
        whole,
        flops=of_chunk(whole.flops, [point.flops for point in points]),
        operations=of_chunk(whole.operations, [point.operations for point in points]),
        expert_flops=of_chunk(whole.expert_flops, [point.expert_flops for point in points]),
        expert_bytes=of_chunk(whole.expert_bytes, [point.expert_bytes for point in points]),
        output_bytes=of_chunk(whole.output_bytes, [point.output_bytes for point in points]),
        handed_bytes=of_chunk(whole.handed_bytes, [point.handed_bytes for point in points]),
    )


class _Curve:
    """The polynomial through values at some lengths, at another: two make a line, three a parabola."""

    def __init__(self, lengths: Sequence[int], context: int) -> None:
        self._weights = tuple(
            prod(Fraction(context - other, length - other) for other in lengths if other != length)
            for length in lengths
        )

    def figures(self, points: Sequence[ForwardFigures]) -> ForwardFigures:
        last = points[-1]
        moments = tuple(
            same[0]._replace(live_bytes=self._value([one.live_bytes for one in same]))
            for same in aligned_moments([point.moments for point in points])
        )
        extremes = peaks(moments, uncalled=last.first_read.keys() - last.num_calls.keys())
        return ForwardFigures(
            moments=moments,
            flops=self.by_key([point.flops for point in points]),
            operations=self.by_key([point.operations for point in points]),
            activation_bytes=dict(extremes.by_block),
            output_bytes=self.by_key([point.output_bytes for point in points]),
            handed_bytes=self.by_key([point.handed_bytes for point in points]),
            least_bytes=extremes.least_bytes,
            num_calls=last.num_calls,
            first_call=last.first_call,
            first_read=last.first_read,
            used_outside=last.used_outside,
            mutated=last.mutated,
            expert_flops=self.by_key([point.expert_flops for point in points]),
            expert_bytes=self.by_key([point.expert_bytes for point in points]),
            expert_routes=last.expert_routes,
            copied_bytes=self.by_key([point.copied_bytes for point in points]),
        )

    def by_key(self, points: Sequence[Mapping[_Key, int]]) -> dict[_Key, int]:
        return {key: self._value([point.get(key, 0) for point in points]) for key in points[-1]}

    def _value(self, values: Sequence[int]) -> int:
        """Return the value on the curve, rounded up."""
        if len(set(values)) == 1:
            return values[0]
        on_curve = sum(
            (weight * value for weight, value in zip(self._weights, values, strict=True)), Fraction()
        )
        return max(0, ceil(on_curve))
