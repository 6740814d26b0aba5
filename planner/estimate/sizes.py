"""The weights of a model in every format: total and largest layer.

Owns which figures are counted tensor by tensor and which are plain divisions of the fp32 ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.estimate.layers import Layers, total_bytes
from bayplan.planner.estimate.options import DIVISORS
from bayplan.planner.stored_form import in_format
from bayplan.schemas.estimate import Counted, FormatEstimate
from bayplan.schemas.graph import ModelGraph

if TYPE_CHECKING:
    from bayplan.planner.model.facts import ReadModel

_ADAM_MULTIPLES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
"""Of the fp32 total, by accelerate's rule: weights, gradients and two moments in fp32; half of that where
the weights are smaller. Integer formats are not trained."""


class Forms:
    """One model in all formats, each made once."""

    def __init__(self, read: ReadModel) -> None:
        self._read = read
        self.graph = cache(self._graph)
        """Format, counted tensor by tensor, to the model's graph in it."""

    @cached_property
    def _layers(self) -> Layers:
        return Layers(self._read.graph)

    def _graph(self, name: str) -> ModelGraph:
        return in_format(self._read.graph, name)

    @cached_property
    def checkpoint_graph(self) -> ModelGraph | None:
        """The graph with the checkpoint's own tensors; None where nothing is known of them."""
        read = self._read
        if read.stored is not None:
            stored = read.stored
            blocks = tuple(
                msgspec.structs.replace(block, tensors=stored.get(block.id, ()))
                for block in read.graph.blocks
            )
            return msgspec.structs.replace(read.graph, blocks=blocks)
        if read.scheme is not None:
            return in_format(read.graph, read.scheme.name, scheme=read.scheme)
        return None

    def row(self, name: str) -> FormatEstimate:
        """Return the figures of one format."""
        fp32 = self.graph("fp32")
        multiple = _ADAM_MULTIPLES.get(name)
        adam_bytes = None if multiple is None else multiple * total_bytes(fp32)
        if name in DIVISORS:
            whole = self._counted(fp32, Counted.DIVISION, adam_bytes)
            return FormatEstimate(
                largest_layer_bytes=whole.largest_layer_bytes // DIVISORS[name],
                largest_layer=whole.largest_layer,
                total_bytes=whole.total_bytes // DIVISORS[name],
                train_adam_bytes=adam_bytes,
                counted=Counted.DIVISION,
            )
        return self._counted(self.graph(name), Counted.TENSORS, adam_bytes)

    def checkpoint_row(self) -> FormatEstimate | None:
        """Return the figures of the checkpoint as it is."""
        graph = self.checkpoint_graph
        counted = Counted.TENSORS if self._read.stored is None else Counted.HEADERS
        return None if graph is None else self._counted(graph, counted, None)

    def rows(self, names: Sequence[str]) -> dict[str, FormatEstimate]:
        """Return the figures of several formats, in their order."""
        return {name: self.row(name) for name in names}

    def _counted(self, graph: ModelGraph, counted: Counted, adam_bytes: int | None) -> FormatEstimate:
        name, num_bytes = self._layers.largest(graph.blocks)
        return FormatEstimate(
            largest_layer_bytes=num_bytes,
            largest_layer=name,
            total_bytes=total_bytes(graph),
            train_adam_bytes=adam_bytes,
            counted=counted,
        )
