"""Where a model fits without streaming: on which devices alone, on all together, and up to which context.

Asks the placement search behind `bayplan plan --no-spill`, so that both agree on any declared inventory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from bayplan.planner.estimate.resident import fits_resident
from bayplan.planner.hardware.budget import device_budgets
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.machine import without_id
from bayplan.schemas.estimate import FitDevice, FormatFit
from bayplan.schemas.hardware import Device, Inventory
from bayplan.schemas.types import Backend, DeviceId


def fit_devices(inventory: Inventory) -> tuple[FitDevice, ...]:
    """Return the devices with the budgets that a plan without `--max-memory` gives them."""
    budgets = device_budgets(inventory, {})
    return tuple(
        FitDevice(id=device.id, kind=device.kind, backend=device.backend, budget_bytes=budgets[device.id])
        for device in inventory.devices
    )


def context_ladder(context: int, max_context: int | None) -> tuple[int, ...]:
    """Return the contexts that are tried: `context`, the powers of two above it, and the model's maximum.

    Without a known maximum there is only `context`.
    """
    steps = [context]
    if max_context is not None:
        power = 1 << context.bit_length()  # the least power of two above
        while power < max_context:
            steps.append(power)
            power *= 2
        if max_context > context:
            steps.append(max_context)
    return tuple(steps)


class Fitter:
    """Holds models against one inventory; equal models are asked about once."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._budgets = device_budgets(inventory, {})
        self._known: dict[Hashable, bool] = {}

    def fit(self, ladder: Sequence[int], chain_at: Callable[[int], Chain]) -> FormatFit:
        """Return where a model fits, and up to which context.

        Args:
            ladder: Contexts, ascending; the first is the one asked for.
            chain_at: Gives the model's chain at a context; asked for few of them.
        """
        chain = chain_at(ladder[0])
        accelerators = tuple(
            device.id for device in self._inventory.devices if device.backend is not Backend.CPU
        )
        devices = self._devices_alone(chain)
        return FormatFit(
            devices=devices,
            accelerators_context=self._last_context(accelerators, ladder, chain_at),
            max_context=self._last_context(tuple(self._budgets), ladder, chain_at),
        )

    def _last_context(
        self, devices: tuple[DeviceId, ...], ladder: Sequence[int], chain_at: Callable[[int], Chain]
    ) -> int | None:
        """Return the last of the contexts at which the devices together hold the model; None: none."""

        def fits_at(step: int) -> bool:
            return self._fits(chain_at(ladder[step]), devices)

        if not fits_at(0):
            return None
        if fits_at(len(ladder) - 1):
            return ladder[-1]
        low, high = 0, len(ladder) - 1  # fits at low, not at high; what fits, fits at less too
        while high - low > 1:
            middle = (low + high) // 2
            if fits_at(middle):
                low = middle
            else:
                high = middle
        return ladder[low]

    def _devices_alone(self, chain: Chain) -> tuple[DeviceId, ...]:
        """Return the devices that hold all of the model; devices that are alike are asked once."""
        answers: dict[tuple[str, Device], bool] = {}
        found = []
        for device in self._inventory.devices:
            node = device.id.partition("/")[0]
            alike = node, without_id(device)
            if alike not in answers:
                answers[alike] = self._fits(chain, (device.id,))
            if answers[alike]:
                found.append(device.id)
        return tuple(found)

    def _fits(self, chain: Chain, devices: tuple[DeviceId, ...]) -> bool:
        # All that memory depends on; what formats are called does not matter.
        key = devices, chain.costs, chain.ties, chain.edges, chain.base_activation_bytes, chain.scratch_bytes
        if key not in self._known:
            budgets = {name: budget if name in devices else 0 for name, budget in self._budgets.items()}
            self._known[key] = fits_resident(chain, self._inventory, budgets)
        return self._known[key]
