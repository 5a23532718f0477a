"""A picture of one kind of flower: background, light, leaves, stems, what stands in front, noise."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from lightkit.data.flower_shapes import FLOWERS, Palette, Place, blade, shade

__all__ = ["draw_flower"]

_SUPERSAMPLING = 2

# Hues, in degrees, with how much they vary, of petals, hearts and grounds. All kinds of flowers share them, so that no
# colour tells a kind.
_PETAL_HUES = ((0, 10), (335, 15), (285, 20), (50, 6), (28, 8), (45, 12), (220, 15))
_HEART_HUES = ((48, 8), (30, 8), (20, 6), (80, 12))
_GROUND_HUES = ((105, 25), (85, 15), (205, 12), (30, 12), (150, 20), (270, 30))


def draw_flower(kind: str, *, size: int, seed: tuple[int, ...]) -> Image.Image:
    """Draw one picture.

    Args:
        kind: A key of `FLOWERS`.
        size: Side of the square picture, in pixels.
        seed: Decides everything about it.
    """
    rng = np.random.default_rng(seed)
    side = size * _SUPERSAMPLING
    canvas = _background(rng, side)
    draw = ImageDraw.Draw(canvas)
    leaf = _color(rng, ((105, 25),), (0.35, 0.8), (0.25, 0.6))
    _leaves(draw, rng, side, leaf, num=int(rng.integers(2, 9)))
    palette = Palette(_petal_color(rng), _color(rng, _HEART_HUES, (0.5, 0.95), (0.35, 0.95)), leaf)
    for place in _places(rng, side):
        _stem(draw, rng, side, place, leaf)
        FLOWERS[kind](draw, place, rng, palette)
    if rng.random() < 0.4:  # something before the flower
        _leaves(draw, rng, side, leaf, num=int(rng.integers(1, 3)), reach=(0.3, 0.6))
    canvas = canvas.resize((size, size), Image.Resampling.LANCZOS)
    if rng.random() < 0.25:
        canvas = canvas.filter(ImageFilter.GaussianBlur(rng.uniform(0.4, 1.0)))
    return _lit(canvas, rng)


def _color(rng: np.random.Generator, hues: Any, saturation: tuple[float, float], value: tuple[float, float]) -> Any:
    centre, spread = hues[int(rng.integers(len(hues)))]
    hue = (centre + rng.normal(0, spread)) % 360 / 360
    return tuple(255 * part for part in colorsys.hsv_to_rgb(hue, rng.uniform(*saturation), rng.uniform(*value)))


def _petal_color(rng: np.random.Generator) -> Any:
    if rng.random() < 0.25:
        return _color(rng, _PETAL_HUES, (0.0, 0.12), (0.82, 1.0))  # white
    return _color(rng, _PETAL_HUES, (0.45, 0.95), (0.6, 1.0))


def _background(rng: np.random.Generator, side: int) -> Image.Image:
    """Soft spots of one or two hues over a gradient, as behind a lens with a wide aperture."""
    top, bottom = (
        np.asarray(_color(rng, _GROUND_HUES, (0.1, 0.7), (0.1, 0.85))) * rng.uniform(0.7, 1.0) for _ in range(2)
    )
    height = np.linspace(0, 1, side // 8)[:, None, None]
    field = np.broadcast_to(top * (1 - height) + bottom * height, (side // 8, side // 8, 3))
    image = Image.fromarray(field.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(4, 26))):
        (x, y), radius = rng.uniform(0, side / 8, 2).tolist(), side / 8 * rng.uniform(0.03, 0.16)
        spot = shade(_color(rng, _GROUND_HUES, (0.1, 0.7), (0.15, 0.9)), rng.uniform(0.7, 1.2))
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=spot)
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.8, 3.0)))
    return image.resize((side, side), Image.Resampling.BICUBIC)


def _leaves(
    draw: ImageDraw.ImageDraw,
    rng: np.random.Generator,
    side: int,
    color: Any,
    *,
    num: int,
    reach: tuple[float, float] = (0.3, 0.9),
) -> None:
    """Leaves and blades of grass that come in from the edges."""
    for _ in range(num):
        length = side * rng.uniform(*reach)
        outline = blade(length, length * rng.choice([0.06, 0.12, 0.3]), tip=1.2, num=11)
        x, y = rng.uniform(0, side), side * rng.uniform(0.9, 1.05)
        angle = rng.normal(-np.pi / 2, 0.5)
        if rng.random() < 0.35:
            x, angle = rng.choice([0.0, float(side)]), angle + rng.choice([-1.0, 1.0])
            y = rng.uniform(0.2, 1) * side
        place = Place(x, y, 1.0, angle, 1.0, 0.0)
        light = rng.uniform(0.6, 1.15)
        draw.polygon(place.put(outline), fill=shade(color, light), outline=shade(color, light * 0.75))
        draw.line(place.put(np.array([[0, 0], [length * 0.9, 0]])), fill=shade(color, light * 0.8), width=2)


def _places(rng: np.random.Generator, side: int) -> list[Place]:
    """One flower of good size, and up to three smaller ones that come first, so that they are behind it."""
    places = []
    for _ in range(int(rng.choice([0, 0, 0, 1, 1, 2, 3]))):
        x, y = rng.uniform(0.08, 0.92, 2) * side
        places.append(_place(rng, x, y, side * rng.uniform(0.1, 0.18)))
    x, y = side / 2 + rng.normal(0, 0.08 * side, 2)
    return [*places, _place(rng, x, y, side * rng.uniform(0.24, 0.42))]


def _place(rng: np.random.Generator, x: float, y: float, radius: float) -> Place:
    turn, lean = rng.uniform(0, 2 * np.pi, 2)
    return Place(float(x), float(y), radius, float(turn), rng.uniform(0.68, 1.0), float(lean))


def _stem(draw: ImageDraw.ImageDraw, rng: np.random.Generator, side: int, place: Place, color: Any) -> None:
    foot = place.x + rng.normal(0, 0.1 * side)
    t = np.linspace(0, 1, 12)
    bow = rng.normal(0, 0.06 * side)
    xs = place.x + (foot - place.x) * t + bow * np.sin(np.pi * t)
    ys = place.y + place.radius * 0.2 + (side - place.y) * t
    width = max(3, int(place.radius * rng.uniform(0.07, 0.13)))
    points = list(zip(xs.tolist(), ys.tolist(), strict=True))
    draw.line(points, fill=shade(color, 0.75), width=width + 2, joint="curve")
    draw.line(points, fill=shade(color, 1.05), width=max(1, width - 2), joint="curve")


def _lit(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Light from one side, a colour cast, and the grain of a sensor."""
    size = image.width
    pixels = np.asarray(image).astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    ys, xs = np.mgrid[-0.5 : 0.5 : size * 1j, -0.5 : 0.5 : size * 1j]
    light = rng.uniform(0.7, 1.2) + rng.uniform(0, 0.35) * (xs * np.cos(angle) + ys * np.sin(angle))
    pixels *= light[..., None].astype(np.float32) * rng.normal(1, 0.05, 3).astype(np.float32)
    grain = rng.integers(-128, 128, pixels.shape, dtype=np.int8)
    pixels += grain * np.float32(rng.uniform(0.01, 0.1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
