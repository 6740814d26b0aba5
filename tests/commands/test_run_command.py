"""run: which option means what, and what goes to which stream. The executor is a stand-in here."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
import torch
from sample_plans import large_plan, smol_plan

import bayplan.executor.run
from bayplan.commands.app import run_command_line
from bayplan.executor.run import RunResult
from bayplan.schemas.codec import encode_plan, encode_report
from bayplan.schemas.report import REPORT_FORMAT_VERSION, Figures, RealizedBlock, Report
from bayplan.schemas.types import Residency

MIB = 2**20
DIGEST = f"sha256:{'0' * 64}"
REPORT = Report(
    format_version=REPORT_FORMAT_VERSION,
    plan_digest=smol_plan().digest,
    honoured=True,
    content_verified=False,
    token_ids=((1, 2), (3,)),
    measured=Figures(
        load_ns=190_000_000,
        first_output_ns=1_300_000_000,
        decode_ns=80_000_000,
        peak_bytes={"node0/cpu": 700 * MIB},
    ),
    predicted=Figures(
        load_ns=179_400_000,
        first_output_ns=1_210_000_000,
        decode_ns=77_800_000,
        peak_bytes={"node0/cpu": 755 * MIB},
    ),
    blocks=(
        RealizedBlock(
            id="model.layers.1",
            device="node0/cpu",
            residency=Residency.STREAM_DISK,
            num_bytes=7_080_192,
            visits=20,
            read_bytes=141_603_840,
            wait_ns=12_000_000,
        ),
        RealizedBlock(id="lm_head", device="node0/cpu", residency=Residency.RESIDENT, num_bytes=0),
    ),
    unused=("a", "b"),
    notes=("one core was busy",),
)
PICTURE = f"""\
plan       {smol_plan().digest[:19]}, carried out as planned
streamed   1 block, 135.04 MiB read, 12.0 ms waited for them
warning    content unverified: only the headers of the shards were compared
note       2 tensors of the checkpoint not in the model
note       one core was busy

                 predicted    measured
load              179.4 ms    190.0 ms
first output         1.2 s       1.3 s
step               77.8 ms     80.0 ms
peak node0/cpu  755.00 MiB  700.00 MiB
"""


class StandIn:
    """An executor that remembers what it was asked and always gives the same result."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, object, dict[str, object]]] = []
        self.result = RunResult(report=REPORT, texts=(" Paris.", "Two\nlines"))

    def run_plan(self, plan: object, checkpoint: object, *, progress: object, **options: object) -> RunResult:
        self.asked.append((plan, checkpoint, options))
        return self.result


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(bayplan.executor.run, "run_plan", stand_in.run_plan)
    return stand_in


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(large_plan()))
    return path


def test_texts_go_to_one_stream_and_words_to_the_other(
    executor: StandIn, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["run", str(plan), "--prompt", "a", "b"]) == 0
    out, err = capsys.readouterr()
    assert out == " Paris.\nTwo\nlines\n"
    assert err == PICTURE
    assert executor.asked == [
        (
            plan,
            None,
            {
                "prompts": ("a", "b"),
                "inputs": None,
                "max_new_tokens": 20,
                "expect_digest": None,
                "on": {},
                "trust_remote_code": False,
            },
        )
    ]


def test_every_option_reaches_the_executor(executor: StandIn, plan: Path, tmp_path: Path) -> None:
    words = (
        f"run {plan} --checkpoint weights --inputs in.safetensors --max-new-tokens 5 "
        f"--expect-digest {DIGEST} --on cuda:0=cuda:1 --on node0/gpu1=cpu "
        f"--trust-remote-code --report {tmp_path / 'report.json'}"
    )
    assert run_command_line(words.split()) == 0
    assert executor.asked == [
        (
            plan,
            "weights",
            {
                "prompts": (),
                "inputs": Path("in.safetensors"),
                "max_new_tokens": 5,
                "expect_digest": DIGEST,
                "on": {"node0/gpu0": "cuda:1", "node0/gpu1": "cpu"},
                "trust_remote_code": True,
            },
        )
    ]
    assert (tmp_path / "report.json").read_bytes() == encode_report(REPORT)


def test_json_is_the_report(executor: StandIn, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["run", str(plan), "--prompt", "a", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["token_ids"] == [[1, 2], [3]]
    assert out.encode() == encode_report(REPORT)
    assert err == ""


def test_outputs_of_a_forward_are_named(
    executor: StandIn, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = {"last_hidden_state": torch.zeros(1, 7, 384), "pooler_output": torch.zeros(1, 384)}
    executor.result = RunResult(report=REPORT, outputs=outputs, outputs_digest=DIGEST)
    assert run_command_line(["run", str(plan), "--inputs", "in.safetensors"]) == 0
    assert capsys.readouterr().out == (
        f"last_hidden_state: [1, 7, 384]\npooler_output: [1, 384]\ndigest: {DIGEST}\n"
    )


def test_a_plan_that_was_not_honoured_is_an_error(
    executor: StandIn, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.result = RunResult(report=msgspec.structs.replace(REPORT, honoured=False), texts=("x",))
    assert run_command_line(["run", str(plan), "--prompt", "a", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["honoured"] is False
    assert err == (
        f"error: {plan}: the plan was not honoured: see `blocks` and `notes` of the report\n"
        "hint: this is a fault of bayplan; please report it with the plan and the report\n"
    )
    assert run_command_line(["run", str(plan), "--prompt", "a"]) == 1
    assert "NOT honoured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("gpu0", '--on: not a choice of device: got "gpu0", needed ID=DEV, such as gpu0=cuda:1'),
        ("gpu0=", '--on: not a choice of device: got "gpu0=", needed ID=DEV, such as gpu0=cuda:1'),
    ],
)
def test_malformed_choice_of_device(
    option: str, message: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["run", str(plan), "--prompt", "a", "--on", option]) == 64
    assert capsys.readouterr().err == f"error: {message}\n"


def test_unknown_device(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["run", str(plan), "--prompt", "a", "--on", "gpu7=cpu"]) == 64
    assert capsys.readouterr().err.startswith("error: --on: ")


def test_a_device_chosen_twice(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", str(plan), "--prompt", "a", "--on", "gpu0=cpu", "--on", "node0/gpu0=cpu"]
    assert run_command_line(words) == 64
    assert capsys.readouterr().err == 'error: --on: node0/gpu0 is given twice: got "node0/gpu0=cpu"\n'


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [
        (True, "a\\x1b]0;title\\x07\tb \\x9b2J\\r\u00e9\nc\n"),
        (False, "a\x1b]0;title\x07\tb \x9b2J\r\u00e9\nc\n"),
    ],
)
def test_texts_do_not_command_the_terminal(
    is_terminal: bool, shown: str, executor: StandIn, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stdout(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return is_terminal

    executor.result = RunResult(report=REPORT, texts=("a\x1b]0;title\x07\tb \x9b2J\r\u00e9\nc",))
    stdout = Stdout(newline="")
    monkeypatch.setattr("sys.stdout", stdout)
    assert run_command_line(["run", str(plan), "--prompt", "a"]) == 0
    assert stdout.getvalue() == shown
