from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.schemas.errors import ExitCode
from bayplan.schemas.sizes import SizeError, format_duration_ns, format_size, parse_rate, parse_size
from bayplan.schemas.types import MAX_INTEGER

UNITS_HINT = "hint: KiB, MiB, GiB, TiB, PiB count in 1024s; kB, MB, GB, TB, PB in 1000s; case counts"
NOT_SIZES = [
    "", " ", "GiB", "ten", "-1", "+1", "1Gib", "1gib", "1gb", "5MBB", "1e3GB", "1e3", "nan", "inf",
    "0x10", "1_000", "1,5GB", "1.GB", ".5GB", "1.5", "1.5B", "1.5 ", " 1GB", "1GB ", "1  GB",
    "1\tGB", "1\u00a0GB", "1GB\n", "\u0661GB", "\u00b2", "1G", "1Gi", "1EiB", "1GB/s", "1GB 2MB",
    "1" * 21, "1." + "1" * 21 + "GB",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("20GiB", 20 * 2**30),
        ("20 GiB", 20 * 2**30),
        ("20GB", 20 * 10**9),
        ("20 GB", 20 * 10**9),
        ("1.5TiB", 3 * 2**39),
        ("1.5TB", 15 * 10**11),
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("007", 7),
        ("1KiB", 1024),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1MiB", 2**20),
        ("1MB", 10**6),
        ("1PiB", 2**50),
        ("1PB", 10**15),
        ("0.1GB", 100_000_000),
        ("4.35GB", 4_350_000_000),
        ("0.3KiB", 307),
        ("1.0009kB", 1000),
        (str(MAX_INTEGER), MAX_INTEGER),
    ],
)
def test_parse_size(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", NOT_SIZES)
def test_not_a_size(text: str) -> None:
    with pytest.raises(SizeError) as caught:
        parse_size(text, where="--max-memory cpu")
    assert caught.value.exit_code is ExitCode.USAGE
    assert str(caught.value) == (
        f"--max-memory cpu: not a size: got {json.dumps(text)}, "
        f"needed a size such as 20GiB, 20GB, 20 GiB, 1.5TiB, or plain bytes\n{UNITS_HINT}"
    )


@pytest.mark.parametrize("text", ["8PiB", str(MAX_INTEGER + 1)])
def test_size_too_large(text: str) -> None:
    with pytest.raises(SizeError) as caught:
        parse_size(text, where="--host-memory")
    assert (
        str(caught.value)
        == f'--host-memory: size too large: got "{text}", needed at most {MAX_INTEGER} bytes'
    )


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 999),
    st.sampled_from([("MiB", 2**20), ("GB", 10**9), ("kB", 10**3)]),
)
def test_parse_size_is_exact(whole: int, thousandths: int, unit: tuple[str, int]) -> None:
    name, unit_bytes = unit
    exact = Fraction(whole * 1000 + thousandths, 1000) * unit_bytes
    assert parse_size(f"{whole}.{thousandths:03d}{name}") == exact.numerator // exact.denominator


@pytest.mark.parametrize(
    ("text", "rate"),
    [("3GB/s", 3 * 10**9), ("3.5 GB/s", 35 * 10**8), ("500MiB/s", 500 * 2**20), ("7kB/s", 7000), ("1B/s", 1)],
)
def test_parse_rate(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "/s", "3GB", "3000", "3/s", "3Gb/s", "3 GB /s", "3GB/s/s", "3GB/S", "-3GB/s", "0B/s", "0.1B/s"],
)
def test_not_a_rate(text: str) -> None:
    with pytest.raises(SizeError) as caught:
        parse_rate(text, where="--disk")
    assert str(caught.value) == (
        f'--disk: not a rate: got "{text}", needed a rate such as 3GB/s, 3.5 GB/s or 500MiB/s\n{UNITS_HINT}'
    )


def test_rate_too_large() -> None:
    with pytest.raises(SizeError) as caught:
        parse_rate("8PiB/s", where="--disk")
    assert str(caught.value) == f'--disk: rate too large: got "8PiB/s", needed at most {MAX_INTEGER} bytes/s'


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (2**20 - 6, "1023.99 KiB"),
        (2**20 - 5, "1.00 MiB"),
        (2**20, "1.00 MiB"),
        (2_254_857_831, "2.10 GiB"),
        (2**40 - 1, "1.00 TiB"),
        (3 * 2**60, "3072.00 PiB"),
        (-(2**30), "-1.00 GiB"),
        (1029, "1.00 KiB"),
        (1030, "1.01 KiB"),
    ],
)
def test_format_size(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text


@settings(deadline=None)
@given(st.integers(0, MAX_INTEGER - 2**45))
def test_printed_size_reads_back_within_half_a_hundredth(num_bytes: int) -> None:
    number, unit = format_size(num_bytes).split()
    tolerance = parse_size(f"0.005{unit}") + 1 if unit != "B" else 0
    assert abs(parse_size(f"{number} {unit}") - num_bytes) <= tolerance
    assert Fraction(number) < 1024


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.0 us"),
        (999_949, "999.9 us"),
        (999_950, "1.0 ms"),
        (38_900_000, "38.9 ms"),
        (999_949_999, "999.9 ms"),
        (999_950_000, "1.0 s"),
        (59_949_999_999, "59.9 s"),
        (59_950_000_000, "1 min 00 s"),
        (125_000_000_000, "2 min 05 s"),
        (3_599_499_999_999, "59 min 59 s"),
        (3_599_500_000_000, "1 h 00 min"),
        (3_720_000_000_000, "1 h 02 min"),
        (360_000_000_000_000, "100 h 00 min"),
        (-38_900_000, "-38.9 ms"),
    ],
)
def test_format_duration(duration_ns: int, text: str) -> None:
    assert format_duration_ns(duration_ns) == text
