"""The guard in conftest.py that keeps tests on this machine."""

from __future__ import annotations

import http.server
import os
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from huggingface_hub import HfApi


def test_another_host_is_refused_and_noted(network_attempts: list[str]) -> None:
    with pytest.raises(OSError, match=r"tests do not use the network: pypi\.example"):
        socket.create_connection(("pypi.example", 443))
    assert network_attempts == ["pypi.example"]
    network_attempts.clear()


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_an_address_is_refused_without_a_look_up(address: str, network_attempts: list[str]) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as stranger:
        with pytest.raises(OSError, match="tests do not use the network"):
            stranger.connect((address, 443))
        with pytest.raises(OSError, match="tests do not use the network"):
            stranger.connect_ex((address, 443))
    assert len(network_attempts) == 2
    network_attempts.clear()


def test_the_hub_client_is_kept_in(network_attempts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    hub = HfApi(endpoint="https://hub.example")
    # Each version of the client wraps the error in a class of another HTTP library.
    with pytest.raises(Exception, match="tests do not use the network"):
        hub.model_info("org/name")
    assert set(network_attempts) == {"hub.example"}
    network_attempts.clear()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_is_open(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Greeter(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: object) -> None:
            return

    monkeypatch.setenv("no_proxy", "*")
    with http.server.HTTPServer(("127.0.0.1", 0), Greeter) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with urllib.request.urlopen(f"http://{host}:{server.server_port}/") as answer:
            assert answer.read() == b"hello"
        thread.join()


def test_unix_sockets_are_open(tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)


def test_the_hub_cache_is_a_folder_of_its_own() -> None:
    from huggingface_hub import constants

    assert Path(constants.HF_HUB_CACHE).parent == Path(os.environ["HF_HOME"])
    assert Path(os.environ["HF_HOME"]).name.startswith("bayplan-tests-")
    assert not constants.HF_HUB_OFFLINE
