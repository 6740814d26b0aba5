from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from executor_models import TOKENS, reference, save
from plan_maker import make_plan
from torch import nn
from transformers import (
    DynamicCache,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    ReformerConfig,
    ReformerModelWithLMHead,
    XLMConfig,
    XLMWithLMHeadModel,
)
from transformers.modeling_outputs import BaseModelOutput

from bayplan.executor.errors import ContextExceededError
from bayplan.executor.load import loaded
from bayplan.executor.workload_guard import WorkloadGuard
from bayplan.schemas.plan import Workload


class Text(nn.Module):
    def forward(self, input_ids: Any = None, past_key_values: Any = None, inputs_embeds: Any = None) -> None:
        raise NotImplementedError


class TwoStacks(nn.Module):
    class config:
        is_encoder_decoder = True

    def forward(
        self, input_ids: Any = None, decoder_input_ids: Any = None, encoder_outputs: Any = None
    ) -> None:
        raise NotImplementedError


class Captions(TwoStacks):
    """Its encoder's positions are pieces of an image, as many as the model says."""

    main_input_name = "pixel_values"


class Image(nn.Module):
    main_input_name = "pixel_values"

    def forward(self, pixel_values: Any) -> None:
        raise NotImplementedError


WORKLOAD = Workload(batch=2, context=10, encoder_context=6, prefill_chunk=8, kv_dtype="fp32")


def ids(batch: int, positions: int) -> torch.Tensor:
    return torch.zeros(batch, positions, dtype=torch.int64)


def guard(module: nn.Module) -> WorkloadGuard:
    return WorkloadGuard(module, WORKLOAD, room_bytes=2**20)


def encoded(batch: int, positions: int) -> torch.Tensor:
    return torch.zeros(batch, positions, 4)


def cache(num_positions: int) -> DynamicCache:
    filled = DynamicCache()
    filled.update(torch.zeros(1, 1, num_positions, 4), torch.zeros(1, 1, num_positions, 4), 0)
    return filled


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "call"),
    [
        (Text(), (ids(2, 8),), {}, (0, 8)),
        (Text(), (ids(1, 1), cache(9)), {}, (9, 1)),
        (Text(), (), {"input_ids": ids(1, 2), "cache": cache(8)}, (8, 2)),
        (Text(), (ids(1, 1), DynamicCache()), {}, (0, 1)),
        (Text(), (), {"inputs_embeds": torch.zeros(2, 8, 4)}, (0, 8)),
        (TwoStacks(), (ids(2, 6), ids(2, 8)), {}, (0, 8)),
        (TwoStacks(), (ids(2, 6),), {"labels": ids(2, 3)}, (0, 3)),
        (TwoStacks(), (ids(2, 6),), {}, (0, 6)),
        (TwoStacks(), (), {"decoder_input_ids": ids(2, 2), "encoder_outputs": (encoded(2, 6),)}, (0, 2)),
        (Image(), (torch.zeros(2, 3, 99, 99),), {}, (0, 0)),
        (Captions(), (None, ids(1, 1)), {"encoder_outputs": [encoded(1, 50)]}, (0, 1)),
        (Text(), (), {}, (0, 0)),
    ],
)
def test_planned_work_passes(module: nn.Module, args: Any, kwargs: Any, call: tuple[int, int]) -> None:
    assert guard(module).check(args, kwargs) == call


@pytest.mark.parametrize(
    ("module", "args", "noun", "got", "planned", "option"),
    [
        (TwoStacks(), (None, None, (encoded(5, 6),)), "sequences", 5, 2, "--batch"),
        (TwoStacks(), (None, ids(3, 1)), "sequences", 3, 2, "--batch"),
        (TwoStacks(), (None, ids(1, 1), [encoded(1, 7)]), "encoder positions", 7, 6, "--encoder-context"),
        (
            TwoStacks(),
            (None, ids(1, 1), BaseModelOutput(last_hidden_state=encoded(1, 7))),
            "encoder positions",
            7,
            6,
            "--encoder-context",
        ),
        (Text(), (None, None, torch.zeros(3, 1, 4)), "sequences", 3, 2, "--batch"),
        (Text(), (ids(3, 1),), "sequences", 3, 2, "--batch"),
        (Text(), (ids(1, 9),), "positions in one forward", 9, 8, "--prefill-chunk"),
        (Text(), (ids(1, 11),), "positions", 11, 10, "--context"),
        (Text(), (ids(1, 1), cache(10)), "positions", 11, 10, "--context"),
        (Text(), (None, None, torch.zeros(1, 11, 4)), "positions", 11, 10, "--context"),
        (TwoStacks(), (ids(1, 7), ids(1, 1)), "encoder positions", 7, 6, "--encoder-context"),
        (TwoStacks(), (ids(1, 6), ids(1, 11)), "positions", 11, 10, "--context"),
        (Image(), (torch.zeros(3, 3, 9, 9),), "sequences", 3, 2, "--batch"),
    ],
)
def test_work_beyond_the_plan(
    module: nn.Module, args: Any, noun: str, got: int, planned: int, option: str
) -> None:
    with pytest.raises(ContextExceededError) as raised:
        guard(module).check(args, {})
    assert str(raised.value) == (
        f"more {noun} than planned: got {got}, needed at most {planned}\nhint: plan again with {option} {got}"
    )
    assert (raised.value.noun, raised.value.planned) == (noun, planned)


