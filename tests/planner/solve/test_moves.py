from __future__ import annotations

from placement_problems import GIGA, MIB, gpus, make_chain, make_cost, make_form, make_task

from bayplan.planner.solve.answer import Answer, Choice
from bayplan.planner.solve.moves import Before, Keeper, Limits, meets_demands, moved_blocks, moved_bytes
from bayplan.planner.solve.polish import Rank
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Residency

HERE, THERE = Choice(device=0), Choice(device=1)
STREAMED = Choice(device=0, residency=Residency.STREAM_HOST)
SMALL = Choice(device=0, form=1)

HALF = make_form(4 * MIB, "int8", quantized_bytes=8 * MIB)
CHAIN = make_chain([make_cost(8 * MIB, others=(HALF,)) for _ in range(4)])
TASK = make_task(CHAIN, gpus(2, rate=GIGA))
EVERYWHERE = Limits(time_ns=2**60, devices=frozenset({0, 1}), can_stream=True)


def answer(*choices: Choice, slots: tuple[int, int] = (1, 1)) -> Answer:
    return Answer(choices=choices, num_slots=slots)


def before(*choices: Choice | None, slots: tuple[int, int] = (1, 1)) -> Before:
    return Before(choices=choices, num_slots=slots)


def rank(own: Answer, then: Before, limits: Limits = EVERYWHERE) -> Rank:
    found = Keeper(TASK, then, limits, 100).rank(own)
    assert found is not None
    return found


def test_a_placement_whose_parts_are_all_there_is_an_answer() -> None:
    assert before(HERE, THERE, slots=(2, 3)).answer() == answer(HERE, THERE, slots=(2, 3))
    assert before(HERE, None).answer() is None


def test_blocks_move_with_device_residency_or_form_and_count_as_they_are_now() -> None:
    then = before(HERE, HERE, HERE, None)
    assert moved_blocks(answer(HERE, STREAMED, SMALL, THERE), then) == (1, 2, 3)
    assert moved_bytes(TASK, answer(HERE, STREAMED, SMALL, THERE), then) == (8 + 4 + 8) * MIB
    assert moved_bytes(TASK, answer(HERE, HERE, HERE, HERE), before(HERE, HERE, HERE, HERE)) == 0


def test_demands_are_the_order_of_devices_pins_and_limits() -> None:
    def meets(own: Answer, limits: Limits = EVERYWHERE, *, pin: str | None = None) -> bool:
        pins = () if pin is None else (Pin(pattern=pin, device="node0/gpu1"),)
        return meets_demands(make_task(CHAIN, gpus(2, rate=GIGA), pins=pins), own, limits)

    ordered = answer(HERE, HERE, STREAMED, THERE)
    assert meets(ordered)
    assert not meets(answer(THERE, HERE, HERE, HERE))
    assert meets(ordered, pin="layers.3")
    assert not meets(ordered, pin="layers.2")
    assert not meets(ordered, Limits(time_ns=1, devices=frozenset({0}), can_stream=True))
    assert not meets(ordered, Limits(time_ns=1, devices=frozenset({0, 1}), can_stream=False))


def test_what_is_beyond_a_limit_ranks_behind_what_moves_more() -> None:
    then = before(STREAMED, STREAMED, STREAMED, STREAMED)
    slow, fast = answer(STREAMED, STREAMED, STREAMED, STREAMED), answer(HERE, HERE, HERE, HERE)
    slow_rank, fast_rank = rank(slow, then), rank(fast, then)
    assert slow_rank < fast_rank
    limits = Limits(time_ns=fast_rank[6], devices=frozenset({0, 1}), can_stream=True)
    late, early = rank(slow, then, limits), rank(fast, then, limits)
    assert early < late
    assert late[0] == slow_rank[6] - fast_rank[6]
    assert (early[0], early[3]) == (0, 32 * MIB)


def test_rounding_beyond_the_limit_is_excess() -> None:
    limits = Limits(time_ns=2**60, quantized_bytes=8 * MIB, devices=frozenset({0, 1}), can_stream=True)
    then = before(HERE, HERE, HERE, HERE)
    within, beyond = (
        rank(answer(HERE, HERE, HERE, SMALL), then, limits),
        rank(answer(*[SMALL] * 4), then, limits),
    )
    assert (within[1], beyond[1]) == (0, 24 * MIB)


def test_slots_count_where_nothing_else_differs() -> None:
    then = before(STREAMED, STREAMED, HERE, HERE, slots=(2, 1))
    same, fewer = answer(STREAMED, STREAMED, HERE, HERE, slots=(2, 1)), answer(STREAMED, STREAMED, HERE, HERE)
    ranks = rank(same, then), rank(fewer, then)
    assert [own[3:6] for own in ranks] == [(0, 0, 0), (0, 0, 1)]


def test_what_does_not_work_has_no_rank() -> None:
    then = before(HERE, HERE, HERE, HERE)
    assert Keeper(TASK, then, EVERYWHERE, 100).rank(answer(THERE, HERE, HERE, HERE)) is None
    narrow = make_task(CHAIN, gpus(2, rate=GIGA), {"node0/gpu0": 20 * MIB})
    assert Keeper(narrow, then, EVERYWHERE, 100).rank(answer(HERE, HERE, HERE, HERE)) is None


def test_the_descent_brings_blocks_back() -> None:
    then = before(HERE, STREAMED, HERE, THERE)
    keeper = Keeper(TASK, then, EVERYWHERE, 100)
    found = keeper.kept_most(answer(HERE, HERE, THERE, THERE))
    assert found == answer(HERE, STREAMED, HERE, THERE)
    assert keeper.is_within(found)
    assert keeper.moved_bytes(found) == 0
