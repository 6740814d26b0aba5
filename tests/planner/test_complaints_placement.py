"""What users of other planners complained of, kept from happening here: sizes, ties, buffers, budgets.

Each test names what holds with us; the comment names where the opposite was reported.
"""

from __future__ import annotations

from pathlib import Path

import complaint_models
import pytest
from complaint_models import UNIT
from placement_problems import make_device, make_inventory, make_link
from tiny_models import TEXT
from torch import nn
from transformers import LlamaConfig

from bayplan import Infeasible, Plan, plan_model
from bayplan.planner.hardware.probe import probe_inventory
from bayplan.planner.present.device_map import device_map
from bayplan.schemas.errors import UsageError
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import Residency


def gpus(*numbers: int, with_cpu: bool = False) -> Inventory:
    """Equal accelerators with these numbers, each with its own link to the host; the CPU is slower."""
    names = [f"gpu{number}" for number in numbers]
    devices = [make_device(name) for name in names]
    if with_cpu:
        devices.append(make_device("cpu", memory_bytes_per_second=10**8, flops_per_second=10**8))
    return make_inventory(devices, [make_link(f"node0/{name}") for name in names])


def beside_weights_bytes(factory: str, no_split: tuple[str, ...] = ()) -> int:
    """Budget that every device needs besides the weights that it holds."""
    plan = plan_model(f"complaint_models:{factory}", inventory=gpus(0), no_split=no_split)
    ledger = plan.devices[0].ledger
    return ledger.budgeted_bytes - ledger.weights[1]


def place(factory: str, inventory: Inventory, /, *, no_split: tuple[str, ...] = (), **units: int) -> Plan:
    """Plan with a budget in units of weights for each device."""
    extra = beside_weights_bytes(factory, no_split)
    return plan_model(
        f"complaint_models:{factory}",
        inventory=inventory,
        max_memory=tuple(f"{name}={extra + size * UNIT if size else 0}" for name, size in units.items()),
        no_split=no_split,
    )


def weights_on(plan: Plan) -> dict[str, int]:
    """Upper bound of the weights on each device."""
    return {device.id.partition("/")[2]: device.ledger.weights[1] for device in plan.devices}


def placed(plan: Plan) -> dict[str, str]:
    return {block.id: block.device.partition("/")[2] for block in plan.blocks}


def devices_in_order(plan: Plan) -> list[str]:
    return [block.device.partition("/")[2] for block in plan.blocks]


def tensor_names(model: nn.Module) -> set[str]:
    """Every name of every tensor, aliases included."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return names | {name for name, _ in model.named_buffers(remove_duplicate=False)}


def owner(mapping: dict[str, int | str], fqn: str) -> str:
    """Return the longest name of a device map that covers a tensor."""
    covering = [name for name in mapping if not name or fqn == name or fqn.startswith(f"{name}.")]
    assert covering, f"{fqn} has no device"
    return max(covering, key=len)


def test_buffers_of_a_split_module_have_a_device() -> None:
    """accelerate#3956: they were missing from the map."""
    plan = place("scaled_blocks", gpus(0, 1), no_split=("Linear",), gpu0=3, gpu1=3)
    assert len(set(devices_in_order(plan))) == 2
    own = {block.id: block.num_bytes for block in plan.blocks if block.id.endswith(":own")}
    assert own == {"layers.0:own": 64, "layers.1:own": 64}
    mapping = device_map(plan)
    owners = {fqn: owner(mapping, fqn) for fqn in tensor_names(complaint_models.scaled_blocks())}
    assert owners["layers.0.scale"] == "layers.0"
    assert owners["layers.1.first.weight"] == "layers.1.first"


def test_a_buffer_of_one_number_is_part_of_its_block() -> None:
    """accelerate#4014: a decoder layer's scalar had no device after balancing."""
    plan = place("scalar_buffers", gpus(0, 1), gpu0=12, gpu1=14)
    assert len(set(devices_in_order(plan))) == 2
    assert [(block.id, block.num_bytes) for block in plan.blocks] == [
        (f"layers.{number}", 2 * UNIT + 4) for number in range(10)
    ]


def test_a_device_without_budget_between_others_is_skipped() -> None:
    """accelerate#4297: everything went to the first device."""
    plan = place("six_layers", gpus(0, 1, 2), gpu0=3, gpu1=0, gpu2=3)
    assert devices_in_order(plan) == ["gpu0"] * 3 + ["gpu2"] * 3


