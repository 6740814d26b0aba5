from __future__ import annotations

import functools
import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from bayplan.planner.model import activity
from bayplan.planner.model.activity import ActivityMode, EventKind, Handed, TraceTooLongError
from bayplan.planner.model.operations import RealPathMode, operation_flops
from bayplan.planner.model.tensor_arguments import storage_key, tensors_in


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def watching(*modules: nn.Module) -> ActivityMode:
    """A mode for which module n is block n, with its buffers watched for writes."""
    owners = {}
    buffers = set()
    for index, module in enumerate(modules):
        for tensor in (*module.parameters(), *module.buffers()):
            owners[storage_key(tensor)] = owners.get(storage_key(tensor), frozenset()) | {index}
        buffers.update(storage_key(buffer) for buffer in module.buffers())
    return ActivityMode(owners, frozenset(buffers))


def call(mode: ActivityMode, block: int, work: Callable[[], torch.Tensor]) -> torch.Tensor:
    mode.enter(block)
    output = work()
    mode.exit(block, output)
    return output


def live_bytes(mode: ActivityMode) -> int:
    signs = {EventKind.ALLOCATE: 1, EventKind.FREE: -1}
    return sum(signs.get(event.kind, 0) * event.num_bytes for event in mode.log.events)


def test_storages_are_counted_once_and_freed_when_the_last_view_goes() -> None:
    mode = watching()
    with torch.no_grad(), mode:
        base = torch.empty(8, 4, device="meta")
        view = base.view(4, 8).t()
        assert live_bytes(mode) == 128
        del base
        assert live_bytes(mode) == 128
        del view
        gc.collect()
    assert live_bytes(mode) == 0


def test_a_new_log_starts_with_what_is_alive() -> None:
    mode = watching()
    with torch.no_grad(), mode:
        kept = torch.empty(8, device="meta")
        mode.start()
    assert live_bytes(mode) == kept.nbytes


def test_flops_calls_and_output_of_a_block() -> None:
    linear = nn.Linear(4, 6, device="meta")
    mode = watching(linear)
    with torch.no_grad(), mode:
        inputs = meta(5, 4)
        call(mode, 0, lambda: linear(inputs))
        call(mode, 0, lambda: linear(inputs))
    assert mode.log.flops == {0: 2 * 2 * 5 * 4 * 6}
    assert mode.log.num_calls == {0: 2}
    assert mode.log.output_bytes == {0: 5 * 6 * 4}


def test_operations_of_a_block_but_no_views() -> None:
    linear = nn.Linear(4, 4, device="meta")
    mode = watching(linear)
    with torch.no_grad(), mode:
        inputs = meta(5, 4)
        call(mode, 0, lambda: linear(inputs).view(4, 5).t().relu())
        call(mode, 0, lambda: inputs.unsqueeze(0).neg())
    assert mode.log.operations == {0: 3}


def test_operations_between_the_calls_are_those_of_the_weights_or_else_the_results_that_they_read() -> None:
    first, second = nn.Linear(4, 4, device="meta"), nn.Linear(4, 4, device="meta")
    mode = watching(first, second)
    with torch.no_grad(), mode:
        inputs = meta(5, 4)
        outputs = call(mode, 0, lambda: first(inputs))
        outputs + second.bias
        outputs.exp()
        inputs.exp()  # nobody's
    assert mode.log.operations == {0: 2, 1: 1}


def test_weights_read_in_their_own_call_are_not_used_outside() -> None:
    linear = nn.Linear(4, 6, device="meta")
    mode = watching(linear)
    with torch.no_grad(), mode:
        call(mode, 0, lambda: linear(meta(5, 4)))
    assert mode.log.used_outside == set()


def test_weights_read_by_another_block_are_used_outside() -> None:
    linear, other = nn.Linear(4, 6, device="meta"), nn.Linear(4, 6, device="meta")
    mode = watching(linear, other)
    with torch.no_grad(), mode:
        call(mode, 1, lambda: nn.functional.linear(meta(5, 4), linear.weight))
    assert mode.log.used_outside == {0}
    assert 0 in mode.log.first_read


def test_a_view_made_beforehand_still_counts() -> None:
    linear = nn.Linear(4, 6, device="meta")
    transposed = linear.weight.t()
    mode = watching(linear)
    with torch.no_grad(), mode:
        meta(5, 4) @ transposed
    assert mode.log.used_outside == {0}


def test_writes_to_buffers_are_seen_through_views() -> None:
    norm = nn.BatchNorm1d(4, device="meta")
    mode = watching(norm)
    assert norm.running_mean is not None
    with torch.no_grad(), mode:
        norm.running_mean[:2].add_(1)
    assert mode.log.mutated == {0}


def test_writes_through_out_arguments_are_seen() -> None:
    norm = nn.BatchNorm1d(4, device="meta")
    mode = watching(norm)
    with torch.no_grad(), mode:
        torch.add(meta(4), meta(4), out=norm.running_mean)
    assert mode.log.mutated == {0}


