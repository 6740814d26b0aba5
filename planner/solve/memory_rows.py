"""Rows of the placement's program about bytes: slots, devices, host memory, caches of experts."""

from __future__ import annotations

from bayplan.planner.solve.draft import Draft
from bayplan.planner.solve.experts import ExpertsResidency, in_flight_bytes
from bayplan.planner.solve.experts import slot_bytes as expert_slot_bytes
from bayplan.planner.solve.modes import Mode, Stage
from bayplan.planner.solve.split import dense_bytes, host_bytes
from bayplan.schemas.types import Residency


def add_slots(draft: Draft, stage: Stage) -> None:
    """A device that streams has one number of slots, as large as its largest streamed block."""
    program = draft.program
    budget = draft.task.machine.budgets[stage.device]
    for size in sorted({mode.form.parameter_bytes for mode in stage.streamed}):
        for num_slots in draft.narrowing.slot_counts:
            if num_slots * size <= budget:
                stage.slots[num_slots, size] = program.switch()
    program.at_most([*((switch, 1.0) for switch in stage.slots.values()), (stage.is_used, -1.0)], 0.0)
    for mode in stage.streamed:
        large = [
            (switch, -float(draft.count[mode.kind]))
            for (_, size), switch in stage.slots.items()
            if size >= mode.form.parameter_bytes
        ]
        program.at_most([(mode.variable, 1.0), *large], 0.0)


def add_memory(draft: Draft, stage: Stage) -> None:
    """Weights, cache, slots, activations and tied storages are within the budget."""
    program, chain = draft.program, draft.task.chain
    for mode in stage.modes:
        stage.memory.append((mode.variable, draft.units(_resident_bytes(draft, mode))))
    stage.memory += [
        (switch, draft.units(num_slots * size)) for (num_slots, size), switch in stage.slots.items()
    ]
    # The peak of activations is that of the most demanding block that is there: a ladder of switches.
    stage.memory.append((stage.is_used, draft.units(chain.scratch_bytes + draft.levels[0])))
    below = stage.is_used
    for lower, level in zip(draft.levels, draft.levels[1:], strict=False):
        step = program.switch()
        program.at_most([(step, 1.0), (below, -1.0)], 0.0)
        stage.memory.append((step, draft.units(level - lower)))
        for mode in stage.modes:
            _add_rung(draft, mode, step, level)
        below = step
    _add_replicas(draft, stage)
    _add_caches(draft, stage)
    program.at_most(stage.memory, draft.limit_units(draft.task.machine.budgets[stage.device]))


def _add_rung(draft: Draft, mode: Mode, step: int, level: int) -> None:
    """Blocks in a mode that has such activations need `step`; without copies of experts perhaps not."""
    kind, form, count = mode.kind, mode.choice.form, float(draft.count[mode.kind])
    if draft.activation_level(kind, form, copies=mode.choice.experts is None) < level:
        return
    terms = [(mode.variable, 1.0), (step, -count)]
    if draft.is_apart is not None and draft.activation_level(kind, form, copies=False) < level:
        terms.append((draft.is_apart, -count))
    draft.program.at_most(terms, 0.0)


def add_apart(draft: Draft, stages: list[Stage]) -> None:
    """Experts are apart somewhere only if a block has them so."""
    if draft.is_apart is not None:
        modes = [mode for stage in stages for mode in stage.modes if mode.choice.experts is not None]
        draft.program.at_most([(draft.is_apart, 1.0), *((mode.variable, -1.0) for mode in modes)], 0.0)


def _resident_bytes(draft: Draft, mode: Mode) -> int:
    """Return what one block takes on its device whatever else is there, in bytes."""
    cost = draft.task.chain.costs[draft.first[mode.kind]]
    always = mode.form.buffer_bytes + cost.kv_bytes
    if mode.choice.streams:
        return always
    if mode.choice.experts is not None and cost.experts is not None:
        return always + dense_bytes(mode.form, cost.experts)
    return always + mode.form.parameter_bytes


def _add_replicas(draft: Draft, stage: Stage) -> None:
    """A tied storage lies where its first block is, and once more on every device that uses it besides."""
    program = draft.program
    for tie in draft.task.chain.ties:
        replica = program.switch()
        stage.memory.append((replica, draft.units(tie.num_bytes)))
        owner = draft.kinds[tie.positions[0]]
        there = [(mode.variable, 1.0) for mode in stage.modes if mode.kind == owner]
        for kind in {draft.kinds[position] for position in tie.positions[1:]} - {owner}:
            using = [(mode.variable, -1.0 / draft.count[kind]) for mode in stage.modes if mode.kind == kind]
            program.at_least([(replica, 1.0), *there, *using], 0.0)


def _add_caches(draft: Draft, stage: Stage) -> None:
    """Caches have at least a slot for each expert that one position needs; those on their way come on top."""
    program = draft.program
    in_flight: dict[int, int] = {}
    for mode in stage.modes:
        experts = draft.task.chain.costs[draft.first[mode.kind]].experts
        if mode.slots is None or experts is None:
            continue
        # With a slot for every expert nothing is apart.
        program.at_most([(mode.slots, 1.0), (mode.variable, 1.0 - experts.count)], 0.0)
        program.at_least([(mode.slots, 1.0), (mode.variable, -float(experts.per_token))], 0.0)
        unit_bytes = mode.form.unit_bytes
        stage.memory.append((mode.slots, draft.units(expert_slot_bytes(unit_bytes))))
        size = in_flight_bytes(unit_bytes, experts.per_token)
        if size not in in_flight:
            in_flight[size] = program.switch()
        program.at_most([(mode.variable, 1.0), (in_flight[size], -float(draft.count[mode.kind]))], 0.0)
    # The largest counts; of several sizes in one model, which is rare, a lower bound takes the smallest.
    if in_flight:
        smallest = min(in_flight)
        for switch in in_flight.values():
            if switch != in_flight[smallest]:
                program.at_most([(switch, 1.0), (in_flight[smallest], -1.0)], 0.0)
        stage.memory.append((in_flight[smallest], draft.units(smallest)))


def add_hosts(draft: Draft, stages: list[Stage]) -> None:
    """What waits in host memory and what devices take that lie there share it."""
    machine = draft.task.machine
    for node in range(len(machine.inventory.nodes)):
        own = [stage for stage in stages if machine.nodes[stage.device] == node]
        waiting = [
            (mode.variable, draft.units(num_bytes))
            for stage in own
            for mode in stage.modes
            if (num_bytes := _waiting_bytes(draft, mode))
        ]
        inside = [term for stage in own if machine.lies_in_host_memory(stage.device) for term in stage.memory]
        if waiting or inside:
            draft.program.at_most([*waiting, *inside], draft.limit_units(machine.host_budgets[node]))
        if waiting and machine.pinned_budgets[node] < machine.host_budgets[node]:
            draft.program.at_most(waiting, draft.limit_units(machine.pinned_budgets[node]))


def _waiting_bytes(draft: Draft, mode: Mode) -> int:
    """Return what one block has waiting in host memory, in bytes."""
    if mode.choice.residency is Residency.STREAM_HOST:
        return mode.form.parameter_bytes
    experts = draft.task.chain.costs[draft.first[mode.kind]].experts
    if mode.choice.experts is None or experts is None:
        return 0
    return host_bytes(mode.form, experts, mode.choice.experts)


def reads_at_load(mode: Mode) -> bool:
    """Whether a block's weights are read before the first step."""
    if mode.choice.experts is not None:
        return mode.choice.experts.residency is not ExpertsResidency.CACHE_DISK
    return mode.choice.residency is not Residency.STREAM_DISK
