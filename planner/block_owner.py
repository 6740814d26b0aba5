"""Which block holds a tensor, by names alone."""

from __future__ import annotations

from collections.abc import Iterable, Set

from bayplan.schemas.graph import GraphBlock, TiedGroup
from bayplan.schemas.types import OWN_SUFFIX, Fqn


def owning_block(ids: Set[Fqn], fqn: Fqn) -> Fqn | None:
    """Return the block that holds the tensor `fqn`: the longest module path, or its parent's own tensors.

    A module registered under two paths is one block, under its first path: names under the other lie in none.

    Args:
        ids: Of all blocks.
        fqn: Of a parameter or buffer, aliases included.
    """
    parent = fqn.rpartition(".")[0]
    if parent + OWN_SUFFIX in ids:
        return parent + OWN_SUFFIX
    while parent and parent not in ids:
        parent = parent.rpartition(".")[0]
    return parent if parent in ids else None


def tied_elsewhere_bytes(blocks: Iterable[GraphBlock], ties: Iterable[TiedGroup]) -> dict[Fqn, int]:
    """Return for each block the bytes of the tied weights that it uses and an earlier block lists.

    Args:
        blocks: All of a model.
        ties: Of the same model, with the bytes that its format gives them.
    """
    listed = {block.id: {tensor.fqn for tensor in block.tensors} for block in blocks}
    found = dict.fromkeys(listed, 0)
    for group in ties:
        users = {owning_block(listed.keys(), fqn) for fqn in group.fqns}
        for block_id in users:
            if block_id is not None and listed[block_id].isdisjoint(group.fqns):
                found[block_id] += group.num_bytes
    return found
