from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tiny_checkpoints import tiny_bert, tiny_llama
from transformers import AutoConfig, LlamaConfig

from bayplan.planner.api import plan_model
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.model import cached
from bayplan.planner.model.cached import cached_read_model, loaded_code
from bayplan.planner.model.facts import ReadModel
from bayplan.planner.model.read_model import read_model
from bayplan.planner.options import PlanOptions
from bayplan.schemas.codec import encode_inventory, encode_plan
from bayplan.schemas.errors import BayplanError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

HEAVY = ("torch", "transformers", "huggingface_hub", "safetensors", "networkx", "highspy", "numpy")
DEFAULT = PlanOptions()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("saved"), shards=2, dtype=torch.bfloat16)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "llama"))


@pytest.fixture(autouse=True)
def _old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every source file be older than the process: who edits one meanwhile gets no entry."""
    monkeypatch.setattr(cached, "_process_start", lambda: time.time() + 3600)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was really read, by label."""
    done: list[str] = []
    read = cached._read

    def counted(source: cached.ModelSource, options: PlanOptions) -> ReadModel:
        done.append(source.label)
        return read(source, options)

    monkeypatch.setattr(cached, "_read", counted)
    return done


def entries(graph_cache: Path) -> list[Path]:
    return sorted(graph_cache.rglob("*.graph"))


@pytest.mark.parametrize(
    "options",
    [
        DEFAULT,
        PlanOptions(format="fp16", batch=3, context=100, prefill_chunk=7),
        PlanOptions(no_split=("LlamaAttention",), hash_content=True),
        PlanOptions(context=100_000),
    ],
    ids=["default", "workload", "no split", "with a warning"],
)
def test_a_hit_is_what_reading_gives(folder: Path, options: PlanOptions, readings: list[str]) -> None:
    first = cached_read_model(str(folder), options)
    second = cached_read_model(str(folder), options)
    assert readings == [str(folder)]
    assert first == second == read_model(str(folder), options)
    # Equal structs may still be made of other types, such as an enum and its text.
    assert repr(first) == repr(second)


def test_a_config_alone_and_a_model_that_does_not_generate(tmp_path: Path, readings: list[str]) -> None:
    bert = tiny_bert(tmp_path / "bert")
    for model in (str(bert), str(bert / "config.json")):
        assert (
            cached_read_model(model, DEFAULT)
            == cached_read_model(model, DEFAULT)
            == read_model(model, DEFAULT)
        )
    assert readings == [str(bert), str(bert / "config.json")]


def test_plans_are_the_same_bytes(folder: Path, readings: list[str]) -> None:
    plans = {encode_plan(plan_model(folder, max_memory=("cpu=1GiB",))) for _ in range(3)}
    plans.add(encode_plan(plan_model(folder, max_memory=("cpu=1GiB",), use_cache=False)))
    assert len(plans) == 1
    assert len(readings) == 2


def test_options_of_placing_share_an_entry(folder: Path, readings: list[str], graph_cache: Path) -> None:
    plan_model(folder, max_memory=("cpu=1GiB",))
    plan_model(folder, max_memory=("cpu=2GiB",), no_spill=True, pins=("lm_head=cpu",))
    assert len(readings) == len(entries(graph_cache)) == 1


def test_without_the_cache_nothing_is_read_from_it_or_put_there(
    folder: Path, readings: list[str], graph_cache: Path
) -> None:
    without = PlanOptions(use_cache=False)
    cached_read_model(str(folder), without)
    assert not graph_cache.exists()
    cached_read_model(str(folder), DEFAULT)
    before = {path: path.read_bytes() for path in entries(graph_cache)}
    cached_read_model(str(folder), without)
    assert len(readings) == 3
    assert {path: path.read_bytes() for path in entries(graph_cache)} == before


def _another_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))


def _another_checkpoint(folder: Path) -> None:
    tiny_llama(folder, layers=3, shards=2, dtype=torch.bfloat16)


def _another_header(folder: Path) -> None:
    shard = min(folder.glob("*.safetensors"))
    data = shard.read_bytes()
    length = int.from_bytes(data[:8], "little")
    shard.write_bytes(
        (length + 8).to_bytes(8, "little") + data[8 : 8 + length] + b" " * 8 + data[8 + length :]
    )


def _no_weights(folder: Path) -> None:
    for path in (*folder.glob("*.safetensors"), *folder.glob("*.index.json")):
        path.unlink()


def _another_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"use_cache": false, "transformers_version": "5.0.0"}')


@pytest.mark.parametrize(
    "change",
    [_another_config, _another_checkpoint, _another_header, _no_weights, _another_generation_config],
    ids=lambda change: change.__name__.removeprefix("_"),
)
def test_a_changed_folder_is_read_anew(
    folder: Path, change: Callable[[Path], None], readings: list[str]
) -> None:
    cached_read_model(str(folder), DEFAULT)
    change(folder)
    assert cached_read_model(str(folder), DEFAULT) == read_model(str(folder), DEFAULT)
    assert len(readings) == 2


def test_other_weights_of_the_same_shapes_are_not_read_anew(folder: Path, readings: list[str]) -> None:
    """A graph holds no weight; with hashes the two are two models."""
    cached_read_model(str(folder), DEFAULT)
    tiny_llama(folder, shards=2, dtype=torch.bfloat16, seed=1)
    cached_read_model(str(folder), DEFAULT)
    assert len(readings) == 1
    hashed = PlanOptions(hash_content=True)
    first = cached_read_model(str(folder), hashed)
    tiny_llama(folder, shards=2, dtype=torch.bfloat16, seed=2)
    assert cached_read_model(str(folder), hashed).model.checkpoint != first.model.checkpoint
    assert len(readings) == 3


