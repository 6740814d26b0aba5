from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cache_rivals import put_and_get
from sample_graphs import read_model_of

from bayplan.planner.model import graph_store
from bayplan.planner.model.graph_store import CodeFile, GraphStore, cache_folder

KEY, OTHER_KEY = "a" * 64, "b" * 64
READ = read_model_of("Llama", layers=3)
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "graphs"


def entry_of(folder: Path, key: str = KEY) -> Path:
    return folder / f"{key}.graph"


def code_file(path: Path) -> CodeFile:
    status = path.stat()
    return CodeFile(path=str(path), num_bytes=status.st_size, changed_ns=status.st_mtime_ns)


def test_what_is_put_in_comes_out(folder: Path) -> None:
    store = GraphStore(folder)
    assert store.get(KEY) is None
    store.put(KEY, READ, ())
    assert store.get(KEY) == READ
    assert store.get(OTHER_KEY) is None


def test_the_last_put_counts(folder: Path) -> None:
    store, newer = GraphStore(folder), read_model_of("Llama", layers=4)
    store.put(KEY, READ, ())
    store.put(KEY, newer, ())
    assert store.get(KEY) == newer


def test_only_this_user_sees_the_folder(folder: Path) -> None:
    GraphStore(folder).put(KEY, READ, ())
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("change", ["text", "length", "time", "gone"])
def test_an_entry_does_not_outlive_the_code_that_made_it(folder: Path, tmp_path: Path, change: str) -> None:
    code = tmp_path / "modeling.py"
    code.write_text("x = 1\n")
    os.utime(code, ns=(10**18, 10**18))
    store = GraphStore(folder)
    store.put(KEY, READ, (code_file(code),))
    assert store.get(KEY) == READ
    match change:
        case "text":
            code.write_text("x = 2\n")
        case "length":
            code.write_text("x = 22\n")
            os.utime(code, ns=(10**18, 10**18))
        case "time":
            os.utime(code, ns=(10**18, 10**18 + 1))
        case "gone":
            code.unlink()
    assert store.get(KEY) is None


