from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from bayplan.executor.errors import ContextExceededError
from bayplan.executor.workload_guard import WorkloadGuard
from bayplan.schemas.plan import Workload


class Text(nn.Module):
    def forward(self, input_ids: Any = None, past_key_values: Any = None, inputs_embeds: Any = None) -> None:
        raise NotImplementedError


class TwoStacks(nn.Module):
    class config:
        is_encoder_decoder = True

    def forward(self, input_ids: Any = None, decoder_input_ids: Any = None) -> None:
        raise NotImplementedError


class Image(nn.Module):
    main_input_name = "pixel_values"

    def forward(self, pixel_values: Any) -> None:
        raise NotImplementedError


WORKLOAD = Workload(batch=2, context=10, encoder_context=6, prefill_chunk=8, kv_dtype="fp32")


def ids(batch: int, positions: int) -> torch.Tensor:
    return torch.zeros(batch, positions, dtype=torch.int64)


def cache(num_positions: int) -> DynamicCache:
    filled = DynamicCache()
    filled.update(torch.zeros(1, 1, num_positions, 4), torch.zeros(1, 1, num_positions, 4), 0)
    return filled


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "is_step"),
    [
        (Text(), (ids(2, 8),), {}, False),
        (Text(), (ids(1, 1), cache(9)), {}, True),
        (Text(), (), {"input_ids": ids(1, 2), "cache": cache(8)}, True),
        (Text(), (ids(1, 1), DynamicCache()), {}, False),
        (Text(), (), {"inputs_embeds": torch.zeros(2, 8, 4)}, False),
        (TwoStacks(), (ids(2, 6), ids(2, 8)), {}, False),
        (Image(), (torch.zeros(2, 3, 99, 99),), {}, False),
        (Text(), (), {}, False),
    ],
)
def test_planned_work_passes(module: nn.Module, args: Any, kwargs: Any, is_step: bool) -> None:
    assert WorkloadGuard(module, WORKLOAD).check(args, kwargs) is is_step


@pytest.mark.parametrize(
    ("module", "args", "noun", "got", "planned", "option"),
    [
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
        WorkloadGuard(module, WORKLOAD).check(args, {})
    assert str(raised.value) == (
        f"more {noun} than planned: got {got}, needed at most {planned}\nhint: plan again with {option} {got}"
    )
    assert (raised.value.noun, raised.value.planned) == (noun, planned)
