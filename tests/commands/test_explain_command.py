"""explain from the outside: what is printed where, and what it does without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from planned import plan_streamed

from bayplan.commands.app import run_command_line
from bayplan.planner.explain import explain_plan
from bayplan.planner.explain_block import explain_block
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.explanation import encode_explanation

BLOCK = "model.layers.3"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(plan_streamed()))
    return path


def call(*arguments: object) -> int:
    return run_command_line([str(argument) for argument in arguments])


def test_devices(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", plan) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1] == "objective  decode, step 38.1 ms"
    assert "memory, weights above all" in out
    assert err == ""


def test_a_block(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", plan, BLOCK) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"block      {BLOCK}, 3.00 MiB in bf16"
    assert "residency  resident" in out
    assert err == ""


@pytest.mark.parametrize("option", [["--as", "json"], ["--json"]])
def test_as_json(plan: Path, option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", plan, *option) == 0
    assert capsys.readouterr().out == encode_explanation(explain_plan(plan_streamed())).decode()
    assert call("explain", plan, BLOCK, *option) == 0
    assert capsys.readouterr().out == encode_explanation(explain_block(plan_streamed(), BLOCK)).decode()


def test_an_edited_plan_is_explained_with_a_warning(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = json.loads(plan.read_text())
    tree["workload"]["context"] += 1
    plan.write_text(json.dumps(tree))
    assert call("explain", plan) == 0
    out, err = capsys.readouterr()
    assert "gpu0" in out
    assert err == (
        f"warning: {plan}: edited: the file does not match its digest; it will not be carried out\n"
    )


def test_a_plan_that_cannot_be_solved_again(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = json.loads(plan.read_text())
    tree["problem"]["runs"] = []
    plan.write_text(json.dumps(tree))
    assert call("explain", plan) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[1] == f"error: {plan}: not a valid plan to be solved again: 1 problem"


def test_an_unknown_block(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", plan, "model.layer.3") == 64
    assert capsys.readouterr().err.startswith("error: BLOCK: the plan has no such block: got 'model.layer.3'")


def test_no_torch_is_loaded(plan: Path) -> None:
    code = (
        "import sys; from bayplan.commands.app import run_command_line; "
        "code = run_command_line(sys.argv[1:]); "
        "heavy = {'torch', 'transformers', 'networkx', 'huggingface_hub'}; "
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "explain", plan, BLOCK], capture_output=True, text=True, check=True
    )
    assert done.stderr == "0 []\n"
    assert BLOCK in done.stdout
