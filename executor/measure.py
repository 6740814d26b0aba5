"""What a run really took: times of forwards, and the highest memory of the process.

Owns the sampler and the hooks of the root module and of an encoder that is called past it; they also hold
each call to the planned workload. Knows nothing of plans beyond that.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from typing import TYPE_CHECKING

from bayplan.executor.errors import ThreadStartError
from bayplan.executor.hooks import uncompiled
from bayplan.executor.workload_guard import encoder_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from bayplan.executor.backend import DeviceBackend
    from bayplan.executor.workload_guard import Call, WorkloadGuard
    from bayplan.schemas.types import DeviceId

SAMPLE_SECONDS = 0.01
"""Between two samples of memory; one costs about 50 microseconds."""


class MemoryMeter:
    """The highest memory seen on each device."""

    def __init__(self) -> None:
        """Start without a device."""
        self._backends: list[DeviceBackend] = []
        self._peak_bytes: dict[DeviceId, int] = {}
        self._lock = threading.Lock()

    def watch(self, backend: DeviceBackend) -> None:
        """Sample this device from now on."""
        self._backends.append(backend)
        self.sample()

    def sample(self) -> None:
        """Look once."""
        for backend in self._backends:
            seen_bytes = backend.memory_bytes()
            with self._lock:
                peak_bytes = self._peak_bytes.get(backend.device_id, 0)
                self._peak_bytes[backend.device_id] = max(peak_bytes, seen_bytes)

    def peak_bytes(self) -> dict[DeviceId, int]:
        """Return the highest figure of each device."""
        with self._lock:
            return dict(self._peak_bytes)

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the figures should know, each sentence once."""
        return tuple(dict.fromkeys(note for backend in self._backends for note in backend.memory_notes()))

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Look every `SAMPLE_SECONDS` while the context is open, and once at its end.

        Raises:
            ThreadStartError: The system gives no thread.
        """
        # A lock and not an event: its release is one step, which no interrupt can come into.
        is_open = threading.Lock()
        is_open.acquire()

        def run() -> None:
            while not is_open.acquire(timeout=SAMPLE_SECONDS):
                self.sample()

        thread = threading.Thread(target=run, name="bayplan-meter", daemon=True)
        try:
            _start(thread)
            yield
        finally:
            is_open.release()
            if thread.is_alive():
                thread.join()
            self.sample()

    def __reduce__(self) -> tuple[type[MemoryMeter], tuple[()]]:
        """Leave a copy of the model with a meter that watches nothing."""
        return MemoryMeter, ()


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        raise ThreadStartError("memory meter", reason=str(error)) from error


class ForwardMeter:
    """Times the forwards of a model and holds them to the planned workload.

    The first output is there when the whole prompt is in the cache: what an encoder and earlier chunks took
    is part of it. A step is one new position for each sequence after that.
    """

    def __init__(self, guard: WorkloadGuard, memory: MemoryMeter) -> None:
        """Check each forward with `guard`, and look at `memory` around it."""
        self._guard = guard
        self._memory = memory
        # By thread: two may run a model of which nothing streams.
        self._running: dict[int, tuple[Call, int]] = {}
        self._encoding: dict[int, int] = {}
        self._encoded_ns: dict[int, int] = {}
        self._num_prompt = 0
        self._step_ns: list[int] = []
        self._first_output_ns: int | None = None
        self._num_first = 0
        self._handles: list[RemovableHandle] = []

    @property
    def first_output_ns(self) -> int | None:
        """Time until the first output; None: no forward has ended."""
        return self._first_output_ns

    @property
    def decode_ns(self) -> int | None:
        """Median time of the generation steps after the first output; None: there was none."""
        return int(statistics.median(self._step_ns)) if self._step_ns else None

    def install(self, model: nn.Module) -> None:
        """Put the hooks on the root and on its encoder."""
        self._handles = [
            model.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            model.register_forward_hook(self._after, always_call=True),
        ]
        encoder = encoder_of(model)
        if encoder is not None:
            self._handles += [
                encoder.register_forward_pre_hook(self._before_encoder, prepend=True, with_kwargs=True),
                encoder.register_forward_hook(self._after_encoder),
            ]

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @contextlib.contextmanager
    def prompt_of(self, num_positions: int) -> Iterator[None]:
        """Say how long the prompts are that are run in the context.

        Without this, a last chunk of one position looks like a step.
        """
        self._num_prompt = num_positions
        try:
            yield
        finally:
            self._num_prompt = 0

    @uncompiled
    def _before(self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        call = self._guard.check(args, kwargs)
        thread = threading.get_ident()
        # As if it had started with the encoder that was called before it.
        self._running[thread] = call, time.perf_counter_ns() - self._encoded_ns.pop(thread, 0)

    @uncompiled
    def _after(self, model: nn.Module, args: tuple[object, ...], output: object) -> None:
        thread = threading.get_ident()
        self._encoded_ns.pop(thread, None)  # an encoder inside the forward is in its time already
        call, started_ns = self._running.pop(thread, (None, 0))
        if call is not None and output is not None:  # else it failed
            self._count(call, time.perf_counter_ns() - started_ns)
        self._memory.sample()

    @uncompiled
    def _before_encoder(self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._guard.check_encoder(args, kwargs)
        self._encoding[threading.get_ident()] = time.perf_counter_ns()

    @uncompiled
    def _after_encoder(self, model: nn.Module, args: tuple[object, ...], output: object) -> None:
        thread = threading.get_ident()
        self._encoded_ns[thread] = time.perf_counter_ns() - self._encoding.pop(thread)
        self._memory.sample()

    def _count(self, call: Call, taken_ns: int) -> None:
        is_step = call.num_new == 1 and call.num_cached >= max(1, self._num_prompt)
        if self._first_output_ns is None:
            self._first_output_ns = taken_ns
            self._num_first = call.num_cached + call.num_new
        elif is_step:
            self._step_ns.append(taken_ns)
        elif not self._step_ns and call.num_cached and call.num_cached == self._num_first:
            # The next chunk of the first prompt.
            self._first_output_ns += taken_ns
            self._num_first += call.num_new
