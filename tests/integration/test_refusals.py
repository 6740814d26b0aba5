"""Whoever carries a plan out is told why it must not be: each kind in its own words, all with exit code 4."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corruptions
import pytest
from command_line import Cli, Done
from tiny_checkpoints import tiny_bert, tiny_llama
from word_tokenizer import add_tokenizer

from bayplan.schemas.errors import RefusalKind

PROMPT = ("--prompt", "w5 w6 w7")
SHOWN_WARNING = "edited: the file does not match its digest; it will not be carried out"


@pytest.fixture
def plan(llama: Path, machine: Path, tmp_path: Path, cli: Cli) -> Path:
    path = tmp_path / "plan.json"
    assert cli("plan", llama, "-i", machine, "-o", path).code == 0
    return path


def digest_of(plan: Path) -> str:
    digest = json.loads(plan.read_text())["digest"]
    assert isinstance(digest, str)
    return digest


def edit(plan: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a plan as a person with an editor does: without a new digest."""
    tree = json.loads(plan.read_text())
    change(tree)
    plan.write_text(json.dumps(tree, indent=2))


def refused(message: str) -> Done:
    return Done(4, "", f"error: {message}\n")


def test_another_model_is_foreign(plan: Path, tmp_path: Path, cli: Cli) -> None:
    other = add_tokenizer(tiny_llama(tmp_path / "other", layers=3))
    assert cli("run", plan, "--checkpoint", other, *PROMPT) == refused(
        f"{other}: plan refused (foreign): the folder holds another model: "
        "got LlamaForCausalLM (31968 parameters), needed LlamaForCausalLM (41248 parameters)\n"
        "hint: give the folder of the planned model, or plan for this one"
    )


def test_another_architecture_is_foreign(plan: Path, tmp_path: Path, cli: Cli) -> None:
    other = add_tokenizer(tiny_bert(tmp_path / "other"))
    assert cli("run", plan, "--checkpoint", other, *PROMPT) == refused(
        f"{other}: plan refused (foreign): the folder holds another model: "
        "got BertModel (LlamaForCausalLM cannot be built from a config of bert), "
        "needed LlamaForCausalLM (41248 parameters)\n"
        "hint: give the folder of the planned model, or plan for this one"
    )


def test_one_byte_of_a_header_makes_it_stale(plan: Path, llama: Path, tmp_path: Path, cli: Cli) -> None:
    changed = corruptions.copy_of(llama, tmp_path / "changed")
    shard = corruptions.flip_header_byte(changed)
    assert cli("run", plan, "--checkpoint", changed, *PROMPT) == refused(
        f"{changed}: plan refused (stale): the checkpoint changed since the plan was made: "
        f"got {shard.name} has another header, needed the planned files\n"
        "hint: get the planned revision, or plan again from this folder"
    )


def test_a_changed_config_makes_it_stale(plan: Path, llama: Path, tmp_path: Path, cli: Cli) -> None:
    changed = corruptions.copy_of(llama, tmp_path / "changed")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert cli("run", plan, "--checkpoint", changed, *PROMPT) == refused(
        f"{changed}: plan refused (stale): the checkpoint changed since the plan was made: "
        "got config.json has other bytes, needed the planned files\n"
        "hint: get the planned revision, or plan again from this folder"
    )


