"""The tensors of a partition: which block holds which, and which of them are one.

Owns the rule that a tied tensor is listed once. Knows nothing of forwards.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from bayplan.schemas.graph import TensorRecord, TiedGroup
from bayplan.skeleton.tree import tensor_records, tie_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from bayplan.planner.model.blocks import BlockSpec


@dataclasses.dataclass(kw_only=True)
class BlockTensors:
    """The tensors of all blocks and which of them are one."""

    by_block: list[list[TensorRecord]]
    ties: tuple[TiedGroup, ...]
    tied_params: frozenset[str]
    num_params: int
    group_of: dict[str, int]

    @classmethod
    def of(cls, model: nn.Module, blocks: Sequence[BlockSpec]) -> BlockTensors:
        """Sort the tensors of a model by block."""
        block_of = {fqn: index for index, block in enumerate(blocks) for fqn in block.fqns}
        records = {record.fqn: record for record in tensor_records(model)}
        by_block: list[list[TensorRecord]] = [[] for _ in blocks]
        for record in records.values():
            by_block[block_of[record.fqn]].append(record)
        groups = tie_groups(model)
        group_of = {fqn: number for number, fqns in enumerate(groups) for fqn in fqns}
        firsts = {fqns[0] for fqns in groups}
        return cls(
            by_block=by_block,
            ties=tuple(TiedGroup(fqns=fqns, num_bytes=records[fqns[0]].num_bytes) for fqns in groups),
            tied_params=frozenset(fqn for fqn in group_of if not records[fqn].is_buffer),
            num_params=sum(
                math.prod(record.shape)
                for record in records.values()
                if not record.is_buffer and (record.fqn not in group_of or record.fqn in firsts)
            ),
            group_of=group_of,
        )

    def listed(self, order: Iterable[int]) -> dict[int, tuple[TensorRecord, ...]]:
        """Return the tensors that each block lists: of a tied group only the first in `order`."""
        seen: set[int] = set()
        listed: dict[int, tuple[TensorRecord, ...]] = {}
        for index in order:
            records = []
            for record in self.by_block[index]:
                group = self.group_of.get(record.fqn)
                if group is None or group not in seen:
                    records.append(record)
                if group is not None:
                    seen.add(group)
            listed[index] = tuple(records)
        return listed
