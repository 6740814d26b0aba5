"""Operations on known and unknown values, against the same operations on real tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from bayplan.planner.model.activity import ActivityMode, EventKind, Handed
from bayplan.planner.model.known_values import MAX_KNOWN_ELEMENTS
from bayplan.planner.model.operations import RealPathMode


@pytest.fixture
def mode() -> Iterator[ActivityMode]:
    """A trace without blocks, running."""
    watching = ActivityMode({}, frozenset())
    with torch.no_grad(), RealPathMode(), watching:
        yield watching


def weights(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What nobody knows the values of."""
    return torch.empty(shape, dtype=dtype, device="meta")


MASK = [[True, False, True], [False, True, True]]

# Each takes a float `[2, 3, 4]` and a mask `[2, 3]`.
MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda x, mask: x + mask[..., None],
    "boolean index": lambda x, mask: x[mask],
    "boolean index of a part": lambda x, mask: x[:, mask[0]],
    "embedding": lambda x, mask: nn.functional.embedding(mask.long(), x[0]),
    "gather": lambda x, mask: x.gather(1, mask.long()[..., None]),
    "index put": lambda x, mask: x.index_put((mask,), x[0, 0]),
    "index select": lambda x, mask: x.index_select(1, mask.nonzero()[:, 1]),
    "kept where true": lambda x, mask: torch.where(mask[..., None], x, 0.0),
    "masked fill": lambda x, mask: x.masked_fill(~mask[..., None], -1.0),
    "masked scatter": lambda x, mask: x.masked_scatter(mask[..., None], x.flip(0)),
    "masked select": lambda x, mask: x.masked_select(mask[..., None]),
    "maximum": lambda x, mask: x.max(1),
    "normalized": lambda x, mask: nn.functional.layer_norm(x, (4,)),
    "repeated": lambda x, mask: x.repeat_interleave(mask.sum(0), dim=1),
    "rows": lambda x, mask: torch.stack([x[row, : int(mask[row].sum())].sum(0) for row in range(2)]),
    "split": lambda x, mask: x.flatten(0, 1).split([*mask.sum(1).tolist(), 2]),
    "top": lambda x, mask: x.topk(2),
    "transposed": lambda x, mask: (x.transpose(1, 2) * 2).contiguous(),
    "written in place": lambda x, mask: x.mul_(2).add_(mask[..., None]),
}


def shapes(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype)
    assert isinstance(value, tuple | list)
    return [shapes(item) for item in value]


@pytest.mark.parametrize("name", MIXED)
def test_shapes_are_those_of_real_tensors(name: str, mode: ActivityMode) -> None:
    """Twice: the second time they are remembered."""
    with torch._C._DisableTorchDispatch():
        expected = shapes(MIXED[name](torch.randn(2, 3, 4), torch.tensor(MASK)))
    for _ in range(2):
        found = MIXED[name](weights(2, 3, 4), torch.tensor(MASK))
        assert shapes(found) == expected
        assert all(tensor.is_meta for tensor in (found if isinstance(found, tuple | list) else [found]))


def test_integers_and_what_is_made_from_them_have_values(mode: ActivityMode) -> None:
    ids = torch.tensor([[3, 9, 9, 4]], device="meta")
    positions = torch.arange(4, device="meta")
    assert (ids == 9).nonzero().tolist() == [[0, 1], [0, 2]]
    assert positions[positions > 1].tolist() == [2, 3]
    assert int(positions.max()) == 3
    assert torch.linspace(0, 1, 3, device="meta").tolist() == [0.0, 0.5, 1.0]
    assert weights(2, 3).new_tensor([4]).tolist() == [4.0]
    assert torch.full((2,), 7, device="meta").tolist() == [7, 7]
    assert torch.ones_like(ids).sum().item() == 4
    assert weights(2, 3).new_zeros(2, dtype=torch.int64).tolist() == [0, 0]
    assert torch.empty(2, dtype=torch.int64, device="meta").tolist() == [0, 0]


def test_what_is_made_from_weights_has_none(mode: ActivityMode) -> None:
    made = (
        weights(2, 3).topk(1).indices,
        weights(2) + torch.arange(2),
        torch.zeros_like(weights(2, 3)),
        torch.rand(2),
        torch.arange(3.0).bernoulli(0.5),
        torch.empty(2),
        torch.zeros(2),
    )
    assert all(tensor.is_meta for tensor in made)