def test_a_fine_tune_with_the_same_headers_is_stale_where_contents_were_hashed(
    llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    plan = tmp_path / "hashed.json"
    assert cli("plan", llama, "-i", machine, "--hash", "-o", plan).code == 0
    tuned = corruptions.copy_of(llama, tmp_path / "tuned")
    shard = corruptions.flip_data_byte(tuned)
    assert cli("run", plan, "--checkpoint", tuned, *PROMPT) == refused(
        f"{tuned}: plan refused (stale): the checkpoint changed since the plan was made: "
        f"got {shard.name} has other tensor bytes, needed the planned files\n"
        "hint: get the planned revision, or plan again from this folder"
    )


def test_without_a_hash_it_runs_and_says_that_contents_were_not_compared(
    plan: Path, llama: Path, tmp_path: Path, cli: Cli
) -> None:
    tuned = corruptions.copy_of(llama, tmp_path / "tuned")
    corruptions.flip_data_byte(tuned)
    done = cli("run", plan, "--checkpoint", tuned, *PROMPT)
    assert done.code == 0
    assert "content unverified" in done.err


def test_an_edit_is_refused_and_still_shown(plan: Path, llama: Path, cli: Cli) -> None:
    digest = digest_of(plan)
    edit(plan, lambda tree: tree["workload"].update(prefill_chunk=64))
    assert cli("run", plan, "--checkpoint", llama, *PROMPT) == refused(
        f"{plan}: plan refused (edited): changed after it was written: got a plan that does not have the "
        f"digest {digest[:19]}..., needed the plan as it was made\n"
        "hint: make the change with bayplan plan --pin or --max-memory instead"
    )
    shown = cli("show", plan, "--as", "markdown")
    assert (shown.code, shown.err) == (0, "")
    assert SHOWN_WARNING in shown.out
    assert "chunks of 64" in shown.out
    as_json = cli("show", plan, "--json")
    assert (as_json.code, as_json.err) == (0, f"warning: {plan}: {SHOWN_WARNING}\n")
    assert json.loads(as_json.out) == json.loads(plan.read_text())
    compared = cli("diff", plan, plan)
    assert (compared.code, compared.err) == (0, f"warning: {plan}: {SHOWN_WARNING}\n" * 2)


def test_a_newer_major_version_is_unsupported_but_says_what_it_is(plan: Path, llama: Path, cli: Cli) -> None:
    edit(plan, lambda tree: tree.update(format_version="2.0", producer="bayplan 9.9.9"))
    error = (
        f"{plan}: plan refused (unsupported): plan of another major format version: got 2.0, "
        "needed 1.x (this is bayplan's 1.0)\n"
        "hint: use the version of bayplan that wrote it, or plan again with this one"
    )
    assert cli("run", plan, "--checkpoint", llama, *PROMPT) == refused(error)
    identity = f'format_version: "2.0"\nproducer: "bayplan 9.9.9"\ndigest: "{digest_of(plan)}"\n'
    assert cli("show", plan) == Done(4, identity, f"error: {error}\n")
    assert cli("bind", plan, "--checkpoint", llama) == refused(error)
    assert cli("diff", plan, plan) == refused(error)


def test_the_digest_that_was_reviewed_is_held_against_the_plan(plan: Path, llama: Path, cli: Cli) -> None:
    digest = digest_of(plan)
    run = ("run", plan, "--checkpoint", llama, *PROMPT, "--expect-digest")
    assert cli(*run, digest).code == 0
    assert cli(*run, "sha256:0000") == refused(
        f"{plan}: plan refused (edited): not the expected plan: got {digest}, needed sha256:0000\n"
        "hint: review the plan again with bayplan show"
    )


def test_every_kind_has_words_of_its_own(plan: Path, llama: Path, tmp_path: Path, cli: Cli) -> None:
    stale = corruptions.copy_of(llama, tmp_path / "stale")
    corruptions.flip_header_byte(stale)
    foreign = add_tokenizer(tiny_llama(tmp_path / "foreign", layers=3))
    original = plan.read_bytes()
    said = {}
    for kind, checkpoint, change in (
        (RefusalKind.STALE, stale, {}),
        (RefusalKind.FOREIGN, foreign, {}),
        (RefusalKind.EDITED, llama, {"objective": "prefill"}),
        (RefusalKind.UNSUPPORTED, llama, {"format_version": "2.0"}),
    ):
        plan.write_bytes(original)
        edit(plan, lambda tree, change=change: tree.update(change))
        done = cli("run", plan, "--checkpoint", checkpoint, *PROMPT)
        assert (done.code, done.out) == (4, ""), kind
        assert f"plan refused ({kind.value}): " in done.err
        said[kind] = done.err.partition(f"({kind.value}): ")[2]
    assert len(set(said.values())) == 4


def test_nonsense_is_no_plan_and_every_problem_is_listed(plan: Path, llama: Path, cli: Cli) -> None:
    def nonsense(tree: dict[str, Any]) -> None:
        tree["blocks"][0]["num_bytes"] = -1
        tree["blocks"][1]["residency"] = "floating"
        del tree["blocks"][2]["format"]
        tree["workload"]["batch"] = "two"
        tree["digest"] = 7
        tree["summary"]["gap_ppm"] = 0.5

    edit(plan, nonsense)
    expected = Done(
        1,
        "",
        f"error: {plan}: not a valid plan: 6 problems\n"
        "  $.digest: Expected `str`, got `int`\n"
        "  $.workload.batch: Expected `int`, got `str`\n"
        "  $.blocks[0].num_bytes: Expected `int` >= 0\n"
        "  $.blocks[1].residency: Invalid enum value 'floating'\n"
        "  $.blocks[2]: Object missing required field `format`\n"
        "  $.summary.gap_ppm: Expected `int`, got `float`\n",
    )
    assert cli("run", plan, "--checkpoint", llama, *PROMPT) == expected
    assert cli("show", plan) == expected
    assert cli("bind", plan, "--checkpoint", llama) == expected


def test_contradictions_are_listed_too(plan: Path, llama: Path, cli: Cli) -> None:
    def contradict(tree: dict[str, Any]) -> None:
        tree["blocks"][0]["device"] = "node9/gpu9"
        tree["blocks"][3]["id"] = tree["blocks"][2]["id"]
        tree["blocks"][4]["format"] = "fp7"
        tree["blocks"][5]["residency"] = "stream-disk"

    edit(plan, contradict)
    assert cli("run", plan, "--checkpoint", llama, *PROMPT) == Done(
        1,
        "",
        f"error: {plan}: not a valid plan: 6 problems\n"
        "  $.blocks: block 'model.layers.0' stands there 2 times\n"
        "  $.blocks[0].device: 'node9/gpu9' is not among the plan's devices\n"
        "  $.blocks[4].format: 'fp7' is not among the plan's formats\n"
        "  $.blocks[5].residency: streams, but is in no device's stream order\n"
        "  $.summary.streamed_blocks: 0, but the blocks say 1\n"
        "  $.summary.resident_blocks: 8, but the blocks say 7\n"
        "hint: do not edit a plan by hand; plan again\n",
    )
