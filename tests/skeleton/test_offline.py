from __future__ import annotations

import threading

import huggingface_hub
import huggingface_hub.constants
import pytest

from bayplan.skeleton.offline import without_hub


def is_offline() -> bool:
    return huggingface_hub.constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("before", [True, False])
def test_as_before_afterwards(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", before)
    with without_hub():
        with pytest.raises(ZeroDivisionError), without_hub():
            raise ZeroDivisionError
        assert is_offline()
    assert is_offline() is before


def test_the_client_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with without_hub(), pytest.raises(huggingface_hub.errors.OfflineModeIsEnabled):
        huggingface_hub.HfApi(endpoint="http://hub.invalid").model_info("org/name")


def test_the_last_of_two_threads_switches_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left in the order in which they entered, which a value that each keeps for itself would not survive."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with without_hub():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with without_hub():
        leave.set()
        thread.join()
        assert is_offline()
    assert not is_offline()
