"""The tables of an estimate, in words: weights, inference, training, and where it fits.

Owns which figures a table shows. The first one prints sizes as accelerate's own estimate does, so that both
can be held beside each other; the others as bayplan does everywhere.
"""

from __future__ import annotations

from bayplan.planner.present.fold import fold_ids
from bayplan.planner.present.plan_tables import Table
from bayplan.planner.present.wording import count_text, device_label, millions_text, printable
from bayplan.schemas.estimate import Counted, Estimate, FitDevice, FormatEstimate, FormatFit
from bayplan.schemas.sizes import format_size
from bayplan.schemas.types import BytesRange

_COLUMN_GAP = 2
"""As `rich_table` draws."""
_MIN_WORDS_CHARS = 20
"""Width of a column of words below which its table is split rather."""
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
    header = ("fits", "alone on", "accelerators up to context", "all devices up to context")
    rows = tuple(
        (name, *_fit_cells(fit, devices)) for name, fit in estimate.fits.formats.items() if fit is not None
    )
    return Table(header, rows, frozenset((2, 3)))


def split_columns(table: Table, width: int) -> tuple[Table, ...]:
    """Return the table, or several with the same first column if it is wider than `width`.

    A quantity that is cut short would be another quantity. Words may be broken.

    Args:
        table: Any.
        width: Columns of the terminal.
    """
    longest = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    needed = [
        chars if index == 0 or index in table.right_aligned else min(chars, _MIN_WORDS_CHARS)
        for index, chars in enumerate(longest)
    ]
    parts: list[list[int]] = []
    room = 0
    for index, chars in enumerate(needed[1:], start=1):
        room -= _COLUMN_GAP + chars
        if room < 0 or not parts:
            parts.append([0])
            room = width - needed[0] - _COLUMN_GAP - chars
        parts[-1].append(index)
    return tuple(_columns(table, part) for part in parts)


def _columns(table: Table, indices: list[int]) -> Table:
    right = frozenset(place for place, index in enumerate(indices) if index in table.right_aligned)
    rows = tuple(tuple(row[index] for index in indices) for row in table.rows)
    return Table(tuple(table.header[index] for index in indices), rows, right)


def _fit_cells(fit: FormatFit, devices: tuple[FitDevice, ...]) -> tuple[str, str, str]:
    single_node = len({device.id.partition("/")[0] for device in devices}) == 1
    if len(fit.devices) == len(devices) > 1:
        alone = f"each of {count_text(len(devices), 'device')}"
    else:
        labels = [device_label(device, single_node=single_node) for device in fit.devices]
        alone = ", ".join(fold.label for fold in fold_ids(labels, [0] * len(labels))) or "none"
    return (
        printable(alone),
        "no" if fit.accelerators_context is None else str(fit.accelerators_context),
        "no" if fit.max_context is None else str(fit.max_context),
    )
