"""Patterns of times read what Python's strptime reads."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pytest

import tidemill as tm

PATTERNS = [
    "%Y-%m-%d",
    "%Y-%m",
    "%Y",
    "%d.%m.%Y %H:%M:%S",
    "%d/%m/%y %H:%M",
    "%Y%m%d%H%M%S",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y%m%d%H%M%S%f",
    "%b %d %Y %I:%M %p",
    "%a, %d %b %Y %H:%M:%S",
    "%A %d %B %Y",
    "%Y-%m-%dT%H:%M:%S%z",
    "%Y-%m-%d %H:%M:%S.%f %z",
    "%Y-%m-%d %H:%M %Z",
    "%Y %j",
    "%y%j %H",
    "%Y %U %w",
    "%Y %W %a",
    "%Y %W %u",
    "%G-W%V-%u",
    "%c",
    "%x %X",
    "%m/%d/%Y%%%H",
]
#: What a text of one of the patterns may be made of, besides what it says.
NOISE = ["", " ", "0", "1", "9", "x", ".", ":", "-", "+01:00", "Z", "UTC", "EST", "pm", "Mai"]


def texts(pattern: str, dice: random.Random) -> list[str]:
    """Times as the pattern has them, and what is near to them."""
    made = []
    for _ in range(12):
        seconds = dice.randrange(-60 * 365 * 86_400, 98 * 365 * 86_400)
        zone = dt.timezone(dt.timedelta(minutes=dice.choice([0, 60, -330, 765])))
        at = dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(
            seconds=seconds, microseconds=dice.choice([0, 5, 120_000, 999_999])
        )
        text = at.strftime(pattern).replace("UTC+", "GMT+")
        made.append(text)
        made.append(text.upper() if dice.random() < 0.5 else text.lower())
        made.append(text.replace(" ", "   "))
        place = dice.randrange(len(text) + 1)
        made.append(text[:place] + dice.choice(NOISE) + text[place:])
        made.append(text[:place] + text[place + 1 :])
        made.append(text.rstrip("0"))
        made.append(text.replace("0", "", 1))
    return [text.strip() for text in made]


def expected(pattern: str, text: str) -> dt.datetime | None:
    """Returns the result of ``strptime``, or ``None`` where it refuses."""
    try:
        at = dt.datetime.strptime(text, pattern)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=dt.UTC)


def is_stricter(pattern: str, text: str, at: dt.datetime) -> bool:
    """Whether the text is one of those that strptime takes for another day: these are refused."""
    if "%j" in pattern and "366" in text:
        return at.timetuple().tm_yday == 1
    return "%G" in pattern and ("53" in text or "W0-" in text.upper())


def test_patterns_read_what_strptime_reads(tmp_path: Path) -> None:
    dice = random.Random(7)
    app = tm.App("times")
    wanted = {}
    for nth, pattern in enumerate(PATTERNS):
        found = texts(pattern, dice)
        lines = "".join(f"{row}\t{text}\n" for row, text in enumerate(found))
        (tmp_path / f"{nth}.tsv").write_text("row\tat\n" + lines)
        stream = app.stream(f"s{nth}", row=int, at=tm.timestamp)
        stream.read(tm.files(tmp_path / f"{nth}.tsv", quote="", formats={"at": pattern}))

        def copy(tx, e):
            return {"row": e.row, "at": e.at}

        copy.__name__ = f"copy{nth}"
        wanted[app.transaction(stream)(copy)] = (pattern, found)
    read = refused = 0
    with app.start() as mill:
        mill.finish()
        for copy, (pattern, found) in wanted.items():
            times = {row["row"]: row["at"] for row in mill.output(copy).rows()}
            for row, text in enumerate(found):
                at = expected(pattern, text)
                if row in times:
                    assert at == times[row], (pattern, text)
                    read += 1
                else:
                    assert at is None or is_stricter(pattern, text, at), (pattern, text, at)
                    refused += 1
    assert read > 500
    assert refused > 300


@pytest.mark.parametrize("pattern", ["%H:%M", "%Q", "%Y %Y", "%Y-%m-%d %I", "%d %Y", "%Y %f"])
def test_a_pattern_that_says_no_time_is_refused(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "in.csv").write_text("at\n")
    app = tm.App("times")
    stream = app.stream("s", at=tm.timestamp)
    stream.read(tm.files(tmp_path / "in.csv", formats={"at": pattern}))
    with pytest.raises(tm.SettingError, match="can't be read"):
        app.start()
