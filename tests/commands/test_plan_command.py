"""plan and bind: which option means what, and what is written where. The planner is a stand-in here."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from sample_plans import large_plan, smol_plan

import bayplan.planner.api
import bayplan.planner.bind
from bayplan.commands.app import run_command_line
from bayplan.planner.api import Planned
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.options import PlanOptions
from bayplan.schemas.codec import encode_inventory, encode_plan, read_plan
from bayplan.schemas.errors import Infeasible
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import Objective


class StandIn:
    """A planner that remembers what it was asked and always gives the same plan."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, PlanOptions]] = []
        self.warnings: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()

    def make_plan(self, model: str, options: PlanOptions, progress: object) -> Planned:
        self.asked.append((model, options))
        return Planned(plan=smol_plan(), warnings=self.warnings, notes=self.notes)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(bayplan.planner.api, "make_plan", stand_in.make_plan)
    return stand_in


def test_defaults_are_those_of_the_planner(planner: StandIn) -> None:
    assert run_command_line(["plan", "org/name"]) == 0
    assert planner.asked == [("org/name", PlanOptions())]


def test_every_option_reaches_the_planner(planner: StandIn, tmp_path: Path) -> None:
    machine = declare_inventory(cpu="epyc-9354", host_memory="64GiB")
    (tmp_path / "machine.json").write_bytes(encode_inventory(machine))
    (tmp_path / "map.json").write_text('{"model": 0, "lm_head": "cpu"}')
    words = (
        f"plan pkg.module:factory -i {tmp_path / 'machine.json'} --max-memory cpu=1GiB "
        "--max-memory gpu0=2GiB --format bfloat16 --context 128 --encoder-context 64 --batch 2 "
        "--prefill-chunk 32 --objective prefill "
        "--class LlamaModel --no-split A --no-split B --pin lm_head=cpu "
        f"--pin *.0=cpu,resident --from-device-map {tmp_path / 'map.json'} --free --no-spill "
        "--hash --variant fp16 --trust-remote-code --checkpoint weights --no-cache"
    )
    assert run_command_line(words.split()) == 0
    assert planner.asked == [
        (
            "pkg.module:factory",
            PlanOptions(
                inventory=machine,
                max_memory=("cpu=1GiB", "gpu0=2GiB"),
                format="bf16",
                batch=2,
                context=128,
                encoder_context=64,
                prefill_chunk=32,
                objective=Objective.PREFILL,
                class_name="LlamaModel",
                no_split=("A", "B"),
                pins=("lm_head=cpu", "*.0=cpu,resident"),
                device_map={"model": 0, "lm_head": "cpu"},
                free=True,
                no_spill=True,
                hash_content=True,
                variant="fp16",
                trust_remote_code=True,
                checkpoint="weights",
                use_cache=False,
            ),
        )
    ]


