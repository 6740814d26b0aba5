"""What every test stands on: no network but this machine's own, fixed random examples, shared checkpoints."""

from __future__ import annotations

import atexit
import ipaddress
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import checkpoints
import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".checkpoints"
"""Real checkpoints stay here between runs; ignored by git."""

# The same examples every time, unless somebody searches for new ones with HYPOTHESIS_PROFILE=dev.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Before anything imports huggingface_hub, which reads these once: caches of its own, nobody's token. Offline
# mode stays off, since some tests talk to a hub of their own on this machine.
_HUB_HOME = tempfile.mkdtemp(prefix="bayplan-tests-")
atexit.register(shutil.rmtree, _HUB_HOME, ignore_errors=True)
for _name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_TOKEN", "HF_ENDPOINT"):
    os.environ.pop(_name, None)
for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.pop(_name, None)
os.environ["HF_HOME"] = _HUB_HOME
_GRAPH_CACHES = tempfile.mkdtemp(prefix="bayplan-tests-")
atexit.register(shutil.rmtree, _GRAPH_CACHES, ignore_errors=True)
os.environ["BAYPLAN_CACHE_DIR"] = f"{_GRAPH_CACHES}/shared"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else the tokenizers warn wherever a test forks


class NetworkAttempt(OSError):
    """A test asked for an address that is not on this machine."""


_attempts: list[str] = []
_numbers = itertools.count()


def _is_local(address: Any, family: int) -> bool:
    """Whether a socket address of this family leads nowhere but to this machine."""
    if family not in (socket.AF_INET, socket.AF_INET6):
        return True
    return _is_local_host(address[0])


def _is_local_host(host: Any) -> bool:
    """Whether a host is one that never needs a network to be found."""
    text = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if text in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _refuse(what: object) -> NetworkAttempt:
    _attempts.append(str(what))
    return NetworkAttempt(f"tests do not use the network: {what}")


@pytest.fixture(scope="session", autouse=True)
def _closed_network() -> Iterator[None]:
    """Refuse connections and name look-ups that leave this machine."""
    connect, connect_ex, look_up = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if not _is_local(address, self.family):
            raise _refuse(address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        if not _is_local(address, self.family):
            raise _refuse(address)
        return connect_ex(self, address)

    def guarded_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_local_host(host):
            raise _refuse(host)
        return look_up(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", guarded_look_up)
        yield


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw pictures alike everywhere: as wide as without a terminal, and without colours."""
    monkeypatch.setenv("COLUMNS", "100")
    for variable in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(autouse=True)
def graph_cache(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test an empty graph cache of its own: what another read, under patches, is not for it."""
    folder = Path(_GRAPH_CACHES) / str(next(_numbers))
    monkeypatch.setenv("BAYPLAN_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def network_attempts() -> Iterator[list[str]]:
    """Fail a test that tried to leave this machine, even where a library hid the error.

    A test that means to try empties the list.
    """
    _attempts.clear()
    yield _attempts
    assert not _attempts, f"tried to reach {_attempts}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests for an accelerator, visibly, where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.accelerator.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no accelerator"))


@pytest.fixture(scope="session")
def smollm2() -> checkpoints.Smollm2:
    """SmolLM2-135M-Instruct, made from the package index if it is not there yet."""
    # A process of its own: half a gigabyte goes back with it, and what it warns of is not ours.
    subprocess.run([sys.executable, checkpoints.__file__, CACHE], check=True)
    return checkpoints.smollm2(CACHE)


@pytest.fixture(scope="session")
def smollm2_fp32(smollm2: checkpoints.Smollm2) -> Path:
    """SmolLM2 in fp32, one file. To be read only."""
    return smollm2.fp32


@pytest.fixture(scope="session")
def smollm2_bf16(smollm2: checkpoints.Smollm2) -> Path:
    """SmolLM2 in bf16, one file. To be read only."""
    return smollm2.bf16


@pytest.fixture(scope="session")
def smollm2_sharded(smollm2: checkpoints.Smollm2) -> Path:
    """SmolLM2 in bf16, five shards and an index. To be read only."""
    return smollm2.bf16_sharded


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 as its package ships it. To be read only."""
    return checkpoints.minilm()
