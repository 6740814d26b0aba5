"""The whole check, in integers, from the plan alone.

Takes the plan's inputs (model, workload, inventory, formats, `problem`) as given and recomputes everything
that was made from them. Shares no code with the search, whose mistakes it would repeat. What it cannot know
is whether `lower_bound_ns` is true: that would take solving again.
"""

from __future__ import annotations

from bayplan.planner.check.basis import Problem, read_placement
from bayplan.planner.check.demands import demand_problems
from bayplan.planner.check.memory import memory_problems
from bayplan.planner.check.schedule import schedule_problems
from bayplan.planner.check.summary import summary_problems
from bayplan.schemas.plan import Plan


def check(plan: Plan) -> tuple[Problem, ...]:
    """Return `(path, text)` for everything in `plan` that its own inputs contradict.

    Args:
        plan: One without contradictions of structure, see `bayplan.schemas.plan_rules`. Where blocks, runs,
            devices and hosts do not belong together, that is all that is said of it.
    """
    placement, problems = read_placement(plan)
    if placement is None:
        return problems
    return (
        *problems,
        *demand_problems(placement),
        *memory_problems(placement),
        *schedule_problems(placement),
        *summary_problems(placement),
    )
