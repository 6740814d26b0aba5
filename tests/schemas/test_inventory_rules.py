from collections.abc import Callable

import msgspec
import pytest

from bayplan.schemas.codec import encode_inventory
from bayplan.schemas.hardware import Device, FormatRates, Inventory, Link, Node
from bayplan.schemas.inventory_rules import inventory_problems, lies_in_host_memory
from bayplan.schemas.types import Backend

GIB = 2**30


def a_device(device_id: str, **changes: object) -> Device:
    is_cpu = device_id.endswith("cpu")
    device = Device(
        id=device_id,
        kind="any",
        backend=Backend.CPU if is_cpu else Backend.CUDA,
        capacity_bytes=4 * GIB,
        reserve_bytes=GIB,
        memory_bytes_per_second=10**10,
        flops_per_second=10**12,
        block_overhead_ns=0,
        shares_host_memory=is_cpu,
    )
    return msgspec.structs.replace(device, **changes)


def a_link(source: str, target: str) -> Link:
    return Link(source=source, target=target, bytes_per_second=10**10, latency_ns=0)


def an_inventory(**changes: object) -> Inventory:
    inventory = Inventory(
        format_version="1.0",
        source="declared",
        nodes=(Node(id="node0", host_memory_bytes=4 * GIB, host_reserve_bytes=GIB),),
        devices=(a_device("node0/gpu0"), a_device("node0/cpu")),
        links=(a_link("node0", "node0/gpu0"),),
    )
    return msgspec.structs.replace(inventory, **changes)


def rates(kind: str) -> FormatRates:
    return FormatRates(
        kind=kind,
        memory_bytes_per_second=1,
        cache_bytes_per_second=1,
        flops_per_second=1,
        block_overhead_ns=0,
    )


def a_node(**changes: object) -> Callable[[Inventory], Inventory]:
    def change(inventory: Inventory) -> Inventory:
        return msgspec.structs.replace(
            inventory, nodes=(msgspec.structs.replace(inventory.nodes[0], **changes),)
        )

    return change


CASES: list[tuple[Inventory, list[tuple[str, str]]]] = [
    (an_inventory(), []),
    (
        an_inventory(nodes=(), devices=(), links=()),
        [("$.nodes", "there is none"), ("$.devices", "there is none")],
    ),
    (
        an_inventory(nodes=an_inventory().nodes * 2),
        [("$.nodes", "node 'node0' stands there 2 times")],
    ),
    (
        an_inventory(devices=(a_device("node0/cpu"), a_device("node0/cpu"))),
        [
            ("$.devices", "device 'node0/cpu' stands there 2 times"),
            ("$.links[0].target", "'node0/gpu0' is not in the inventory"),
        ],
    ),
    (
        an_inventory(devices=(a_device("node1/cpu"),), links=()),
        [("$.devices[0].id", "node of 'node1/cpu' is not in the inventory")],
    ),
    (
        a_node(host_reserve_bytes=4 * GIB + 1)(an_inventory()),
        [("$.nodes[0].host_reserve_bytes", f"{4 * GIB + 1} is more than the host's {4 * GIB}")],
    ),
    (
        a_node(pinned_memory_bytes=4 * GIB + 1)(an_inventory()),
        [("$.nodes[0].pinned_memory_bytes", f"{4 * GIB + 1} is more than the host's {4 * GIB}")],
    ),
    (a_node(host_reserve_bytes=4 * GIB, pinned_memory_bytes=0)(an_inventory()), []),
    (
        an_inventory(devices=(a_device("node0/gpu0", reserve_bytes=5 * GIB),)),
        [("$.devices[0].reserve_bytes", f"{5 * GIB} is more than the capacity of {4 * GIB}")],
    ),
    (
        an_inventory(devices=(a_device("node0/cpu", capacity_bytes=4 * GIB + 1),), links=()),
        [
            (
                "$.devices[0].capacity_bytes",
                f"{4 * GIB + 1} is more than the host's {4 * GIB}, which it shares",
            )
        ],
    ),
    (
        an_inventory(
            devices=(a_device("node0/gpu0", capacity_bytes=5 * GIB, shares_host_memory=True),), links=()
        ),
        [("$.devices[0].capacity_bytes", f"{5 * GIB} is more than the host's {4 * GIB}, which it shares")],
    ),
    (
        an_inventory(devices=(a_device("node0/cpu", format_rates=(rates("bf16"), rates("bf16"))),), links=()),
        [("$.devices[0].format_rates", "kind 'bf16' stands there 2 times")],
    ),
    (
        an_inventory(links=()),
        [("$.devices[0]", "no link between 'node0/gpu0' and 'node0', so no weight reaches it")],
    ),
    (an_inventory(links=(a_link("node0/gpu0", "node0"),)), []),
    (
        an_inventory(
            devices=(a_device("node0/gpu0", shares_host_memory=True),), links=(a_link("node0", "node1"),)
        ),
        [("$.links[0].target", "'node1' is not in the inventory")],
    ),
    (
        an_inventory(links=(*an_inventory().links, a_link("node7", "node0/cpu"))),
        [("$.links[1].source", "'node7' is not in the inventory")],
    ),
    (
        an_inventory(links=(*an_inventory().links, a_link("node0/cpu", "node0/cpu"))),
        [("$.links[1]", "both ends are 'node0/cpu'")],
    ),
    (
        an_inventory(links=(*an_inventory().links, a_link("node0/gpu0", "node0"))),
        [("$.links[1]", "a second link between 'node0/gpu0' and 'node0'")],
    ),
]


@pytest.mark.parametrize(("inventory", "problems"), CASES, ids=range(len(CASES)))
def test_every_problem_is_told(inventory: Inventory, problems: list[tuple[str, str]]) -> None:
    assert list(inventory_problems(inventory)) == problems


def test_paths_begin_where_the_inventory_lies() -> None:
    assert list(inventory_problems(an_inventory(nodes=(), devices=(), links=()), "$.inventory")) == [
        ("$.inventory.nodes", "there is none"),
        ("$.inventory.devices", "there is none"),
    ]


@pytest.mark.parametrize("rate", [1, 10**15])
def test_any_rate_is_believed(rate: int) -> None:
    slow = a_device("node0/cpu", memory_bytes_per_second=rate, flops_per_second=rate)
    inventory = an_inventory(devices=(slow,), links=())
    assert list(inventory_problems(inventory)) == []
    assert str(rate) in encode_inventory(inventory).decode()


def test_unified_memory_and_cpus_lie_in_the_host() -> None:
    assert lies_in_host_memory(a_device("node0/cpu", shares_host_memory=False))
    assert lies_in_host_memory(a_device("node0/gpu0", shares_host_memory=True))
    assert not lies_in_host_memory(a_device("node0/gpu0"))
