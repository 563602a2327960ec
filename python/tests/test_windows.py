"""Windows over the versions of rows, and ranges of keys."""

from __future__ import annotations

from typing import Any

import tidemill as tm

from .conftest import reference, refusal

EVENTS = [
    {"at": at, "id": at % 3, "n": n}
    for at, n in [(1, 5), (2, -2), (4, 7), (9, 1), (10, 3), (13, 8)]
]


def sensors(opaque: bool, **given: Any) -> tuple[tm.App, tm.Stream]:
    """An app that reads windows of every kind behind each write."""
    app = tm.App("sensors")
    table = app.table(
        "readings", key="id", id=int, n=tm.column(int, default=0), history=(20, 4), ordered=True
    )
    stream = app.stream("events", time="at", at=int, id=int, n=int)

    @app.transaction(stream, opaque=opaque, **given)
    def take(tx: Any, e: Any) -> dict[str, Any]:
        row = table[e.id]
        before = row.over(tm.sliding(10)).n.sum()
        row.n = e.n
        return {
            "before": before,
            "sum": row.over(tm.sliding(10)).n.sum(),
            "mean": row.over(tm.last(2)).n.avg(),
            "low": row.over(tm.tumbling(5)).n.min(),
            "high": row.over(tm.sliding(6, slide=4)).n.max(),
            "count": row.over(tm.session(6)).count(),
            "first": row.over(tm.tumbling(versions=2)).n.first(),
            "last": row.over(tm.last(4)).n.last(),
            "mixed": row.over(tm.last(3)).fold(1, lambda state, v: state * 2 + v.n),
        }

    return app, stream


def test_windows_of_every_kind() -> None:
    app, stream = sensors(False)
    rows = reference(app, (stream, EVENTS)).outputs["take"]
    # The fourth event is of row 0, its first; the fifth of row 1: 5 at 1, 7 at 4, and 3 at 10.
    assert rows[4] == {
        "before": 12,
        "sum": 15,
        "mean": 5.0,
        "low": 3,
        "high": 7,
        "count": 3,
        "first": 3,
        "last": 3,
        "mixed": ((1 * 2 + 5) * 2 + 7) * 2 + 3,
    }


def test_real_values_and_the_engine_agree() -> None:
    app, stream = sensors(False)
    wanted = reference(app, (stream, EVENTS))
    optional = dict.fromkeys(("low", "high"), tm.optional(int))
    ends = dict.fromkeys(("first", "last"), tm.optional(int))
    out = {"before": int, "sum": int, "mean": tm.optional(float), **optional, "count": int, **ends}
    other, its_stream = sensors(True, out={**out, "mixed": int})
    assert reference(other, (its_stream, EVENTS)).outputs["take"] == wanted.outputs["take"]
    with app.start() as mill:
        mill.send(stream, EVENTS)
        mill.drain()
        assert mill.table("readings").rows() == wanted.tables["readings"]


def test_a_column_of_a_row_has_windows() -> None:
    app = tm.App("a")
    table = app.table("t", key="id", id=int, n=tm.column(int, default=0), history=3)
    stream = app.stream("s", id=int, n=int)

    @app.transaction(stream)
    def take(tx: Any, e: Any) -> dict[str, Any]:
        table[e.id].n = e.n
        return {"sum": table[e.id].n.over(tm.last(2)).sum()}

    assert take.path == "traced"
    events = [{"id": 1, "n": n} for n in (1, 2, 4)]
    found = reference(app, (stream, events)).outputs["take"]
    assert [row["sum"] for row in found] == [1, 3, 6]


def test_an_empty_window_counts_nothing() -> None:
    app = tm.App("a")
    table = app.table("t", key="id", id=int, n=int, history="1s")
    stream = app.stream("s", id=int)

    @app.transaction(stream)
    def take(tx: Any, e: Any) -> dict[str, Any]:
        over = table[e.id].over(tm.sliding("1s"))
        return {"n": over.count(), "sum": over.n.sum(), "low": tm.coalesce(over.n.min(), -1)}

    found = reference(app, (stream, [{"id": 1}])).outputs["take"]
    assert found == [{"n": 0, "sum": 0, "low": -1}]


def test_a_sum_that_is_out_of_range_aborts() -> None:
    app = tm.App("a")
    table = app.table("t", key="id", id=int, n=tm.column(int, default=0), history=3)
    stream = app.stream("s", id=int, n=int)

    @app.transaction(stream)
    def take(tx: Any, e: Any) -> dict[str, Any]:
        table[e.id].n = e.n
        return {"sum": table[e.id].over(tm.last(2)).n.sum()}

    events = [{"id": 1, "n": n} for n in (2**62, 2**62, -5)]
    outcome = reference(app, (stream, events))
    assert outcome.reasons() == ["overflow"]
    assert [row["sum"] for row in outcome.outputs["take"]] == [2**62, 2**62 - 5]


