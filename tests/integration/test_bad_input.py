"""Impossible options, missing files, full disks: one clear message each, and nothing half done."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from pathlib import Path

import corruptions
import pytest
import transformers
from command_line import BAYPLAN, OLD, Cli, Done, plan_fails

import bayplan.schemas.files

PROMPT = ("--prompt", "w5 w6 w7")
SIZE_FORMS = (
    "needed a size such as 20GiB, 20GB, 20 GiB, 1.5TiB, or plain bytes\n"
    "hint: KiB, MiB, GiB, TiB, PiB count in 1024s; kB, MB, GB, TB, PB in 1000s; case counts"
)


@pytest.fixture
def planned(llama: Path, machine: Path, tmp_path: Path, cli: Cli) -> Path:
    """A plan made while the checkpoint was whole."""
    plan = tmp_path / "plan.json"
    assert cli("plan", llama, "-i", machine, "-o", plan).code == 0
    return plan


@pytest.fixture
def damaged(llama: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be damaged."""
    return corruptions.copy_of(llama, tmp_path / "weights")


def test_no_tokenizer_for_the_prompts(planned: Path, damaged: Path, cli: Cli) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (damaged / name).unlink()
    done = cli("run", planned, "--checkpoint", damaged, *PROMPT)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: {damaged}: no tokenizer for the prompts: got ")
    assert done.err.endswith(
        ", needed the tokenizer's files beside the weights\n"
        "hint: copy them there, or pass token ids with --inputs\n"
    )


