"""Single operations on a model without weights: what does not depend on weights is real, the rest on meta.

Owns which tensors have values and how an operation runs on a mixture of both. Ids, masks, positions, grids of
patches: models branch on them, loop over them, cut tensors by them. They are computed on the CPU as long as
they are small. What is made from weights has a shape only. Knows nothing of blocks and logs.
"""

from __future__ import annotations

import math
import weakref

import torch

from bayplan.planner.model.operations import operation_flops
from bayplan.planner.model.remembered_shapes import Kind, Result, Shape, run_remembered
from bayplan.planner.model.tensor_arguments import Arguments, Named, storage_key, tensors_in

MAX_KNOWN_ELEMENTS = 2**18
"""Elements of the largest tensor that is computed. Larger ones, such as a mask of 1024 x 1024, have a shape
only: what a model asks of values is in a few numbers per position."""

_aten = torch.ops.aten
_CPU = torch.device("cpu")
_META = torch.device("meta")


class Runner:
    """Runs operations, and remembers which real tensors have lost their values and what shapes came out."""

    def __init__(self) -> None:
        self.takes_all = False
        """Whether a mask without values is taken to be true everywhere, where places in it are asked for."""
        self.num_routed: int | None = None
        """Within a call of experts: those that each position is routed to."""
        self._kinds: dict[int, Kind] = {}
        self._lost: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        """Storages on the CPU into which something without values was written."""

    def kind(self, func: torch._ops.OpOverload) -> Kind:
        """Return what the schema of `func` says."""
        # By identity, because hashing an operation is slow; torch keeps them forever.
        found = self._kinds.get(id(func))
        if found is None:
            found = self._kinds[id(func)] = Kind.of(func, len(self._kinds))
        return found

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor has values."""
        return not tensor.is_meta and not (self._lost and storage_key(tensor) in self._lost)

    def run(
        self, func: torch._ops.OpOverload, args: Arguments, kwargs: Named, tensors: list[torch.Tensor]
    ) -> Result:
        """Run one operation.

        Args:
            func: The operation.
            args: What it is called with.
            kwargs: Likewise.
            tensors: All tensors in the arguments.

        Returns:
            Its result: real tensors where all that they are computed from is known and they are small.

        Raises:
            RuntimeError: It needs a value that is not known; torch's own words.
        """
        kind = self.kind(func)
        if not tensors:
            return Result(self._create(func, kind, args, kwargs), 0)
        if kind.is_like and not kind.writes:
            return Result(self._create_like(func, kind, args, kwargs, all(map(self.is_known, tensors))), 0)
        if kind.is_view and not tensors[0].is_meta:
            return Result(func(*args, **kwargs), 0)
        if not kind.is_random and all(map(self.is_known, tensors)):
            output = self._run_known(func, kind, args, kwargs, tensors)
            return Result(output, operation_flops(func.overloadpacket, args, kwargs, output))
        return self._run_unknown(func, kind, args, kwargs, is_mixed=not all(one.is_meta for one in tensors))

    def _create(self, func: torch._ops.OpOverload, kind: Kind, args: Arguments, kwargs: Named) -> object:
        """Make a tensor out of nothing: a range, zeros, a constant."""
        if "device" not in {argument.name for argument in func._schema.arguments}:
            return func(*args, **kwargs)
        named = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        on_meta = run_remembered(func, kind, args, {**named, "device": _META}).output
        assert isinstance(on_meta, torch.Tensor)
        if kind.is_random or on_meta.numel() > MAX_KNOWN_ELEMENTS:
            return on_meta
        name = func.overloadpacket.__name__
        is_filled = not name.startswith("empty")
        if on_meta.is_floating_point() and (not is_filled or (name == "zeros" and on_meta.numel() > 1)):
            return on_meta  # Made to take results of weights, or as the first state of a recurrence.
        if not is_filled:
            return _zeros_like(on_meta)
        return func(*args, **{**named, "device": _CPU})

    def _create_like(
        self, func: torch._ops.OpOverload, kind: Kind, args: Arguments, kwargs: Named, is_known: bool
    ) -> object:
        """Make a tensor of the shape, or at least of the type, of another."""
        named = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        meta_args, meta_kwargs = _twins(args, {**named, "device": _META})
        on_meta = run_remembered(func, kind, meta_args, meta_kwargs).output
        assert isinstance(on_meta, torch.Tensor)
        # What is made to take results of weights, as most floats are that look like one, need not be real.
        is_wanted = is_known or not (on_meta.is_floating_point() or on_meta.is_complex())
        if kind.is_random or not is_wanted or on_meta.numel() > MAX_KNOWN_ELEMENTS:
            return on_meta
        if "empty" in func.overloadpacket.__name__:
            return _zeros_like(on_meta)
        return func(*args, **{**named, "device": _CPU})

    def _run_known(
        self,
        func: torch._ops.OpOverload,
        kind: Kind,
        args: Arguments,
        kwargs: Named,
        tensors: list[torch.Tensor],
    ) -> object:
        if func is _aten._to_copy.default and _is_move(args, kwargs):
            return _aten.alias.default(args[0])
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _CPU}
        if not kind.writes and (
            kind.is_growing or math.prod(tensor.numel() for tensor in tensors) > MAX_KNOWN_ELEMENTS
        ):
            largest = max(tensor.numel() for tensor in tensors)
            if torch.Tag.dynamic_output_shape in func.tags or func is _aten._local_scalar_dense.default:
                is_small = largest <= MAX_KNOWN_ELEMENTS
            else:
                on_meta = self._run_unknown(func, kind, args, kwargs, is_mixed=True).output
                is_small = all(one.numel() <= MAX_KNOWN_ELEMENTS for one in tensors_in(on_meta))
            if not is_small:
                return self._run_unknown(func, kind, args, kwargs, is_mixed=True).output
        return func(*args, **kwargs)

    def _run_unknown(
        self, func: torch._ops.OpOverload, kind: Kind, args: Arguments, kwargs: Named, *, is_mixed: bool
    ) -> Result:
        """Run on meta. Real tensors that are written to lose their values and are returned as they are."""
        if func is _aten._to_copy.default and _is_move(args, kwargs):
            return Result(_aten.alias.default(args[0]), 0)
        if func is _aten._local_scalar_dense.default and _is_bool(args[0]):
            # Models ask whether a mask is all true, to go a cheaper way: False makes them go the dearer one.
            # Or whether a number is infinite, which none is in a run that is worth planning.
            return Result(output=False, flops=0)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _META}
        if self.num_routed is not None and func is _aten.nonzero.default:
            return Result(_routed(_tensor(args[0]), self.num_routed), 0)
        if not (is_mixed or self.takes_all):
            return run_remembered(func, kind, args, kwargs)
        written = [
            target
            for position, name in kind.writes
            for target in tensors_in(args[position] if position < len(args) else kwargs.get(name))
        ]
        if func is _aten.nonzero.default and self.takes_all and _is_bool(args[0]):
            return Result(self._places(_tensor(args[0])), 0)
        if func is _aten.masked_select.default and self.is_known(mask := _tensor(args[1])):
            return Result(_selected(_tensor(args[0]), mask), 0)
        meta_args, meta_kwargs = _twins(self._with_places(func, args), kwargs)
        result = run_remembered(func, kind, meta_args, meta_kwargs)
        if not written or all(target.is_meta for target in written):
            return result
        for target in written:
            if not target.is_meta:
                self._lose(target)
        output = written[0] if len(func._schema.returns) == 1 else tuple(written)
        return Result(output if func._schema.returns else None, result.flops)

    def _with_places(self, func: torch._ops.OpOverload, args: Arguments) -> Arguments:
        """Return the arguments with known boolean masks replaced by the places at which they are true."""
        name = func.overloadpacket.__name__
        if "index" not in name or len(args) < 2 or not isinstance(args[1], list | tuple):
            return args
        indices: list[object] = []
        for index in args[1]:
            if _is_bool(index) and (self.takes_all or self.is_known(_tensor(index))):
                indices.extend(self._places(_tensor(index)).unbind(1))
            else:
                indices.append(index)
        return (args[0], indices, *args[2:])

    def _places(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the places at which a mask is true, `[number, dimensions]`; all, if it has no values."""
        if self.is_known(mask):
            return mask.nonzero()
        return torch.empty((mask.numel(), mask.dim()), dtype=torch.int64, device=_META)

    def _lose(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        lost = self._lost
        if key not in lost:
            lost[key] = weakref.ref(storage, lambda _: lost.pop(key))


def _routed(mask: torch.Tensor, num_routed: int) -> torch.Tensor:
    """Return the places at which a mask of routes is true, as if all positions went to the same experts.

    Where they really go, nobody knows. The work is the same wherever; one expert with all positions at once
    has the most alive.

    Args:
        mask: `[experts]`, those that anything is routed to; or `[routes, positions]` of one of them, at each
            position at most one of its routes.
        num_routed: Routes of a position.
    """
    if mask.dim() == 1:
        return torch.arange(len(mask), device=_CPU)[:num_routed].unsqueeze(1)  # as large as for all experts
    return torch.empty((mask.shape[-1], mask.dim()), dtype=torch.int64, device=_META)


def _zeros_like(on_meta: torch.Tensor) -> torch.Tensor:
    """Return zeros for what is not yet filled: no trace may depend on what the memory held."""
    made = torch.empty_strided(on_meta.shape, on_meta.stride(), dtype=on_meta.dtype, device=_CPU)
    return made.zero_()


def _selected(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return what `masked_select` does, without values; both are broadcast to one shape."""
    size = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
    num_selected = int(mask.sum()) * (math.prod(size) // max(1, mask.numel()))
    return torch.empty(num_selected, dtype=tensor.dtype, device=_META)


def _tensor(value: object) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _is_bool(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def _is_move(args: Arguments, kwargs: Named) -> bool:
    """Return whether a copy is one to another device and nothing else: in a real run all is on one."""
    return kwargs.get("device") is not None and kwargs.get("dtype") in (None, _tensor(args[0]).dtype)


def _twins(args: Arguments, kwargs: Named) -> tuple[Arguments, Named]:
    return tuple(map(_twin, args)), {name: _twin(value) for name, value in kwargs.items()}


def _twin(value: object) -> object:
    """Return the value with every real tensor in it replaced by one on meta."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else Shape.of(value).make()
    if isinstance(value, list | tuple):
        return [_twin(item) for item in value]
    return value
