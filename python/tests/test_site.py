"""`tools/site.py` finds what is wrong with a built site."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/site.py"

PAGE = """<h1 id="top">One</h1><h2 id="two">Two</h2>
<a href="guides/other.html#there">other</a> <a href="#two">two</a> <a href="https://a.example">a</a>
<img src="_images/drawing.svg" alt="a drawing">"""

OTHER = '<h1 id="there">Other</h1><a href="../index.html#top">back</a>'

DRAWING = """<svg xmlns="http://www.w3.org/2000/svg"><style>
text { fill: #222222; } .box { fill: #eeeeee; } .pale { fill: #cccccc; }
@media (prefers-color-scheme: dark) { text { fill: #dddddd; } .box { fill: #333333; } }
</style><rect class="box" x="0" y="0" width="100" height="20"/>
<text x="5" y="15">inside</text><text x="5" y="90">outside</text></svg>"""


def check(site: Path, **changes: tuple[str, str]) -> tuple[int, str]:
    """Writes a site with some texts replaced; returns the tool's status and output."""
    pages = {"index.html": PAGE, "guides/other.html": OTHER, "_images/drawing.svg": DRAWING}
    for name, text in pages.items():
        before, after = changes.get(Path(name).stem, ("", ""))
        assert before in text
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text.replace(before, after, 1) if before else text)
    done = subprocess.run([sys.executable, TOOL, site], capture_output=True, text=True)
    return done.returncode, done.stderr.strip()


def test_a_whole_site_is_fine(tmp_path: Path) -> None:
    assert check(tmp_path) == (0, "2 pages have no broken links")


@pytest.mark.parametrize(
    ("page", "before", "after", "said"),
    [
        ("other", "#top", "#tops", "guides/other.html: ../index.html#tops leads to an anchor that"),
        ("index", "#two", "#to", "index.html: #to leads to an anchor that"),
        ("index", "other.html", "none.html", "guides/none.html#there leads to no file"),
        ("index", "drawing.svg", "no.svg", "index.html: _images/no.svg leads to no file"),
        ("index", "a drawing", "", "index.html: _images/drawing.svg has no alt text"),
        ("index", "h2", "h3", "index.html: a heading of level 3 follows one of level 1"),
        ("drawing", "<text", '<text class="pale"', "'inside' has a contrast of 1.4 in the light"),
        (
            "drawing",
            ".box { fill: #333333",
            ".box { fill: #aaaaaa",
            "'inside' has a contrast of 1.",
        ),
        ("drawing", "text { fill: #dddddd; }", "", "'outside' has a contrast of 1.2 in the dark"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, page: str, before: str, after: str, said: str
) -> None:
    status, printed = check(tmp_path, **{page: (before, after)})
    assert status == 1
    assert said in printed


def test_a_folder_without_pages_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, TOOL, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "has no pages" in done.stderr
