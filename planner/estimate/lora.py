"""Which linear layers get low-rank adapters, and the shapes of those.

Targets are named as peft names them: a module's whole path, or its end after a dot.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.planner.estimate.layers import module_of
from bayplan.planner.estimate.options import LoraOptions
from bayplan.schemas.errors import UsageError, first_names
from bayplan.schemas.graph import ModelGraph, TensorRecord, TensorRole
from bayplan.schemas.types import Fqn

_LINEAR = (TensorRole.LINEAR, TensorRole.CONV1D)
_MAX_SHOWN = 12


def adapter_shapes(graph: ModelGraph, lora: LoraOptions) -> tuple[tuple[int, int], ...]:
    """Return the shapes of all adapter matrices: for each target `[rank, in]` and `[out, rank]`.

    Of a `Conv1D`, which stores its weight the other way round, in and out are exchanged.
    The experts of a mixture that are stored in one tensor are no linear modules and get none.

    Args:
        graph: Shapes and roles of the model's own tensors.
        lora: Without targets, every linear layer but heads and those tied to an embedding.

    Raises:
        UsageError: A target names no linear layer, or there is none.
    """
    linear = {module_of(tensor.fqn): tensor for tensor in _linear_weights(graph)}
    chosen = _named(linear, lora.targets) if lora.targets else _all_but_heads(linear, graph)
    if not chosen:
        raise UsageError(
            "the model has no linear layer to adapt", where="--lora", got=graph.class_name, needed="targets"
        )
    shapes: list[tuple[int, int]] = []
    for tensor in chosen:
        rows, columns = tensor.shape
        shapes += [(lora.rank, columns), (rows, lora.rank)]
    return tuple(shapes)


def _linear_weights(graph: ModelGraph) -> Iterable[TensorRecord]:
    return (
        tensor
        for block in graph.blocks
        for tensor in block.tensors
        if tensor.role in _LINEAR and len(tensor.shape) == 2
    )


def _all_but_heads(linear: dict[Fqn, TensorRecord], graph: ModelGraph) -> list[TensorRecord]:
    # What a class keeps in fp32 is left unquantized too, but it is no head.
    kept = {fqn for fqns in graph.kept_fp32.values() for fqn in fqns}
    heads = set(graph.unquantized) - kept
    return [tensor for tensor in linear.values() if tensor.fqn not in heads]


def _named(linear: dict[Fqn, TensorRecord], targets: tuple[str, ...]) -> list[TensorRecord]:
    for target in targets:
        if not any(_matches(module, target) for module in linear):
            ends = sorted({module.rpartition(".")[2] for module in linear})
            raise UsageError(
                "the target names no linear layer",
                where="--lora",
                got=repr(target),
                needed=f"one of {first_names(ends, _MAX_SHOWN)}" if ends else "a model with linear layers",
            )
    return [
        tensor for module, tensor in linear.items() if any(_matches(module, target) for target in targets)
    ]


def _matches(module: Fqn, target: str) -> bool:
    return module == target or module.endswith(f".{target}")
