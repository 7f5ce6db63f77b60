"""Numbers for people."""

import math

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def scaled(number: float, unit: str) -> str:
    """Three digits and a power of 1000: `16.4 GB`."""
    power = min(max(int(math.log10(number)) // 3, 0), len(_PREFIXES) - 1) if number >= 1 else 0
    value = number / 1000**power
    digits = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return f"{digits} {_PREFIXES[power]}{unit}"


def size(count: float) -> str:
    """Bytes."""
    return scaled(count, "B")


def flops(count: float) -> str:
    """FLOPs."""
    return scaled(count, "FLOP")


def duration(seconds: float) -> str:
    """Seconds, or parts of one, in three digits."""
    for unit, length in (("s", 1), ("ms", 1e-3)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
