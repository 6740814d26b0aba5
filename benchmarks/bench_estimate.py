"""Is the estimate right, and quick: 51 published models, beside accelerate's estimate-memory and hf-mem.

Usage: python benchmarks/bench_estimate.py --peer-python PYTHON [--samples N] [--part speed|answers]
           [--models NAME ...]
PYTHON is that of an environment with accelerate, hf-mem, torch and transformers. Asserts classes, parameters,
ties and bytes before it reports anything; exits with 1 if a limit on time or memory is passed. The answers
may be had on a busy machine, the speed may not. What plain forwards of transformers cache takes long to find
out, and is kept in `estimate_caches.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from checkpoints import minilm  # noqa: E402  the path must be there first
from estimate_peers import (  # noqa: E402
    ACCELERATE,
    HF_MEM,
    PEER_BYTES,
    PEER_SECONDS,
    TRUE_CACHE,
    Ran,
    last_json,
    run,
    run_peer,
)
from hub_server import HubServer, hub_server  # noqa: E402
from surroundings import peer_versions, surroundings  # noqa: E402

MODELS = ROOT / "tests" / "data" / "models"
MINILM = "sentence-transformers--all-MiniLM-L6-v2"
LONG_CONTEXT = 32_768
CACHE_SECONDS = 90
"""For a plain forward at that length: some layers loop over the positions."""
MAX_COLD_NS, MAX_COLD_BYTES, MAX_CACHED_NS = 8 * 10**9, 2**30, 10**9
PACKAGES = ("bayplan", "torch", "transformers", "msgspec", "huggingface_hub")
PEER_PACKAGES = ("accelerate", "hf-mem", "torch", "transformers")
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

Row = dict[str, Any]


def bayplan(words: list[str], cache: Path) -> Ran:
    """Call the command line in a fresh process with a graph cache of its own."""
    environment = {"BAYPLAN_CACHE_DIR": str(cache), "COLUMNS": "100"}
    return run([sys.executable, "-m", "bayplan", *words], environment=environment)


def medians(samples: list[Ran]) -> dict[str, int]:
    """Return the median wall time and the largest peak of several processes."""
    return {
        "wall_ns": int(statistics.median(sample.wall_ns for sample in samples)),
        "peak_rss_bytes": max(sample.peak_rss_bytes for sample in samples),
    }


def ours(name: str, facts: Row, inventory: Path, samples: int, work: Path) -> Row:
    """Estimate and plan one model, cold and again, timed; check the answers against `facts`."""
    config, cache = MODELS / f"{name}.json", work / "cache"
    commands = {
        "estimate": ["estimate", str(config), "--json"],
        "plan": ["plan", str(config), "-i", str(inventory), "-o", str(work / "plan.json"), "--json"],
    }
    ran: dict[str, list[Ran]] = {}
    for number in range(samples):
        for what, words in commands.items():
            if what == "plan" and number:
                continue  # Reads the model as `estimate` does; once is enough.
            shutil.rmtree(cache, ignore_errors=True)
            for state in ("cold", "cached"):
                ran.setdefault(f"{what} {state}", []).append(bayplan(words, cache))
    first = ran["estimate cold"][0]
    row: Row = {"seconds_and_bytes": {key: medians(found) for key, found in ran.items()}}
    if not facts:
        assert "is defined by code that comes with the checkpoint" in first.error, first.error
        return row | {"error": "needs remote code"}
    assert not first.error, f"{name}: {first.error}"
    assert len({sample.out for key in ("cold", "cached") for sample in ran[f"estimate {key}"]}) == 1, name
    assert not any(sample.error for sample in (*ran["plan cold"], *ran["plan cached"])), name
    found = json.loads(first.out)
    truth = {
        "class": facts["class"],
        "params": facts["params"],
        "total_bytes": facts["fp32_with_buffers_bytes"],
        "largest_bytes": facts["largest_fp32_bytes"],
        "tied": facts["ties"],
    }
    got = {
        "class": found["class"],
        "params": found["params"],
        "total_bytes": found["formats"]["fp32"]["total_bytes"],
        "largest_bytes": found["formats"]["fp32"]["largest_layer_bytes"],
        "tied": sorted(sorted(group) for group in found["tied"]),
    }
    assert got == truth, f"{name}: {got} is not {truth}"
    return row | truth


def at_long_context(config: Path, cache: Path) -> Row:
    """Estimate one model's cache at the long context."""
    shutil.rmtree(cache, ignore_errors=True)
    long = bayplan(["estimate", str(config), "--json", "--context", str(LONG_CONTEXT)], cache)
    assert not long.error, f"{config.stem}: {long.error}"
    deep = json.loads(long.out)
    return {key: deep[key] for key in ("class", "kv_bytes", "context", "encoder_context", "dtype")}


