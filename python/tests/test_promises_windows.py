"""The promises of the page about values on windows and ranges, and on the versions below them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import tidemill as tm

from .test_promises_values import BOTH, D, outcomes


def windows(
    history: Any, over: Callable[[Any], Any], *rows: tuple[int, int | None]
) -> list[list[Any]]:
    """Returns the window of a row after each write, in traced and in opaque functions."""
    found = []
    for opaque in (False, True):
        app = tm.App("windows")
        table = app.table("t", key="k", k=int, n=tm.optional(int), history=history)
        stream = app.stream("s", time="at", at=int, n=tm.optional(int))
        optional = dict.fromkeys(("sum", "first", "last"), tm.optional(int))

        @app.transaction(stream, opaque=opaque, out={"count": int, **optional})
        def take(tx: Any, e: Any, table: Any = table) -> dict[str, Any]:
            row = table[0]
            row.n = e.n
            window = row.over(over(tm))
            return {
                "count": window.count(),
                "sum": window.n.sum(),
                "first": window.n.first(),
                "last": window.n.last(),
            }

        with app.start() as mill:
            mill.send(stream, [{"at": at, "n": n} for at, n in rows])
            mill.finish()
            assert mill.output(take.aborted).rows() == []
            found.append([list(row.values()) for row in mill.output(take).rows()])
    traced, opaque_too = found
    assert traced == opaque_too
    return traced


def test_where_windows_begin_and_end() -> None:
    # Multiples are counted from 0, also of what is before.
    rows = [(at, 10**i) for i, at in enumerate((-11, -10, -1, 0, 9, 10))]

    def sums(over: Callable[[Any], Any]) -> list[Any]:
        return [row[1] for row in windows((40, 1), over, *rows)]

    # (T - 10, T]
    assert sums(lambda tm: tm.sliding(10)) == [1, 11, 110, 1100, 11000, 110000]
    # From the last multiple of 10 up to T.
    assert sums(lambda tm: tm.tumbling(10)) == [1, 10, 110, 1000, 11000, 100000]
    # [B - 10, B), B being -15, -10, -5, 0, 5 and 10.
    assert sums(lambda tm: tm.sliding(10, slide=5)) == [0, 1, 11, 110, 1100, 11000]
    # Neighbours are 9 apart at most.
    assert sums(lambda tm: tm.session(9)) == [1, 11, 111, 1111, 11111, 111111]
    assert sums(lambda tm: tm.session(8)) == [1, 11, 100, 1100, 10000, 110000]


def test_a_session_is_no_longer_than_what_is_kept_by_time() -> None:
    rows = [(at, 1) for at in range(0, 60, 10)]
    found = windows((20, 100), lambda tm: tm.session(10), *rows)
    assert [row[0] for row in found] == [1, 2, 2, 2, 2, 2]


def test_windows_by_count() -> None:
    rows = [(at, at) for at in range(5)]
    last = windows(3, lambda tm: tm.last(3), *rows)
    assert [row[1] for row in last] == [0, 1, 3, 6, 9]
    # Versions 0 and 1, 2 and 3, 4.
    tumbling = windows(3, lambda tm: tm.tumbling(versions=2), *rows)
    assert [row[1] for row in tumbling] == [0, 1, 2, 5, 4]


def test_what_is_kept_by_time_or_by_count_is_kept() -> None:
    rows = [(0, 1), (1, 2), (2, 4), (100, 8), (200, 16)]
    by_count = windows((2, 3), lambda tm: tm.last(3), *rows)
    assert [row[1] for row in by_count] == [1, 3, 7, 14, 28]
    by_time = windows((500, 1), lambda tm: tm.sliding(500), *rows)
    assert [row[1] for row in by_time] == [1, 3, 7, 15, 31]


def test_nulls_are_left_out_but_of_the_ends() -> None:
    found = windows(3, lambda tm: tm.last(3), (1, None), (2, 5), (3, None), (4, None), (5, None))
    assert found == [
        [1, 0, None, None],
        [2, 5, None, 5],
        [3, 5, None, None],
        [3, 5, 5, None],
        [3, 0, None, None],
    ]


@BOTH
def test_a_transaction_makes_one_version_and_a_deletion_none(opaque: bool) -> None:
    app = tm.App("versions")
    table = app.table("t", key="k", k=int, n=tm.column(int, default=0), history=10)
    stream = app.stream("s", n=int)
    gone = app.stream("gone", n=int)

    @app.transaction(stream, opaque=opaque, out={"before": int, "count": int, "sum": int})
    def twice(tx: Any, e: Any) -> dict[str, Any]:
        row = table[0]
        row.n = 100
        before = row.over(tm.last(10)).n.sum()
        row.n = e.n
        window = row.over(tm.last(10))
        return {"before": before, "count": window.count(), "sum": window.n.sum()}

    @app.transaction(gone, opaque=opaque, out={"count": int, "sum": int})
    def delete(tx: Any, e: Any) -> dict[str, Any]:
        table[0].delete()
        window = table[0].over(tm.last(10))
        return {"count": window.count(), "sum": window.n.sum()}

    with app.start() as mill:
        for n, to in ((1, stream), (2, stream), (0, gone), (4, stream)):
            mill.send(to, [{"n": n}])
            mill.drain()
        assert [list(row.values()) for row in mill.output(twice).rows()] == [
            [100, 1, 1],
            [101, 2, 3],
            [103, 3, 7],
        ]
        assert mill.output(delete).rows() == [{"count": 2, "sum": 3}]


@pytest.mark.parametrize(
    ("opaque", "scan"),
    [(False, False), (True, False), (False, True)],
    ids=["window", "opaque", "range"],
)
def test_aggregates_follow_the_rules_of_values(opaque: bool, scan: bool) -> None:
    app = tm.App("aggregates")
    table = app.table(
        "t",
        key="k",
        k=int,
        n=tm.column(int, default=0),
        d=tm.decimal(2, default=0),
        f=tm.column(float, default=0.0),
        history=3,
        ordered=True,
    )
    write = app.stream("write", k=int, n=int, d=tm.decimal(2), f=float)
    read = app.stream("read", k=int)
    aggregates: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "sum_n": (int, lambda rows: rows.n.sum()),
        "avg_n": (tm.optional(float), lambda rows: rows.n.avg()),
        "sum_d": (tm.decimal(2), lambda rows: rows.d.sum()),
        "avg_d": (tm.optional(tm.decimal(2)), lambda rows: rows.d.avg()),
        "sum_f": (float, lambda rows: rows.f.sum()),
        "avg_f": (tm.optional(float), lambda rows: rows.f.avg()),
        "min_f": (tm.optional(float), lambda rows: rows.f.min()),
        "max_f": (tm.optional(float), lambda rows: rows.f.max()),
    }

    @app.transaction(write, opaque=opaque)
    def put(tx: Any, e: Any) -> None:
        row = table[e.k]
        row.n = e.n
        row.d = e.d
        row.f = e.f

    def reader(name: str) -> tm.Handler:
        type, aggregate = aggregates[name]

        def look(tx: Any, e: Any) -> dict[str, Any]:
            rows = table.scan() if scan else table[e.k].over(tm.last(3))
            return {"value": aggregate(rows)}

        look.__name__ = name
        return app.transaction(read, opaque=opaque, out={"value": type})(look)

    readers = {name: reader(name) for name in aggregates}

    def of(**columns: Any) -> dict[str, str]:
        """Returns the aggregates of these columns, as texts."""
        [(name, values)] = columns.items()
        zero = {"n": 0, "d": 0, "f": 0.0}
        with app.start() as mill:
            keys = range(len(values)) if scan else [0] * len(values)
            rows = [{**zero, "k": k, name: v} for k, v in zip(keys, values, strict=True)]
            mill.send(write, rows)
            mill.drain()
            mill.send(read, [{"k": 0}])
            mill.drain()
            found = {}
            for which, handler in readers.items():
                if which.endswith(f"_{name}"):
                    reasons = [row["reason"] for row in mill.output(handler.aborted).rows()]
                    outputs = [str(row["value"]) for row in mill.output(handler).rows()]
                    [found[which.removesuffix(f"_{name}")]] = reasons + outputs
        return found

    # Only a result out of range is a bad value: the sum of the first two is.
    assert of(n=[2**62, 2**62, -(2**62)])["sum"] == str(2**62)
    assert of(n=[2**62, 2**62, 0])["sum"] == "overflow"
    large = [291028859863088068, 543804029693342780, 2177846766610798755]
    assert float(sum(large)) / 3 != sum(large) / 3
    assert of(n=large)["avg"] == str(sum(large) / 3)
    assert of(d=[D("0.01"), D("0.02")]) == {"sum": "0.03", "avg": "0.02"}
    assert of(d=[D("0.02"), D("0.03")]) == {"sum": "0.05", "avg": "0.02"}
    assert of(d=[D("-0.02"), D("-0.03")]) == {"sum": "-0.05", "avg": "-0.02"}
    # One after another in their order, from 0.0.
    assert of(f=[2.0**53, 1.0, 1.0])["sum"] == str(2.0**53)
    assert of(f=[1.0, 1.0, 2.0**53])["sum"] == str(2.0**53 + 2)
    assert of(f=[-0.0]) == {"sum": "0.0", "avg": "0.0", "min": "-0.0", "max": "-0.0"}
    assert of(f=[1.0, 2.0, 2.0])["avg"] == str(5.0 / 3)
    assert of(f=[math.nan, math.inf])["max"] == "nan"
    assert of(f=[math.nan, math.inf])["min"] == "inf"
    assert of(f=[0.0, -0.0])["min"] == "-0.0"
    assert of(f=[0.0, -0.0])["max"] == "0.0"


@BOTH
def test_of_nothing_there_is_no_sum_but_zero(opaque: bool) -> None:
    app = tm.App("nothing")
    table = app.table(
        "t", key="k", k=int, n=int, f=float, d=tm.decimal(2), history=10, ordered=True
    )
    stream = app.stream("s", k=int)
    null = {name: tm.optional(int) for name in ("min", "max", "first", "last")}
    means = {"avg": tm.optional(float), "avg_d": tm.optional(tm.decimal(2))}
    out = {"count": int, "sum": int, "sum_f": float, "sum_d": tm.decimal(2), **null, **means}

    @app.transaction(stream, opaque=opaque, out=out)
    def look(tx: Any, e: Any) -> dict[str, Any]:
        window = table[e.k].over(tm.last(5))
        return {
            "count": window.count(),
            "sum": window.n.sum(),
            "sum_f": window.f.sum(),
            "sum_d": window.d.sum(),
            "min": window.n.min(),
            "max": window.n.max(),
            "first": window.n.first(),
            "last": window.n.last(),
            "avg": window.n.avg(),
            "avg_d": window.d.avg(),
        }

    [[found]] = outcomes(app, stream, [look], {"k": 1})
    assert [str(value) for value in found.values()] == ["0", "0", "0.0", "0.00"] + ["None"] * 6


@pytest.mark.parametrize(
    ("history", "window", "fits"),
    [
        ((10, 1), tm.sliding(10), True),
        ((10, 100), tm.sliding(11), False),
        ((10, 1), tm.tumbling(10), True),
        ((10, 100), tm.tumbling(11), False),
        ((10, 1), tm.sliding(6, slide=4), True),
        ((10, 100), tm.sliding(6, slide=5), False),
        ((10, 1), tm.session(10), True),
        ((10, 100), tm.session(11), False),
        (5, tm.last(5), True),
        ((100, 5), tm.last(6), False),
        (5, tm.tumbling(versions=5), True),
        ((100, 5), tm.tumbling(versions=6), False),
    ],
)
@BOTH
def test_a_window_fits_into_the_history_or_is_refused(
    opaque: bool, history: Any, window: Any, fits: bool
) -> None:
    app = tm.App("fits")
    table = app.table("t", key="k", k=int, n=tm.column(int, default=0), history=history)
    stream = app.stream("s", time="at", at=int, k=int)

    def declare() -> tm.Handler:
        @app.transaction(stream, opaque=opaque, out={"n": int})
        def take(tx: Any, e: Any) -> dict[str, Any]:
            table[e.k].n += 1
            return {"n": table[e.k].over(window).n.sum()}

        return take

    if not fits and not opaque:
        with pytest.raises(tm.ProgramError, match="is longer than the history of table t"):
            declare()
        return
    [found] = outcomes(app, stream, [declare()], {"at": 100, "k": 1})
    if fits:
        assert len(found) == 1
        assert "n" in found[0]
    else:
        assert "is longer than the history of table t" in found[0]


@BOTH
def test_a_write_of_the_same_makes_a_version_and_what_does_not_happen_none(opaque: bool) -> None:
    app = tm.App("same")
    table = app.table("t", key="k", k=int, n=tm.column(int, default=0), history=10)
    stream = app.stream("s", what=str)
    writes = app.stream("writes", k=int)

    @app.transaction(writes, opaque=opaque, out={"count": int, "first": tm.optional(int)})
    def write(tx: Any, e: Any) -> dict[str, Any]:
        table[e.k].n = 5
        window = table[e.k].over(tm.last(10))
        return {"count": window.count(), "first": window.n.first()}

    @app.transaction(stream, opaque=opaque, out={"count": int})
    def other(tx: Any, e: Any) -> dict[str, Any]:
        if opaque:
            if e.what == "set":
                table[1].n = 6
        else:
            with tx.when(e.what == "set"):
                table[1].n = 6
        tx.require(e.what != "abort", "no")
        return {"count": table[1].over(tm.last(10)).count()}

    with app.start() as mill:
        mill.send(writes, [{"k": 1}] * 3)
        mill.drain()
        assert [row["count"] for row in mill.output(write).rows()] == [1, 2, 3]
        mill.send(stream, [{"what": what} for what in ("look", "abort", "look", "set", "look")])
        mill.drain()
        assert [row["count"] for row in mill.output(other).rows()] == [3, 3, 4, 4]
        # Each row has its own.
        mill.send(writes, [{"k": 2}])
        mill.drain()
        assert mill.output(write).rows()[-1] == {"count": 1, "first": 5}
