"""The one module that touches transformers' internals, so that a new release of it is met in one place.

Owns: a config read without the network, a model built as `from_pretrained` builds it before it loads,
transformers' own initialization of buffers, its dtypes for single parameters, its ties, its renamings of
checkpoint names, its table of functions of experts, and its class tables. Knows nothing of folders' contents
beyond what it is asked to hand on.
Written for transformers 5.20 to 5.24.
"""

from __future__ import annotations

import contextlib
import copy
import re
import threading
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from transformers import AutoConfig, PreTrainedModel, backbone_utils
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    build_glob_alternation,
    dot_natural_key,
    rename_source_key,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.integrations.hub_kernels import is_kernel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.models.auto import modeling_auto
from transformers.models.auto.auto_factory import _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.monkey_patching import patch_output_recorders
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from bayplan.skeleton.offline import without_hub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import ModuleType

    from transformers import PretrainedConfig

# Building a model changes the default dtype and class attributes of the whole process.
_BUILD_LOCK = threading.RLock()


def is_known_model_type(model_type: str) -> bool:
    """Return whether the installed transformers has a config class of that type."""
    return model_type in CONFIG_MAPPING


class BackboneOfHubError(ValueError):
    """A config names a backbone whose own config only the Hub has."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _NoHub:
    """Answers what configs ask the Hub for, without it."""

    def repo_exists(self, name: str) -> bool:
        """Say that a name without an owner is timm's, as those of all its models are.

        Raises:
            BackboneOfHubError: The name has an owner.
        """
        if "/" in name:
            raise BackboneOfHubError(name)
        return False


def read_config(path: Path, *, trust_remote_code: bool) -> PretrainedConfig:
    """Return the config of a folder or file as the auto class reads it, without the network.

    Args:
        path: A folder, or a config file of another name than `config.json`.
        trust_remote_code: Run the config class that the folder itself brings.

    Raises:
        BackboneOfHubError: A part of it is on the Hub.
        Exception: What transformers or the checkpoint's own class raises.
    """
    with _BUILD_LOCK, contextlib.ExitStack() as stack:
        stack.enter_context(without_hub())
        stack.enter_context(_replaced(backbone_utils, "hf_api", _NoHub))
        found = AutoConfig.from_pretrained(
            str(path), trust_remote_code=trust_remote_code, local_files_only=True
        )
    return cast("PretrainedConfig", found)


@contextlib.contextmanager
def _replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


def has_registered_classes() -> bool:
    """Return whether somebody registered a config or model class that transformers does not bring itself."""
    tables = [table for table in vars(modeling_auto).values() if isinstance(table, _LazyAutoMapping)]
    return bool(CONFIG_MAPPING._extra_content) or any(table._extra_content for table in tables)


def classes_for(config: PretrainedConfig) -> tuple[type[PreTrainedModel], ...]:
    """Return the classes that transformers' auto classes know for a config, sorted by name."""
    found: dict[str, type[PreTrainedModel]] = {}
    for table in vars(modeling_auto).values():
        if isinstance(table, _LazyAutoMapping) and type(config) in table:
            try:
                entry = table[type(config)]
            except ValueError:  # the table names a class that this transformers does not have
                continue
            for candidate in entry if isinstance(entry, tuple) else (entry,):
                if candidate is not None:
                    found[candidate.__name__] = candidate
    return tuple(found[name] for name in sorted(found))


def remote_class(config: PretrainedConfig, name: str, folder: Path) -> type[PreTrainedModel] | None:
    """Run the checkpoint's own code and return its class of that name; None where `auto_map` has none.

    The caller has made sure that the user trusts the code.
    """
    auto_map = getattr(config, "auto_map", None)
    for reference in auto_map.values() if isinstance(auto_map, dict) else ():
        if isinstance(reference, str) and reference.rpartition(".")[2] == name:
            found = cast(
                "type[PreTrainedModel]",
                get_class_from_dynamic_module(reference, str(folder), local_files_only=True),
            )
            found.register_for_auto_class()  # type: ignore[no-untyped-call]  # as the auto classes do
            return found
    return None


def hub_kernels(config: PretrainedConfig) -> tuple[str, ...]:
    """Return the kernels of the Hub that a config asks for, sorted; building the model runs them."""
    parts = [getattr(config, name, None) for name in config.sub_configs]
    found = {kernel for part in parts if part is not None for kernel in hub_kernels(part)}
    own = config._attn_implementation
    if isinstance(own, str) and is_kernel(own.removeprefix("paged|")):
        found.add(own)
    return tuple(sorted(found))


