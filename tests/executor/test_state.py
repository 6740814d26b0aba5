from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from bayplan.executor.state import LoadedState, Stream


def test_interrupt_in_a_finalizer_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Closing:
        def close(self) -> None:
            closed.append("ring")
            raise KeyboardInterrupt

        def start(self) -> None:
            closed.append("started")

    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    part: Any = Closing()
    nothing: Any = None
    state = LoadedState(nothing, nothing, memory=nothing, forwards=nothing)
    state.start_stream(Stream(part, nothing, part, nothing), ())
    del state
    gc.collect()
    assert (closed, printed) == (["started", "ring"], [])
