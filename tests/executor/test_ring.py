from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_disk import FakeDisk
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.executor.errors import (
    ConcurrentUseError,
    ForkedProcessError,
    NestedBlocksError,
    ReleasedError,
    ShardChangedError,
    StreamError,
    TruncatedShardError,
)


@pytest.fixture
def make_disk() -> Iterator[Any]:
    disks: list[FakeDisk] = []

    def make(num_blocks: int, num_slots: int) -> FakeDisk:
        disks.append(FakeDisk(num_blocks, num_slots))
        return disks[-1]

    yield make
    for disk in disks:
        disk.ring.close()


@settings(deadline=None)
@given(
    num_blocks=st.integers(1, 6),
    num_slots=st.integers(1, 4),
    passes=st.lists(
        st.one_of(st.just([0, 1, 2, 3, 4, 5]), st.lists(st.integers(0, 5), max_size=8)), max_size=5
    ),
    delays=st.lists(st.integers(0, 5), max_size=40),
    settles=st.sets(st.integers(0, 40)),
)
def test_every_order_finds_its_bytes_whatever_the_delays(
    num_blocks: int, num_slots: int, passes: list[list[int]], delays: list[int], settles: set[int]
) -> None:
    disk = FakeDisk(num_blocks, num_slots, delays=delays)
    try:
        calls = [block for one_pass in passes for block in one_pass if block < num_blocks]
        for number, block in enumerate(calls):
            disk.step()
            disk.run_block(block, disk.settle if number in settles else disk.step)
        visits = [disk.ring.counts(block).visits for block in range(num_blocks)]
    finally:
        disk.ring.close()
    assert visits == [calls.count(block) for block in range(num_blocks)]


def test_planned_order_reads_every_block_once_per_pass(make_disk: Any) -> None:
    disk = make_disk(5, 2)
    for _ in range(3):
        for block in range(5):
            disk.run_block(block, disk.settle)
    disk.settle()
    assert [disk.filled.count(block) for block in range(5)] == [4, 4, 3, 3, 3]
    assert (disk.ring.num_skipped, disk.ring.num_mispredicted, disk.ring.num_cancelled) == (0, 0, 0)


def test_skipped_blocks_are_counted_and_the_next_is_right(make_disk: Any) -> None:
    disk = make_disk(6, 3)
    disk.settle()
    disk.run_block(2)
    disk.run_block(3)
    assert (disk.ring.num_skipped, disk.ring.num_mispredicted) == (2, 0)


def test_other_order_is_read_on_demand(make_disk: Any) -> None:
    disk = make_disk(6, 2)
    disk.settle()
    for block in (5, 3, 1, 4):
        disk.run_block(block)
    assert disk.ring.num_mispredicted >= 1


def test_fill_that_is_in_the_way_is_cancelled(make_disk: Any) -> None:
    disk = make_disk(6, 1)
    disk.settle()
    gate = threading.Event()
    inside = threading.Event()
    original = disk.ring._fill

    def gated(block: int, slot: int, is_cancelled: Any) -> int:
        if block == 1:
            inside.set()
            assert gate.wait(60)
        return int(original(block, slot, is_cancelled))

    disk.ring._fill = gated
    disk.run_block(0)
    assert inside.wait(60)
    opener = threading.Thread(target=open_when_wanted, args=(disk, gate))
    opener.start()
    disk.run_block(4)
    opener.join()
    assert disk.ring.num_cancelled == 1


def open_when_wanted(disk: FakeDisk, gate: threading.Event) -> None:
    with disk.changed:
        assert disk.changed.wait_for(lambda: disk.ring._is_cancelled, timeout=60)
    gate.set()