def instantiate(
    model_class: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype
) -> PreTrainedModel:
    """Return a new model, built in the contexts of `from_pretrained` but for the device, not yet tied.

    To be called while an empty build is open; without one it allocates all weights.

    Args:
        model_class: The class to build.
        config: Copied, as its dtype is set.
        dtype: The default dtype while the constructor runs; must be floating point.

    Returns:
        The model in eval mode. Its parameters have the dtypes that `from_pretrained` gives them, and nothing
        is initialized but what the constructors themselves do.
    """
    config = copy.deepcopy(config)
    config.dtype = dtype
    for name in config.sub_configs:
        if (sub_config := getattr(config, name)) is not None:
            sub_config.dtype = dtype
    with _BUILD_LOCK, contextlib.ExitStack() as stack:
        for context in model_class.get_init_context(dtype, False, False, False):
            if not isinstance(context, torch.device):  # meta for everything would lose the buffers' values
                stack.enter_context(context)
        stack.enter_context(_no_initialization())
        model = model_class(config)
        patch_output_recorders(model)
    _apply_dtype_plan(model, dtype)
    model.set_use_kernels(False)
    model.train(mode=False)
    return model


@contextlib.contextmanager
def _no_initialization() -> Iterator[None]:
    """Make the initialization at the end of a constructor a no-op: there are no weights to initialize."""
    original = PreTrainedModel.initialize_weights
    PreTrainedModel.initialize_weights = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        PreTrainedModel.initialize_weights = original  # type: ignore[method-assign]


