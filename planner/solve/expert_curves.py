"""How many experts a step needs, and how many of them a cache of slots has: curves, in whole numbers.

Owns what is assumed of routing where nothing was measured. Everything is exact, or rounded to the safe side:
a bound that is made of it is one, the same on every machine. Knows no model and no device.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

PPM = 10**6

_NUM_CHORDS = 24


class Chord(NamedTuple):
    """A line that the share of misses never lies below: `alpha_ppm - beta_ppm * slots / count`, in ppm."""

    alpha_ppm: int
    beta_ppm: int
    """For a cache of all experts; of one slot, a `count`-th."""


def distinct_experts_ppm(count: int, per_token: int, num_tokens: int) -> int:
    """Return how many experts some tokens need together, expected, in millionths of an expert.

    `count (1 - (1 - per_token / count) ** num_tokens)`: each token goes to any of them alike, whatever the
    others do. Experts that are preferred, and tokens that resemble each other, make it less, so that it is an
    upper bound of what is read for a batch or a chunk.

    Args:
        count: Experts of a layer.
        per_token: Those that a token is routed to; 1 to `count`.
        num_tokens: Positions in one call.

    Returns:
        Rounded up.
    """
    assert 1 <= per_token <= count
    # From here on what is left is less than a millionth: (1 - k/E)^n <= e^(-kn/E) < 2^(-kn/E).
    if num_tokens * per_token >= count * (PPM * count).bit_length():
        return PPM * count
    left: int = PPM * count * (count - per_token) ** num_tokens // count**num_tokens
    return PPM * count - left


def distinct_experts(count: int, per_token: int, num_tokens: int) -> int:
    """Return `distinct_experts_ppm` in whole experts, rounded up."""
    # Not from the millionths, which may be rounded up beyond a whole number.
    assert 1 <= per_token <= count
    if num_tokens * per_token >= count * count.bit_length():
        return count
    left: int = count * (count - per_token) ** num_tokens // count**num_tokens
    return count - left


def least_hit_ppm(slots: int, count: int, per_token: int) -> int:
    """Return the share of needed experts that a cache has at least, in ppm, rounded down.

    `slots / count`: what any policy reaches when tokens go to all experts alike and remember nothing. Nothing
    is found in fewer slots than one token needs: its experts drive each other out before they come again.

    Args:
        slots: Experts that a layer's cache holds, 0 to `count`.
        count: Experts of the layer.
        per_token: Those that a token is routed to.
    """
    assert 0 <= slots <= count
    return PPM * slots // count if slots >= per_token else 0


def default_hit_ppm(slots: int, count: int, per_token: int) -> int:
    """Return the share of needed experts that a cache is taken to have, in ppm, rounded down.

    `(slots / count) ** 0.75`, where nothing was measured, for one sequence at a time and the least recently
    used going first. Chosen, not derived: it lies under what is published of real text on gpt-oss-120b,
    GLM-5.2, DeepSeek-V4-Flash, Gemma-4-26B, Qwen3-30B, Qwen3.6-35B and Qwen3.8-Flash-Next, with .03 to .73 of
    their experts cached; at one point, which counts the first misses too, a thousandth over it. The points
    are in tests/planner/solve/test_expert_curves.py.

    Args:
        slots: As for `least_hit_ppm`.
        count: As for `least_hit_ppm`.
        per_token: As for `least_hit_ppm`.
    """
    assert 0 <= slots <= count
    if slots < per_token:
        return 0
    return isqrt(isqrt(PPM**4 * slots**3 // count**3))


def chords(count: int, per_token: int) -> tuple[Chord, ...]:
    """Return lines under the share of misses that `default_hit_ppm` leaves, for an integer program.

    The share is convex, so a line through two neighbouring numbers of slots is above it between them only,
    where no cache is; the highest of the lines is exact at both.

    Args:
        count: Experts of a layer.
        per_token: Slots below which there is no cache.

    Returns:
        Through every two neighbours from `per_token` to `count`, or through `_NUM_CHORDS` pairs of them,
        closer where there are few slots.
    """
    assert 1 <= per_token <= count
    numbers = list(range(per_token, count))
    if len(numbers) > _NUM_CHORDS:
        steps = [(number / (_NUM_CHORDS - 1)) ** 2 for number in range(_NUM_CHORDS)]
        numbers = [per_token + round((len(numbers) - 1) * step) for step in steps]
    missing = [PPM - default_hit_ppm(slots, count, per_token) for slots in range(count + 1)]
    lines = []
    for slots in dict.fromkeys(numbers):
        beta_ppm = count * (missing[slots] - missing[slots + 1])
        # Rounded to millionths, the curve is not quite convex.
        alpha_ppm = min(
            (count * missing[other] + beta_ppm * other) // count for other in range(per_token, count + 1)
        )
        lines.append(Chord(alpha_ppm, beta_ppm))
    return tuple(dict.fromkeys(lines)) or (Chord(0, 0),)
