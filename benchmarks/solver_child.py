"""One placement in this process, for the solver's benchmark: prints what it took as one line of JSON.

Usage: python benchmarks/solver_child.py [--read] INSTANCE
With `--read` the model is only read, so that its graph lies in the cache.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

from solver_instances import INSTANCES, Instance

from bayplan.planner.api import solve
from bayplan.planner.format_choice import parse_request
from bayplan.planner.formats import planned_forms
from bayplan.planner.hardware.budget import parse_max_memory
from bayplan.planner.model.cached import cached_read_model
from bayplan.planner.solve.integer_program import Found, IntegerProgram
from bayplan.planner.solve.placement import RELATIVE_GAP
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.errors import BayplanError
from bayplan.schemas.types import BoundClass, Objective, Residency


class Watch:
    """Counts what the programs of one placement took, and how far each stayed from its optimum."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.seconds = 0.0
        self.solves = 0

    def start(self) -> None:
        """See every solve of this process from now on."""
        minimise = IntegerProgram.minimise

        def watched(program: IntegerProgram, *arguments: object, **options: object) -> Found:
            before = time.perf_counter()
            found = minimise(program, *arguments, **options)  # type: ignore[arg-type]
            self.seconds += time.perf_counter() - before
            self.solves += 1
            if options["relative_gap"] == RELATIVE_GAP:  # others only break ties
                self.found.append(found)
            return found

        IntegerProgram.minimise = watched  # type: ignore[method-assign]

    def gap_ppm(self) -> int:
        """Return the largest gap that any program which had a solution was left with."""
        gaps = [
            (one.objective - one.bound) / abs(one.objective)
            for one in self.found
            if one.values and one.objective
        ]
        return max(0, round(1e6 * max(gaps, default=0.0)))


def place(instance: Instance) -> dict[str, object]:
    """Return the figures of one placement."""
    options = instance.options()
    assert options.inventory is not None
    begin = time.perf_counter()
    read = cached_read_model(str(instance.config), options)
    read_seconds = time.perf_counter() - begin
    watch = Watch()
    watch.start()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    forms = planned_forms(read, parse_request(options.format, options.format_config))
    budgets = parse_max_memory(options.max_memory, options.inventory)
    plan = solve(read, forms, options.inventory, budgets, (), options)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
    summary = plan.summary
    is_load = summary.objective is Objective.LOAD
    return {
        "objective": summary.objective,
        "blocks": len(plan.blocks),
        "devices": len(plan.inventory.devices),
        "used_devices": len({block.device for block in plan.blocks}),
        "step_ns": summary.predicted_load_ns if is_load else summary.predicted_step_ns,
        "bound_ns": summary.lower_bound_ns,
        "bound_class": summary.bound_class,
        "gap_ppm": summary.gap_ppm,
        "status": summary.solver_status,
        "is_dynamic_program": not watch.solves and summary.bound_class is BoundClass.CONTIGUOUS_RESIDENT,
        "programs": watch.solves,
        # Without a program the search is exact but for what it certifies: the bound by stages.
        "own_gap_ppm": watch.gap_ppm() if watch.found else summary.gap_ppm,
        "program_seconds": round(watch.seconds, 3),
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "read_seconds": round(read_seconds, 3),
        "streamed_blocks": summary.streamed_blocks,
        "split_blocks": sum(
            block.experts is not None and block.experts.residency != "with-block" for block in plan.blocks
        ),
        "streamed_bytes_per_step": summary.streamed_bytes_per_step,
        "from": dict(Counter(b.residency for b in plan.blocks if b.residency is not Residency.RESIDENT)),
        "slots": {own.device: own.num_slots for own in plan.schedule},
        "formats": dict(Counter(block.format for block in plan.blocks)),
        "batches_in_flight": plan.workload.batches_in_flight,
        "digest": plan.digest,
        "plan_bytes": len(encode_plan(plan)),
    }


def main() -> None:
    """Read, or read and place, what the command line names."""
    only_read = "--read" in sys.argv
    (instance,) = (own for own in INSTANCES if own.name == sys.argv[-1])
    if only_read:
        read = cached_read_model(str(instance.config), instance.options())
        print(json.dumps({"blocks": len(read.graph.blocks)}))
        return
    try:
        row = place(instance)
    except BayplanError as error:
        raise SystemExit(f"error: {error.what}") from error
    print(json.dumps(row))


if __name__ == "__main__":
    main()
