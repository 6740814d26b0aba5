"""Is the placement the best there is, found in time, and better than accelerate's?

Usage: python benchmarks/bench_solver.py --part suite|accelerate|confirm [--peer-python PYTHON]
           [--samples N] [--only WORD ...]
PYTHON is that of an environment with accelerate, torch and transformers; the suite needs none. `--only` takes
the instances whose names hold all the words. Exits with 1 if a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import solver_accelerate
import solver_confirm
import solver_suite
from solver_instances import INSTANCES
from surroundings import peer_versions, surroundings

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("bayplan", "highspy", "numpy", "msgspec", "torch", "transformers")
PEER_PACKAGES = ("accelerate", "torch", "transformers")


class Part(NamedTuple):
    """One question of this benchmark."""

    file: str
    """Of the results, without its ending."""
    rows: Callable[[argparse.Namespace, Path], list[dict[str, object]]]
    """Answers it; takes the command line and a folder to work in."""
    passed: Callable[[list[dict[str, object]]], list[str]]
    """Returns which limits are passed."""
    render: Callable[[list[dict[str, object]]], str]
    """Returns the answer as Markdown."""
    needs_peer: bool


PARTS = {
    "suite": Part("solver_suite", solver_suite.rows, solver_suite.passed, solver_suite.render, False),
    "accelerate": Part(
        "solver_accelerate", solver_accelerate.rows, solver_accelerate.passed, solver_accelerate.render, True
    ),
    "confirm": Part(
        "solver_confirm", solver_confirm.rows, solver_confirm.passed, solver_confirm.render, True
    ),
}


def main() -> int:
    """Measure, check, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=sorted(PARTS), required=True)
    parser.add_argument("--peer-python")
    parser.add_argument("--samples", type=int, default=1, help="fresh processes per figure")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    part = PARTS[arguments.part]
    if part.needs_peer and arguments.peer_python is None:
        parser.error(f"--part {arguments.part} needs --peer-python")
    arguments.instances = [one for one in INSTANCES if all(word in one.name for word in arguments.only)]
    with tempfile.TemporaryDirectory() as work:
        os.environ.setdefault("BAYPLAN_CACHE_DIR", f"{work}/cache")
        rows = part.rows(arguments, Path(work))
    limits = part.passed(rows)
    words = f"--part {arguments.part} --samples {arguments.samples}"
    peer = " --peer-python PYTHON" if part.needs_peer else ""
    head: dict[str, object] = {"command": f"python benchmarks/bench_solver.py {words}{peer}"}
    head |= surroundings(PACKAGES)
    if part.needs_peer:
        head["peers"] = peer_versions(arguments.peer_python, PEER_PACKAGES)
    if not arguments.only:
        arguments.out.mkdir(parents=True, exist_ok=True)
        data = head | {"limits_passed": limits, "results": rows}
        (arguments.out / f"{part.file}.json").write_text(json.dumps(data, indent=2) + "\n")
        (arguments.out / f"{part.file}.md").write_text(part.render(rows))
    for text in limits:
        print(f"limit passed: {text}")
    return 1 if limits else 0


if __name__ == "__main__":
    sys.exit(main())
