"""plan where nothing can be placed: the certificate goes to standard output only if data was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import bayplan.planner.api
import bayplan.planner.pareto
from bayplan.commands.app import run_command_line
from bayplan.schemas.certificate import (
    Axis,
    Certificate,
    CertifiedInfeasible,
    Relaxation,
    encode_certificate,
)
from bayplan.schemas.errors import ExitCode

CERTIFICATE = Certificate(
    what="no placement fits the budgets",
    where="node0/cpu",
    got="1.00 GiB on node0/cpu",
    needed="",
    relaxations=(Relaxation(axis=Axis.BATCH, given=4, enough=2, too_little=3, step=1),),
)
WORDS = (
    "error: node0/cpu: no placement fits the budgets: got 1.00 GiB on node0/cpu\n"
    "  any one of these is enough, and one step less is not:\n"
    "    --batch 2 instead of 4 (3 is too much)\n"
)


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_asked: object) -> None:
        raise CertifiedInfeasible(CERTIFICATE)

    monkeypatch.setattr(bayplan.planner.api, "make_plan", nothing)
    monkeypatch.setattr(bayplan.planner.pareto, "make_frontier", nothing)


def test_words_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.json"
    target.write_text("what stood there before")
    assert run_command_line(["plan", "org/name", "-o", str(target)]) == ExitCode.INFEASIBLE
    assert capsys.readouterr() == ("", WORDS)
    assert target.read_text() == "what stood there before"


@pytest.mark.parametrize("frontier", [[], ["--pareto"]])
@pytest.mark.parametrize("option", [["--as", "json"], ["--json"]])
def test_the_certificate_as_data(
    option: list[str], frontier: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["plan", "org/name", *option, *frontier]) == ExitCode.INFEASIBLE
    assert capsys.readouterr() == (encode_certificate(CERTIFICATE).decode(), WORDS)


def test_words_alone_for_a_frontier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["plan", "org/name", "--pareto", "-o", str(tmp_path)]) == ExitCode.INFEASIBLE
    assert capsys.readouterr() == ("", WORDS)
    assert list(tmp_path.iterdir()) == []
