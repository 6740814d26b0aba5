"""Forwards with images, sound or video, for the parts of a model that text alone does not call.

Owns the search for inputs that such a model takes: layouts are tried until one runs, and the positions that
its tower fills are counted on the way. Does not judge the figures.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from bayplan.planner.model.activity import EventKind, SeenEnoughError
from bayplan.planner.model.forwards import ForwardFigures, Runs, TowerForward
from bayplan.planner.model.modalities import Layout, layouts, modalities
from bayplan.planner.model.watch import watched
from bayplan.skeleton.config_file import FOREIGN_FAULTS

# Some models add what their tower has made to the stream behind their first layers too.
_NUM_CALLS_BEHIND = 6
"""Calls behind the last one of a tower that are watched."""

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from transformers import PreTrainedModel

    from bayplan.planner.model.blocks import BlockSpec
    from bayplan.planner.model.inputs import Attempt
    from bayplan.schemas.plan import Workload


def observe_towers(
    model: PreTrainedModel,
    blocks: Sequence[BlockSpec],
    workload: Workload,
    attempt: Attempt,
    called: Collection[int],
) -> tuple[TowerForward, ...]:
    """Return a prefill for each modality that calls blocks which the forwards before did not.

    Args:
        model: Parameters on meta, in eval mode. Its tensors are left as they were.
        blocks: Partition of the model.
        workload: Batch and lengths.
        attempt: How the text is passed.
        called: Blocks that text calls.
    """
    known = {*called, *(index for index, block in enumerate(blocks) if block.is_own)}
    found: list[TowerForward] = []
    for modality in modalities(model):
        if len(known) == len(blocks):
            break
        best: TowerForward | None = None
        for layout in layouts(model, modality, workload.batch):
            forward = _observe_layout(model, blocks, workload, attempt, layout, known)
            if forward is not None and (best is None or forward.is_whole):
                best = forward
            if best is not None and best.is_whole:
                break
        if best is not None:
            known.update(best.figures.num_calls)
            found.append(best)
    return tuple(found)


def _observe_layout(
    model: PreTrainedModel,
    blocks: Sequence[BlockSpec],
    workload: Workload,
    attempt: Attempt,
    layout: Layout,
    known: Collection[int],
) -> TowerForward | None:
    """Return a prefill with this layout; None if no block but the known ones was called to its end."""
    with watched(model, blocks) as watch:
        num_tokens, num_placeholders = workload.prefill_chunk, 0
        forward: TowerForward | None = None
        for _ in range(2):
            with_tower = dataclasses.replace(attempt, layout=layout, num_placeholders=num_placeholders)
            runs = Runs(model, workload, with_tower, watch.mode)
            if num_placeholders:
                watch.mode.stop_after(set(range(len(blocks))).difference(known), _NUM_CALLS_BEHIND)
            try:
                figures = runs.forward(num_tokens)
                is_whole = True
            except SeenEnoughError:
                figures = runs.figures()
                is_whole = True
            except FOREIGN_FAULTS:
                figures = runs.figures()
                is_whole = False
            if not _finished(figures, known):
                return forward
            forward = TowerForward(
                attempt=with_tower,
                figures=figures,
                is_whole=is_whole,
                fits=num_tokens <= workload.prefill_chunk,
                last=[moment.key for moment in figures.moments if moment.kind == EventKind.EXIT][-1],
                kv_bytes=runs.kv_bytes(),
                replaced_buffers=watch.replaced_buffers(),
            )
            if is_whole:
                return forward
            # It failed because no position of the text is kept for what the tower has made: as many rows as
            # its last block has returned.
            num_rows = watch.mode.log.output_rows.get(_finished(figures, known)[-1], 0)
            num_placeholders = num_rows // workload.batch
            num_tokens = max(workload.prefill_chunk, num_placeholders)
    return forward


def _finished(figures: ForwardFigures, known: Collection[int]) -> list[int]:
    """Return the blocks that were called to their end and are not known, in order."""
    return [
        moment.key for moment in figures.moments if moment.kind == EventKind.EXIT and moment.key not in known
    ]
