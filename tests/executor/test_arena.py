from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayplan.executor.arena import Arena, Slots
from bayplan.executor.errors import MemoryBudgetError
from bayplan.schemas.plan import ALIGNMENT_BYTES


@given(st.lists(st.integers(0, 300), max_size=20))
def test_pieces_are_aligned_and_do_not_overlap(sizes: list[int]) -> None:
    arena = Arena(sum(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes))
    regions = [arena.carve(size) for size in sizes]
    for number, region in enumerate(regions):
        region.memory()[:] = bytes([number]) * region.num_bytes
    assert [region.address % ALIGNMENT_BYTES for region in regions] == [0] * len(sizes)
    assert [bytes(region.memory()) for region in regions] == [
        bytes([number]) * size for number, size in enumerate(sizes)
    ]
    assert arena._used_bytes == arena.num_bytes


def test_tensor_sees_what_is_read_into_its_region() -> None:
    region = Arena(64).carve(8)
    tensor = region.tensor(torch.int32, (2, 1))
    region.memory()[:] = (7).to_bytes(4, "little") + (9).to_bytes(4, "little")
    assert tensor.tolist() == [[7], [9]]
    assert tensor.data_ptr() == region.address


def test_each_tensor_has_a_storage_of_its_own_size() -> None:
    arena = Arena(128)
    first, second = arena.carve(8).tensor(torch.float32, (2,)), arena.carve(4).tensor(torch.float32, (1,))
    assert first.untyped_storage().nbytes() == 8
    assert second.untyped_storage().nbytes() == 4
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_tensor_made_in_inference_mode_is_an_ordinary_one() -> None:
    with torch.inference_mode():
        tensor = Arena(64).carve(8).tensor(torch.float32, (2,))
        empty = Arena(64).carve(0).tensor(torch.float32, (0, 3))
    assert not tensor.is_inference()
    assert not empty.is_inference()
    assert empty.shape == (0, 3)


def test_memory_returns_when_the_last_tensor_is_gone() -> None:
    arena = Arena(4096)
    tensor = arena.carve(8).tensor(torch.float32, (2,))
    mapping = weakref.ref(tensor_owner(arena))
    arena.close()
    arena.close()
    gc.collect()
    assert mapping() is not None
    del tensor
    gc.collect()
    assert mapping() is None


def tensor_owner(arena: Arena) -> object:
    assert arena._region is not None
    return arena._region._mapping


def test_slots_are_found_by_address() -> None:
    arena = Arena(64 + 2 * 128)
    before = arena.carve(64)
    slots = Slots(arena, num_slots=2, slot_bytes=100)
    assert slots.slot_bytes == 128
    assert slots.slot_at(slots.region(0).address) == 0
    assert slots.slot_at(slots.region(1).address + 127) == 1
    assert slots.slot_at(before.address) is None
    assert arena.holds(before.address)
    assert not arena.holds(before.address + arena.num_bytes)


def test_memory_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.executor.arena.host_available_bytes", lambda: 3 * 2**30)
    with pytest.raises(MemoryBudgetError) as raised:
        Arena(2**62, device="node0/cpu")
    assert str(raised.value) == (
        "node0/cpu: not enough free memory for the plan: got 3.00 GiB, needed 4096.00 PiB\n"
        "hint: stop other processes, or plan again with a smaller --max-memory"
    )
    assert (raised.value.device, raised.value.needed_bytes, raised.value.available_bytes) == (
        "node0/cpu",
        2**62,
        3 * 2**30,
    )
