"""Refused declarations: names that rows have themselves, and seconds where time is an int."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill import _native
from tidemill.names import of_events, of_rows
from tidemill.opaque import Event
from tidemill.trace import SymbolicEvent, SymbolicRow


def refused(work: Callable[[], object]) -> str:
    with pytest.raises(tm.ProgramError) as caught:
        work()
    return f"{caught.value.what} {caught.value.help}"


def test_what_rows_have_is_no_name_of_a_column() -> None:
    own = {*dir(SymbolicRow), *dir(_native.Row)}
    assert own <= of_rows()
    assert {*dir(SymbolicEvent), *dir(Event)} <= of_events()
    for name in sorted(own):
        app = tm.App("names")
        columns: dict[str, Any] = {"id": int, name: int}
        said = refused(partial(app.table, "games", key="id", schema=columns))
        assert f"table games: a column can't be named '{name}'" in said
        said = refused(partial(app.entity, "game", key="id", schema=columns))
        assert f"'{name}'" in said
    app = tm.App("names")
    for name in ("__class__", "__dict__"):
        assert name in refused(partial(app.stream, "s", schema={name: int}))


NAMES = ["_id", "_table", "_recorder", "_block", "keys", "count", "class", "__v", "__x__", "a b"]


@pytest.mark.parametrize("opaque", [False, True])
def test_all_other_names_are_read_as_they_are_set(opaque: bool) -> None:
    app = tm.App("names")
    columns: dict[str, Any] = dict.fromkeys(NAMES, int)
    games = app.table("games", key="id", schema={"id": int, **columns})
    plays = app.stream("plays", schema={"id": int, "over": int, **columns})

    @app.transaction(plays, opaque=opaque, out={"sum": int})
    def play(tx, e):
        row = games.upsert({"id": e.id, **{name: getattr(e, name) for name in NAMES}})
        total = e.over
        for name in NAMES:
            total = total + getattr(row, name)
        return {"sum": total}

    with app.start() as mill:
        mill.send(plays, [{"id": 1, "over": 100, **dict(zip(NAMES, range(10), strict=True))}])
        mill.drain()
        assert mill.output(play).rows() == [{"sum": 145}]


def test_a_file_whose_column_has_a_name_of_rows(tmp_path: Path) -> None:
    (tmp_path / "games.csv").write_text("id,over\n1,true\n")
    app = tm.App("names")
    games = app.table("games", key="id", id=int, is_over=bool)
    plays = app.stream("plays", id=int, is_over=bool)
    plays.read(tm.files(tmp_path / "games.csv", columns={"is_over": "over"}))

    @app.transaction(plays)
    def play(tx, e):
        games.upsert(id=e.id, is_over=e.is_over)

    with app.start() as mill:
        mill.drain()
        assert mill.table(games).rows() == [{"id": 1, "is_over": True}]


SECONDS = ["1h", dt.timedelta(seconds=1)]


@pytest.mark.parametrize("span", SECONDS)
@pytest.mark.parametrize("time", [int, tm.timestamp, None])
@pytest.mark.parametrize("opaque", [False, True])
def test_seconds_are_refused_where_time_is_an_int(span: Any, time: Any, opaque: bool) -> None:
    def app() -> tuple[tm.App, tm.Stream]:
        made = tm.App("times")
        if time is None:
            return made, made.stream("s", id=int)
        return made, made.stream("s", time="at", at=time, id=int)

    def history() -> None:
        made, stream = app()
        table = made.table("t", key="id", id=int, n=tm.column(int, default=0), history=span)

        @made.transaction(stream.filter(tm.col("id") > 0), opaque=opaque, out={"id": int})
        def take(tx, e):
            table[e.id].n += 1
            return {"id": e.id}

        made.inspect()

    def derived() -> None:
        """Of what a handler has returned: its events have the time of those that it took."""
        made, stream = app()
        table = made.table("t", key="id", id=int, history=("1h", 7))

        @made.transaction(stream, opaque=opaque, out={"id": int})
        def take(tx, e):
            return {"id": e.id}

        @made.transaction(take)
        def look(tx, e):
            table.upsert(id=e.id)

        made.inspect()

    def batches() -> None:
        app()[1].filter(tm.col("id") > 0).batches(span)

    def window() -> None:
        made, stream = app()
        recent = made.window("recent", time=span, id=int)

        @made.procedure(stream, owns=[recent])
        def fill(tx, s):
            recent.insert(id=1)

        made.inspect()

    for place in (history, derived, batches, window):
        if time is int:
            assert "is an int, so" in refused(place), place
            assert "is an int in the same unit" in refused(place), place
        else:
            place()


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize(
    "over", [tm.sliding("1h"), tm.sliding(9, slide="1s"), tm.tumbling("1h"), tm.session("1h")]
)
def test_windows_of_seconds_are_refused_where_time_is_an_int(over: Any, opaque: bool) -> None:
    app = tm.App("times")
    stream = app.stream("s", time="at", at=int, id=int)
    table = app.table("t", key="id", id=int, history=(10**13, None))

    @app.transaction(stream, opaque=opaque, out={"n": int})
    def take(tx, e):
        row = table.upsert(id=e.id)
        return {"n": row.over(over).count()}

    if not opaque:
        assert "is an int, so its size is an int in the same unit" in refused(app.inspect)
        return
    with app.start() as mill:
        mill.send(stream, [{"at": 1, "id": 1}])
        mill.drain()
        reason = mill.output(take.aborted).rows()[0]["reason"]
    assert "is an int, so its size is an int in the same unit" in reason


def test_batches_of_an_int_time_are_in_its_unit() -> None:
    app = tm.App("times")
    steps = app.stream("steps", time="at", at=int).batches(time=10)

    @app.procedure(steps, out={"first": int, "n": int})
    def gather(tx, steps):
        return {"first": steps[0].at, "n": len(steps)}

    with app.start() as mill:
        mill.send(steps, [{"at": at} for at in (1, 9, 10, 25)])
        mill.finish()
        found = [tuple(row.values()) for row in mill.output(gather).rows()]
    assert found == [(1, 2), (10, 1), (25, 1)]
    assert "a number of events or a time" in refused(lambda: steps.batches())
    assert "a number of events or a time" in refused(lambda: steps.batches(3, time=1))
    assert "has no events" in refused(lambda: steps.batches(time=0))