def test_ranges_see_own_writes() -> None:
    app = tm.App("a")
    table = app.table("t", key=("a", "b"), a=int, b=str, n=int, ordered=True)
    stream = app.stream("s", a=int, b=str)

    @app.transaction(stream)
    def traced(tx: Any, e: Any) -> dict[str, Any]:
        table.upsert(a=e.a, b=e.b, n=1)
        return {"rows": table.scan(1, 3).count(), "sum": table.scan((2, "b")).n.sum()}

    @app.transaction(stream, out={"keys": str})
    def walked(tx: Any, e: Any) -> dict[str, Any]:
        table[e.a, "x"].n = 2
        return {"keys": " ".join(f"{row.a}{row.b}" for row in table.scan(end=3, limit=3))}

    assert (traced.path, walked.path) == ("traced", "opaque")
    events = [{"a": 2, "b": "b"}, {"a": 1, "b": "z"}, {"a": 3, "b": "a"}]
    outputs = reference(app, (stream, events)).outputs
    assert outputs["traced"] == [
        {"rows": 1, "sum": 1},
        {"rows": 3, "sum": 3},
        {"rows": 4, "sum": 4},
    ]
    assert [row["keys"] for row in outputs["walked"]] == ["2b 2x", "1x 1z 2b", "1x 1z 2b"]


def test_bad_windows_are_refused_where_they_are() -> None:
    def longer() -> None:
        app = tm.App("a")
        table = app.table("t", key="id", id=int, n=int, history="1s")
        stream = app.stream("s", id=int)

        @app.transaction(stream)
        def take(tx: Any, e: Any) -> dict[str, Any]:
            return {"n": table[e.id].over(tm.sliding("2s")).n.sum()}  # here

    assert refusal(longer).what == "tm.sliding('2s') is longer than the history of table t"

    def by_count() -> None:
        app = tm.App("a")
        table = app.table("t", key="id", id=int, n=int, history="1s")
        stream = app.stream("s", id=int)

        @app.transaction(stream)
        def take(tx: Any, e: Any) -> dict[str, Any]:
            return {"n": table[e.id].over(tm.last(1)).n.sum()}  # here

    assert refusal(by_count).what == "tm.last(1) is longer than the history of table t"

    def without() -> None:
        app = tm.App("a")
        table = app.table("t", key="id", id=int, n=int)
        stream = app.stream("s", id=int)

        @app.transaction(stream)
        def take(tx: Any, e: Any) -> dict[str, Any]:
            return {"n": table[e.id].over(tm.last(5)).n.sum()}  # here

    error = refusal(without)
    assert error.what == "table t has no history over which tm.last(5) could be read"
    assert error.help == "declare it with history=5"

    def no_sum() -> None:
        app = tm.App("a")
        table = app.table("t", key="id", id=int, s=str, history=5)
        stream = app.stream("s", id=int)

        @app.transaction(stream)
        def take(tx: Any, e: Any) -> dict[str, Any]:
            return {"n": table[e.id].over(tm.last(5)).s.sum()}  # here

    assert refusal(no_sum).what == "column 's' of table t is str: it has no sum"

    def no_order() -> None:
        app = tm.App("a")
        table = app.table("t", key="id", id=int, n=int)
        stream = app.stream("s", id=int)

        @app.transaction(stream)
        def take(tx: Any, e: Any) -> dict[str, Any]:
            return {"n": table.scan(1, 2).n.sum()}  # here

    assert "its keys are in no order" in refusal(no_order).what

    def other_state() -> None:
        app = tm.App("a")
        table = app.table("t", key="id", id=int, n=int, history=5)
        stream = app.stream("s", id=int)

        @app.transaction(stream)
        def take(tx: Any, e: Any) -> dict[str, Any]:
            over = table[e.id].over(tm.last(5))
            return {"n": over.fold(0, lambda state, v: v.n * 0.5)}  # here

    assert refusal(other_state).what == "the fold begins with int, but its step gives float"

    def nothing_kept() -> None:
        tm.App("a").table("t", key="id", id=int, history=0)  # here

    assert refusal(nothing_kept).what == "table t: history=0 retains nothing"

    def no_size() -> None:
        tm.sliding("0s")  # here

    assert refusal(no_size).what == "size='0s': it must be more than 0"

    def no_unit() -> None:
        tm.tumbling("ten")  # here

    assert "is not a duration" in refusal(no_unit).what


def test_versions_outlive_a_restart(tmp_path: Any) -> None:
    def app() -> tuple[tm.App, tm.Stream]:
        app, stream = tm.App("a"), None
        table = app.table("t", key="id", id=int, n=tm.column(int, default=0), history=5)
        stream = app.stream("s", id=int, n=int)

        @app.transaction(stream)
        def take(tx: Any, e: Any) -> dict[str, Any]:
            row = table[e.id]
            row.n = e.n
            return {"sum": row.over(tm.last(3)).n.sum()}

        return app, stream

    for n, total in [(1, 1), (2, 3), (3, 6), (4, 9)]:
        ledger, stream = app()
        with ledger.start(data_dir=tmp_path / "data") as mill:
            mill.send(stream, [{"id": 7, "n": n}], wait=True)
            mill.drain()
            assert [row["sum"] for row in mill.output("take")][-1] == total
