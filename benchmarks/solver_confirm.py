"""Three pairs run for real on this machine's CPU: our placement and accelerate's for the same budget.

Each pair is run three ways, in fresh processes, in turn:

- *ours*: our plan on our executor,
- *map*: accelerate's map on our executor (`bayplan plan --from-device-map`), the comparison of the simulator,
- *accelerate*: the same map on accelerate's own engine, through `from_pretrained`.

All three must give the same tokens. A CPU is one device, so the maps differ only in which blocks stream, and
this confirms no more than that: the simulator's order of the two placements, and what the engine adds. The
checkpoint is in the page cache all the time, for all three; the inventory's disk is therefore as fast as a
second read of the file, and its other rates are those of `bayplan inventory --calibrate`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from checkpoints import smollm2  # noqa: E402  the path must be there first
from estimate_peers import Ran, last_json, run  # noqa: E402
from solver_peer import GENERATE, MAPS  # noqa: E402

from bayplan.schemas.codec import encode_inventory, read_inventory, read_plan  # noqa: E402

PROMPT = "The capital of France is"
NEW_TOKENS = 16
CONTEXT = 64
CLASS = "LlamaForCausalLM"
MAX_SECONDS = 1_200

RANDOM_LLAMA = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=49_152, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
    num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=False, dtype=torch.float32)
LlamaForCausalLM(config).save_pretrained(sys.argv[1], max_shard_size="2GB")
"""
"""Weights of 1.1 B parameters, in the shape of TinyLlama."""

Row = dict[str, Any]


class Pair(NamedTuple):
    """One model with one budget."""

    name: str
    model: str
    budget: str
    dtype: str


PAIRS = (
    Pair("SmolLM2 135M fp32, half streams", "smollm2", "260MiB", "float32"),
    Pair("SmolLM2 135M fp32, most streams", "smollm2", "170MiB", "float32"),
    Pair("random Llama 1.1B fp32, half streams", "llama", "2.4GiB", "float32"),
)


def rows(arguments: argparse.Namespace, work: Path) -> list[Row]:
    """Return one row per pair."""
    folders = _models(work)
    machine = work / "machine.json"
    _bayplan("inventory", "--calibrate", "-o", machine)
    found = []
    for pair in PAIRS:
        folder = folders[pair.model]
        _set_disk_rate(machine, folder)
        print(f"{pair.name}: disk rate is that of the page cache", flush=True)
        row = _pair(pair, folder, machine, arguments, work)
        print(json.dumps(row), flush=True)
        found.append(row)
    return found


def _models(work: Path) -> dict[str, Path]:
    """Return the checkpoints; the random model has SmolLM2's tokenizer."""
    small = smollm2(ROOT / ".checkpoints").fp32
    large = work / "llama"
    made = run([sys.executable, "-c", RANDOM_LLAMA, str(large)])
    assert not made.error, made.error
    for file in small.glob("tokenizer*"):
        shutil.copyfile(file, large / file.name)
    return {"smollm2": small, "llama": large}


def _set_disk_rate(machine: Path, folder: Path) -> None:
    """Write into the inventory how fast a file that is in the page cache is read again."""
    for _ in range(2):
        began, num_bytes = time.perf_counter_ns(), 0
        for file in folder.glob("*.safetensors"):
            buffer = memoryview(bytearray(16 * 2**20))
            with file.open("rb", buffering=0) as opened:
                while count := opened.readinto(buffer):
                    num_bytes += count
        rate = num_bytes * 10**9 // (time.perf_counter_ns() - began)
    inventory = read_inventory(machine)
    (node,) = inventory.nodes
    assert node.disk is not None, "this machine reads checkpoints"
    disk = msgspec.structs.replace(node.disk, read_bytes_per_second=rate)
    node = msgspec.structs.replace(node, disk=disk)
    machine.write_bytes(encode_inventory(msgspec.structs.replace(inventory, nodes=(node,))))


