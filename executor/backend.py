"""What the executor asks of a kind of device: memory, copies, and an order between the two.

Owns the protocol and its CPU implementation. On the CPU the slots that a reader fills are the slots that are
computed from, and a forward is over when its hook runs, so copies are plain and events say nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from bayplan.executor.arena import Arena
from bayplan.executor.host_memory import host_memory_notes, process_bytes

if TYPE_CHECKING:
    from bayplan.schemas.types import DeviceId


class Event(Protocol):
    """A point in a device's queue of work."""

    def synchronize(self) -> None:
        """Block the calling thread until the device is past the point."""


class DeviceBackend(Protocol):
    """One device of a plan, on this machine.

    Attributes:
        device_id: Its id in the plan.
        device: torch's name for it.
    """

    device_id: DeviceId
    device: torch.device

    def allocate(self, num_bytes: int) -> Arena:
        """Reserve memory on the device.

        Raises:
            MemoryBudgetError: It is not there.
        """

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy, with a cast where the data types differ."""

    def record(self) -> Event:
        """Return the point that the calling thread's current stream has reached."""

    def memory_bytes(self) -> int:
        """Return what the process holds on the device now."""

    def memory_notes(self) -> tuple[str, ...]:
        """Return what a reader of the memory's figures should know, one sentence each."""


class CpuBackend:
    """The host as a device that computes."""

    def __init__(self, device_id: DeviceId) -> None:
        """Serve the device that the plan calls `device_id`."""
        self.device_id = device_id
        self.device = torch.device("cpu")

    def allocate(self, num_bytes: int) -> Arena:
        """Reserve an anonymous mapping, every page present.

        Raises:
            MemoryBudgetError: The system does not give that much.
        """
        return Arena(num_bytes, device=self.device_id)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy now; releases the interpreter lock."""
        target.copy_(source)

    def record(self) -> Event:
        """Return a point that is passed already."""
        return _PASSED

    def memory_bytes(self) -> int:
        """Return anonymous and locked memory of the process, page cache not counted."""
        return process_bytes()

    def memory_notes(self) -> tuple[str, ...]:
        """Return what this system does not report, and what was counted instead."""
        return host_memory_notes()


class _PassedEvent:
    """What the CPU has computed is done when the call returns."""

    def synchronize(self) -> None:
        pass


_PASSED = _PassedEvent()
