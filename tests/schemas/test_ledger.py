from __future__ import annotations

from bayplan.schemas.plan import Ledger


def test_totals_are_of_the_upper_bounds() -> None:
    ledger = Ledger(
        weights=(0, 1),
        kv=(5, 10),
        activations=(0, 100),
        staging=(7, 1000),
        load_transient=(0, 10_000),
        runtime=(9, 100_000),
    )
    assert ledger.budgeted_bytes == 11_111
    assert ledger.peak_bytes == 111_111
