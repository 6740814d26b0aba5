"""estimate: which option means what, and what goes where."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sized_models import StandInReader

import bayplan.planner.estimate.api
from bayplan.commands.app import run_command_line
from bayplan.planner.estimate.api import make_estimate
from bayplan.planner.estimate.options import EstimateOptions
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.schemas.codec import encode_inventory
from bayplan.schemas.estimate import Estimate, encode_estimate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> StandInReader:
    return StandInReader(monkeypatch)


@pytest.fixture
def asked(reader: StandInReader, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, EstimateOptions]]:
    """What the planner is asked for."""
    questions: list[tuple[str, EstimateOptions]] = []
    real = make_estimate

    def remember(model: str, options: EstimateOptions, progress: object) -> Estimate:
        questions.append((model, options))
        return real(model, EstimateOptions())

    monkeypatch.setattr(bayplan.planner.estimate.api, "make_estimate", remember)
    return questions


def test_defaults_are_those_of_the_planner(asked: list[tuple[str, EstimateOptions]]) -> None:
    assert run_command_line(["estimate", "org/name"]) == 0
    assert asked == [("org/name", EstimateOptions())]


def test_every_option_reaches_the_planner(asked: list[tuple[str, EstimateOptions]], tmp_path: Path) -> None:
    machine = declare_inventory(cpu="epyc-9354", host_memory="64GiB")
    (tmp_path / "machine.json").write_bytes(encode_inventory(machine))
    words = (
        f"estimate pkg.module:factory --dtypes float32 bf16 --dtypes nf4 --fits {tmp_path / 'machine.json'} "
        "--context 128 --encoder-context 64 --batch 2 --class LlamaModel --library_name timm "
        "--lora 8,q_proj --variant fp16 --trust-remote-code --checkpoint weights --no-cache"
    )
    assert run_command_line(words.split()) == 0
    assert asked == [
        (
            "pkg.module:factory",
            EstimateOptions(
                dtypes=("float32", "bf16", "nf4"),
                batch=2,
                context=128,
                encoder_context=64,
                class_name="LlamaModel",
                library="timm",
                lora="8,q_proj",
                fits=machine,
                variant="fp16",
                trust_remote_code=True,
                checkpoint="weights",
                use_cache=False,
            ),
        )
    ]


def test_a_model_that_comes_last_is_no_format(asked: list[tuple[str, EstimateOptions]]) -> None:
    assert run_command_line(["estimate", "--dtypes", "fp32", "--dtypes", "nf4", "m"]) == 0
    assert asked == [("m", EstimateOptions(dtypes=("fp32", "nf4")))]


def test_library_in_one_word(asked: list[tuple[str, EstimateOptions]]) -> None:
    assert run_command_line(["estimate", "m", "--library", "diffusers"]) == 0
    assert asked[0][1].library == "diffusers"


def test_json_is_all_that_standard_output_holds(
    reader: StandInReader, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.changes["warnings"] = ("--context 99 is more than it can",)
    expected = encode_estimate(make_estimate("m", EstimateOptions())).decode()
    assert run_command_line(["estimate", "m", "--json"]) == 0
    assert capsys.readouterr() == (expected, "warning: --context 99 is more than it can\n")


def test_what_a_factory_prints_is_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talking_factory.py").write_text(
        "import torch\nprint('imported')\n"
        "def make():\n    print('called')\n    return torch.nn.Linear(2, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert run_command_line(["estimate", "talking_factory:make", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("{\n")
    assert err.startswith("imported\ncalled\n")


def test_text_is_the_picture(reader: StandInReader, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["estimate", "m"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("model      HandMade (transformers), 521.7 k parameters, bf16\n")
    assert err == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--dtypes float32 int3",
            "--dtypes: unknown format: got 'int3', needed any of fp32, bf16, fp16, fp8, int8, int8-bnb, nf4, "
            "fp4, mxfp4, int4\nhint: torch's names work too, such as float32 or bfloat16",
        ),
        (
            "--lora q_proj",
            "--lora: not a rank with targets: got 'q_proj', needed RANK[,TARGET,...], such as 16 or "
            "8,q_proj,v_proj",
        ),
    ],
)
def test_usage(reader: StandInReader, capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert run_command_line(["estimate", "m", *words.split()]) == 64
    assert capsys.readouterr() == ("", f"error: {message}\n")
    assert reader.asked == []


def test_an_inventory_that_is_not_there(
    reader: StandInReader, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "none.json"
    assert run_command_line(["estimate", "m", "--fits", str(path)]) == 1
    assert capsys.readouterr() == (
        "",
        f"error: {path}: cannot read the inventory: got No such file or directory\n",
    )


NO_TORCH = """
import sys
sys.path.insert(0, {support!r})
import pytest
from sized_models import StandInReader
from bayplan.commands.app import run_command_line
with pytest.MonkeyPatch.context() as patch:
    StandInReader(patch)
    code = run_command_line(["estimate", "m", "--lora", "4", "--fits", {inventory!r}])
loaded = {{"torch", "transformers", "networkx", "highspy", "huggingface_hub"}} & set(sys.modules)
assert not loaded, loaded
sys.exit(code)
"""


def test_nothing_but_the_reader_needs_torch(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    inventory = tmp_path / "machine.json"
    inventory.write_bytes(encode_inventory(declare_inventory(("h100-80gb*2",), host_memory="64GiB")))
    support = str(request.path.parents[1] / "support")
    code = NO_TORCH.format(support=support, inventory=str(inventory))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fits" in done.stdout
