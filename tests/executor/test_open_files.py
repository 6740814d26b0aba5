from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import pytest

from bayplan.executor.errors import ShardChangedError, ShardReadError
from bayplan.executor.open_files import FileStamp, OpenFiles


def open_files(folder: Path, *names: str, max_open: int = 64) -> OpenFiles:
    return OpenFiles(
        folder, {name: FileStamp.of((folder / name).stat()) for name in names}, max_open=max_open
    )


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(name.encode())


def test_file_is_opened_once(tmp_path: Path) -> None:
    write(tmp_path, "a")
    files = open_files(tmp_path, "a")
    assert files.descriptor("a") == files.descriptor("a")
    assert len(files._files) == 1
    files.close()


def test_least_recently_used_file_is_closed(tmp_path: Path) -> None:
    write(tmp_path, "a", "b", "c")
    files = open_files(tmp_path, "a", "b", "c", max_open=2)
    first = files.descriptor("a")
    second = files.descriptor("b")
    assert files.descriptor("a") == first
    files.descriptor("c")
    assert len(files._files) == 2
    assert files.descriptor("a") == first
    assert os.pread(files.descriptor("b"), 1, 0) == b"b"
    assert second is not None
    files.close()
    files.close()
    assert len(files._files) == 0


def test_link_to_the_file_counts_as_the_file(tmp_path: Path) -> None:
    write(tmp_path, "blob")
    (tmp_path / "a").symlink_to("blob")
    files = open_files(tmp_path, "a")
    assert os.pread(files.descriptor("a"), 4, 0) == b"blob"
    files.close()


def test_file_replaced_before_it_is_opened(tmp_path: Path) -> None:
    write(tmp_path, "a", "new")
    files = open_files(tmp_path, "a")
    (tmp_path / "new").rename(tmp_path / "a")
    with pytest.raises(ShardChangedError) as raised:
        files.descriptor("a")
    assert str(raised.value) == (
        f"{tmp_path / 'a'}: shard changed after it was checked: "
        "needed the file that preflight saw (same length, times and inode)\n"
        "hint: load the model again; do not write to a checkpoint that is in use"
    )
    assert raised.value.file == str(tmp_path / "a")
    assert len(files._files) == 0


@pytest.mark.parametrize("change", ["longer", "same length"])
def test_file_written_to_while_it_is_open(tmp_path: Path, change: str) -> None:
    write(tmp_path, "a")
    files = open_files(tmp_path, "a")
    files.check_unchanged("a")
    before = (tmp_path / "a").stat().st_mtime_ns
    (tmp_path / "a").write_bytes(b"bb" if change == "longer" else b"b")
    os.utime(tmp_path / "a", ns=(before + 1, before + 1))
    with pytest.raises(ShardChangedError):
        files.check_unchanged("a")
    files.close()


def test_file_that_is_gone(tmp_path: Path) -> None:
    write(tmp_path, "a")
    files = open_files(tmp_path, "a")
    (tmp_path / "a").unlink()
    with pytest.raises(ShardReadError) as raised:
        files.descriptor("a")
    assert str(raised.value) == (f"{tmp_path / 'a'}: shard cannot be opened: got No such file or directory")
    assert (raised.value.file, raised.value.offset) == (str(tmp_path / "a"), None)


def test_reopening_gives_a_working_descriptor(tmp_path: Path) -> None:
    write(tmp_path, "a")
    files = open_files(tmp_path, "a")
    files.descriptor("a")
    files.reopen("a")
    assert len(files._files) == 0
    files.reopen("a")
    assert os.pread(files.descriptor("a"), 1, 0) == b"a"
    files.close()


def test_time_that_was_set_back_does_not_hide_a_change(tmp_path: Path) -> None:
    write(tmp_path, "a")
    before = (tmp_path / "a").stat()
    (tmp_path / "a").write_bytes(b"b")
    os.utime(tmp_path / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    after = (tmp_path / "a").stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )
    assert FileStamp.of(after) != FileStamp.of(before)


def test_file_whose_opening_is_interrupted_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a")
    files = open_files(tmp_path, "a")
    seen: list[int] = []

    def interrupted(status: os.stat_result) -> FileStamp:
        raise KeyboardInterrupt

    def noted(descriptor: int) -> os.stat_result:
        seen.append(descriptor)
        return fstat(descriptor)

    fstat = os.fstat
    monkeypatch.setattr("bayplan.executor.open_files.os.fstat", noted)
    monkeypatch.setattr(FileStamp, "of", interrupted)
    with warnings.catch_warnings(action="ignore"):
        with pytest.raises(KeyboardInterrupt) as raised:
            files.descriptor("a")
        del raised
        gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        fstat(seen[0])
