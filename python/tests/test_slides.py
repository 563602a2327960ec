"""Windows of a procedure by time: time ends them, not the row that comes next."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .test_entities_nodes import on_nodes


class Candles:
    """The guide's window: candles of a minute."""

    def __init__(self, slide: int | None = None, timed: bool = True, size: Any = 60) -> None:
        app = self.app = tm.App("market")
        self.trades = app.stream("trades", time="at" if timed else None, at=int, price=int)
        self.seen = seen = app.table("seen", key="end", end=int, n=int)
        self.candles = candles = app.stream("candles", end=int, rows=int, added=int, low=int)
        window = self.window = app.window(
            "minute",
            time=size,
            slide=slide,
            price=int,
            aggregates=lambda rows: {"low": rows.price.min()},
        )

        @app.procedure(self.trades, owns=[window])
        def follow(tx, trades):
            for trade in trades:
                window.insert(price=trade.price)

        @app.trigger(window)
        def close(tx, slide):
            tx.require(slide.end != 240 or not timed, "nobody trades at four")
            for group in window.groups():
                tx.emit(candles, end=slide.end, rows=slide.rows, added=slide.added, low=group.low)
            if timed:
                seen.upsert(end=slide.end, n=slide.rows)

        self.follow = follow

    def found(self, mill: tm.Mill) -> list[tuple[int, ...]]:
        """The candles."""
        return [tuple(row.values()) for row in mill.output(self.candles).rows()]


def rows(times: list[int]) -> list[dict[str, int]]:
    return [{"at": at, "price": at % 7} for at in times]


def test_the_end_of_input_ends_what_is_open() -> None:
    candles = Candles()
    with candles.app.start() as mill:
        mill.send(candles.trades, rows([1, 20, 59, 90, 119]))
        mill.finish()
        assert candles.found(mill) == [(60, 3, 3, 1), (120, 2, 2, 0)]


def test_a_slide_is_a_transaction_of_its_own() -> None:
    candles = Candles()
    with candles.app.start() as mill:
        mill.send(candles.trades, rows([181, 239, 241, 290]))
        mill.finish()
        # The trigger's effects are undone. The row stays, and the window has slid.
        assert candles.found(mill) == [(300, 2, 2, 3)]
        assert [row["end"] for row in mill.table(candles.seen).rows()] == [300]
        assert mill.output(candles.follow.aborted).rows() == []
        assert mill.status()["aborted"] == 1
        [reason] = mill.summary()["reasons"]
        assert reason == {"handler": "follow", "reason": "nobody trades at four", "count": 1}


def slides(times: list[int], size: int, slide: int) -> list[tuple[int, int, int]]:
    """Ends, rows and added rows of all slides, by the definition."""
    found = []
    if times:

        def count(begin: int, end: int) -> int:
            return sum(begin <= at < end for at in times)

        end = times[0] // slide * slide + slide
        while end <= times[-1] or count(end - size, end):
            if count(end - size, end):
                found.append((end, count(end - size, end), count(end - slide, end)))
            end += slide
    return found