def test_device_numbers_may_have_gaps() -> None:
    """accelerate#4297: KeyError 1."""
    plan = place("six_layers", gpus(0, 3), gpu0=3, gpu3=3)
    assert devices_in_order(plan) == ["gpu0"] * 3 + ["gpu3"] * 3


def test_the_first_of_two_devices_is_used_where_the_second_is_too_small() -> None:
    """accelerate#1607: it was ignored."""
    plan = place("six_layers", gpus(0, 1), gpu0=2, gpu1=4)
    assert devices_in_order(plan) == ["gpu0"] * 2 + ["gpu1"] * 4


def test_an_only_accelerator_without_budget_leaves_the_cpu() -> None:
    """accelerate#1933: ZeroDivisionError."""
    plan = place("six_layers", gpus(0, with_cpu=True), gpu0=0, cpu=6)
    assert devices_in_order(plan) == ["cpu"] * 6


def test_no_budget_at_all_is_an_answer() -> None:
    """accelerate#1933, without a CPU beside it."""
    with pytest.raises(Infeasible) as raised:
        plan_model("complaint_models:six_layers", inventory=gpus(0), max_memory=("gpu0=0",))
    assert str(raised.value) == (
        "inventory: no device may compute: needed at least one device with a budget above zero\n"
        "hint: a declared host computes only with --cpu; see --max-memory for budgets"
    )


def test_disk_is_no_device_with_a_budget() -> None:
    """accelerate#3480: RuntimeError deep inside; `--no-spill` is what was wanted."""
    with pytest.raises(UsageError) as raised:
        plan_model("complaint_models:six_layers", inventory=gpus(0), max_memory=("disk=0",))
    assert str(raised.value).startswith("--max-memory: unknown device: got 'disk', needed one of node0/gpu0")
    with pytest.raises(Infeasible):
        plan_model("complaint_models:six_layers", inventory=gpus(0), max_memory=("gpu0=1MiB",), no_spill=True)


def test_parameters_of_the_root_are_placed_on_a_lone_cpu() -> None:
    """accelerate#1548: an error when only the CPU was given."""
    plan = place("root_tensors", make_inventory([make_device("cpu")]), cpu=2)
    assert {block.id: (block.num_bytes, block.device) for block in plan.blocks} == {
        ":own": (128, "node0/cpu"),
        "layer": (UNIT, "node0/cpu"),
    }
    assert device_map(plan) == {"": "cpu", "layer": "cpu"}


def test_two_tied_groups_in_one_module() -> None:
    """accelerate#1510: IndexError."""
    plan = plan_model("complaint_models:twice_tied", inventory=gpus(0))
    assert [(tie.fqns, tie.num_bytes) for tie in plan.ties] == [
        (("expand.bias", "reduce.bias"), 64),
        (("expand.weight", "reduce.weight"), UNIT),
    ]
    assert sum(block.num_bytes for block in plan.blocks) == UNIT + 64


def test_one_table_under_three_names_of_one_top_module() -> None:
    """accelerate#958: IndexError."""
    plan = plan_model("complaint_models:shared_embedding", inventory=gpus(0))
    names = ("decoder.embed.weight", "encoder.embed.weight", "shared.weight")
    assert [(tie.fqns, tie.num_bytes) for tie in plan.ties] == [(names, UNIT)]
    assert sum(block.num_bytes for block in plan.blocks) == 3 * UNIT


def test_a_name_that_begins_like_another_is_another() -> None:
    """accelerate#3308: `layers.1` was taken for `layers.10`."""
    plan = plan_model("complaint_models:tied_pair_of_fifteen", inventory=gpus(0))
    sizes = {block.id: block.num_bytes for block in plan.blocks}
    assert sizes == {f"layers.{number}": UNIT + 64 for number in range(15)} | {"layers.10": 64}
    assert [tie.fqns for tie in plan.ties] == [("layers.1.weight", "layers.10.weight")]
    pinned = plan_model(
        "complaint_models:tied_pair_of_fifteen", inventory=gpus(0, 1), pins=("layers.1=gpu0", "layers.2=gpu1")
    )
    assert devices_in_order(pinned) == ["gpu0"] * 2 + ["gpu1"] * 13
    assert [(tie.policy, tie.devices) for tie in pinned.ties] == [
        ("replicated", ("node0/gpu0", "node0/gpu1"))
    ]


