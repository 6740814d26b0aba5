"""The partition of a model into blocks: the parts that are placed as a whole.

Owns which modules are blocks and which tensor names each holds. Looks at classes and at the module tree only;
knows nothing of forwards, bytes or devices.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from torch import nn

from bayplan.schemas.errors import UsageError, first_names
from bayplan.schemas.types import OWN_SUFFIX, Fqn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Containers that nobody calls: a hook on them would never fire, so they are always split. Sequential is
# called.
_UNCALLED_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
_CONTAINERS = (*_UNCALLED_CONTAINERS, nn.Sequential)
_MIN_REPEATS = 2
_MAX_CLASSES_SHOWN = 12


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BlockSpec:
    """One block: a module that is placed as a whole, or the tensors that a split module holds itself."""

    id: Fqn
    """Path of the module, with `:own` appended for a split module's own tensors."""
    module: nn.Module
    """The block's module; for own tensors the module that holds them, whose call is not the block's."""
    is_own: bool
    """Whether the block is the own tensors of a split module."""
    fqns: tuple[Fqn, ...]
    """Every name of every tensor in it, aliases included, in order of registration."""

    @property
    def class_name(self) -> str:
        """Name of the module's class."""
        return type(self.module).__name__


def partition(model: nn.Module, *, no_split: Iterable[str] = ()) -> tuple[BlockSpec, ...]:
    """Return the blocks of `model` in the order of its module tree; every tensor name is in exactly one.

    A module is a block if its class must not be split, or if it is a maximal module without such a class
    inside. The root is a block only if it has no children. A module that is neither is split: its children
    are looked at in turn, and its own tensors make a block with the suffix `:own`. Modules without tensors
    are no blocks.

    Args:
        model: Any module; only classes and names are read.
        no_split: Class names that the user declares indivisible, instead of the model's own choice.

    Returns:
        Blocks that hold at least one tensor name. A module that is registered under two paths is one block.

    Raises:
        UsageError: `no_split` holds a name that is no class of a module in `model`.
    """
    declared = frozenset(no_split)
    if declared:
        _check_declared(model, declared)
    classes = declared or no_split_classes(model)
    has_inner = _modules_with_inner(model, classes)
    found: dict[tuple[int, bool], _Found] = {}
    for found_block in _walk("", model, classes, has_inner, is_root=True):
        key = (id(found_block.module), found_block.is_own)
        if key in found:
            found[key].fqns.extend(found_block.fqns)
        else:
            found[key] = found_block
    return tuple(
        BlockSpec(id=block.id, module=block.module, is_own=block.is_own, fqns=tuple(block.fqns))
        for block in found.values()
    )


def no_split_classes(model: nn.Module) -> frozenset[str]:
    """Return the names of the classes that must not be split, by the model's own word or by its shape.

    The model's word is `_no_split_modules` of it and of the models inside. Where that says nothing about a
    part of the tree, classes that occur at least twice in one `ModuleList` or `Sequential` and have children
    of their own count as well: that is how layers are written.
    """
    declared: set[str] = set()
    for module in model.modules():
        named = getattr(module, "_no_split_modules", None)
        if isinstance(named, list | tuple | set | frozenset):
            declared.update(name for name in named if isinstance(name, str))
    found = set(declared)
    _add_repeated(model, found)
    return frozenset(found)


def declared_no_split(model: nn.Module) -> tuple[Fqn, ...]:
    """Return the paths of the outermost modules of the classes that the model itself declares indivisible.

    Only its own `_no_split_modules` count, not those of the models inside; in order of registration.
    """
    named = getattr(model, "_no_split_modules", None)
    classes = set(named) if isinstance(named, list | tuple | set | frozenset) else set()
    found: list[Fqn] = []
    for path, module in model.named_modules():
        is_inside = bool(found) and path.startswith(f"{found[-1]}.")
        if path and type(module).__name__ in classes and not is_inside:
            found.append(path)
    return tuple(found)


def _add_repeated(module: nn.Module, found: set[str]) -> None:
    """Add to `found` the classes repeated in containers below `module`; those found are not looked into."""
    if isinstance(module, _CONTAINERS):
        counts = Counter(
            type(child).__name__
            for child in module.children()
            if not isinstance(child, _CONTAINERS) and next(child.children(), None) is not None
        )
        found.update(name for name, count in counts.items() if count >= _MIN_REPEATS)
    for child in module.children():
        if type(child).__name__ not in found:
            _add_repeated(child, found)


def _check_declared(model: nn.Module, declared: frozenset[str]) -> None:
    present = {type(module).__name__ for module in model.modules() if module is not model}
    unknown = sorted(declared - present)
    if unknown:
        raise UsageError(
            "no module of the model has this class",
            where="--no-split",
            got=", ".join(unknown),
            needed=f"one of {first_names(sorted(present), _MAX_CLASSES_SHOWN)}",
            hint="class names are case-sensitive and the model's own class cannot be kept whole",
        )


def _modules_with_inner(model: nn.Module, classes: frozenset[str]) -> frozenset[int]:
    """Return the ids of the modules with an indivisible class strictly inside."""
    known: dict[int, bool] = {}

    def visit(module: nn.Module) -> bool:
        if id(module) not in known:
            known[id(module)] = False  # Ends a cycle; the answer follows.
            inner = [type(child).__name__ in classes or visit(child) for child in module.children()]
            known[id(module)] = any(inner)
        return known[id(module)]

    visit(model)
    return frozenset(key for key, has_inner in known.items() if has_inner)


@dataclasses.dataclass(kw_only=True)
class _Found:
    """A block while the tree is walked; `fqns` grows when its module is met again under another path."""

    id: Fqn
    module: nn.Module
    is_own: bool
    fqns: list[Fqn]


def _walk(
    path: Fqn, module: nn.Module, classes: frozenset[str], has_inner: frozenset[int], *, is_root: bool = False
) -> Iterator[_Found]:
    """Yield the blocks at and below `path`, a split module's own tensors before its children."""
    prefix = f"{path}." if path else ""
    is_leaf = next(module.children(), None) is None
    is_whole = type(module).__name__ in classes or id(module) not in has_inner
    if is_leaf or (is_whole and not is_root and not isinstance(module, _UNCALLED_CONTAINERS)):
        fqns = [f"{prefix}{name}" for name in _tensor_names(module, recurse=True)]
        if fqns:
            yield _Found(id=path or OWN_SUFFIX, module=module, is_own=not path, fqns=fqns)
        return
    own = [f"{prefix}{name}" for name in _tensor_names(module, recurse=False)]
    if own:
        yield _Found(id=f"{path}{OWN_SUFFIX}", module=module, is_own=True, fqns=own)
    for name, child in module._modules.items():
        # Not `named_children`, which leaves out a child that is registered twice: its second names are
        # aliases.
        if child is not None:
            yield from _walk(f"{prefix}{name}", child, classes, has_inner)


def _tensor_names(module: nn.Module, *, recurse: bool) -> Iterator[str]:
    for name, _ in module.named_parameters(recurse=recurse, remove_duplicate=False):
        yield name
    for name, _ in module.named_buffers(recurse=recurse, remove_duplicate=False):
        yield name