def _pair(pair: Pair, folder: Path, machine: Path, arguments: argparse.Namespace, work: Path) -> Row:
    """Plan both, run all three in turn."""
    words = [folder, "-i", machine, "--max-memory", f"cpu={pair.budget}", "--context", CONTEXT]
    ours, other, entries = work / "ours.json", work / "map.json", work / "device_map.json"
    _bayplan("plan", *words, "-o", ours)
    device_map = _device_map(pair, folder, ours, arguments.peer_python)
    entries.write_text(json.dumps(device_map))
    _bayplan("plan", *words, "--from-device-map", entries, "-o", other)
    times: dict[str, list[int]] = {"ours": [], "map": [], "accelerate": []}
    tokens: list[list[int]] = []
    for _ in range(arguments.samples):
        for name, plan in (("ours", ours), ("map", other)):
            report = _run(plan, folder, work)
            times[name].append(report["measured"]["decode_ns"])
            tokens.append(report["token_ids"][0])
        peer = run(
            [
                arguments.peer_python,
                "-c",
                GENERATE,
                str(folder),
                json.dumps(device_map),
                PROMPT,
                str(NEW_TOKENS),
            ],
            environment={"HF_HUB_OFFLINE": "1"},
            max_seconds=MAX_SECONDS,
        )
        answer: Row = last_json(peer)
        assert "error" not in answer, answer["error"]
        times["accelerate"].append(answer["decode_ns"])
        tokens.append(answer["token_ids"])
    assert all(one == tokens[0] for one in tokens), f"{pair.name}: not the same tokens: {tokens}"
    medians = {name: int(statistics.median(own)) for name, own in times.items()}
    plans = {name: read_plan(path).plan.summary for name, path in (("ours", ours), ("map", other))}
    predicted = {name: summary.predicted_decode_ns or 0 for name, summary in plans.items()}
    return {
        "pair": pair.name,
        "budget": pair.budget,
        "streamed_blocks": {name: summary.streamed_blocks for name, summary in plans.items()},
        "predicted_ns": predicted,
        "measured_ns": medians,
        "samples_ns": times,
        "tokens_per_second": {name: round(1e9 / own, 3) for name, own in medians.items()},
        "predicted_ratio": round(predicted["map"] / predicted["ours"], 3),
        "measured_ratio": round(medians["map"] / medians["ours"], 3),
        "engine_ratio": round(medians["accelerate"] / medians["ours"], 3),
    }


def _device_map(pair: Pair, folder: Path, plan: Path, python: str) -> dict[str, int | str]:
    """Return accelerate's map for what the budget leaves for weights and slots."""
    (device,) = read_plan(plan).plan.devices
    problem = read_plan(plan).plan.problem
    besides = device.ledger.kv[1] + device.ledger.activations[1] + problem.scratch_bytes
    case = {"max_memory": {"cpu": device.budget_bytes - besides}, "is_balanced": False}
    asked = {"config": str(folder), "class": CLASS, "dtype": pair.dtype, "cases": [case]}
    answer: Row = last_json(run([python, "-c", MAPS, json.dumps(asked)]))
    assert "error" not in answer, answer["error"]
    (found,) = answer["maps"]
    assert isinstance(found, dict)
    return found


def _run(plan: Path, folder: Path, work: Path) -> Row:
    report = work / "report.json"
    words = ["--prompt", PROMPT, "--max-new-tokens", NEW_TOKENS, "--report", report]
    _bayplan("run", plan, "--checkpoint", folder, *words)
    found: Row = json.loads(report.read_text())
    return found


def _bayplan(*words: object) -> Ran:
    environment = {"BAYPLAN_CACHE_DIR": os.environ["BAYPLAN_CACHE_DIR"], "COLUMNS": "100"}
    ran = run(
        [sys.executable, "-m", "bayplan", *map(str, words)], environment=environment, max_seconds=MAX_SECONDS
    )
    assert not ran.error, f"bayplan {words[0]}: {ran.error}"
    return ran


def passed(found: list[Row]) -> list[str]:
    """Return the limits that are passed: ours is not slower than accelerate's placement on its own engine."""
    return [
        f"{row['pair']}: accelerate is faster, {row['engine_ratio']}"
        for row in found
        if row["engine_ratio"] < 1
    ]


def render(found: list[Row]) -> str:
    """Return the table of all pairs."""
    lines = [
        "# Our placement and accelerate's, run on the CPU",
        "",
        (__doc__ or "").partition("\n\n")[2].strip(),
        "",
        "| pair | budget | blocks streamed: ours, map | tokens/s: ours | map on our executor "
        "| map on accelerate | map / ours, predicted | measured | accelerate / ours, measured |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found:
        speed, streamed = row["tokens_per_second"], row["streamed_blocks"]
        cells = [
            row["pair"],
            row["budget"],
            f"{streamed['ours']}, {streamed['map']}",
            *(f"{speed[name]:.2f}" for name in ("ours", "map", "accelerate")),
            *(f"{row[key]:.2f}" for key in ("predicted_ratio", "measured_ratio", "engine_ratio")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
