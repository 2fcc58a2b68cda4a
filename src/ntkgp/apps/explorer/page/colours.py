"""Colours of the Okabe–Ito palette, which colour-blind readers can distinguish; lines also differ by their dashes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Palette:
    """The colours of a theme."""

    text: str
    grid: str
    mean: str
    data: str
    total: str
    exact: str
    bracket: str
    paper: str
    samples: str
    trained: str
    ramp: tuple[str, str]  # colours of the first and the last predictor


LIGHT = Palette(
    text="#222222", grid="#e2e2e2", mean="#0072B2", data="#D55E00", total="#777777", exact="#000000", bracket="#009E73",
    paper="#B2478A", samples="#56B4E9", trained="#E69F00", ramp=("#003B5C", "#56B4E9"),
)  # fmt: skip
DARK = Palette(
    text="#e8e8e8", grid="#3a3f45", mean="#56B4E9", data="#FF8C42", total="#a0a0a0", exact="#ffffff", bracket="#2FD6A3",
    paper="#E08FC4", samples="#8CCBF0", trained="#F0C040", ramp=("#E8F4FB", "#2B7FB5"),
)  # fmt: skip
DASHES = {"upper": "dashed", "lower": "dotted", "paper": "dashdot", "trained": "6 3", "exact": "solid"}


def ramp(palette: Palette, count: int) -> list[str]:
    """`count` colours between the two ends of the palette's ramp.

    Example:
        >>> ramp(LIGHT, 2)
        ['#003b5c', '#56b4e9']
    """
    first, last = ([int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in palette.ramp)
    shares = [k / max(count - 1, 1) for k in range(count)]
    mixed = [[round(a + share * (b - a)) for a, b in zip(first, last, strict=True)] for share in shares]
    return ["#" + "".join(f"{part:02x}" for part in parts) for parts in mixed]
