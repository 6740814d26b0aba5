"""No word with the Hub while a config is read or a model built: what a config names there is not fetched.

Owns the switch of the Hub's client, which is one for the whole process. Knows no library that uses it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import huggingface_hub.constants

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Switch:
    """The client's offline mode, counted: on while any thread wants it, and then as it was before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_open = 0
        self._before = False

    def __enter__(self) -> None:
        with self._lock:
            if self._num_open == 0:
                self._before = huggingface_hub.constants.HF_HUB_OFFLINE
                huggingface_hub.constants.HF_HUB_OFFLINE = True
            self._num_open += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_open -= 1
            if self._num_open == 0:
                huggingface_hub.constants.HF_HUB_OFFLINE = self._before


_SWITCH = _Switch()


@contextlib.contextmanager
def without_hub() -> Iterator[None]:
    """Within the context, whoever asks the Hub's client gets what is in its cache, or an `OSError`.

    Contexts nest, in one thread and in several; other threads cannot ask the Hub meanwhile either.
    """
    with _SWITCH:
        yield
