"""What planning and running cost, in time and memory, beside plain transformers.

Usage: python benchmarks/bench_foundation.py [--samples N] [--out FILE]
Needs the extra `test` (real weights). Asserts the reference tokens before it reports anything.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from checkpoints import smollm2  # noqa: E402  the path must be there first
from references import CAPITAL, Continuation  # noqa: E402
from surroundings import surroundings  # noqa: E402

NEW_TOKENS = 20
STREAMING_BUDGET = {"fp32": "260MiB", "bf16": "150MiB"}
"""Budgets under which about half of SmolLM2's layers stream, at a context of 128."""

PEER = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, prompt, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
start = time.perf_counter_ns()
model = AutoModelForCausalLM.from_pretrained(folder).eval()
load = time.perf_counter_ns() - start
inputs = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")
with torch.inference_mode():
    start = time.perf_counter_ns()
    model(**inputs)
    first = time.perf_counter_ns() - start
    ids = model.generate(**inputs, max_new_tokens=count, do_sample=False)[0, inputs["input_ids"].shape[1]:]
    start = time.perf_counter_ns()
    model.generate(**inputs, max_new_tokens=count, do_sample=False)
    step = (time.perf_counter_ns() - start) // count
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
anonymous = (int(status["RssAnon"].split()[0]) + int(status["VmLck"].split()[0])) * 1024
print(json.dumps({"load_ns": load, "first_output_ns": first, "decode_ns": step,
                  "anonymous_bytes_at_end": anonymous, "token_ids": ids.tolist()}))
"""


def timed(arguments: list[str]) -> tuple[str, dict[str, int]]:
    """Run a command in a fresh process; return its output, its wall time and its peak resident set."""
    start = time.perf_counter_ns()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    wall = time.perf_counter_ns() - start
    if process.returncode:
        raise SystemExit(f"failed with {process.returncode}: {' '.join(arguments)}")
    return text, {"wall_ns": wall, "peak_rss_bytes": usage.ru_maxrss * 1024}


def drop_page_cache() -> bool:
    """Drop the page cache, if this process may."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def medians(samples: list[dict[str, int]]) -> dict[str, list[int]]:
    """Return `[min, median, max]` of every figure."""
    keys = [key for key in samples[0] if isinstance(samples[0][key], int)]
    return {
        key: [
            min(sample[key] for sample in samples),
            int(statistics.median(sample[key] for sample in samples)),
            max(sample[key] for sample in samples),
        ]
        for key in keys
    }


def measure(folder: Path, name: str, samples: int, wanted: Continuation, work: Path) -> dict[str, object]:
    """Plan, run and compare one checkpoint; variants take turns, so that noise hits all alike."""
    program = [sys.executable, "-m", "bayplan"]
    plans = {"resident": [], "streamed": ["--max-memory", f"cpu={STREAMING_BUDGET[name]}"]}
    rows: dict[str, list[dict[str, int]]] = {}
    predicted: dict[str, object] = {}
    cold = True
    for _ in range(samples):
        for label, options in plans.items():
            plan, report = work / f"{name}-{label}.json", work / "report.json"
            command = [*program, "plan", str(folder), "--context", "128", "-o", str(plan), "--json", *options]
            rows.setdefault(f"plan {label}", []).append(timed(command)[1])
            cold = drop_page_cache() and cold
            command = [*program, "run", str(plan), "--checkpoint", str(folder), "--prompt", wanted.prompt]
            command += ["--max-new-tokens", str(NEW_TOKENS), "--report", str(report), "--json"]
            _, figures = timed(command)
            done = json.loads(report.read_text())
            assert done["token_ids"] == [list(wanted.token_ids)], f"{name} {label}: other tokens"
            assert done["honoured"], f"{name} {label}: not honoured"
            peak = next(iter(done["measured"]["peak_bytes"].values()))
            bound = next(iter(done["predicted"]["peak_bytes"].values()))
            assert peak <= bound, f"{name} {label}: peak {peak} above the plan's {bound}"
            times = {key: done["measured"][key] for key in ("load_ns", "first_output_ns", "decode_ns")}
            rows.setdefault(f"run {label}", []).append(figures | times | {"peak_bytes": peak})
            predicted[label] = done["predicted"]
        cold = drop_page_cache() and cold
        text, figures = timed([sys.executable, "-c", PEER, str(folder), wanted.prompt, str(NEW_TOKENS)])
        peer = json.loads(text)
        assert peer.pop("token_ids") == list(wanted.token_ids), f"{name}: transformers gives other tokens"
        rows.setdefault("transformers", []).append(figures | peer)
    return {
        "page_cache_dropped": cold,
        "predicted": predicted,
        "min_median_max": {label: medians(found) for label, found in rows.items()},
        "samples": rows,
    }


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folders = smollm2(ROOT / ".checkpoints")
    with tempfile.TemporaryDirectory() as work:
        results = {
            name: measure(getattr(folders, name), name, arguments.samples, CAPITAL, Path(work))
            for name in ("fp32", "bf16")
        }
    names = ("bayplan", "torch", "transformers", "safetensors", "msgspec")
    found = {
        "command": f"python benchmarks/bench_foundation.py --samples {arguments.samples}",
        **surroundings(names),
        "model": "SmolLM2-135M-Instruct, context 128, 20 new tokens",
        "results": results,
    }
    day = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")
    out = arguments.out or ROOT / "benchmarks" / "results" / f"foundation_{os.cpu_count()}core_{day}.json"
    out.write_text(json.dumps(found, indent=2) + "\n")
    for name, result in results.items():
        print(f"\n{name}")
        for label, figures in result["min_median_max"].items():
            shown = {
                key: f"{median / 1e6:.0f} {'ms' if key.endswith('_ns') else 'MB'}"
                for key, (_, median, _) in figures.items()
            }
            print(f"  {label:15} {shown}")


if __name__ == "__main__":
    main()
