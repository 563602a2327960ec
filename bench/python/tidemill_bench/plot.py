"""Plots as self-contained SVG files: bars with whiskers, or lines, in panels side by side.

The background is transparent, and all colours have medium lightness, so that a plot is readable on
light and dark pages.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tidemill.errors import IoError

#: The colour of text and axes.
GREY = "#7d7d7d"
COLOURS = ("#d9622b", "#3b82d0", "#2f9e63", "#a763c9", "#b58a00", "#d0477b", "#1f9aa8", "#8a6a52")
#: The dash patterns: the next one is used when all colours are taken.
DASHES = ("", "6 3", "2 3")
#: The smallest plotting area of a panel and the margins around it, in pixels.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 300, 220, 62, 18, 26, 46
#: The height of a line of text, in pixels.
LINE = 18
#: The approximate width of a character, in pixels.
CHARACTER = 6.7


@dataclass(frozen=True)
class Panel:
    """A plot: named lines over common places of the x axis."""

    #: The title above the plot.
    title: str
    #: The label of the x axis, with its unit.
    x: str
    #: The label of the y axis, with its unit.
    y: str
    #: The labels of the places of the x axis.
    places: Sequence[str]
    #: The values of each line by its name. None leaves a gap.
    lines: Mapping[str, Sequence[float | None]]
    #: The lowest and the highest value at each place. With whiskers the only line becomes bars.
    whiskers: Sequence[tuple[float, float]] = ()


def write(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Writes the plots to a file."""
    try:
        path.write_text(svg(title, panels), encoding="utf-8")
    except OSError as error:
        raise IoError(f"writing {path}: {error.strerror or error}") from error


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Returns the panels side by side as SVG, with one legend below."""
    wide = sum(LEFT + _width(panel) + RIGHT for panel in panels)
    heading = textwrap.wrap(title, int(wide / CHARACTER), break_long_words=True)
    parts = [
        _text(wide / 2, LINE * (at + 1), line, weight="bold") for at, line in enumerate(heading)
    ]
    names = sorted({name for panel in panels for name in panel.lines})
    styles = dict(zip(names, _styles(), strict=False))
    top = LINE * len(heading) + TOP
    left = LEFT
    for panel in panels:
        parts += [f'<g transform="translate({left},{top})">', *_panel(panel, styles), "</g>"]
        left += _width(panel) + RIGHT + LEFT
    high = top + HEIGHT + BOTTOM
    if len(names) > 1:
        x, y = float(LEFT), high + LINE / 2
        for name in names:
            width = 30 + CHARACTER * (len(name) + 2)
            if x + width > wide and x > LEFT:
                x, y = float(LEFT), y + LINE
            parts.append(f'<path d="M{x:g},{y - 4:g}h24" fill="none" {styles[name]}/>')
            parts.append(_text(x + 30, y, name, anchor="start"))
            x += width
        high = int(y + LINE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" font-family="sans-serif" font-size="12" fill="{GREY}">\n'
        f"<title>{escape(title)}</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _styles() -> Iterator[str]:
    for dash, colour in itertools.product(DASHES, COLOURS):
        yield f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash or "none"}"'


def _width(panel: Panel) -> int:
    """Returns the width of the plotting area, in which the labels of the places fit."""
    longest = max(map(len, panel.places), default=0)
    return max(WIDTH, round(len(panel.places) * (longest + 2) * CHARACTER))


def _panel(panel: Panel, styles: Mapping[str, str]) -> Iterator[str]:
    """Yields the elements of a panel; the origin is the upper left of its plotting area."""
    points = [value for line in panel.lines.values() for value in line if value is not None]
    points.extend(high for _, high in panel.whiskers)
    highest = max(points, default=0.0)
    step = nice_step(highest)
    top = step * max(1, math.ceil(highest / step - 1e-9))
    wide = _width(panel)
    room = wide / max(1, len(panel.places))

    def x(place: int) -> float:
        return room * (place + 0.5)

    def y(value: float) -> float:
        return HEIGHT * (1 - value / top)

    yield _text(wide / 2, -8, panel.title)
    for at in range(round(top / step) + 1):
        here = y(at * step)
        yield f'<path d="M0,{here:.1f}h{wide}" stroke="{GREY}" stroke-opacity="0.35"/>'
        yield _text(-6, here + 4, short(at * step), anchor="end")
    for at, place in enumerate(panel.places):
        yield _text(x(at), HEIGHT + 16, place)
    yield _text(wide / 2, HEIGHT + 36, panel.x)
    yield f'<g transform="translate(-48,{HEIGHT / 2}) rotate(-90)">{_text(0, 0, panel.y)}</g>'
    for name, line in panel.lines.items():
        there = [(at, value) for at, value in enumerate(line) if value is not None]
        if panel.whiskers:
            yield from _bars(there, panel.whiskers, x, y, room)
            continue
        path, last = "", None
        for at, value in there:
            path += f"{'L' if last == at - 1 else 'M'}{x(at):.1f},{y(value):.1f}"
            last = at
        marks = "".join(f"M{x(at) - 3:.1f},{y(value):.1f}h6" for at, value in there)
        yield f'<path d="{path}{marks}" fill="none" {styles[name]}/>'


def _bars(
    there: Sequence[tuple[int, float]],
    whiskers: Sequence[tuple[float, float]],
    x: Callable[[int], float],
    y: Callable[[float], float],
    room: float,
) -> Iterator[str]:
    wide = room * 0.5
    for at, value in there:
        low, high = whiskers[at]
        left = x(at) - wide / 2
        yield (
            f'<rect x="{left:.1f}" y="{y(value):.1f}" width="{wide:.1f}" '
            f'height="{HEIGHT - y(value):.1f}" fill="{COLOURS[at % len(COLOURS)]}"/>'
        )
        yield (
            f'<path d="M{x(at) - 6:.1f},{y(low):.1f}h12M{x(at) - 6:.1f},{y(high):.1f}h12'
            f'M{x(at):.1f},{y(low):.1f}V{y(high):.1f}" fill="none" stroke="{GREY}" '
            'stroke-width="2"/>'
        )


def nice_step(top: float) -> float:
    """Returns a step of 1, 2 or 5 times a power of ten, which divides the axis into 4 to 10 parts.

    >>> nice_step(7.3), nice_step(1.9), nice_step(0)
    (1.0, 0.2, 1.0)
    """
    if not 0 < top < math.inf:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(top / 4))
    return max((power * times for times in (1, 2, 5) if top / (power * times) >= 4), default=power)


def short(value: float) -> str:
    """Returns a number as the text for an axis.

    >>> short(2_500_000), short(40_000), short(0.2), short(0)
    ('2.5 M', '40 k', '0.2', '0')
    """
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def _text(x: float, y: float, text: str, anchor: str = "middle", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )
