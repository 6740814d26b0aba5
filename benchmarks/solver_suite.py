"""The suite: every instance placed in a fresh process, its gap, its time and its memory."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from estimate_peers import last_json, run
from solver_instances import Instance

CHILD = Path(__file__).resolve().parent / "solver_child.py"
MAX_OWN_GAP_PPM = 1_000
MAX_MEDIAN_GAP_PPM = 1_000
MAX_GAP_PPM = 30_000
LISTED_GAP_PPM = 10_000
MAX_SECONDS = 10.0
LEAST_INSTANCES = 40

Row = dict[str, Any]


def rows(arguments: argparse.Namespace, work: Path) -> list[Row]:
    """Return one row per instance, the worst gap first."""
    found = []
    for instance in arguments.instances:
        row = {"instance": instance.name} | _measured(instance, arguments.samples)
        found.append(row)
        print(_line(row), flush=True)
    return sorted(found, key=lambda row: (-row.get("gap_ppm", 10**9), row["instance"]))


def _measured(instance: Instance, samples: int) -> Row:
    """Place one instance in as many processes; the graph is in the cache before the first one counts."""
    traced = run([sys.executable, str(CHILD), "--read", instance.name])
    if traced.error:
        return {"error": traced.error}
    ran = [run([sys.executable, str(CHILD), instance.name]) for _ in range(samples)]
    failed = next((one.error for one in ran if one.error), None)
    if failed is not None:
        return {"error": failed}
    answers: list[Row] = [last_json(one) for one in ran]
    assert len({answer["digest"] for answer in answers}) == 1, f"{instance.name}: not the same plan twice"
    row = answers[0]
    for key in ("seconds", "cpu_seconds", "program_seconds", "read_seconds"):
        row[key] = statistics.median(answer[key] for answer in answers)
    row["most_seconds"] = max(answer["seconds"] for answer in answers)
    row["peak_rss_bytes"] = max(one.peak_rss_bytes for one in ran)
    return row


def passed(found: list[Row]) -> list[str]:
    """Return the limits that are passed."""
    texts = []
    for row in found:
        name = row["instance"]
        if "error" in row:
            texts.append(f"{name}: {row['error']}")
            continue
        if row["own_gap_ppm"] > MAX_OWN_GAP_PPM:
            texts.append(f"{name}: the program's own gap is {row['own_gap_ppm']} ppm ({row['status']})")
        if row["gap_ppm"] > MAX_GAP_PPM:
            texts.append(f"{name}: the gap is {row['gap_ppm']} ppm")
        if row["most_seconds"] > MAX_SECONDS:
            texts.append(f"{name}: takes {row['most_seconds']:.1f} s")
    gaps = [row["gap_ppm"] for row in found if "gap_ppm" in row]
    if gaps and statistics.median(gaps) > MAX_MEDIAN_GAP_PPM:
        texts.append(f"the median gap is {statistics.median(gaps):.0f} ppm")
    if len(found) < LEAST_INSTANCES:
        texts.append(f"{len(found)} instances are fewer than {LEAST_INSTANCES}")
    return texts


def render(found: list[Row]) -> str:
    """Return the table, the worst instances on top."""
    good = [row for row in found if "error" not in row]
    gaps = sorted(row["gap_ppm"] for row in good)
    listed = [row["instance"] for row in good if row["gap_ppm"] > LISTED_GAP_PPM]
    streaming = [row["gap_ppm"] for row in good if row["streamed_blocks"] or row["split_blocks"]] or [0]
    lines = [
        "# The solver's suite: gap and time",
        "",
        f"{len(found)} instances, {len(streaming)} of which stream. Certified gap (simulated step against "
        f"proven bound): median {percent(statistics.median(gaps))}, where anything streams "
        f"{percent(statistics.median(streaming))}, worst {percent(gaps[-1])}. Largest gap that a program was "
        f"left with: {percent(max(row['own_gap_ppm'] for row in good))}. Seconds from the traced graph to "
        f"the checked plan: median {statistics.median(row['seconds'] for row in good):.2f}, worst "
        f"{max(row['most_seconds'] for row in good):.2f}. Over 1 %: {', '.join(listed) or 'none'}.",
        "",
        "*Own gap*: the largest with which a mixed-integer program of this instance ended; `DP`: the exact "
        "dynamic program, no gap. *Streams*: blocks, and slots per device. Worst gap first.",
        "",
        "| instance | blocks | devices (used) | step ms | bound ms | gap | own gap | streams "
        "| experts apart | seconds (in programs) | peak MiB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in found]
    return "\n".join(lines) + "\n"


def percent(ppm: float) -> str:
    """Return parts per million as a percentage."""
    return f"{ppm / 10_000:.3f} %"


def _cells(row: Row) -> list[str]:
    if "error" in row:
        return [row["instance"], row["error"].replace("|", "/"), *(["-"] * 9)]
    own = "DP" if row["is_dynamic_program"] else percent(row["own_gap_ppm"])
    slots = ",".join(str(number) for number in row["slots"].values())
    return [
        row["instance"],
        str(row["blocks"]),
        f"{row['devices']} ({row['used_devices']})",
        f"{row['step_ns'] / 1e6:.3f}",
        f"{row['bound_ns'] / 1e6:.3f}",
        percent(row["gap_ppm"]),
        own if row["status"] == "optimal" else f"{own}, {row['status']}",
        f"{row['streamed_blocks']} ({slots})" if row["streamed_blocks"] else "-",
        str(row["split_blocks"] or "-"),
        f"{row['seconds']:.2f} ({row['program_seconds']:.2f})",
        f"{row['peak_rss_bytes'] / 2**20:.0f}",
    ]


def _line(row: Row) -> str:
    if "error" in row:
        return f"{row['instance']}: {row['error']}"
    return (
        f"{row['instance']}: gap {row['gap_ppm']} ppm, own {row['own_gap_ppm']} ppm {row['status']}, "
        f"{row['programs']} programs, streams {row['streamed_blocks']}, {row['seconds']:.2f} s "
        f"({row['program_seconds']:.2f} in programs, {row['cpu_seconds']:.2f} of CPU)"
    )
