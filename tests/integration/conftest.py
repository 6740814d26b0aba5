"""Calls of the command line, in this process or in one of its own, and machines to plan for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from bayplan.commands.app import run_command_line


class Done(NamedTuple):
    """What a call of the command line left behind."""

    code: int
    out: str
    err: str


Bayplan = Callable[..., Done]
"""Takes the words after `bayplan`; paths and numbers are turned into text."""


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several test processes share the cores, and threads of one that wait for each other take far longer."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bayplan(capsys: pytest.CaptureFixture[str]) -> Bayplan:
    """Call the command line in this process."""

    def call(*words: object) -> Done:
        capsys.readouterr()
        code = run_command_line([str(word) for word in words])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def bayplan_process() -> Bayplan:
    """Call the command line in a process of its own."""

    def call(*words: object, cwd: Path | None = None, **environment: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "bayplan", *(str(word) for word in words)],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            env=os.environ | environment,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return call
