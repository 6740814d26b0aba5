"""Operations on meta tensors, each shape computed once: the layers of a model are alike.

Owns what is remembered of an operation. Torch computes many shapes on meta in Python, which takes longer than
the operation would on small real tensors. Knows nothing of values.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch

from bayplan.planner.model.operations import operation_flops, run_on_meta
from bayplan.planner.model.tensor_arguments import (
    Arguments,
    Named,
    argument_tensors,
    storage_key,
    tensors_in,
)

_META = torch.device("meta")

# Operations whose result may be larger than the product of their inputs' sizes.
_GROWING = ("repeat", "constant_pad", "reflection_pad", "replication_pad", "upsample", "im2col")
_LIKE = ("new_", "empty_like", "full_like", "ones_like", "zeros_like")


class Result(NamedTuple):
    """What an operation returned and the floating-point operations that it took."""

    output: object
    flops: int


class Shape(NamedTuple):
    """Of a tensor on meta."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Shape:
        """Return the shape of a tensor, real or not."""
        return cls(tensor.shape, tensor.stride(), tensor.dtype)

    def make(self) -> torch.Tensor:
        """Return a new tensor of this shape on meta."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=_META)


class _Remembered(NamedTuple):
    """What an operation does on meta to arguments of certain shapes."""

    shapes: Shape | tuple[Shape | None, ...] | None
    """Of its new tensors; None: it has to be run, because it returns a view or something else."""
    container: type | None
    """Tuple or list, where it returns several."""
    is_in_place: bool
    """It returns its first argument, whose shape it leaves as it is."""
    flops: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """What the schema of an operation says, and what was seen of it."""

    number: int
    """The same for the same operation."""
    writes: tuple[tuple[int, str], ...]
    """Position and name of the arguments that it writes to."""
    is_view: bool
    is_random: bool
    is_like: bool
    """It makes a new tensor from the shape of another."""
    is_growing: bool
    returns_first: bool
    """It returns its first argument, written in place."""
    remembered: dict[object, _Remembered] = dataclasses.field(default_factory=dict)
    """What it does on meta, by what the shape of its result depends on."""

    @classmethod
    def of(cls, func: torch._ops.OpOverload, number: int) -> Kind:
        """Read the schema."""
        schema, name = func._schema, func.overloadpacket.__name__
        aliases = [argument.alias_info for argument in schema.arguments]
        returned = [one.alias_info for one in schema.returns]
        return cls(
            number=number,
            writes=tuple(
                (position, argument.name)
                for position, argument in enumerate(schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            ),
            is_view=any(alias is not None and not alias.is_write for alias in returned),
            is_random=torch.Tag.nondeterministic_seeded in func.tags,
            is_like=name.startswith(_LIKE),
            is_growing=name.startswith(_GROWING),
            returns_first=len(returned) == 1
            and returned[0] is not None
            and returned[0].is_write
            and aliases[0] is not None
            and aliases[0].is_write,
        )


def run_remembered(func: torch._ops.OpOverload, kind: Kind, args: Arguments, kwargs: Named) -> Result:
    """Run an operation whose tensors are all on meta, or do what it did to tensors of the same shapes.

    Args:
        func: The operation.
        kind: Its kind, which remembers.
        args: What it is called with.
        kwargs: Likewise.
    """
    if kind.is_view:
        return Result(func(*args, **kwargs), 0)
    key = _key(args, kwargs)
    try:
        found = kind.remembered.get(key)
    except TypeError:  # An argument that cannot be compared.
        output = run_on_meta(func, args, kwargs)
        return Result(output, operation_flops(func.overloadpacket, args, kwargs, output))
    if found is None:
        output = run_on_meta(func, args, kwargs)
        flops = operation_flops(func.overloadpacket, args, kwargs, output)
        kind.remembered[key] = _remember(kind, key, args, kwargs, output, flops)
        return Result(output, flops)
    shapes = found.shapes
    if found.is_in_place:
        output = args[0]
    elif shapes is None:
        output = run_on_meta(func, args, kwargs)
    elif isinstance(shapes, Shape):
        output = shapes.make()
    else:
        made = [None if shape is None else shape.make() for shape in shapes]
        output = made if found.container is list else tuple(made)
    return Result(output, found.flops)


def _remember(
    kind: Kind, key: object, args: Arguments, kwargs: Named, output: object, flops: int
) -> _Remembered:
    """Return what a call shows of all calls with the same key."""
    if kind.returns_first:
        is_unchanged = output is args[0] and _key(args, kwargs) == key
        return _Remembered(None, None, is_in_place=is_unchanged, flops=flops)
    run_again = _Remembered(None, None, is_in_place=False, flops=flops)
    used = {storage_key(tensor) for tensor in argument_tensors(args, kwargs)}
    if kind.writes or any(storage_key(made) in used for made in tensors_in(output)):
        return run_again
    if isinstance(output, torch.Tensor):
        return _Remembered(Shape.of(output), None, is_in_place=False, flops=flops)
    if isinstance(output, tuple | list) and all(
        one is None or isinstance(one, torch.Tensor) for one in output
    ):
        shapes = tuple(None if one is None else Shape.of(one) for one in output)
        return _Remembered(shapes, type(output), is_in_place=False, flops=flops)
    return run_again


def _key(args: Arguments, kwargs: Named) -> object:
    """Return what the shape of an operation's result depends on."""
    key = tuple(map(_key_of, args))
    return (key, tuple((name, _key_of(value)) for name, value in kwargs.items())) if kwargs else key


def _key_of(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(_key_of, value))
    return (type(value), value)  # 1, 1.0 and True are equal, and make other types.
