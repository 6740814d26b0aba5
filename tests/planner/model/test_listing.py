from __future__ import annotations

from torch import nn

from bayplan.planner.model.listing import listing_warnings
from bayplan.schemas.checkpoint_index import ShardIndex


def listing(*names: str) -> ShardIndex:
    weight_map = dict.fromkeys(names, "model-00001-of-00001.safetensors")
    return ShardIndex(file="folder/index.json", weight_map=weight_map, metadata_total_bytes=None)


def test_an_index_that_covers_the_class() -> None:
    assert listing_warnings(listing("weight", "bias", "more"), nn.Linear(2, 2)) == ()


def test_an_index_that_does_not() -> None:
    assert listing_warnings(listing("weight"), nn.Linear(2, 2)) == (
        "folder/index.json lists no tensor for 1 parameters of Linear: bias",
    )


def test_many_names_are_counted() -> None:
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    assert listing_warnings(listing("other"), module) == (
        "folder/index.json lists no tensor for 6 parameters of Sequential: "
        "0.bias, 0.weight, 1.bias, 1.weight, 2.bias, ...",
    )
