"""Text to integers and back: the only place where units are read or printed.

Inside collsynth every quantity is an integer: sizes in bytes, bandwidths in bytes per second (one
direction), times in picoseconds.  Sizes follow nccl-tests: K, KB and KiB all mean 1024.
Bandwidths follow vendors: GB/s means 10^9 bytes per second.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .errors import InputError

PICOSECONDS_PER_SECOND = 10**12

_SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BANDWIDTH_FACTORS = {
    "b/s": Fraction(1, 8), "kb/s": Fraction(10**3, 8), "Kb/s": Fraction(10**3, 8), "Mb/s": Fraction(10**6, 8),
    "Gb/s": Fraction(10**9, 8), "Tb/s": Fraction(10**12, 8), "Gbps": Fraction(10**9, 8), "Mbps": Fraction(10**6, 8),
    "Gbit/s": Fraction(10**9, 8), "Mbit/s": Fraction(10**6, 8), "G": Fraction(10**9, 8),
    "B/s": Fraction(1), "kB/s": Fraction(10**3), "KB/s": Fraction(10**3), "MB/s": Fraction(10**6),
    "GB/s": Fraction(10**9), "TB/s": Fraction(10**12),
    "KiB/s": Fraction(1 << 10), "MiB/s": Fraction(1 << 20), "GiB/s": Fraction(1 << 30),
}  # fmt: skip
_TIME_FACTORS = {"s": 10**12, "ms": 10**9, "us": 10**6, "µs": 10**6, "μs": 10**6, "ns": 10**3, "ps": 1}

_NUMBER = r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"


def _split(text: str, what: str, example: str, where: str | None) -> tuple[Fraction, str]:
    match = re.fullmatch(_NUMBER + r"\s*([A-Za-zµμ/]*)", text.strip(), re.ASCII)
    if match is None or len(text) > 64:
        raise InputError(f"{text.strip()[:64]!r} is not a {what}", where=where, expected=f"for example {example}")
    exponent = re.search(r"[eE]([+-]?\d+)$", match.group(1))
    if exponent and abs(int(exponent.group(1))) > 30:
        raise InputError(
            f"{text.strip()!r} is out of range for a {what}", where=where, expected=f"for example {example}"
        )
    return Fraction(match.group(1)), match.group(2)


def parse_size(text: str | int, *, where: str | None = None) -> int:
    """Bytes of a size such as `64`, `1K`, `1KB`, `1KiB`, `1.5M` (powers of 1024, case-insensitive).

    Raises:
        InputError: not a size, negative, or not a whole number of bytes.
    """
    if isinstance(text, int):
        value = Fraction(text)
    else:
        number, unit = _split(text, "size", "64M", where)
        key = unit.upper()
        key = key[:-2] if key.endswith("IB") else key.removesuffix("B")
        if key not in _SIZE_FACTORS:
            raise InputError(f"unknown size unit {unit!r} in {text!r}", where=where, expected="one of B, K, M, G, T")
        value = number * _SIZE_FACTORS[key]
    if value < 0:
        raise InputError(f"size {text!r} is negative", where=where, expected="0 or more bytes")
    if value.denominator != 1:
        raise InputError(
            f"size {text!r} is not a whole number of bytes", where=where, expected="for example 1536 or 1.5K"
        )
    if value >= 1 << 62:
        raise InputError(f"size {text!r} is out of range", where=where, expected="less than 2^62 bytes")
    return int(value)


def parse_bandwidth(text: str | int | float, *, where: str | None = None) -> int:
    """Bytes per second of a bandwidth: a number is GB/s; text carries its unit (`25GB/s`, `200Gb/s`).

    Lower-case b is bits, upper-case B bytes, `200G` the network people's 200 Gb/s.

    Raises:
        InputError: not a bandwidth, or not greater than 0.
    """
    if isinstance(text, bool):
        raise InputError(f"{text!r} is not a bandwidth", where=where, expected="for example 25GB/s")
    if isinstance(text, int | float):
        try:
            value = Fraction(str(text)) * 10**9
        except ValueError:
            raise InputError(f"{text!r} is not a bandwidth", where=where, expected="for example 25GB/s") from None
    else:
        number, unit = _split(text, "bandwidth", "25GB/s", where)
        if unit and unit not in _BANDWIDTH_FACTORS:
            raise InputError(
                f"unknown bandwidth unit {unit!r} in {text!r}", where=where, expected="for example GB/s or Gb/s"
            )
        value = number * (_BANDWIDTH_FACTORS[unit] if unit else 10**9)
    if value <= 0:
        raise InputError(f"bandwidth {text!r} is not positive", where=where, expected="more than 0 GB/s")
    if value >= 1 << 60:
        raise InputError(f"bandwidth {text!r} is out of range", where=where, expected="less than 10^9 GB/s")
    if value < 1:
        raise InputError(f"bandwidth {text!r} is below 1 byte/s", where=where, expected="1 B/s or more")
    return int(value)


def parse_time(text: str | int | float, *, where: str | None = None) -> int:
    """Picoseconds of a time: a number is microseconds; text carries its unit (`0.7us`, `500ns`).

    Raises:
        InputError: not a time, or negative.
    """
    if isinstance(text, bool):
        raise InputError(f"{text!r} is not a time", where=where, expected="for example 0.7us")
    if isinstance(text, int | float):
        try:
            value = Fraction(str(text)) * 10**6
        except ValueError:
            raise InputError(f"{text!r} is not a time", where=where, expected="for example 0.7us") from None
    else:
        number, unit = _split(text, "time", "0.7us", where)
        if unit and unit not in _TIME_FACTORS:
            raise InputError(f"unknown time unit {unit!r} in {text!r}", where=where, expected="one of s, ms, us, ns")
        value = number * _TIME_FACTORS[unit or "us"]
    if value < 0:
        raise InputError(f"time {text!r} is negative", where=where, expected="0 or more")
    if value >= 1 << 60:
        raise InputError(f"time {text!r} is out of range", where=where, expected="less than 10^6 s")
    return round(value)


def format_size(size: int) -> str:
    """The shortest exact text of a size: 65536 -> '64K', 1000 -> '1000'."""
    for unit in ("T", "G", "M", "K"):
        factor = _SIZE_FACTORS[unit]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def gigabytes_per_second(bandwidth: int | Fraction) -> float:
    """GB/s (10^9 bytes per second) of a bandwidth in bytes per second, for printing."""
    return float(Fraction(bandwidth) / 10**9)


def microseconds(picoseconds: int | Fraction) -> float:
    """Microseconds of a time in picoseconds, for printing."""
    return float(Fraction(picoseconds) / 10**6)


def fraction_text(value: Fraction) -> str:
    """'p/q', or 'p' when whole: the exact form used in JSON."""
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"
