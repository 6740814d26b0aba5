"""Where a new tensor goes while a model is built without weights: small ones to the CPU, large ones to meta.

Owns the torch function mode under which constructors run. Knows nothing of modules and parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.overrides import TorchFunctionMode

from bayplan.schemas.errors import BayplanError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_REAL_ELEMENTS = 2**24
"""Elements of the largest tensor that is created with values: a 4096 x 4096 mask.

As fp32 that is 64 MiB, held only for a moment if it becomes a parameter.
"""

MAX_BUFFER_ELEMENTS = 2**28
"""Elements of the largest tensor with values at all: far over any model's, 1 GiB in fp32.

A config that asks for more has a wrong number in it, and to follow it would take all memory there is.
"""

# New tensors whose content is one value, random or undefined: what parameters are made of.
_SIZED = frozenset(
    {
        torch.empty,
        torch.empty_permuted,
        torch.empty_strided,
        torch.eye,
        torch.full,
        torch.ones,
        torch.rand,
        torch.randint,
        torch.randn,
        torch.randperm,
        torch.zeros,
    }
)
# The same, with dtype and device taken from a tensor.
_LIKE = frozenset(
    {
        torch.empty_like,
        torch.full_like,
        torch.ones_like,
        torch.rand_like,
        torch.randint_like,
        torch.randn_like,
        torch.zeros_like,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
        torch.Tensor.new_full,
        torch.Tensor.new_ones,
        torch.Tensor.new_zeros,
    }
)
# Those that have their values even if they are like a weight: masks, mostly.
_CONSTANT_LIKE = frozenset(
    {
        torch.full_like,
        torch.ones_like,
        torch.zeros_like,
        torch.Tensor.new_full,
        torch.Tensor.new_ones,
        torch.Tensor.new_zeros,
    }
)
# New tensors whose values carry meaning, and whose size a number decides, not what is already in memory.
_SIZED_BY_NUMBER = frozenset(
    {
        torch.arange,
        torch.bartlett_window,
        torch.blackman_window,
        torch.fft.fftfreq,
        torch.fft.rfftfreq,
        torch.hamming_window,
        torch.hann_window,
        torch.kaiser_window,
        torch.linspace,
        torch.logspace,
        torch.range,
    }
)
# All new tensors whose values carry meaning: always real, whatever their size.
_VALUED = _SIZED_BY_NUMBER | frozenset(
    {
        torch.as_tensor,
        torch.asarray,
        torch.scalar_tensor,
        torch.tensor,
        torch.tril_indices,
        torch.triu_indices,
        torch.Tensor.new_tensor,
    }
)
_TO_ONE_DEVICE = frozenset({torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.xpu})


class NoValueError(BayplanError):
    """Values were asked for that a model built without weights does not have."""


class CreationMode(TorchFunctionMode):
    """Decides for every tensor that this thread creates whether it is real or on meta.

    `device=` arguments are followed only where they say meta, and nothing is moved between devices. What is
    made of real and of meta tensors is on meta, though torch makes some of it real (`conv2d` of an image);
    an operation that would change a real tensor so is an error (`real.add_(meta)`).

    Attributes:
        max_real_elements: Elements of the largest tensor that is created with values.
        follows_meta: Whether `device=` counts where it says meta.
        loaded_bytes: Of values that were read from elsewhere and copied into tensors on meta.
    """

    def __init__(self, max_real_elements: int, *, follows_meta: bool = True) -> None:
        super().__init__()
        self.follows_meta = follows_meta
        self.max_real_elements = max_real_elements
        self.loaded_bytes = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        named = dict(kwargs or {})
        if not self.follows_meta and _is_explicit_meta(named):
            del named["device"]
        if func is torch.Tensor.to:
            return _to(cast("torch.Tensor", args[0]), args[1:], named)
        if func in _TO_ONE_DEVICE:
            return args[0]
        if func is torch.Tensor.copy_ and len(args) > 1:
            target, source = args[:2]
            if isinstance(target, torch.Tensor) and target.is_meta and is_loaded(source):
                self.loaded_bytes += target.nbytes
        if named.get("out") is None:
            if func in _SIZED or (func is torch.normal and (len(args) == 3 or "size" in named)):
                return self._create(func, args, named)
            if func in _LIKE and (
                func in _CONSTANT_LIKE or named.get("device") is not None or not _takes_meta(args, named)
            ):
                return self._create(func, args, named)
            if func in _VALUED and not _is_explicit_meta(named) and not _takes_meta(args, named):
                _check_number(func, args, named)
                named["device"] = "cpu"
        result = func(*args, **named)
        if isinstance(result, torch.Tensor) and not result.is_meta and _takes_meta(args, named):
            if not any(result is value for value in (*args, *named.values())):
                return torch.empty_like(result, device="meta")
            raise NoValueError(
                f"{getattr(func, '__name__', func)} puts the values of a weight into a buffer,"
                " but the model is built without weights",
                hint="compute it in forward, or load the whole model without bayplan",
            )
        return result

    def _create(
        self, func: Callable[..., object], args: tuple[object, ...], named: dict[str, object]
    ) -> object:
        on_meta = _on_meta(func, args, named)
        if _is_explicit_meta(named) or on_meta.numel() > self.max_real_elements:
            return on_meta
        return func(*args, **{**named, "device": "cpu"})


def check_room(name: str, num_elements: int) -> None:
    """Check that a tensor with values is not larger than any model's.

    Args:
        name: Of the tensor, or of the function that makes it.
        num_elements: Of the tensor.

    Raises:
        NoValueError: It is.
    """
    if num_elements > MAX_BUFFER_ELEMENTS:
        raise NoValueError(
            "the model asks for a buffer larger than any model has",
            got=f"{name} of {num_elements} elements",
            needed=f"at most {MAX_BUFFER_ELEMENTS}",
            hint="a number in its config is far too large",
        )


def _check_number(func: Callable[..., object], args: tuple[object, ...], named: dict[str, object]) -> None:
    if func in _SIZED_BY_NUMBER:
        check_room(getattr(func, "__name__", str(func)), _on_meta(func, args, named).numel())


def _on_meta(func: Callable[..., object], args: tuple[object, ...], named: dict[str, object]) -> torch.Tensor:
    """Return what `func` makes, on meta: it costs nothing and tells the size, however that was spelled."""
    # No device takes these but a real one.
    shape_only = {k: v for k, v in named.items() if k not in {"device", "generator", "pin_memory"}}
    return cast("torch.Tensor", func(*args, **shape_only, device="meta"))


def is_loaded(value: object) -> bool:
    """Return whether a tensor's values come from a file or from another library's memory.

    Torch gives storages of its own making room to grow; those around foreign bytes have none.
    """
    return isinstance(value, torch.Tensor) and not value.is_meta and not value.untyped_storage().resizable()


def _is_explicit_meta(named: dict[str, object]) -> bool:
    device = named.get("device")
    return device is not None and torch.device(cast("str", device)).type == "meta"


def _takes_meta(args: tuple[object, ...], named: dict[str, object]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.is_meta for value in (*args, *named.values()))


def _to(tensor: torch.Tensor, args: tuple[object, ...], named: dict[str, object]) -> object:
    """Run `Tensor.to` without its device: all stays where it is, except what goes to meta."""
    rest = list(args)
    if isinstance(named.get("other"), torch.Tensor):
        rest.insert(0, named.pop("other"))
    if rest and isinstance(rest[0], torch.Tensor):
        rest[:1] = [rest[0].device, rest[0].dtype]
    names: tuple[str, ...] = ("device", "dtype", "non_blocking", "copy")
    if rest and isinstance(rest[0], torch.dtype):
        names = names[1:]
    named.update(zip(names, rest, strict=False))
    if named.get("device") is not None and not _is_explicit_meta(named):
        named["device"] = tensor.device
    return tensor.to(**named)  # type: ignore[call-overload]  # the overloads want each argument spelled out
