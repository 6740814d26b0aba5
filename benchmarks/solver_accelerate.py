"""Our placement beside the device maps that accelerate makes for the same model and budgets, one simulator.

accelerate is asked as its documentation says: `infer_auto_device_map` with the model's own no-split classes,
with the budgets as they are (`sequential`) and through `get_balanced_memory` (`auto`, `balanced`).
It counts weights only, so it is asked three times:

- *plain*: with our budgets. How often its map does not fit once cache, activations and slots are counted.
- *weights*: with our budgets less the cache and activations of our own plan on each device.
- *lowered*: with these times 95 %, 90 %, ..., 50 % for the accelerators, as its users do until it runs.

Compared is the fastest of all its maps that fit. Slots are the best of one to three for both; schedule and
costs are the same. What accelerate's own engine adds (no prefetch, a copy per tensor) is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from estimate_peers import last_json, run_peer
from solver_instances import Instance
from solver_maps import Cost, MapError, answer_of, cost
from solver_peer import MAPS

from bayplan.planner.format_choice import parse_request
from bayplan.planner.formats import planned_forms
from bayplan.planner.hardware.budget import device_budgets, parse_max_memory
from bayplan.planner.model.cached import cached_read_model
from bayplan.planner.model.facts import ReadModel
from bayplan.planner.model_chain import model_chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.experts import ExpertsResidency
from bayplan.planner.solve.ledger import ledger_of
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Placed, Problem, place_for
from bayplan.schemas.types import Backend, Objective

PEER_SECONDS = 600
LEAST_RATIO = 1.5
SHARES = (95, 90, 85, 80, 70, 60, 50)
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

Row = dict[str, Any]


def rows(arguments: argparse.Namespace, work: Path) -> list[Row]:
    """Return one row per instance that accelerate can be asked about."""
    found = []
    for instance in arguments.instances:
        row = {"instance": instance.name} | _compared(instance, arguments.peer_python, work)
        print(
            json.dumps({key: row.get(key) for key in ("instance", "left_out", "ratio", "best_map", "error")})
        )
        found.append(row)
    return sorted(found, key=lambda row: (-(row.get("ratio") or 0), row["instance"]))


def _left_out(instance: Instance, read: ReadModel) -> str | None:
    """Return why accelerate is not asked about an instance; None: it is."""
    options = instance.options()
    assert options.inventory is not None
    if instance.format is not None:
        return "several formats"
    if instance.objective not in (None, Objective.PREFILL):
        return f"objective {instance.objective}"
    if len(options.inventory.nodes) > 1:
        return "several nodes"
    if read.scheme is not None:
        return "a quantized checkpoint"
    return None


def _compared(instance: Instance, python: str, work: Path) -> Row:
    """Return our figures and those of accelerate's maps."""
    options = instance.options()
    assert options.inventory is not None
    read = cached_read_model(str(instance.config), options)
    reason = _left_out(instance, read)
    if reason is not None:
        return {"left_out": reason}
    placed = place_for(_problem(instance, read))
    if placed is None:
        return {"error": "ours: no placement"}
    cases = list(_cases(placed))
    asked = {
        "config": str(_folder(instance, work)),
        "class": read.graph.class_name,
        "dtype": TORCH_DTYPES[read.dtype],
        "cases": [{"max_memory": budgets, "is_balanced": balanced} for _, balanced, budgets in cases],
    }
    answer = last_json(run_peer(python, MAPS, json.dumps(asked), max_seconds=PEER_SECONDS))
    if "error" in answer:
        return {"error": f"accelerate: {answer['error']}"}
    row = _ours(placed) | {"no_split": answer["no_split"]}
    if row["cpu_computes"]:
        without = place_for(_problem(instance, read, cpu_computes=False))
        row["step_without_cpu_ns"] = None if without is None else without.solution.step_ns
    maps = answer["maps"]
    assert isinstance(maps, list)
    tried = []
    for (name, is_balanced, budgets), entries in zip(cases, maps, strict=True):
        mode = f"{name} {'balanced' if is_balanced else 'sequential'}"
        tried.append({"mode": mode, "max_memory": budgets} | _costed(entries, read, placed))
    return row | _judged(row, tried)


def _problem(instance: Instance, read: ReadModel, *, cpu_computes: bool = True) -> Problem:
    options = instance.options()
    assert options.inventory is not None
    chain = model_chain(read, planned_forms(read, parse_request(None, None)), options.inventory)
    objective = options.objective or (Objective.DECODE if read.graph.generates else Objective.PREFILL)
    budgets = device_budgets(options.inventory, parse_max_memory(options.max_memory, options.inventory))
    if not cpu_computes:
        budgets |= {own.id: 0 for own in options.inventory.devices if own.backend is Backend.CPU}
    return Problem(
        chain=chain,
        machine=Machine(options.inventory, budgets),
        constraints=resolve(chain, (), no_spill=False),
        objective=objective,
        generates=read.graph.generates,
    )


