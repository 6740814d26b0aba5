"""Calls of the command line as a user makes them, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pathlib import Path

BAYPLAN = (sys.executable, "-m", "bayplan")
OLD = b"what stood there before"


class Done(NamedTuple):
    """A call that has ended."""

    code: int
    out: str
    err: str


class Cli(Protocol):
    """Takes the words after `bayplan`; paths and numbers become text."""

    def __call__(self, *words: object) -> Done:
        """Carry out one call."""


def in_own_process(*words: object, cwd: Path | None = None, **environment: str) -> Done:
    """Carry out one call in a process of its own, with `environment` added to this one's."""
    done = subprocess.run(
        [*BAYPLAN, *(str(word) for word in words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | environment,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def plan_fails(cli: Cli, code: int, message: str, *words: object, output: Path) -> None:
    """Plan over an old file; check the message, and that the old file is all there is afterwards.

    Args:
        cli: Carries out the call.
        code: The exit code that is due.
        message: All that is said, without `error: ` and the last line's end.
        *words: What follows `plan`, but for `-o`.
        output: Folder for the plan, created here.
    """
    output.mkdir()
    (output / "plan.json").write_bytes(OLD)
    assert cli("plan", *words, "-o", output / "plan.json") == Done(code, "", f"error: {message}\n")
    assert {path.name: path.read_bytes() for path in output.iterdir()} == {"plan.json": OLD}