def true_cache(python: str, folder: Path, row: Row, measured: dict[str, Row]) -> Row:
    """Check our cache bytes at the long context against those of a plain forward, where one runs.

    Takes the forward's bytes from `measured` where they are, and puts them there where not.
    """
    arguments = (
        row["class"],
        TORCH_DTYPES[row["dtype"]],
        str(row["context"]),
        str(row["encoder_context"] or 0),
    )
    asked = " ".join(arguments)
    if measured.get(folder.name, {}).get("asked") != asked:
        found = last_json(run_peer(python, TRUE_CACHE, str(folder), *arguments, max_seconds=CACHE_SECONDS))
        measured[folder.name] = {"asked": asked, **found}
    found = measured[folder.name]
    if "error" not in found:
        assert found["kv_bytes"] == row["kv_bytes"], f"{folder.name}: cache {row['kv_bytes']} is not {found}"
    return found


def accelerate(python: str, folder: Path, row: Row) -> Row:
    """Ask accelerate for the fp32 total of the same config."""
    found = last_json(run_peer(python, ACCELERATE, str(folder)))
    return _with_error(found, "total_bytes", row.get("total_bytes"))


def hf_mem(python: str, hub: HubServer, name: str, row: Row) -> Row:
    """Ask hf-mem for the cache at the same context, and for the weights where there are real headers."""
    words = ["--model-id", name.replace("--", "/"), "--json-output", "--experimental"]
    words += ["--max-model-len", str(row.get("context", LONG_CONTEXT))]
    found = last_json(run_peer(python, HF_MEM, hub.url, *words))
    if "error" not in found:
        weights = found["memory"] if name == MINILM else None
        found = {"kv_bytes": found["kv_cache"], "weights_bytes": weights}
    return _with_error(found, "kv_bytes", row.get("kv_bytes"))


def _with_error(found: Row, key: str, truth: int | None) -> Row:
    value = found.get(key)
    if isinstance(value, int) and truth:
        found["error_percent"] = round(100 * (value - truth) / truth, 2)
    return found