@pytest.mark.parametrize("seed", range(12))
def test_slides_do_not_depend_on_cuts(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    slide = dice.randint(1, 20)
    size = slide * dice.randint(1, 3) + dice.randint(0, 3)
    times, at = [], 1000
    for _ in range(40):
        at += dice.choice([0, 1, 2, 3, 60])
        times.append(at)
    wanted = slides(times, size, slide)
    settings: dict[str, Any]
    for settings in ({}, {"recovery": "strong", "data_dir": tmp_path / "a"}, {"durable": "log"}):
        if settings.get("durable"):
            settings["data_dir"] = tmp_path / "b"
        candles = Candles(slide, size=size)
        with candles.app.start(workers=1, **settings) as mill:
            sent = 0
            while sent < len(times):
                more = dice.randint(1, 9)
                mill.send(candles.trades, rows(times[sent : sent + more]), wait=dice.random() < 0.5)
                sent += more
            mill.finish()
            assert [found[:3] for found in candles.found(mill)] == wanted
    # All recorded events give the same results when they are executed again.
    candles = Candles(slide, size=size)
    with candles.app.start(workers=1, **settings) as mill:
        mill.finish()
        assert [found[:3] for found in candles.found(mill)] == wanted


@pytest.mark.parametrize("seed", range(4))
def test_on_nodes_rows_end_windows_as_in_one_process(seed: int) -> None:
    dice = random.Random(seed)
    times, at = [], 1000
    for _ in range(30):
        at += dice.choice([0, 5, 20, 90])
        times.append(at)
    wanted = [s for s in slides(times, 60, 20) if s[0] <= times[-1]]
    calls = [("trades", row) for row in rows(times)]
    for nodes in (1, 3):
        for epoch in (1, 1000):
            found = on_nodes(Candles(20).app, calls, nodes, 1, epoch)
            events = found["outputs"].get("candles", [])
            assert [tuple(event.values())[:3] for event in events] == wanted


def test_without_event_time_the_clock_ends_them() -> None:
    candles = Candles(timed=False, size="50ms")
    with candles.app.start() as mill:
        mill.send(candles.trades, rows([1, 2, 3]), wait=True)
        until = time.monotonic() + 30
        while sum(row[2] for row in candles.found(mill)) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert sum(row[2] for row in candles.found(mill)) == 3


def test_a_timer_may_advance_a_window() -> None:
    app = tm.App("ticks")
    rows_in = app.stream("rows", n=int)
    out = app.stream("out", rows=int)
    window = app.window("window", time="20ms", n=int)

    @app.procedure(rows_in, owns=[window])
    def keep(tx, rows_in):
        for row in rows_in:
            window.insert(n=row.n)

    @app.every("10ms", out={"n": int})
    def tick(tx, firing):
        window.advance()
        return {"n": 1}

    @app.trigger(window)
    def slid(tx, slide):
        tx.emit(out, rows=slide.rows)

    with app.start() as mill:
        mill.send(rows_in, [{"n": 1}], wait=True)
        until = time.monotonic() + 30
        while not mill.output(out).rows() and time.monotonic() < until:
            time.sleep(0.01)
        assert mill.output(out).rows()[0] == {"rows": 1}
        while not mill.output(tick).rows() and time.monotonic() < until:
            time.sleep(0.01)
        assert mill.output(tick.aborted).rows() == []


def test_a_row_of_a_window_that_has_ended_is_late(tmp_path: Path) -> None:
    given = tmp_path / "trades.csv"
    given.write_text("at,price\n1,1\n61,2\n")
    candles = Candles()
    candles.trades.read(tm.files(given))
    with candles.app.start(data_dir=tmp_path / "data") as mill:
        mill.finish()
        assert [row[0] for row in candles.found(mill)] == [60, 120]
    with given.open("a") as file:
        file.write("125,3\n")
    with candles.app.start(data_dir=tmp_path / "data") as mill:
        mill.finish()
        assert [row[0] for row in candles.found(mill)][-1] == 180


class Sparse:
    """Rows that are far apart for a window that slides often: each slides it 50,000 times."""

    TIMES = (0, 60_000, 120_000, 180_000)

    def __init__(self) -> None:
        app = self.app = tm.App("sparse")
        self.pings = app.stream("pings", time="at", at=int)
        window = app.window("recent", time=50_000, slide=1, at=int)

        @app.procedure(self.pings, owns=[window])
        def follow(tx, pings):
            for ping in pings:
                window.insert(at=ping.at)

    def rows(self) -> list[dict[str, int]]:
        return [{"at": at} for at in self.TIMES]

    def slid(self, mill: tm.Mill) -> int:
        """How often the window has slid."""
        return mill.status()["transactions"] - len(self.TIMES)


def test_an_epoch_has_so_many_slides_at_most() -> None:
    sparse = Sparse()
    with sparse.app.start() as mill:
        mill.send(sparse.pings, sparse.rows())
        mill.drain()
        # It has slid up to the newest row, once more for each when it ran empty.
        assert sparse.slid(mill) == 3 * 50_001
        mill.finish()
        assert sparse.slid(mill) == 3 * 50_001 + 50_000
        assert mill.summary()["epochs"] >= 4


def test_a_start_goes_on_between_two_slides(tmp_path: Path) -> None:
    sparse = Sparse()
    with sparse.app.start() as mill:
        mill.send(sparse.pings, sparse.rows())
        mill.finish()
        wanted = mill.summary()["state_hash"], sparse.slid(mill)
    sparse = Sparse()
    with sparse.app.start(data_dir=tmp_path / "data") as mill:
        mill.send(sparse.pings, sparse.rows())
    for _ in range(3):
        with Sparse().app.start(data_dir=tmp_path / "data"):
            pass
    sparse = Sparse()
    with sparse.app.start(data_dir=tmp_path / "data") as mill:
        mill.finish()
        assert (mill.summary()["state_hash"], sparse.slid(mill)) == wanted


def test_a_window_slides_so_often_for_a_row_at_most() -> None:
    app = tm.App("often")
    app.window("most", time=100_000, slide=1, n=int)
    app.window("more", time="1000000s", slide="10s", n=int)
    for size, slide in ((100_001, 1), (2**63 - 1, 10)):
        with pytest.raises(tm.ProgramError, match="each row would slide it"):
            app.window("too often", time=size, slide=slide, n=int)
    with pytest.raises(tm.ProgramError, match="100001 times; at most 100000"):
        app.window("too often", n=int, time="1d", slide="863999us")


KILLS = """
import os, sys
import tidemill as tm

app = tm.App("kills")
pings = app.stream("pings", time="at", at=int)
seen = app.table("seen", key=["w", "end"], w=str, end=int, n=int)


def watched(name, kills):
    window = app.window(name, time=60, at=int)

    @app.trigger(window, name=f"see_{name}")
    def see(tx, slide):
        seen.upsert(w=name, end=slide.end, n=slide.rows)
        if kills and slide.end == 120:
            if "abort" in sys.argv:
                tx.require(False, "no more")
            os._exit(7)

    return window


windows = [watched("first", False), watched("second", True)]


@app.procedure(pings, owns=windows)
def follow(tx, pings):
    for ping in pings:
        for window in windows:
            window.insert(at=ping.at)


with app.start(data_dir=sys.argv[1], recovery=sys.argv[2], log_to="log") as mill:
    mill.send(pings, [{"at": at} for at in range(0, 300, 7)][mill.sent(pings) :])
    mill.finish()
    summary = mill.summary()
    print(summary["state_hash"], [row["reason"] for row in summary["reasons"]])
"""


@pytest.mark.parametrize("recovery", ["weak", "strong"])
def test_a_slide_that_ends_the_process_is_one_without_its_triggers(
    recovery: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(KILLS)

    def run(*args: str) -> tuple[int, str]:
        command = [sys.executable, "app.py", *args]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.strip() or done.stderr

    code, wanted = run("aborts", recovery, "abort")
    assert (code, wanted[32:]) == (0, " ['no more']")
    said = [run("dies", recovery) for _ in range(5)]
    assert [code for code, _ in said] == [7, 7, 7, 7, 0], said
    reason = "it ended the process 3 times, each time while nothing else was executed"
    assert said[-1][1] == f"{wanted[:32]} ['{reason}']"
    aborted = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    aborted = [line for line in aborted if line["event"] == "slide aborted"]
    assert [(line["window"], line["ends"], line["what"]) for line in aborted] == [
        ("second", 120, "no more"),
        ("second", 120, reason),
    ]
    # Decisions are recorded, so another start gives the same results.
    assert run("dies", recovery)[1] == said[-1][1]


def test_slides_that_come_to_something_else_are_named() -> None:
    app = tm.App("moods")
    trades = app.stream("trades", time="at", at=int)
    out = app.stream("out", mood=int)
    moods = itertools.count()
    window = app.window("minute", time=60, price=int)

    @app.procedure(trades, owns=[window])
    def follow(tx, trades):
        window.insert(price=1)

    @app.trigger(window)
    def close(tx, slide):
        tx.emit(out, mood=next(moods))

    @app.procedure(trades)
    def moody(tx, trades):
        tx.emit(out, mood=next(moods))

    with app.start(rerun_every=1) as mill:
        mill.send(trades, {"at": [5, 70]})
        found = mill.finish()["unstable"]
    events = {one["handler"]: one["event"] for one in found}
    assert events == {
        "follow": "the slide of window minute that ended at 60",
        "moody": "row 0 of source trades/push (counted from 0)",
    }
