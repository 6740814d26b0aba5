"""From a model's name to everything that the planner knows of it: graph, identity, names, workload.

Reader: builds the model on meta and hands on plain structs. Never opens a tensor's bytes.
"""

from __future__ import annotations

import msgspec
import torch
import transformers

from bayplan.planner.model.source import ModelSource, Progress, open_source
from bayplan.planner.model.trace import trace_model
from bayplan.planner.model.workload import make_workload
from bayplan.planner.name_rules import folded_names
from bayplan.planner.options import PlanOptions
from bayplan.schemas.errors import BayplanError, UsageError
from bayplan.schemas.graph import ModelGraph
from bayplan.schemas.plan import CAST_SCRATCH_BYTES, GAP_SCRATCH_BYTES, Checkpoint, Model, Workload
from bayplan.schemas.types import FloatFormat, Fqn
from bayplan.skeleton.build import build_factory, build_model
from bayplan.skeleton.checkpoint_names import CheckpointNames, match_names
from bayplan.skeleton.config import choose_class, choose_dtype, load_config, quantization_method
from bayplan.skeleton.formats import short_dtype, torch_dtype

FORMATS: dict[str, FloatFormat] = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp64": "fp64"}
"""Formats that a user may ask for."""

_SHOWN = 5


class ReadModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as planned for."""

    graph: ModelGraph
    model: Model
    workload: Workload
    dtype: FloatFormat
    sources: dict[Fqn, str]
    """Tensor of the model -> its name in the checkpoint; empty without headers."""
    scratch_bytes: int
    warnings: tuple[str, ...]


class _Built(msgspec.Struct, frozen=True, kw_only=True):
    module: torch.nn.Module
    config: transformers.PretrainedConfig | None
    dtype: FloatFormat


def read_model(name: str, options: PlanOptions, progress: Progress | None = None) -> ReadModel:
    """Return what the planner needs of the model `name`.

    Args:
        name: Local folder, config file, Hub id with or without `@revision`, or `package.module:factory`.
        options: Class, format, workload and how to read the source.
        progress: Told of hashing.

    Raises:
        BayplanError: The source cannot be read, the class not be built, or the checkpoint does not fit it.
    """
    source = open_source(name, options, progress)
    built = _build(source, options)
    workload, warnings = make_workload(
        built.config,
        batch=options.batch,
        context=options.context,
        encoder_context=options.encoder_context,
        prefill_chunk=options.prefill_chunk,
        dtype=built.dtype,
    )
    graph = trace_model(built.module, workload, no_split=options.no_split)
    names = _match(source, built.module)
    if built.config is not None and quantization_method(built.config) is not None:
        method = quantization_method(built.config)
        warnings = (
            *warnings,
            f"planned in {built.dtype}: the config's own quantization ({method}) is not read",
        )
    if not graph.traced:
        warnings = (*warnings, f"the order of blocks is the module tree's: {graph.trace_note}")
    return ReadModel(
        graph=graph,
        model=_identity(source, built, graph, options, names),
        workload=workload,
        dtype=built.dtype,
        sources={target: found[0] for target, found in names.sources.items()} if names else {},
        scratch_bytes=_scratch_bytes(source, graph, names),
        warnings=(*warnings, *_name_warnings(names)),
    )


def _build(source: ModelSource, options: PlanOptions) -> _Built:
    if options.format is not None and options.format not in FORMATS:
        raise UsageError(
            "unknown format",
            where="--format",
            got=repr(options.format),
            needed=f"one of {', '.join(FORMATS)}",
        )
    if source.factory is not None:
        if options.format is not None:
            raise UsageError("a factory chooses its own data types", where="--format")
        module = build_factory(source.factory)
        return _Built(module=module, config=None, dtype=_own_dtype(module))
    assert source.config_path is not None, "only a factory has no config"
    config = load_config(source.config_path, trust_remote_code=options.trust_remote_code)
    folder = source.config_path.parent
    model_class = choose_class(
        config, name=options.class_name, folder=folder, trust_remote_code=options.trust_remote_code
    )
    dtype = (
        torch_dtype(FORMATS[options.format])
        if options.format is not None
        else choose_dtype(config, source.first_shard_dtypes())
    )
    method = quantization_method(config)
    if method is not None and source.headers:
        raise BayplanError(
            "the checkpoint is quantized, which this version does not read",
            where=source.label,
            got=f"quantization method {method}",
            needed="weights in floating point",
            hint="plan for the unquantized checkpoint of the same model",
        )
    module = build_model(
        config, model_class, dtype, folder=folder, trust_remote_code=options.trust_remote_code
    )
    return _Built(module=module, config=config, dtype=_float_format(dtype))


def _float_format(dtype: torch.dtype) -> FloatFormat:
    formats: dict[str, FloatFormat] = {**FORMATS, "fp64": "fp64"}
    return formats[short_dtype(dtype)]


def _own_dtype(module: torch.nn.Module) -> FloatFormat:
    dtypes = [parameter.dtype for parameter in module.parameters() if parameter.dtype.is_floating_point]
    return _float_format(dtypes[0]) if dtypes else "fp32"


def _match(source: ModelSource, module: torch.nn.Module) -> CheckpointNames | None:
    """Return how the checkpoint's names and shapes meet the model's, or None without headers."""
    if not source.headers:
        return None
    entries = {entry.fqn: entry for header in source.headers.values() for entry in header.tensors}
    names = match_names(module, entries)
    if names.missing:
        shown = ", ".join(names.missing[:_SHOWN]) + (", ..." if len(names.missing) > _SHOWN else "")
        raise BayplanError(
            "the checkpoint lacks parameters of the model",
            where=source.label,
            got=f"no tensor for {len(names.missing)} of them: {shown}",
            needed=f"every parameter of {type(module).__name__}",
            hint="another --class may fit, or a file is missing; what the class would compute itself,"
            " such as sinusoidal positions, must be in the checkpoint for this version",
        )
    state = module.state_dict(keep_vars=True)
    misfits = []
    for target, (name, *_) in names.sources.items():
        wanted, found = state[target], entries[name]
        if tuple(found.shape) != tuple(wanted.shape) or not _is_castable(found.dtype, wanted.dtype):
            misfits.append(
                f"{name} is {found.dtype} {list(found.shape)},"
                f" {target} needs {short_dtype(wanted.dtype)} {list(wanted.shape)}"
            )
    if misfits:
        raise BayplanError(
            "tensors of the checkpoint do not fit the model",
            where=source.label,
            got="; ".join(misfits[:_SHOWN]) + (f"; {len(misfits)} in all" if len(misfits) > _SHOWN else ""),
            hint="the config belongs to another checkpoint, or a shard does",
        )
    return names


def _is_castable(stored: str, wanted: torch.dtype) -> bool:
    """Return whether the executor can make one data type of the other: only precision may be lost."""
    found = torch_dtype(stored)
    return found == wanted or (found.is_floating_point and wanted.is_floating_point)


def _identity(
    source: ModelSource,
    built: _Built,
    graph: ModelGraph,
    options: PlanOptions,
    names: CheckpointNames | None,
) -> Model:
    is_transformers = built.config is not None
    unused = (*names.unexpected, *names.ignored) if names is not None else ()
    return Model(
        source=source.source,
        revision=source.revision,
        class_name=graph.class_name,
        library="transformers" if is_transformers else "torch",
        library_version=transformers.__version__ if is_transformers else torch.__version__.partition("+")[0],
        trust_remote_code=options.trust_remote_code,
        config_digest=source.config_digest,
        attn_implementation=_implementation(built.module, "_attn_implementation"),
        experts_implementation=_implementation(built.module, "_experts_implementation"),
        dtype=built.dtype,
        tree_digest=graph.tree_digest,
        num_params=graph.num_params,
        generates=graph.generates,
        traced=graph.traced,
        trace_note=graph.trace_note,
        checkpoint=Checkpoint(shards=source.shards, unused=folded_names(unused)) if source.shards else None,
    )


def _implementation(module: torch.nn.Module, attribute: str) -> str | None:
    value = getattr(getattr(module, "config", None), attribute, None)
    return value if isinstance(value, str) else None


def _scratch_bytes(source: ModelSource, graph: ModelGraph, names: CheckpointNames | None) -> int:
    """Return the reader's scratch; without headers a cast must be reckoned with."""
    if names is None:
        return GAP_SCRATCH_BYTES + CAST_SCRATCH_BYTES
    stored = {entry.fqn: entry.dtype for header in source.headers.values() for entry in header.tensors}
    bound = {tensor.fqn: tensor.dtype for block in graph.blocks for tensor in block.tensors}
    casts = any(
        fqn in names.sources and stored[names.sources[fqn][0]] != dtype for fqn, dtype in bound.items()
    )
    return GAP_SCRATCH_BYTES + (CAST_SCRATCH_BYTES if casts else 0)


def _name_warnings(names: CheckpointNames | None) -> tuple[str, ...]:
    """Return what the plan itself does not say; tensors without a place are in it."""
    if names is None or not names.default_buffers:
        return ()
    return (f"computed, since the checkpoint lacks them: {', '.join(names.default_buffers[:_SHOWN])}",)
