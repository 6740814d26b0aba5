"""What a run really took: times of forwards, and the highest memory of the process.

Owns the sampler and the root module's hooks, which also hold each call to the planned workload. Knows nothing
of plans beyond that.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from typing import TYPE_CHECKING

from bayplan.executor.hooks import uncompiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from bayplan.executor.backend import DeviceBackend
    from bayplan.executor.workload_guard import WorkloadGuard
    from bayplan.schemas.types import DeviceId

SAMPLE_SECONDS = 0.01
"""Between two samples of memory; one costs about 50 microseconds."""


class MemoryMeter:
    """The highest memory seen on each device."""

    def __init__(self) -> None:
        """Start without a device."""
        self._backends: list[DeviceBackend] = []
        self._peak_bytes: dict[DeviceId, int] = {}

    def watch(self, backend: DeviceBackend) -> None:
        """Sample this device from now on."""
        self._backends.append(backend)
        self.sample()

    def sample(self) -> None:
        """Look once."""
        for backend in self._backends:
            seen = self._peak_bytes.get(backend.device_id, 0)
            self._peak_bytes[backend.device_id] = max(seen, backend.memory_bytes())

    def peak_bytes(self) -> dict[DeviceId, int]:
        """Return the highest figure of each device."""
        return dict(self._peak_bytes)

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Look every `SAMPLE_SECONDS` while the context is open, and once at its end."""
        done = threading.Event()

        def run() -> None:
            while not done.wait(SAMPLE_SECONDS):
                self.sample()

        thread = threading.Thread(target=run, name="bayplan-meter", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.sample()


class ForwardMeter:
    """Times the forwards of a model and holds them to the planned workload."""

    def __init__(self, guard: WorkloadGuard, memory: MemoryMeter) -> None:
        """Check each forward with `guard`, and look at `memory` around it."""
        self._guard = guard
        self._memory = memory
        self._is_step = False
        self._started_ns = 0
        self._step_ns: list[int] = []
        self._first_output_ns: int | None = None
        self._handles: list[RemovableHandle] = []

    @property
    def first_output_ns(self) -> int | None:
        """Time of the first forward; None: none has ended."""
        return self._first_output_ns

    @property
    def decode_ns(self) -> int | None:
        """Median time of the generation steps after the first forward; None: there was none."""
        return int(statistics.median(self._step_ns)) if self._step_ns else None

    def install(self, model: nn.Module) -> None:
        """Put the hooks on the root."""
        self._handles = [
            model.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            model.register_forward_hook(self._after),
        ]

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @uncompiled
    def _before(self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._is_step = self._guard.check(args, kwargs)
        self._started_ns = time.perf_counter_ns()

    @uncompiled
    def _after(self, model: nn.Module, args: tuple[object, ...], output: object) -> None:
        taken_ns = time.perf_counter_ns() - self._started_ns
        if self._first_output_ns is None:
            self._first_output_ns = taken_ns
        elif self._is_step:
            self._step_ns.append(taken_ns)
        self._memory.sample()