def test_fill_that_ended_early_is_not_taken_for_whole_when_it_is_wanted_again(make_disk: Any) -> None:
    disk = make_disk(5, 2)
    for block in range(4):
        disk.run_block(block, disk.settle)
    entered, gate = threading.Event(), threading.Event()
    original = disk.ring._fill

    def ends_early(block: int, slot: int, is_cancelled: Any) -> int:
        if block != 0 or entered.is_set():
            return int(original(block, slot, is_cancelled))
        entered.set()
        with disk.changed:
            assert disk.changed.wait_for(is_cancelled, timeout=60)
        assert gate.wait(60)
        return 0

    disk.ring._fill = ends_early
    disk.run_block(4, disk.settle)
    assert entered.wait(60)
    disk.run_block(1)
    opener = threading.Thread(target=open_when_waiting, args=(disk, gate))
    opener.start()
    disk.run_block(0)
    opener.join()


def open_when_waiting(disk: FakeDisk, gate: threading.Event) -> None:
    with disk.changed:
        assert disk.changed.wait_for(lambda: disk.ring._state.wanted == 0, timeout=60)
    gate.set()


def test_block_called_inside_itself_keeps_its_bytes(make_disk: Any) -> None:
    disk = make_disk(4, 2)
    disk.run_block(0, lambda: disk.run_block(0, disk.settle))
    assert disk.ring.counts(0).visits == 2


def test_block_inside_a_neighbour_with_another_slot(make_disk: Any) -> None:
    disk = make_disk(4, 2)
    disk.run_block(0, lambda: disk.run_block(1, disk.settle))


def test_block_inside_another_with_the_same_slot(make_disk: Any) -> None:
    disk = make_disk(4, 2)
    with pytest.raises(NestedBlocksError) as raised:
        disk.run_block(0, lambda: disk.run_block(2))
    assert str(raised.value) == (
        "block2: a streamed block was called from inside another with the same slot: "
        "got block0 still running, needed one after the other\n"
        "hint: plan again with --pin block2=cpu,resident"
    )
    assert (raised.value.block, raised.value.held) == ("block2", "block0")
    disk.run_block(2)


def test_release_is_idempotent_and_tolerates_no_acquire(make_disk: Any) -> None:
    disk = make_disk(4, 2)
    disk.ring.release(1)
    disk.run_block(0)
    disk.ring.release(0)
    disk.run_block(1, lambda: disk.ring.release(0))


def test_failure_while_reading_ahead_is_raised_by_the_call(make_disk: Any) -> None:
    disk = make_disk(4, 2)
    disk.errors[2] = TruncatedShardError("m.safetensors", offset=96, needed_bytes=8, got_bytes=3)
    disk.run_block(0)
    disk.run_block(1)
    with pytest.raises(StreamError) as raised:
        disk.run_block(2)
    assert str(raised.value) == (
        "block2: block could not be streamed from m.safetensors at offset 96: "
        "got shard ends too early at offset 96"
    )
    assert (raised.value.block, raised.value.file, raised.value.offset) == ("block2", "m.safetensors", 96)
    assert isinstance(raised.value.__cause__, TruncatedShardError)


def test_pass_after_a_failure_is_right(make_disk: Any) -> None:
    disk = make_disk(5, 2)
    disk.errors[3] = OSError(5, "Input/output error")
    with pytest.raises(StreamError) as raised:
        disk.run_pass(range(5))
    assert str(raised.value) == (
        "block3: block could not be streamed: got OSError: [Errno 5] Input/output error"
    )
    for _ in range(2):
        for block in range(5):
            disk.run_block(block, disk.settle)


