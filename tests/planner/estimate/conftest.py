"""Readings that cost nothing: estimates are tested on a model made by hand."""

from __future__ import annotations

import pytest
from sized_models import StandInReader


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> StandInReader:
    return StandInReader(monkeypatch)
