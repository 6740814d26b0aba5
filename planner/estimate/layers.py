"""The layers of a model as memory estimates count them, and the largest one.

A layer is a module that its class declares indivisible, or a module without modules inside. Owns which
tensor is in which layer, in any format; bytes come with the tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bayplan.schemas.graph import GraphBlock, ModelGraph
from bayplan.schemas.types import OWN_SUFFIX, Fqn


class Layers:
    """The layers of one model.

    They are named by the graph in the model's own data types; the tensors of another format, whatever
    companions it adds, are then found by their names.
    """

    def __init__(self, graph: ModelGraph) -> None:
        self._undivided = frozenset(graph.declared_no_split)
        fqns = [tensor.fqn for block in graph.blocks for tensor in block.tensors]
        split = {ancestor for fqn in fqns for ancestor in _ancestors(module_of(fqn))}
        self._names = frozenset(self._layer_of_own(fqn, split) for fqn in fqns)

    def largest(self, blocks: Iterable[GraphBlock]) -> tuple[Fqn | None, int]:
        """Return the first of the largest layers and its bytes; None and 0 where there is no tensor.

        Args:
            blocks: Those of the graph, with their tensors in any format.
        """
        sizes: Counter[Fqn] = Counter()
        for block in blocks:
            whole = self._undivided_around(block.id.removesuffix(OWN_SUFFIX))
            for tensor in block.tensors:
                sizes[whole or self._layer_of(tensor.fqn, block.id)] += tensor.num_bytes
        if not sizes:
            return None, 0
        name = max(sizes, key=lambda layer: sizes[layer])  # the first of equals, in insertion order
        return name, sizes[name]

    def _layer_of_own(self, fqn: Fqn, split: set[Fqn]) -> Fqn:
        module = module_of(fqn)
        # A module with tensors in modules below it is no layer; what it holds itself counts one by one.
        return self._undivided_around(module) or (fqn if not module or module in split else module)

    def _undivided_around(self, module: Fqn) -> Fqn | None:
        """Return the outermost indivisible module that is `module` or holds it."""
        found = [name for name in (module, *_ancestors(module)) if name in self._undivided]
        return found[-1] if found else None

    def _layer_of(self, fqn: Fqn, block_id: Fqn) -> Fqn:
        """Return the layer of a tensor that may bear a name of its format, such as `weight.absmax`."""
        for name in (fqn, *_ancestors(fqn)):
            if name in self._names:
                return name
        return block_id.removesuffix(OWN_SUFFIX) or fqn


def total_bytes(graph: ModelGraph) -> int:
    """Return the bytes of all tensors, each storage once."""
    return sum(block.num_bytes for block in graph.blocks)


def module_of(fqn: Fqn) -> Fqn:
    """Return the module that holds a tensor; empty: the root."""
    return fqn.rpartition(".")[0]


def _ancestors(name: Fqn) -> Iterator[Fqn]:
    """Yield the modules around `name`, nearest first, the root left out."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name
