from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from executor_models import TOKENS, save
from plan_maker import CPU, changed, make_plan
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from bayplan.executor import measure
from bayplan.executor.errors import ContextExceededError
from bayplan.executor.load import loaded
from bayplan.executor.measure import ForwardMeter, MemoryMeter
from bayplan.executor.state import state_of
from bayplan.executor.workload_guard import Call


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


def test_a_sample_of_one_thread_does_not_undo_that_of_another() -> None:
    is_slow_one_reading, has_seen_high = threading.Event(), threading.Event()

    def read() -> int:
        if threading.current_thread().name == "slow":
            is_slow_one_reading.set()
            assert has_seen_high.wait(60)
            return 5
        return 9

    meter = MemoryMeter()
    meter._backends.append(Device(read))  # type: ignore[arg-type]
    slow = threading.Thread(target=meter.sample, name="slow")
    slow.start()
    assert is_slow_one_reading.wait(60)
    meter.sample()
    has_seen_high.set()
    slow.join(60)
    assert meter.peak_bytes() == {CPU: 9}


def test_notes_of_all_devices_stand_there_once() -> None:
    meter = MemoryMeter()
    assert meter.notes() == ()
    meter.watch(Device(lambda: 1))  # type: ignore[arg-type]
    meter.watch(Device(lambda: 2))  # type: ignore[arg-type]
    assert meter.notes() == ("read by a test",)


class Clock(nn.Module):
    """A model whose forwards take as long as they are told, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now_ns = 0
        monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: self.now_ns)

    def forward(self, call: Call, taken_ns: int, then: Callable[[], None] = lambda: None) -> Call:
        self.now_ns += taken_ns
        then()
        return call


class Positions:
    """A guard that takes a call's word for what it is."""

    def check(self, args: tuple[Any, ...], kwargs: dict[str, object]) -> Call:
        found: Call = args[0]
        return found


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, ForwardMeter]:
    model, meter = Clock(monkeypatch), ForwardMeter(Positions(), MemoryMeter())  # type: ignore[arg-type]
    meter.install(model)
    return model, meter


def test_first_output_is_there_after_the_last_chunk(timed: tuple[Clock, ForwardMeter]) -> None:
    model, meter = timed
    for call, taken_ns in ((Call(0, 4), 100), (Call(4, 4), 20), (Call(8, 2), 3)):
        model(call, taken_ns)
    assert (meter.first_output_ns, meter.decode_ns) == (123, None)
    for num_cached, taken_ns in ((10, 7), (11, 9), (12, 8)):
        model(Call(num_cached, 1), taken_ns)
    model(Call(13, 5), 1000)  # another message in the same conversation
    assert (meter.first_output_ns, meter.decode_ns) == (123, 8)


def test_last_chunk_of_one_position_is_no_step(timed: tuple[Clock, ForwardMeter]) -> None:
    model, meter = timed
    for _ in range(2):
        with meter.prompt_of(5):
            for call, taken_ns in ((Call(0, 2), 100), (Call(2, 2), 20), (Call(4, 1), 3), (Call(5, 1), 8)):
                model(call, taken_ns)
    assert (meter.first_output_ns, meter.decode_ns) == (123, 8)
    assert len(meter._step_ns) == 2


def test_forward_that_fails_is_not_counted(timed: tuple[Clock, ForwardMeter]) -> None:
    model, meter = timed

    def fail() -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        model(Call(0, 4), 100, fail)
    assert meter.first_output_ns is None
    model(Call(0, 4), 5)
    assert meter.first_output_ns == 5


def test_threads_have_times_of_their_own(timed: tuple[Clock, ForwardMeter]) -> None:
    model, meter = timed

    def other() -> None:
        thread = threading.Thread(target=model, args=(Call(4, 1), 3))
        thread.start()
        thread.join(60)

    model(Call(0, 4), 1)
    model(Call(4, 1), 100, other)
    assert sorted(meter._step_ns) == [3, 103]


