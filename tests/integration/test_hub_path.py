"""From a Hub id to tokens: planned from the first bytes of each shard, downloaded only to be run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_line import in_own_process
from hub_server import COMMIT, HubServer, hub_server
from tiny_checkpoints import tiny_llama
from transformers import LlamaForCausalLM
from word_tokenizer import add_tokenizer

pytestmark = pytest.mark.slow

REPO = "org/tiny"
FIRST_READ_BYTES = 128 * 1024
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
PROMPT_IDS = [5, 6, 7]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose shards are several times as long as what planning reads of them."""
    folder = add_tokenizer(tiny_llama(tmp_path_factory.mktemp("hub") / "tiny", layers=24, shards=2))
    assert min((folder / shard).stat().st_size for shard in SHARDS) > 3 * FIRST_READ_BYTES
    return folder


@pytest.fixture
def hub(repository: Path) -> Iterator[HubServer]:
    with hub_server() as server:
        server.repos[REPO] = repository
        yield server


def reference(folder: Path) -> list[int]:
    model = LlamaForCausalLM.from_pretrained(folder)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    ids = torch.tensor([PROMPT_IDS])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    tokens: list[int] = made[0, len(PROMPT_IDS) :].tolist()
    return tokens


def test_planned_by_headers_alone_and_run_by_download(
    hub: HubServer, repository: Path, tmp_path: Path
) -> None:
    home = tmp_path / "hub-home"
    network = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home)}
    plan, report = tmp_path / "plan.json", tmp_path / "report.json"
    done = in_own_process("plan", f"{REPO}@main", "--max-memory", "cpu=10MiB", "-o", plan, **network)
    assert done.code == 0, done.err
    assert hub.sent(".safetensors") == [FIRST_READ_BYTES, FIRST_READ_BYTES]
    assert not list(home.rglob("*.safetensors"))
    tree = json.loads(plan.read_text())
    assert (tree["model"]["source"], tree["model"]["revision"]) == (REPO, COMMIT)
    assert tree["summary"]["streamed_blocks"] > 0

    run = ("run", plan, "--prompt", "w5 w6 w7", "--report", report)
    done = in_own_process(*run, **network)
    assert done.code == 0, done.err
    first = json.loads(report.read_text())
    assert first["token_ids"] == [reference(repository)]
    # The Hub's own hashes came with the plan, so what was downloaded is known to be what was planned for.
    assert (first["plan_digest"], first["honoured"], first["content_verified"]) == (
        tree["digest"],
        True,
        True,
    )
    assert f"/{REPO}/resolve/{COMMIT}/{SHARDS[0]}" in {request.path for request in hub.requests}

    num_requests = len(hub.requests)
    done = in_own_process(*run, HF_HUB_OFFLINE="1", **network)
    assert done.code == 0, done.err
    assert json.loads(report.read_text())["token_ids"] == first["token_ids"]
    assert len(hub.requests) == num_requests


def test_the_demo_takes_any_model_of_the_hub(hub: HubServer, tmp_path: Path) -> None:
    done = in_own_process("demo", "--model", REPO, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "hub-home"))
    assert done.code == 0, done.err
    assert re.search(
        r"\nresident = streaming = transformers, bit for bit "
        r"\(outputs sha256:[0-9a-f]{12}, 20 generated tokens\)\ndone in [0-9]+ s\n\Z",
        done.out,
    )
    assert sorted(hub.sent(".safetensors"))[:2] == [FIRST_READ_BYTES, FIRST_READ_BYTES]


def test_a_model_that_the_hub_does_not_have(hub: HubServer, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    done = in_own_process(
        "plan", "org/other", "-o", plan, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home")
    )
    assert (done.code, done.out, done.err) == (
        1,
        "",
        "error: org/other: neither a local folder nor a model that the Hub shows you\n"
        "hint: check the name; a private model needs `hf auth login`\n",
    )
    assert not plan.exists()
