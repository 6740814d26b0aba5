from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_problems import (
    GIGA,
    PlacementProblem,
    make_device,
    make_inventory,
    make_link,
    make_node,
    placement_problems,
)

from bayplan.planner.check.ways import Feed, Ways, spent_ns
from bayplan.planner.solve.cost import duration_ns
from bayplan.planner.solve.machine import STREAM_TIERS, Machine
from bayplan.schemas.hardware import Disk
from bayplan.schemas.types import Residency

HOST, DISK = STREAM_TIERS

NODES = [make_node("node0", disk_rate=GIGA // 2), make_node("node1", disk_rate=None)]
WAYS = Ways(
    make_inventory(
        [
            make_device("gpu0"),
            make_device("gpu1", shares_host_memory=True),
            make_device("cpu"),
            make_device("gpu2"),
            make_device("gpu3", node="node1"),
        ],
        [
            make_link("node0/gpu0", rate=GIGA // 4, latency_ns=3, group="switch"),
            make_link("node0", "node0/gpu1", latency_ns=5),
            make_link("node0/gpu1", "node0/gpu0", rate=2 * GIGA, latency_ns=7),
            make_link("node0/gpu0", "node0/gpu1", latency_ns=99),
            make_link("node1", "node0", rate=GIGA // 2, latency_ns=11),
            make_link("node1/gpu3", "node1", latency_ns=13),
        ],
        nodes=NODES,
    )
)


@pytest.mark.parametrize(
    ("source", "target", "nanoseconds"),
    [
        ("node0/gpu0", "node0/gpu0", 0),
        ("node0/gpu0", "node0/gpu1", 3 * 7 + 50),
        ("node0/gpu1", "node0/gpu0", 3 * 7 + 50),
        ("node0/gpu0", "node0/cpu", 3 * 3 + 400),
        ("node0/cpu", "node0/gpu1", 3 * 5 + 100),
        ("node0/gpu0", "node1/gpu3", 3 * (3 + 11 + 13) + 400 + 200 + 100),
        ("node0/cpu", "node1/gpu3", 3 * (11 + 13) + 200 + 100),
        ("node0/gpu0", "node0/gpu2", None),
        ("node0/gpu2", "node1/gpu3", None),
    ],
)
def test_activations_take_the_direct_link_or_go_over_hosts(
    source: str, target: str, nanoseconds: int | None
) -> None:
    assert WAYS.handover_ns(source, target, 3, 100) == nanoseconds


@pytest.mark.parametrize(
    ("device", "residency", "feed"),
    [
        ("node0/gpu0", HOST, (GIGA // 4, 3, ("links switch of node0",))),
        ("node0/gpu0", DISK, (GIGA // 4, 3, ("disk of node0", "links switch of node0"))),
        ("node0/gpu1", HOST, None),
        ("node0/gpu1", DISK, (GIGA // 2, 0, ("disk of node0",))),
        ("node0/cpu", HOST, None),
        ("node0/cpu", DISK, (GIGA // 2, 0, ("disk of node0",))),
        ("node0/gpu2", HOST, None),
        ("node0/gpu2", DISK, None),
        ("node1/gpu3", HOST, (GIGA, 13, ())),
        ("node1/gpu3", DISK, None),
    ],
)
def test_weights_come_over_the_hosts_link(
    device: str, residency: Residency, feed: tuple[int, int, tuple[str, ...]] | None
) -> None:
    expected = None if feed is None else Feed(bytes_per_second=feed[0], latency_ns=feed[1], shared=feed[2])
    assert WAYS.feed(device, residency) == expected


def test_a_disk_that_is_slower_sets_the_rate() -> None:
    disk = Disk(read_bytes_per_second=GIGA // 8, latency_ns=17)
    ways = Ways(
        make_inventory(
            [make_device("gpu0")], [make_link("node0/gpu0", latency_ns=3)], nodes=[make_node(disk=disk)]
        )
    )
    feed = ways.feed("node0/gpu0", DISK)
    assert feed == Feed(bytes_per_second=GIGA // 8, latency_ns=20, shared=("disk of node0",))
    assert feed is not None
    assert feed.ns(100) == 20 + 800


@given(st.integers(0, 10**15), st.integers(1, 10**15))
def test_times_are_rounded_up(amount: int, per_second: int) -> None:
    nanoseconds = spent_ns(amount, per_second)
    assert (nanoseconds - 1) * per_second < amount * GIGA <= nanoseconds * per_second
    assert nanoseconds == duration_ns(amount, per_second)


@given(placement_problems(), st.integers(1, 4), st.integers(0, 10**7))
@settings(max_examples=60, deadline=None)
def test_the_search_takes_the_same_ways(problem: PlacementProblem, num_values: int, num_bytes: int) -> None:
    ways, machine = Ways(problem.inventory), Machine(problem.inventory, problem.budgets)
    for index, device in enumerate(machine.devices):
        for tier in STREAM_TIERS:
            feed, theirs = ways.feed(device.id, tier), machine.feed(index, tier)
            assert (feed is None) == (theirs is None)
            if feed is not None and theirs is not None:
                assert feed.ns(num_bytes) == theirs.transfer_ns(num_bytes)
                assert len(feed.shared) == len(theirs.resources)
        for place, other in enumerate(machine.devices):
            first, empty = machine.hop_ns(index, place, num_bytes), machine.hop_ns(index, place, 0)
            expected = None if first is None or empty is None else first + (num_values - 1) * empty
            assert ways.handover_ns(device.id, other.id, num_values, num_bytes) == expected
