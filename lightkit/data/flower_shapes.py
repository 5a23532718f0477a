"""Five kinds of flowers out of polygons: what tells them apart is their shape, any may have any colour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import ImageDraw

__all__ = ["FLOWERS", "Palette", "Place", "blade", "shade"]

Color = tuple[float, float, float]
Points = NDArray[np.float64]


@dataclass(frozen=True)
class Place:
    """Where a flower stands: centre and radius in pixels, turn and tilt (1 is seen from above) of the whole."""

    x: float
    y: float
    radius: float
    turn: float
    tilt: float
    lean: float

    def put(self, points: Points) -> list[tuple[float, float]]:
        """Move points of a flower of radius 1 around the origin to their place in the picture."""
        squeezed = _turned(_turned(points, self.turn) * [1.0, self.tilt], self.lean)
        placed: list[list[float]] = (squeezed * self.radius + [self.x, self.y]).tolist()
        return [(x, y) for x, y in placed]


@dataclass(frozen=True)
class Palette:
    """Colours of one flower, as red, green and blue from 0 to 255."""

    petal: Color
    heart: Color
    leaf: Color


def shade(color: Color, factor: float) -> tuple[int, int, int]:
    """Make a color darker (below 1) or move it towards white (above 1)."""
    red, green, blue = (
        int(min(max(part * factor if factor <= 1 else part + (255 - part) * min(factor - 1, 1), 0), 255))
        for part in color
    )
    return red, green, blue


def blade(length: float, width: float, *, tip: float, base: float = 0.15, num: int = 9) -> Points:
    """Outline of a petal or leaf from the origin along x.

    Args:
        length: From the origin to the tip.
        width: At the widest place.
        tip: How sharp it ends: 0.4 is round, 1 and above is pointed.
        base: Half width at the origin, as a share of ``width``.
        num: Points of each side.
    """
    if tip < 0.7:
        t = np.sin(np.linspace(0, np.pi / 2, num))  # closer together at the tip, where the outline is round
        profile = t**0.5 * np.sqrt(1 - t**6)
    else:
        t = np.linspace(0, 1, num)
        profile = np.sin(np.pi * t**0.7) * (1 - t) ** (tip * 0.3)
    half = width / 2 * np.maximum(profile / profile.max(), base * (1 - t))
    side = np.stack([t * length, half], axis=1)
    return np.concatenate([side, side[::-1] * [1, -1]])


def _turned(points: Points, angle: float) -> Points:
    cos, sin = np.cos(angle), np.sin(angle)
    turned: Points = points @ np.array([[cos, sin], [-sin, cos]])
    return turned


def _disc(radius: float, num: int = 28, wobble: NDArray[np.float64] | None = None) -> Points:
    angles = np.linspace(0, 2 * np.pi, num, endpoint=False)
    radii = radius * (1 + wobble if wobble is not None else np.ones(num))
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


def _vein(draw: ImageDraw.ImageDraw, place: Place, angle: float, span: tuple[float, float], color: Color) -> None:
    line = _turned(np.array([[span[0], 0.0], [span[1], 0.0]]), angle)
    draw.line(place.put(line), fill=shade(color, 0.8), width=max(1, int(place.radius * 0.02)))


def _ring(
    draw: ImageDraw.ImageDraw,
    place: Place,
    rng: np.random.Generator,
    color: Color,
    outline: Points,
    num: int,
    inner: float,
) -> None:
    """``num`` petals around the centre, each a little different, starting at ``inner``."""
    start = rng.uniform(0, 2 * np.pi)
    for number in rng.permutation(num):
        angle = start + 2 * np.pi * number / num + rng.normal(0, 0.25 / num)
        grown = outline * [rng.uniform(0.88, 1.06), rng.uniform(0.85, 1.1)] + [inner, 0]
        light = rng.uniform(0.82, 1.12)
        draw.polygon(place.put(_turned(grown, angle)), fill=shade(color, light), outline=shade(color, light * 0.72))
        _vein(draw, place, angle, (inner, inner + 0.7 * float(outline[:, 0].max())), shade(color, light))


def _daisy(draw: ImageDraw.ImageDraw, place: Place, rng: np.random.Generator, palette: Palette) -> None:
    """Few narrow round-tipped petals that stand apart, around a small smooth heart."""
    num, heart = int(rng.integers(11, 19)), rng.uniform(0.2, 0.3)
    width = rng.uniform(0.7, 0.95) * 2 * np.pi * 0.62 / num
    _ring(draw, place, rng, palette.petal, blade(0.98 - heart * 0.7, width, tip=0.4), num, heart * 0.7)
    draw.polygon(place.put(_disc(heart)), fill=shade(palette.heart, 0.85))
    lit = _disc(heart * 0.72) + heart * 0.12
    draw.polygon(place.put(lit), fill=shade(palette.heart, 1.15))


def _sunflower(draw: ImageDraw.ImageDraw, place: Place, rng: np.random.Generator, palette: Palette) -> None:
    """Two rings of pointed petals around a large heart of seeds in a spiral (Vogel 1979)."""
    num, heart = int(rng.integers(17, 27)), rng.uniform(0.46, 0.58)
    width = rng.uniform(1.0, 1.3) * 2 * np.pi * 0.75 / num
    for light, reach in ((0.8, 1.0), (1.0, 0.92)):
        outline = blade(reach - heart * 0.85, width, tip=1.3, base=0.5)
        _ring(draw, place, rng, shade(palette.petal, light), outline, num, heart * 0.85)
    draw.polygon(place.put(_disc(heart)), fill=shade(palette.heart, 0.5))
    seeds = np.arange(1, 110)
    radii, angles = heart * 0.95 * np.sqrt(seeds / 110), seeds * np.pi * (3 - np.sqrt(5))
    centres = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    dot = max(1.0, place.radius * heart * 0.05)
    for number, (x, y) in enumerate(place.put(centres)):
        light = 0.75 + 0.5 * (number / 110) + rng.uniform(-0.12, 0.12)
        draw.ellipse((x - dot, y - dot, x + dot, y + dot), fill=shade(palette.heart, light))


def _dandelion(draw: ImageDraw.ImageDraw, place: Place, rng: np.random.Generator, palette: Palette) -> None:
    """A head of very many thin straps, or a ball of seeds on threads."""
    if rng.random() < 0.35:
        _dandelion_clock(draw, place, rng, palette)
        return
    for reach, num in ((1.0, 46), (0.82, 40), (0.62, 32), (0.42, 24), (0.24, 14)):
        start = rng.uniform(0, 2 * np.pi)
        for number in range(num):
            angle = start + 2 * np.pi * number / num + rng.normal(0, 0.06)
            length, half = reach * rng.uniform(0.86, 1.05), 0.026 + 0.012 * reach
            strap = np.array([[0, -half / 2], [length, -half], [length * 0.97, 0], [length, half], [0, half / 2]])
            light = rng.uniform(0.7, 1.0) + 0.2 * (1 - reach)
            fill, edge = shade(palette.petal, light), shade(palette.petal, light * 0.7)
            draw.polygon(place.put(_turned(strap, angle)), fill=fill, outline=edge)


def _dandelion_clock(draw: ImageDraw.ImageDraw, place: Place, rng: np.random.Generator, palette: Palette) -> None:
    fine = max(1, int(place.radius * 0.012))
    for _ in range(95):
        angle, reach = rng.uniform(0, 2 * np.pi), 0.92 * rng.uniform(0.05, 1) ** 0.45
        tuft = _turned(np.array([[reach, 0.0]]), angle)
        light = rng.uniform(0.95, 1.3)
        (end,) = place.put(tuft)
        draw.line([(place.x, place.y), end], fill=shade(palette.petal, light * 0.75), width=fine)
        for ray in np.linspace(0, 2 * np.pi, 8, endpoint=False) + rng.uniform(0, 1):
            tip = tuft + 0.1 * np.array([[np.cos(ray), np.sin(ray)]])
            draw.line([end, place.put(tip)[0]], fill=shade(palette.petal, light), width=fine)
    draw.polygon(place.put(_disc(0.13)), fill=shade(palette.heart, 0.7))


def _rose(draw: ImageDraw.ImageDraw, place: Place, rng: np.random.Generator, palette: Palette) -> None:
    """Broad petals in rings that overlap like a spiral, with dark gaps and light rims, darker towards the heart."""
    num_rings = int(rng.integers(5, 7))
    turn = rng.uniform(0, 2 * np.pi)
    for ring in range(num_rings):
        reach = 0.98 * (1 - ring / num_rings) ** 0.85 + 0.02
        num = int(rng.integers(5, 7)) if ring < num_rings - 2 else 3
        turn += rng.uniform(0.4, 0.8)
        for number in range(num):
            angle = turn + 2 * np.pi * number / num + rng.normal(0, 0.1)
            petal = _disc(0.58 * reach, 22, rng.normal(0, 0.025, 22)) * [0.85, 1.15] + [0.44 * reach, 0]
            light = (1.08 - 0.1 * ring) * rng.uniform(0.9, 1.06)
            draw.polygon(place.put(_turned(petal, angle)), fill=shade(palette.petal, light * 0.62))
            rim = petal * 0.955 + [0.022 * reach, 0]
            draw.polygon(place.put(_turned(rim, angle)), fill=shade(palette.petal, light * 1.12))
            inside = petal * 0.84 + [0.01 * reach, 0]
            draw.polygon(place.put(_turned(inside, angle)), fill=shade(palette.petal, light * 0.92))
    t = np.linspace(0, 5 * np.pi, 60)
    spiral = np.stack([0.19 * t / t[-1] * np.cos(t), 0.19 * t / t[-1] * np.sin(t)], axis=1)
    draw.line(place.put(spiral), fill=shade(palette.petal, 0.4), width=max(1, int(place.radius * 0.035)))


def _tulip(draw: ImageDraw.ImageDraw, place: Place, rng: np.random.Generator, palette: Palette) -> None:
    """A cup of tall petals from the side, on a stem; the cup opens upwards."""
    upright = Place(place.x, place.y, place.radius, rng.normal(0, 0.18), 1.0, 0.0)
    openness, length = rng.uniform(0.1, 0.32), rng.uniform(1.55, 1.85)
    petal = blade(length, rng.uniform(0.78, 0.95), tip=0.9, base=0.55, num=12)
    foot = np.array([0.0, 0.85])
    back = [(-0.5, 0.72), (0.5, 0.72)]
    front = [(-1.0, 0.9), (1.0, 0.9), (rng.normal(0, 0.12), 1.05)]
    for lean, brightness in back + front:
        light = brightness * rng.uniform(0.92, 1.06)
        angle, start = -np.pi / 2 + lean * openness, foot + np.array([lean * 0.24, 0])
        outline = _turned(petal, angle) + start
        fill, edge = shade(palette.petal, light), shade(palette.petal, light * 0.6)
        draw.polygon(upright.put(outline), fill=fill, outline=edge, width=max(1, int(place.radius * 0.025)))
        crease = _turned(np.array([[0.25, 0.0], [length * 0.8, 0.0]]), angle) + start
        draw.line(upright.put(crease), fill=shade(palette.petal, light * 0.82), width=max(1, int(place.radius * 0.03)))


FLOWERS: dict[str, Callable[[ImageDraw.ImageDraw, Place, np.random.Generator, Palette], None]] = {
    "daisy": _daisy,
    "dandelion": _dandelion,
    "roses": _rose,
    "sunflowers": _sunflower,
    "tulips": _tulip,
}