def test_large_results_have_a_shape_only(mode: ActivityMode) -> None:
    side = torch.arange(1024)
    small = side[:256, None] >= side[None, :256]
    large = side[:, None] >= side[None]
    assert small.numel() <= MAX_KNOWN_ELEMENTS < large.numel()
    assert not small.is_meta
    assert large.is_meta
    assert torch.arange(MAX_KNOWN_ELEMENTS + 1).is_meta
    assert torch.arange(2).repeat(MAX_KNOWN_ELEMENTS).is_meta
    assert torch.zeros(MAX_KNOWN_ELEMENTS + 1, dtype=torch.int64).is_meta
    assert not large.all()  # A question about an unknown mask is answered by the dearer way.


def test_a_number_that_is_not_known_is_an_error(mode: ActivityMode) -> None:
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        weights(1).item()
    mode.enter(0)
    with pytest.raises(NotImplementedError, match="nonzero"):
        (weights(3) > 0).nonzero()
    with pytest.raises(NotImplementedError, match="nonzero"):
        weights(3)[weights(3) > 0]


def test_between_the_blocks_an_unknown_mask_is_true_everywhere(mode: ActivityMode) -> None:
    """Idefics 2 leaves out images that are black; how many are, is in their values."""
    images = weights(2, 3, 4)
    are_real = (images == 0.0).sum((-1, -2)) != 12
    assert images[are_real].shape == (2, 3, 4)
    assert are_real.nonzero().shape == (2, 1)


def test_in_a_call_of_experts_all_positions_go_to_the_same_ones(mode: ActivityMode) -> None:
    """As the loop over experts in transformers' classes asks for the routes."""
    num_experts, num_routed, num_positions = 8, 2, 5
    index = weights(num_positions, num_experts).topk(num_routed).indices
    mode.enter(0)
    mode.enter_experts(0, Handed(per_token=num_routed, hidden_bytes=0))
    mask = nn.functional.one_hot(index, num_classes=num_experts).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    assert hit.tolist() == [[0], [1]]
    assert hit.untyped_storage().nbytes() == num_experts * 8
    route, position = torch.where(mask[hit[1, 0]])
    assert route.shape == position.shape == (num_positions,)
    assert position.is_meta
    mode.exit_experts(0)
    with pytest.raises(NotImplementedError, match="nonzero"):
        mask.nonzero()


def test_a_tensor_loses_its_values_where_weights_are_written_into_it(mode: ActivityMode) -> None:
    target = torch.zeros(3, dtype=torch.int64)
    row = target[1:]
    assert row.tolist() == [0, 0]
    row.copy_(weights(2))
    assert not target.is_meta
    assert (target + 1).is_meta
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        target[0].item()
    del target, row
    assert not torch.zeros(3, dtype=torch.int64).add(1).is_meta


def test_moving_is_nothing(mode: ActivityMode) -> None:
    """In a real run all is on one device."""
    mode.start()
    ids, hidden = torch.arange(4), weights(4)
    before = len([event for event in mode.log.events if event.kind == EventKind.ALLOCATE])
    assert ids.to("meta").tolist() == [0, 1, 2, 3]
    assert hidden.to("cpu").is_meta
    assert hidden.cpu().is_meta
    assert len([event for event in mode.log.events if event.kind == EventKind.ALLOCATE]) == before
    assert ids.to("meta", torch.int32).dtype == torch.int32
    assert hidden.to("cpu", torch.bfloat16).dtype == torch.bfloat16


def test_numbers_of_other_types_are_other_operations(mode: ActivityMode) -> None:
    ids = weights(3, dtype=torch.int32)
    assert [(ids * factor).dtype for factor in (2, 2.0, 2, True)] == [
        torch.int32,
        torch.float32,
        torch.int32,
        torch.int32,
    ]


def test_memory_is_that_of_real_tensors(mode: ActivityMode) -> None:
    """The same operations on real tensors alone, under the same watch, leave the same log."""

    def work(hidden: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor(MASK)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        picked = hidden[mask]
        return picked.mean(0) + hidden.gather(1, positions[..., None].expand(-1, -1, 4)).sum((0, 1))

    def events(hidden: torch.Tensor) -> list[tuple[EventKind, int]]:
        mode.start()
        work(hidden)
        memory = (EventKind.ALLOCATE, EventKind.FREE)
        return [(event.kind, event.num_bytes) for event in mode.log.events if event.kind in memory]

    with torch._C._DisableTorchDispatch():
        real = torch.randn(2, 3, 4)
    on_meta = events(weights(2, 3, 4))
    assert on_meta[1:] == events(real)[: len(on_meta) - 1]
