"""The plan is an artifact: it travels, is the same bytes every time, and binds to what it was made for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Cli, in_own_process
from corruptions import copy_of
from tiny_checkpoints import tiny_llama
from word_tokenizer import add_tokenizer

from bayplan.schemas.codec import decode_plan, encode_plan

PROMPT = "w5 w6 w7"
SMALL = ("--max-memory", "cpu=9500KiB")
"""Room for a reader that casts, and for few blocks beside it."""


def tree(plan: Path) -> dict[str, Any]:
    found = json.loads(plan.read_text())
    assert isinstance(found, dict)
    return found


def tokens(cli: Cli, plan: Path, checkpoint: Path) -> list[list[int]]:
    """Run the plan and return the generated ids; what it reports must be the plan itself."""
    report = plan.with_name("report.json")
    done = cli("run", plan, "--checkpoint", checkpoint, "--prompt", PROMPT, "--report", report)
    assert done.code == 0, done.err
    written = json.loads(report.read_text())
    assert (written["plan_digest"], written["honoured"]) == (tree(plan)["digest"], True)
    ids: list[list[int]] = written["token_ids"]
    assert [len(row) for row in ids] == [20]
    return ids


@pytest.fixture
def config_only(llama: Path, tmp_path: Path) -> Path:
    """A folder with what `llama` says of itself, and no weights."""
    folder = tmp_path / "config-only"
    folder.mkdir()
    for name in ("config.json", "generation_config.json"):
        shutil.copy(llama / name, folder / name)
    return folder


@pytest.fixture
def unbound(config_only: Path, machine: Path, tmp_path: Path, cli: Cli) -> Path:
    """A plan made from the config alone, in which blocks stream."""
    plan = tmp_path / "unbound.json"
    done = cli("plan", config_only / "config.json", "-i", machine, *SMALL, "-o", plan)
    assert (done.code, done.err) == (0, f"wrote {plan}\n")
    assert tree(plan)["summary"]["streamed_blocks"] == 5
    return plan


def test_a_plan_travels_without_the_folder_that_it_was_made_in(
    llama: Path, machine: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    made_from = copy_of(llama, here / "weights")
    plan = here / "plan.json"
    assert cli("plan", made_from, "-i", machine, "--max-memory", "cpu=1350KiB", "-o", plan).code == 0
    assert str(tmp_path) not in plan.read_text()
    before = tokens(cli, plan, made_from)
    shutil.copy(plan, there / "other-name.json")
    made_from.rename(there / "other-weights")
    shutil.rmtree(here)
    monkeypatch.chdir(there)
    assert tokens(cli, Path("other-name.json"), Path("other-weights")) == before


def test_planned_twice_it_is_the_same_bytes(llama: Path, tmp_path: Path) -> None:
    """On this machine as it is: neither its clock, its free memory nor the order of a set may show."""
    plans = []
    for number, name in enumerate(("first", "second"), start=1):
        folder = tmp_path / name
        copy_of(llama, folder / f"weights-{number}")
        done = in_own_process(
            *("plan", f"weights-{number}", "--max-memory", "cpu=1350KiB", "--hash", "-o", "plan.json"),
            cwd=folder,
            PYTHONHASHSEED=str(number),
        )
        assert done.code == 0, done.err
        plans.append((folder / "plan.json").read_bytes())
    assert plans[0] == plans[1]


def test_an_unbound_plan_is_shown_and_compared_but_not_run(
    unbound: Path, llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    assert (tree(unbound)["complete"], tree(unbound)["applyable"]) == (True, False)
    shown = cli("show", unbound, "--as", "markdown")
    assert (shown.code, shown.err) == (0, "")
    assert "unbound: planned from a config alone" in shown.out
    bound = tmp_path / "bound.json"
    assert cli("plan", llama, "-i", machine, *SMALL, "-o", bound).code == 0
    assert cli("diff", unbound, bound, "--exit-code").code == 2
    assert cli("diff", unbound, unbound, "--exit-code").code == 0
    assert cli("run", unbound, "--checkpoint", llama, "--prompt", PROMPT) == (
        4,
        "",
        f"error: {unbound}: plan refused (unbound): made from a config alone: "
        "needed the identity of the weights\n"
        "hint: bayplan bind PLAN --checkpoint DIR adds it\n",
    )


def test_bind_makes_it_run_and_moves_nothing(unbound: Path, llama: Path, cli: Cli) -> None:
    before = tree(unbound)
    assert cli("bind", unbound, "--checkpoint", llama).code == 0
    after = tree(unbound)
    assert {key for key in after if after[key] != before[key]} == {"applyable", "digest", "model"}
    assert {key for key in after["model"] if after["model"][key] != before["model"][key]} == {"checkpoint"}
    assert [shard["file"] for shard in after["model"]["checkpoint"]["shards"]] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    tokens(cli, unbound, llama)


def test_bind_adds_the_rules_by_which_tensors_are_found(
    config_only: Path, llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    """The class without a head has other names for its tensors than the checkpoint."""
    plan = tmp_path / "headless.json"
    asked = ("-i", machine, "--class", "LlamaModel", "-o", plan)
    assert cli("plan", config_only, *asked).code == 0
    assert tree(plan)["rules"] == []
    assert cli("bind", plan, "--checkpoint", llama).code == 0
    assert tree(plan)["rules"] != []
    done = cli("run", plan, "--checkpoint", llama, "--prompt", PROMPT)
    assert (done.code, done.out.splitlines()[0]) == (0, "last_hidden_state: [1, 3, 32]")


def test_bound_it_is_the_plan_that_the_checkpoint_gives(
    config_only: Path, llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    """Where the checkpoint is cast: without headers a plan must reckon with it, so only then both agree."""
    asked = ("-i", machine, *SMALL, "--format", "bf16")
    assert cli("plan", config_only, *asked, "-o", tmp_path / "bound.json").code == 0
    assert cli("bind", tmp_path / "bound.json", "--checkpoint", llama).code == 0
    assert cli("plan", llama, *asked, "-o", tmp_path / "planned.json").code == 0
    assert (tmp_path / "bound.json").read_bytes() == (tmp_path / "planned.json").read_bytes()


def test_bound_without_a_cast_it_only_reserves_more(
    config_only: Path, llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    bound, planned = tmp_path / "bound.json", tmp_path / "planned.json"
    assert cli("plan", config_only, "-i", machine, "-o", bound).code == 0
    assert cli("bind", bound, "--checkpoint", llama).code == 0
    assert cli("plan", llama, "-i", machine, "-o", planned).code == 0
    more, less = tree(bound), tree(planned)
    assert more["devices"][0]["ledger"].pop("staging") > less["devices"][0]["ledger"].pop("staging")
    assert more["problem"].pop("scratch_bytes") > less["problem"].pop("scratch_bytes")
    assert more.pop("digest") != less.pop("digest")
    assert more == less


def test_bind_refuses_weights_for_which_the_placement_was_not_made(
    unbound: Path, tmp_path: Path, cli: Cli
) -> None:
    before = unbound.read_bytes()
    other = tiny_llama(tmp_path / "other", layers=3)
    done = cli("bind", unbound, "--checkpoint", other)
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith(
        f"error: {other}: plan refused (foreign): the checkpoint is of another model: got LlamaForCausalLM "
        "with 31968 parameters, sha256:"
    )
    assert unbound.read_bytes() == before


def test_bind_needs_weights(unbound: Path, config_only: Path, cli: Cli) -> None:
    assert cli("bind", unbound, "--checkpoint", config_only) == (
        1,
        "",
        f"error: {config_only}: there are no weights to bind to: got a config alone, "
        "needed safetensors shards beside it\n",
    )


def test_bind_takes_weights_stored_in_another_data_type(
    unbound: Path, llama: Path, tmp_path: Path, cli: Cli
) -> None:
    """The config says fp32, so what is stored in bf16 is cast while it is read."""
    stored = tiny_llama(tmp_path / "bf16", dtype=torch.bfloat16)
    shutil.copy(llama / "config.json", stored)
    assert cli("bind", unbound, "--checkpoint", stored).code == 0
    assert tree(unbound)["model"]["dtype"] == "fp32"


@pytest.fixture
def newer(unbound: Path) -> Path:
    """The unbound plan as a later minor version may write it, with fields that this one does not know."""
    found = tree(unbound)
    found["format_version"] = "1.7"
    found["novelty"] = {"kept": [1, None]}
    found["model"]["lineage"] = "kept"
    found["blocks"][2]["affinity"] = 3
    plan = decode_plan(json.dumps(found).encode(), where="newer").plan
    unbound.write_bytes(encode_plan(plan, onto=found))
    return unbound


def test_fields_of_a_newer_minor_version_survive_binding(newer: Path, llama: Path, cli: Cli) -> None:
    assert cli("bind", newer, "--checkpoint", llama).code == 0
    after = tree(newer)
    assert (after["format_version"], after["novelty"]) == ("1.7", {"kept": [1, None]})
    assert (after["model"]["lineage"], after["blocks"][2]["affinity"]) == ("kept", 3)
    shown = cli("show", newer, "--as", "markdown")
    assert "format 1.7 is newer than this version's 1.0: fields that it added are not shown" in shown.out
    assert "edited" not in shown.out


def test_a_plan_with_fields_of_a_newer_minor_version_runs(newer: Path, llama: Path, cli: Cli) -> None:
    assert cli("bind", newer, "--checkpoint", llama).code == 0
    tokens(cli, newer, llama)


def test_a_plan_for_one_of_two_checkpoints_in_a_folder(
    llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    both = copy_of(llama, tmp_path / "both")
    one = add_tokenizer(tiny_llama(tmp_path / "one"))
    (one / "model.safetensors").rename(both / "model.fp16.safetensors")
    plan = tmp_path / "plan.json"
    assert cli("plan", both, "-i", machine, "--variant", "fp16", "-o", plan).code == 0
    assert [shard["file"] for shard in tree(plan)["model"]["checkpoint"]["shards"]] == [
        "model.fp16.safetensors"
    ]
    tokens(cli, plan, both)
