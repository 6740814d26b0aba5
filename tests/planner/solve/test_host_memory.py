from __future__ import annotations

import msgspec
import pytest
from placement_problems import NO_ACTIVATIONS, make_chain, make_device, make_inventory

from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.host_memory import host_bytes, host_limits, lies_in_host_memory
from bayplan.planner.solve.stages import Stage, StageSearch
from bayplan.schemas.hardware import Device
from bayplan.schemas.types import Objective, Residency

GPU, CPU = make_device("gpu0"), make_device("cpu")
UNIFIED = make_device("gpu0", shares_host_memory=True)


def whole(device: Device) -> Stage:
    """The stage of three blocks of 64 of which two stream through a slot."""
    chain = make_chain([64] * 3)
    search = StageSearch(chain, resolve(chain, (), no_spill=False), Objective.DECODE, 1)
    return list(search.stages(device, NO_ACTIVATIONS + 128, 0))[-1]


@pytest.mark.parametrize(("device", "lies"), [(GPU, False), (CPU, True), (UNIFIED, True)])
def test_which_devices_lie_in_host_memory(device: Device, lies: bool) -> None:
    assert lies_in_host_memory(device) is lies


@pytest.mark.parametrize(
    ("device", "tier", "taken"),
    [
        (GPU, Residency.RESIDENT, 0),
        (GPU, Residency.STREAM_DISK, 0),
        (GPU, Residency.STREAM_HOST, 128),
        (CPU, Residency.STREAM_DISK, NO_ACTIVATIONS + 128),
        (UNIFIED, Residency.STREAM_HOST, NO_ACTIVATIONS + 128),
    ],
)
def test_what_a_stage_takes(device: Device, tier: Residency, taken: int) -> None:
    assert host_bytes(whole(device), tier, 128) == taken


@pytest.mark.parametrize(("budget", "limit"), [(10, 900), (900, 900), (950, 950)])
def test_the_reserve_is_kept_unless_the_user_gives_more(budget: int, limit: int) -> None:
    inventory = make_inventory([GPU, CPU])
    node = msgspec.structs.replace(inventory.nodes[0], host_memory_bytes=1000, host_reserve_bytes=100)
    inventory = msgspec.structs.replace(inventory, nodes=(node,))
    assert host_limits(inventory, {"node0/gpu0": 10**6, "node0/cpu": budget}) == {"node0": limit}
