"""Windows of a procedure by time, on several processes as in one: time ends them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from .kill.cluster import PATIENCE, Process, settings, wait_for

#: Candles of a minute. A row of the other stream counts there, too.
APP = """
import tidemill as tm

app = tm.App("market")
quotes = app.table("quotes", key="at", at=int, n=tm.column(int, default=0))
trades = app.stream("trades", time="at", at=int, price=int)
trades.read(tm.files("trades.csv"{follow}){idle})
others = app.stream("others", time="at", at=int)
others.read(tm.files("others.csv"{follow}))
candles = app.stream("candles", end=int, rows=int, low=int)
window = app.window(
    "minute", time=60, price=int, aggregates=lambda rows: {{"low": rows.price.min()}}
)


@app.procedure(trades, owns=[window])
def follow(tx, trades):
    for trade in trades:
        quotes.upsert(at=trade.at)
        window.insert(price=trade.price)


@app.transaction(others)
def other(tx, e):
    quotes[e.at].n += 1


@app.trigger(window)
def close(tx, slide):
    tx.require(slide.end != 240, "nobody trades at four")
    for group in window.groups():
        tx.emit(candles, end=slide.end, rows=slide.rows, low=group.low)


candles.write(tm.files("candles.jsonl"))
"""

PUSHED = """
import tidemill as tm

app = tm.App("ticks")
ticks = app.stream("ticks", n=int)
counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
slid = app.stream("slid", rows=int, added=int)
window = app.window("window", time="100ms", n=int)


@app.procedure
def push(tx, n: int):
    counts["pushed"].n += 1
    tx.emit(ticks, n=n)


@app.procedure(ticks, owns=[window])
def keep(tx, ticks):
    for tick in ticks:
        window.insert(n=tick.n)


@app.trigger(window)
def close(tx, slide):
    tx.emit(slid, rows=slide.rows, added=slide.added)


slid.write(tm.files("slid.jsonl"))
"""

WAYS = pytest.mark.parametrize("flags", [[], ["--processes", "2"]], ids=["one", "two"])


def add(path: Path, header: str, *rows: str) -> None:
    with path.open("a") as file:
        if file.tell() == 0:
            file.write(f"{header}\n")
        file.writelines(f"{row}\n" for row in rows)


def lines(path: Path) -> list[dict[str, int]]:
    """The whole lines of a file that may be written to."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def candles(folder: Path) -> list[tuple[int, int, int]]:
    return [(c["end"], c["rows"], c["low"]) for c in lines(folder / "candles.jsonl")]


def run(folder: Path, flags: list[str]) -> str:
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@WAYS
def test_the_end_of_input_ends_what_is_open(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "app.py").write_text(APP.format(follow="", idle=""))
    add(tmp_path / "trades.csv", "at,price", "1,5", "20,4", "59,6", "90,3", "119,2")
    add(tmp_path / "others.csv", "at", "7", "100", "150")
    run(tmp_path, flags)
    assert candles(tmp_path) == [(60, 3, 4), (120, 2, 2)]
    # A file that has grown. A slide whose trigger aborts leaves nothing, and the next one comes.
    add(tmp_path / "trades.csv", "at,price", "181,1", "241,9")
    said = run(tmp_path, flags)
    assert candles(tmp_path) == [(60, 3, 4), (120, 2, 2), (300, 1, 9)]
    assert "nobody trades at four" in said
    if flags:
        assert re.search(r"^aborted_slides +1$", said, re.M)
        assert "a trigger of a window has aborted: window minute, which ended at 240" in said


@WAYS
def test_the_watermark_ends_what_no_row_ends(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "app.py").write_text(APP.format(follow=", follow=True", idle=', idle="200ms"'))
    add(tmp_path / "trades.csv", "at,price", "1,5", "20,4")
    add(tmp_path / "others.csv", "at", "7", "100")
    with Process(tmp_path, "run", "app.py", *flags, *(settings() if flags else [])) as parent:
        wait_for("a candle", lambda: candles(tmp_path))
        assert parent.stop() == 0
    assert candles(tmp_path) == [(60, 2, 4)]


@WAYS
def test_the_clock_ends_them_without_event_time(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "app.py").write_text(PUSHED)
    more = [*flags, *(settings() if flags else [])]
    with Process(tmp_path, "run", "app.py", "--http", "0", *more) as parent:
        url = parent.find(r"http +(http://\S+)")

        def have_come(rows: int) -> bool:
            return sum(slid["added"] for slid in lines(tmp_path / "slid.jsonl")) == rows

        for n in range(2):
            answer = httpx.post(f"{url}/call/push", json={"n": n}, timeout=PATIENCE)
            assert answer.status_code == 200, answer.text
            wait_for("a slide", lambda rows=n + 1: have_come(rows))
        assert parent.stop() == 0
