"""What reading a model gives: the struct that the rest of the planner works on, and the graph cache keeps."""

from __future__ import annotations

import msgspec

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.graph import ModelGraph, TensorRecord
from bayplan.schemas.plan import Model, Workload
from bayplan.schemas.quantization import Scheme
from bayplan.schemas.types import FloatFormat, Fqn


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """Why a model that can be measured cannot be planned for: the facts of an error."""

    what: str
    where: str
    got: str
    needed: str
    hint: str

    @classmethod
    def of(cls, error: BayplanError) -> Obstacle:
        """Return the facts of `error`."""
        return cls(what=error.what, where=error.where, got=error.got, needed=error.needed, hint=error.hint)

    def error(self) -> BayplanError:
        """Return the error."""
        return BayplanError(self.what, where=self.where, got=self.got, needed=self.needed, hint=self.hint)


class ReadModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as planned for. Every field must survive msgpack: the graph cache stores it."""

    graph: ModelGraph
    model: Model
    workload: Workload
    dtype: FloatFormat
    sources: dict[Fqn, str]
    """Tensor of the model -> its name in the checkpoint; empty without headers."""
    scratch_bytes: int
    warnings: tuple[str, ...]
    scheme: Scheme | None = None
    """How the checkpoint says that it is quantized; None: it is not."""
    stored: dict[Fqn, tuple[TensorRecord, ...]] | None = None
    """Block -> what it is in the checkpoint, under the names and in the data types of the files, with the
    buffers that are computed; None without headers."""
    stored_dtypes: dict[Fqn, str | None] = {}
    """Parameter -> its data type in the files; None: packed by a quantizer. Empty without headers."""
    has_positions: bool = True
    """False: whatever the context, inputs, cache and work are the same."""
    obstacle: Obstacle | None = None
    """Set where the model cannot be planned for, only measured."""

    @property
    def own_format(self) -> str:
        """Name of the format that blocks are in where none is asked for."""
        return self.dtype if self.scheme is None else self.scheme.name
