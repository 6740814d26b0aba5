from __future__ import annotations

import msgspec
import pytest
from placement_problems import GIGA, MIB, gpus, make_chain, make_cost, make_inventory, make_link, make_task

from bayplan.planner.solve import restarts
from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.deadline import Deadline
from bayplan.planner.solve.experts import ExpertsResidency
from bayplan.planner.solve.modes import Narrowing
from bayplan.planner.solve.polish import Polisher
from bayplan.planner.solve.restarts import narrowings, restarted
from bayplan.planner.solve.task import Task
from bayplan.schemas.graph import BlockExperts
from bayplan.schemas.types import Objective, Residency

LAYER = 64 * MIB
HOST = Choice(device=0, residency=Residency.STREAM_HOST)
CLUMSY = Answer(choices=(HOST,) * 8, num_slots=(1,))
"""All stream through one slot, in a step of 8 * (256 + 64) MiB."""


def six_fit() -> Task:
    """Eight equal blocks, of which six stay beside one slot; a transfer takes as long as four visits."""
    inventory = make_inventory(gpus(1).devices, [make_link("node0/gpu0", rate=GIGA // 4)])
    return make_task(make_chain([LAYER] * 8), inventory, {"node0/gpu0": 7 * LAYER})


def restart(task: Task, *, good_enough_ns: int = 0, deadline: Deadline | None = None) -> tuple[Answer, int]:
    polisher = Polisher(task, 0)  # nothing left to simulate: only where a search begins again is there more
    found = restarted(
        task,
        CLUMSY,
        polisher,
        only=frozenset({0}),
        num_batches=1,
        good_enough_ns=good_enough_ns,
        deadline=deadline or Deadline(),
    )
    return found, polisher.step_ns(found)


def test_all_numbers_of_slots_alone() -> None:
    assert list(narrowings(six_fit())) == [Narrowing(slot_counts=(n,), experts=()) for n in (1, 2, 3)]


def test_every_way_to_have_experts_apart_alone() -> None:
    experts = BlockExperts(
        module="",
        count=8,
        per_token=2,
        prefill_flops=0,
        decode_flops=0,
        prefill_hidden_bytes=0,
        decode_hidden_bytes=0,
    )
    chain = make_chain([msgspec.structs.replace(make_cost(LAYER, unit_bytes=MIB), experts=experts)])
    whole = make_task(chain, gpus(1))
    task = Task(chain, whole.machine, whole.constraints, Objective.DECODE, splits_experts=True)
    caches = ExpertsResidency.CACHE_HOST, ExpertsResidency.CACHE_DISK
    assert [(own.experts, own.slot_counts) for own in narrowings(task)] == [
        (experts, (number,))
        for experts in ((ExpertsResidency.COMPUTE_HOST,), (), caches)
        for number in (1, 2, 3)
    ]
    # Where they may not be apart there is nothing to choose.
    assert len(list(narrowings(whole))) == 3


def test_a_better_placement_is_found_from_elsewhere() -> None:
    """Two stream through one slot, and nothing is brought in while one of them computes."""
    found, step_ns = restart(six_fit())
    assert (len(found.streamed_on(0)), found.num_slots, step_ns) == (2, (1,), 2 * (256 + 64) * MIB)


def test_what_is_good_enough_is_left_alone() -> None:
    assert restart(six_fit(), good_enough_ns=8 * 320 * MIB) == (CLUMSY, 8 * 320 * MIB)


def test_a_large_program_is_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "MAX_VARIABLES", 10)
    assert restart(six_fit())[0] is CLUMSY


def test_no_search_begins_after_the_end() -> None:
    deadline = Deadline(0.0)
    assert restart(six_fit(), deadline=deadline)[0] is CLUMSY
    assert deadline.has_ended_search
