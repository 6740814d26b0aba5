"""How long work tells how far it is; drawing a bar is the caller's."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with a stage, such as `read`, how much of it is done and how much there is in all, in the same unit;
from the thread that was asked to do the work."""


def untold(stage: str, done: int, total: int) -> None:
    """Tell nobody."""
