"""How long work tells how far it is; drawing a bar is the caller's."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told from time to time, always from the thread that loads; last with `done_bytes == total_bytes`."""

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Take note that `stage`, such as `read`, is so far."""


def no_progress(stage: str, done_bytes: int, total_bytes: int) -> None:
    """Tell nobody."""
