"""Reading `quantization_config`: what a checkpoint's config says of how its weights are quantized.

Owns the keys of each method, their defaults and the refusal of what is not known. What the answer means for
bytes is `quantization`'s and `format_bytes`'.

References:
    transformers 5.24 `utils/quantization_config.py`, compressed-tensors 0.20 `quantization/quant_config.py`
    and `quant_args.py`, gptqmodel 7.7 `quantization/config.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from bayplan.schemas.dtypes import DTYPE_BY_SPELLING
from bayplan.schemas.format_bytes import (
    USUAL_FP8_BLOCK,
    Awq,
    BlockFp4,
    BlockFp8,
    Bnb4Bit,
    Compressed,
    Gptq,
    LlmInt8,
    Mxfp4,
    WeightForm,
)
from bayplan.schemas.format_names import form_name
from bayplan.schemas.graph import TensorRole
from bayplan.schemas.quantization import EVERY_LINEAR, FP8_ROLES, Group, Matching, Scheme
from bayplan.schemas.quantization_values import QuantizationError, Values, method_of
from bayplan.schemas.strict_json import quote

_LINEAR = (TensorRole.LINEAR,)
_STORAGES = ("uint8", "int8", "bfloat16", "float16", "float32", "float64")
_MAX_BITS = 8
_DEFAULT_GROUP = 128


def read_scheme(config: Mapping[str, object], *, dtype: str, where: str) -> Scheme:
    """Return how a checkpoint is quantized.

    Args:
        config: The value of `quantization_config`.
        dtype: Short name of the data type that the model is built in; scales may have it.
        where: The model, for messages.

    Returns:
        The scheme, named after its method. Modules are named as in the config: where a class was renamed
        since, the caller renames them.

    Raises:
        QuantizationError: The method is unknown.
        QuantizationError: A value is missing, of the wrong kind, or none that this version knows.
    """
    method = method_of(config)
    read = _READERS.get(method)
    if read is None:
        raise QuantizationError(
            "the checkpoint is quantized by a method that this version does not know",
            where=where,
            got=quote(method),
            needed=f"one of {', '.join(_READERS)}",
            hint="the unquantized checkpoint of the same model can be read",
        )
    return read(Values(config, dtype, where))


def _read_fp8(values: Values) -> Scheme:
    shape: tuple[int, int] | None = USUAL_FP8_BLOCK
    if "weight_block_size" in values.config:
        is_whole = values.config["weight_block_size"] is None
        shape = None if is_whole else values.pair("weight_block_size")
    scale_dtype = {"float": "fp32", "ue8m0": "fp8_e8m0"}[
        values.choice("scale_fmt", ("float", "ue8m0"), default="float")
    ]
    scheme = values.choice("activation_scheme", ("dynamic", "static"), default="dynamic")
    form = BlockFp8(block_shape=shape, scale_dtype=scale_dtype, is_static=scheme == "static")
    groups = [Group(form=form, roles=FP8_ROLES)]
    if values.choice("expert_dtype", ("fp8", "fp4"), default="fp8") == "fp4":
        experts = BlockFp4(scale_dtype=scale_dtype, is_static=form.is_static)
        groups.insert(0, Group(form=experts, roles=(TensorRole.EXPERTS,)))
    if tables := values.names("modules_to_convert"):
        table = BlockFp8(block_shape=None)
        groups.append(Group(form=table, roles=(TensorRole.EMBEDDING,), names=tables))
    skipped = values.names("modules_to_not_convert")
    if skipped is None:
        skipped = values.names("ignored_layers")
    return Scheme(
        name="fp8", groups=tuple(groups), not_converted=skipped or (), keeps_default=skipped is None
    )


def _read_mxfp4(values: Values) -> Scheme:
    skipped = values.names("modules_to_not_convert")
    return Scheme(
        name="mxfp4",
        groups=(Group(form=Mxfp4(), roles=(TensorRole.EXPERTS,)),),
        not_converted=skipped or (),
        keeps_default=skipped is None,
    )


def _read_bitsandbytes(values: Values) -> Scheme:
    skipped = values.names("llm_int8_skip_modules")
    is_4bit = values.flag("load_in_4bit", default=False)
    if is_4bit == values.flag("load_in_8bit", default=False):
        raise values.wrong("load_in_4bit", "either load_in_4bit or load_in_8bit")
    if is_4bit:
        quant_type: Literal["nf4", "fp4"] = (
            "nf4" if values.choice("bnb_4bit_quant_type", ("nf4", "fp4"), default="fp4") == "nf4" else "fp4"
        )
        storage = values.choice("bnb_4bit_quant_storage", _STORAGES, default="uint8")
        form: WeightForm = Bnb4Bit(
            quant_type=quant_type,
            double_quant=values.flag("bnb_4bit_use_double_quant", default=False),
            storage_dtype=DTYPE_BY_SPELLING[storage].name,
        )
    else:
        threshold = values.config.get("llm_int8_threshold", 6.0)
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold < 1e6:
            raise values.wrong("llm_int8_threshold", "a number")
        form = LlmInt8(threshold_milli=round(threshold * 1000))
    return Scheme(
        name=form_name(form),
        groups=(Group(form=form, roles=EVERY_LINEAR),),
        not_converted=skipped or (),
        keeps_default=skipped is None,
    )


def _read_gptq(values: Values) -> Scheme:
    bits = values.integer("bits")
    if bits > _MAX_BITS:
        raise values.wrong("bits", f"at most {_MAX_BITS}")
    left, names = [], []
    dynamic = values.config.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise values.wrong("dynamic", "an object")
    for pattern in dynamic:
        if not str(pattern).startswith("-:"):
            raise values.wrong("dynamic", "modules that are left out, written as -:PATTERN")
        left.append(str(pattern).removeprefix("-:"))
        values.check_pattern("dynamic", left[-1])
    inside = values.config.get("modules_in_block_to_quantize") or []
    if not isinstance(inside, list):
        raise values.wrong("modules_in_block_to_quantize", "lists of module names")
    for part in inside:
        names.extend(part if isinstance(part, list) else [part])
    form = Gptq(bits=bits, group_size=values.group_size(default=_DEFAULT_GROUP))
    group = Group(form=form, roles=EVERY_LINEAR, names=tuple(map(str, names)))
    return Scheme(
        name=f"gptq-int{bits}", groups=(group,), matching=Matching.NUMBERED, not_converted=tuple(left)
    )


def _read_awq(values: Values) -> Scheme:
    version = "format" if values.config.get("version") is None else "version"
    values.choice(version, ("gemm", "gemv"), default="gemm")
    bits = values.integer("bits" if "bits" in values.config else "w_bit", default=4)
    if bits not in (4, 8):
        raise values.wrong("bits", "4 or 8")
    if not values.flag("zero_point", default=True):
        raise values.wrong("zero_point", "true")
    form = Awq(bits=bits, group_size=values.group_size(default=_DEFAULT_GROUP))
    return Scheme(
        name=f"awq-int{bits}",
        groups=(Group(form=form, roles=(*_LINEAR, TensorRole.EXPERTS)),),
        not_converted=values.names("modules_to_not_convert") or (),
    )


def _read_compressed(values: Values) -> Scheme:
    groups = values.config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise values.wrong("config_groups", "an object of groups")
    found = []
    for key in sorted(map(str, groups)):
        group = groups[key]
        if not isinstance(group, Mapping):
            raise values.wrong("config_groups", "groups with targets and weights")
        if group.get("weights") is not None:  # else only the cache or activations are quantized
            found.append(_compressed_group(values.part(group), values))
    if not found:
        raise values.wrong("config_groups", "a group with weights")
    return Scheme(
        name=form_name(found[0].form),
        groups=tuple(found),
        matching=Matching.EXACT,
        not_converted=values.names("ignore") or (),
        keeps_default=False,
    )


def _compressed_group(group: Values, whole: Values) -> Group:
    weights = group.config["weights"]
    if not isinstance(weights, Mapping):
        raise whole.wrong("config_groups", "weights with num_bits, type and strategy")
    args = whole.part(weights)
    bits = args.integer("num_bits", default=_MAX_BITS)
    is_float = args.choice("type", ("int", "float"), default="int") == "float"
    layout = group.config.get("format") or whole.config.get("format")
    if layout == "naive-quantized":
        layout = "float-quantized" if is_float else "int-quantized"
    if bits > _MAX_BITS or layout not in ("pack-quantized", "int-quantized", "float-quantized"):
        raise QuantizationError(
            "the checkpoint is in a layout of compressed-tensors that this version does not know",
            where=whole.where,
            got=quote(f"{layout} with {bits} bits"),
            needed="pack-quantized, int-quantized or float-quantized with at most 8 bits",
        )
    known: Literal["pack-quantized", "int-quantized", "float-quantized"] = layout
    inputs = group.config.get("input_activations")
    is_static = isinstance(inputs, Mapping) and inputs.get("dynamic") is False
    form = Compressed(
        layout=known,
        bits=bits,
        block_shape=_compressed_blocks(args),
        is_symmetric=args.flag("symmetric", default=True),
        scale_dtype=whole.dtype,
        is_static=is_static,
    )
    roles = (TensorRole.LINEAR, TensorRole.GROUPED_LINEAR, TensorRole.EXPERTS)
    return Group(form=form, roles=roles, names=group.names("targets") or ())


def _compressed_blocks(args: Values) -> tuple[int, int | None] | None:
    """Return what shares a scale; without a strategy a group size says it."""
    has_group = args.config.get("group_size") not in (None, -1)
    strategy = args.choice(
        "strategy", ("tensor", "channel", "group", "block"), default="group" if has_group else "tensor"
    )
    match strategy:
        case "tensor":
            return None
        case "channel":
            return 1, None
        case "group":
            return 1, args.group_size(default=_DEFAULT_GROUP)
        case _:
            return args.pair("block_structure")


_READERS: Mapping[str, Callable[[Values], Scheme]] = MappingProxyType(
    {
        "fp8": _read_fp8,
        "mxfp4": _read_mxfp4,
        "bitsandbytes": _read_bitsandbytes,
        "gptq": _read_gptq,
        "awq": _read_awq,
        "compressed-tensors": _read_compressed,
    }
)
