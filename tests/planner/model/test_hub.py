"""The real client of the Hub against a server on this machine."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from hub_server import COMMIT, HubServer, hub_server
from safetensors.torch import save_file
from tiny_checkpoints import tiny_llama

from bayplan.planner.model.hub import HubModel, read_hub_model
from bayplan.planner.model.hub_faults import HubError, HubFault
from bayplan.planner.model.source import SourceError, open_source
from bayplan.planner.options import PlanOptions
from bayplan.schemas.checkpoint_index import CheckpointError
from bayplan.schemas.hub_id import HubId
from bayplan.schemas.safetensors_header import SafetensorsFormatError, read_raw_header


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with hub_server() as server:
        # Both are read from the environment once, when the client is imported.
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


@pytest.fixture
def llama(hub: HubServer, tmp_path: Path) -> Path:
    folder = tiny_llama(tmp_path / "model", shards=3)
    hub.repos["org/llama"] = folder
    return folder


def read(
    hub: HubServer,
    name: str = "org/llama",
    revision: str | None = None,
    folder: str | None = None,
    **options: object,
) -> HubModel:
    hub_id = HubId(repo=name, folder=folder, revision=revision)
    return read_hub_model(hub_id, endpoint=hub.url, **options)


def fault(hub: HubServer, *args: str | None, **options: object) -> HubError:
    with pytest.raises(HubError) as caught:
        read(hub, *args, **options)
    return caught.value


def without_weights(folder: Path) -> Path:
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        file.unlink()
    return folder


def test_a_sharded_model_is_identified_without_its_weights(hub: HubServer, llama: Path) -> None:
    model = read(hub)
    shards = sorted(path.name for path in llama.glob("*.safetensors"))
    assert model.commit == COMMIT
    assert list(model.headers) == shards
    for name in shards:
        local = read_raw_header(llama / name)
        assert (model.headers[name].data, model.headers[name].file_bytes) == (local.data, local.file_bytes)
        assert model.content_sha256[name] == hashlib.sha256((llama / name).read_bytes()).hexdigest()
    assert model.weights.index is not None
    assert model.weights.index.file == "org/llama/model.safetensors.index.json"
    assert (model.repo, model.parts) == ("org/llama", ())


def test_small_files_lie_side_by_side(hub: HubServer, llama: Path) -> None:
    config = read(hub).config_path
    assert config is not None
    assert config.read_bytes() == (llama / "config.json").read_bytes()
    assert (config.parent / "generation_config.json").exists()
    assert not list(config.parent.glob("*.safetensors"))


def test_code_is_downloaded_only_if_trusted(hub: HubServer, llama: Path) -> None:
    (llama / "modeling_own.py").write_text("pass\n", encoding="ascii")
    plain, trusted = read(hub), read(hub, with_code=True)
    assert plain.config_path is not None
    assert trusted.config_path is not None
    assert hub.sent("modeling_own.py") == [5]
    assert (trusted.config_path.parent / "modeling_own.py").exists()


def test_only_the_start_of_a_large_shard_is_sent(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="ascii")
    save_file({"weight": torch.zeros(1_000_000)}, folder / "model.safetensors")
    hub.repos["org/large"] = folder
    model = read(hub, "org/large")
    assert model.headers["model.safetensors"].file_bytes == (folder / "model.safetensors").stat().st_size
    assert hub.sent("model.safetensors") == [128 * 1024]


def test_an_index_tells_how_much_to_ask_for(hub: HubServer, llama: Path) -> None:
    """One request for each shard, and little more than its header."""
    model = read(hub)
    sent = hub.sent(".safetensors")
    headers = [len(header.data) for header in model.headers.values()]
    assert len(sent) == len(headers) == 3
    assert sum(headers) <= sum(sent) < 2 * sum(headers) + 3 * 1024


def test_a_long_header_takes_a_second_request(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="ascii")
    save_file(
        {f"layer.{number}.weight": torch.zeros(1) for number in range(3000)}, folder / "model.safetensors"
    )
    hub.repos["org/many"] = folder
    model = read(hub, "org/many")
    assert model.headers["model.safetensors"].data == read_raw_header(folder / "model.safetensors").data
    assert len(hub.sent("model.safetensors")) == 2


def test_a_server_without_ranges(hub: HubServer, llama: Path) -> None:
    hub.knows_ranges = False
    model = read(hub)
    assert all(model.headers[name].data == read_raw_header(llama / name).data for name in model.headers)


def test_progress_counts_shards(hub: HubServer, llama: Path) -> None:
    told: list[tuple[str, int, int]] = []
    read(hub, progress=lambda *report: told.append(report))
    assert told == [("read headers", 1, 3), ("read headers", 2, 3), ("read headers", 3, 3)]


def test_a_repository_of_a_config_alone(hub: HubServer, llama: Path) -> None:
    without_weights(llama)
    model = read(hub)
    assert (model.headers, model.weights.index, model.weights.listing) == ({}, None, None)
    assert model.config_path is not None


def test_variant(hub: HubServer, llama: Path) -> None:
    save_file({"weight": torch.zeros(2)}, llama / "model.fp16.safetensors")
    assert list(read(hub, variant="fp16").headers) == ["model.fp16.safetensors"]


@pytest.mark.parametrize("status", [401, 403])
def test_gated(hub: HubServer, llama: Path, status: int) -> None:
    hub.gated["org/llama"] = status
    error = fault(hub)
    assert error.fault is HubFault.GATED
    assert str(error) == (
        "org/llama: the Hub gives this model only to those who accepted its terms\n"
        "hint: accept them on the model's page and log in with `hf auth login`"
    )


def test_gated_with_a_token(hub: HubServer, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated["org/llama"] = 401
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert len(read(hub).headers) == 3
    assert {request.token for request in hub.requests} == {"hf_mine"}


def test_a_private_model_is_shown_to_its_owner(
    hub: HubServer, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.private["org/llama"] = "hf_mine"
    assert fault(hub).fault is HubFault.MISSING
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert len(read(hub).headers) == 3


def test_missing_repository(hub: HubServer) -> None:
    error = fault(hub, "org/nothing")
    assert error.fault is HubFault.MISSING
    assert str(error) == (
        "org/nothing: neither a local folder nor a model that the Hub shows you\n"
        "hint: check the name; a private model needs `hf auth login`"
    )


def test_missing_revision(hub: HubServer, llama: Path) -> None:
    error = fault(hub, "org/llama", "v9")
    assert str(error) == "org/llama@v9: the Hub has no such revision of this model"


def test_missing_folder(hub: HubServer, llama: Path) -> None:
    error = fault(hub, "org/llama", "main", "unet")
    assert str(error) == "org/llama/unet@main: the repository has no such folder: got unet"


def test_revision_by_commit(hub: HubServer, llama: Path) -> None:
    assert read(hub, revision=COMMIT).commit == COMMIT


def test_no_network(hub: HubServer) -> None:
    with pytest.raises(HubError) as caught:
        read_hub_model(HubId(repo="org/llama", revision=None), endpoint="http://127.0.0.1:9")
    assert caught.value.fault is HubFault.UNREACHABLE
    assert str(caught.value) == (
        "org/llama: no local folder, and the Hub cannot be reached: got ConnectError\n"
        "hint: check the network, or give the path of a folder with the model"
    )


def test_offline_mode(hub: HubServer, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    error = fault(hub)
    assert error.fault is HubFault.UNREACHABLE
    assert str(error) == (
        "org/llama: no local folder, and the Hub may not be asked: got offline mode\n"
        "hint: unset HF_HUB_OFFLINE, or give the path of a folder with the model"
    )
    assert hub.requests == []


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, "log in again with `hf auth login`, or unset HF_TOKEN"),
        (403, "your token may lack the right to read this model"),
        (501, "try again later"),
    ],
)
def test_other_answers(
    hub: HubServer, llama: Path, status: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.error_status = status
    hub.error_text = "Invalid credentials in Authorization header"
    error = fault(hub)
    assert str(error) == f"org/llama: the Hub answers with an error: got HTTP status {status}\nhint: {hint}"


def test_a_renamed_model(hub: HubServer, llama: Path) -> None:
    hub.renamed["org/old"] = "org/llama"
    model = read(hub, "org/old")
    assert (model.repo, len(model.headers)) == ("org/llama", 3)
    source = open_source("org/old", PlanOptions())
    assert (source.source, source.revision) == ("org/llama", COMMIT)
    assert source.warnings == ("org/old is now org/llama on the Hub",)


def test_large_files_lie_elsewhere(hub: HubServer, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub sends away for them: the range must go along."""
    hub.large_files_elsewhere = True
    model = read(hub)
    assert all(model.headers[name].data == read_raw_header(llama / name).data for name in model.headers)
    assert len([request for request in hub.requests if request.path.startswith("/elsewhere/")]) == 3
    assert max(hub.sent(".safetensors")) < 8 * 1024


