import re

import msgspec
import pytest

from bayplan.planner.hardware.catalogue_accelerators import ACCELERATORS
from bayplan.planner.hardware.catalogue_cpus import CPUS
from bayplan.planner.hardware.catalogue_links import DEFAULT_DISK
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.hardware.inventory import ACCELERATOR_RESERVE_BYTES
from bayplan.schemas.codec import encode_inventory
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Inventory, Link
from bayplan.schemas.inventory_rules import inventory_problems
from bayplan.schemas.sizes import SizeError

GIB = 2**30


def _ids_and_kinds(inventory: Inventory) -> list[tuple[str, str]]:
    return [(device.id, device.kind) for device in inventory.devices]


def test_order_of_options_is_the_chain_and_the_cpu_comes_last() -> None:
    inventory = declare_inventory(("l4", "h100-80gb*2"), cpu="epyc-9354", host_memory="1TiB", disk="7GB/s")
    assert _ids_and_kinds(inventory) == [
        ("node0/gpu0", "l4"),
        ("node0/gpu1", "h100-80gb"),
        ("node0/gpu2", "h100-80gb"),
        ("node0/cpu", "epyc-9354"),
    ]
    assert inventory.source == "declared"
    (node,) = inventory.nodes
    assert node.host_memory_bytes == 2**40
    assert node.disk is not None
    assert node.disk.read_bytes_per_second == 7_000_000_000
    assert node.disk.latency_ns == DEFAULT_DISK.latency_ns


def test_host_without_cpu_computes_nothing() -> None:
    inventory = declare_inventory(("l4",), host_memory="64GiB")
    assert _ids_and_kinds(inventory) == [("node0/gpu0", "l4")]


def test_cpu_alone_has_all_host_memory_and_the_catalogue_features() -> None:
    (cpu,) = declare_inventory(cpu="epyc-9354", host_memory="64GiB").devices
    assert cpu.capacity_bytes == 64 * GIB
    assert cpu.features == ("avx2", "avx512_bf16", "avx512_vnni", "avx512f")
    assert cpu.shares_host_memory


