"""write_atomic: all of the file or nothing, and an error that names it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bayplan.schemas.files import OutputError, write_atomic


def test_creates_the_file_with_the_usual_mode(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_atomic(tmp_path / "plan.json", b"{}\n")
    finally:
        os.umask(mask)
    assert (tmp_path / "plan.json").read_bytes() == b"{}\n"
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["plan.json"]


def test_replaces_and_keeps_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.write_bytes(b"old and longer than the new one")
    target.chmod(0o604)
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "plan.json").write_bytes(b"old")
    link = tmp_path / "plan.json"
    link.symlink_to("real/plan.json")
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "real" / "plan.json").read_bytes() == b"new"


def test_writes_on_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, view: whole_write(descriptor, view[:3]))
    write_atomic(tmp_path / "plan.json", b"0123456789")
    assert (tmp_path / "plan.json").read_bytes() == b"0123456789"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_atomic(pipe, b"data")
    reader.join(timeout=30)
    assert received == [b"data"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        write_atomic(tmp_path, b"data")
    assert str(caught.value) == (
        f"{tmp_path}: cannot write the file: got a folder, needed the name of a file\n"
        "hint: add a file name, such as plan.json"
    )


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "plan.json"
    target.write_bytes(b"old")
    whole_write = os.write

    def fill(descriptor: int, view: memoryview) -> int:
        if len(view) < 4:
            raise OSError(errno.ENOSPC, "disk full")
        return whole_write(descriptor, view[:4])

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(OutputError) as caught:
        write_atomic(target, b"0123456789")
    assert str(caught.value) == (
        f"{target}: cannot write the file: got No space left on device\n"
        "hint: free some space or write to another disk; the old file, if any, is untouched"
    )
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        write_atomic(tmp_path / "missing" / "plan.json", b"data")
    assert str(caught.value) == (
        f"{tmp_path / 'missing' / 'plan.json'}: cannot write the file: got No such file or directory\n"
        "hint: create the folder first"
    )


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int, view: memoryview) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "plan.json", b"data")
    assert os.listdir(tmp_path) == []


def test_standard_output_may_be_a_pipe() -> None:
    code = "from bayplan.schemas.files import write_atomic; write_atomic('/dev/stdout', b'data')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"data"
