"""The main job on a real model that generates: plan, file, run, and exactly the reference tokens."""

from __future__ import annotations

import functools
import gc
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from command_line import Cli, in_own_process
from references import CAPITAL, ONCE, SMOLLM2_NUM_LAYERS
from transformers import AutoModelForCausalLM, AutoTokenizer

import bayplan
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.schemas.codec import read_plan

pytestmark = pytest.mark.slow

CONTEXT = 128
BUDGETS = {"smollm2_fp32": "170MiB", "smollm2_bf16": "90MiB", "smollm2_sharded": "90MiB"}
"""Too little for most layers, each of which takes 13.5 MiB in fp32 and 6.75 MiB in bf16."""
WAYS = pytest.mark.parametrize("way", ["resident", "streaming"])
CHECKPOINTS = pytest.mark.parametrize("fixture", sorted(BUDGETS))


class Planned(NamedTuple):
    """A plan's file and the checkpoint that it is for."""

    plan: Path
    checkpoint: Path


@pytest.fixture
def planned(fixture: str, way: str, request: pytest.FixtureRequest, tmp_path: Path, cli: Cli) -> Planned:
    """Plan by the command line; check that the plan is of the kind that the test is about."""
    checkpoint = request.getfixturevalue(fixture)
    plan = tmp_path / "plan.json"
    budget = ["--no-spill"] if way == "resident" else ["--max-memory", f"cpu={BUDGETS[fixture]}"]
    done = cli("plan", checkpoint, *budget, "--context", CONTEXT, "-o", plan)
    assert done.code == 0, done.err
    streamed = [block["id"] for block in json.loads(plan.read_text())["blocks"] if is_streamed(block)]
    if way == "resident":
        assert streamed == []
    else:
        assert len(streamed) > SMOLLM2_NUM_LAYERS / 2
        assert all(name.startswith("model.layers.") for name in streamed)
    return Planned(plan, checkpoint)


def is_streamed(block: dict[str, Any]) -> bool:
    return block["residency"] == "stream-disk"


@WAYS
@CHECKPOINTS
def test_the_command_line_gives_the_reference_tokens(
    planned: Planned, way: str, tmp_path: Path, cli: Cli
) -> None:
    report_file = tmp_path / "report.json"
    done = cli(
        *("run", planned.plan, "--checkpoint", planned.checkpoint),
        *("--prompt", CAPITAL.prompt, ONCE.prompt, "--max-new-tokens", 20, "--report", report_file),
    )
    assert done.code == 0, done.err
    report = json.loads(report_file.read_text())
    assert [tuple(ids) for ids in report["token_ids"]] == [CAPITAL.token_ids, ONCE.token_ids]
    tokenizer = AutoTokenizer.from_pretrained(planned.checkpoint)
    texts = [tokenizer.decode(text.token_ids, skip_special_tokens=True) for text in (CAPITAL, ONCE)]
    assert done.out == "".join(f"{text}\n" for text in texts)
    plan = json.loads(planned.plan.read_text())
    assert (report["plan_digest"], report["honoured"]) == (plan["digest"], True)
    assert [(block["id"], block["residency"], block["num_bytes"]) for block in report["blocks"]] == [
        (block["id"], block["residency"], block["num_bytes"]) for block in plan["blocks"]
    ]
    # Every forward brings in every streamed layer, one prefill and 19 steps for each prompt.
    visits = {block["visits"] for block in report["blocks"] if is_streamed(block)}
    assert visits == (set() if way == "resident" else {40})


@WAYS
@CHECKPOINTS
def test_from_python_logits_and_tokens_are_those_of_transformers(planned: Planned) -> None:
    expected = expected_of(planned.checkpoint)
    model = bayplan.load_model(planned.plan, planned.checkpoint)
    found = logits_and_tokens(model)
    report = bayplan.report(model)
    bayplan.release(model)
    assert found[0].dtype == expected[0].dtype
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1] == CAPITAL.token_ids
    assert (report.plan_digest, report.honoured) == (read_plan(planned.plan).plan.digest, True)


@functools.cache
def expected_of(checkpoint: Path) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return what transformers' own model gives, its parameters aligned: else equality is not defined."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return logits_and_tokens(model)


def logits_and_tokens(model: torch.nn.Module) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return the logits at every position of a prompt, and what greedy decoding adds to it."""
    ids = torch.tensor([CAPITAL.prompt_ids])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    gc.collect()
    return logits, tuple(made[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize(("fixture", "way"), [("smollm2_bf16", "streaming")])
def test_a_process_of_its_own_gives_them_too(planned: Planned, tmp_path: Path) -> None:
    """The other tests share one interpreter with the planner; here only the plan's file is handed over."""
    report = tmp_path / "report.json"
    done = in_own_process(
        *("run", planned.plan.name, "--checkpoint", planned.checkpoint, "--prompt", CAPITAL.prompt),
        *("--max-new-tokens", 20, "--report", report),
        cwd=planned.plan.parent,
    )
    assert done.code == 0, done.err
    written = json.loads(report.read_text())
    assert written["token_ids"] == [list(CAPITAL.token_ids)]
    assert written["measured"]["peak_bytes"].keys() == written["predicted"]["peak_bytes"].keys() != set()
    for device, peak_bytes in written["measured"]["peak_bytes"].items():
        assert peak_bytes <= written["predicted"]["peak_bytes"][device]


def test_a_plan_made_for_another_machine_runs_here(smollm2_bf16: Path, tmp_path: Path) -> None:
    """Planned for a declared server, whose speed and memory are not this machine's."""
    inventory = declare_inventory(cpu="epyc-9354", host_memory="8GiB", disk="3GB/s")
    plan = bayplan.plan_model(smollm2_bf16, inventory=inventory, max_memory=("cpu=90MiB",), context=CONTEXT)
    (tmp_path / "plan.json").write_bytes(bayplan.encode_plan(plan))
    with bayplan.loaded(tmp_path / "plan.json", smollm2_bf16) as model:
        assert logits_and_tokens(model)[1] == CAPITAL.token_ids
        assert bayplan.report(model).honoured
