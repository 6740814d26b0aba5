from __future__ import annotations

import msgspec
import pytest
from placement_problems import GIGA, make_device, make_inventory, make_link, make_node

from bayplan.planner.solve.machine import Feed, Machine
from bayplan.schemas.hardware import Disk, Inventory
from bayplan.schemas.types import Residency

HOST, DISK = Residency.STREAM_HOST, Residency.STREAM_DISK
GPU, OTHER, CPU = make_device("gpu0"), make_device("gpu1"), make_device("cpu0")


def machine(inventory: Inventory, **budgets: int) -> Machine:
    """Every device has a budget, unless another is said by its name."""
    names = {device.id: device.id.partition("/")[2] for device in inventory.devices}
    return Machine(inventory, {device: budgets.get(name, 2**40) for device, name in names.items()})


def two_nodes() -> Inventory:
    return make_inventory(
        [GPU, CPU, make_device("gpu0", node="node1")],
        [
            make_link("node0/gpu0", latency_ns=5),
            make_link("node1", "node1/gpu0", latency_ns=11),
            make_link("node0", "node1", GIGA // 10, latency_ns=100),
        ],
        nodes=[make_node("node0"), make_node("node1", disk_rate=None)],
    )


def test_devices_without_a_budget_are_left_out() -> None:
    own = machine(make_inventory([GPU, OTHER, CPU]), gpu0=0, gpu1=7)
    assert [device.id for device in own.devices] == ["node0/gpu1", "node0/cpu0"]
    assert own.budgets == (7, 2**40)


def test_accelerators_are_what_is_no_cpu() -> None:
    assert machine(make_inventory([GPU, CPU, OTHER])).accelerators == frozenset({0, 2})


def test_each_device_has_its_node() -> None:
    assert machine(two_nodes()).nodes == (0, 0, 1)


def test_what_lies_in_host_memory() -> None:
    unified = make_device("gpu1", shares_host_memory=True)
    own = machine(make_inventory([GPU, unified, CPU]))
    assert [own.lies_in_host_memory(index) for index in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    ("fields", "budget", "host_bytes", "pinned_bytes"),
    [
        ({}, 10, 900, 900),
        ({}, 0, 900, 900),
        ({}, 950, 950, 900),
        ({"pinned_memory_bytes": 300}, 10, 900, 300),
        ({"host_reserve_bytes": 1100}, 10, 10, 0),
    ],
    ids=["reserve", "no device", "raised by the user", "pinned", "reserve above all"],
)
def test_host_memory(fields: dict[str, int], budget: int, host_bytes: int, pinned_bytes: int) -> None:
    node = make_node(**({"host_memory_bytes": 1000, "host_reserve_bytes": 100} | fields))
    own = machine(make_inventory([GPU, CPU], nodes=[node]), cpu0=budget)
    assert own.host_budgets == (host_bytes,)
    assert own.pinned_budgets == (pinned_bytes,)


def test_no_hop_to_itself() -> None:
    assert machine(make_inventory([GPU])).hop_ns(0, 0, 100) == 0


def test_a_direct_link_is_taken_in_both_directions() -> None:
    links = [
        make_link("node0/gpu1", "node0/gpu0", latency_ns=9),
        make_link("node0/gpu0", rate=9 * GIGA),
        make_link("node0/gpu1", rate=9 * GIGA),
    ]
    own = machine(make_inventory([GPU, OTHER], links))
    assert own.hop_ns(0, 1, 100) == own.hop_ns(1, 0, 100) == 109


def test_of_two_links_of_a_pair_the_first_counts() -> None:
    links = [make_link("node0/gpu0", "node0/gpu1", latency_ns=9), make_link("node0/gpu1", "node0/gpu0")]
    assert machine(make_inventory([GPU, OTHER], links)).hop_ns(0, 1, 100) == 109


def test_over_host_memory_both_links_count() -> None:
    links = [make_link("node0/gpu0", latency_ns=5), make_link("node0/gpu1", rate=GIGA // 2, latency_ns=6)]
    own = machine(make_inventory([GPU, OTHER], links))
    assert own.hop_ns(0, 1, 100) == 105 + 206


def test_a_cpu_is_in_its_host_memory() -> None:
    own = machine(two_nodes())
    assert own.hop_ns(0, 1, 100) == own.hop_ns(1, 0, 100) == 105


def test_over_two_hosts() -> None:
    own = machine(two_nodes())
    assert own.hop_ns(0, 2, 100) == 105 + 1100 + 111
    assert own.hop_ns(2, 1, 100) == 111 + 1100


def test_no_way_where_a_link_is_missing() -> None:
    assert machine(make_inventory([GPU, OTHER], [make_link("node0/gpu0")])).hop_ns(0, 1, 1) is None


@pytest.mark.parametrize(
    ("link_rate", "disk_rate", "host_rate", "from_disk_rate"),
    [
        (3 * GIGA, GIGA, 3 * GIGA, GIGA),
        (GIGA, 3 * GIGA, GIGA, GIGA),
        (GIGA, None, GIGA, None),
        (None, GIGA, None, None),
    ],
)
def test_what_feeds_an_accelerator(
    link_rate: int | None, disk_rate: int | None, host_rate: int | None, from_disk_rate: int | None
) -> None:
    """From the disk over the link: at the slower rate, after both latencies, and both are occupied."""
    link = make_link("node0/gpu0", rate=link_rate or 1, group="switch", latency_ns=20)
    disk = None if disk_rate is None else Disk(read_bytes_per_second=disk_rate, latency_ns=300)
    own = machine(make_inventory([GPU], [] if link_rate is None else [link], nodes=[make_node(disk=disk)]))
    assert own.feed(0, HOST) == (
        None
        if host_rate is None
        else Feed(bytes_per_second=host_rate, latency_ns=20, resources=("node0/switch",))
    )
    assert own.feed(0, DISK) == (
        None
        if from_disk_rate is None
        else Feed(bytes_per_second=from_disk_rate, latency_ns=320, resources=("node0/disk", "node0/switch"))
    )


def test_a_link_alone_is_no_shared_resource() -> None:
    own = machine(make_inventory([GPU], [make_link("node0/gpu0")]))
    feed = own.feed(0, HOST)
    assert feed is not None
    assert feed.resources == ()


def test_groups_of_two_nodes_are_two() -> None:
    devices = [make_device("gpu0"), make_device("gpu1", node="node1")]
    links = [make_link("node0/gpu0", group="a"), make_link("node1/gpu1", "node1", group="a")]
    own = machine(make_inventory(devices, links, nodes=[make_node("node0"), make_node("node1")]))
    feeds = [own.feed(0, DISK), own.feed(1, DISK)]
    assert [feed and feed.resources for feed in feeds] == [
        ("node0/disk", "node0/a"),
        ("node1/disk", "node1/a"),
    ]


def test_only_the_disk_feeds_a_cpu() -> None:
    own = machine(make_inventory([CPU], disk_rate=5))
    assert own.feed(0, HOST) is None
    assert own.feed(0, DISK) == Feed(bytes_per_second=5, latency_ns=0, resources=("node0/disk",))


def test_unified_memory_is_read_from_disk_without_the_link() -> None:
    unified = msgspec.structs.replace(GPU, shares_host_memory=True)
    own = machine(make_inventory([unified], [make_link("node0/gpu0", rate=5)], disk_rate=50))
    assert own.feed(0, HOST) is None
    assert own.feed(0, DISK) == Feed(bytes_per_second=50, latency_ns=0, resources=("node0/disk",))


def test_a_transfer_takes_its_latency_and_its_bytes_rounded_up() -> None:
    feed = Feed(bytes_per_second=3 * GIGA, latency_ns=7, resources=())
    assert [feed.transfer_ns(size) for size in (0, 1, 3, 4)] == [7, 8, 8, 9]