def test_encoder_is_part_of_the_first_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, pad_token_id=0,
        decoder_start_token_id=0, eos_token_id=1,
    )  # fmt: skip
    folder = save(T5ForConditionalGeneration, config, tmp_path)
    now_ns = [0]
    with loaded(make_plan(folder), folder) as model, torch.no_grad():
        monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: now_ns[0])
        model.encoder.block[0].register_forward_hook(lambda *_: now_ns.append(now_ns.pop() + 1000))
        model.decoder.block[0].register_forward_hook(lambda *_: now_ns.append(now_ns.pop() + 10))
        forwards = state_of(model).forwards
        model.generate(TOKENS % 64, max_new_tokens=3, min_new_tokens=3, do_sample=False)
        assert (forwards.first_output_ns, forwards.decode_ns) == (1010, 10)
        assert len(forwards._step_ns) == 2
    with loaded(make_plan(folder), folder) as model, torch.no_grad():
        model.encoder.block[0].register_forward_hook(lambda *_: now_ns.append(now_ns.pop() + 1000))
        model.decoder.block[0].register_forward_hook(lambda *_: now_ns.append(now_ns.pop() + 10))
        model(TOKENS % 64, decoder_input_ids=TOKENS[:, :1] % 64)
        assert state_of(model).forwards.first_output_ns == 1010


def test_generate_in_chunks_is_one_first_output(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(llama)
    plan = changed(plan, workload=msgspec.structs.replace(plan.workload, prefill_chunk=2))
    now_ns = [0]
    with loaded(plan, llama) as model, torch.no_grad():
        monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: now_ns[0])
        model.lm_head.register_forward_hook(lambda *_: now_ns.append(now_ns.pop() + 10))
        model.generate(
            TOKENS,
            attention_mask=torch.ones_like(TOKENS),
            max_new_tokens=3,
            do_sample=False,
            prefill_chunk_size=2,
        )
        forwards = state_of(model).forwards
        assert (forwards.first_output_ns, forwards.decode_ns) == (30, 10)
        assert len(forwards._step_ns) == 2


@pytest.mark.parametrize(
    ("inputs", "noun", "got"),
    [((5, 6), "sequences", 5), ((1, 50), "encoder positions", 50)],
)
def test_encoder_that_generate_calls_by_itself_is_held_to_the_plan(
    tmp_path: Path, inputs: tuple[int, int], noun: str, got: int
) -> None:
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, pad_token_id=0,
        decoder_start_token_id=0, eos_token_id=1,
    )  # fmt: skip
    folder = save(T5ForConditionalGeneration, config, tmp_path)
    plan = make_plan(folder, batch=1)
    plan = changed(plan, workload=msgspec.structs.replace(plan.workload, encoder_context=8))
    ids = torch.full(inputs, 5)
    with loaded(plan, folder) as model, torch.no_grad():
        reached: list[object] = []
        model.encoder.block[0].register_forward_pre_hook(lambda *_: reached.append(1))
        with pytest.raises(ContextExceededError) as raised:
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2)
        assert reached == []
        assert str(raised.value).startswith(f"more {noun} than planned: got {got}, needed at most ")
        model.generate(ids[:1, :6], attention_mask=torch.ones(1, 6), max_new_tokens=2)


def test_generating_past_the_planned_context(llama: Path) -> None:
    with loaded(make_plan(llama, context=9), llama) as model, torch.no_grad():
        mask = torch.ones_like(TOKENS)
        model.generate(TOKENS, attention_mask=mask, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        with pytest.raises(ContextExceededError) as raised:
            model.generate(TOKENS, attention_mask=mask, max_new_tokens=9, min_new_tokens=9, do_sample=False)
    assert (raised.value.noun, raised.value.planned) == ("positions", 9)


def test_interrupt_while_the_sampler_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), MemoryMeter().sampling():
        pass
    assert [thread.is_alive() for thread in started] == [False]


def test_interrupt_while_the_sampler_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    join, joined = threading.Thread.join, []

    def interrupted(thread: threading.Thread) -> None:
        joined.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt), MemoryMeter().sampling():
        pass
    join(joined[0], 60)
    assert not joined[0].is_alive()
