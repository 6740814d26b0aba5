"""A model of timm or diffusers, built for planning: its module, data type and inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec
import torch

from bayplan.planner.model.library import Library
from bayplan.planner.model.library_inputs import LibraryInputs, diffusers_inputs, timm_inputs
from bayplan.schemas.errors import UsageError
from bayplan.skeleton.config_file import ModelError
from bayplan.skeleton.diffusers_library import build_diffusers, diffusers_version
from bayplan.skeleton.formats import torch_dtype
from bayplan.skeleton.timm_library import build_timm_config, build_timm_name, timm_version

if TYPE_CHECKING:
    from bayplan.planner.model.source import ModelSource
    from bayplan.planner.options import PlanOptions


class LibraryModel(msgspec.Struct, frozen=True, kw_only=True):
    """A module that another library than transformers made."""

    module: torch.nn.Module
    dtype: torch.dtype
    version: str
    """Of the library."""
    inputs: LibraryInputs | None


def build_library_model(source: ModelSource, options: PlanOptions, dtype: torch.dtype | None) -> LibraryModel:
    """Return the model of a source whose library is timm or diffusers.

    Args:
        source: From `find_source`.
        options: `class_name` must not be given: the config is the class's.
        dtype: None: that of the checkpoint's first floating-point tensor, or fp32 without one.

    Raises:
        UsageError: A class is asked for.
        ModelError: A model of diffusers has no config.
        ModelError: As `build_timm_config`, `build_timm_name` and `build_diffusers`.
    """
    if options.class_name is not None:
        raise UsageError(
            f"a model of {source.library} has one class",
            where="--class",
            got=options.class_name,
            hint="leave the option out",
        )
    dtype = dtype if dtype is not None else _stored_dtype(source)
    match source.library:
        case Library.TIMM:
            module = _build_timm(source, dtype)
            return LibraryModel(
                module=module, dtype=dtype, version=timm_version(), inputs=timm_inputs(module)
            )
        case Library.DIFFUSERS:
            assert source.config_path is not None, "only timm knows models by name"
            module = build_diffusers(source.config_path, dtype)
            return LibraryModel(
                module=module, dtype=dtype, version=diffusers_version(), inputs=diffusers_inputs(module)
            )
        case Library.TRANSFORMERS | Library.TORCH:
            raise AssertionError("transformers' models and factories are built elsewhere")
    assert_never(source.library)


def _build_timm(source: ModelSource, dtype: torch.dtype) -> torch.nn.Module:
    if source.library_name is not None:
        return build_timm_name(source.library_name, dtype)
    if source.config_path is None:
        raise ModelError("a model of timm needs a config or a name", where=source.label)
    return build_timm_config(source.config_path, dtype)


def _stored_dtype(source: ModelSource) -> torch.dtype:
    for _, name in sorted((source.first_shard_dtypes() or {}).items()):
        dtype = torch_dtype(name)
        if dtype in (torch.float32, torch.bfloat16, torch.float16):
            return dtype
    return torch.float32
