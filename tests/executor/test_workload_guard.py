from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from bayplan.executor.errors import ContextExceededError
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
    return WorkloadGuard(module, WORKLOAD, activation_bytes=2**20)


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