def test_reading_a_buffer_is_no_write() -> None:
    norm = nn.BatchNorm1d(4, device="meta").eval()
    mode = watching(norm)
    with torch.no_grad(), mode:
        call(mode, 0, lambda: norm(meta(3, 4)))
    assert mode.log.mutated == set()


def test_inputs_of_a_block_name_their_makers_through_work_between() -> None:
    first, second = nn.Linear(4, 4, device="meta"), nn.Linear(4, 4, device="meta")
    mode = watching(first, second)
    with torch.no_grad(), mode:
        hidden = call(mode, 0, lambda: first(meta(5, 4)))
        scaled = hidden * 2
        call(mode, 1, lambda: second(scaled))
    ((num_bytes, producers),) = mode.log.inputs[1].values()
    assert (num_bytes, producers) == (5 * 4 * 4, frozenset({0}))


def test_what_is_written_into_a_tensor_counts_as_its_maker() -> None:
    first, second = nn.Linear(4, 4, device="meta"), nn.Linear(4, 4, device="meta")
    mode = watching(first, second)
    with torch.no_grad(), mode:
        target = torch.zeros(5, 4, device="meta")
        hidden = call(mode, 0, lambda: first(meta(5, 4)))
        target.copy_(hidden)
        call(mode, 1, lambda: second(target))
    assert [producers for _, producers in mode.log.inputs[1].values()] == [frozenset({0})]


def test_work_between_the_calls_is_that_of_the_weights_it_reads() -> None:
    """As for a head that is the embedding's table, and is no module."""
    embedding, norm = nn.Embedding(8, 4, device="meta"), nn.LayerNorm(4, device="meta")
    mode = watching(embedding, norm)
    with torch.no_grad(), mode:
        embedded = call(mode, 0, lambda: embedding(meta(5, dtype=torch.int64)))
        hidden = call(mode, 1, lambda: norm(embedded))
        logits = nn.functional.linear(hidden, embedding.weight)
        assert mode.log.flops == {0: 2 * 5 * 4 * 8}
        logits.T @ hidden
    assert mode.log.flops == {0: 2 * 5 * 4 * 8, 1: 2 * 8 * 5 * 4}


def test_blocks_called_in_turns_both_hand_on_what_is_added_up_behind_them() -> None:
    first, second, last = (nn.Linear(4, 4, device="meta") for _ in range(3))
    mode = watching(first, second, last)
    with torch.no_grad(), mode:
        hidden = meta(5, 4)
        for _ in range(2):
            one = call(mode, 0, functools.partial(first, hidden))
            hidden = call(mode, 1, functools.partial(second, one))
        total = one + hidden
        call(mode, 2, lambda: last(total))
    assert [producers for _, producers in mode.log.inputs[2].values()] == [frozenset({0, 1})]


def test_views_of_one_storage_are_handed_on_each() -> None:
    mode = watching()
    with torch.no_grad(), mode:
        mode.enter(0)
        fused = meta(5, 12)
        mode.exit(0, fused.chunk(3, dim=-1))
        mode.enter(1)
        mode.exit(1, (fused, fused[:, 0], fused))
    assert mode.log.output_bytes == {0: 5 * 12 * 4, 1: 5 * 12 * 4 + 5 * 4}


def test_asking_a_meta_tensor_for_a_truth_gives_false() -> None:
    with watching():
        assert not (meta(3) > 0).all()
        assert not (meta(3) > 0).any()


def test_asking_a_meta_tensor_for_a_number_fails() -> None:
    with watching(), pytest.raises(RuntimeError, match="meta"):
        meta(1).item()


def test_forward_of_too_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_OPERATIONS", 10)
    with watching(), pytest.raises(TraceTooLongError) as caught:
        nn.ModuleList(nn.Linear(1, 1, device="meta") for _ in range(20))
    assert str(caught.value) == "a forward takes more than 10 operations"


def test_tensors_are_found_in_nested_values() -> None:
    one, two = torch.zeros(1), torch.ones(1)
    assert list(tensors_in({"a": [one, None], "b": (3, {"c": two})})) == [one, two]


@pytest.mark.parametrize(
    ("query", "value_dim", "is_fused"),
    [((2, 4, 8, 16), 16, True), ((2, 4, 8, 16), 12, False), ((1, 4, 8, 16), 16, False)],
)
def test_attention_takes_the_way_of_real_tensors(
    query: tuple[int, ...], value_dim: int, is_fused: bool
) -> None:
    """Torch's own choice for real tensors of the same shapes decides what is expected."""
    real = [torch.zeros(query), torch.zeros(2, 4, 8, 16), torch.zeros(2, 4, 8, value_dim)]
    assert (torch._fused_sdp_choice(*real) != 0) is is_fused
    score_bytes = 2 * 4 * 8 * 8 * 4
    with RealPathMode(), watching() as mode, torch.no_grad():
        nn.functional.scaled_dot_product_attention(*(tensor.to("meta") for tensor in real))
    sizes = [event.num_bytes for event in mode.log.events if event.kind == EventKind.ALLOCATE]
    assert (sizes.count(score_bytes) == 0) is is_fused


