"""Readings of one model: at its own data type and the call's context, and at others where they are asked for.

A trace in bf16 has the bytes of one in fp16, so each width is read once. Owns which readings are the same.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from bayplan.planner.estimate.options import FLOATS, EstimateOptions
from bayplan.planner.model.library import Library
from bayplan.planner.options import PlanOptions
from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.types import FloatFormat

if TYPE_CHECKING:
    from bayplan.planner.model.facts import ReadModel
    from bayplan.schemas.progress import Progress

_BY_WIDTH: dict[int, FloatFormat] = {32: "fp32", 16: "bf16"}


class Traces:
    """A model's readings, each made once."""

    def __init__(self, model: str, options: EstimateOptions, progress: Progress | None) -> None:
        self._model = model
        self._options = options
        self._progress = progress
        self._read = cache(self._read_anew)

    def own(self) -> ReadModel:
        """Return the model in its own data type at the call's context."""
        return self._read(None, self._options.context)

    def compute_dtype(self, name: str) -> FloatFormat:
        """Return the data type in which the model computes in the format `name`."""
        return _FLOAT_FORMATS.get(name, self.own().dtype)

    def is_own_width(self, name: str) -> bool:
        """Whether cache and activations take as much in the format `name` as in the model's own dtype."""
        return _num_bits(self.compute_dtype(name)) == _num_bits(self.own().dtype)

    def can_read(self, name: str) -> bool:
        """Whether the model can be had in the format `name`: a factory chooses its own data type."""
        return self.is_own_width(name) or self.own().model.library != Library.TORCH.value

    def reading(self, name: str, context: int | None = None) -> ReadModel:
        """Return the model with the cache and the activations that it has in the format `name`.

        Args:
            name: Format of an estimate that can be read, or any other word for the model's own.
            context: None: the call's.
        """
        dtype = None if self.is_own_width(name) else _BY_WIDTH[_num_bits(self.compute_dtype(name))]
        is_asked = context is None or context == self.own().workload.context
        return self._read(dtype, self._options.context if is_asked else context)

    def _read_anew(self, dtype: FloatFormat | None, context: int | None) -> ReadModel:
        from bayplan.planner.model.cached import cached_read_model  # torch, unless the cache has it

        options = PlanOptions(
            format=dtype,
            batch=self._options.batch,
            context=context,
            encoder_context=self._options.encoder_context,
            class_name=self._options.class_name,
            library=self._options.library,
            variant=self._options.variant,
            trust_remote_code=self._options.trust_remote_code,
            checkpoint=self._options.checkpoint,
            use_cache=self._options.use_cache,
        )
        return cached_read_model(self._model, options, self._progress)


_FLOAT_FORMATS: dict[str, FloatFormat] = {name: name for name in FLOATS}


def _num_bits(dtype: FloatFormat) -> int:
    return parse_dtype(dtype).num_bits
