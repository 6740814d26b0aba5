"""How near predicted decode times are to measured ones, resident and streamed.

Usage: python benchmarks/bench_predict.py [--samples N] [--folder DIR] [--out FILE]
Needs the extra `test` (real weights), 12 GB of disk in DIR and 8 GB of memory. The machine is calibrated
first, in DIR. What is read of checkpoints that are streamed is dropped from the page cache behind the reader:
a plan predicts for a cold file. Samples in which other processes took part of the CPU are taken again.
Asserts that streamed blocks give the tokens of resident ones before it reports anything.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from checkpoints import smollm2  # noqa: E402  the path must be there first
from surroundings import surroundings  # noqa: E402

NEW_TOKENS = 16
MAX_OTHERS = 0.05
"""Cores that other processes may use on average during a sample."""
ATTEMPTS = 20
COLD_READS = Path(__file__).resolve().parent / "cold_reads.py"

MAKE_1B = """
import sys, torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
target, tokenizer, dtype = sys.argv[1], sys.argv[2], getattr(torch, sys.argv[3])
torch.manual_seed(0)
torch.set_default_dtype(dtype)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=49152, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
    num_key_value_heads=8, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=False,
    bos_token_id=1, eos_token_id=2, pad_token_id=2, dtype=dtype))
model.save_pretrained(target)
AutoTokenizer.from_pretrained(tokenizer).save_pretrained(target)
"""


class Case(NamedTuple):
    """One plan."""

    model: str
    context: int
    budget: str | None
    """`--max-memory` of the CPU; None: everything stays resident."""

    @property
    def name(self) -> str:
        """Return what is printed."""
        return f"{self.model}, context {self.context}, {self.budget or 'resident'}"


CASES = (
    Case("smollm2-fp32", 128, None),
    Case("smollm2-fp32", 1024, None),
    Case("smollm2-fp32", 128, "400MiB"),
    Case("smollm2-fp32", 128, "260MiB"),
    Case("smollm2-bf16", 128, None),
    Case("smollm2-bf16", 1024, None),
    Case("smollm2-bf16", 128, "210MiB"),
    Case("smollm2-bf16", 128, "150MiB"),
    Case("llama-1b-fp32", 128, None),
    Case("llama-1b-fp32", 128, "3GiB"),
    Case("llama-1b-bf16", 128, None),
    Case("llama-1b-bf16", 1024, None),
    Case("llama-1b-bf16", 128, "1900MiB"),
    Case("llama-1b-bf16", 128, "1200MiB"),
)


def busy_seconds() -> float:
    """Return the time that all cores have worked, for whomever."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Return the time that cores have worked for this process and those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def program(arguments: list[str], folder: Path, *, reads_cold: bool = False) -> float:
    """Run bayplan in a fresh process; return the cores that other processes used meanwhile.

    Args:
        arguments: Of the command line.
        folder: Where it runs.
        reads_cold: Whether what it reads is to come from the disk every time.
    """
    start, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    how = [str(COLD_READS)] if reads_cold else ["-m", "bayplan"]
    done = subprocess.run(
        [sys.executable, *how, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"bayplan {' '.join(arguments)} failed:\n{done.stderr}")
    return (busy_seconds() - busy - (own_seconds() - own)) / (time.monotonic() - start)


def undisturbed(arguments: list[str], folder: Path, *, checkpoint: Path | None = None) -> float:
    """Run bayplan until nobody else uses the machine; return the cores that others used.

    Args:
        arguments: Of the command line.
        folder: Where it runs.
        checkpoint: Which is to be read from the disk every time; None: whence it comes does not count.
    """
    for _ in range(ATTEMPTS):
        if checkpoint is not None:
            drop(checkpoint)
        others = program(arguments, folder, reads_cold=checkpoint is not None)
        if others <= MAX_OTHERS:
            return others
        print(f"  again: others used {others:.2f} cores", file=sys.stderr)
    raise SystemExit(f"others used the machine in each of {ATTEMPTS} attempts")


def drop(checkpoint: Path) -> None:
    """Drop the shards from the page cache."""
    for shard in checkpoint.glob("*.safetensors"):
        descriptor = os.open(shard, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def sample(case: Case, checkpoint: Path, plan: Path, work: Path) -> dict[str, object]:
    """Return the report of one run, with the cores that others used in it."""
    report = work / "report.json"
    prompt = " ".join(["word"] * (case.context - NEW_TOKENS - 2))
    words = ["run", str(plan), "--checkpoint", str(checkpoint), "--prompt", prompt, "--report", str(report)]
    words += ["--max-new-tokens", str(NEW_TOKENS), "--json"]
    others = undisturbed(words, work, checkpoint=None if case.budget is None else checkpoint)
    done: dict[str, object] = json.loads(report.read_text())
    assert done["honoured"], f"{case.name}: not honoured"
    return done | {"others_cores": round(others, 3)}


def measure(case: Case, checkpoint: Path, samples: int, work: Path) -> dict[str, object]:
    """Plan and run one case."""
    plan = work / "plan.json"
    budget = [] if case.budget is None else ["--max-memory", f"cpu={case.budget}"]
    words = ["plan", str(checkpoint), "-i", str(work / "inventory.json"), "--context", str(case.context)]
    program([*words, *budget, "-o", str(plan), "--json"], work)
    summary = json.loads(plan.read_text())["summary"]
    assert bool(summary["streamed_blocks"]) == (case.budget is not None), f"{case.name}: {summary}"
    runs = [sample(case, checkpoint, plan, work) for _ in range(samples)]
    assert all(run["token_ids"] == runs[0]["token_ids"] for run in runs), f"{case.name}: tokens differ"
    times = [run["measured"]["decode_ns"] for run in runs]
    measured, predicted = int(statistics.median(times)), summary["predicted_decode_ns"]
    print(
        f"{case.name}: predicted {predicted / 1e6:.1f} ms, measured {measured / 1e6:.1f} ms", file=sys.stderr
    )
    return {
        "case": case.name,
        "streamed_blocks": summary["streamed_blocks"],
        "streamed_bytes_per_step": summary["streamed_bytes_per_step"],
        "predicted_decode_ns": predicted,
        "measured_decode_ns": measured,
        "error_ppm": round((predicted - measured) * 1_000_000 / measured),
        "samples_decode_ns": times,
        "others_cores": [run["others_cores"] for run in runs],
        "token_ids": runs[0]["token_ids"],
    }


def ranks(values: list[int]) -> list[float]:
    """Return the rank of each value; equal ones share theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def rank_correlation(first: list[int], second: list[int]) -> float:
    """Return Spearman's coefficient."""
    return round(statistics.correlation(ranks(first), ranks(second)), 4)


def checkpoints(folder: Path) -> dict[str, Path]:
    """Return the folder of every model, made below `folder` unless it is there."""
    real = smollm2(ROOT / ".checkpoints")
    found = {"smollm2-fp32": real.fp32, "smollm2-bf16": real.bf16}
    for name, dtype in (("llama-1b-fp32", "float32"), ("llama-1b-bf16", "bfloat16")):
        found[name] = folder / name
        if not (folder / name).is_dir():
            making = folder / f"{name}.new"
            words = [sys.executable, "-c", MAKE_1B, str(making), str(real.fp32), dtype]
            subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
            making.rename(folder / name)
    return found


def results(folder: Path, samples: int) -> dict[str, object]:
    """Calibrate, measure every case, and compare."""
    models = checkpoints(folder)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        undisturbed(["inventory", "--calibrate", "-o", "inventory.json", "--json"], work)
        inventory = json.loads((work / "inventory.json").read_text())
        rows = [measure(case, models[case.model], samples, work) for case in CASES]
    tokens: dict[tuple[str, int], object] = {}
    for case, row in zip(CASES, rows, strict=True):
        expected = tokens.setdefault((case.model, case.context), row["token_ids"])
        assert row.pop("token_ids") == expected, f"{case.name}: other tokens than resident"
    predicted = [row["predicted_decode_ns"] for row in rows]
    measured = [row["measured_decode_ns"] for row in rows]
    return {
        "largest_error_ppm": max(abs(row["error_ppm"]) for row in rows),
        "rank_correlation": rank_correlation(predicted, measured),
        "plans": rows,
        "inventory": inventory,
    }


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="where models are made and kept; default: a temporary one"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measured = results(folder.resolve(), arguments.samples)
    names = ("bayplan", "torch", "transformers", "safetensors", "msgspec")
    found = {
        "command": f"python benchmarks/bench_predict.py --samples {arguments.samples}",
        **surroundings(names),
        "page_cache": "where the plan streams, shards are dropped from it behind the reader",
        "results": measured,
    }
    day = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")
    out = arguments.out or ROOT / "benchmarks" / "results" / f"predict_{os.cpu_count()}core_{day}.json"
    out.write_text(json.dumps(found, indent=2) + "\n")
    largest = measured["largest_error_ppm"] / 10_000
    print(f"largest error {largest:.1f} %, rank correlation {measured['rank_correlation']}")


if __name__ == "__main__":
    main()
