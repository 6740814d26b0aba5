from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_models import TOKENS
from plan_maker import CPU, make_plan

from bayplan.executor.errors import ContextExceededError
from bayplan.executor.load import loaded
from bayplan.executor.measure import MemoryMeter
from bayplan.executor.state import state_of


class Device:
    """A device whose memory is what the test says."""

    device_id = CPU
    device = torch.device("cpu")

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read

    def memory_bytes(self) -> int:
        return self._read()

    def memory_notes(self) -> tuple[str, ...]:
        return ("read by a test",)


def test_peak_is_the_highest_sample() -> None:
    figures = iter([5, 9, 3])
    meter = MemoryMeter()
    meter.watch(Device(lambda: next(figures)))  # type: ignore[arg-type]
    meter.sample()
    meter.sample()
    assert meter.peak_bytes() == {CPU: 9}


def test_peak_between_two_explicit_samples_is_seen() -> None:
    figure, seen_high = [1], threading.Event()

    def read() -> int:
        if figure[0] == 7:
            seen_high.set()
        return figure[0]

    meter = MemoryMeter()
    meter.watch(Device(read))  # type: ignore[arg-type]
    with meter.sampling():
        figure[0] = 7
        assert seen_high.wait(60)
        figure[0] = 2
    assert meter.peak_bytes() == {CPU: 7}


def test_sampling_ends_with_its_context() -> None:
    meter = MemoryMeter()
    with meter.sampling():
        assert "bayplan-meter" in {thread.name for thread in threading.enumerate()}
    assert "bayplan-meter" not in {thread.name for thread in threading.enumerate()}


def test_first_forward_and_steps_are_told_apart(llama: Path) -> None:
    with loaded(make_plan(llama), llama) as model, torch.no_grad():
        forwards: Any = state_of(model).forwards
        assert (forwards.first_output_ns, forwards.decode_ns) == (None, None)
        model(TOKENS)
        first = forwards.first_output_ns
        assert first > 0
        model(TOKENS)
        assert (forwards.first_output_ns, forwards.decode_ns) == (first, None)
        model.generate(TOKENS, attention_mask=torch.ones_like(TOKENS), max_new_tokens=4, do_sample=False)
        assert len(forwards._step_ns) == 3
        assert forwards.decode_ns > 0


def test_generating_past_the_planned_context(llama: Path) -> None:
    with loaded(make_plan(llama, context=9), llama) as model, torch.no_grad():
        mask = torch.ones_like(TOKENS)
        model.generate(TOKENS, attention_mask=mask, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        with pytest.raises(ContextExceededError) as raised:
            model.generate(TOKENS, attention_mask=mask, max_new_tokens=9, min_new_tokens=9, do_sample=False)
    assert (raised.value.noun, raised.value.planned) == ("positions", 9)