@pytest.mark.parametrize(
    ("host_memory", "reserve_bytes"),
    [("64GiB", 64 * GIB // 10), ("4GiB", GIB), ("512MiB", 512 * 2**20)],
)
def test_host_reserve_is_a_tenth_but_at_least_one_gib_and_at_most_all(
    host_memory: str, reserve_bytes: int
) -> None:
    inventory = declare_inventory(cpu="generic", host_memory=host_memory)
    assert inventory.nodes[0].host_reserve_bytes == reserve_bytes
    assert inventory.devices[0].reserve_bytes == reserve_bytes


def test_accelerator_has_the_catalogue_memory_less_its_reserve() -> None:
    (device,) = declare_inventory(("h100-80gb",), host_memory="64GiB").devices
    assert device.capacity_bytes == 79 * GIB
    assert device.reserve_bytes == ACCELERATOR_RESERVE_BYTES
    assert not device.shares_host_memory


def test_links_to_the_host_for_all_and_between_peers_of_one_kind() -> None:
    inventory = declare_inventory(("h100-80gb*2", "l4*2"), host_memory="64GiB")
    gen5, gen4 = (55_000_000_000, 15_000), (24_800_000_000, 15_000)
    assert inventory.links == (
        Link(source="node0", target="node0/gpu0", bytes_per_second=gen5[0], latency_ns=gen5[1]),
        Link(source="node0", target="node0/gpu1", bytes_per_second=gen5[0], latency_ns=gen5[1]),
        Link(source="node0", target="node0/gpu2", bytes_per_second=gen4[0], latency_ns=gen4[1]),
        Link(source="node0", target="node0/gpu3", bytes_per_second=gen4[0], latency_ns=gen4[1]),
        Link(source="node0/gpu0", target="node0/gpu1", bytes_per_second=370_000_000_000, latency_ns=2_000),
    )


def test_unified_memory_brings_the_host_memory_along() -> None:
    inventory = declare_inventory(("m4-max-128gb",))
    assert inventory.nodes[0].host_memory_bytes == 128 * GIB
    assert inventory.devices[0].capacity_bytes == 96 * GIB
    assert inventory.devices[0].shares_host_memory


def test_unified_memory_is_no_more_than_the_host_memory() -> None:
    inventory = declare_inventory(("m4-max-128gb",), host_memory="48GiB")
    assert inventory.devices[0].capacity_bytes == 48 * GIB


def test_equal_options_give_equal_bytes() -> None:
    first, second = (
        encode_inventory(declare_inventory(("h200*8",), cpu="xeon-8480", host_memory="2TiB")) for _ in "12"
    )
    assert first == second


def test_nothing_computes() -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory(host_memory="64GiB")
    assert str(caught.value) == (
        "--device: the declared machine computes nothing: needed an accelerator or a CPU\nhint: add --cpu"
    )


@pytest.mark.parametrize("text", ["", "*8", "l4*", "l4*0", "l4*x", "l4*-1", "l4*2*2", "l4*1.5"])
def test_malformed_device(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory((text,), host_memory="64GiB")
    assert str(caught.value) == (
        f"--device: not a device: got {text!r}, "
        "needed a catalogue name and how many, such as h100-80gb or h100-80gb*8"
    )


def test_too_many_accelerators() -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory(("l4*1000", "t4*25"), host_memory="64GiB")
    assert str(caught.value) == (
        "--device: too many accelerators in one machine: got 't4*25', needed at most 1024 in all"
    )


def test_unknown_accelerator_in_a_device_option() -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory(("h100*8",), host_memory="64GiB")
    assert str(caught.value) == (
        "--device: no such accelerator in the catalogue: "
        f"got 'h100', needed one of {', '.join(sorted(ACCELERATORS))}\n"
        "hint: did you mean h100-80gb or h100-pcie-80gb?"
    )


def test_unknown_cpu_in_the_cpu_option() -> None:
    with pytest.raises(UsageError, match=re.escape("--cpu: no such CPU in the catalogue: got 'epyc'")):
        declare_inventory(("l4",), cpu="epyc", host_memory="64GiB")


def test_several_accelerators_of_unified_memory() -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory(("m4-max-128gb*2",))
    assert str(caught.value) == (
        "--device: an accelerator with unified memory is the only one of its machine: "
        "got 2 accelerators with 'm4-max-128gb' among them, needed one"
    )


def test_missing_host_memory() -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory(("l4",))
    assert str(caught.value) == (
        "--host-memory: the declared machine has no host memory: needed a size\n"
        "hint: add for example --host-memory 256GiB"
    )


def test_malformed_host_memory() -> None:
    with pytest.raises(SizeError, match=re.escape("--host-memory: not a size: got")):
        declare_inventory(("l4",), host_memory="1Tib")


def test_malformed_disk_rate() -> None:
    with pytest.raises(SizeError, match=re.escape("--disk: not a rate: got")):
        declare_inventory(("l4",), host_memory="64GiB", disk="7GB")


def test_boards_behind_one_switch_share_their_way_to_the_host() -> None:
    inventory = declare_inventory(("a100-80gb*3", "l4"), host_memory="64GiB")
    hosts = [link for link in inventory.links if link.source == "node0"]
    assert [link.group for link in hosts] == [
        "a100-80gb-switch0",
        "a100-80gb-switch0",
        "a100-80gb-switch1",
        "",
    ]


def test_a_single_board_shares_with_nobody() -> None:
    (link,) = declare_inventory(("a100-80gb",), host_memory="64GiB").links
    assert link.group == ""


def test_several_machines_are_alike_and_joined_each_to_each() -> None:
    options = {"cpu": "epyc-9354", "host_memory": "1TiB", "disk": "7GB/s"}
    one = declare_inventory(("h100-80gb*2",), **options)
    inventory = declare_inventory(("h100-80gb*2",), **options, nodes=3, network="50GB/s")
    assert [node.id for node in inventory.nodes] == ["node0", "node1", "node2"]
    assert _ids_and_kinds(inventory)[3:6] == [
        ("node1/gpu0", "h100-80gb"),
        ("node1/gpu1", "h100-80gb"),
        ("node1/cpu", "epyc-9354"),
    ]
    assert inventory.nodes[2] == msgspec.structs.replace(one.nodes[0], id="node2")
    assert inventory.devices[8] == msgspec.structs.replace(one.devices[2], id="node2/cpu")
    assert inventory.links[:3] == one.links
    assert inventory.links[5] == msgspec.structs.replace(
        one.links[2], source="node1/gpu0", target="node1/gpu1"
    )
    between = [("node0", "node1"), ("node0", "node2"), ("node1", "node2")]
    assert inventory.links[9:] == tuple(
        Link(source=source, target=target, bytes_per_second=50_000_000_000, latency_ns=30_000)
        for source, target in between
    )


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("devices", [(), ("a100-80gb*8",), ("l4", "t4*2"), ("m4-max-128gb",)])
def test_what_is_declared_is_a_valid_inventory(devices: tuple[str, ...], nodes: int) -> None:
    network = None if nodes == 1 else "10GB/s"
    inventory = declare_inventory(devices, cpu="generic", host_memory="64GiB", nodes=nodes, network=network)
    assert list(inventory_problems(inventory)) == []


def test_every_cpu_and_accelerator_of_the_catalogue_makes_a_valid_inventory() -> None:
    for name in ACCELERATORS:
        assert list(inventory_problems(declare_inventory((name,), host_memory="1GiB"))) == []
    for name in CPUS:
        assert list(inventory_problems(declare_inventory(cpu=name, host_memory="1GiB"))) == []


@pytest.mark.parametrize("nodes", [0, -1, 65])
def test_number_of_machines_out_of_range(nodes: int) -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory(("l4",), host_memory="64GiB", nodes=nodes, network="1GB/s")
    assert str(caught.value) == f"--nodes: not a number of machines: got {nodes}, needed 1 to 64"


def test_a_network_without_machines_to_join() -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory(("l4",), host_memory="64GiB", network="50GB/s")
    assert str(caught.value) == "--network: a network needs two machines: got '50GB/s'\nhint: add --nodes 2"


def test_machines_without_a_network() -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory(("l4",), host_memory="64GiB", nodes=2)
    assert str(caught.value) == (
        "--network: the declared machines are not joined: needed a rate between any two\n"
        "hint: add for example --network 50GB/s, which is 400 Gbit/s"
    )


def test_malformed_network_rate() -> None:
    with pytest.raises(SizeError, match=re.escape("--network: not a rate: got")):
        declare_inventory(("l4",), host_memory="64GiB", nodes=2, network="50GB")


def test_too_many_accelerators_in_all_machines() -> None:
    with pytest.raises(UsageError) as caught:
        declare_inventory(("l4*513",), host_memory="64GiB", nodes=2, network="50GB/s")
    assert str(caught.value) == (
        "--nodes: too many accelerators: got 2 machines with 513 each, needed at most 1024 in all"
    )
