from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import ARCHITECTURES, build
from torch import nn

from bayplan.planner.model.blocks import no_split_classes, partition
from bayplan.schemas.errors import UsageError
from bayplan.skeleton.tree import named_tensors


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2, 3)
        self.down = nn.Linear(3, 2)


class Declared(nn.Module):
    _no_split_modules = ("Layer",)

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("offset", torch.zeros(1))
        self.first = Layer()
        self.tower = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        self.stage = nn.ModuleDict({"inner": Layer(), "norm": nn.LayerNorm(2)})
        self.activation = nn.ReLU()


def ids(model: nn.Module, no_split: tuple[str, ...] = ()) -> list[str]:
    return [block.id for block in partition(model, no_split=no_split)]


def test_declared_classes_split_what_holds_them() -> None:
    assert ids(Declared()) == [":own", "first", "tower", "stage.inner", "stage.norm"]


def test_own_tensors_of_a_split_module_are_a_block() -> None:
    own = partition(Declared())[0]
    assert (own.is_own, own.class_name, own.fqns) == (True, "Declared", ("scale", "offset"))


def test_the_users_classes_replace_the_models() -> None:
    assert ids(Declared(), ("Linear",))[:3] == [":own", "first.up", "first.down"]


def test_repeated_classes_of_a_list_are_layers() -> None:
    model = nn.Module()
    model.body = nn.Sequential(*(Layer() for _ in range(3)))
    assert no_split_classes(model) == {"Layer"}
    assert ids(model) == ["body.0", "body.1", "body.2"]


def test_repeated_classes_count_where_the_model_says_nothing() -> None:
    class Other(Layer):
        pass

    model = Declared()
    model.vision = nn.ModuleList([Other(), Other()])
    assert {"vision.0", "vision.1", "first"} <= set(ids(model))


def test_classes_inside_a_repeated_class_are_not_looked_at() -> None:
    class Expert(Layer):
        pass

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([Expert(), Expert()])

    model = nn.ModuleList([Routed(), Routed()])
    assert no_split_classes(model) == {"Routed"}


def test_lists_nobody_calls_are_split() -> None:
    model = nn.Module()
    model.heads = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 3)])
    assert ids(model) == ["heads.0", "heads.1"]


def test_a_leaf_alone_is_its_own_tensors() -> None:
    (block,) = partition(nn.Linear(2, 2))
    assert (block.id, block.is_own, block.fqns) == (":own", True, ("weight", "bias"))


def test_a_model_without_tensors_has_no_blocks() -> None:
    assert partition(nn.Sequential(nn.ReLU())) == ()


def test_a_module_under_two_names_is_one_block() -> None:
    model = nn.Module()
    model.one = nn.Linear(2, 2)
    model.two = model.one
    (block,) = partition(model)
    assert block.fqns == ("one.weight", "one.bias", "two.weight", "two.bias")


def test_unknown_no_split_class() -> None:
    with pytest.raises(UsageError) as caught:
        partition(Declared(), no_split=("Layr", "Layer"))
    assert str(caught.value) == (
        "--no-split: no module of the model has this class: got Layr, needed one of Layer, LayerNorm, "
        "Linear, ModuleDict, ReLU, Sequential\n"
        "hint: class names are case-sensitive and the model's own class cannot be kept whole"
    )


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_tensor_name_is_in_exactly_one_block(name: str) -> None:
    model = build(name)
    held = [fqn for block in partition(model) for fqn in block.fqns]
    assert sorted(held) == sorted(named.fqn for named in named_tensors(model))


class A(nn.Module):
    pass


class B(nn.Module):
    pass


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> nn.Module:
    """A random tree of two classes, lists and leaves, with shared modules and own tensors."""
    kind = draw(st.sampled_from(["leaf", "A", "B", "list", "sequential"] if depth else ["leaf"]))
    if kind == "leaf":
        return nn.Linear(1, 1)
    children = draw(st.lists(trees(depth - 1), max_size=3))
    if children and draw(st.booleans()):
        children.append(children[0])
    if kind == "list":
        return nn.ModuleList(children)
    if kind == "sequential":
        return nn.Sequential(*children)
    module = A() if kind == "A" else B()
    for number, child in enumerate(children):
        module.add_module(f"child{number}", child)
    if draw(st.booleans()):
        module.own = nn.Parameter(torch.ones(1))
    return module


@given(trees(), st.sampled_from([(), ("A",), ("B",), ("A", "B")]))
def test_any_tree_is_partitioned(model: nn.Module, wanted: tuple[str, ...]) -> None:
    present = {type(module).__name__ for module in model.modules() if module is not model}
    blocks = partition(model, no_split=[name for name in wanted if name in present])
    held = [fqn for block in blocks for fqn in block.fqns]
    assert sorted(held) == sorted(named.fqn for named in named_tensors(model))
    assert len({block.id for block in blocks}) == len(blocks)
    assert all(block.fqns for block in blocks)