def test_a_folder_changed_while_it_is_read_gives_no_entry(
    folder: Path, graph_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = cached._read

    def slow(source: cached.ModelSource, options: PlanOptions) -> ReadModel:
        found = read(source, options)
        _another_config(folder)
        return found

    monkeypatch.setattr(cached, "_read", slow)
    cached_read_model(str(folder), DEFAULT)
    assert not graph_cache.exists()


def test_code_that_may_be_younger_than_what_was_loaded_gives_no_entry(
    folder: Path, graph_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    youngest = max(os.stat(file.path).st_ctime for file in loaded_code() or ())
    monkeypatch.setattr(cached, "_process_start", lambda: youngest)
    cached_read_model(str(folder), DEFAULT)
    assert not graph_cache.exists()


def test_a_process_whose_libraries_were_replaced_meanwhile_takes_nothing_that_newer_ones_made(
    folder: Path, readings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_read_model(str(folder), DEFAULT)
    youngest = max(os.stat(file.path).st_ctime for file in loaded_code() or ())
    monkeypatch.setattr(cached, "_process_start", lambda: youngest)
    cached_read_model(str(folder), DEFAULT)
    assert len(readings) == 2


def test_the_loaded_code_is_all_that_makes_graphs() -> None:
    paths = [Path(file.path) for file in loaded_code() or ()]
    assert len(paths) == len(set(paths))
    assert all(path.is_absolute() and path.is_file() for path in paths)
    names = {f"{path.parent.name}/{path.name}" for path in paths}
    assert {
        "llama/modeling_llama.py",
        "transformers/modeling_utils.py",
        "nn/functional.py",
        "model/trace.py",
        "skeleton/build.py",
        "schemas/graph.py",
    } <= names
    assert "msgspec/__init__.py" not in names


def test_a_process_that_registers_classes_has_no_cache(
    folder: Path, graph_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OwnConfig(LlamaConfig):
        model_type = "own-llama"

    cached_read_model(str(folder), DEFAULT)
    before = entries(graph_cache)
    AutoConfig.register("own-llama", OwnConfig)
    try:
        shutil.rmtree(graph_cache)
        cached_read_model(str(folder), DEFAULT)
        assert not graph_cache.exists()
    finally:
        cached_mapping = sys.modules["transformers.models.auto.configuration_auto"].CONFIG_MAPPING
        del cached_mapping._extra_content["own-llama"]
    cached_read_model(str(folder), DEFAULT)
    assert [path.name for path in entries(graph_cache)] == [path.name for path in before]


def test_a_factory_is_never_kept(
    tmp_path: Path, graph_cache: Path, monkeypatch: pytest.MonkeyPatch, readings: list[str]
) -> None:
    (tmp_path / "own_factory.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(2, 3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        assert cached_read_model("own_factory:make", DEFAULT).graph.num_params == 9
    assert (len(readings), graph_cache.exists()) == (2, False)


def test_errors_are_not_kept(folder: Path, graph_cache: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    for _ in range(2):
        with pytest.raises(BayplanError, match="do not fit the model"):
            cached_read_model(str(folder), DEFAULT)
    assert not graph_cache.exists()


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_count_beyond_any_machine(folder: Path, use_cache: bool) -> None:
    """The key could not hold it."""
    with pytest.raises(UsageError) as caught:
        cached_read_model(str(folder), PlanOptions(batch=10**30, use_cache=use_cache))
    assert str(caught.value) == "--batch: a count is out of reach: needed at most 2147483648"


def test_a_damaged_header_is_an_error_on_a_cache_that_knew_the_folder(folder: Path) -> None:
    cached_read_model(str(folder), DEFAULT)
    shard = min(folder.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[8] = ord("[")
    shard.write_bytes(data)
    with pytest.raises(BayplanError):
        cached_read_model(str(folder), DEFAULT)


@pytest.mark.parametrize("was_frozen", [False, True])
def test_the_collector_is_left_as_it_was(folder: Path, was_frozen: bool) -> None:
    if was_frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    try:
        cached_read_model(str(folder), PlanOptions(use_cache=False))
        assert (gc.isenabled(), gc.get_freeze_count() > 0) == (True, before > 0)
    finally:
        gc.unfreeze()


def planned_in_own_process(folder: Path, output: Path, *words: str) -> set[str]:
    """Plan on the command line; return which of the heavy libraries were imported for it."""
    code = (
        "import sys\n"
        "from bayplan.commands.app import run_command_line\n"
        f"code = run_command_line(['plan', {str(folder)!r}, '-o', {str(output)!r}, *{list(words)!r}])\n"
        f"print('imported', *({set(HEAVY)!r} & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_a_hit_imports_no_library_of_models(folder: Path, tmp_path: Path, graph_cache: Path) -> None:
    inventory = tmp_path / "inventory.json"
    machine = declare_inventory(cpu="generic", host_memory="8GiB", disk="1GB/s")
    inventory.write_bytes(encode_inventory(machine))
    output = tmp_path / "plan.json"
    # Not read by this process: what it can import is more.
    assert "torch" in planned_in_own_process(folder, tmp_path / "first.json", "-i", str(inventory))
    assert planned_in_own_process(folder, output, "-i", str(inventory)) == set()
    assert "torch" in planned_in_own_process(
        folder, tmp_path / "other.json", "-i", str(inventory), "--no-cache"
    )
    assert output.read_bytes() == (tmp_path / "other.json").read_bytes()
    assert len(entries(graph_cache)) == 1
