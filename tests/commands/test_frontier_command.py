"""plan --pareto, --previous and --time-limit: what is asked of the planner, and what is written where."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from placeable_models import read_placeable, two_gpus

import bayplan.planner.api
import bayplan.planner.pareto
from bayplan.commands.app import run_command_line
from bayplan.planner.api import Planned, solve_ready
from bayplan.planner.options import PlanOptions
from bayplan.planner.pareto import Found, find_frontier
from bayplan.planner.ready import get_ready
from bayplan.schemas.codec import encode_plan, read_plan
from bayplan.schemas.plan import Plan

OPTIONS = PlanOptions(inventory=two_gpus(), max_memory=("gpu0=9MiB", "gpu1=9MiB"), format="bf16")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    """A frontier that is found whatever is asked for."""
    frontier = find_frontier(OPTIONS, read_placeable)
    frontier = msgspec.structs.replace(frontier, warnings=("something",))
    monkeypatch.setattr(bayplan.planner.pareto, "make_frontier", lambda *_: frontier)
    return frontier


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PlanOptions]:
    """What the planner was asked."""
    options: list[PlanOptions] = []

    def make_plan(_model: str, own: PlanOptions, _progress: object) -> Planned:
        options.append(own)
        return Planned(plan=plan(), warnings=())

    monkeypatch.setattr(bayplan.planner.api, "make_plan", make_plan)
    return options


def plan() -> Plan:
    return solve_ready(get_ready(OPTIONS, read_placeable))


def test_every_plan_is_written_to_a_folder(
    found: Found, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "plans"
    assert run_command_line(["plan", "model", "--pareto", "-o", str(folder), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == f"warning: something\nwrote {len(found.points)} plans to {folder}\n"
    points = json.loads(out)["points"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(point["file"] for point in points)
    for own, point in zip(found.points, points, strict=True):
        assert (folder / point["file"]).read_bytes() == encode_plan(own.plan)
        assert read_plan(folder / point["file"]).plan.digest == point["digest"]


def test_without_a_folder_plans_are_listed_only(found: Found, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["plan", "model", "--pareto"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("context  format  quantized  to 4 bits")
    assert len(out.split("\n\n")[0].splitlines()) == 1 + len(found.points)
    assert err == "warning: something\nnot written to files: add -o FOLDER\n"


def test_a_folder_that_is_a_file(found: Found, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text("mine")
    assert run_command_line(["plan", "model", "--pareto", "-o", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"error: {path}: cannot make the folder for the plans: got File exists\n"
        "hint: with --pareto, -o names a folder\n"
    )
    assert path.read_text() == "mine"


def test_previous_and_time_limit_reach_the_planner(asked: list[PlanOptions], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(plan()))
    assert run_command_line(["plan", "model", "--previous", str(path), "--time-limit", "2.5"]) == 0
    assert asked == [PlanOptions(previous=plan(), time_limit_s=2.5)]


def test_an_edited_plan_is_taken_with_a_warning(
    asked: list[PlanOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(plan()).replace(b'"hand/made"', b'"my/own"'))
    assert run_command_line(["plan", "model", "--previous", str(path)]) == 0
    model = msgspec.structs.replace(plan().model, source="my/own")
    assert [own.previous for own in asked] == [msgspec.structs.replace(plan(), model=model)]
    assert capsys.readouterr().err == (
        f"warning: {path} was edited since it was written; it is taken as it is\n"
        "not written to a file: add -o plan.json\n"
    )


def test_a_previous_plan_that_is_not_there(
    asked: list[PlanOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    assert run_command_line(["plan", "model", "--previous", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: cannot read the plan")
    assert asked == []
