"""Checks a built site: links, anchors, pictures and headings. `make docs` runs it.

    python tools/site.py target/docs      # exits with 1 where something is found

- Links and pictures lead to files of the site, and to anchors that their pages have.
- Pictures have an alt text, and headings leave out no level.
- The texts of drawings have a contrast of at least 4.5 with what is behind them, which is level AA
  of WCAG. This holds in the light and in the dark colour scheme.

Links to other sites are not followed. Sphinx checks links between pages in Markdown, but neither
anchors in HTML nor drawings.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"

#: The backgrounds of pages by colour scheme.
BACKGROUNDS = {"light": "#ffffff", "dark": "#131416"}

#: The least contrast of a text with what is behind it.
CONTRAST_MIN = 4.5

#: The colour of texts whose drawing sets none.
BLACK = "#000000"

#: From the baseline of a text to its middle, in units of the drawing.
HALF_LINE = 4


class Page(HTMLParser):
    """A page: its ids, links and pictures, and the levels of its headings."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        #: The address and the alt text of each picture.
        self.pictures: list[tuple[str, str]] = []
        self.levels: list[int] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what a tag has."""
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "img":
            self.pictures.append((given.get("src", ""), given.get("alt", "")))
        elif re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))


def broken(path: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    """The links and pictures of a page that lead nowhere."""
    for link in [*page.links, *(source for source, _ in page.pictures)]:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        fragment = unquote(parts.fragment)
        if not target.exists():
            yield f"{link} leads to no file"
        elif fragment and target in pages and fragment not in pages[target].ids:
            yield f"{link} leads to an anchor that its page does not have"


def unclear(page: Page) -> Iterator[str]:
    """The pictures of a page without a text, and the level of headings that it leaves out."""
    yield from (f"{source} has no alt text" for source, alt in page.pictures if not alt)
    for before, level in zip([0, *page.levels], page.levels, strict=False):
        if level > before + 1:
            yield f"a heading of level {level} follows one of level {before}"


class Shape(NamedTuple):
    """The rectangle of a shape in a drawing, and its classes."""

    left: float
    top: float
    right: float
    bottom: float
    classes: list[str]

    def covers(self, x: float, y: float) -> bool:
        """Whether a point is in the rectangle."""
        return self.left <= x <= self.right and self.top <= y <= self.bottom


def shapes(root: ElementTree.Element) -> Iterator[Shape]:
    """The rectangles and circles of a drawing, in the order in which they are drawn."""
    for at in root.iter():
        classes = at.get("class", "").split()
        if at.tag == f"{SVG}rect":
            x, y, width, height = (float(at.get(key, 0)) for key in ("x", "y", "width", "height"))
            yield Shape(x, y, x + width, y + height, classes)
        elif at.tag == f"{SVG}circle":
            x, y, radius = (float(at.get(key, 0)) for key in ("cx", "cy", "r"))
            yield Shape(x - radius, y - radius, x + radius, y + radius, classes)


def fills(style: str) -> dict[str, dict[str, str]]:
    """The fill of each selector of a style sheet, by colour scheme."""
    dark_only = re.compile(r"@media \(prefers-color-scheme: dark\) \{ (.*?\}) \}")
    rule = re.compile(r"(\.?\w+) \{[^}]*?fill: (#[0-9a-f]{6})")
    light = dict(rule.findall(dark_only.sub("", style)))
    return {"light": light, "dark": light | dict(rule.findall("".join(dark_only.findall(style))))}


def luminance(colour: str) -> float:
    """The relative luminance of a colour `#rrggbb`, as WCAG defines it, from 0 to 1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def faint(path: Path) -> Iterator[str]:
    """The texts of a drawing with too little contrast, by colour scheme."""
    root = ElementTree.parse(path).getroot()
    schemes = fills(root.findtext(f"{SVG}style") or "")
    drawn = list(shapes(root))
    for text in root.iter(f"{SVG}text"):
        x, y = float(text.get("x", 0)), float(text.get("y", 0)) - HALF_LINE
        behind = [name for shape in drawn if shape.covers(x, y) for name in shape.classes]
        for scheme, colours in schemes.items():
            names = ["text", *(f".{name}" for name in text.get("class", "").split())]
            front = [BLACK, *(colours[name] for name in names if name in colours)][-1]
            boxes = [colours[f".{name}"] for name in behind if f".{name}" in colours]
            back = [BACKGROUNDS[scheme], *boxes][-1]
            found = contrast(front, back)
            if found < CONTRAST_MIN:
                yield (
                    f"the text '{text.text}' has a contrast of {found:.1f} in the {scheme} scheme: "
                    f"{front} on {back}"
                )


def check(site: Path) -> tuple[int, list[str]]:
    """The number of pages of a site, and what is wrong with it."""
    paths = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    pages = {path: Page(path) for path in paths}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: {what}" for what in (*broken(path, page, pages), *unclear(page))]
    for path in sorted((site / "_images").glob("*.svg")):
        found += [f"{path.relative_to(site)}: {what}" for what in faint(path)]
    return len(pages), found


def main() -> int:
    """Checks a site; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, help="the folder of the built site")
    site = parser.parse_args().site.resolve()
    pages, found = check(site)
    if not pages:
        found = [f"{site} has no pages: build them with make docs"]
    print("\n".join(found) or f"{pages} pages have no broken links", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