def test_a_flipped_bit_anywhere_is_noticed(folder: Path) -> None:
    store = GraphStore(folder)
    store.put(KEY, READ, ())
    path = entry_of(folder)
    whole = path.read_bytes()
    step = max(1, len(whole) // 97)
    for place in {*range(0, len(whole), step), *range(16), *range(len(whole) - 33, len(whole))}:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        assert store.get(KEY) is None, place
    store.put(KEY, READ, ())
    assert path.read_bytes() == whole


def test_a_file_cut_short_or_grown_is_not_believed(folder: Path) -> None:
    store = GraphStore(folder)
    store.put(KEY, READ, ())
    path = entry_of(folder)
    whole = path.read_bytes()
    for length in (0, 1, 15, 16, 17, 48, len(whole) // 2, len(whole) - 32, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert store.get(KEY) is None, length
    path.write_bytes(whole + b"\0")
    assert store.get(KEY) is None


def test_an_entry_under_another_s_name_is_not_believed(folder: Path) -> None:
    store = GraphStore(folder)
    store.put(KEY, READ, ())
    entry_of(folder).rename(entry_of(folder, OTHER_KEY))
    assert store.get(OTHER_KEY) is None


def test_an_entry_of_another_shape_is_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole by its digest, but its structs are those of another version."""
    store = GraphStore(folder)
    monkeypatch.setattr(graph_store.msgspec.msgpack, "encode", lambda value: b"\x80")
    store.put(KEY, READ, ())
    monkeypatch.undo()
    assert entry_of(folder).is_file()
    assert store.get(KEY) is None


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing"])
def test_what_is_no_file_is_no_entry(folder: Path, kind: str) -> None:
    folder.mkdir()
    match kind:
        case "folder":
            entry_of(folder).mkdir()
        case "pipe":
            os.mkfifo(entry_of(folder))
        case _:
            entry_of(folder).symlink_to("nowhere")
    store = GraphStore(folder)
    assert store.get(KEY) is None
    store.put(KEY, READ, ())
    assert (store.get(KEY) is not None) == (kind == "link to nothing")


@pytest.mark.skipif(not IS_ROOT, reason="only root can give files away")
def test_another_user_s_file_is_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = GraphStore(folder)
    store.put(KEY, READ, ())
    os.chown(entry_of(folder), 12345, -1)
    assert store.get(KEY) is None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert store.get(KEY) == READ


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = GraphStore(tmp_path / "file" / "graphs")
    store.put(KEY, READ, ())
    assert store.get(KEY) is None


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_folder_that_may_not_be_written_is_read_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    store = GraphStore(folder)
    store.put(KEY, READ, ())
    for function in ("open", "utime", "unlink", "replace"):
        monkeypatch.setattr(os, function, refuse)
    store.put(OTHER_KEY, READ, ())
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    store.put(OTHER_KEY, READ, ())
    assert (store.get(KEY), store.get(OTHER_KEY)) == (READ, None)


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = GraphStore(folder)
    monkeypatch.setattr(os, "write", refuse)
    store.put(KEY, READ, ())
    monkeypatch.undo()
    assert (store.get(KEY), list(folder.iterdir())) == (None, [])


def test_a_graph_too_large_for_the_cache_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_store, "MAX_ENTRY_BYTES", 100)
    GraphStore(folder).put(KEY, READ, ())
    assert not folder.exists()


def test_the_least_recently_used_go_first(folder: Path) -> None:
    store = GraphStore(folder, max_entries=3)
    keys = [letter * 64 for letter in "abc"]
    for age, key in enumerate(keys):
        store.put(key, READ, ())
        os.utime(entry_of(folder, key), (1000 + age, 1000 + age))
    assert store.get(keys[0]) == READ  # which makes it the youngest
    store.put("d" * 64, READ, ())
    assert [key[0] for key in (*keys, "d" * 64) if entry_of(folder, key).exists()] == ["a", "c", "d"]


def test_all_together_stay_under_a_number_of_bytes(folder: Path) -> None:
    GraphStore(folder).put(KEY, READ, ())
    num_bytes = entry_of(folder).stat().st_size
    os.utime(entry_of(folder), (1000, 1000))
    store = GraphStore(folder, max_total_bytes=2 * num_bytes)
    store.put(OTHER_KEY, READ, ())
    assert entry_of(folder).exists()
    store.put("c" * 64, READ, ())
    assert sorted(path.name[0] for path in folder.iterdir()) == ["b", "c"]


def test_what_a_killed_process_left_behind_goes_and_what_another_writes_now_stays(folder: Path) -> None:
    folder.mkdir()
    old, new, foreign = (folder / name for name in (".bayplan-1.tmp", ".bayplan-2.tmp", "notes.txt"))
    for path in (old, new, foreign):
        path.write_text("x")
    for path in (old, foreign):
        os.utime(path, (1000, 1000))
    GraphStore(folder).put(KEY, READ, ())
    assert (old.exists(), new.exists(), foreign.exists()) == (False, True, True)


def test_processes_at_once_meet_only_whole_entries(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    wrong: multiprocessing.Queue[int] = context.Queue()
    processes = [
        context.Process(target=put_and_get, args=(folder, number, KEY, wrong)) for number in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert wrong.empty()
    assert len(list(folder.glob("*.graph"))) <= 3
    assert not list(folder.glob("*.tmp"))


def folder_in(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, platform: str) -> Path | None:
    for name in ("BAYPLAN_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    return cache_folder()


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "/home/me/.cache/bayplan"),
        ("linux", {"XDG_CACHE_HOME": "/fast"}, "/fast/bayplan"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/bayplan"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/me/.cache/bayplan"),
        ("linux", {"XDG_CACHE_HOME": "/fast", "BAYPLAN_CACHE_DIR": "/mine"}, "/mine"),
        ("linux", {"BAYPLAN_CACHE_DIR": ""}, "/home/me/.cache/bayplan"),
        ("darwin", {}, "/home/me/Library/Caches/bayplan"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/bayplan/cache"),
        ("win32", {}, "/home/me/AppData/Local/bayplan/cache"),
    ],
)
def test_where_the_cache_is(
    platform: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder_in(environment, monkeypatch, platform) == Path(expected)


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(nowhere))
    assert folder_in({}, monkeypatch, "linux") is None


def test_the_store_imports_no_library_of_models() -> None:
    code = (
        "import sys, bayplan.planner.model.graph_store, bayplan.planner.model.cached\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
