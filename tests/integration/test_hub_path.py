"""From a Hub id to tokens: planned from the first bytes of each shard, downloaded only to be run."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_line import in_own_process
from hub_server import COMMIT, HubServer, hub_server
from tiny_checkpoints import tiny_llama
from transformers import LlamaConfig, LlamaForCausalLM
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
    done = in_own_process("plan", f"{REPO}@main", "--max-memory", "cpu=2MiB", "-o", plan, **network)
    assert done.code == 0, done.err
    assert len(hub.sent(".safetensors")) == 2  # one request each
    assert sum(hub.sent(".safetensors")) < FIRST_READ_BYTES
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
    assert max(sorted(hub.sent(".safetensors"))[:2]) < FIRST_READ_BYTES


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


def test_a_70b_model_costs_under_5_mb(hub: HubServer, tmp_path: Path) -> None:
    """In 162 shards, as one with that many is published: real headers over holes of the real size."""
    folder = tmp_path / "large"
    config = LlamaConfig(**LLAMA_70B, architectures=["LlamaForCausalLM"], dtype="bfloat16")
    config.save_pretrained(folder)
    tensors = llama_tensors(config)
    weight_map = {}
    groups = [tensors[number::NUM_SHARDS] for number in range(NUM_SHARDS)]
    for number, group in enumerate(groups, start=1):
        name = f"model-{number:05}-of-{NUM_SHARDS:05}.safetensors"
        write_hollow_shard(folder / name, group)
        weight_map |= dict.fromkeys((fqn for fqn, _ in group), name)
    total = sum(2 * math.prod(shape) for _, shape in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    hub.repos["org/large"] = folder

    plan, machine = tmp_path / "plan.json", tmp_path / "machine.json"
    network = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    words = ("--host-memory", "1TiB", "--cpu", "epyc-9354", "-o", machine)
    assert in_own_process("inventory", *words).code == 0
    done = in_own_process("plan", "org/large", "-i", machine, "-o", plan, **network)
    assert done.code == 0, done.err
    tree = json.loads(plan.read_text())
    assert tree["model"]["num_params"] == total // 2 == 70_553_706_496
    assert len(tree["model"]["checkpoint"]["shards"]) == NUM_SHARDS
    assert len(hub.sent(".safetensors")) == NUM_SHARDS
    assert sum(hub.sent()) < 5_000_000


LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
NUM_SHARDS = 162


def llama_tensors(config: LlamaConfig) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of a Llama's tensors, as its checkpoints have them."""
    wide, inner = config.hidden_size, config.intermediate_size
    narrow = wide // config.num_attention_heads * config.num_key_value_heads
    of_layer = {
        "input_layernorm": (wide,),
        "mlp.down_proj": (wide, inner),
        "mlp.gate_proj": (inner, wide),
        "mlp.up_proj": (inner, wide),
        "post_attention_layernorm": (wide,),
        "self_attn.k_proj": (narrow, wide),
        "self_attn.o_proj": (wide, wide),
        "self_attn.q_proj": (wide, wide),
        "self_attn.v_proj": (narrow, wide),
    }
    ends = {"model.embed_tokens": (config.vocab_size, wide), "model.norm": (wide,)}
    ends |= {"lm_head": (config.vocab_size, wide)}
    tensors = [(f"{name}.weight", shape) for name, shape in ends.items()]
    for layer in range(config.num_hidden_layers):
        tensors += [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in of_layer.items()]
    return tensors


def write_hollow_shard(file: Path, tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    """Write a shard whose header is whole and whose tensors are a hole in the file."""
    members: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for fqn, shape in tensors:
        begin, end = end, end + 2 * math.prod(shape)
        members[fqn] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    header = json.dumps(members, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + end)
