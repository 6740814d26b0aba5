"""Ctrl-C in the middle of a run: exit code 130, one word, and nothing that keeps the process alive."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command_line import Cli, Done
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

PROMPT = ("--prompt", "w5 w6 w7")

# What a terminal does, at a moment that no clock decides: the process signals itself in its n-th call of a
# function.
INTERRUPTED_RUN = """
import importlib, os, signal, sys
from bayplan.commands.app import run_command_line
place, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
owner = importlib.import_module(place)
for part in name.split(".")[:-1]:
    owner = getattr(owner, part)
original = getattr(owner, name.rpartition(".")[2])
calls = []
def counted(*args, **options):
    calls.append(None)
    if len(calls) == count:
        os.kill(os.getpid(), signal.SIGINT)
    return original(*args, **options)
setattr(owner, name.rpartition(".")[2], counted)
sys.exit(run_command_line(sys.argv[4:]))
"""


@pytest.fixture
def streaming(llama: Path, machine: Path, tmp_path: Path, cli: Cli) -> Path:
    """A plan with which a reader thread works beside the model."""
    plan = tmp_path / "plan.json"
    assert cli("plan", llama, "-i", machine, "--max-memory", "cpu=1350KiB", "-o", plan).code == 0
    assert '"stream-disk"' in plan.read_text()
    return plan


@pytest.mark.parametrize(
    ("place", "name", "count"),
    [
        ("transformers.models.llama.modeling_llama", "LlamaDecoderLayer.forward", 7),
        ("bayplan.executor.load", "read_resident", 1),
    ],
    ids=["generating", "loading"],
)
def test_an_interrupted_process_ends(
    place: str, name: str, count: int, streaming: Path, llama: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    run = ("run", str(streaming), "--checkpoint", str(llama), *PROMPT, "--report", str(report))
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_RUN, place, name, str(count), *run],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,  # a thread that keeps the process alive would keep it for ever
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not report.exists()


def test_no_thread_outlives_an_interrupted_run(
    streaming: Path, llama: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    forward = LlamaDecoderLayer.forward

    def interrupted(layer: LlamaDecoderLayer, *args: object, **options: object) -> object:
        calls.extend(thread.name for thread in threading.enumerate() if thread not in before)
        if layer.self_attn.layer_idx == 2:
            raise KeyboardInterrupt
        return forward(layer, *args, **options)

    before = set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(LlamaDecoderLayer, "forward", interrupted)
        assert cli("run", streaming, "--checkpoint", llama, *PROMPT) == Done(130, "", "interrupted\n")
    assert calls, "a reader thread was there"
    assert set(threading.enumerate()) <= before
    # Nor is anything left that would keep the same model from being run again.
    assert cli("run", streaming, "--checkpoint", llama, *PROMPT).code == 0