class StateCache:
    """A cache that has no positions to count."""

    def __init__(self) -> None:
        self.is_empty = False

    def get_seq_length(self) -> int:
        raise ValueError("no layer of attention")

    def has_previous_state(self) -> bool:
        return not self.is_empty


class SilentCache:
    def get_seq_length(self) -> None:
        return None


@pytest.mark.parametrize("make", [StateCache, SilentCache])
def test_positions_in_a_cache_that_does_not_know_its_length_are_counted(make: type[Any]) -> None:
    cache, text = make(), guard(Text())
    assert text.check((ids(1, 6), cache), {}) == (0, 6)
    for num_cached in range(6, 10):
        assert text.check((ids(1, 1), cache), {}) == (num_cached, 1)
    with pytest.raises(ContextExceededError) as raised:
        text.check((ids(1, 1), cache), {})
    assert (raised.value.noun, raised.value.got) == ("positions", "11")
    assert text.check((ids(1, 6), make()), {}) == (0, 6)


def test_cache_that_was_emptied_counts_anew() -> None:
    cache, text = StateCache(), guard(Text())
    text.check((ids(1, 8), cache), {})
    cache.is_empty = True
    assert text.check((ids(1, 8), cache), {}) == (0, 8)


class Resending(Text):
    """Is given the whole sequence at every step."""

    class config:
        model_type = "xlm"


def test_sequence_that_is_given_again_is_counted_once() -> None:
    assert guard(Resending()).check((ids(1, 8), cache(7)), {}) == (7, 1)
    assert guard(Resending()).check((ids(1, 10), cache(9)), {}) == (9, 1)
    with pytest.raises(ContextExceededError) as raised:
        guard(Resending()).check((ids(1, 11), cache(10)), {})
    assert (raised.value.noun, raised.value.got) == ("positions", "11")


MODELS: dict[str, tuple[type[PreTrainedModel], PreTrainedConfig]] = {
    "mamba": (
        MambaForCausalLM,
        MambaConfig(
            vocab_size=128, hidden_size=32, num_hidden_layers=2, state_size=4, pad_token_id=0, eos_token_id=2
        ),
    ),
    "reformer": (
        ReformerModelWithLMHead,
        ReformerConfig(
            vocab_size=128, hidden_size=32, attn_layers=["local", "lsh"], num_attention_heads=2,
            attention_head_size=8, axial_pos_embds_dim=[16, 16], axial_pos_shape=[4, 16],
            feed_forward_size=32, is_decoder=True, hash_seed=0, num_hashes=1, num_buckets=4,
            max_position_embeddings=64, pad_token_id=0, eos_token_id=2,
        ),
    ),
    "xlm": (
        XLMWithLMHeadModel,
        XLMConfig(vocab_size=128, emb_dim=32, n_layers=2, n_heads=4, pad_token_id=0, eos_token_id=2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_planned_positions_can_be_generated_and_not_more(name: str, tmp_path: Path) -> None:
    model_class, config = MODELS[name]
    folder = save(model_class, config, tmp_path)
    num_new = 5
    options = {"min_new_tokens": num_new, "max_new_tokens": num_new, "do_sample": False}
    expected = reference(model_class, folder).generate(TOKENS, **options)
    # The last token is not put into the cache; the other model has a mask in its place.
    context = TOKENS.shape[1] + num_new - (0 if name == "xlm" else 1)
    with loaded(make_plan(folder, context=context), folder) as model, torch.no_grad():
        assert torch.equal(model.generate(TOKENS, **options), expected)
    with loaded(make_plan(folder, context=context - 1), folder) as model, torch.no_grad():
        with pytest.raises(ContextExceededError) as raised:
            model.generate(TOKENS, **options)
        assert (raised.value.noun, raised.value.got) == ("positions", str(context))
