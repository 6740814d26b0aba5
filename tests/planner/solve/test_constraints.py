from __future__ import annotations

import pytest
from placement_problems import make_chain, make_cost, make_form

from bayplan.planner.solve.constraints import Constraints, resolve
from bayplan.schemas.errors import UsageError
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Reason, Residency

RESIDENT, HOST, DISK = Residency.RESIDENT, Residency.STREAM_HOST, Residency.STREAM_DISK
TWO_FORMS = make_cost(64, others=[make_form(16, "nf4", quantized_bytes=64)])
CHAIN = make_chain([64, TWO_FORMS, make_cost(64, resident_reason=Reason.TIED), 0])
GPU = "node0/gpu0"


def test_no_demands() -> None:
    none = (None,) * 4
    constraints = resolve(CHAIN, (), no_spill=False)
    assert constraints == Constraints(device=none, residency=none, form=none, no_spill=False)
    assert [constraints.residencies(CHAIN, index) for index in range(4)] == [
        (RESIDENT, HOST, DISK),
        (RESIDENT, HOST, DISK),
        (RESIDENT,),
        (RESIDENT,),
    ]
    assert [constraints.forms(CHAIN, index) for index in range(4)] == [(0,), (0, 1), (0,), (0,)]


def test_a_pattern_crosses_dots_and_the_last_pin_that_says_something_holds() -> None:
    pins = (
        Pin(pattern="*", device=GPU, residency=RESIDENT),
        Pin(pattern="l*.1", device="node0/cpu", format="nf4"),
        Pin(pattern="layers.[01]", residency=DISK),
    )
    constraints = resolve(CHAIN, pins, no_spill=False)
    assert constraints.device == (GPU, "node0/cpu", GPU, GPU)
    assert constraints.residency == (DISK, DISK, RESIDENT, RESIDENT)
    assert constraints.form == (None, 1, None, None)
    assert [constraints.must_stream(index) for index in range(4)] == [True, True, False, False]
    assert constraints.residencies(CHAIN, 0) == (DISK,)
    assert constraints.forms(CHAIN, 1) == (1,)


def test_what_may_stream() -> None:
    constraints = resolve(CHAIN, (Pin(pattern="layers.1", residency=RESIDENT),), no_spill=False)
    assert [constraints.may_stream(CHAIN, index) for index in range(4)] == [True, False, False, False]
    constraints = resolve(CHAIN, (), no_spill=True)
    assert not any(constraints.may_stream(CHAIN, index) for index in range(4))


def test_a_format_pin_says_nothing_to_a_block_with_one_form() -> None:
    pins = (Pin(pattern="*", format="nf4"),)
    assert resolve(CHAIN, pins, no_spill=False).form == (None, 1, None, None)


def test_the_same_demand_twice_is_one() -> None:
    pins = (Pin(pattern="*.0", device=GPU), Pin(pattern="*.0", device=GPU, residency=HOST))
    assert resolve(CHAIN, pins, no_spill=False).residency[0] is HOST


def test_a_pin_matches_no_block() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CHAIN, (Pin(pattern="Layers.*", device=GPU),), no_spill=False)
    assert str(caught.value) == (
        "--pin Layers.*: the pin matches no block: needed a pattern for block ids such as layers.2"
    )


@pytest.mark.parametrize(
    ("one", "other", "got", "field"),
    [
        ({"device": GPU}, {"device": "node0/cpu"}, "node0/gpu0 and node0/cpu", "device"),
        ({"residency": HOST}, {"residency": DISK}, "stream-host and stream-disk", "residency"),
        ({"format": "bf16"}, {"format": "nf4"}, "bf16 and nf4", "format"),
    ],
)
def test_two_pins_demand_different_things_of_the_same_pattern(
    one: dict[str, str], other: dict[str, str], got: str, field: str
) -> None:
    pins = (Pin(pattern="*.1", **one), Pin(pattern="*", device=GPU), Pin(pattern="*.1", **other))
    with pytest.raises(UsageError) as caught:
        resolve(CHAIN, pins, no_spill=False)
    assert str(caught.value) == (
        f"--pin: two pins demand different things of *.1: got {got}, needed one {field}"
    )


def test_a_pin_makes_a_block_stream_that_must_stay() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CHAIN, (Pin(pattern="*.2", residency=DISK),), no_spill=False)
    assert str(caught.value) == (
        "--pin for layers.2: the pin makes a block stream that must stay: "
        "got stream-disk, needed resident (tied)"
    )


def test_a_pin_makes_a_block_stream_while_spilling_is_forbidden() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CHAIN, (Pin(pattern="*.1", residency=DISK),), no_spill=True)
    assert str(caught.value) == (
        "--pin for layers.1: the pin makes a block stream that must stay: "
        "got stream-disk, needed resident (--no-spill)"
    )


def test_a_pin_demands_a_format_that_the_block_cannot_have() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CHAIN, (Pin(pattern="*.1", format="int8"),), no_spill=False)
    assert str(caught.value) == (
        "--pin for layers.1: the block cannot have the format that it is pinned to: "
        "got int8, needed one of bf16, nf4"
    )
