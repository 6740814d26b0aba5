"""A device map as demands on the blocks of a model: what each entry means on which machine."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planner.device_map import DeviceMap, MapPlace, asked_map, entry_of, pins_of, read_map
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.options import PlanOptions
from bayplan.schemas.errors import PlanFormatError, UsageError
from bayplan.schemas.graph import GraphBlock, TensorRecord, TiedGroup, Work
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Reason, Residency

GPU0, GPU1, CPU = "node0/gpu0", "node0/gpu1", "node0/cpu"
RESIDENT, HOST, DISK = Residency.RESIDENT, Residency.STREAM_HOST, Residency.STREAM_DISK


def machine(*devices: str, cpu: str | None = "generic") -> Inventory:
    return declare_inventory(devices, cpu=cpu, host_memory="64GiB")


TWO = machine("l4*2")
ALONE = machine()
ONE = machine("l4")


def block(name: str, *tensors: str, reason: Reason | None = None) -> GraphBlock:
    """A block with weights of these names, of one called `weight` by default; `~` marks a buffer."""
    path = name.removesuffix(":own")
    work = Work(flops=1, activation_bytes=1, output_bytes=1)
    return GraphBlock(
        id=name,
        class_name="Layer",
        tensors=tuple(
            TensorRecord(
                fqn=f"{path}.{tensor.lstrip('~')}",
                shape=(8,),
                dtype="fp32",
                num_bytes=32,
                is_buffer=tensor.startswith("~"),
            )
            for tensor in tensors or ("weight",)
        ),
        kv_bytes=0,
        prefill=work,
        decode=work,
        resident_reason=reason,
    )


BLOCKS = (
    block("model:own", "scale", reason=Reason.OWN_TENSORS),
    block("model.embed"),
    block("model.rope", "~angles"),
    block("model.layers.0", "attention.weight", "mlp.weight"),
    block("model.layers.1", "attention.weight", "mlp.weight", "~mask"),
    block("model.layers.10", "attention.weight", "mlp.weight"),
    msgspec.structs.replace(block("model.dropout"), tensors=()),
    block("head"),
)
IDS = [one.id for one in BLOCKS]


def places(entries: DeviceMap, inventory: Inventory = TWO) -> dict[str, tuple[str | None, Residency]]:
    reading = read_map(entries, BLOCKS, inventory)
    return {name: (place.device, place.residency) for name, place in reading.places.items()}


def demanded(pins: tuple[Pin, ...]) -> dict[str, MapPlace]:
    """Which pins hold for which block; a block that two pins match would fail."""
    found: dict[str, MapPlace] = {}
    for pin in pins:
        matched = [name for name in IDS if fnmatchcase(name, pin.pattern)]
        assert matched, pin
        for name in matched:
            assert name not in found
            assert pin.residency is not None
            found[name] = MapPlace(device=pin.device, residency=pin.residency)
    return found


def test_one_entry_for_all() -> None:
    reading = read_map({"": 1}, BLOCKS, TWO)
    assert reading.pins == (Pin(pattern="*", device=GPU1, residency=RESIDENT),)
    assert reading.places == dict.fromkeys(IDS, MapPlace(device=GPU1, residency=RESIDENT))
    assert (reading.obstacles, reading.unused) == ((), ())


@pytest.mark.parametrize("name", [0, "cuda:0", "cuda", "gpu0", "node0/gpu0"])
def test_names_of_an_accelerator(name: int | str) -> None:
    assert places({"": name})["head"] == (GPU0, RESIDENT)


def test_apples_accelerator_by_its_name() -> None:
    assert places({"": "mps"}, declare_inventory(["m4-max-128gb"]))["head"] == (GPU0, RESIDENT)


def test_the_longest_entry_counts() -> None:
    entries = {"model": 0, "model.layers": 1, "model.layers.1": 0, "head": 1, "": 0}
    found = places({**entries, "model.layers.1": 1})
    assert [found[name][0] for name in IDS] == [GPU0, GPU0, GPU0, GPU1, GPU1, GPU1, GPU0, GPU1]


def test_entries_below_a_block_that_agree() -> None:
    entries = {"": 0, "model.layers.0.attention": 1, "model.layers.0.mlp": 1}
    assert places({**entries, "model.layers": 1, "head": 1})["model.layers.0"] == (GPU1, RESIDENT)


def test_beside_accelerators_cpu_and_disk_are_where_weights_wait() -> None:
    found = places({"model": 0, "model.layers.1": "cpu", "model.layers.10": "disk", "head": 1})
    assert found["model.layers.1"] == (None, HOST)
    assert found["model.layers.10"] == (None, DISK)


def test_without_accelerators_the_cpu_computes() -> None:
    found = places({"": "cpu", "model.layers.1": "disk"}, ALONE)
    assert found["head"] == (CPU, RESIDENT)
    assert found["model.layers.1"] == (CPU, DISK)


def test_buffers_are_where_a_block_computes() -> None:
    assert "model.rope" not in places({"model": 0, "model.rope": "cpu", "head": 0})


def test_devices_that_are_left_out_do_not_count_as_accelerators() -> None:
    reading = read_map({"": "cpu"}, BLOCKS, TWO, left_out=[GPU0, GPU1])
    assert reading.places["head"] == MapPlace(device=CPU, residency=RESIDENT)


def test_a_block_without_tensors_needs_no_entry() -> None:
    entries = {"model.scale": 0, "model.embed": 0, "model.rope": 0, "model.layers": 0, "head": 0}
    assert set(IDS) - set(places(entries)) == {"model.dropout"}


def test_one_pin_where_a_pattern_says_which_blocks() -> None:
    """`model.layers.1` must not reach `model.layers.10`, nor `model` the head."""
    entries = {"model": 0, "model.layers": 0, "model.layers.1": 1, "model.layers.10": 1, "head": 1}
    reading = read_map(entries, BLOCKS, TWO)
    assert [pin.pattern for pin in reading.pins if pin.device == GPU1] == [
        "model.layers.1",
        "model.layers.10",
        "head",
    ]
    whole = read_map({"model": 0, "head": 1}, BLOCKS, TWO)
    assert [pin.pattern for pin in whole.pins] == ["model*", "head"]
    layers = read_map({"": 0, "model.layers": 0}, BLOCKS, TWO)
    assert "model.layers.*" in [pin.pattern for pin in layers.pins]


def test_names_with_the_characters_of_patterns() -> None:
    strange = block("m.[a]*?")
    (pin,) = read_map({"m": 0}, (strange, block("m.b", "~x")), ONE).pins[:1]
    assert pin.pattern == "m.*"
    pins = read_map({"m.[a]*?": 0, "m.b": 0}, (strange, block("m.b")), ONE).pins
    assert [fnmatchcase("m.[a]*?", one.pattern) for one in pins] == [True, False]
    assert not fnmatchcase("m.aXY", pins[0].pattern)


KEYS = ("", "model", "model.layers", *(name.removesuffix(":own") for name in IDS))


@given(
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from([0, 1, "cpu", "disk"]), max_size=8),
    st.sampled_from([0, 1, "cpu", "disk"]),
)
def test_pins_say_what_the_map_says(entries: dict[str, int | str], rest: int | str) -> None:
    reading = read_map({"": rest, **entries}, BLOCKS, TWO)
    assert demanded(reading.pins) == reading.places
    for one in BLOCKS:
        place = reading.places.get(one.id)
        if place is not None:
            key = entry_of({"": rest, **entries}, one.id.removesuffix(":own"))
            assert key is not None
            name = {"": rest, **entries}[key]
            assert place.residency is {"cpu": HOST, "disk": DISK}.get(str(name), RESIDENT)
            assert place.device == (f"node0/gpu{name}" if isinstance(name, int) else None)


def problems(entries: DeviceMap, inventory: Inventory = TWO) -> str:
    with pytest.raises(PlanFormatError) as caught:
        read_map(entries, BLOCKS, inventory)
    return str(caught.value)


def test_unknown_devices() -> None:
    assert problems({"model": 2, "head": "meta", "x": -1}) == (
        "--from-device-map: not a valid device map: 3 problems\n"
        "  $.model: unknown device: got 2, needed one of 0, 1, cpu, disk\n"
        "  $.head: unknown device: got 'meta', needed one of 0, 1, cpu, disk\n"
        "  $.x: unknown device: got -1, needed one of 0, 1, cpu, disk"
    )


def test_an_accelerator_on_a_machine_without_any() -> None:
    assert problems({"": 0}, ALONE) == (
        "--from-device-map: not a valid device map: 1 problem\n"
        '  $[""]: unknown device: got 0, needed one of cpu, disk'
    )


def test_a_device_that_this_version_does_not_run() -> None:
    with pytest.raises(PlanFormatError) as caught:
        read_map({"": 0}, BLOCKS, TWO, left_out=[GPU0])
    assert str(caught.value) == (
        f'--from-device-map: not a valid device map: 1 problem\n  $[""]: this version does not run on {GPU0}'
    )


def test_blocks_without_a_device() -> None:
    assert problems({"model.scale": 0, "model.embed": 0, "model.rope": 0, "model.layers.0.mlp": 0}) == (
        "--from-device-map: not a valid device map: 4 problems\n"
        '  $["model.layers.0"]: no device for model.layers.0.attention.weight\n'
        '  $["model.layers.1"]: no device for it\n'
        '  $["model.layers.10"]: no device for it\n'
        "  $.head: no device for it"
    )


def test_split_blocks() -> None:
    assert problems({"": 0, "model.layers.0.mlp": 1, "model.layers.1.mask": "cpu"}) == (
        "--from-device-map: not a valid device map: 2 problems\n"
        '  $["model.layers.0"]: a block that stays whole is split: "" on 0, model.layers.0.mlp on 1\n'
        '  $["model.layers.1"]: a block that stays whole is split: "" on 0, model.layers.1.mask on cpu'
    )


def test_several_nodes() -> None:
    nodes = tuple(msgspec.structs.replace(TWO.nodes[0], id=name) for name in ("node0", "node1"))
    several = msgspec.structs.replace(TWO, nodes=nodes)
    assert problems({"": 0}, several) == (
        "--from-device-map: not a valid device map: 1 problem\n"
        "  $: got a machine of 2 nodes, needed one: no map names a node"
    )


def obstacles(entries: DeviceMap, inventory: Inventory = TWO) -> str:
    reading = read_map(entries, BLOCKS, inventory)
    with pytest.raises(PlanFormatError) as caught:
        pins_of(reading)
    head, *lines, hint = str(caught.value).split("\n")
    assert head.startswith("--from-device-map: not a valid device map for this plan: ")
    assert hint == "hint: --free makes the best plan and says where it differs from the map"
    return "\n".join(lines)


def test_a_block_that_must_stay() -> None:
    assert obstacles({"": 0, "model": "cpu", "model.layers": 0, "model.embed": 0}) == (
        "  $.model: model:own must stay where it computes (own-tensors): got 'cpu'"
    )


def test_a_disk_that_is_not_there() -> None:
    nodes = tuple(msgspec.structs.replace(node, disk=None) for node in TWO.nodes)
    assert obstacles({"": 0, "head": "disk"}, msgspec.structs.replace(TWO, nodes=nodes)) == (
        "  $.head: head is on a disk, and the machine has none"
    )


def test_host_memory_that_the_accelerator_shares() -> None:
    assert obstacles({"": 0, "head": "cpu"}, declare_inventory(["m4-max-128gb"])) == (
        "  $.head: head is in host memory, which the accelerator shares: got 'cpu', needed 0"
    )


def test_a_chain_that_comes_back() -> None:
    assert obstacles({"": 0, "model.layers.0": 1, "model.layers.1": "cpu"}) == (
        f'  $["model.layers.10"]: on {GPU0} after blocks on {GPU1}: activations go through the devices once'
    )


TIED = (TiedGroup(fqns=("head.weight", "model.embed.weight"), num_bytes=32),)


def test_a_head_that_comes_back_to_what_it_is_tied_to() -> None:
    entries = {"": 1, "model:own": 0, "model.scale": 0, "model.embed": 0, "head": 0}
    assert read_map(entries, BLOCKS, TWO, ties=TIED).obstacles == ()
    assert read_map(entries, BLOCKS, TWO).obstacles == (
        ("$.head", f"on {GPU0} after blocks on {GPU1}: activations go through the devices once"),
    )
    reading = asked_map(PlanOptions(device_map=entries), BLOCKS, TWO, (), TIED)
    assert reading == read_map(entries, BLOCKS, TWO, ties=TIED)


def test_a_head_that_comes_back_to_another_device() -> None:
    entries = {"": 1, "model.scale": 0, "head": 0}
    assert read_map(entries, BLOCKS, TWO, ties=TIED).obstacles == (
        ("$.head", f"on {GPU0} after blocks on {GPU1}: activations go through the devices once"),
    )


def test_entries_that_decide_nothing() -> None:
    reading = read_map({"": 0, "modl": 0, "model.layers.0.mlp": 0}, BLOCKS, TWO)
    assert reading.unused == ("modl",)


def test_free_without_a_map() -> None:
    with pytest.raises(UsageError) as caught:
        asked_map(PlanOptions(free=True), BLOCKS, TWO, ())
    assert str(caught.value) == "--free: there is no map to be free of: needed --from-device-map"


def test_no_map() -> None:
    assert asked_map(PlanOptions(), BLOCKS, TWO, ()) is None
