from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planner.solve.expert_curves import (
    PPM,
    chords,
    default_hit_ppm,
    distinct_experts,
    distinct_experts_ppm,
    least_hit_ppm,
)

PUBLISHED = {
    "gpt-oss-120b, one cache for all layers (BigMoeOnEdge #33)": [(30, 85)],
    "GLM-5.2, 8 of 256 (colibri #223)": [(31, 94)],
    "GLM-5.2, 4 bit (mlx-lm #1438)": [(50, 240), (190, 600)],
    "DeepSeek-V4-Flash (llama.cpp #25294)": [(93, 690), (125, 733), (156, 750)],
    "Gemma-4-26B-A4B (omlx #2595)": [(125, 450), (250, 670), (500, 890)],
    "Qwen3.8-Flash-Next (llama.cpp #27861)": [(125, 670), (250, 810)],
    "Qwen3.8-Flash-Next, cold misses included (imp #2061)": [(180, 435), (360, 620), (540, 720), (730, 789)],
    "Qwen3.6-35B-A3B (turboquant-mlx #11)": [(140, 600), (550, 910)],
    "Qwen3.6-35B-A3B (mlx-lm #1438)": [(300, 510)],
    "Qwen3-30B-A3B, after 64 tokens (imp #1359)": [(400, 900)],
}
"""Thousandths of the experts cached, and of the needed ones found there; real text, as their authors say."""


@st.composite
def layers(draw: st.DrawFn) -> tuple[int, int]:
    """Return experts, and those that a token is routed to."""
    count = draw(st.integers(1, 600))
    return count, draw(st.integers(1, count))


@pytest.mark.parametrize(
    ("count", "per_token", "num_tokens", "expected"),
    [
        (128, 8, 0, 0),
        (128, 8, 1, 8),
        (128, 8, 8, 52),
        (128, 8, 32, 112),
        (128, 8, 128, 128),
        (256, 8, 8, 58),
        (256, 8, 32, 164),
        (256, 8, 128, 252),
        (8, 8, 1, 8),
        (8, 2, 2, 4),
        (4, 1, 2, 2),
    ],
)
def test_distinct_experts(count: int, per_token: int, num_tokens: int, expected: int) -> None:
    assert distinct_experts(count, per_token, num_tokens) == expected


def test_distinct_experts_of_whole_and_broken_numbers() -> None:
    assert distinct_experts_ppm(8, 2, 2) == 3_500_000
    assert distinct_experts_ppm(3, 1, 2) == 1_666_667


@given(layers(), st.integers(0, 3000))
def test_distinct_experts_are_what_the_formula_says(layer: tuple[int, int], num_tokens: int) -> None:
    count, per_token = layer
    exact = count * (1 - (1 - Fraction(per_token, count)) ** num_tokens)
    assert 0 <= distinct_experts(count, per_token, num_tokens) - exact < 1
    assert 0 <= distinct_experts_ppm(count, per_token, num_tokens) - PPM * exact < 1


@given(layers(), st.integers(0, 2**15))
def test_more_tokens_never_need_fewer_experts(layer: tuple[int, int], num_tokens: int) -> None:
    fewer, more = (distinct_experts_ppm(*layer, number) for number in (num_tokens, num_tokens + 1))
    assert fewer <= more <= PPM * layer[0]


@pytest.mark.parametrize(
    ("slots", "least", "default"),
    [
        (0, 0, 0),
        (7, 0, 0),
        (8, 31_250, 74_325),
        (16, 62_500, 125_000),
        (81, 316_406, 421_875),
        (128, 500_000, 594_603),
        (256, PPM, PPM),
    ],
)
def test_hits_of_a_cache(slots: int, least: int, default: int) -> None:
    assert least_hit_ppm(slots, 256, 8) == least
    assert default_hit_ppm(slots, 256, 8) == default


@given(layers(), st.data())
def test_hits_are_the_roots_rounded_down(layer: tuple[int, int], data: st.DataObject) -> None:
    count, per_token = layer
    slots = data.draw(st.integers(per_token, count))
    hit = default_hit_ppm(slots, count, per_token)
    exact = PPM**4 * Fraction(slots, count) ** 3
    assert hit**4 <= exact < (hit + 1) ** 4
    least = least_hit_ppm(slots, count, per_token)
    assert least <= PPM * Fraction(slots, count) < least + 1
    assert least <= hit


@pytest.mark.parametrize("source", PUBLISHED)
def test_no_published_cache_found_less(source: str) -> None:
    """But for a thousandth, to which the published shares are rounded."""
    for slots, hit in PUBLISHED[source]:
        assert default_hit_ppm(slots, 1000, 1) <= 1000 * (hit + 1)


def test_chords_from_the_fewest_slots_to_the_most() -> None:
    found = chords(256, 8)
    assert len(found) == 23
    assert sorted(found, reverse=True) == list(found)
    # Between all experts but one and all of them.
    assert found[-1].beta_ppm == 256 * (PPM - default_hit_ppm(255, 256, 8))
    assert len(chords(8, 2)) == 6
    assert chords(8, 8) == ((0, 0),)


@given(layers())
def test_chords_never_lie_above_what_is_missed(layer: tuple[int, int]) -> None:
    count, per_token = layer
    for alpha_ppm, beta_ppm in chords(count, per_token):
        for slots in range(per_token, count + 1):
            line = alpha_ppm - Fraction(beta_ppm * slots, count)
            assert line <= PPM - default_hit_ppm(slots, count, per_token)


@given(layers(), st.data())
def test_the_highest_chord_is_near_what_is_missed(layer: tuple[int, int], data: st.DataObject) -> None:
    """Exact, but for the rounding of the curve, of few experts; of many, within half a percent."""
    count, per_token = layer
    slots = data.draw(st.integers(per_token, count))
    highest = max(alpha - Fraction(beta * slots, count) for alpha, beta in chords(count, per_token))
    missed = PPM - default_hit_ppm(slots, count, per_token)
    assert missed - highest <= (2 * count if count - per_token <= 24 else 5_000)
