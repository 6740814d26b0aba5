"""`python -m bayplan` and the `bayplan` script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from bayplan.commands.app import run_command_line

    sys.exit(run_command_line())


if __name__ == "__main__":
    main()
