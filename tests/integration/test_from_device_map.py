"""Plans made like a device map, from the file on: round trips, what moved with --free, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bayplan.commands.app import run_command_line
from bayplan.planner.api import make_plan
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.options import PlanOptions
from bayplan.planner.present.device_map import device_map
from bayplan.schemas.codec import encode_inventory
from bayplan.schemas.errors import PlanFormatError
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import Reason, Residency

MODEL = str(Path(__file__).parents[1] / "data" / "models" / "Qwen--Qwen2.5-0.5B.json")
TWO = declare_inventory(["l4*2"], cpu="generic", host_memory="64GiB")
ALONE = declare_inventory(cpu="generic", host_memory="64GiB")


def plan(inventory: Inventory, *budgets: str, entries: dict[str, int | str] | None = None) -> Plan:
    options = PlanOptions(inventory=inventory, max_memory=budgets, context=64, device_map=entries)
    return make_plan(MODEL, options).plan


@pytest.mark.parametrize(
    ("inventory", "budgets", "streams"),
    [
        (TWO, (), False),
        (TWO, ("gpu0=500MiB", "gpu1=900MiB"), False),
        (TWO, ("gpu0=450MiB", "gpu1=0", "cpu=0"), True),
        (ALONE, (), False),
        (ALONE, ("cpu=500MiB",), True),
    ],
)
def test_a_plan_from_the_map_of_a_plan_has_that_map(
    inventory: Inventory, budgets: tuple[str, ...], streams: bool
) -> None:
    first = plan(inventory, *budgets)
    assert any(block.residency is not Residency.RESIDENT for block in first.blocks) == streams
    again = plan(inventory, *budgets, entries=device_map(first))
    assert device_map(again) == device_map(first)
    assert again.summary.predicted_step_ns == first.summary.predicted_step_ns
    assert {block.reason for block in again.blocks} == {Reason.PINNED}


def test_blocks_are_where_the_map_has_them() -> None:
    entries = {"": 1, "model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0}
    made = plan(TWO, entries={**entries, "model.layers.3": "cpu", "model.layers.7": "disk"})
    found = {block.id: (block.device, block.residency.value) for block in made.blocks}
    assert found["model.embed_tokens"] == ("node0/gpu0", "resident")
    assert found["model.layers.0"] == ("node0/gpu0", "resident")
    assert found["model.layers.1"] == ("node0/gpu1", "resident")
    assert found["model.layers.3"] == ("node0/gpu1", "stream-host")
    assert found["model.layers.7"] == ("node0/gpu1", "stream-disk")


def test_a_tied_embedding_that_the_map_offloads() -> None:
    with pytest.raises(PlanFormatError) as caught:
        plan(TWO, entries={"": 0, "model.embed_tokens": "cpu"})
    assert str(caught.value) == (
        "--from-device-map: not a valid device map for this plan: 1 problem\n"
        "  $[\"model.embed_tokens\"]: model.embed_tokens must stay where it computes (tied): got 'cpu'\n"
        "hint: --free makes the best plan and says where it differs from the map"
    )


def test_free_compares_the_best_plan_with_the_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = {"": 0} | {f"model.layers.{number}": "disk" for number in range(4, 8)}
    (tmp_path / "map.json").write_text(json.dumps(entries))
    (tmp_path / "machine.json").write_bytes(encode_inventory(TWO))
    best = make_plan(MODEL, PlanOptions(inventory=TWO))
    words = ["plan", MODEL, "-i", str(tmp_path / "machine.json"), "--json"]
    assert run_command_line([*words, "--from-device-map", str(tmp_path / "map.json"), "--free"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["digest"] == best.plan.digest
    first, second, third = err.splitlines()
    assert first.startswith("a step takes ")
    assert "; in the best plan that is like the device map, " in first
    assert second == "moved against the device map: 4 blocks, 113.77 MiB"
    assert third == "  model.layers.4-7: disk -> gpu0"


def test_an_entry_that_decides_nothing_is_said() -> None:
    options = PlanOptions(inventory=TWO, device_map={"": 0, "model.layer.3": 1})
    assert make_plan(MODEL, options).warnings == ("the device map decides nothing with model.layer.3",)