def test_a_backbone_that_is_tied_as_a_whole_is_counted_once() -> None:
    """transformers#46566: it was counted once per weight, and all of it went to disk."""
    plan = place("tied_backbones", gpus(0), gpu0=5)
    assert {block.residency for block in plan.blocks} == {Residency.RESIDENT}
    assert weights_on(plan) == {"gpu0": 5 * UNIT}


def test_small_layers_before_a_giant_are_not_lost() -> None:
    """accelerate#3041: nothing was put on a device smaller than the largest layer."""
    plan = place("one_giant", gpus(0, with_cpu=True), gpu0=2, cpu=20)
    assert devices_in_order(plan) == ["gpu0", "cpu", "cpu"]


def test_no_room_is_kept_for_layers_that_are_there_already() -> None:
    """accelerate#3041: room for the largest layer was kept free although nothing was offloaded."""
    plan = place("one_giant", gpus(0, with_cpu=True), gpu0=12, cpu=20)
    assert devices_in_order(plan) == ["gpu0"] * 3
    assert weights_on(plan)["gpu0"] == 12 * UNIT


def test_first_layers_that_dominate_are_spread() -> None:
    """accelerate#1888: the balanced budgets could not hold them."""
    plan = place("dominated", gpus(0, 1), gpu0=9, gpu1=11)
    assert devices_in_order(plan) == ["gpu0", "gpu1", "gpu1"]


def test_embedding_and_head_larger_than_an_even_share_find_room() -> None:
    """accelerate#3244: everything went to the last device or to disk."""
    plan = place("huge_vocabulary", gpus(0, 1), gpu0=1000, gpu1=1000)
    found = devices_in_order(plan)
    assert (found[0], found[-1]) == ("gpu0", "gpu1")
    assert {block.residency for block in plan.blocks} == {Residency.RESIDENT}
    assert all(size <= 1000 * UNIT for size in weights_on(plan).values())


def test_each_block_of_a_class_has_its_own_size() -> None:
    """transformers#47203: the first instance stood for all."""
    plan = place("uneven_blocks", gpus(0, 1), gpu0=46, gpu1=46)
    small, large = 2 * UNIT + 128, 20 * UNIT + 640 + 64
    assert [block.num_bytes for block in plan.blocks] == [small] + [large] * 4
    assert devices_in_order(plan) == ["gpu0"] * 3 + ["gpu1"] * 2


@pytest.fixture
def llama_config(tmp_path: Path) -> str:
    LlamaConfig(**TEXT).save_pretrained(tmp_path)
    return str(tmp_path)


def test_cache_and_activations_are_part_of_the_budget(llama_config: str) -> None:
    """accelerate#473: the map filled devices to the brim, and the first forward ran out of memory."""

    def plan_for(*, budget_bytes: int | None = None, batch: int = 1) -> Plan:
        return plan_model(
            llama_config,
            inventory=gpus(0),
            class_name="LlamaForCausalLM",
            max_memory=() if budget_bytes is None else (f"gpu0={budget_bytes}",),
            batch=batch,
        )

    ledger, twice = plan_for().devices[0].ledger, plan_for(batch=2).devices[0].ledger
    assert twice.kv == tuple(2 * num_bytes for num_bytes in ledger.kv)
    assert twice.activations[0] > ledger.activations[0] > 0
    assert plan_for(budget_bytes=ledger.budgeted_bytes).summary.streamed_blocks == 0
    tight = plan_for(budget_bytes=ledger.budgeted_bytes - 1)
    assert tight.summary.streamed_blocks > 0
    assert tight.devices[0].ledger.budgeted_bytes < ledger.budgeted_bytes
    with pytest.raises(Infeasible):
        plan_for(budget_bytes=ledger.weights[1])


def test_equal_devices_that_the_model_just_fills_are_filled_equally() -> None:
    """transformers#18176: load was uneven, and part of the model was left out."""
    plan = place("twelve_layers", gpus(0, 1, 2, 3), gpu0=3, gpu1=3, gpu2=3, gpu3=3)
    assert weights_on(plan) == dict.fromkeys(("gpu0", "gpu1", "gpu2", "gpu3"), 3 * UNIT)