def test_changed_file_is_named_without_an_offset(make_disk: Any) -> None:
    disk = make_disk(2, 1)
    disk.settle()
    disk.errors[1] = ShardChangedError("m.safetensors")
    disk.run_block(0)
    with pytest.raises(StreamError) as raised:
        disk.run_block(1)
    assert str(raised.value) == (
        "block1: block could not be streamed from m.safetensors: got shard changed after it was checked"
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_reader_thread_that_dies_wakes_its_waiter(make_disk: Any) -> None:
    disk = make_disk(4, 2)
    disk.errors[2] = SystemError("lost")
    disk.run_block(0)
    with pytest.raises(StreamError) as raised:
        disk.run_block(2)
    assert str(raised.value) == "block2: block could not be streamed: got SystemError: lost"


def test_exception_in_a_forward_frees_the_slot(make_disk: Any) -> None:
    disk = make_disk(4, 2)

    def fail() -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        disk.run_block(0, fail)
    for block in range(4):
        disk.run_block(block, disk.settle)


@pytest.mark.parametrize("interrupted", [0, 1, 3])
def test_pass_after_an_interrupt_is_right(make_disk: Any, interrupted: int) -> None:
    disk = make_disk(4, 2)

    def interrupt() -> None:
        raise KeyboardInterrupt

    disk.run_pass(range(interrupted))
    with pytest.raises(KeyboardInterrupt):
        disk.run_block(interrupted, interrupt)
    for _ in range(2):
        for block in range(4):
            disk.run_block(block, disk.settle)


def test_second_thread_inside_a_pass(make_disk: Any) -> None:
    disk = make_disk(4, 2)
    caught: list[BaseException] = []

    def other() -> None:
        try:
            disk.run_block(1)
        except ConcurrentUseError as error:
            caught.append(error)

    def inside() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        disk.settle()

    disk.run_block(0, inside)
    assert [str(error) for error in caught] == [
        "block1: a streamed model was called from two threads at once: "
        "got another thread is inside block0, needed one forward at a time\n"
        "hint: put a lock around the model, or load it once per thread"
    ]
    disk.run_block(1)


def test_threads_that_take_turns(make_disk: Any) -> None:
    disk = make_disk(4, 2)
    for _ in range(2):
        thread = threading.Thread(target=lambda: [disk.run_block(block) for block in range(4)])
        thread.start()
        thread.join()
    assert [disk.ring.counts(block).visits for block in range(4)] == [2, 2, 2, 2]


def test_close_wakes_a_waiter(make_disk: Any) -> None:
    disk = make_disk(4, 1)
    disk.settle()
    entered, gate = threading.Event(), threading.Event()

    def stuck(block: int, slot: int, is_cancelled: Any) -> int:
        entered.set()
        assert gate.wait(60)
        return 0

    disk.ring._fill = stuck
    disk.run_block(0)
    assert entered.wait(60)
    caught: list[BaseException] = []

    def waiter() -> None:
        try:
            disk.run_block(1)
        except ReleasedError as error:
            caught.append(error)

    thread = threading.Thread(target=waiter)
    thread.start()
    with disk.changed:
        assert disk.changed.wait_for(lambda: disk.ring._state.wanted == 1, timeout=60)
    closer = threading.Thread(target=disk.ring.close)
    closer.start()
    thread.join()
    gate.set()
    closer.join()
    assert [str(error) for error in caught] == ["the model was released\nhint: load it again with load_model"]
    assert not disk.ring._thread.is_alive()


def test_call_after_close(make_disk: Any) -> None:
    disk = make_disk(2, 1)
    disk.ring.close()
    disk.ring.close()
    with pytest.raises(ReleasedError, match=r"^the model was released\nhint: load it again with load_model$"):
        disk.run_block(0)


def test_slot_waits_for_its_last_use(make_disk: Any) -> None:
    disk = make_disk(2, 1)
    disk.settle()
    waited: list[list[int]] = []

    class LastUse:
        def synchronize(self) -> None:
            waited.append(list(disk.memory[0]))

    disk.ring.acquire(0)
    disk.ring.release(0, LastUse())
    disk.settle()
    assert waited == [[0, 0, 0, 0]]


def test_forked_child(make_disk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = make_disk(2, 1)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ForkedProcessError) as raised:
        disk.run_block(0)
    disk.ring.close()
    monkeypatch.undo()
    assert str(raised.value) == (
        "block0: a streamed model does not survive fork: "
        "got a forked child process, needed the process that loaded the model\n"
        "hint: load the model in the child, or use the start method `spawn`"
    )
    disk.run_block(0)
