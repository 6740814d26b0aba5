"""How big a model is: what `bayplan estimate` answers, and its JSON.

Computed, shown and printed; never read back. Every quantity is an integer count of bytes or parameters.
"""

from __future__ import annotations

import enum

import msgspec

from bayplan.schemas.json_tree import json_tree
from bayplan.schemas.pretty_json import pretty
from bayplan.schemas.types import Backend, BytesRange, Count, DeviceId, FloatFormat, Fqn, NumBytes


class Counted(enum.StrEnum):
    """How the bytes of a format are found."""

    TENSORS = "tensors"
    """Tensor by tensor: what is in memory once the model is loaded in the format, buffers included."""
    DIVISION = "division"
    """The fp32 figure divided, as if every value took so many bits: no scales, nothing left out."""
    HEADERS = "headers"
    """Tensor by tensor, those of the checkpoint as its shard headers say."""


class Recipe(enum.StrEnum):
    """A way to train the model; what each keeps in memory is in its `formula`."""

    ADAM = "adam"
    MIXED_ADAM = "mixed-adam"
    ADAM_8BIT = "adam-8bit"
    LORA = "lora"
    QLORA = "qlora"


class FormatEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The weights in one format."""

    largest_layer_bytes: NumBytes
    largest_layer: Fqn | None
    """The first layer of that size; None: the model has no tensors."""
    total_bytes: NumBytes
    """Unique parameters and all buffers, those that are not in checkpoints included."""
    train_adam_bytes: NumBytes | None
    """Four times the fp32 total, or twice for 16-bit and fp8 weights: the rule of thumb by which other tools
    give one number. None where it makes no sense. What recipes really take is in `training`."""
    counted: Counted


class TrainingEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What one way to train keeps in memory, without activations."""

    recipe: Recipe
    formula: str
    """What is kept, in words."""
    trainable_params: Count
    weights_bytes: NumBytes
    """As the forward uses them, frozen ones, adapters and buffers included."""
    master_bytes: NumBytes
    """fp32 copies that the optimizer updates instead of 16-bit weights."""
    gradients_bytes: NumBytes
    optimizer_bytes: NumBytes
    """Both moments of Adam."""
    total_bytes: NumBytes


class InferenceEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What running the model takes at the call's batch and context, on one device that holds all of it."""

    compute_dtype: FloatFormat
    """Data type of cache and activations."""
    weights_bytes: NumBytes
    kv_bytes: NumBytes
    activation_bytes: BytesRange
    runtime_bytes: BytesRange
    """Interpreter and libraries, or an accelerator's context."""
    total_bytes: BytesRange


class FitDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the inventory that the model is held against."""

    id: DeviceId
    kind: str
    backend: Backend
    budget_bytes: NumBytes
    """Capacity less reserve."""


class FormatFit(msgspec.Struct, frozen=True, kw_only=True):
    """Where the whole model stays resident in one format, cache and activations included."""

    devices: tuple[DeviceId, ...]
    """Each of these alone holds it at the call's context."""
    accelerators_context: Count | None
    """Largest context at which it fits spread over all accelerators: the call's, or a power of two above, or
    the model's maximum. None: not even the call's, or there is no accelerator."""
    max_context: Count | None
    """Likewise over all devices, CPUs included."""


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """Which formats fit an inventory."""

    devices: tuple[FitDevice, ...]
    formats: dict[str, FormatFit | None]
    """None: a plain division says nothing of what has to be held, nor can a factory be run in a data type
    that it does not choose."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """How big a model is."""

    model: str
    """Hub id, factory, or the path as it was given."""
    revision: str | None
    """Commit of the Hub repository."""
    class_name: str = msgspec.field(name="class")
    library: str
    params: Count
    """Elements of unique parameters."""
    dtype: FloatFormat
    """Data type that the model computes in."""
    scheme: str | None
    """How the checkpoint is quantized; None: not at all."""
    batch: Count
    context: Count
    has_positions: bool
    """Whether `context` counts: not where a model takes images alone."""
    encoder_context: Count | None
    formats: dict[str, FormatEstimate]
    """Format to its row, in the order of the table."""
    checkpoint: FormatEstimate | None
    """The checkpoint's own data types or scheme; None: neither shard headers nor a scheme are known."""
    tied: tuple[tuple[Fqn, ...], ...]
    """Names of one storage, each group sorted."""
    kv_bytes: NumBytes | None
    """Cache at this batch and context, in the model's own data type. None: no forward could be traced."""
    activation_bytes: BytesRange | None
    """Likewise."""
    inference: dict[str, InferenceEstimate]
    """Format, or `checkpoint`, to what running takes; those computed in another data type than the model's
    own are there only if asked for, and never of a factory."""
    training: tuple[TrainingEstimate, ...]
    fits: Fits | None
    """None: not asked, or no forward could be traced."""
    warnings: tuple[str, ...]


def encode_estimate(estimate: Estimate) -> bytes:
    """Return the text of `estimate`, laid out as a plan is."""
    return pretty(json_tree(estimate))
