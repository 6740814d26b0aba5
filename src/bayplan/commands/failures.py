"""One way out for everything that can go wrong: a message, a hint, and the exit code of its kind.

Owns the process's exit code. A traceback is for our own bugs only: whatever a user, a file or the machine can
cause ends in words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import typer

from bayplan.commands.output import abandon_stdout, say
from bayplan.schemas.errors import BayplanError, ExitCode

INTERRUPTED = 130
"""As a shell reports a program ended by Ctrl-C: 128 plus the signal's number."""

# The class that the parser raises for malformed options. Its name is public; its module is typer's own in
# newer versions and click's in older ones.
_PARSER_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__base__)


def exit_code_of(command: Callable[[], object]) -> int:
    """Run `command` and return the exit code, having said what went wrong if anything did.

    Args:
        command: May return an exit code of its own; anything else means done.
    """
    try:
        code = command()
    except BayplanError as error:
        say(f"error: {error}")
        return error.exit_code
    except _PARSER_ERROR as error:
        # Without a message the parser has printed the help, as for `bayplan` alone.
        if error.format_message():
            say(_usage_text(error))
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        abandon_stdout()
        return ExitCode.ERROR
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"error: {where}{error.strerror or error}")
        return ExitCode.ERROR
    except MemoryError:
        say("error: not enough memory for the command itself\nhint: stop other processes or raise the limit")
        return ExitCode.ERROR
    except SystemExit as error:
        # typer's own way out, after help or when a reader has gone.
        return error.code if isinstance(error.code, int) else ExitCode.DONE
    if code == INTERRUPTED:
        say("interrupted")  # Newer versions of typer have already turned the exception into its exit code.
    return code if isinstance(code, int) else ExitCode.DONE


def _usage_text(error: typer.BadParameter) -> str:
    command = "bayplan" if error.ctx is None else error.ctx.command_path
    message = error.format_message().rstrip(".")
    return f"error: {message}\nhint: see `{command} --help`"
