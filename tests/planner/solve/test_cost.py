from __future__ import annotations

import msgspec
import pytest
from placement_problems import GIGA, make_cost, make_device, make_inventory, make_link

from bayplan.planner.solve.cost import compute_ns, duration_ns, feed, find_link, hop_ns, node_of, output_bytes
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import Objective, Residency

GPU, OTHER, CPU = make_device("gpu0"), make_device("gpu1"), make_device("cpu")


@pytest.mark.parametrize(
    ("amount", "per_second", "nanoseconds"),
    [
        (0, 7, 0),
        (1, GIGA, 1),
        (1, 2 * GIGA, 1),
        (3, 2 * GIGA, 2),
        (5, 3, 1_666_666_667),
        (2**53, 1, 2**53 * GIGA),
    ],
)
def test_durations_are_whole_and_never_too_short(amount: int, per_second: int, nanoseconds: int) -> None:
    assert duration_ns(amount, per_second) == nanoseconds


def test_a_block_takes_the_larger_of_reading_and_computing() -> None:
    device = make_device("gpu0", flops_per_second=2 * GIGA, block_overhead_ns=7)
    cost = make_cost(64, decode_read_bytes=100, decode_flops=100, prefill_read_bytes=100, prefill_flops=900)
    assert compute_ns(cost, device, Objective.DECODE) == 7 + 100
    assert compute_ns(cost, device, Objective.PREFILL) == 7 + 450


def test_output_of_each_phase() -> None:
    cost = make_cost(64, decode_output_bytes=3, prefill_output_bytes=5)
    assert [output_bytes(cost, phase) for phase in (Objective.DECODE, Objective.PREFILL)] == [3, 5]


def two_nodes() -> Inventory:
    one = make_inventory([GPU, CPU], [make_link("node0/gpu0", latency_ns=5)])
    return msgspec.structs.replace(
        one,
        nodes=(*one.nodes, msgspec.structs.replace(one.nodes[0], id="node1", disk=None)),
        devices=(*one.devices, msgspec.structs.replace(GPU, id="node1/gpu0")),
        links=(
            *one.links,
            make_link("node1", "node1/gpu0", latency_ns=11),
            make_link("node0", "node1", rate=GIGA // 10, latency_ns=100),
        ),
    )


def test_node_of_a_device() -> None:
    assert node_of(two_nodes(), "node1/gpu0").id == "node1"


def test_a_link_works_in_both_directions() -> None:
    inventory = two_nodes()
    link = find_link(inventory, "node1", "node0")
    assert link is not None
    assert (link.source, link.target) == ("node0", "node1")
    assert find_link(inventory, "node0/gpu0", "node1/gpu0") is None


def test_no_hop_to_itself() -> None:
    assert hop_ns(make_inventory([GPU]), GPU, GPU, 100) == 0


def test_a_direct_link_is_taken() -> None:
    links = [
        make_link("node0/gpu1", "node0/gpu0", latency_ns=9),
        make_link("node0/gpu0", rate=9 * GIGA),
        make_link("node0/gpu1", rate=9 * GIGA),
    ]
    assert hop_ns(make_inventory([GPU, OTHER], links), GPU, OTHER, 100) == 109


def test_over_host_memory_both_links_count() -> None:
    links = [make_link("node0/gpu0", latency_ns=5), make_link("node0/gpu1", rate=GIGA // 2, latency_ns=6)]
    assert hop_ns(make_inventory([GPU, OTHER], links), GPU, OTHER, 100) == 105 + 206


def test_a_cpu_is_in_its_host_memory() -> None:
    inventory = two_nodes()
    gpu, cpu, _ = inventory.devices
    assert hop_ns(inventory, gpu, cpu, 100) == 105
    assert hop_ns(inventory, cpu, gpu, 100) == 105


def test_over_two_hosts() -> None:
    inventory = two_nodes()
    gpu, cpu, remote = inventory.devices
    assert hop_ns(inventory, gpu, remote, 100) == 105 + 1100 + 111
    assert hop_ns(inventory, remote, cpu, 100) == 111 + 1100


def test_no_way_where_a_link_is_missing() -> None:
    assert hop_ns(make_inventory([GPU, OTHER], [make_link("node0/gpu0")]), GPU, OTHER, 1) is None


@pytest.mark.parametrize(
    ("link_rate", "disk_rate", "host", "disk"),
    [
        (3 * GIGA, GIGA, (3 * GIGA, "switch"), (GIGA, "node0/disk")),
        (GIGA, 3 * GIGA, (GIGA, "switch"), (GIGA, "node0/disk")),
        (GIGA, None, (GIGA, "switch"), None),
        (None, GIGA, None, None),
    ],
)
def test_what_feeds_an_accelerator(
    link_rate: int | None,
    disk_rate: int | None,
    host: tuple[int, str] | None,
    disk: tuple[int, str] | None,
) -> None:
    links = [] if link_rate is None else [make_link("node0/gpu0", rate=link_rate, group="switch")]
    inventory = make_inventory([GPU], links, disk_rate=disk_rate)
    assert feed(inventory, GPU, Residency.STREAM_HOST) == host
    assert feed(inventory, GPU, Residency.STREAM_DISK) == disk


def test_only_the_disk_feeds_a_cpu() -> None:
    inventory = make_inventory([CPU], disk_rate=5)
    assert feed(inventory, CPU, Residency.STREAM_HOST) is None
    assert feed(inventory, CPU, Residency.STREAM_DISK) == (5, "node0/disk")