def test_memory_that_host_and_accelerator_share_is_counted_once() -> None:
    """accelerate#4183: GPU and CPU budgets were the same memory, and both were spent."""
    extra = beside_weights_bytes("six_layers")
    needed = extra + 6 * UNIT
    unified = make_device("gpu0", shares_host_memory=True)
    cpu = make_device("cpu", memory_bytes_per_second=10**8, flops_per_second=10**8)
    both = (f"gpu0={extra + 4 * UNIT}", f"cpu={extra + 4 * UNIT}")
    for host_bytes, fits in ((needed + extra, True), (needed + extra - 64, False)):
        inventory = make_inventory(
            [unified, cpu], [make_link("node0/gpu0")], host_memory_bytes=host_bytes, disk_rate=None
        )
        if fits:
            plan = plan_model("complaint_models:six_layers", inventory=inventory, max_memory=both)
            assert weights_on(plan) == {"gpu0": 4 * UNIT, "cpu": 2 * UNIT}
        else:
            with pytest.raises(Infeasible):
                plan_model("complaint_models:six_layers", inventory=inventory, max_memory=both)


def test_memory_in_use_changes_no_inventory() -> None:
    """transformers#44565: what was free at the moment was taken for all there is."""
    before = probe_inventory(find_accelerators=tuple)
    ballast = bytearray(64 * 2**20)
    assert probe_inventory(find_accelerators=tuple) == before
    assert len(ballast) == 64 * 2**20


@pytest.mark.parametrize("size", ["1Gib", "64000MiBGiB", "GIB", "5MBB", "-1GB", "6gb"])
def test_a_malformed_size_is_an_error_that_shows_the_forms(size: str) -> None:
    """accelerate#4197: `1gb` was bits and `1Gib` was not."""
    with pytest.raises(UsageError) as raised:
        plan_model("complaint_models:six_layers", inventory=gpus(0), max_memory=(f"gpu0={size}",))
    assert str(raised.value) == (
        f'--max-memory: not a size: got "{size}", needed a size such as 20GiB, 20GB, 20 GiB, 1.5TiB,'
        " or plain bytes\n"
        "hint: KiB, MiB, GiB, TiB, PiB count in 1024s; kB, MB, GB, TB, PB in 1000s; case counts"
    )


@pytest.mark.parametrize(
    ("size", "num_bytes"), [("6GB", 6 * 10**9), ("6GiB", 6 * 2**30), ("1.5GB", 15 * 10**8), ("10", 10)]
)
def test_a_size_means_what_its_unit_says(size: str, num_bytes: int) -> None:
    """transformers#46217: decimal and binary units were mixed up."""
    plan = plan_model(
        "complaint_models:six_layers", inventory=gpus(0, 1), max_memory=("gpu0=1TiB", f"gpu1={size}")
    )
    assert plan.problem.max_memory_bytes == {"node0/gpu0": 2**40, "node0/gpu1": num_bytes}


@pytest.mark.parametrize("size", ["0", "0MiB", "0GB", "0.0KiB"])
def test_nothing_is_a_size(size: str) -> None:
    """accelerate#2507: `0MiB` was rejected."""
    plan = plan_model("complaint_models:six_layers", inventory=gpus(0, 1), max_memory=(f"gpu0={size}",))
    assert devices_in_order(plan) == ["gpu1"] * 6


def test_buffers_that_no_checkpoint_holds_are_in_a_block(llama_config: str) -> None:
    """transformers#30115: a custom map left `inv_freq` without a device."""
    plan = plan_model(
        llama_config,
        inventory=gpus(0, 1),
        class_name="LlamaForCausalLM",
        pins=("model.embed_tokens=gpu0", "model.layers.*=gpu1"),
    )
    sizes = {block.id: block.num_bytes for block in plan.blocks}
    assert sizes["model.rotary_emb"] == 2 * 4 * 4
    assert owner(device_map(plan), "model.rotary_emb.inv_freq") == "model.rotary_emb"


def test_a_residual_block_is_never_split_by_default() -> None:
    """accelerate#661: the map split inside one, and its sum met tensors of two devices."""
    plan = place("undeclared_blocks", gpus(0, 1), gpu0=5, gpu1=5)
    assert [block.id for block in plan.blocks] == [f"layers.{number}" for number in range(4)]
    assert devices_in_order(plan) == ["gpu0"] * 2 + ["gpu1"] * 2
