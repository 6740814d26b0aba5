from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub.errors import HFValidationError
from plan_maker import make_plan

from bayplan.executor.checkpoint_source import open_checkpoint
from bayplan.schemas.checkpoint_index import CheckpointError
from bayplan.schemas.errors import BayplanError, UsageError
from bayplan.schemas.plan import Plan


def from_hub(plan: Plan, **fields: object) -> Plan:
    model = msgspec.structs.replace(plan.model, source="org/name", revision="abc", **fields)
    return msgspec.structs.replace(plan, model=model)


@pytest.fixture
def hub(llama: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Downloads answer with the folder `llama`; each is listed."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.append((repo, options))
        return str(llama)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return asked


def test_folder_is_opened_as_it_is(llama: Path, hub: list[Any]) -> None:
    for given in (llama, str(llama)):
        assert open_checkpoint(make_plan(llama), given).shard_names == ("model.safetensors",)
    assert hub == []


def test_plan_from_the_hub_finds_its_revision(llama: Path, hub: list[Any]) -> None:
    assert open_checkpoint(from_hub(make_plan(llama)), None).folder == llama
    patterns = ["model.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
    assert hub == [("org/name", {"revision": "abc", "allow_patterns": patterns})]


def test_hub_id_goes_before_the_source_of_the_plan(llama: Path, hub: list[Any]) -> None:
    open_checkpoint(from_hub(make_plan(llama)), "other/name")
    open_checkpoint(from_hub(make_plan(llama)), "other/name@v1.0/x")
    assert [(repo, options["revision"]) for repo, options in hub] == [
        ("other/name", None),
        ("other/name", "v1.0/x"),
    ]


def test_code_is_downloaded_only_where_the_plan_needs_it(llama: Path, hub: list[Any]) -> None:
    open_checkpoint(from_hub(make_plan(llama), trust_remote_code=True), None)
    assert hub[0][1]["allow_patterns"][-1] == "*.py"


def with_shards(plan: Plan, names: tuple[str, ...]) -> Plan:
    assert plan.model.checkpoint is not None
    shard = plan.model.checkpoint.shards[0]
    shards = tuple(msgspec.structs.replace(shard, file=name) for name in names)
    checkpoint = msgspec.structs.replace(plan.model.checkpoint, shards=shards)
    return msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, checkpoint=checkpoint))


@pytest.mark.parametrize(
    "names",
    [
        ("model.fp16.safetensors",),
        ("consolidated.00.safetensors",),
        ("model.safetensors-00001-of-00002.safetensors", "model.safetensors-00002-of-00002.safetensors"),
        ("part/a.safetensors", "part/b.safetensors"),
    ],
)
def test_shards_are_those_of_the_plan_whatever_their_names(
    llama: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "copy"))
    (folder / "part").mkdir()
    for name in names:
        shutil.copy(folder / "model.safetensors", folder / name)
    found = open_checkpoint(with_shards(make_plan(llama), names), folder)
    assert (found.folder, found.shard_names) == (folder, names)
    assert found.config_path == folder / "config.json"


def test_file_of_the_checkpoint_stands_for_it(llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "copy"))
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    plan = with_shards(make_plan(llama), ("other.safetensors",))
    assert open_checkpoint(plan, folder / "other.safetensors").shard_names == ("other.safetensors",)


def test_nothing_given_for_a_plan_from_a_folder(llama: Path) -> None:
    with pytest.raises(UsageError) as raised:
        open_checkpoint(make_plan(llama), None)
    assert str(raised.value) == (
        "--checkpoint: no checkpoint given, and the plan was made from a local folder: "
        "needed a folder or a Hub id"
    )


@pytest.mark.parametrize("given", ["./no/such/folder", "/no/such", "name", "a/b@"])
def test_neither_folder_nor_hub_id(llama: Path, given: str) -> None:
    with pytest.raises(BayplanError) as raised:
        open_checkpoint(make_plan(llama), given)
    assert str(raised.value) == (
        f"{given}: no such checkpoint: needed a folder, or a Hub id such as org/name"
    )


def test_hub_that_refuses(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(repo: str, **options: Any) -> str:
        raise HFValidationError("bad name\nmore")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(BayplanError) as raised:
        open_checkpoint(from_hub(make_plan(llama)), None)
    assert str(raised.value) == (
        "org/name@abc: the Hub does not give this checkpoint: got HFValidationError: bad name\n"
        "hint: check the name and your network; a gated model needs `hf auth login`"
    )


def test_planned_name_that_leads_out_of_the_folder(llama: Path) -> None:
    plan = with_shards(make_plan(llama), ("../model.safetensors",))
    with pytest.raises(CheckpointError, match="names a shard that may not be opened"):
        open_checkpoint(plan, llama)