def test_a_listing_of_other_sizes(hub: HubServer, llama: Path) -> None:
    name = "model-00002-of-00003.safetensors"
    hub.listed_sizes[name] = 5
    with pytest.raises(HubError) as caught:
        read(hub)
    size = (llama / name).stat().st_size
    assert str(caught.value) == (
        f"org/llama/{name}: the Hub sends another file than its listing says: "
        f"got {size} bytes, needed 5 bytes"
    )


def test_a_shard_that_the_index_names_and_nobody_has(hub: HubServer, llama: Path) -> None:
    (llama / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError) as caught:
        read(hub)
    assert str(caught.value) == (
        "org/llama: a shard is missing: got no file model-00002-of-00003.safetensors, "
        "needed every shard that the index names"
    )


def test_only_other_weights(hub: HubServer, llama: Path) -> None:
    without_weights(llama)
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (llama / name).write_bytes(b"x")
    model = read(hub)
    assert (model.headers, model.weights.unread) == ({}, ("pytorch_model.bin",))
    assert hub.sent(".bin") == []
    assert open_source("org/llama", PlanOptions()).warnings == (
        "org/llama: planned from the config alone: only safetensors is read,"
        ' and there is "pytorch_model.bin"',
    )


def test_an_index_none_of_whose_shards_is_there(hub: HubServer, llama: Path) -> None:
    for file in llama.glob("*.safetensors"):
        file.unlink()
    model = read(hub)
    assert (model.headers, model.weights.shards) == ({}, ())
    assert model.weights.listing is not None
    assert "lm_head.weight" in model.weights.listing.weight_map


