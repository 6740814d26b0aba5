"""Whether predicted times are numbers that a plan can hold: rates far from any machine's make others."""

from __future__ import annotations

import msgspec

from bayplan.planner.solve.predict import Prediction
from bayplan.schemas.errors import UsageError
from bayplan.schemas.sizes import format_duration_ns
from bayplan.schemas.types import MAX_INTEGER


def representable(prediction: Prediction) -> Prediction:
    """Return `prediction`.

    Raises:
        UsageError: A time is longer than a plan can say.
    """
    times = [own for own in msgspec.structs.astuple(prediction) if own is not None]
    longest_ns = max(times)
    if longest_ns > MAX_INTEGER:
        raise UsageError(
            "the machine is too slow for a plan",
            where="the inventory's rates and latencies",
            got=f"a predicted time of {format_duration_ns(longest_ns)}",
            needed=f"at most {format_duration_ns(MAX_INTEGER)}",
            hint="rates are in bytes and operations per second, latencies in nanoseconds",
        )
    return prediction