def test_the_plan_is_written_and_pictured(
    planner: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planner.warnings = ("context clamped to 512",)
    path = tmp_path / "plan.json"
    assert run_command_line(["plan", "model", "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert path.read_bytes() == encode_plan(smol_plan())
    assert out.startswith("model      LlamaForCausalLM, 134.5 M parameters")
    assert err == f"warning: context clamped to 512\nwrote {path}\n"


def test_json_is_all_that_standard_output_holds(planner: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    planner.warnings = ("something",)
    assert run_command_line(["plan", "model", "--json"]) == 0
    assert capsys.readouterr() == (encode_plan(smol_plan()).decode(), "warning: something\n")


def test_how_a_plan_differs_is_said_after_the_warnings(
    planner: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planner.warnings, planner.notes = ("something",), ("2 blocks moved", "  lm_head: gpu0 -> cpu")
    path = tmp_path / "plan.json"
    assert run_command_line(["plan", "model", "-o", str(path)]) == 0
    assert capsys.readouterr().err == (
        f"warning: something\n2 blocks moved\n  lm_head: gpu0 -> cpu\nwrote {path}\n"
    )


def test_a_plan_that_is_not_written_says_so(planner: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["plan", "model"]) == 0
    assert capsys.readouterr().err == "not written to a file: add -o plan.json\n"


def test_infeasible_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(model: str, options: PlanOptions, progress: object) -> Planned:
        raise Infeasible("the largest block does not fit", hint="give more")

    monkeypatch.setattr(bayplan.planner.api, "make_plan", refuse)
    assert run_command_line(["plan", "model", "-o", str(tmp_path / "plan.json")]) == 3
    assert capsys.readouterr().err == "error: the largest block does not fit\nhint: give more\n"
    assert list(tmp_path.iterdir()) == []


FULL_DISK = """
import resource, sys
sys.path.insert(0, {support!r})
from sample_plans import smol_plan
import bayplan.planner.api
bayplan.planner.api.make_plan = lambda *_: bayplan.planner.api.Planned(plan=smol_plan(), warnings=())
from bayplan.commands.app import run_command_line
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
sys.exit(run_command_line(["plan", "model", "-o", {path!r}]))
"""


def test_a_file_too_large_for_the_system_leaves_nothing(tmp_path: Path) -> None:
    support = str(Path(__file__).parents[1] / "support")
    path = tmp_path / "plan.json"
    code = FULL_DISK.format(support=support, path=str(path))
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {path}: cannot write the file: got File too large\n"
        "hint: raise this process's file size limit (`ulimit -f`); the old file, if any, is untouched\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


@pytest.fixture
def unbound(tmp_path: Path) -> Path:
    path = tmp_path / "unbound.json"
    tree = json.loads(encode_plan(large_plan()))
    tree["novelty"] = {"kept": True}
    path.write_text(json.dumps(tree))
    digested = encode_plan(large_plan(), onto=tree)
    path.write_bytes(digested)
    return path


@pytest.fixture
def binder(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan, str, dict[str, object]]]:
    calls: list[tuple[Plan, str, dict[str, object]]] = []

    def bind_plan(plan: Plan, checkpoint: str, *, progress: object, **options: object) -> Plan:
        calls.append((plan, checkpoint, options))
        model = msgspec.structs.replace(plan.model, checkpoint=smol_plan().model.checkpoint)
        return msgspec.structs.replace(plan, model=model)

    monkeypatch.setattr(bayplan.planner.bind, "bind_plan", bind_plan)
    return calls


def test_bind_rewrites_in_place_and_keeps_unknown_fields(
    unbound: Path, binder: list[tuple[Plan, str, dict[str, object]]]
) -> None:
    assert run_command_line(["bind", str(unbound), "--checkpoint", "weights", "--hash"]) == 0
    decoded = read_plan(unbound)
    assert decoded.digest_matches
    assert decoded.plan.model.checkpoint == smol_plan().model.checkpoint
    assert decoded.tree["novelty"] == {"kept": True}
    assert [call[1:] for call in binder] == [
        ("weights", {"hash_content": True, "variant": None, "trust_remote_code": False})
    ]


def test_bind_to_another_file_leaves_the_first(
    unbound: Path, binder: list[tuple[Plan, str, dict[str, object]]]
) -> None:
    before = unbound.read_bytes()
    bound = unbound.with_name("bound.json")
    assert run_command_line(["bind", str(unbound), "--checkpoint", "weights", "-o", str(bound)]) == 0
    assert unbound.read_bytes() == before
    assert read_plan(bound).plan.model.checkpoint is not None


def test_bind_gives_no_edited_plan_a_new_digest(
    unbound: Path, binder: list[tuple[Plan, str, dict[str, object]]], capsys: pytest.CaptureFixture[str]
) -> None:
    tree = json.loads(unbound.read_text())
    tree["workload"]["batch"] = 7
    unbound.write_text(json.dumps(tree))
    assert run_command_line(["bind", str(unbound), "--checkpoint", "weights"]) == 4
    assert capsys.readouterr().err == (
        f"error: {unbound}: plan refused (edited): binding would give an edited plan a digest that matches\n"
        "hint: plan again\n"
    )
    assert binder == []


def test_bind_refuses_newer_semantics(
    unbound: Path, binder: list[tuple[Plan, str, dict[str, object]]], capsys: pytest.CaptureFixture[str]
) -> None:
    unbound.write_bytes(encode_plan(msgspec.structs.replace(large_plan(), semantics=9)))
    assert run_command_line(["bind", str(unbound), "--checkpoint", "weights"]) == 4
    assert capsys.readouterr().err == (
        f"error: {unbound}: plan refused (unsupported): newer semantics: got 9, needed at most 1\n"
        "hint: use the version of bayplan that wrote it\n"
    )
    assert binder == []
