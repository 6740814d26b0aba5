"""The command line in this process, tiny checkpoints with a tokenizer, and a machine to plan for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_line import Cli, Done
from tiny_checkpoints import tiny_llama
from word_tokenizer import add_tokenizer

from bayplan.commands.app import run_command_line
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.schemas.codec import encode_inventory


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several test processes share the cores, and threads of one that wait for each other take far longer."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command line in this process."""

    def call(*words: object) -> Done:
        capsys.readouterr()
        code = run_command_line([str(word) for word in words])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in two shards, with a tokenizer of the words `w4` to `w63`. To be read only."""
    return add_tokenizer(tiny_llama(tmp_path_factory.mktemp("checkpoint") / "llama", shards=2))


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inventory of a declared machine, so that messages do not depend on the one that tests run on."""
    path = tmp_path_factory.mktemp("inventory") / "machine.json"
    path.write_bytes(encode_inventory(declare_inventory(cpu="epyc-9354", host_memory="64GiB", disk="3GB/s")))
    return path
