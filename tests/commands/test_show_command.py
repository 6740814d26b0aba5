"""show, diff and schema from the outside: exit codes, streams, and what they refuse to hide."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sample_plans import large_plan, smol_plan

from bayplan.commands.app import run_command_line
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.published import SCHEMAS, schema_bytes

GOLDEN = Path(__file__).parents[1] / "golden"
STREAMED = [number for number in range(30) if number % 3]
EDITED = "edited: the file does not match its digest; it will not be carried out"


@pytest.fixture
def resident(tmp_path: Path) -> Path:
    path = tmp_path / "resident.json"
    path.write_bytes(encode_plan(smol_plan()))
    return path


@pytest.fixture
def streamed(tmp_path: Path) -> Path:
    path = tmp_path / "streamed.json"
    path.write_bytes(encode_plan(smol_plan(STREAMED)))
    return path


def rewrite(path: Path, **members: object) -> None:
    """Change members of a plan's file by hand, leaving its digest as it was."""
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


def call(*arguments: object) -> int:
    return run_command_line([str(argument) for argument in arguments])


def test_show(streamed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", streamed) == 0
    out, err = capsys.readouterr()
    assert out == (GOLDEN / "show" / "streamed.txt").read_text()
    assert err == ""


def test_show_as_markdown(streamed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", streamed, "--as", "markdown") == 0
    assert capsys.readouterr().out == (GOLDEN / "show" / "streamed.md").read_text()


@pytest.mark.parametrize("option", [["--as", "json"], ["--json"]])
def test_show_as_json_is_the_file(
    streamed: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("show", streamed, *option) == 0
    assert capsys.readouterr().out == streamed.read_text()


def test_show_as_device_map(streamed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", streamed, "--as", "device-map") == 0
    entries = json.loads(capsys.readouterr().out)
    assert entries["model.layers.0"] == "cpu"
    assert entries["model.layers.1"] == "disk"


def test_an_edited_plan_is_shown_with_a_warning(streamed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(streamed, workload=json.loads(streamed.read_text())["workload"] | {"batch": 2})
    assert call("show", streamed) == 0
    out, err = capsys.readouterr()
    assert f"warning    {EDITED}" in out
    assert err == ""
    assert call("show", streamed, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["workload"]["batch"] == 2
    assert err == f"warning: {streamed}: {EDITED}\n"


def test_a_newer_minor_is_shown_and_its_fields_are_kept(
    streamed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(streamed, format_version="1.7", novelty={"a": 1})
    assert call("show", streamed, "--json") == 0
    assert json.loads(capsys.readouterr().out)["novelty"] == {"a": 1}


def test_another_major_is_refused_with_what_is_known(
    streamed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = json.loads(streamed.read_text())["digest"]
    rewrite(streamed, format_version="9.0", producer="bayplan \x1b[2J")
    assert call("show", streamed) == 4
    out, err = capsys.readouterr()
    assert out == (f'format_version: "9.0"\nproducer: "bayplan \\u001b[2J"\ndigest: "{digest}"\n')
    assert err == (
        f"error: {streamed}: plan refused (unsupported): plan of another major format version: "
        "got 9.0, needed 1.x (this is bayplan's 1.0)\n"
        "hint: use the version of bayplan that wrote it, or plan again with this one\n"
    )


def test_nonsense_is_listed_with_paths(streamed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(streamed, blocks=[], complete="yes")
    assert call("show", streamed) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"error: {streamed}: not a valid plan: 1 problem\n  $.complete: Expected `bool`, got `str`\n"
    )


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", tmp_path / "none.json") == 1
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'none.json'}: cannot read the plan: got No such file or directory\n"
    )


def test_device_map_of_nodes_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "nodes.json"
    plan.write_bytes(encode_plan(large_plan()).replace(b"node0/gpu1", b"node1/gpu0"))
    inventory = json.loads(plan.read_text())["inventory"]
    for link in inventory["links"]:
        if (link["source"], link["target"]) == ("node0", "node1/gpu0"):
            link["source"] = "node1"
    rewrite(
        plan,
        inventory=inventory
        | {"nodes": [{"id": f"node{n}", "host_memory_bytes": 1, "host_reserve_bytes": 0} for n in (0, 1)]},
    )
    assert call("show", plan, "--as", "device-map") == 1
    assert "no device map can express the plan" in capsys.readouterr().err


def test_diff(resident: Path, streamed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diff", resident, streamed) == 0
    assert capsys.readouterr().out == (GOLDEN / "diff" / "spilled.txt").read_text()
    assert call("diff", resident, streamed, "--as", "markdown") == 0
    assert capsys.readouterr().out == (GOLDEN / "diff" / "spilled.md").read_text()


def test_diff_as_json(resident: Path, streamed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diff", resident, streamed, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    spilled = [change["id"] for change in found["blocks"] if change["kinds"] == ["spilled"]]
    assert spilled == [f"model.layers.{number}" for number in STREAMED]
    assert found["step_ns"] == [14_800_000, 77_800_000]


def test_diff_exit_code(resident: Path, streamed: Path) -> None:
    assert call("diff", resident, streamed, "--exit-code") == 2
    assert call("diff", resident, resident, "--exit-code") == 0


def test_diff_warns_of_an_edited_plan(
    resident: Path, streamed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(resident, workload=json.loads(resident.read_text())["workload"] | {"batch": 2})
    assert call("diff", resident, streamed) == 0
    assert capsys.readouterr().err == f"warning: {resident}: {EDITED}\n"


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("schema", name) == 0
    assert capsys.readouterr().out == schema_bytes(name).decode()


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["show", "--help"], ["show", "PLAN"], ["diff", "PLAN", "PLAN"], ["schema", "plan"]],
)
def test_looking_loads_nothing_heavy(arguments: list[str], resident: Path) -> None:
    words = [str(resident) if word == "PLAN" else word for word in arguments]
    code = (
        "import sys; from bayplan.commands.app import run_command_line; "
        f"code = run_command_line({words!r}); "
        "heavy = {'torch', 'transformers', 'networkx', 'highspy', 'numpy', 'huggingface_hub'}; "
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "0 []\n"


def test_completion_loads_nothing_heavy() -> None:
    code = (
        "import atexit, sys; "
        "heavy = {'torch', 'transformers'}; "
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr)); "
        "from bayplan.__main__ import main; main()"
    )
    environment = {"_BAYPLAN_COMPLETE": "complete_bash", "COMP_WORDS": "bayplan sh", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout == "show\n"
    assert done.stderr == "[]\n"
