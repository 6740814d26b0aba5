"""Progress bars for work that takes more than a moment; on standard error, and only on a terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn


class ProgressBars:
    """One bar for each stage that reports itself; a context manager, and the callback to report to.

    What a user's own code prints meanwhile are words: they go to standard error too, for standard output is
    the data's.
    """

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=sys.stderr is None or not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._words = contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._words.__enter__()
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Take the bars away; what was said stays."""
        self._bars.stop()
        self._words.__exit__(None, None, None)

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Draw how far `stage` is."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total_bytes)
        self._bars.update(self._tasks[stage], completed=done_bytes, total=total_bytes)
