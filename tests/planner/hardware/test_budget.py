import re

import msgspec
import pytest

from bayplan.planner.hardware.budget import device_aliases, device_budgets, parse_max_memory, resolve_device
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.sizes import SizeError

GIB = 2**30


@pytest.fixture
def inventory() -> Inventory:
    return declare_inventory(("l4*2",), cpu="epyc-9354", host_memory="64GiB")


@pytest.fixture
def two_nodes(inventory: Inventory) -> Inventory:
    nodes = (*inventory.nodes, msgspec.structs.replace(inventory.nodes[0], id="node1"))
    devices = (*inventory.devices, msgspec.structs.replace(inventory.devices[0], id="node1/gpu0"))
    return msgspec.structs.replace(inventory, nodes=nodes, devices=devices)


def test_every_device_has_its_short_and_its_torch_name(inventory: Inventory) -> None:
    assert device_aliases(inventory) == {
        "node0/gpu0": "node0/gpu0",
        "node0/gpu1": "node0/gpu1",
        "node0/cpu": "node0/cpu",
        "gpu0": "node0/gpu0",
        "gpu1": "node0/gpu1",
        "cpu": "node0/cpu",
        "cuda:0": "node0/gpu0",
        "cuda:1": "node0/gpu1",
        "cpu:0": "node0/cpu",
    }


def test_several_nodes_have_no_short_names(two_nodes: Inventory) -> None:
    assert set(device_aliases(two_nodes)) == {"node0/gpu0", "node0/gpu1", "node0/cpu", "node1/gpu0"}


def test_budgets_are_read_under_any_name_and_kept_in_chain_order(inventory: Inventory) -> None:
    budgets = parse_max_memory(("cpu=300MiB", "cuda:1=20GiB", "node0/gpu0=0"), inventory)
    assert list(budgets.items()) == [
        ("node0/gpu0", 0),
        ("node0/gpu1", 20 * GIB),
        ("node0/cpu", 300 * 2**20),
    ]


def test_all_of_a_device_may_be_given(inventory: Inventory) -> None:
    assert parse_max_memory(("cpu=64GiB",), inventory) == {"node0/cpu": 64 * GIB}


def test_unknown_device(inventory: Inventory) -> None:
    with pytest.raises(UsageError) as caught:
        parse_max_memory(("gpu2=1GiB",), inventory)
    assert str(caught.value) == (
        "--max-memory: unknown device: got 'gpu2', needed one of node0/gpu0, node0/gpu1, node0/cpu"
    )


def test_short_name_on_several_nodes(two_nodes: Inventory) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_device("gpu0", two_nodes, where="--pin")
    assert str(caught.value) == (
        "--pin: unknown device: got 'gpu0', needed one of node0/gpu0, node0/gpu1, node0/cpu, node1/gpu0\n"
        "hint: on several nodes a device is named with its node"
    )


@pytest.mark.parametrize("option", ["", "cpu", "cpu=", "=1GiB", "="])
def test_malformed_budget(option: str, inventory: Inventory) -> None:
    with pytest.raises(UsageError) as caught:
        parse_max_memory((option,), inventory)
    assert str(caught.value) == (
        f"--max-memory: not a budget: got {option!r}, needed DEVICE=SIZE, such as cpu=300MiB"
    )


def test_device_given_twice_under_two_names(inventory: Inventory) -> None:
    with pytest.raises(UsageError) as caught:
        parse_max_memory(("gpu0=1GiB", "cuda:0=2GiB"), inventory)
    assert str(caught.value) == (
        "--max-memory: node0/gpu0 is given twice: got 'gpu0=1GiB' and 'cuda:0=2GiB', "
        "needed one budget per device"
    )


def test_budget_over_capacity(inventory: Inventory) -> None:
    with pytest.raises(UsageError) as caught:
        parse_max_memory(("cpu=65GiB",), inventory)
    assert str(caught.value) == (
        "--max-memory: more than node0/cpu holds: got 'cpu=65GiB', which is 69793218560 bytes (65.00 GiB), "
        "needed at most 68719476736 bytes (64.00 GiB)"
    )


@pytest.mark.parametrize("size", ["1Gib", "-1", "ten", "5MBB", "1=2"])
def test_malformed_size(size: str, inventory: Inventory) -> None:
    with pytest.raises(SizeError, match=re.escape("--max-memory: not a size: got")):
        parse_max_memory((f"cpu={size}",), inventory)


def test_budget_is_capacity_less_reserve_or_the_given_one(inventory: Inventory) -> None:
    l4_bytes = inventory.devices[0].capacity_bytes
    assert list(device_budgets(inventory, {"node0/gpu1": 5}).items()) == [
        ("node0/gpu0", l4_bytes - GIB),
        ("node0/gpu1", 5),
        ("node0/cpu", 64 * GIB - 64 * GIB // 10),
    ]


def test_budget_is_never_negative(inventory: Inventory) -> None:
    small = tuple(msgspec.structs.replace(device, capacity_bytes=1) for device in inventory.devices)
    shrunk = msgspec.structs.replace(inventory, devices=small)
    assert set(device_budgets(shrunk, {}).values()) == {0}