@pytest.mark.parametrize(
    ("mask", "is_fused"),
    [((8, 8), True), ((2, 1, 8, 8), True), ((1, 8, 8), False), ((4, 8, 8), False)],
)
def test_attention_takes_the_way_of_real_masks(mask: tuple[int, ...], is_fused: bool) -> None:
    """The kernel takes masks of two or four dimensions only."""
    real = torch.zeros(2, 4, 8, 16)
    assert (torch._fused_sdp_choice(real, real, real, attn_mask=torch.zeros(mask)) != 0) is is_fused
    query = real.to("meta")
    with RealPathMode(), watching() as mode, torch.no_grad():
        nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=meta(*mask))
    sizes = [event.num_bytes for event in mode.log.events if event.kind == EventKind.ALLOCATE]
    assert (sizes.count(2 * 4 * 8 * 8 * 4) == 0) is is_fused


def test_attention_over_nothing_takes_no_kernel() -> None:
    query, key = torch.zeros(2, 4, 8, 16), torch.zeros(2, 4, 0, 16)
    for given in ((query, key, key), (key, query, query)):
        assert torch._fused_sdp_choice(*given) == 0
        with RealPathMode(), watching() as mode, torch.no_grad():
            nn.functional.scaled_dot_product_attention(*(tensor.to("meta") for tensor in given))
        assert [event.kind for event in mode.log.events].count(EventKind.OPERATE) > 1


def test_a_boolean_mask_becomes_a_float_one() -> None:
    query = meta(1, 2, 8, 4)
    mask = meta(1, 1, 8, 8, dtype=torch.bool)
    with RealPathMode(), watching() as mode, torch.no_grad():
        nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    assert 8 * 8 * 4 in [event.num_bytes for event in mode.log.events]


def test_attention_flops_are_the_same_fused_or_not() -> None:
    query, key = torch.zeros(2, 4, 8, 16), torch.zeros(2, 4, 6, 16)
    expected = 2 * 2 * 4 * 8 * 6 * (16 + 16)
    packet = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    assert operation_flops(packet, (query, key, key), {}, None) == expected


def test_grouped_products_on_meta_in_any_dtype() -> None:
    """Torch refuses them on meta tensors but in bf16, and computes them on real ones."""
    left, right, offsets = meta(6, 4), meta(3, 4, 5), meta(3, dtype=torch.int32)
    with watching() as mode:
        mode.enter(0)
        output = torch._grouped_mm(left, right, offs=offsets)
        mode.exit(0, output)
    assert tuple(output.shape) == (6, 5)
    assert mode.log.flops == {0: 2 * 6 * 4 * 5}


def test_work_in_calls_of_experts_is_counted_apart() -> None:
    dense, experts = nn.Linear(4, 4, device="meta"), nn.Linear(4, 6, device="meta")
    mode = watching(nn.ModuleList([dense, experts]))
    with torch.no_grad(), mode:
        inputs = meta(5, 4)
        for num_rows in (5, 3):
            mode.enter(0)
            dense(inputs)
            mode.enter_experts(0, Handed(per_token=2, hidden_bytes=16 * num_rows))
            experts(inputs[:num_rows])
            mode.exit_experts(0)
            output = dense(inputs)
            mode.exit(0, output)
    assert mode.log.expert_flops == {0: 2 * (5 + 3) * 4 * 6}
    assert mode.log.flops == {0: mode.log.expert_flops[0] + 4 * 2 * 5 * 4 * 4}
    assert mode.log.expert_bytes == {0: 16 * (5 + 3)}
    assert mode.log.expert_routes == {0: {2}}


@pytest.mark.parametrize("is_called", [True, False])
def test_experts_that_are_read_without_a_call_of_them(is_called: bool) -> None:
    experts = nn.Linear(4, 6, device="meta")
    key = storage_key(experts.weight)
    mode = ActivityMode({key: frozenset({3})}, frozenset(), experts={key: 3})
    with torch.no_grad(), mode:
        mode.enter(3)
        if is_called:
            mode.enter_experts(3, Handed(per_token=2, hidden_bytes=0))
        experts.weight.sum()
        if is_called:
            mode.exit_experts(3)
        mode.exit(3, None)
    assert mode.log.expert_routes == {3: {2} if is_called else {None}}


def test_a_call_of_experts_that_failed_is_over_when_the_next_forward_begins() -> None:
    experts = nn.Linear(4, 6, device="meta")
    key = storage_key(experts.weight)
    mode = ActivityMode({key: frozenset({3})}, frozenset(), experts={key: 3})
    with torch.no_grad(), mode:
        mode.enter(3)
        mode.enter_experts(3, Handed(per_token=2, hidden_bytes=0))
        mode.start()
        experts.weight.sum()
        with pytest.raises(NotImplementedError, match="nonzero"):
            torch.nonzero(meta(4))
    assert mode.log.expert_routes == {3: {None}}
