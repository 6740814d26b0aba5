"""What each reason of a plan says to a person: one text for every member of the closed list.

Owns the words only; `bayplan.schemas.types.Reason` owns the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bayplan.schemas.types import Reason

REASON_TEXTS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.FITS: "the whole model fits, so nothing streams",
        Reason.KEPT: "part of the model must stream; this one fills the rest of the budget",
        Reason.EXPERTS_APART: "its experts do not fit, so they wait elsewhere or the host computes them",
        Reason.CAPACITY: "not every block fits; to stream this one is part of the fastest placement",
        Reason.TIED: "holds a weight that another block uses too; tied weights are never streamed",
        Reason.USED_OUTSIDE: "another module reads its weights, so they must be there at all times",
        Reason.REPEATED: "called more than once in a forward",
        Reason.NOT_CALLED: "never called in the traced forward; its weights may still be read",
        Reason.CONDITIONAL: "called only with images or sound, so no step can count on its turn",
        Reason.UNTRACED: "no forward could be traced, so its weights may be read at any time",
        Reason.OWN_TENSORS: "tensors that a split module holds itself; no call brings them in",
        Reason.MUTATED: "holds buffers that a forward changes; streaming would lose the change",
        Reason.TOO_LARGE: "larger than a slot may be under this budget",
        Reason.PINNED: "put there by the user",
    }
)
"""One clause for each reason, without a full stop."""
