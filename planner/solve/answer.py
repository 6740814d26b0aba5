"""A placement as the solver handles it: for every block a device, a residency and a form.

Anything can be written so, also a placement that is not contiguous or does not fit; what it costs is for
`timeline` and `needs` to say.
"""

from __future__ import annotations

import msgspec

from bayplan.planner.solve.experts import SplitExperts
from bayplan.schemas.types import Residency


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Where one block is and computes."""

    device: int
    """Place in the machine's chain order."""
    residency: Residency = Residency.RESIDENT
    form: int = 0
    """Which of the block's forms."""
    experts: SplitExperts | None = None
    """None: routed experts, if there are any, are where the rest of the block is."""

    @property
    def streams(self) -> bool:
        """Whether its weights are brought in before each visit."""
        return self.residency is not Residency.RESIDENT


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A placement of the whole chain."""

    choices: tuple[Choice, ...]
    """Per block, in execution order."""
    num_slots: tuple[int, ...]
    """Per device of the machine; used where something streams."""

    @property
    def splits_experts(self) -> bool:
        """Whether the experts of any block are apart from it."""
        return any(choice.experts is not None for choice in self.choices)

    def blocks_on(self, device: int) -> tuple[int, ...]:
        """Return the positions of the blocks that compute on `device`, ascending."""
        return tuple(index for index, choice in enumerate(self.choices) if choice.device == device)

    def streamed_on(self, device: int) -> tuple[int, ...]:
        """Return the positions of the blocks that stream to `device`, ascending."""
        return tuple(
            index for index, choice in enumerate(self.choices) if choice.device == device and choice.streams
        )