def test_no_config_to_run_with(planned: Path, damaged: Path, cli: Cli) -> None:
    (damaged / "config.json").unlink()
    assert cli("run", planned, "--checkpoint", damaged, *PROMPT) == Done(
        1, "", f"error: {damaged}: no config beside the weights: needed config.json\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            "--max-memory gpu7=1GiB",
            64,
            "--max-memory: unknown device: got 'gpu7', needed one of node0/cpu",
        ),
        ("--max-memory cpu=1Gib", 64, f'--max-memory: not a size: got "1Gib", {SIZE_FORMS}'),
        ("--max-memory cpu=-1", 64, f'--max-memory: not a size: got "-1", {SIZE_FORMS}'),
        ("--max-memory cpu=ten", 64, f'--max-memory: not a size: got "ten", {SIZE_FORMS}'),
        ("--max-memory cpu=5MBB", 64, f'--max-memory: not a size: got "5MBB", {SIZE_FORMS}'),
        (
            "--max-memory cpu",
            64,
            "--max-memory: not a budget: got 'cpu', needed DEVICE=SIZE, such as cpu=300MiB",
        ),
        (
            "--max-memory cpu=1GiB --max-memory node0/cpu=2GiB",
            64,
            "--max-memory: node0/cpu is given twice: got 'cpu=1GiB' and 'node0/cpu=2GiB', "
            "needed one budget per device",
        ),
        (
            "--max-memory cpu=65GiB",
            64,
            "--max-memory: more than node0/cpu holds: got 'cpu=65GiB', which is 69793218560 bytes "
            "(65.00 GiB), needed at most 68719476736 bytes (64.00 GiB)",
        ),
        (
            "--pin nothing.*=cpu",
            64,
            "--pin nothing.*: the pin matches no block: "
            "needed a pattern for block ids such as model.layers.2",
        ),
        ("--pin *=gpu9", 64, "--pin: unknown device: got 'gpu9', needed one of node0/cpu"),
        ("--pin *", 64, "--pin: not a pin: got '*', needed GLOB=DEVICE[,RESIDENCY][,FORMAT]"),
        (
            "--format bf16,nf4 --pin *=cpu,int8",
            64,
            "--pin: the format is none of those to choose from: got 'int8', needed one of bf16, nf4\n"
            "hint: --format with int8 among its names allows it",
        ),
        (
            "--format nf4,bf16,fp32",
            64,
            "--format: more than one plain data type: got bf16 and fp32, needed one, for all that is not "
            "quantized\nhint: the layers of a forward hand each other tensors of one data type",
        ),
    ],
)
def test_options_that_cannot_be_met(
    words: str, code: int, message: str, llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    plan_fails(cli, code, message, llama, "-i", machine, *words.split(), output=tmp_path / "out")


def test_a_budget_below_the_largest_block_is_infeasible(
    llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    """The message says how much would do; with that, it does."""
    plan = tmp_path / "plan.json"
    done = cli("plan", llama, "-i", machine, "--max-memory", "cpu=10KiB", "-o", plan)
    found = re.search(
        r"^    --max-memory node0/cpu=(\d+) \(\d\.\d\d MiB\) instead of 10\.00 KiB$", done.err, re.M
    )
    assert (done.code, done.out) == (3, "")
    assert found is not None, done.err
    assert not plan.exists()
    enough = int(found[1])
    assert cli("plan", llama, "-i", machine, "--max-memory", f"cpu={enough}", "-o", plan).code == 0
    assert '"stream-disk"' in plan.read_text()
    assert cli("plan", llama, "-i", machine, "--max-memory", f"cpu={enough - 1}").code == 3


def test_no_such_model(machine: Path, tmp_path: Path, cli: Cli) -> None:
    nowhere = tmp_path / "nowhere"
    message = (
        f"{nowhere}: no such model: needed a folder with config.json, a Hub id such as org/name, "
        "or package.module:factory"
    )
    plan_fails(cli, 1, message, nowhere, "-i", machine, output=tmp_path / "out")


def test_no_such_checkpoint(planned: Path, tmp_path: Path, cli: Cli) -> None:
    nowhere = tmp_path / "nowhere"
    assert cli("run", planned, "--checkpoint", nowhere, *PROMPT) == Done(
        1,
        "",
        f"error: {nowhere}: no such checkpoint: needed a folder, or a Hub id such as org/name\n",
    )


def test_no_checkpoint_given(planned: Path, cli: Cli) -> None:
    assert cli("run", planned, *PROMPT) == Done(
        64,
        "",
        "error: --checkpoint: no checkpoint given, and the plan was made from a local folder: "
        "needed a folder or a Hub id\n",
    )


def test_nothing_to_run_on(planned: Path, llama: Path, cli: Cli) -> None:
    assert cli("run", planned, "--checkpoint", llama) == Done(
        64, "", "error: give prompts or inputs: got neither, needed one of them\n"
    )


def test_a_context_beyond_the_model_is_clamped_with_a_warning(
    llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    plan = tmp_path / "plan.json"
    done = cli("plan", llama, "-i", machine, "--context", 4096, "-o", plan)
    assert (done.code, done.err) == (
        0,
        f"warning: --context 4096 is more than the model's maximum: planned for 128\nwrote {plan}\n",
    )


def test_generating_beyond_the_planned_context_is_an_error(
    llama: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    plan = tmp_path / "plan.json"
    assert cli("plan", llama, "-i", machine, "--context", 16, "-o", plan).code == 0
    run = ("run", plan, "--checkpoint", llama, *PROMPT, "--max-new-tokens")
    assert cli(*run, 13).code == 0
    assert cli(*run, 14) == Done(
        1,
        "",
        "error: more positions than planned: got 17, needed at most 16\nhint: plan again with --context 17\n",
    )


def test_a_full_disk_leaves_the_old_plan(
    llama: Path, machine: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    written = []

    def write_until_full(descriptor: int, data: bytes) -> int:
        """Take a kilobyte, as a disk with little room does, and nothing after that."""
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(write(descriptor, data[:1024]))
        return written[0]

    output = tmp_path / "out"
    message = (
        f"{output / 'plan.json'}: cannot write the file: got No space left on device\n"
        "hint: free some space or write to another disk; the old file, if any, is untouched"
    )
    with monkeypatch.context() as patch:
        patch.setattr(bayplan.schemas.files.os, "write", write_until_full)
        plan_fails(cli, 1, message, llama, "-i", machine, output=output)
    assert written == [1024]


def test_a_file_size_limit_leaves_the_old_plan(llama: Path, machine: Path, tmp_path: Path) -> None:
    """The limit is the system's own: half the plan is really written before it strikes."""
    plan = tmp_path / "plan.json"
    plan.write_bytes(OLD)
    words = ("plan", str(llama), "-i", str(machine), "-o", str(plan))
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *BAYPLAN, *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"error: {plan}: cannot write the file: got File too large\n"
        "hint: raise this process's file size limit (`ulimit -f`); the old file, if any, is untouched\n",
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"plan.json": OLD}


def test_a_full_disk_behind_the_report_does_not_cost_the_output(planned: Path, llama: Path, cli: Cli) -> None:
    expected = cli("run", planned, "--checkpoint", llama, *PROMPT).out
    done = cli("run", planned, "--checkpoint", llama, *PROMPT, "--report", "/dev/full")
    assert (done.code, done.out) == (1, expected)
    assert done.err.endswith(
        "error: /dev/full: cannot write the file: got No space left on device\n"
        "hint: free some space or write to another disk; the old file, if any, is untouched\n"
    )


VERSION = transformers.__version__
TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
LLAMAS = (
    "LlamaForCausalLM, LlamaForQuestionAnswering, LlamaForSequenceClassification, "
    "LlamaForTokenClassification, LlamaModel"
)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{}", 'FILE: the model\'s config is empty: needed a string "model_type"'),
        ("[]", "FILE: the model's config is not a JSON object: got list"),
        (
            '{"model_type": "llama"',
            "FILE: the model's config is not JSON: got JSONDecodeError: "
            "Expecting ',' delimiter: line 1 column 23 (char 22)",
        ),
        (
            {**TINY, "model_type": "nonesuch"},
            f'FILE: transformers {VERSION} does not know the model type "nonesuch"\n'
            "hint: a newer transformers may know it",
        ),
        (
            {**TINY, "model_type": "nonesuch", "transformers_version": "99.0.1"},
            f'FILE: transformers {VERSION} does not know the model type "nonesuch"\n'
            "hint: transformers 99.0.1 wrote it: pip install -U transformers",
        ),
        (
            {**TINY, "model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "modeling.Own"}},
            'FILE: the model type "own" is defined by code that comes with the checkpoint: '
            "got modeling.py, own.py, needed permission to run that code\n"
            "hint: read the code first; --trust-remote-code runs it",
        ),
        (
            {**TINY, "architectures": ["BertModel"]},
            "BertModel cannot be built from a config of llama: got LlamaConfig, needed BertConfig\n"
            f"hint: classes for this config: {LLAMAS}",
        ),
        (
            {**TINY, "architectures": None},
            "the config of llama names no architecture, so its head is unknown: "
            f"needed one of: {LLAMAS}\nhint: name it with --class",
        ),
        (
            {**TINY, "architectures": ["OwnModel"]},
            f'transformers {VERSION} has no model class "OwnModel": needed one of: {LLAMAS}\n'
            "hint: name one with --class",
        ),
        (
            {**TINY, "num_attention_heads": 7},
            f"FILE: transformers {VERSION} refuses this config of llama: got"
            " StrictDataclassClassValidationError: Class validation error for validator"
            " 'validate_architecture': ValueError: The hidden size (64) is not a multiple of the number of"
            " attention heads (7).",
        ),
        (
            {**TINY, "num_hidden_layers": -2},
            "FILE: the config has an impossible number of layers: "
            "got num_hidden_layers -2, needed 1 to 10000",
        ),
        (
            {**TINY, "vocab_size": 10**15},
            "LlamaForCausalLM of this config is larger than a plan can count: "
            "got 512000000000328960 bytes, needed at most 9007199254740991",
        ),
        (
            {**TINY, "hidden_size": float("inf")},
            f"FILE: transformers {VERSION} refuses this config of llama: got"
            " StrictDataclassFieldValidationError: Validation error for field 'hidden_size': TypeError: Field"
            " 'hidden_size' expected int, got float (value: inf)",
        ),
    ],
)
def test_configs_of_no_model(config: object, message: str, machine: Path, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    message = message.replace("FILE", str(file))
    plan_fails(cli, 1, message, tmp_path, "-i", machine, output=tmp_path / "out")


def test_infinity_in_a_config(machine: Path, tmp_path: Path, cli: Cli) -> None:
    """As in Nemotron-H's."""
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "time_step_limit": [0.0, float("inf")]}))
    plan = tmp_path / "plan.json"
    assert cli("plan", tmp_path, "-i", machine, "-o", plan).code == 0
    assert b"Infinity" not in plan.read_bytes()


def test_a_factory_that_loads_weights(
    llama: Path, machine: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loading_factory.py").write_text(
        "from transformers import LlamaForCausalLM\n"
        f"def make():\n    return LlamaForCausalLM.from_pretrained({str(llama)!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = cli("plan", "loading_factory:make", "-i", machine, "-o", tmp_path / "plan.json")
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch(
        r"error: loading_factory:make: the factory loads weights: got \d+\.\d\d KiB of \d+\.\d\d KiB, "
        r"needed a module as its class makes it\n"
        r"hint: build it from its config alone; weights come from --checkpoint\n",
        done.err[done.err.rindex("error:") :],
    )
    assert not (tmp_path / "plan.json").exists()