def test_a_model_in_a_folder(hub: HubServer, llama: Path) -> None:
    """As a pipeline holds its text encoder."""
    hub.repos["org/pipeline"] = llama.parent
    model = read(hub, "org/pipeline", folder=llama.name)
    assert list(model.headers) == sorted(path.name for path in llama.glob("*.safetensors"))
    source = open_source(f"org/pipeline/{llama.name}", PlanOptions())
    assert (source.source, source.revision) == (f"org/pipeline/{llama.name}", COMMIT)
    assert source.shards == open_source(str(llama), PlanOptions(hash_content=True)).shards


def test_a_whole_pipeline(hub: HubServer, llama: Path) -> None:
    hub.repos["org/pipeline"] = llama.parent
    (llama.parent / "model_index.json").write_text("{}", encoding="ascii")
    (llama.parent / "unet").mkdir()
    (llama.parent / "unet" / "config.json").write_text("{}", encoding="ascii")
    with pytest.raises(SourceError) as caught:
        open_source("org/pipeline", PlanOptions())
    assert str(caught.value) == (
        "org/pipeline: a pipeline of several models: got model_index.json, "
        "needed one of its models: org/pipeline/model, org/pipeline/unet\n"
        "hint: each model of a pipeline has a plan of its own"
    )


def test_an_index_that_leads_out(hub: HubServer, llama: Path) -> None:
    index = llama / "model.safetensors.index.json"
    value = json.loads(index.read_text())
    value["weight_map"]["lm_head.weight"] = "../../secret.safetensors"
    index.write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match="names a shard that may not be opened"):
        read(hub)


def test_a_shard_too_short_for_its_header(hub: HubServer, llama: Path) -> None:
    (llama / "model-00001-of-00003.safetensors").write_bytes(struct.pack("<Q", 500) + b"{}")
    with pytest.raises(SafetensorsFormatError) as caught:
        read(hub)
    assert str(caught.value).startswith(
        "org/llama/model-00001-of-00003.safetensors: truncated inside its header: got 10 bytes"
    )


def test_source_of_a_hub_id_is_pinned(hub: HubServer, llama: Path) -> None:
    source = open_source("org/llama@main", PlanOptions())
    local = open_source(str(llama), PlanOptions(hash_content=True))
    assert (source.source, source.revision) == ("org/llama", COMMIT)
    assert source.shards == local.shards
    assert source.headers == local.headers
    assert source.config_digest == local.config_digest


def test_source_without_config(hub: HubServer, llama: Path) -> None:
    (llama / "config.json").unlink()
    with pytest.raises(SourceError) as caught:
        open_source("org/llama", PlanOptions())
    assert str(caught.value) == (
        "org/llama: there is no config.json: needed the config that belongs to the weights\n"
        "hint: the folder of one model is needed, not one that holds several"
    )


def test_no_weights_for_a_factory(hub: HubServer, llama: Path) -> None:
    without_weights(llama)
    (llama / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(SourceError) as caught:
        open_source("package.module:factory", PlanOptions(checkpoint="org/llama"))
    assert str(caught.value) == (
        "org/llama: the checkpoint has no weights to read: got pytorch_model.bin, "
        "needed a safetensors checkpoint"
    )


def test_weights_of_a_factory_from_the_hub(hub: HubServer, llama: Path) -> None:
    source = open_source("package.module:factory", PlanOptions(checkpoint="org/llama"))
    assert source.factory == source.source == "package.module:factory"
    assert source.shards is not None
    assert len(source.shards) == 3
    assert source.config_path is None
