from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from bayplan.schemas.dtypes import DtypeError
from bayplan.schemas.graph import Linears, TensorRecord, TensorRole
from bayplan.skeleton.empty import empty_weights
from bayplan.skeleton.tree import tensor_records, tie_groups, tree_digest

if TYPE_CHECKING:
    from conftest import Checkpoint


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0, dtype=torch.bfloat16))
        self.norm = nn.BatchNorm1d(2)
        self.first = nn.Linear(2, 3, bias=False)
        self.second = nn.Linear(2, 3, bias=False)
        self.second.weight = self.first.weight
        self.again = self.norm
        self.register_buffer("table", torch.zeros(5, dtype=torch.int8), persistent=False)
        self.register_buffer("none", None)


LINES = """\
again.bias fp32[2]
again.num_batches_tracked int64[]
again.running_mean fp32[2]
again.running_var fp32[2]
again.weight fp32[2]
first.weight fp32[3,2]
norm.bias fp32[2]
norm.num_batches_tracked int64[]
norm.running_mean fp32[2]
norm.running_var fp32[2]
norm.weight fp32[2]
scale bf16[]
second.weight fp32[3,2]
"""


def test_tree_digest_is_that_of_the_documented_lines() -> None:
    assert tree_digest(Tree()) == f"sha256:{hashlib.sha256(LINES.encode()).hexdigest()}"


def test_tree_digest_is_the_same_on_meta() -> None:
    with empty_weights():
        empty = Tree()
    assert tree_digest(empty) == tree_digest(Tree())


def test_tree_digest_sees_names_shapes_and_dtypes() -> None:
    trees = [Tree() for _ in range(5)]
    trees[1].first.weight = nn.Parameter(torch.zeros(2, 3))
    trees[2].scale = nn.Parameter(torch.tensor(1.0))
    trees[3].register_buffer("more", torch.zeros(1))
    trees[4].register_buffer("more", torch.zeros(1), persistent=False)
    digests = [tree_digest(tree) for tree in trees]
    assert len(set(digests)) == 4
    assert digests[4] == digests[0]


def test_tensor_records() -> None:
    records = {record.fqn: record for record in tensor_records(Tree())}
    assert list(records)[:4] == ["scale", "table", "norm.weight", "norm.bias"]
    assert records["scale"] == TensorRecord(fqn="scale", shape=(), dtype="bf16", num_bytes=2)
    assert records["second.weight"] == TensorRecord(
        fqn="second.weight",
        shape=(3, 2),
        dtype="fp32",
        num_bytes=24,
        role=TensorRole.LINEAR,
        linears=Linears(count=1, out_features=3, in_features=2),
    )
    assert records["table"] == TensorRecord(
        fqn="table", shape=(5,), dtype="int8", num_bytes=5, is_buffer=True, is_persistent=False
    )
    assert records["norm.num_batches_tracked"].is_buffer


def test_a_parameter_that_is_kept_from_training_is_recorded_but_changes_no_digest() -> None:
    tree = Tree()
    tree.first.weight.requires_grad_(False)
    frozen = [record.fqn for record in tensor_records(tree) if record.is_frozen]
    assert frozen == ["first.weight", "second.weight"]
    assert not any(record.is_frozen for record in tensor_records(Tree()))
    assert tree_digest(tree) == tree_digest(Tree())


def test_records_list_what_state_dict_lists(checkpoint: Checkpoint) -> None:
    state = checkpoint.reference.state_dict()
    records = [record for record in tensor_records(checkpoint.reference) if record.is_persistent]
    assert [record.fqn for record in records] == list(state)
    assert [record.num_bytes for record in records] == [tensor.nbytes for tensor in state.values()]


@pytest.mark.parametrize("is_empty", [False, True])
def test_tie_groups(is_empty: bool) -> None:
    if is_empty:
        with empty_weights():
            tree = Tree()
    else:
        tree = Tree()
    names = ("bias", "num_batches_tracked", "running_mean", "running_var", "weight")
    assert tie_groups(tree) == (
        *((f"again.{name}", f"norm.{name}") for name in names),
        ("first.weight", "second.weight"),
    )


def test_views_are_tied_if_they_are_the_same_elements() -> None:
    flat = torch.zeros(10)
    params = nn.ParameterList([nn.Parameter(flat[:5]), nn.Parameter(flat[:5]), nn.Parameter(flat[5:])])
    assert tie_groups(params) == (("0", "1"),)


def test_empty_tensors_are_not_tied() -> None:
    assert tie_groups(nn.ParameterList([nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0))])) == ()


def test_dtype_that_no_checkpoint_holds() -> None:
    module = nn.ParameterList([torch.zeros(1, dtype=torch.complex128)])
    for function in (tensor_records, tree_digest):
        with pytest.raises(DtypeError) as caught:
            function(module)
        assert str(caught.value).startswith("no checkpoint holds this dtype: got torch.complex128, ")
