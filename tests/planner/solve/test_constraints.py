from __future__ import annotations

import pytest
from placement_problems import make_chain, make_cost

from bayplan.planner.solve.constraints import STREAM_TIERS, Constraints, pinned_reason, resolve
from bayplan.schemas.errors import UsageError
from bayplan.schemas.plan import Pin
from bayplan.schemas.types import Reason, Residency

CHAIN = make_chain([64, 64, make_cost(64, resident_reason=Reason.TIED), 0])
GPU = "node0/gpu0"


def test_no_demands() -> None:
    assert resolve(CHAIN, (), no_spill=False) == Constraints(
        device=(None,) * 4,
        must_stay=(False, False, True, False),
        must_stream=(False,) * 4,
        no_spill=False,
        tiers=STREAM_TIERS,
    )


def test_a_pattern_crosses_dots_and_the_last_pin_that_says_something_holds() -> None:
    pins = (
        Pin(pattern="*", device=GPU, residency=Residency.RESIDENT),
        Pin(pattern="l*.1", device="node0/cpu"),
        Pin(pattern="layers.[01]", residency=Residency.STREAM_DISK),
    )
    constraints = resolve(CHAIN, pins, no_spill=False)
    assert constraints.device == (GPU, "node0/cpu", GPU, GPU)
    assert constraints.must_stream == (True, True, False, False)
    assert constraints.must_stay == (False, False, True, True)
    assert constraints.tiers == (Residency.STREAM_DISK,)


def test_what_may_stream() -> None:
    constraints = resolve(CHAIN, (Pin(pattern="layers.1", residency=Residency.RESIDENT),), no_spill=False)
    assert [constraints.may_stream(CHAIN, index) for index in range(4)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("pin", "reason"),
    [
        (Pin(pattern="layers.0", device=GPU), None),
        (Pin(pattern="layers.0", residency=Residency.STREAM_HOST), Reason.PINNED),
        (Pin(pattern="layers.0", residency=Residency.RESIDENT), None),
        (Pin(pattern="layers.1", device=GPU), None),
    ],
)
def test_pinned_reason(pin: Pin, reason: Reason | None) -> None:
    assert pinned_reason(resolve(CHAIN, (pin,), no_spill=False), 0) is reason


def test_a_pin_matches_no_block() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CHAIN, (Pin(pattern="Layers.*", device=GPU),), no_spill=False)
    assert str(caught.value) == (
        "--pin Layers.*: the pin matches no block: needed a pattern for block ids such as layers.2"
    )


def test_a_pin_makes_a_block_stream_that_must_stay() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CHAIN, (Pin(pattern="*.2", residency=Residency.STREAM_DISK),), no_spill=False)
    assert str(caught.value) == (
        "--pin for layers.2: the pin makes a block stream that must stay: "
        "got stream-disk, needed resident (tied)"
    )


def test_a_pin_makes_a_block_stream_while_spilling_is_forbidden() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CHAIN, (Pin(pattern="*.1", residency=Residency.STREAM_DISK),), no_spill=True)
    assert str(caught.value) == (
        "--pin for layers.1: the pin makes a block stream that must stay: "
        "got stream-disk, needed resident (--no-spill)"
    )


def test_pins_make_blocks_stream_from_more_than_one_tier() -> None:
    pins = (
        Pin(pattern="*.1", residency=Residency.STREAM_DISK),
        Pin(pattern="*.0", residency=Residency.STREAM_HOST),
    )
    with pytest.raises(UsageError) as caught:
        resolve(CHAIN, pins, no_spill=False)
    assert str(caught.value) == (
        "--pin: the pins make blocks stream from more than one tier: "
        "got stream-host and stream-disk, needed one of them for all"
    )
