"""Where a command's words go: data and pictures to standard output, all else to standard error.

Owns both streams and what happens when one cannot take more. Commands never touch them directly.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING, TextIO

from bayplan.schemas.files import OutputError, write_atomic
from bayplan.schemas.pretty_json import pretty

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from bayplan.schemas.strict_json import JsonValue

DEFAULT_WIDTH = 100
"""Columns where nothing says how wide the terminal is."""
_MIN_WIDTH = 60


def emit(text: str) -> None:
    """Write `text` to standard output, now.

    Characters that its encoding lacks are escaped.

    Raises:
        OutputError: It is closed, or the disk behind it is full.
        BrokenPipeError: Whoever read it has gone.
    """
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise OutputError("cannot write", where="standard output", got="a closed file")
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        abandon_stdout()
        raise
    except OSError as error:
        abandon_stdout()
        raise OutputError(
            "cannot write", where="standard output", got=error.strerror or str(error)
        ) from error


def emit_foreign(text: str) -> None:
    """Write text that others made to standard output; a terminal is not given its control characters.

    Lines and tabs stay. A file or pipe gets the text as it is.

    Raises:
        OutputError: As `emit`.
        BrokenPipeError: As `emit`.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    emit(without_control(text) if is_terminal else text)


def emit_json(value: JsonValue) -> None:
    """Write `value` to standard output in the layout of bayplan's files.

    Raises:
        OutputError: As `emit`.
        BrokenPipeError: As `emit`.
    """
    emit(pretty(value).decode())


def emit_picture(picture: RenderableType) -> None:
    """Draw on standard output; plain text without colours where that is no terminal.

    Raises:
        OutputError: As `emit`.
        BrokenPipeError: As `emit`.
    """
    emit(_drawn(picture, to_stderr=False))


def without_control(text: str) -> str:
    """Return `text` with every control character but line ends and tabs as a visible escape."""
    return "".join(
        character
        if character in "\n\t" or not unicodedata.category(character).startswith("C")
        else character.encode("unicode_escape").decode()
        for character in text
    )


class _VisibleRecord(logging.LogRecord):
    def getMessage(self) -> str:  # the name is logging's
        return without_control(super().getMessage())


def escape_logs() -> None:
    """Let no library write control characters to the log: transformers quotes there what a config says."""
    logging.setLogRecordFactory(_VisibleRecord)


def say_picture(picture: RenderableType) -> None:
    """Draw on standard error."""
    _write_words(_drawn(picture, to_stderr=True).removesuffix("\n"))


def picture_width() -> int:
    """Return the columns of the terminal, and a fixed number where there is none."""
    return max(_MIN_WIDTH, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns)


def say(text: str) -> None:
    """Write a line of words to standard error; if that is closed there is nobody to tell.

    What others named may be in it: control characters, which could drive a terminal, are escaped.
    """
    _write_words(without_control(text))


def _write_words(text: str) -> None:
    stream: TextIO | None = sys.stderr
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except OSError:
        return


def _drawn(picture: RenderableType, *, to_stderr: bool) -> str:
    """Return the picture's text, with colours if it goes to a terminal."""
    from rich.console import Console

    console = Console(width=picture_width(), highlight=False, stderr=to_stderr)
    with console.capture() as capture:
        console.print(picture)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def check_target(path: Path | None) -> None:
    """Check before long work that its result can be written where it is wanted.

    Raises:
        OutputError: There is no such folder.
    """
    if path is not None and not path.parent.is_dir():
        raise OutputError(
            "cannot write the file",
            where=str(path),
            got=os.strerror(errno.ENOENT),
            hint="create the folder first",
        )


def write_file(path: Path, data: bytes) -> None:
    """Write a file and say so.

    Raises:
        OutputError: As `write_atomic`.
    """
    write_atomic(path, data)
    say(f"wrote {path}")


def abandon_stdout() -> None:
    """Send what is still buffered for standard output nowhere, so that nothing fails again at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return  # Not a file, such as the recorder of a test.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
