from __future__ import annotations

import pytest
from form_graphs import block, linear, record

from bayplan.planner.block_owner import owning_block, tied_elsewhere_bytes
from bayplan.schemas.graph import TiedGroup

IDS = frozenset({":own", "embed", "model:own", "model.h.0", "model.h.10", "model.head"})


@pytest.mark.parametrize(
    ("fqn", "owner"),
    [
        ("scale", ":own"),
        ("embed.weight", "embed"),
        ("model.positions", "model:own"),
        ("model.h.0.q.weight", "model.h.0"),
        ("model.h.10.q.weight", "model.h.10"),
        ("model.h.1.q.weight", None),
        ("other.weight", None),
    ],
)
def test_owning_block(fqn: str, owner: str | None) -> None:
    assert owning_block(IDS, fqn) == owner


def test_tied_weights_count_where_they_are_used_but_not_listed() -> None:
    blocks = (
        block("a", linear("a.weight", 8, 8)),
        block("b", record("b.bias", (8,), "bf16")),
        block("c"),
        block("m:own"),
    )
    ties = (
        TiedGroup(fqns=("a.weight", "b.weight", "c.weight"), num_bytes=128),
        TiedGroup(fqns=("b.bias", "c.bias", "gone.bias", "m.bias"), num_bytes=16),
    )
    assert tied_elsewhere_bytes(blocks, ties) == {"a": 0, "b": 128, "c": 144, "m:own": 16}
