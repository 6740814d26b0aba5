"""The single facts of an estimate, in words: what was sized, and how each figure is to be read.

Owns the wording beside the tables. Knows nothing of terminals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from bayplan.planner.present.estimate_tables import range_text
from bayplan.planner.present.fold import fold_ids
from bayplan.planner.present.plan_facts import DIGEST_CHARS, Fact
from bayplan.planner.present.wording import are_on_one_node, device_label, millions_text, printable
from bayplan.schemas.estimate import Counted, Estimate, FitDevice
from bayplan.schemas.sizes import format_size
from bayplan.schemas.types import FloatFormat

_MAX_TIES = 2


def header_facts(estimate: Estimate) -> tuple[Fact, ...]:
    """Return what was sized, and for which workload."""
    source = printable(estimate.model)
    if estimate.revision is not None:
        source += f" at {printable(estimate.revision[:DIGEST_CHARS])}"
    held = f"checkpoint in {printable(estimate.scheme)}, computes in " if estimate.scheme is not None else ""
    return (
        (
            "model",
            f"{printable(estimate.class_name)} ({printable(estimate.library)}), "
            f"{millions_text(estimate.params)} parameters, {held}{estimate.dtype}",
        ),
        ("source", source),
        *_ties(estimate),
        ("assumes", _workload(estimate)),
    )


def _ties(estimate: Estimate) -> Iterator[Fact]:
    if estimate.tied:
        shown = [" = ".join(printable(fqn) for fqn in group) for group in estimate.tied[:_MAX_TIES]]
        if len(estimate.tied) > _MAX_TIES:
            shown.append(f"{len(estimate.tied) - _MAX_TIES} more")
        yield "tied", f"{'; '.join(shown)}: counted once"


def _workload(estimate: Estimate) -> str:
    encoder = "" if estimate.encoder_context is None else f", encoder context {estimate.encoder_context}"
    context = f", context {estimate.context}" if estimate.has_positions else ""
    text = f"batch {estimate.batch}{context}{encoder}"
    return text if estimate.kv_bytes is not None else f"{text}; cache and activations are not known"


def footnotes(estimate: Estimate) -> tuple[Fact, ...]:
    """Return how the figures are to be read."""
    return tuple(
        (
            (
                "total",
                "parameters once and all buffers; what the class keeps in fp32 is counted so; the first "
                "table counts 1 MB as 1024 KB, like accelerate",
            ),
            *_divisions(estimate),
            *_quantized(estimate),
            (
                "with Adam",
                "accelerate's rule of thumb: 4 x the fp32 total, 2 x for smaller floats; see training",
            ),
            *_inference(estimate),
            *((row.recipe.value, row.formula) for row in estimate.training),
            ("training", "without activations, which depend on batch, length and what is recomputed"),
            *_fits(estimate),
        )
    )


def _divisions(estimate: Estimate) -> Iterator[Fact]:
    plain = [name for name, row in estimate.formats.items() if row.counted is Counted.DIVISION]
    if plain:
        yield "*", f"{' and '.join(plain)}: the fp32 figure divided; no scales, nothing left unquantized"


def _quantized(estimate: Estimate) -> Iterator[Fact]:
    names = [
        name
        for name, row in estimate.formats.items()
        if row.counted is Counted.TENSORS and name not in get_args(FloatFormat)
    ]
    if names:
        yield "scales", f"counted in {', '.join(names)}; what these leave unquantized is in {estimate.dtype}"


def _inference(estimate: Estimate) -> Iterator[Fact]:
    if not estimate.inference:
        return
    left_out = [
        name
        for name, row in estimate.formats.items()
        if row.counted is not Counted.DIVISION and name not in estimate.inference
    ]
    has_mask = estimate.batch > 1 and estimate.has_positions
    runtime = range_text(next(iter(estimate.inference.values())).runtime_bytes)
    unequal = "; prompts of unequal length, so with a mask" if has_mask else ""
    text = (
        f"one device holds everything; prefill in one go{unequal}; the total is with a runtime of {runtime}; "
        f"float formats compute in their own data type, the others in {estimate.dtype}"
    )
    if left_out:
        is_factory = estimate.library == "torch"
        why = "which the factory does not choose" if is_factory else "unless named with --dtypes"
        text += f"; left out: {', '.join(left_out)}, {why}"
    yield "inference", text


def _fits(estimate: Estimate) -> Iterator[Fact]:
    if estimate.fits is None:
        return
    single_node = are_on_one_node(device.id for device in estimate.fits.devices)
    by_id = {device_label(device.id, single_node=single_node): device for device in estimate.fits.devices}
    folds = fold_ids(list(by_id), [_device_text(device) for device in by_id.values()])
    clauses = [f"{printable(fold.label)} {_device_text(by_id[fold.ids[0]])}" for fold in folds]
    yield "devices", "; ".join(clauses)
    text = "with cache and activations, nothing streamed, as `bayplan plan --no-spill` places it"
    if estimate.has_positions:
        text += "; of contexts above the one asked for, powers of two and the model's maximum are tried"
    yield "fits", text


def _device_text(device: FitDevice) -> str:
    return f"{printable(device.kind)}, {format_size(device.budget_bytes)} to use"
