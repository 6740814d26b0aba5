"""fits: which devices hold a model alone or together, and how far the context goes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_problems import NO_ACTIVATIONS, make_chain, make_cost, make_device, make_inventory, make_link

from bayplan.planner.estimate.fits import Fitter, context_ladder, fit_devices
from bayplan.planner.solve.chain import Chain
from bayplan.schemas.estimate import FitDevice, FormatFit
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import Backend

LAYER_BYTES = 1000
NUM_LAYERS = 4


def chain_at(context: int) -> Chain:
    """Four layers with a byte of cache per position."""
    return make_chain([msgspec.structs.replace(make_cost(LAYER_BYTES), kv_bytes=context)] * NUM_LAYERS)


def machine(*capacities: int) -> Inventory:
    devices = [
        make_device(f"gpu{number}", capacity_bytes=NO_ACTIVATIONS + capacity)
        for number, capacity in enumerate(capacities)
    ]
    return make_inventory(devices, [make_link(device.id) for device in devices])


@pytest.mark.parametrize(
    ("capacities", "devices", "max_context"),
    [
        ((4000 + 4 * 64, 4000 + 4 * 64), ("node0/gpu0", "node0/gpu1"), 600),
        ((4000 + 4 * 64 - 1, 4000 + 4 * 64), ("node0/gpu1",), 600),
        ((3024, 3024), (), 512),
        ((4000 + 4 * 128,), ("node0/gpu0",), 128),
        ((4000 + 4 * 128 - 1,), ("node0/gpu0",), 64),
        ((2000 + 2 * 64, 2000 + 2 * 64), (), 64),
        ((2000 + 2 * 64, 2000 + 2 * 64 - 1), (), None),
        ((4000 + 4 * 64 - 1,), (), None),
        ((10**6,), ("node0/gpu0",), 600),
    ],
)
def test_alone_together_and_how_far(
    capacities: tuple[int, ...], devices: tuple[str, ...], max_context: int | None
) -> None:
    fit = Fitter(machine(*capacities)).fit(context_ladder(64, 600), chain_at)
    assert fit == FormatFit(devices=devices, accelerators_context=max_context, max_context=max_context)


def test_a_cpu_is_no_accelerator() -> None:
    devices = [
        make_device("gpu0", capacity_bytes=NO_ACTIVATIONS + 4000 + 4 * 128),
        make_device("cpu", capacity_bytes=2**40),
    ]
    inventory = make_inventory(devices, [make_link("node0/gpu0")])
    ladder = context_ladder(64, 600)
    assert Fitter(inventory).fit(ladder, chain_at) == FormatFit(
        devices=("node0/gpu0", "node0/cpu"), accelerators_context=128, max_context=600
    )
    alone = make_inventory(devices[1:])
    assert Fitter(alone).fit(ladder, chain_at) == FormatFit(
        devices=("node0/cpu",), accelerators_context=None, max_context=600
    )


def test_host_memory_counts_too() -> None:
    """Two devices that share the host's memory hold together no more than that."""
    capacity = NO_ACTIVATIONS + NUM_LAYERS * LAYER_BYTES
    devices = [
        make_device(name, capacity_bytes=capacity, shares_host_memory=True) for name in ("gpu0", "gpu1")
    ]
    small = make_inventory(devices, host_memory_bytes=capacity)
    assert Fitter(small).fit((0,), chain_at) == FormatFit(
        devices=("node0/gpu0", "node0/gpu1"), accelerators_context=0, max_context=0
    )
    assert Fitter(small).fit((1,), chain_at) == FormatFit(
        devices=(), accelerators_context=None, max_context=None
    )


def test_reserves_are_not_to_use() -> None:
    inventory = make_inventory([make_device("gpu0", capacity_bytes=100, reserve_bytes=30)])
    assert fit_devices(inventory) == (
        FitDevice(id="node0/gpu0", kind="test", backend=Backend.CUDA, budget_bytes=70),
    )


@pytest.mark.parametrize(
    ("context", "maximum", "ladder"),
    [
        (1024, None, (1024,)),
        (1024, 1024, (1024,)),
        (1024, 1025, (1024, 1025)),
        (1000, 4096, (1000, 1024, 2048, 4096)),
        (1024, 5000, (1024, 2048, 4096, 5000)),
        (1, 3, (1, 2, 3)),
    ],
)
def test_ladder(context: int, maximum: int | None, ladder: tuple[int, ...]) -> None:
    assert context_ladder(context, maximum) == ladder


@given(capacity=st.integers(4000, 9000), maximum=st.integers(64, 2000))
def test_the_last_step_that_fits_is_found_with_few_readings(capacity: int, maximum: int) -> None:
    ladder = context_ladder(64, maximum)
    asked: list[int] = []

    def counted(context: int) -> Chain:
        asked.append(context)
        return chain_at(context)

    fit = Fitter(machine(capacity)).fit(ladder, counted)
    fitting = [context for context in ladder if NUM_LAYERS * (LAYER_BYTES + context) <= capacity]
    assert fit.max_context == (max(fitting) if fitting else None)
    assert len(set(asked)) <= 2 + len(ladder).bit_length()