def _folder(instance: Instance, work: Path) -> Path:
    folder = work / instance.model
    folder.mkdir(exist_ok=True)
    shutil.copyfile(instance.config, folder / "config.json")
    return folder


def _names(machine: Machine) -> dict[int, str]:
    """Return accelerate's name of each accelerator, by its place among the devices."""
    names: dict[int, str] = {}
    for index, device in enumerate(machine.devices):
        if device.backend is Backend.MPS:
            names[index] = "mps"
        elif device.backend is not Backend.CPU:
            names[index] = str(len(names))
    return names


def _cases(placed: Placed) -> list[tuple[str, bool, dict[str, int]]]:
    """Return the budgets that accelerate is asked with: name, whether balanced, bytes by device."""
    machine = placed.task.machine
    names = _names(machine)
    plain = {name: machine.budgets[index] for index, name in names.items()}
    weights = {
        name: max(0, machine.budgets[index] - _besides(placed, index)) for index, name in names.items()
    }
    host = machine.host_budgets[0]
    if not names:
        (cpu,) = range(len(machine.devices))
        host, spare = machine.budgets[cpu], machine.budgets[cpu] - _besides(placed, cpu)
        found = [("plain", False, {"cpu": host}), ("weights", False, {"cpu": spare})]
        return found + [(f"{share} %", False, {"cpu": spare * share // 100}) for share in SHARES]
    # Unified memory is the accelerator's; accelerate has no budget for the host then.
    waiting = {} if "mps" in plain else {"cpu": host}
    found = []
    for balanced in (False, True):
        found += [("plain", balanced, plain | waiting), ("weights", balanced, weights | waiting)]
        for share in SHARES:
            lowered = {name: size * share // 100 for name, size in weights.items()}
            found.append((f"{share} %", balanced, lowered | waiting))
    return found


def _besides(placed: Placed, device: int) -> int:
    """Return what our plan has on a device besides weights and slots; at least the activations of one."""
    answer = placed.solution.answer
    own = ledger_of(placed.task, answer, device)
    used = [ledger_of(placed.task, answer, other) for other in range(len(placed.task.machine.devices))]
    activations = own.activations[1] or max(ledger.activations[1] for ledger in used)
    return own.kv[1] + activations + placed.task.chain.scratch_bytes


def _ours(placed: Placed) -> Row:
    answer, task = placed.solution.answer, placed.task
    on_cpu = [device.backend is Backend.CPU for device in task.machine.devices]
    computes = any(
        on_cpu[choice.device]
        or (choice.experts is not None and choice.experts.residency is ExpertsResidency.COMPUTE_HOST)
        for choice in answer.choices
    )
    return {
        "step_ns": placed.solution.step_ns,
        "streamed_blocks": sum(choice.streams for choice in answer.choices),
        "split_blocks": sum(choice.experts is not None for choice in answer.choices),
        "slots": answer.num_slots,
        "cpu_computes": computes and not all(on_cpu),
    }


def _costed(entries: dict[str, int | str], read: ReadModel, placed: Placed) -> Row:
    try:
        answer = answer_of(entries, read.graph.blocks, placed.task.machine)
    except MapError as error:
        return {"refused": str(error)}
    found: Cost = cost(placed.task, answer)
    return msgspec.to_builtins(found) | {"entries": len(entries)}


def _judged(row: Row, tried: list[Row]) -> Row:
    """Return the comparison with the fastest map that fits, and what became of the others."""
    fitting = [
        one for one in tried if "refused" not in one and not one["shortages"] and one["step_ns"] is not None
    ]
    plain = [one for one in tried if one["mode"].startswith("plain")]
    weights = [one for one in tried if one["mode"].startswith("weights")]
    found: Row = {
        "plain_breaks": sum(one not in fitting for one in plain),
        "weights_breaks": sum(one not in fitting for one in weights),
        "asked": len(plain),
        "refused": next((one["refused"] for one in tried if "refused" in one), None),
        "tried": tried,
    }
    if not fitting:
        return found | {"best_map": None}
    best = min(fitting, key=lambda one: one["step_ns"])
    # With the budgets that hold our plan, does it stream what it could keep?
    keeps_all = not (row["streamed_blocks"] or row["split_blocks"] or row["cpu_computes"])
    spills = [one for one in (*plain, *weights) if one.get("streamed_blocks")]
    return found | {
        "best_map": best["mode"],
        "map_step_ns": best["step_ns"],
        "map_streamed_blocks": best["streamed_blocks"],
        "map_is_contiguous": best["is_contiguous"],
        "ratio": round(best["step_ns"] / row["step_ns"], 4),
        "ratio_without_cpu": round(best["step_ns"] / row.get("step_without_cpu_ns", row["step_ns"]), 4)
        if row.get("step_without_cpu_ns", row["step_ns"])
        else None,
        "map_spills_needlessly": keeps_all and bool(spills),
        "always_spills": keeps_all and all(one["streamed_blocks"] for one in fitting),
        "ours_spills_needlessly": not keeps_all
        and any(not one["streamed_blocks"] and one["is_contiguous"] for one in fitting),
        "fits_by_coming_back": not keeps_all
        and any(not one["streamed_blocks"] and not one["is_contiguous"] for one in fitting),
    }


def passed(found: list[Row]) -> list[str]:
    """Return the limits that are passed."""
    texts = [f"{row['instance']}: {row['error']}" for row in found if "error" in row]
    for row in found:
        if row.get("ratio", 1) < 1:
            back = "" if row["map_is_contiguous"] else "; the map comes back to a device that it has left"
            texts.append(f"{row['instance']}: ours is slower: {row['ratio']} ({row['best_map']}{back})")
        if row.get("ours_spills_needlessly"):
            texts.append(f"{row['instance']}: ours streams what accelerate's map keeps")
    streaming = [row["ratio"] for row in found if _streams(row)]
    if streaming and geometric_mean(streaming) < LEAST_RATIO:
        texts.append(f"the geometric mean where anything streams is {geometric_mean(streaming):.2f}")
    return texts


def _streams(row: Row) -> bool:
    streamed = ("streamed_blocks", "split_blocks", "map_streamed_blocks")
    return "ratio" in row and any(row[key] for key in streamed)


def geometric_mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def render(found: list[Row]) -> str:
    """Return the table, the largest ratio first."""
    good = [row for row in found if "ratio" in row]
    streaming = [row["ratio"] for row in good if _streams(row)]
    alike = [row["ratio_without_cpu"] for row in good if _streams(row) and row["ratio_without_cpu"]]
    mean, mean_without = (geometric_mean(own or [1.0]) for own in (streaming, alike))
    asked = [row for row in found if "asked" in row]
    lines = [
        "# Our placement beside accelerate's device maps, on one simulator",
        "",
        (__doc__ or "").partition("\n\n")[2].strip(),
        "",
        f"- {len(good)} instances compared; ours is slower in {sum(row['ratio'] < 1 for row in good)}.",
        f"- {len(streaming)} in which either streams: ours is faster by a geometric mean of "
        f"**{mean:.2f}**; by {mean_without:.2f} where the CPU "
        "does not compute beside accelerators in ours either, as it never does in accelerate's.",
        "- Budgets hold our plan without streaming, and accelerate's maps of these budgets spill: "
        f"{_names_of(row for row in good if row['map_spills_needlessly'])}. With lowered budgets too: "
        f"{_names_of(row for row in good if row['always_spills'])}. Ours spills what its map keeps: "
        f"{_names_of(row for row in good if row['ours_spills_needlessly'])}; what its map keeps by coming "
        "back to a device that the chain has left, as for a tied head: "
        f"{_names_of(row for row in good if row['fits_by_coming_back'])}.",
        "- Maps that do not fit once cache, activations and slots are counted, which is no win of ours: made "
        f"with the plain budgets {sum(row['plain_breaks'] for row in asked)} of "
        f"{sum(row['asked'] for row in asked)}, with those less cache and activations "
        f"{sum(row['weights_breaks'] for row in asked)}.",
        f"- No map fits, whatever the budget: {_names_of(row for row in asked if row['best_map'] is None)}.",
        f"- Not asked: {_reasons(found)}.",
        "",
        "| instance | ours ms | streams | fastest map that fits, ms | streams | made with | ratio "
        "| without CPU | breaks: plain, weights | spills needlessly |",
        "|---|--:|--:|--:|--:|---|--:|--:|--:|---|",
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in found if "left_out" not in row]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    if "error" in row:
        return [row["instance"], row["error"].replace("|", "/"), *(["-"] * 8)]
    ours = [row["instance"], f"{row['step_ns'] / 1e6:.3f}", str(row["streamed_blocks"] or "-")]
    broken = f"{row['plain_breaks']}, {row['weights_breaks']} of {row['asked']}"
    if row["best_map"] is None:
        return [*ours, row["refused"] or "none fits", "-", "-", "-", "-", broken, "-"]
    without = row["ratio_without_cpu"] if row["cpu_computes"] else None
    return [
        *ours,
        f"{row['map_step_ns'] / 1e6:.3f}",
        str(row["map_streamed_blocks"] or "-"),
        row["best_map"],
        f"{row['ratio']:.3f}",
        f"{without:.3f}" if without else "-",
        broken,
        "always" if row["always_spills"] else "yes" if row["map_spills_needlessly"] else "-",
    ]


def _names_of(found: Iterable[Row]) -> str:
    names = [row["instance"] for row in found]
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def _reasons(found: list[Row]) -> str:
    counts = Counter(row["left_out"] for row in found if "left_out" in row)
    return ", ".join(f"{reason} ({count})" for reason, count in sorted(counts.items())) or "none"
