"""Weak and strong recovery give the same results; strong names a function with other results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

HIDDEN = {"calls": 0}


def vote(hidden: bool = False) -> tuple[tm.App, tm.Stream]:
    """A chain of procedures, two of them nested, with a window and a trigger."""
    app = tm.App("vote")
    votes = app.stream("votes", candidate=int)
    counted, last = app.stream("counted", candidate=int), app.stream("last", n=int)
    totals = app.table("totals", key="id", id=int, n=tm.column(int, default=0))
    recent = app.window("recent", rows=4, slide=2, group="candidate", candidate=int)

    @app.procedure(votes)
    def count(tx, votes):
        for vote in votes:
            totals[vote.candidate].n += 1
            tx.require(totals[vote.candidate].n < 30, "enough")
            tx.emit(counted, candidate=vote.candidate)

    @app.procedure(counted, owns=[recent])
    def trend(tx, counted):
        for vote in counted:
            recent.insert(candidate=vote.candidate)

    @app.trigger(recent)
    def slid(tx, slide):
        tx.emit(last, n=recent[1].rows)

    @app.transaction(last, opaque=True)
    def keep(tx, e):
        HIDDEN["calls"] += 1
        totals[-1].n += HIDDEN["calls"] if hidden else e.n + int(tx.random() * 10)

    app.nested("both", count, trend)
    return app, votes


def tables(mill: tm.Mill) -> dict[str, list[dict[str, Any]]]:
    return {name: list(mill.table(name).rows()) for name in mill.app.tables}


@pytest.mark.parametrize("recovery", ["weak", "strong"])
@pytest.mark.parametrize("then", ["weak", "strong"])
def test_what_is_logged_is_executed_again(tmp_path: Path, recovery: str, then: str) -> None:
    settings = {"data_dir": tmp_path / "data", "durable": "log"}
    rows = [{"candidate": n * n % 5} for n in range(100)]
    app, votes = vote()
    with app.start(recovery=recovery, **settings) as mill:
        for first in range(0, 60, 7):
            mill.send(votes, rows[first : first + 7])
            mill.drain()
        before = tables(mill)
        mill.stop()
    app, votes = vote()
    with app.start(recovery=then, **settings) as mill:
        mill.drain()
        assert tables(mill) == before
        mill.send(votes, rows[63:])
        mill.drain()
        after = tables(mill)
    app, votes = vote()
    with app.start() as mill:
        mill.send(votes, rows)
        mill.drain()
        # Windows, random numbers and aborts included.
        assert tables(mill) == after


def test_strong_recovery_names_a_function_that_does_something_else(tmp_path: Path) -> None:
    settings = {"data_dir": tmp_path / "data", "durable": "log", "recovery": "strong"}
    app, votes = vote(hidden=True)
    with app.start(rerun_every=0, **settings) as mill:
        mill.send(votes, [{"candidate": 1}] * 9)
        mill.drain()
        mill.stop()
    app, votes = vote(hidden=True)
    with pytest.raises(tm.InternalError) as caught, app.start(**settings) as mill:
        mill.drain()
    assert "keep gave a different result when it was executed again, on row 3" in str(caught.value)


def test_an_unknown_kind_of_recovery_is_refused(tmp_path: Path) -> None:
    app, _ = vote()
    with pytest.raises(tm.SettingError, match="recovery"):
        app.start(data_dir=tmp_path / "data", recovery="medium")
