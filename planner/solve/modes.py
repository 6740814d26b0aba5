"""Words that the modules of the placement's program share: its units, variables and solutions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.planner.solve.answer import Choice
from bayplan.planner.solve.experts import ExpertsResidency
from bayplan.schemas.problem import BlockForm

MILLISECOND = 1_000_000
"""Times are given to the solver in milliseconds, bytes in units that `Draft` chooses: numbers neither large
nor small."""

SLOT_COUNTS = (1, 2, 3)
"""Slots that a streaming device may have. One is the least memory and no overlap; evenly spaced blocks reach
the bound with two; a third evens out unequal ones."""

Term = tuple[int, float]
"""Variable and factor."""


class Rounding(msgspec.Struct, frozen=True, kw_only=True):
    """How a program is made stricter than it is, so that its answer fits exactly."""

    margin_bytes: int
    """Kept free of every budget, against the solver's tolerance; where all is less than a GiB, as large a
    share of its unit."""
    is_above: bool
    """Whether activations are rounded up to the rungs of the ladder instead of down."""


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """Which ways a program looks at, of all there are: it bounds nothing, but may give a better begin."""

    slot_counts: tuple[int, ...] = SLOT_COUNTS
    experts: tuple[ExpertsResidency, ...] = tuple(ExpertsResidency)
    """Where experts may live apart from their block."""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """One way to have blocks of a kind on a device."""

    kind: int
    choice: Choice
    variable: int
    """How many blocks."""
    form: BlockForm
    compute_ns: int
    """With experts apart, until it is known which are needed."""
    transfer_ns: int
    """0 where resident."""
    slots: int | None = None
    """Variable of the cache slots of all these blocks together; None: no experts are cached."""
    fetch: int | None = None
    """Variable of the milliseconds in which experts that the caches lack are brought in."""


class Fetching(msgspec.Struct, frozen=True, kw_only=True):
    """Experts of one mode's blocks."""

    kind: int
    variable: int
    """Milliseconds in which they are brought in or compute: the longer one."""
    longest_ms: float
    """Of it, if the caches were empty."""


class StreamingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of kinds of which blocks can stream."""

    group: int
    switch: int
    """Variable: whether any does."""
    compute_ms: float
    """Least of one block."""
    transfer_ms: float
    """Likewise."""
    longest_ms: float
    """Transfer of one block at most."""


class Stage(msgspec.Struct, kw_only=True):
    """Variables of one device."""

    device: int
    is_used: int
    window: int
    """Milliseconds from its first block's begin to its last block's end."""
    modes: list[Mode]
    slots: dict[tuple[int, int], int]
    """Number of slots and their size -> switch."""
    memory: list[Term]
    """Units of bytes that it takes."""
    fetching: list[Fetching]
    early: list[tuple[Mode, int]]
    """Per streaming mode, how many of its blocks are there when the window opens."""

    def longest_ms(self, count: Mapping[int, int]) -> float:
        """Return more than all computing and fetching can take, in milliseconds."""
        computing = sum(count[mode.kind] * mode.compute_ns for mode in self.modes) / MILLISECOND
        return computing + sum(own.longest_ms for own in self.fetching)

    @property
    def streamed(self) -> list[Mode]:
        """Modes in which blocks stream."""
        return [mode for mode in self.modes if mode.choice.streams]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """A solution of the program."""

    cuts: tuple[int, ...]
    """Where each device's blocks end, in chain order."""
    modes: tuple[tuple[tuple[int, Choice, int], ...], ...]
    """Per device: kind, choice and how many blocks, in the order of the modes."""
    num_slots: tuple[int, ...]
    bound: float
    """Of the objective that was minimised."""
