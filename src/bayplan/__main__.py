"""`python -m bayplan` and the `bayplan` script."""

from __future__ import annotations

import signal
import sys

_INTERRUPTED = 128 + signal.SIGINT
"""As a shell reports a program ended by Ctrl-C."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        # Inside: importing takes long enough to be interrupted.
        from bayplan.commands.app import run_command_line
        from bayplan.commands.output import escape_logs

        escape_logs()
        code = run_command_line()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("interrupted\n")
        code = _INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
