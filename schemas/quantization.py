"""Which of a model's weights a quantization method stores in which form.

Owns the rules by which each method picks its modules, and the schemes that users ask for by name. What a form
takes is `format_bytes`'; how a checkpoint's config says it is `quantization_config`'s. Knows names and roles
only.

References:
    transformers 5.24 `quantizers_utils.should_convert_module` and its quantizers, compressed-tensors 0.20
    `utils/match.py`, optimum's `GPTQQuantizer.convert_model`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import assert_never

import msgspec

from bayplan.schemas.format_bytes import BlockFp8, Bnb4Bit, LlmInt8, Mxfp4, WeightForm
from bayplan.schemas.format_names import form_text
from bayplan.schemas.graph import ModelGraph, TensorRecord, TensorRole
from bayplan.schemas.types import Fqn


class Matching(enum.StrEnum):
    """How a method's lists name modules."""

    BOUNDARY = "boundary"
    """From the start up to a dot, as a regular expression likewise, or as a suffix: transformers' own."""
    EXACT = "exact"
    """Whole names, class names, or regular expressions after `re:`: compressed-tensors'."""
    NUMBERED = "numbered"
    """Only inside numbered modules; regular expressions from the start: GPTQ's."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that are stored in one form."""

    form: WeightForm
    roles: tuple[TensorRole, ...]
    names: tuple[str, ...] = ()
    """Those of the modules, by the rule of the scheme; empty: all."""


class Scheme(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantization method stores a model."""

    name: str
    """Short: the method, or the format that a user asks for."""
    groups: tuple[Group, ...]
    """The first that takes a weight decides."""
    matching: Matching = Matching.BOUNDARY
    not_converted: tuple[str, ...] = ()
    """Modules that are left as they are, by the rule."""
    inside: Fqn = ""
    """Path of the part of the model that is quantized; empty: the whole."""
    keeps_default: bool = True
    """Leaves what `ModelGraph.unquantized` lists, too."""
    prefers_experts: bool = False
    """Changes nothing but experts where a model has any."""

    def describe(self) -> str:
        """Return the scheme in one line."""
        texts = dict.fromkeys(form_text(group.form) for group in self.groups)
        return "; ".join(texts)


EVERY_LINEAR = (TensorRole.LINEAR, TensorRole.CONV1D, TensorRole.EXPERTS)
"""What bitsandbytes and GPTQ change."""
FP8_ROLES = (TensorRole.LINEAR, TensorRole.GROUPED_LINEAR, TensorRole.EXPERTS)
"""What transformers' fine-grained fp8 changes."""

ASKED_SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            Scheme(name="int8", groups=(Group(form=LlmInt8(), roles=EVERY_LINEAR),)),
            Scheme(name="nf4", groups=(Group(form=Bnb4Bit(quant_type="nf4"), roles=EVERY_LINEAR),)),
            Scheme(name="fp4", groups=(Group(form=Bnb4Bit(quant_type="fp4"), roles=EVERY_LINEAR),)),
            Scheme(name="fp8", groups=(Group(form=BlockFp8(), roles=FP8_ROLES),)),
            Scheme(name="mxfp4", groups=(Group(form=Mxfp4(), roles=EVERY_LINEAR),), prefers_experts=True),
        )
    }
)
"""What `--format` may ask for besides the plain data types, and what that means.

Heads and tied weights stay; the experts of a fused tensor count as separate linear layers. `mxfp4` stores the
experts alone where a model has any, as transformers does.
"""


def quantized_weights(graph: ModelGraph, scheme: Scheme) -> dict[Fqn, WeightForm]:
    """Return the weights of `graph` that `scheme` changes, each with its form. Tied weights always stay."""
    kept = {fqn for group in graph.ties for fqn in group.fqns}
    if scheme.keeps_default:
        kept.update(graph.unquantized)
    found: dict[Fqn, WeightForm] = {}
    experts: dict[Fqn, WeightForm] = {}
    for block in graph.blocks:
        for record in block.tensors:
            form = None if record.fqn in kept else _form_of(record, scheme)
            if form is not None:
                found[record.fqn] = form
                if record.role is TensorRole.EXPERTS:
                    experts[record.fqn] = form
    return experts if scheme.prefers_experts and experts else found


def _form_of(record: TensorRecord, scheme: Scheme) -> WeightForm | None:
    if record.linears is None and record.role is not TensorRole.EMBEDDING:
        return None
    module = _module_name(record, scheme.matching)
    is_outside = scheme.inside and not f"{module}.".startswith(f"{scheme.inside}.")
    if is_outside or _is_left(module, scheme):
        return None
    groups = (group for group in scheme.groups if record.role in group.roles)
    return next((group.form for group in groups if _is_named(module, group.names, scheme.matching)), None)


def _module_name(record: TensorRecord, matching: Matching) -> str:
    """Return the module as the method's lists would name it."""
    parent, _, name = record.fqn.rpartition(".")
    if record.role is not TensorRole.EXPERTS or matching is Matching.BOUNDARY:
        return parent
    # In the checkpoints of these methods every expert is a module of its own.
    return f"{parent}.0.{name.replace('gate_up', 'gate')}"


def _is_left(module: str, scheme: Scheme) -> bool:
    match scheme.matching:
        case Matching.BOUNDARY:
            return any(_reaches_boundary(module, pattern) for pattern in scheme.not_converted)
        case Matching.EXACT:
            return any(_is_exact(module, target) for target in scheme.not_converted)
        case Matching.NUMBERED:
            is_numbered = any(part.isdecimal() for part in module.split("."))
            return not is_numbered or any(re.match(pattern, module) for pattern in scheme.not_converted)
        case _:
            assert_never(scheme.matching)


def _is_named(module: str, names: tuple[str, ...], matching: Matching) -> bool:
    if not names:
        return True
    if matching is Matching.EXACT:
        return any(_is_exact(module, name) or name == "Linear" for name in names)
    return any(module.endswith(name) for name in names)


def _reaches_boundary(module: str, pattern: str) -> bool:
    return module.endswith(pattern) or re.match(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))", module) is not None


def _is_exact(module: str, target: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), module) is not None
    return module == target