def serve(name: str, folder: Path, hub: HubServer) -> None:
    """Offer one model's config on the local Hub, with its real header, or with a header of one number."""
    if name == MINILM:
        shutil.copyfile(minilm() / "model.safetensors", folder / "model.safetensors")
    else:
        header = json.dumps({"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(2))
    hub.repos[name.replace("--", "/")] = folder


def size(num_bytes: object) -> str:
    """Return bytes for a table, in GiB."""
    return f"{num_bytes / 2**30:.2f}" if isinstance(num_bytes, int) else "-"


def cell(found: Row, key: str) -> str:
    """Return a peer's answer with its error, or why it has none."""
    if "error" in found:
        return str(found["error"]).replace("|", "/")[:60]
    off = found.get("error_percent")
    return size(found.get(key)) + (f" ({off:+.2f} %)" if off else "")


def cost(figures: Row) -> str:
    """Return seconds and MiB for a table."""
    return f"{figures['wall_ns'] / 1e9:.1f} / {figures['peak_rss_bytes'] / 2**20:.0f}"


def render(results: dict[str, Row], head: str) -> str:
    """Return the table of all models; `-` stands for what was not asked."""
    lines = [
        head,
        "",
        "| model | class | parameters | fp32 GiB | accelerate's | cache GiB at context | hf-mem's"
        " | estimate s / MiB | again | plan s / MiB | again |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in results.items():
        mine, deep = row.get("ours", {}), row.get("cache", {})
        spent = mine.get("seconds_and_bytes", {})
        cells = [
            name.replace("--", "/"),
            mine.get("class", mine.get("error", "-")),
            f"{mine['params']:,}" if "params" in mine else "-",
            size(mine.get("total_bytes")),
            cell(row.get("accelerate", {}), "total_bytes"),
            f"{size(deep['kv_bytes'])} at {deep['context']}" if deep.get("kv_bytes") else "-",
            cell(row.get("hf_mem", {}), "kv_bytes") if deep.get("kv_bytes") else "-",
            *(
                cost(spent[key]) if key in spent else "-"
                for key in ("estimate cold", "estimate cached", "plan cold", "plan cached")
            ),
        ]
        lines.append(f"| {' | '.join(str(text) for text in cells)} |")
    return "\n".join(lines) + "\n"


def missed(name: str, row: Row) -> list[str]:
    """Return the limits that our own processes pass."""
    found = []
    for key, figures in row.get("ours", {}).get("seconds_and_bytes", {}).items():
        is_cached = key.endswith("cached")
        if is_cached and "error" in row["ours"]:
            continue  # A refusal is not kept.
        if figures["wall_ns"] > (MAX_CACHED_NS if is_cached else MAX_COLD_NS):
            found.append(f"{name}: {key} takes {figures['wall_ns'] / 1e9:.2f} s")
        if figures["peak_rss_bytes"] > MAX_COLD_BYTES:
            found.append(f"{name}: {key} takes {figures['peak_rss_bytes'] / 2**20:.0f} MiB")
    return found


def main() -> int:
    """Measure, check, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--part", choices=["speed", "answers"], help="only this; the rest stays as it is")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    known = json.loads((MODELS / "facts.json").read_text())
    names = arguments.models or sorted(path.stem for path in MODELS.glob("*--*.json"))
    caches = arguments.out / "estimate_caches.json"
    measured = json.loads(caches.read_text()) if caches.exists() else {}
    file = arguments.out / "estimate_models.json"
    results = json.loads(file.read_text())["results"] if arguments.part and file.exists() else {}
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, hub_server() as hub:
        bench = Bench(arguments.peer_python, Path(scratch), hub, measured)
        for name in names:
            row, facts = results.setdefault(name, {}), known.get(name, {})
            if arguments.part != "answers":
                row["ours"] = ours(name, facts, bench.inventory(), arguments.samples, bench.work)
                print(name, row["ours"]["seconds_and_bytes"], flush=True)
            if arguments.part != "speed":
                row |= bench.answers(name, facts)
                caches.write_text(json.dumps(measured, indent=2) + "\n")
            write(results, arguments)
    over = [text for name, row in results.items() for text in missed(name, row)]
    for text in over:
        print(f"limit passed: {text}")
    return 1 if over else 0


class Bench:
    """Asks the peers, and us at the long context."""

    def __init__(self, peer_python: str, work: Path, hub: HubServer, measured: dict[str, Row]) -> None:
        self.peer_python = peer_python
        self.work = work
        self.hub = hub
        self.measured = measured

    def inventory(self) -> Path:
        """Return a declared machine with eight accelerators."""
        path = self.work / "machine.json"
        if not path.exists():
            words = ["inventory", "--device", "h100-80gb*8", "--host-memory", "2TiB", "-o", str(path)]
            assert not bayplan(words, self.work / "cache").error
        return path

    def answers(self, name: str, facts: Row) -> dict[str, Row]:
        """Return what each says of one model; check our cache against a plain forward's."""
        folder = self.work / name
        folder.mkdir()
        shutil.copyfile(MODELS / f"{name}.json", folder / "config.json")
        row: dict[str, Row] = {}
        truth: Row = {"total_bytes": facts.get("fp32_with_buffers_bytes")}
        if facts:
            row["cache"] = at_long_context(MODELS / f"{name}.json", self.work / "cache")
            truth |= row["cache"]
        if truth.get("kv_bytes"):
            row["cache"]["true"] = true_cache(self.peer_python, folder, truth, self.measured)
        row["accelerate"] = accelerate(self.peer_python, folder, truth)
        serve(name, folder, self.hub)
        row["hf_mem"] = hf_mem(self.peer_python, self.hub, name, truth)
        return row


def write(results: dict[str, Row], arguments: argparse.Namespace) -> None:
    """Write what there is so far, as data and as a table."""
    found = {
        "command": f"python benchmarks/bench_estimate.py --peer-python PYTHON --samples {arguments.samples}",
        **surroundings(PACKAGES),
        "peers": peer_versions(arguments.peer_python, PEER_PACKAGES),
        "peer_limits": {"seconds": PEER_SECONDS, "address_space_bytes": PEER_BYTES},
        "limits_passed": [text for name, row in results.items() for text in missed(name, row)],
        "results": results,
    }
    (arguments.out / "estimate_models.json").write_text(json.dumps(found, indent=2) + "\n")
    (arguments.out / "estimate_models.md").write_text(render(results, HEAD))


HEAD = f"""# Published models: what each tool says

fp32 total with all buffers, of the class that the config names. Ours equals what is counted on the model
that `transformers` builds (`tests/data/models/facts.json`), or the benchmark fails. `accelerate` is what
its `estimate-memory` computes, with its distance from that; it takes the class without a head.

The cache is that of batch 1 at {LONG_CONTEXT} positions, or at the model's maximum, in the model's own
data type. Ours equals that of a plain forward of `transformers` on the meta device, wherever one runs
(`cache.true` in the JSON file), or the benchmark fails. `hf-mem` computes its own from the config, with
its distance from ours; the weights it reads from shard headers, which are here for all-MiniLM-L6-v2 alone
(`weights_bytes`).

Seconds and peak resident MiB of a fresh process, medians; *again*: with our own graph cache; plans are for
eight H100 of 80 GB with a host. A peer that takes more than {PEER_SECONDS} s or {PEER_BYTES // 2**30} GiB of
address space is stopped."""


if __name__ == "__main__":
    sys.exit(main())
