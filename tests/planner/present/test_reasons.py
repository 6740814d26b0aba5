"""Every reason has its own text."""

from __future__ import annotations

from bayplan.planner.present.reasons import REASON_TEXTS
from bayplan.schemas.types import Reason


def test_every_reason_has_a_text_of_its_own() -> None:
    assert list(REASON_TEXTS) == list(Reason)
    assert len(set(REASON_TEXTS.values())) == len(Reason)
    assert all(text and text[-1] != "." for text in REASON_TEXTS.values())
