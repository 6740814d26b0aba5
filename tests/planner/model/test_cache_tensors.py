from __future__ import annotations

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import CausalLMOutputWithPast, ModelOutput

from bayplan.planner.model.cache_tensors import cache_tensors, find_cache


def filled_cache(num_layers: int, num_positions: int) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(num_layers):
        cache.update(torch.zeros(1, 2, num_positions, 4), torch.zeros(1, 2, num_positions, 4), layer)
    return cache


def test_keys_and_values_of_every_layer() -> None:
    tensors = cache_tensors(filled_cache(3, 5))
    assert [tuple(tensor.shape) for tensor in tensors] == [(1, 2, 5, 4)] * 6


def test_both_caches_of_an_encoder_decoder() -> None:
    assert len(cache_tensors(EncoderDecoderCache(filled_cache(2, 5), filled_cache(2, 7)))) == 8


def test_plain_tuples_and_shared_tensors() -> None:
    one, two = torch.zeros(2), torch.ones(1)
    assert [id(tensor) for tensor in cache_tensors(((one, two), {"again": one}))] == [id(one), id(two)]


def test_counters_are_part_of_it() -> None:
    """A layer with a window counts its positions in a tensor of its own."""
    assert [tuple(tensor.shape) for tensor in cache_tensors([torch.tensor(3), torch.zeros(2)])] == [(), (2,)]


def test_a_cycle_ends() -> None:
    loop: list[object] = [torch.zeros(1)]
    loop.append(loop)
    assert len(cache_tensors(loop)) == 1


def test_cache_is_found_under_its_argument_name() -> None:
    cache = filled_cache(1, 2)
    found = find_cache(CausalLMOutputWithPast(logits=torch.zeros(1), past_key_values=cache))
    assert found is not None
    assert found[1] is cache


def test_an_output_without_cache() -> None:
    assert find_cache(CausalLMOutputWithPast(logits=torch.zeros(1))) is None
    assert find_cache(ModelOutput(logits=torch.zeros(1))) is None
    assert find_cache(torch.zeros(1)) is None
