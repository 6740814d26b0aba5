"""Estimating from end to end: read the model, size it in every format, say what running and training takes.

`make_estimate` reads top to bottom as the answer is printed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from bayplan.planner.block_forms import block_forms
from bayplan.planner.estimate.fits import Fitter, context_ladder, fit_devices
from bayplan.planner.estimate.inference import activation_bytes, inference_estimate, kv_bytes
from bayplan.planner.estimate.layers import total_bytes
from bayplan.planner.estimate.options import DIVISORS, EstimateOptions, parse_formats, parse_lora
from bayplan.planner.estimate.sizes import Forms
from bayplan.planner.estimate.traces import Traces
from bayplan.planner.estimate.training import full_recipes, lora_recipes
from bayplan.planner.format_choice import parse_request
from bayplan.planner.formats import PlannedForms, planned_forms
from bayplan.planner.model_chain import model_chain
from bayplan.planner.stored_form import FLOATS
from bayplan.schemas.estimate import Estimate, Fits, FormatFit, InferenceEstimate, TrainingEstimate
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.keywords import from_keywords
from bayplan.schemas.problem import BlockForm
from bayplan.schemas.progress import Progress, untold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bayplan.planner.model.facts import ReadModel
    from bayplan.planner.solve.chain import Chain

CHECKPOINT = "checkpoint"
"""Stands for the checkpoint's own data types or scheme where formats are listed."""

_STEPS = 2
"""Of estimating, for progress: reading the model, and the rest."""


class EstimateKeywords(TypedDict, total=False):
    """Keywords of `estimate`: the fields of `EstimateOptions`."""

    dtypes: tuple[str, ...]
    batch: int
    context: int | None
    encoder_context: int | None
    class_name: str | None
    library: str | None
    lora: str | None
    fits: Inventory | None
    variant: str | None
    trust_remote_code: bool
    checkpoint: str | Path | None
    use_cache: bool


def estimate(model: str | Path, **options: Unpack[EstimateKeywords]) -> Estimate:
    """Return how big `model` is in memory, format by format.

    Args:
        model: Local folder, config file, Hub id with or without `@revision`, or `package.module:factory`.
        **options: As the fields of `bayplan.planner.estimate.options.EstimateOptions`.

    Raises:
        UsageError: An option is malformed.
        BayplanError: The model cannot be read.
    """
    return make_estimate(str(model), from_keywords(EstimateOptions, options))


def make_estimate(model: str, options: EstimateOptions, progress: Progress | None = None) -> Estimate:
    """Return how big `model` is.

    Args:
        model: As for `estimate`.
        options: What was asked.
        progress: Told of reading.

    Raises:
        UsageError: An option is malformed.
        BayplanError: The model cannot be read.
    """
    names = parse_formats(options.dtypes)
    lora = None if options.lora is None else parse_lora(options.lora)
    tell = progress if progress is not None else untold
    tell("estimate", 0, _STEPS)
    traces = Traces(model, options, progress)
    read = traces.own()
    tell("estimate", 1, _STEPS)
    forms = Forms(read)
    graph = read.graph
    training: tuple[TrainingEstimate, ...] = full_recipes(forms.graph("fp32"), forms.graph("bf16"))
    if lora is not None:
        training += lora_recipes(graph, forms.graph("bf16"), forms.graph("nf4"), lora)
    is_other_asked = bool(options.dtypes) or options.fits is not None
    fits = _fits(forms, traces, names, options.fits) if options.fits is not None and graph.traced else None
    found = Estimate(
        model=read.model.source or model,
        revision=read.model.revision,
        class_name=graph.class_name,
        library=read.model.library,
        params=graph.num_params,
        dtype=read.dtype,
        scheme=None if read.scheme is None else read.scheme.describe(),
        batch=read.workload.batch,
        context=read.workload.context,
        has_positions=read.has_positions,
        encoder_context=read.workload.encoder_context,
        formats=forms.rows(names),
        checkpoint=forms.checkpoint_row(),
        tied=tuple(tie.fqns for tie in graph.ties),
        kv_bytes=kv_bytes(graph) if graph.traced else None,
        activation_bytes=activation_bytes(graph) if graph.traced else None,
        inference=_inference(forms, traces, names, is_other_asked=is_other_asked) if graph.traced else {},
        training=training,
        fits=fits,
        warnings=(*read.warnings, *_unknown(traces, names, options)),
    )
    tell("estimate", _STEPS, _STEPS)
    return found


def _inference(
    forms: Forms, traces: Traces, names: tuple[str, ...], *, is_other_asked: bool
) -> dict[str, InferenceEstimate]:
    """Return what running takes in each format that weights are really held in."""
    found = {}
    for name in names:
        is_shown = traces.can_read(name) if is_other_asked else traces.is_own_width(name)
        if name not in DIVISORS and is_shown:
            read = traces.reading(name)
            weights = total_bytes(forms.graph(name))
            dtype = traces.compute_dtype(name)
            found[name] = inference_estimate(weights, read.graph, dtype, _block_forms(read, name))
    own = forms.checkpoint_graph
    if own is not None:
        read = traces.own()
        blocks = _block_forms(read, CHECKPOINT)
        found[CHECKPOINT] = inference_estimate(total_bytes(own), read.graph, read.dtype, blocks)
    return found


def _block_forms(read: ReadModel, name: str) -> list[BlockForm]:
    """Return, per block, what it takes in a format."""
    return [own[0] for own in block_forms(_planned(read, name), read.workload)]


def _unknown(traces: Traces, names: tuple[str, ...], options: EstimateOptions) -> Iterator[str]:
    """Yield what was asked for and cannot be told, and why."""
    if not traces.own().graph.traced:
        if options.fits is not None:
            yield "what fits is not known: no forward could be traced"
    elif options.dtypes or options.fits is not None:
        unread = [name for name in names if name not in DIVISORS and not traces.can_read(name)]
        if unread:
            yield f"inference in {', '.join(unread)} is not known: a factory chooses its own data type"


def _fits(forms: Forms, traces: Traces, names: tuple[str, ...], inventory: Inventory) -> Fits:
    """Return where the model fits in each format, the checkpoint's own last."""
    fitter = Fitter(inventory)
    read = traces.own()
    ladder = context_ladder(read.workload.context, read.graph.max_context)

    def fit(name: str) -> FormatFit | None:
        @cache
        def chain_at(context: int) -> Chain:
            own = traces.reading(name, context)
            return model_chain(own, _planned(own, name), inventory)

        return fitter.fit(ladder, chain_at)

    formats = {name: None if name in DIVISORS or not traces.can_read(name) else fit(name) for name in names}
    if forms.checkpoint_graph is not None:
        formats[CHECKPOINT] = fit(CHECKPOINT)
    return Fits(devices=fit_devices(inventory), formats=formats)


def _planned(read: ReadModel, name: str) -> PlannedForms:
    # Data types of one width take the same, so that a model is read in one of them.
    own = read.dtype if name in FLOATS else name
    return planned_forms(read, parse_request(None if name == CHECKPOINT else own))
