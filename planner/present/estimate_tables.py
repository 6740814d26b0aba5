"""The tables of an estimate, in words: weights, inference, training, and where it fits.

Owns which figures a table shows. The first one prints sizes as accelerate's own estimate does, so that both
can be held beside each other; the others as bayplan does everywhere.
"""

from __future__ import annotations

from bayplan.planner.present.fold import fold_ids
from bayplan.planner.present.plan_tables import Table
from bayplan.planner.present.wording import (
    are_on_one_node,
    count_text,
    device_label,
    millions_text,
    printable,
)
from bayplan.schemas.estimate import Counted, Estimate, FitDevice, FormatEstimate, FormatFit
from bayplan.schemas.sizes import format_size
from bayplan.schemas.types import Backend, BytesRange

_PEER_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def peer_size(num_bytes: int) -> str:
    """Return a size in accelerate's spelling: counted in 1024s, labelled as if in 1000s, such as `413.18 MB`.

    At most two decimals, none of them a trailing zero but the first.
    """
    size: float = num_bytes
    for unit in _PEER_UNITS:
        if size < 1024:
            return f"{round(size, 2)} {unit}"
        size /= 1024
    return f"{round(size, 2)} PB"


def weights_table(estimate: Estimate) -> Table:
    """Return one row for each format, and one for the checkpoint."""
    header = ("format", "largest layer", "total", "training with Adam", "largest layer is")
    rows = [_weights_row(name, row) for name, row in estimate.formats.items()]
    if estimate.checkpoint is not None:
        rows.append(_weights_row("checkpoint", estimate.checkpoint))
    return Table(header, tuple(rows), frozenset((1, 2, 3)))


def _weights_row(name: str, row: FormatEstimate) -> tuple[str, ...]:
    return (
        f"{name} *" if row.counted is Counted.DIVISION else name,
        peer_size(row.largest_layer_bytes),
        peer_size(row.total_bytes),
        "N/A" if row.train_adam_bytes is None else peer_size(row.train_adam_bytes),
        "-" if row.largest_layer is None else printable(row.largest_layer),
    )


def inference_table(estimate: Estimate) -> Table:
    """Return what running takes, one row for each format."""
    header = ("inference", "weights", "kv", "activations", "total")
    rows = tuple(
        (
            name,
            format_size(row.weights_bytes),
            format_size(row.kv_bytes) if row.kv_bytes else "-",
            range_text(row.activation_bytes),
            range_text(row.total_bytes),
        )
        for name, row in estimate.inference.items()
    )
    return Table(header, rows, frozenset(range(1, 5)))


def range_text(bounds: BytesRange) -> str:
    """Return a range of bytes, the unit once where both ends have the same."""
    low, high = format_size(bounds[0]), format_size(bounds[1])
    if low == high:
        return high
    amount, _, unit = low.partition(" ")
    return f"{amount if high.endswith(f' {unit}') else low} - {high}"


def training_table(estimate: Estimate) -> Table:
    """Return what each way to train keeps, one row for each."""
    header = ("training", "trained", "weights", "fp32 copies", "gradients", "optimizer", "total")
    rows = tuple(
        (
            row.recipe.value,
            millions_text(row.trainable_params),
            format_size(row.weights_bytes),
            format_size(row.master_bytes) if row.master_bytes else "-",
            format_size(row.gradients_bytes),
            format_size(row.optimizer_bytes),
            format_size(row.total_bytes),
        )
        for row in estimate.training
    )
    return Table(header, rows, frozenset(range(1, 7)))


def fits_table(estimate: Estimate) -> Table | None:
    """Return where each format fits; None if nobody asked."""
    if estimate.fits is None:
        return None
    devices = estimate.fits.devices
    has_accelerators = any(device.backend is not Backend.CPU for device in devices)
    up_to = " up to context" if estimate.has_positions else ""
    header = (
        "fits",
        "alone on",
        *((f"accelerators{up_to}",) if has_accelerators else ()),
        f"all devices{up_to}",
    )
    rows = tuple(
        (
            name,
            _alone_on(fit, devices),
            *((_up_to(fit.accelerators_context, estimate),) if has_accelerators else ()),
            _up_to(fit.max_context, estimate),
        )
        for name, fit in estimate.fits.formats.items()
        if fit is not None
    )
    return Table(header, rows, frozenset(range(2, len(header))))


def _alone_on(fit: FormatFit, devices: tuple[FitDevice, ...]) -> str:
    if len(fit.devices) == len(devices) > 1:
        return f"each of {count_text(len(devices), 'device')}"
    single_node = are_on_one_node(device.id for device in devices)
    labels = [device_label(device, single_node=single_node) for device in fit.devices]
    return printable(", ".join(fold.label for fold in fold_ids(labels, [0] * len(labels))) or "none")


def _up_to(context: int | None, estimate: Estimate) -> str:
    if context is None:
        return "no"
    return str(context) if estimate.has_positions else "yes"
