"""A disk and slots without files: fills wait at gates, and slots are poisoned when they are refilled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bayplan.executor.ring import Ring

POISON = 0xFF
PIECES = 4


class FakeDisk:
    """Fills slots of `PIECES` bytes, each byte the number of the block."""

    def __init__(self, num_blocks: int, num_slots: int, *, delays: Sequence[int] = ()) -> None:
        """Hold the n-th fill back until the model has done `delays[n]` more steps, or waits for a block."""
        self.memory = [bytearray([POISON] * PIECES) for _ in range(num_slots)]
        self.filled: list[int] = []
        self.errors: dict[int, BaseException] = {}
        self.running: set[tuple[int, int]] = set()
        self._steps = 0
        self._delays = list(delays)
        self.ring = Ring(
            [f"block{number}" for number in range(num_blocks)],
            num_slots=num_slots,
            fill=self._fill,
            is_running=lambda block, thread: (block, thread) in self.running,
            on_refill=self._poison,
        )
        self.ring.start()

    @property
    def changed(self) -> threading.Condition:
        return self.ring._changed

    def step(self) -> None:
        """Note that the model did something."""
        with self.changed:
            self._steps += 1
            self.changed.notify_all()

    def settle(self) -> None:
        """Wait until there is nothing left to read ahead."""
        state = self.ring._state
        with self.changed:
            self._delays = []
            self.changed.notify_all()
            settled = self.changed.wait_for(
                lambda: state.filling is None and state.next_fill() is None, timeout=60
            )
        assert settled

    def run_block(self, block: int, inside: Callable[[], Any] = lambda: None) -> None:
        """Call a block as its hooks do, and check its bytes before and after `inside`."""
        thread = threading.get_ident()
        self.running.add((block, thread))
        try:
            self.ring.acquire(block)
            self.check(block)
            inside()
            self.check(block)
        except Exception:
            self.running.discard((block, thread))
            self.ring.release(block)
            raise
        except BaseException:
            self.running.discard((block, thread))
            raise
        self.running.discard((block, thread))
        self.ring.release(block)

    def run_pass(self, blocks: Iterable[int]) -> None:
        """Call blocks one after the other."""
        for block in blocks:
            self.run_block(block)

    def check(self, block: int) -> None:
        assert self.memory[block % len(self.memory)] == bytearray([block] * PIECES)

    def _poison(self, slot: int) -> None:
        self.memory[slot][:] = bytes([POISON] * PIECES)

    def _fill(self, block: int, slot: int, is_cancelled: Callable[[], bool]) -> int:
        with self.changed:
            self.filled.append(block)
            target = self._steps + (self._delays.pop(0) if self._delays else 0)
            self.changed.wait_for(
                lambda: (
                    self._steps >= target
                    or not self._delays
                    or self.ring._state.wanted is not None
                    or is_cancelled()
                ),
                timeout=60,
            )
        if block in self.errors:
            raise self.errors.pop(block)
        for piece in range(PIECES):
            if is_cancelled():
                return piece
            self.memory[slot][piece] = block
        return PIECES