def _apply_dtype_plan(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Set the dtype of parameters that the class keeps in fp32; the others have theirs already."""
    state = model.state_dict(keep_vars=True)
    for fqn, own in planned_dtypes(model, dtype).items():
        state[fqn].data = state[fqn].data.to(own)


def planned_dtypes(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the parameters and persistent buffers that the class keeps in another dtype than `dtype`."""
    plan = cast("dict[str, torch.dtype]", model._get_dtype_plan(dtype))
    if not plan:
        return {}
    pattern, glob_by_group, _ = build_glob_alternation(list(plan))
    found = {}
    for fqn in model.state_dict(keep_vars=True):
        match = pattern.search(fqn)
        if match is not None and match.lastgroup is not None:
            found[fqn] = plan[glob_by_group[match.lastgroup]]
    return found


def default_skips(model: PreTrainedModel) -> Callable[[str], bool]:
    """Return what says of a module's path whether quantizers leave the module unless told otherwise."""
    patterns = HfQuantizer.get_modules_to_not_convert(model, None, list(model._keep_in_fp32_modules or ()))
    return lambda module: not should_convert_module(module, patterns)


def own_skips(model: PreTrainedModel, method: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that a quantized checkpoint leaves, by the names of this transformers.

    Args:
        model: Any of the class.
        method: Of quantization: transformers renames the modules of `fp8` only.
        names: As in the checkpoint's config.
    """
    renamed = list(names)
    if method == "fp8":
        transforms = get_model_conversion_mapping(model)
        for index, name in enumerate(names):
            key = f"{name}."  # renamings are written for names of tensors
            for transform in transforms:
                key, _ = transform.rename_source_key(key)
            renamed[index] = key.removesuffix(".")
    if method not in ("compressed-tensors", "gptq"):  # these have lists of their own
        renamed.extend(sorted(model._keep_in_fp32_modules or ()))
    return tuple(renamed)


def initialize_buffers(model: PreTrainedModel) -> None:
    """Run transformers' own initialization on all buffers, as `from_pretrained` does after loading."""
    for param in model.parameters():
        param._is_hf_initialized = True  # type: ignore[attr-defined]  # keeps the initialization off
    with _BUILD_LOCK:  # it exchanges functions of torch.nn.init
        model.initialize_weights()  # type: ignore[no-untyped-call]


def tie(model: PreTrainedModel) -> None:
    """Tie the weights that the config says are tied."""
    model.tie_weights(recompute_mapping=False)


def adopt_generation_config(model: PreTrainedModel, folder: Path, *, trust_remote_code: bool) -> None:
    """Give a generating model the generation config of its folder, or the one that `config.json` implies."""
    if not any((folder / name).is_file() for name in ("generation_config.json", "config.json")):
        return  # The config has another name; the model has what it implies already.
    if model.can_generate() and hasattr(model, "adjust_generation_fn"):
        adjust = cast("Callable[..., None]", model.adjust_generation_fn)
        adjust(
            None,
            False,
            False,
            str(folder),
            cache_dir=None,
            force_download=False,
            proxies=None,
            local_files_only=True,
            token=None,
            revision=None,
            subfolder="",
            trust_remote_code=trust_remote_code,
        )


_EXPERT = re.compile(r"\.experts\.([0-9]+)\.")
_SAME_EXPERT = ".experts.0."


class RenamedTensor(NamedTuple):
    """A tensor of the checkpoint and the name that it has in the model."""

    source: str
    target: str
    """Name in the model; of several, the first."""
    operations: tuple[str, ...]
    """What else transformers does to it, such as `MergeModulelist(dim=0)`; empty if nothing."""


def renamed_tensors(model: PreTrainedModel, names: Iterable[str]) -> tuple[RenamedTensor, ...]:
    """Return what `from_pretrained` makes of each name of a checkpoint, in its order of loading."""
    transforms = get_model_conversion_mapping(model)
    renamings = [entry for entry in transforms if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in transforms if isinstance(entry, WeightConverter)]
    operations = {
        pattern: tuple(map(repr, converter.operations))
        for converter in converters
        for pattern in converter.source_patterns
    }
    prefix = model.base_model_prefix
    state = model.state_dict()

    def rename(source: str) -> tuple[str, str | None]:
        target, pattern = rename_source_key(source, renamings, converters, prefix, state)
        if target not in state and source in state:
            target, pattern = rename_source_key(
                source, [], [], base_model_prefix=prefix, meta_state_dict=state
            )
        return target, pattern

    # No renaming tells a layer's experts apart, and they have tens of thousands of tensors: one does for all.
    alike: dict[str, list[tuple[int, str]]] = {}
    for source in names:
        before, *expert = _EXPERT.split(source, maxsplit=1)
        first = f"{before}{_SAME_EXPERT}{expert[1]}" if expert else source
        alike.setdefault(first, []).append((int(expert[0]) if expert else 0, source))
    renamed = []
    # The order counts: some renamings switch on once they have seen a certain name.
    for first in sorted(alike, key=dot_natural_key):
        target, pattern = rename(first)
        for number, source in sorted(alike[first]):
            own = target.replace(_SAME_EXPERT, f".experts.{number}.") if source != first else target
            renamed.append(RenamedTensor(source, own, operations[pattern] if pattern is not None else ()))
    return tuple(renamed)


@contextlib.contextmanager
def complete_outputs() -> Iterator[None]:
    """Give the outputs of language models the field that wrappers around them read, within the context.

    Llama 4 of transformers 5.24 reads `image_outputs` of the output of a language model that has no such
    field, which ends every forward of it; None is what it means.
    """
    if hasattr(MoeCausalLMOutputWithPast, "image_outputs"):
        yield
        return
    setattr(MoeCausalLMOutputWithPast, "image_outputs", None)  # noqa: B010  # no field that mypy knows
    try:
        yield
    finally:
        delattr(MoeCausalLMOutputWithPast, "image_outputs")


def replaceable_experts(model: torch.nn.Module) -> tuple[torch.nn.Module, ...]:
    """Return the modules of experts whose function can be replaced, in order of registration.

    Such a module looks its function up in transformers' table, by the name in its config, at every call: what
    is entered there gets the module, the positions and their routes, and need not have all weights at hand.
    Classes that compute by themselves are not among them, such as those of Llama 4 and DBRX.
    """
    reached = _configs_reached(model)
    return tuple(
        module
        for module in model.modules()
        if id(getattr(module, "config", None)) in reached and _looks_up_experts(type(module).forward)
    )


def _configs_reached(model: torch.nn.Module) -> set[int]:
    """Return the ids of the configs that `set_experts_implementation` of a model changes."""
    if not isinstance(model, PreTrainedModel):
        return set()
    own = type(model.config)
    return {
        id(one.config)
        for one in model.modules()
        if isinstance(one, PreTrainedModel)
        and (one is model or type(one.config) is not own)
        and one._can_set_experts_implementation()
    }


def _looks_up_experts(forward: Callable[..., object]) -> bool:
    """Return whether `use_experts_implementation` made the function, for the table that all may add to."""
    code, cells = getattr(forward, "__code__", None), getattr(forward, "__closure__", None)
    if code is None or not cells:
        return False
    held = dict(zip(code.co_freevars, cells, strict=True))
    return "experts_interface" in held and held["experts_interface"].cell_contents is ALL_EXPERTS_FUNCTIONS


def ignored_names(model: PreTrainedModel) -> tuple[re.Pattern[str], ...]:
    """Return patterns of tensors that `from_pretrained` drops without a warning if the model lacks them."""
    patterns = set(model._keys_to_ignore_on_load_unexpected or ())
    buffers = [fqn for fqn, _ in model.named_buffers()]
    # Buffers that older versions saved, under other names
    if any(fqn.endswith("rotary_emb.inv_freq") for fqn in buffers):
        patterns.add(r"rotary_emb\.inv_freq")
    if any(fqn.endswith("position_ids") for fqn in buffers):
        patterns.add(r"(^|\.)position_ids$")
    return tuple(re.compile(pattern) for pattern in sorted(patterns))
