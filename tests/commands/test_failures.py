"""Whatever goes wrong ends in words and the exit code of its kind, never in a traceback."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from sample_plans import smol_plan

from bayplan.commands.app import run_command_line, with_repeated_options
from bayplan.commands.failures import exit_code_of
from bayplan.commands.output import escape_logs
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.errors import BayplanError, Infeasible, PlanRefused, RefusalKind, UsageError

BAYPLAN = [sys.executable, "-m", "bayplan"]


def raiser(error: BaseException) -> object:
    def command() -> object:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (BayplanError("broken", hint="mend it"), 1, "error: broken\nhint: mend it\n"),
        (Infeasible("no room"), 3, "error: no room\n"),
        (
            PlanRefused(RefusalKind.STALE, "changed", where="plan.json"),
            4,
            "error: plan.json: plan refused (stale): changed\n",
        ),
        (UsageError("bad option", where="--pin"), 64, "error: --pin: bad option\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (typer.Abort(), 130, "interrupted\n"),
        (BrokenPipeError(), 1, ""),
        (
            PermissionError(13, "Permission denied", "/etc/plan.json"),
            1,
            "error: /etc/plan.json: Permission denied\n",
        ),
        (
            MemoryError(),
            1,
            "error: not enough memory for the command itself\n"
            "hint: stop other processes or raise the limit\n",
        ),
    ],
)
def test_exit_code_and_message(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(raiser(error)) == code
    assert capsys.readouterr().err == message


def test_names_of_others_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(raiser(BayplanError("no \x1b[31mred\x9b\tand\x07", hint="two\nlines"))) == 1
    assert capsys.readouterr().err == "error: no \\x1b[31mred\\x9b\tand\\x07\nhint: two\nlines\n"


def test_our_own_bugs_are_not_hidden() -> None:
    with pytest.raises(AssertionError):
        exit_code_of(raiser(AssertionError()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "error: No such command 'nonsense'\nhint: see `bayplan --help`\n"),
        (["show"], "error: Missing argument 'PLAN'\nhint: see `bayplan show --help`\n"),
        (["show", "p", "--nope"], "error: No such option: --nope\nhint: see `bayplan show --help`\n"),
        (["bind", "p"], "error: Missing option '--checkpoint'\nhint: see `bayplan bind --help`\n"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(arguments) == 64
    assert capsys.readouterr().err == message


def test_a_number_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["plan", "m", "--batch", "0"]) == 64
    first, hint = capsys.readouterr().err.splitlines()
    assert first.startswith("error: Invalid value for '--batch': ")  # the rest is the parser's, by version
    assert hint == "hint: see `bayplan plan --help`"


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([]) == 64
    out, err = capsys.readouterr()
    assert "Usage: bayplan" in out
    assert err == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--version"]) == 0
    assert capsys.readouterr().out == "bayplan 0.1.0\n"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(smol_plan()))
    return path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output(plan: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*BAYPLAN, "show", str(plan), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "error: standard output: cannot write: got No space left on device\n"


def test_a_reader_that_has_gone_is_no_news(plan: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*BAYPLAN, "show", str(plan)], stdout=write_end, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write_end)
    assert done.returncode == 1
    assert done.stderr == ""


def test_closed_standard_streams(plan: Path) -> None:
    command = " ".join(BAYPLAN)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} show '{plan}' >&-"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: standard output: cannot write: got a closed file\n"
    done = subprocess.run(["/bin/sh", "-c", f"{command} show nowhere 2>&-"], check=False)
    assert done.returncode == 1


def test_output_survives_a_poor_encoding(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*BAYPLAN, "show", str(tmp_path / "pl\u00e4n.json")],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("pl\\xe4n.json: cannot read the plan: got No such file or directory\n")


def test_a_library_s_log_cannot_drive_the_terminal() -> None:
    factory = logging.getLogRecordFactory()
    try:
        escape_logs()
        record = logging.getLogger("transformers").makeRecord(
            "transformers", logging.WARNING, "file.py", 1, "no %s\n", ("\x1b[31mred",), None
        )
    finally:
        logging.setLogRecordFactory(factory)
    assert record.getMessage() == "no \\x1b[31mred\n"


def test_an_interrupt_ends_a_command_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "never-written"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [*BAYPLAN, "show", str(pipe)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # Opening the pipe for writing returns once the command has it open for reading.
    with open(pipe, "wb"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("run p --prompt a b c", "run p --prompt a --prompt b --prompt c"),
        ("run p --prompt a b --json", "run p --prompt a --prompt b --json"),
        ("run p --prompt a --report r", "run p --prompt a --report r"),
        ("run p --prompt a --prompt b c", "run p --prompt a --prompt b --prompt c"),
        ("run --prompt a p", "run --prompt a p"),
        ("run p", "run p"),
        ("show p --prompt a b", "show p --prompt a b"),
        ("run", "run"),
    ],
)
def test_several_words_after_prompt(given: str, parsed: str) -> None:
    assert with_repeated_options(given.split()) == parsed.split()


def test_a_prompt_may_start_with_a_dash() -> None:
    assert with_repeated_options(["run", "p", "--prompt", "-a", "b"]) == [
        "run",
        "p",
        "--prompt",
        "-a",
        "--prompt",
        "b",
    ]


def test_interrupt_while_the_command_line_is_imported() -> None:
    script = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from bayplan.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
