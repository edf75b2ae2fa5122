"""Text to integers at the edges."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsynth.errors import InputError
from collsynth.units import format_size, fraction_text, parse_bandwidth, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "size"),
    [("64", 64), ("1K", 1024), ("1KB", 1024), ("1KiB", 1024), ("1k", 1024), ("1.5M", 3 << 19), ("2g", 2 << 30),
     ("0", 0), (" 8 B ", 8), ("1e3", 1000)],
)  # fmt: skip
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-1", "1.3", "1X", "1KBB", "nan", "inf", "1e99", "9" * 80, "0x10", "1 0"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [("25GB/s", 25 * 10**9), (25, 25 * 10**9), (23.7, 23_700_000_000), ("200Gb/s", 25 * 10**9), ("200G", 25 * 10**9),
     ("12.5", 12_500_000_000), ("1GiB/s", 1 << 30)],
)  # fmt: skip
def test_bandwidths_are_per_second(text: object, bandwidth: int) -> None:
    assert parse_bandwidth(text) == bandwidth  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0", 0, -1, "-5GB/s", "fast", "1GX/s", True, float("nan"), float("inf"), "1e29"])
def test_bad_bandwidths_are_refused(text: object) -> None:
    with pytest.raises(InputError, match="bandwidth"):
        parse_bandwidth(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ps"), [("0.7us", 700_000), (0.7, 700_000), ("500ns", 500_000), ("0", 0), ("1ms", 10**9)]
)
def test_times_are_picoseconds(text: object, ps: int) -> None:
    assert parse_time(text) == ps  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["-1us", -0.5, "soon", "1y", True, float("nan")])
def test_bad_times_are_refused(text: object) -> None:
    with pytest.raises(InputError, match="time"):
        parse_time(text)  # type: ignore[arg-type]


@given(st.integers(0, 1 << 50))
def test_format_size_round_trips(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_fraction_text() -> None:
    assert fraction_text(Fraction(3, 65)) == "3/65"
    assert fraction_text(Fraction(4)) == "4"
