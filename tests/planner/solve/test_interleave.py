from __future__ import annotations

from placement_problems import GIGA, gpus, make_chain, make_cost, make_inventory, make_link, make_task

from bayplan.planner.solve.answer import Choice
from bayplan.planner.solve.interleave import interleaved
from bayplan.planner.solve.modes import Counts
from bayplan.planner.solve.task import Task
from bayplan.schemas.types import Residency

STAY = Choice(device=0)
HOST = Choice(device=0, residency=Residency.STREAM_HOST)
DISK = Choice(device=0, residency=Residency.STREAM_DISK)


def task_of(reads: list[int]) -> Task:
    """Blocks of 64 bytes that compute for as many nanoseconds as they read; from disk in 256, else in 64."""
    inventory = make_inventory(gpus(1).devices, [make_link("node0/gpu0")], disk_rate=GIGA // 4)
    return make_task(make_chain([make_cost(64, decode_read_bytes=read) for read in reads]), inventory)


def interleave(
    reads: list[int], choices: list[Choice], *, num_slots: int = 1, starts_full: bool = False
) -> str:
    """Blocks that read as much are of one kind; `choices` says what each kind has."""
    task = task_of(reads)
    kinds = tuple(reads)
    modes = tuple((kind, choice, 1) for kind, choice in zip(kinds, choices, strict=True))
    counts = Counts(cuts=(len(reads),), modes=(modes,), num_slots=(num_slots,), bound=0.0)
    answer = interleaved(task, counts, kinds, choices, starts_full=starts_full)
    names = {STAY: "-", HOST: "h", DISK: "d"}
    return "".join(names[choice] for choice in answer.choices)


def test_what_is_there_is_visited_before_what_is_not() -> None:
    """The first comes in while two compute, each of the next while the one before it does not."""
    assert interleave([32] * 8, [HOST] * 3 + [STAY] * 5) == "--h--h-h"


def test_a_full_slot_is_visited_at_once() -> None:
    assert interleave([32] * 8, [HOST] * 3 + [STAY] * 5, starts_full=True) == "h--h--h-"


def test_more_slots_let_the_courier_work_ahead() -> None:
    """While one block computes for 128 both slots are filled."""
    assert interleave([128] * 6, [HOST] * 3 + [STAY] * 3, num_slots=2) == "-hhh--"


def test_a_long_visit_waits_for_the_slow_transfer_that_it_hides() -> None:
    """Of the three that stay none hides behind a transfer from host memory, and one behind that from disk."""
    choices = [HOST, DISK, HOST, STAY]
    assert interleave([200] * 4, choices) == "h-dh"
    assert interleave([200] * 6, [*choices, STAY, STAY]) == "-h-d-h"


def test_kinds_keep_their_places() -> None:
    """The one that streams is of the kind in the middle."""
    assert interleave([8, 16, 16, 8], [STAY, HOST, STAY, STAY]) == "--h-"
