"""How many experts a step needs, and how many of them a cache of slots has: curves, in whole numbers.

Owns what is assumed of routing where nothing was measured. Everything is exact, or rounded to the safe side:
a bound that is made of it is one, the same on every machine. Knows no model and no device.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, isqrt
from typing import NamedTuple

PPM = 10**6

_NUM_TANGENTS = 24
_ROOT_STEPS = 1000
"""Steps between 0 and 1 in which the first tangent's place is rounded."""


class Tangent(NamedTuple):
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


def tangents(count: int, per_token: int) -> tuple[Tangent, ...]:
    """Return lines under the share of misses `1 - (slots / count) ** 0.75`, for a linear program.

    The curve is convex, so the highest of the lines is near it and never above, for any number of slots.

    Args:
        count: Experts of a layer.
        per_token: Slots below which there is no cache: the lines touch the curve between there and `count`.

    Returns:
        `_NUM_TANGENTS`, from the fewest slots to the most; one where a token needs all experts.
    """
    assert 1 <= per_token <= count
    # At c = t ** 4 both numbers are rational: 1 - t ** 3 / 4 and 3 / (4 t).
    first = Fraction(max(1, isqrt(isqrt(_ROOT_STEPS**4 * per_token // count))), _ROOT_STEPS)
    lines = []
    for number in range(_NUM_TANGENTS):
        root = first + (1 - first) * Fraction(number, _NUM_TANGENTS - 1)
        alpha_ppm = PPM - ceil(PPM * root**3 / 4)
        lines.append(Tangent(alpha_ppm, ceil(3 * PPM / (4 * root))))
    return tuple(dict.fromkeys(lines))
