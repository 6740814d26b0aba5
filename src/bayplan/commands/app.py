"""Putting the command line together: which commands there are, and how a call of one runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from bayplan.commands.demo import demo
from bayplan.commands.estimate import estimate
from bayplan.commands.explain import explain
from bayplan.commands.failures import exit_code_of
from bayplan.commands.inventory import inventory
from bayplan.commands.output import emit
from bayplan.commands.plan import bind, plan
from bayplan.commands.run import run
from bayplan.commands.show import diff, schema, show

app = typer.Typer(
    name="bayplan",
    help="Plan where every layer of a model goes, review the plan, and stream the model by it.",
    epilog="Exit codes: 0 done, 1 error, 2 differences, 3 infeasible, 4 plan refused, 64 usage.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (inventory, estimate, plan, bind, show, explain, diff, run, schema, demo):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        emit(f"bayplan {version('bayplan')}\n")
        raise typer.Exit


_OF_SEVERAL_WORDS = {"run": "--prompt", "estimate": "--dtypes"}
"""Command to its option that takes several words."""


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take options that go before the command."""


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Carry out one call of the command line and return its exit code.

    Args:
        arguments: What follows `bayplan`; None: the process's own.
    """
    words = with_repeated_options(sys.argv[1:] if arguments is None else arguments)
    return exit_code_of(lambda: app(words, prog_name="bayplan", standalone_mode=False))


def with_repeated_options(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--prompt a b` written as `--prompt a --prompt b`, and `--dtypes` likewise.

    Only in `run PLAN ...` and `estimate MODEL ...`: an argument that comes later could not be told from one
    of the words.
    """
    option = _OF_SEVERAL_WORDS.get(arguments[0]) if arguments else None
    if option is None or len(arguments) < 2 or arguments[1].startswith("-"):
        return list(arguments)
    words: list[str] = []
    is_first, is_inside = False, False
    for word in arguments:
        if is_first:
            is_first = False
        elif word.startswith("-"):
            is_inside = is_first = word == option
        elif is_inside:
            words.append(option)
        words.append(word)
    return words
