"""From a model's name to everything that the planner knows of it: graph, identity, names, workload.

Reader: builds the model on meta and hands on plain structs. Never opens a tensor's bytes.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import cast

import msgspec
import torch
import transformers

from bayplan.planner.format_choice import parse_request
from bayplan.planner.model.facts import Obstacle, ReadModel
from bayplan.planner.model.fit import Fit, fit_checkpoint
from bayplan.planner.model.library import Library
from bayplan.planner.model.library_inputs import LibraryInputs
from bayplan.planner.model.library_model import build_library_model
from bayplan.planner.model.listing import listing_warnings
from bayplan.planner.model.scheme import model_scheme
from bayplan.planner.model.source import ModelSource, open_source
from bayplan.planner.model.trace import trace_model
from bayplan.planner.model.workload import make_workload
from bayplan.planner.name_rules import folded_names
from bayplan.planner.options import PlanOptions
from bayplan.planner.stored_form import FLOATS
from bayplan.schemas.errors import UsageError, first_names
from bayplan.schemas.graph import ModelGraph
from bayplan.schemas.plan import Checkpoint, Model
from bayplan.schemas.progress import Progress
from bayplan.schemas.quantization import Scheme
from bayplan.schemas.quantization_values import QuantizationError
from bayplan.schemas.types import FloatFormat, Reason
from bayplan.skeleton.build import build_factory, build_model
from bayplan.skeleton.config import choose_class, choose_dtype, load_config, quantization_method
from bayplan.skeleton.config_file import ForeignCode, ModelError
from bayplan.skeleton.formats import short_dtype, torch_dtype
from bayplan.skeleton.kept import kept_in_fp32, unquantized_weights
from bayplan.skeleton.offline import without_hub

_OF_POSITIONS = frozenset({"decoder_input_ids", "input_features", "input_ids", "input_values"})
"""Arguments whose length is the context, or part of it."""
_SHOWN = 5
_NOT_KNOWN = "what the checkpoint itself takes is not known; all else is counted from the model's own shapes"


class _Built(msgspec.Struct, frozen=True, kw_only=True):
    module: torch.nn.Module
    config: transformers.PretrainedConfig | None
    dtype: FloatFormat
    version: str
    """Of the library that made the module."""
    inputs: LibraryInputs | None = None
    warnings: tuple[str, ...] = ()
    in_bf16: torch.nn.Module | None = None
    """The same once more: in an fp32 model, what is in fp32 whatever the rest is in looks like the rest."""

    @property
    def quantization(self) -> str | None:
        """How the config says that the weights are quantized."""
        return None if self.config is None else quantization_method(self.config)


def read_model(name: str, options: PlanOptions, progress: Progress | None = None) -> ReadModel:
    """Return what the planner needs of the model `name`.

    Args:
        name: Local folder, config file, Hub id with or without `@revision`, or `package.module:factory`.
        options: Class, format, workload and how to read the source.
        progress: Told of hashing.

    Raises:
        BayplanError: The source cannot be read, the class not be built, or the checkpoint does not fit it.
    """
    return read_source(open_source(name, options, progress), options)


def read_source(source: ModelSource, options: PlanOptions) -> ReadModel:
    """Return what the planner needs of a model whose config and headers are found.

    Args:
        source: From `open_source`, with the same options.
        options: Class, format and workload.

    Raises:
        BayplanError: The class cannot be built, or the checkpoint does not fit it.
    """
    with _own_code(source, options):
        built = _build(source, options)
    workload, warnings = make_workload(
        built.module.config if isinstance(built.module, transformers.PreTrainedModel) else None,
        batch=options.batch,
        context=options.context,
        encoder_context=options.encoder_context,
        prefill_chunk=options.prefill_chunk,
        dtype=built.dtype,
    )
    # What a config chooses may be fetched as late as in a forward: kernels for experts are.
    with _own_code(source, options) if options.trust_remote_code else without_hub():
        traced = trace_model(built.module, workload, no_split=options.no_split, inputs=built.inputs)
    graph = msgspec.structs.replace(
        traced,
        kept_fp32=kept_in_fp32(built.module, built.in_bf16),
        unquantized=unquantized_weights(built.module),
    )
    scheme, obstacle = _scheme(source, built)
    is_quantized = built.quantization is not None
    fit = fit_checkpoint(
        source, built.module, graph, is_quantized=is_quantized, is_scheme_known=obstacle is None
    )
    obstacle = obstacle or fit.obstacle
    warnings = (*source.warnings, *warnings, *built.warnings)
    if source.listing is not None and not is_quantized:
        warnings = (*warnings, *listing_warnings(source.listing, built.module))
    if not graph.traced:
        warnings = (*warnings, f"the order of blocks is the module tree's: {graph.trace_note}")
    warnings = (*warnings, *_uncalled_warnings(graph))
    if obstacle is not None:
        warnings = (*warnings, f"cannot be planned for: {obstacle.error()}")
    if is_quantized and scheme is None and fit.stored is None:
        warnings = (*warnings, _NOT_KNOWN)
    return ReadModel(
        graph=graph,
        model=_identity(source, built, graph, options, fit),
        workload=workload,
        dtype=built.dtype,
        sources=fit.sources,
        scratch_bytes=fit.scratch_bytes,
        warnings=(*warnings, *fit.warnings),
        scheme=scheme,
        stored=None if fit.stored is None else fit.stored.blocks,
        stored_dtypes={} if fit.stored is None else fit.stored.dtypes,
        has_positions=_has_positions(source, built.module),
        obstacle=obstacle,
    )


def _own_code(source: ModelSource, options: PlanOptions) -> contextlib.AbstractContextManager[None]:
    """Return within what code runs that may have come with the checkpoint: it may raise anything."""
    if not options.trust_remote_code:
        return contextlib.nullcontext()
    return ForeignCode("the code that comes with the checkpoint fails", source.label)


def _has_positions(source: ModelSource, module: torch.nn.Module) -> bool:
    """Return whether a model takes text or sound; images alone have one size, whatever the context."""
    if not isinstance(module, transformers.PreTrainedModel):
        return source.library is Library.TORCH
    arguments = inspect.signature(module.forward).parameters
    return not module.main_input_name.startswith("pixel_values") or not _OF_POSITIONS.isdisjoint(arguments)


def _scheme(source: ModelSource, built: _Built) -> tuple[Scheme | None, Obstacle | None]:
    """Return how the checkpoint is quantized, or why that cannot be told."""
    if built.config is None:
        return None, None
    try:
        return model_scheme(built.config, built.module, dtype=built.dtype, where=source.label), None
    except QuantizationError as error:
        return None, Obstacle.of(error)


def _build(source: ModelSource, options: PlanOptions) -> _Built:
    asked = parse_request(options.format, options.format_config).plain
    if source.factory is not None:
        if options.format is not None:
            raise UsageError("a factory chooses its own data types", where="--format")
        module = build_factory(source.factory)
        version = torch.__version__.partition("+")[0]
        return _Built(module=module, config=None, dtype=_own_dtype(module, source.factory), version=version)
    if source.library is not Library.TRANSFORMERS:
        made = build_library_model(source, options, _asked_dtype(asked))
        return _Built(
            module=made.module,
            config=None,
            dtype=_float_format(made.dtype),
            version=made.version,
            inputs=made.inputs,
        )
    assert source.config_path is not None, "only a factory has no config"
    config = load_config(source.config_path, trust_remote_code=options.trust_remote_code)
    folder = source.config_path.parent
    model_class = choose_class(
        config, name=options.class_name, folder=folder, trust_remote_code=options.trust_remote_code
    )
    dtype, warnings = _choose_dtype(source, config, asked)

    def build(dtype: torch.dtype) -> torch.nn.Module:
        return build_model(
            config, model_class, dtype, folder=folder, trust_remote_code=options.trust_remote_code
        )

    return _Built(
        module=build(dtype),
        config=config,
        dtype=_float_format(dtype),
        version=transformers.__version__,
        warnings=warnings,
        in_bf16=build(torch.bfloat16) if dtype is torch.float32 else None,
    )


def _asked_dtype(asked: FloatFormat | None) -> torch.dtype | None:
    """Return the plain data type that is asked for; None: none is."""
    return None if asked is None else torch_dtype(asked)


def _choose_dtype(
    source: ModelSource, config: transformers.PretrainedConfig, asked: FloatFormat | None
) -> tuple[torch.dtype, tuple[str, ...]]:
    """Return the data type to build in: that of what is not quantized, and of all products."""
    dtype = _asked_dtype(asked)
    if dtype is not None:
        return dtype, ()
    is_quantized = quantization_method(config) is not None
    if is_quantized and config.dtype is None and not source.headers:
        return torch.bfloat16, (
            "computed in bf16: the config names no data type, and quantized weights are made from that one",
        )
    return choose_dtype(config, source.first_shard_dtypes()), ()


def _float_format(dtype: torch.dtype) -> FloatFormat:
    name = short_dtype(dtype)
    assert name in FLOATS, f"no model is built in {name}"
    return cast(FloatFormat, name)


def _own_dtype(module: torch.nn.Module, where: str) -> FloatFormat:
    dtypes = [parameter.dtype for parameter in module.parameters() if parameter.dtype.is_floating_point]
    # What is narrower is only stored: the first that products are made in counts.
    names = list(dict.fromkeys(map(short_dtype, dtypes)))
    found = next((name for name in names if name in FLOATS), None)
    if names and found is None:
        raise ModelError(
            "the factory's module has no parameter in a data type that a model computes in",
            where=where,
            got=", ".join(names),
            needed=f"one in any of {', '.join(sorted(FLOATS))}",
        )
    return cast(FloatFormat, found or "fp32")


def _identity(
    source: ModelSource,
    built: _Built,
    graph: ModelGraph,
    options: PlanOptions,
    fit: Fit,
) -> Model:
    return Model(
        source=source.source,
        revision=source.revision,
        class_name=graph.class_name,
        library=source.library.value,
        library_version=built.version,
        trust_remote_code=options.trust_remote_code,
        config_digest=source.config_digest,
        attn_implementation=_implementation(built.module, "_attn_implementation"),
        experts_implementation=_implementation(built.module, "_experts_implementation"),
        dtype=built.dtype,
        quantization=built.quantization,
        tree_digest=graph.tree_digest,
        num_params=graph.num_params,
        generates=graph.generates,
        traced=graph.traced,
        trace_note=graph.trace_note,
        checkpoint=Checkpoint(shards=source.shards, unused=folded_names(fit.unused))
        if source.shards
        else None,
    )


def _implementation(module: torch.nn.Module, attribute: str) -> str | None:
    value = getattr(getattr(module, "config", None), attribute, None)
    return value if isinstance(value, str) else None


def _uncalled_warnings(graph: ModelGraph) -> tuple[str, ...]:
    """Say which parts no forward called, such as a tower whose inputs are not known."""
    ids = [block.id for block in graph.blocks if block.resident_reason is Reason.NOT_CALLED]
    if not ids:
        return ()
    shown = first_names(ids, _SHOWN)
    return (f"work and activations of blocks that no traced forward called are not counted: {shown}",)
