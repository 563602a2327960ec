"""The promises of the page about values, for traced functions and for those with real values."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidemill as tm

D = Decimal
BOTH = pytest.mark.parametrize("opaque", [False, True], ids=["traced", "opaque"])


def outcomes(app: tm.App, stream: tm.Stream, handlers: list[tm.Handler], *rows: Any) -> list[Any]:
    """Returns the outcome of each handler: the reasons of aborts, then its output."""
    names = {stream.name for stream in app.streams}
    with app.start() as mill:
        mill.send(stream, list(rows))
        mill.drain()
        return [
            [row["reason"] for row in mill.output(handler.aborted).rows()]
            + (mill.output(handler).rows() if handler.name in names else [])
            for handler in handlers
        ]


NEEDS_A_VALUE: dict[str, Callable[[Any, Any], object]] = {
    "plus": lambda tx, e: e.x + 1,
    "minus": lambda tx, e: 1 - e.x,
    "times": lambda tx, e: e.x * 2,
    "divided": lambda tx, e: e.x / 2,
    "floor": lambda tx, e: e.x // 2,
    "rest": lambda tx, e: 7 % e.x,
    "negative": lambda tx, e: -e.x,
    "less": lambda tx, e: e.x < 1,
    "at least": lambda tx, e: e.x >= e.x,
    "the larger": lambda tx, e: tm.max(e.x, 1),
    "size": lambda tx, e: tm.abs(e.x),
    "cast": lambda tx, e: tm.cast(e.x, str),
    "and": lambda tx, e: e.flag & (e.n == 0),
    "or": lambda tx, e: (e.n == 0) | e.flag,
    "not": lambda tx, e: ~e.flag,
    "where": lambda tx, e: tm.where(e.flag, 1, 2),
    "length": lambda tx, e: tm.length(e.s),
    "text": lambda tx, e: e.s + "a",
}


def test_a_null_has_no_order_and_no_arithmetic() -> None:
    app = tm.App("nulls")
    stream = app.stream("s", n=int, x=tm.optional(int), flag=tm.optional(bool), s=tm.optional(str))

    def handler(name: str, what: Callable[[Any, Any], object]) -> tm.Handler:
        def use(tx: Any, e: Any) -> dict[str, Any]:
            return {"value": what(tx, e)}

        use.__name__ = name.replace(" ", "_")
        return app.transaction(stream)(use)

    handlers = [handler(name, what) for name, what in NEEDS_A_VALUE.items()]

    @app.transaction(stream)
    def require(tx: Any, e: Any) -> None:
        tx.require(e.flag, "a null is no condition")

    @app.transaction(stream)
    def when(tx: Any, e: Any) -> dict[str, Any]:
        with tx.when(e.flag):
            tx.require(e.n > 0, "a null is not true")
        return {"n": e.n}

    handlers += [require, when]
    assert all(handler.path == "traced" for handler in handlers)
    row = {"n": 0, "x": None, "flag": None, "s": None}
    found = outcomes(app, stream, handlers, row)
    assert found == [["null where a value is needed"]] * len(handlers)


def test_a_null_equals_a_null_and_nothing_else() -> None:
    app = tm.App("nulls")
    stream = app.stream("s", x=tm.optional(int), y=tm.optional(int))

    @app.transaction(stream)
    def compare(tx: Any, e: Any) -> dict[str, Any]:
        return {
            "none": e.x == None,
            "is_null": tm.is_null(e.x),
            "same": e.x == e.y,
            "other": e.x != e.y,
            "either": tm.coalesce(e.x, e.y, -1),
        }

    rows = [{"x": None, "y": None}, {"x": None, "y": 0}, {"x": 0, "y": None}, {"x": 3, "y": 3}]
    [found] = outcomes(app, stream, [compare], *rows)
    assert [list(row.values()) for row in found] == [
        [True, True, True, False, -1],
        [True, True, False, True, 0],
        [False, False, False, True, 0],
        [False, False, True, False, 3],
    ]


@BOTH
def test_a_null_is_no_key(opaque: bool) -> None:
    app = tm.App("nulls")
    table = app.table("t", key=("a", "b"), a=int, b=str, n=tm.column(int, default=0))
    stream = app.stream("s", a=tm.optional(int), b=tm.optional(str))
    out: dict[str, Any] = {"n": int}

    @app.transaction(stream, opaque=opaque)
    def write(tx: Any, e: Any) -> None:
        table[e.a, e.b].n += 1

    @app.transaction(stream, opaque=opaque, out=out)
    def read(tx: Any, e: Any) -> dict[str, Any]:
        return {"n": table[e.a, e.b].n}

    @app.transaction(stream, opaque=opaque)
    def insert(tx: Any, e: Any) -> None:
        table.insert(a=e.a, b=e.b, n=1)

    rows = [{"a": None, "b": "x"}, {"a": 1, "b": None}]
    found = outcomes(app, stream, [write, read, insert], *rows)
    assert found == [["null in the key of t"] * 2] * 3


@BOTH
def test_rows_that_are_missing_and_rows_that_are_there(opaque: bool) -> None:
    app = tm.App("missing")
    table = app.table("t", key="k", k=int, n=tm.column(int, default=7), s=str, o=tm.optional(str))
    names = ["look", "set", "insert", "update", "upsert", "delete", "only"]
    streams = {name: app.stream(f"to_{name}", k=int) for name in names}
    out: dict[str, Any] = {"there": bool, "n": int, "s": tm.optional(str), "o": tm.optional(str)}

    @app.transaction(streams["look"], opaque=opaque, out=out)
    def look(tx: Any, e: Any) -> dict[str, Any]:
        row = table[e.k]
        return {"there": row.exists(), "n": row.n, "s": row.s, "o": row.o}

    @app.transaction(streams["set"], opaque=opaque)
    def assign(tx: Any, e: Any) -> None:
        table[e.k].s = "set"

    @app.transaction(streams["insert"], opaque=opaque)
    def insert(tx: Any, e: Any) -> None:
        table.insert(k=e.k, s="inserted")

    @app.transaction(streams["update"], opaque=opaque)
    def update(tx: Any, e: Any) -> None:
        table[e.k].update(n=9)

    @app.transaction(streams["upsert"], opaque=opaque)
    def upsert(tx: Any, e: Any) -> None:
        table.upsert(k=e.k, s="upserted")

    @app.transaction(streams["delete"], opaque=opaque)
    def delete(tx: Any, e: Any) -> None:
        table[e.k].delete()

    @app.transaction(streams["only"], opaque=opaque)
    def only(tx: Any, e: Any) -> None:
        table[e.k].n = 1

    with app.start() as mill:

        def do(name: str) -> Any:
            """The row after an event, and the reason why that has aborted."""
            handler = {"set": assign, "look": look, "insert": insert, "update": update}.get(name)
            handler = handler or {"upsert": upsert, "delete": delete, "only": only}[name]
            before = len(mill.output(handler.aborted))
            mill.send(streams[name], [{"k": 1}])
            mill.drain()
            reasons = [row["reason"] for row in mill.output(handler.aborted).rows()[before:]]
            found = [(row["n"], row["s"], row["o"]) for row in mill.table(table).rows()]
            return reasons[0] if reasons else found[0] if found else None

        assert do("look") is None
        assert mill.output(look).rows() == [{"there": False, "n": 7, "s": None, "o": None}]
        assert do("delete") is None
        assert do("update") == "t[1] is missing"
        assert do("only") == "t[1] has no value for column 's'"
        assert mill.table(table).rows() == []
        assert do("set") == (7, "set", None)
        assert do("only") == (1, "set", None)
        assert do("insert") == "t[1] exists already"
        assert do("update") == (9, "set", None)
        assert do("upsert") == (7, "upserted", None)
        assert do("delete") is None
        assert do("insert") == (7, "inserted", None)
        assert do("delete") is None
        assert do("upsert") == (7, "upserted", None)
        assert do("look") == (7, "upserted", None)
        assert mill.output(look).rows()[-1]["there"] is True


@BOTH
def test_values_are_computed_before_the_row_is_looked_at(opaque: bool) -> None:
    app = tm.App("before")
    table = app.table("t", key="k", k=int, n=int)
    stream = app.stream("s", k=int, n=int)

    @app.transaction(stream, opaque=opaque)
    def insert(tx: Any, e: Any) -> None:
        table.upsert(k=e.k, n=0)
        table.insert(k=e.k, n=tm.div(e.n, 0, scale=0) if opaque else e.n // 0)

    @app.transaction(stream, opaque=opaque)
    def update(tx: Any, e: Any) -> None:
        table[e.k].delete()
        table[e.k].update(n=tm.div(e.n, 0, scale=0) if opaque else e.n // 0)

    found = outcomes(app, stream, [insert, update], {"k": 1, "n": 1})
    assert found == [["division by zero"]] * 2


@BOTH
def test_equal_keys_are_one_row_and_own_writes_are_seen(opaque: bool) -> None:
    app = tm.App("own")
    table = app.table("t", key="k", k=int, n=tm.column(int, default=0))
    stream = app.stream("s", a=int, b=int)

    @app.transaction(stream, opaque=opaque, out={"n": int, "there": bool})
    def both(tx: Any, e: Any) -> dict[str, Any]:
        one, other = table[e.a], table[e.b]
        one.n += 1
        other.n += 10
        one.n *= 2
        other.delete()
        there = one.exists()
        one.n += 5
        return {"n": other.n, "there": there}

    [found] = outcomes(app, stream, [both], {"a": 1, "b": 1}, {"a": 2, "b": 3})
    assert found == [{"n": 5, "there": False}, {"n": 0, "there": True}]


def test_casts_and_roundings() -> None:
    app = tm.App("casts")
    stream = app.stream("s", f=float, d=tm.decimal(3))
    store = app.table("store", key="k", k=int, d=tm.decimal(2))

    @app.transaction(stream)
    def whole(tx: Any, e: Any) -> dict[str, Any]:
        return {"value": tm.cast(e.f, int)}

    @app.transaction(stream)
    def exact(tx: Any, e: Any) -> dict[str, Any]:
        return {"value": tm.cast(e.f, tm.decimal(2))}

    @app.transaction(stream, out={"value": tm.decimal(2)})
    def stored(tx: Any, e: Any) -> dict[str, Any]:
        store[0].d = e.d
        return {"value": store[0].d}

    @app.transaction(stream)
    def cast(tx: Any, e: Any) -> dict[str, Any]:
        return {"value": tm.cast(e.d, tm.decimal(2))}

    @app.transaction(stream)
    def divided(tx: Any, e: Any) -> dict[str, Any]:
        return {"value": tm.div(e.d, 1, scale=2)}

    def values(handler: tm.Handler, name: str, *given: Any) -> list[Any]:
        with app.start() as mill:
            mill.send(stream, [{"f": 0.0, "d": 0, name: value} for value in given])
            mill.drain()
            assert mill.output(handler.aborted).rows() == []
            return [row["value"] for row in mill.output(handler).rows()]

    def refused(handler: tm.Handler, *given: float) -> int:
        with app.start() as mill:
            mill.send(stream, [{"f": value, "d": 0} for value in given])
            mill.drain()
            assert mill.output(handler).rows() == []
            assert mill.status()["faults"] == 0
            return len(mill.output(handler.aborted))

    assert values(whole, "f", 1.9, -1.9, -0.0, 2.0**62) == [1, -1, 0, 2**62]
    assert refused(whole, math.nan, math.inf, -math.inf, 2.0**63, -(2.0**63) * 1.5) == 5
    # 2.675 is a little less than that as a float, and 0.125 and 0.375 are exact.
    texts = [str(value) for value in values(exact, "f", 2.675, 0.125, 0.375, -0.125)]
    assert texts == ["2.67", "0.12", "0.38", "-0.12"]
    assert refused(exact, math.nan, math.inf, 1e17) == 3
    halves = [D("0.125"), D("0.135"), D("-0.125"), D("-0.135"), D("0.126")]
    for handler in (stored, cast, divided):
        texts = [str(value) for value in values(handler, "d", *halves)]
        assert texts == ["0.12", "0.14", "-0.12", "-0.14", "0.13"]


def test_scales_of_decimals() -> None:
    app = tm.App("scales")
    stream = app.stream("s", a=tm.decimal(1), b=tm.decimal(3), n=int)

    @app.transaction(stream)
    def compute(tx: Any, e: Any) -> dict[str, Any]:
        return {
            "sum": e.a + e.b,
            "difference": e.b - e.a,
            "product": e.a * e.b,
            "int": e.n + e.a,
            "same": tm.cast(e.a, tm.decimal(1)) == tm.cast(e.a, tm.decimal(2)),
        }

    [[found]] = outcomes(app, stream, [compute], {"a": D("1.5"), "b": D("0.125"), "n": 2})
    assert [str(value) for value in found.values()] == ["1.625", "-1.375", "0.1875", "3.5", "True"]
    for scale in (0, 18):
        assert app.table(f"t{scale}", key="k", k=int, d=tm.decimal(scale))
    for scale in (-1, 19):
        with pytest.raises(tm.ProgramError):
            app.table("t", key="k", k=int, d=tm.decimal(scale))


def test_numbers_compare_by_value() -> None:
    app = tm.App("compare")
    stream = app.stream("s", n=int, f=float)

    @app.transaction(stream)
    def compare(tx: Any, e: Any) -> dict[str, Any]:
        return {"same": e.n == e.f, "less": e.n < e.f, "more": e.n > e.f}

    rows = [
        {"n": 2**53 + 1, "f": 2.0**53},
        {"n": 2**53, "f": 2.0**53},
        {"n": 2**63 - 1, "f": 2.0**63},
        {"n": 0, "f": -0.0},
        {"n": 0, "f": math.nan},
    ]
    [found] = outcomes(app, stream, [compare], *rows)
    assert [tuple(row.values()) for row in found] == [
        (False, False, True),
        (True, False, False),
        (False, True, False),
        (True, False, False),
        (False, False, False),
    ]


@BOTH
def test_nan_and_minus_zero(opaque: bool) -> None:
    app = tm.App("nan")
    table = app.table("t", key="f", f=float, n=tm.column(int, default=0), last=tm.optional(float))
    stream = app.stream("s", f=float)
    out = {"same": bool, "less": bool, "zero": bool, "n": int}

    @app.transaction(stream, opaque=opaque, out=out)
    def take(tx: Any, e: Any) -> dict[str, Any]:
        row = table[e.f]
        row.n += 1
        row.last = e.f
        return {"same": e.f == row.last, "less": e.f < 1.0, "zero": e.f == 0.0, "n": row.n}

    rows = [{"f": f} for f in (math.nan, -math.nan, 0.0, -0.0)]
    with app.start() as mill:
        mill.send(stream, rows)
        mill.drain()
        assert [tuple(row.values()) for row in mill.output(take).rows()] == [
            (False, False, False, 1),
            (False, False, False, 2),
            (True, True, True, 1),
            (True, True, True, 2),
        ]
        zero, nan = mill.table(table).rows()
        assert math.copysign(1, zero["f"]) == 1
        assert math.copysign(1, zero["last"]) == -1
        assert math.isnan(nan["f"])
        assert math.isnan(nan["last"])


def test_order() -> None:
    app = tm.App("order")
    stream = app.stream("s", a=str, b=str, x=bytes, y=bytes, p=bool, q=bool)

    @app.transaction(stream)
    def compare(tx: Any, e: Any) -> dict[str, Any]:
        return {"text": e.a < e.b, "bytes": e.x < e.y, "bool": e.p < e.q}

    # In UTF-16 the first of the two texts would be the second one.
    row = {"a": "\uffff", "b": "\U00010000", "x": b"\x7f\xff", "y": b"\x80", "p": False, "q": True}
    [found] = outcomes(app, stream, [compare], row)
    assert found == [{"text": True, "bytes": True, "bool": True}]


@pytest.mark.parametrize("kind", [tm.any, tm.list(int)], ids=["any", "list"])
def test_lists_and_any_have_no_order(kind: Any) -> None:
    app = tm.App("order")
    stream = app.stream("s", a=kind, b=kind)
    with pytest.raises(tm.ProgramError):

        @app.transaction(stream)
        def less(tx: Any, e: Any) -> dict[str, Any]:
            return {"less": e.a < e.b}

    with pytest.raises(tm.ProgramError):

        @app.transaction(stream)
        def least(tx: Any, e: Any) -> dict[str, Any]:
            return {"least": tm.min(e.a, e.b)}

    @app.transaction(stream)
    def same(tx: Any, e: Any) -> dict[str, Any]:
        return {"same": e.a == e.b}

    rows = [{"a": [1, 2], "b": [1, 2]}, {"a": [1, 2], "b": [2, 1]}]
    assert outcomes(app, stream, [same], *rows) == [[{"same": True}, {"same": False}]]


@BOTH
def test_the_first_of_two_equals(opaque: bool) -> None:
    app = tm.App("equals")
    stream = app.stream("s", a=float, b=float)

    @app.transaction(stream, opaque=opaque, out={"min": float, "max": float})
    def take(tx: Any, e: Any) -> dict[str, Any]:
        return {"min": tm.min(e.a, e.b), "max": tm.max(e.a, e.b)}

    [found] = outcomes(app, stream, [take], {"a": 0.0, "b": -0.0}, {"a": -0.0, "b": 0.0})
    assert [repr(value) for row in found for value in row.values()] == ["0.0"] * 2 + ["-0.0"] * 2


def test_what_does_not_happen_is_not_evaluated() -> None:
    app = tm.App("bad")
    stream = app.stream("s", n=int)
    table = app.table("t", key="k", k=int, n=tm.column(int, default=0))

    @app.transaction(stream)
    def when(tx: Any, e: Any) -> dict[str, Any]:
        with tx.when(e.n != 0):
            table[0].n = 1 // e.n
        return {"n": table[0].n}

    @app.transaction(stream)
    def where(tx: Any, e: Any) -> dict[str, Any]:
        return {"n": tm.where(e.n == 0, 5, 1 // e.n)}

    @app.transaction(stream)
    def coalesce(tx: Any, e: Any) -> dict[str, Any]:
        return {"n": tm.coalesce(tm.where(e.n == 0, e.n, None), 1 // e.n)}

    @app.transaction(stream)
    def either(tx: Any, e: Any) -> dict[str, Any]:
        return {"either": (e.n == 0) | (1 // e.n > 0)}

    @app.transaction(stream)
    def both(tx: Any, e: Any) -> dict[str, Any]:
        return {"both": (e.n != 0) & (1 // e.n > 0)}

    @app.transaction(stream)
    def first(tx: Any, e: Any) -> None:
        table[1].n = 3
        tx.require(e.n > 0, "the first of them")
        table[2].n = 1 // e.n
        tx.require(e.n > 1, "the last of them")

    found = outcomes(app, stream, [when, where, coalesce, either, both, first], {"n": 0})
    assert found == [
        [{"n": 0}],
        [{"n": 5}],
        [{"n": 0}],
        ["division by zero"],
        ["division by zero"],
        ["the first of them"],
    ]


def test_inside_an_opaque_function_pythons_rules_hold() -> None:
    app = tm.App("inside")
    stream = app.stream("s", what=str)
    table = app.table("t", key="k", k=int, d=tm.decimal(2), n=tm.optional(int))

    @app.transaction(stream, opaque=True)
    def f(tx: Any, e: Any) -> None:
        row = table[0]
        row.d = 1
        if e.what == "large":
            row.n = (2**63) ** 3 // (2**63) ** 3
        elif e.what == "third":
            row.d = D(1) / 3
        elif e.what == "div":
            row.d = tm.div(D(1), 3, scale=2)
        elif e.what == "quantize":
            row.d = (D(1) / 3).quantize(D("0.001"))
        elif e.what == "half":
            row.d = D("0.125")
        elif e.what == "null":
            table[1].n = table[1].n + 1

    with app.start() as mill:

        def do(what: str) -> Any:
            before = len(mill.output(f.aborted))
            mill.send(stream, [{"what": what}])
            mill.drain()
            reasons = [row["reason"] for row in mill.output(f.aborted).rows()[before:]]
            return reasons[0] if reasons else str(mill.table(table)[0]["d"])

        assert do("large") == "1.00"
        assert mill.table(table)[0]["n"] == 1
        assert do("div") == "0.33"
        assert do("quantize") == "0.33"
        assert do("half") == "0.12"
        assert not do("third").startswith(("0", "fault"))
        assert mill.status()["faults"] == 0
        assert do("null").startswith("fault: TypeError")


def hashes(rows: list[dict[str, Any]], gone: list[int], **settings: Any) -> tuple[str, str]:
    """The hashes of a run that writes rows, and then deletes some of them."""
    app = tm.App("hashes")
    table = app.table("t", key="k", k=int, f=float, s=tm.optional(str))
    stream = app.stream("s", k=int, f=float, s=tm.optional(str))
    leave = app.stream("leave", k=int)

    @app.transaction(stream)
    def put(tx: Any, e: Any) -> None:
        table.upsert(k=e.k, f=e.f, s=e.s)

    @app.transaction(leave)
    def delete(tx: Any, e: Any) -> dict[str, Any]:
        table[e.k].delete()
        return {"k": e.k}

    with app.start(**settings) as mill:
        mill.send(stream, rows)
        mill.drain()
        mill.send(leave, [{"k": k} for k in gone])
        summary = mill.finish()
    return summary["state_hash"], summary["output_hash"]


def test_hashes_are_of_what_is_there() -> None:
    rows = [{"k": k, "f": k / 7, "s": None if k % 3 else str(k)} for k in range(50)]
    state, output = hashes(rows, [])
    strange = [{"k": k, "f": 1.0, "s": "x"} for k in range(100, 130)]
    gone: list[Any] = [row["k"] for row in strange]
    for settings in ({"workers": 1}, {"workers": 3, "epoch_rows_max": 4}):
        found, other = hashes([*strange, *reversed(rows), *rows], gone, **settings)
        assert found == state
        assert other != output
        # Outputs are hashed in their order.
        assert hashes([*strange, *rows], gone, **settings) == (found, other)
        assert hashes([*strange, *rows], gone[::-1], **settings)[1] != other
    for change in ({"f": 0.5}, {"s": ""}, {"k": 50}):
        assert hashes([*rows[:-1], {**rows[-1], **change}], [])[0] != state


def test_stored_floats_have_one_nan() -> None:
    [other] = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))
    of = [hashes([{"k": 1, "f": f, "s": None}], [])[0] for f in (math.nan, other, 0.0, -0.0)]
    assert of[0] == of[1]
    # Outside of keys -0.0 stays what it is.
    assert of[2] != of[3]


def test_any_is_equal_when_its_bytes_are() -> None:
    app = tm.App("any")
    stream = app.stream("s", a=tm.any, b=tm.any)

    @app.transaction(stream)
    def compare(tx: Any, e: Any) -> dict[str, Any]:
        return {"same": e.a == e.b}

    pairs = [([1, "x"], [1, "x"]), (1, 1.0), (D("1.5"), D("1.5")), ({"a": None}, {"a": 0})]
    [found] = outcomes(app, stream, [compare], *[{"a": a, "b": b} for a, b in pairs])
    assert [row["same"] for row in found] == [True, False, True, False]


def test_ints_are_times_in_microseconds_and_spans_are_ints() -> None:
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    for opaque in (False, True):
        app = tm.App("times")
        stream = app.stream("s", a=tm.timestamp, b=tm.timestamp)
        table = app.table("t", key="k", k=int, span=int, then=tm.timestamp)

        @app.transaction(stream, opaque=opaque, out={"span": int, "is_later": bool})
        def take(tx: Any, e: Any, table: Any = table) -> dict[str, Any]:
            table.upsert(k=0, span=e.b - e.a, then=e.b + (e.b - e.a))
            return {"span": table[0].span, "is_later": e.b > e.a}

        with app.start() as mill:
            mill.send(stream, [{"a": start, "b": 1_704_067_203_500_000}])
            mill.drain()
            assert mill.output(take.aborted).rows() == []
            assert mill.output(take).rows() == [{"span": 3_500_000, "is_later": True}]
            then = start + dt.timedelta(seconds=7)
            assert mill.table(table).rows() == [{"k": 0, "span": 3_500_000, "then": then}]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (int, lambda e: e.f),
        (int, lambda e: e.d),
        (int, lambda e: e.b),
        (float, lambda e: e.d),
        (float, lambda e: e.b),
        (str, lambda e: e.n),
        (bytes, lambda e: e.s),
        (bool, lambda e: e.n),
        (tm.decimal(2), lambda e: e.f),
        (tm.timestamp, lambda e: e.n),
    ],
)
def test_storing_needs_a_cast(column: Any, value: Callable[[Any], Any]) -> None:
    app = tm.App("storing")
    stream = app.stream("s", n=int, f=float, d=tm.decimal(2), b=bool, s=str)
    table = app.table("t", key="k", k=int, x=tm.optional(column))
    with pytest.raises(tm.ProgramError, match=r"'x' is .*, but the value given is "):

        @app.transaction(stream)
        def traced(tx: Any, e: Any) -> None:
            table[0].x = value(e)

    @app.transaction(stream, opaque=True)
    def put(tx: Any, e: Any) -> None:
        table[0].x = value(e)

    row = {"n": 1, "f": 1.0, "d": 1, "b": True, "s": "1"}
    [[reason]] = outcomes(app, stream, [put], row)
    assert "can't be stored in column 'x'" in reason


def test_what_is_stored_is_converted() -> None:
    app = tm.App("stored")
    stream = app.stream("s", n=int, d=tm.decimal(3))
    table = app.table("t", key="k", k=str, f=float, d=tm.decimal(1))

    @app.transaction(stream)
    def traced(tx: Any, e: Any) -> None:
        table.upsert(k="traced", f=e.n, d=e.n)
        table.upsert(k="scale", f=e.n, d=e.d)

    @app.transaction(stream, opaque=True)
    def opaque(tx: Any, e: Any) -> None:
        table.upsert(k="opaque", f=e.n, d=e.n)
        table.upsert(k="opaque scale", f=e.n, d=e.d)

    with app.start() as mill:
        mill.send(stream, [{"n": 7, "d": D("1.250")}])
        mill.drain()
        found = {row["k"]: (row["f"], str(row["d"])) for row in mill.table(table).rows()}
    assert found["traced"] == found["opaque"] == (7.0, "7.0")
    assert found["scale"] == found["opaque scale"] == (7.0, "1.2")


def test_floats_divide_by_zero_badly_and_go_to_infinity() -> None:
    app = tm.App("floats")
    stream = app.stream("s", f=float, zero=float, large=float)

    @app.transaction(stream)
    def quotient(tx: Any, e: Any) -> dict[str, Any]:
        return {"value": e.f / e.zero}

    @app.transaction(stream)
    def floor(tx: Any, e: Any) -> dict[str, Any]:
        return {"value": e.f // e.zero}

    @app.transaction(stream)
    def rest(tx: Any, e: Any) -> dict[str, Any]:
        return {"value": e.f % e.zero}

    @app.transaction(stream)
    def large(tx: Any, e: Any) -> dict[str, Any]:
        return {"times": e.large * e.large, "plus": e.large + e.large, "minus": -e.large - e.large}

    handlers = [quotient, floor, rest, large]
    for zero in (0.0, -0.0):
        row = {"f": 1.0, "zero": zero, "large": 1.7e308}
        *bad, [infinite] = outcomes(app, stream, handlers, row)
        assert bad == [["division by zero"]] * 3
        assert list(infinite.values()) == [math.inf, math.inf, -math.inf]


def test_what_any_holds_may_be_null_inside() -> None:
    app = tm.App("any")
    stream = app.stream("s", x=tm.any, y=tm.optional(tm.any))

    @app.transaction(stream)
    def take(tx: Any, e: Any) -> dict[str, Any]:
        return {"x": e.x, "y": e.y, "is_null": tm.is_null(e.y)}

    with app.start() as mill:
        with pytest.raises(tm.InputError, match="row 1, column 'x': it is None"):
            mill.send(stream, [{"x": 1, "y": 1}, {"x": None, "y": 1}])
        mill.send(stream, [{"x": [None, {"a": None}], "y": None}, {"x": 0, "y": [None]}])
        mill.drain()
        assert mill.output(take).rows() == [
            {"x": [None, {"a": None}], "y": None, "is_null": True},
            {"x": 0, "y": [None], "is_null": False},
        ]


def test_a_time_beyond_the_years_is_an_int_for_python() -> None:
    app = tm.App("far")
    stream = app.stream("s", at=tm.timestamp, by=int)
    table = app.table("t", key="k", k=int, at=tm.timestamp, n=tm.column(int, default=0))

    @app.transaction(stream)
    def move(tx: Any, e: Any) -> dict[str, Any]:
        table.upsert(k=0, at=e.at + e.by)
        return {"at": table[0].at}

    @app.transaction(move, opaque=True, out={"at": int})
    def look(tx: Any, e: Any) -> dict[str, Any]:
        assert e.at == table[0].at
        # The other columns of the row can be written.
        table[0].n += 1
        return {"at": e.at}

    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
    us = (last - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    with app.start() as mill:
        mill.send(stream, [{"at": last, "by": by} for by in (1, 2**62, 2**63 - 1)])
        mill.drain()
        assert [row["at"] for row in mill.output(look).rows()] == [us + 1, us + 2**62]
        assert mill.table(table).rows() == [{"k": 0, "at": us + 2**62, "n": 1}]
        assert [row["reason"] for row in mill.output(move.aborted).rows()] == ["overflow"]
        with pytest.raises(tm.InputError, match="outside of the years 1 to 9999"):
            mill.send(stream, [{"at": us + 1, "by": 0}])


@BOTH
@pytest.mark.parametrize("unique", [False, True])
def test_floats_in_indexes_are_as_in_keys(opaque: bool, unique: bool) -> None:
    app = tm.App("indexed")
    table = app.table("t", key="k", k=int, f=float)
    by_f = table.index("f", unique=unique)
    stream = app.stream("s", k=int, f=float)

    @app.transaction(stream, opaque=opaque)
    def put(tx: Any, e: Any) -> None:
        table.upsert(k=e.k, f=e.f)

    @app.procedure
    def look(tx: Any) -> Any:
        return {
            "zero": [row.k for row in by_f[-0.0]],
            "nan": [row.k for row in by_f[-math.nan]],
            "all": [row.k for row in by_f.scan()],
            "below": [row.k for row in by_f.scan(None, 0.0)],
        }

    with app.start() as mill:
        # One that changes into an equal one stays where it is.
        for k, f in ((1, 0.0), (1, -0.0), (1, 0.0), (2, math.nan), (2, -math.nan), (3, -1.0)):
            mill.send(stream, [{"k": k, "f": f}])
            mill.drain()
        assert mill.output(put.aborted).rows() == []
        assert mill.call(look) == {"zero": [1], "nan": [2], "all": [3, 1, 2], "below": [3]}
        mill.send(stream, [{"k": 4, "f": -0.0}, {"k": 5, "f": math.nan}])
        mill.drain()
        reasons = [row["reason"] for row in mill.output(put.aborted).rows()]
        if unique:
            assert len(reasons) == 2
            assert all("exists already" in reason for reason in reasons)
        else:
            assert reasons == []
            assert mill.call(look) == {
                "zero": [1, 4],
                "nan": [2, 5],
                "all": [3, 1, 4, 2, 5],
                "below": [3],
            }


def versions_hash(history: Any, *writes: tuple[int, int]) -> str:
    """The hash of a table with a history, behind writes at their times."""
    app = tm.App("versions")
    table = app.table("t", key="k", k=int, n=int, history=history)
    stream = app.stream("s", time="at", at=int, n=int)

    @app.transaction(stream)
    def put(tx: Any, e: Any) -> None:
        table.upsert(k=0, n=e.n)

    with app.start(epoch_rows_max=1) as mill:
        for at, n in writes:
            mill.send(stream, [{"at": at, "n": n}])
            mill.drain()
        found: str = mill.finish()["state_hash"]
    return found


def test_the_hash_is_of_the_versions_that_are_kept() -> None:
    # By time: what is forgotten has never been.
    by_time = (10, None)
    kept = versions_hash(by_time, (100, 1))
    assert versions_hash(by_time, (1, 9), (2, 8), (100, 1)) == kept
    assert versions_hash(by_time, (91, 9), (100, 1)) != kept
    assert versions_hash(by_time, (90, 9), (100, 1)) == kept
    assert versions_hash(by_time, (99, 1)) != kept
    # By count: which number a version has is how many there were.
    assert versions_hash(2, (1, 9), (99, 5), (100, 1)) != versions_hash(2, (99, 5), (100, 1))
    found = versions_hash(2, (1, 9), (99, 5), (100, 1))
    assert versions_hash(2, (2, 8), (99, 5), (100, 1)) == found
    assert versions_hash(2, (2, 8), (98, 5), (100, 1)) != found


def test_a_float_is_the_nearest_to_what_was_given(tmp_path: Path) -> None:
    given, nearest = 2**53 + 1, 2.0**53
    (tmp_path / "in.csv").write_text(f"x\n{given}\n0.1\n1e400\n")
    (tmp_path / "in.jsonl").write_text(f'{{"x": {given}}}\n{{"x": 0.1}}\n{{"x": 1e400}}\n')
    for name in ("in.csv", "in.jsonl"):
        app = tm.App("files")
        stream = app.stream("s", x=float)
        stream.read(tm.files(tmp_path / name))

        @app.transaction(stream)
        def copy(tx: Any, e: Any) -> dict[str, Any]:
            return {"x": e.x}

        with app.start() as mill:
            mill.finish()
            assert [row["x"] for row in mill.output(copy).rows()] == [nearest, 0.1]
            [dead] = mill.output(stream.dead).rows()
            assert "out of range" in dead["reason"]
    app = tm.App("sent")
    stream = app.stream("s", x=float)

    @app.transaction(stream)
    def take(tx: Any, e: Any) -> dict[str, Any]:
        return {"x": e.x}

    @app.procedure
    def give(tx: Any, x: float) -> float:
        return x

    with app.start() as mill:
        for rows in ([{"x": given}], {"x": [given]}, pa.table({"x": pa.array([given])})):
            mill.send(stream, rows)
        mill.drain()
        assert [row["x"] for row in mill.output(take).rows()] == [nearest] * 3
        assert mill.call(give, x=given) == nearest
        for far in (2**63, 10**400, D("0.5")):
            with pytest.raises(tm.InputError, match="column 'x'"):
                mill.send(stream, [{"x": far}])


@pytest.mark.parametrize(
    ("column", "array", "found"),
    [
        (tm.list(int), pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), [[1, 2], None]),
        (tm.list(int), pa.array([[1, None], []], pa.large_list(pa.int8())), [[1, None], []]),
        (str, pa.array(["a", None], pa.large_string()), ["a", None]),
        (str, pa.array(["long enough for a view", "b"], pa.string_view()), None),
        (bytes, pa.array([b"long enough for a view", b"b"], pa.binary_view()), None),
        (bytes, pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        (tm.decimal(2), pa.array([D("1.50"), None], pa.decimal64(10, 2)), [D("1.50"), None]),
        (int, pa.array([5, None]).dictionary_encode(), [5, None]),
        (str, pa.nulls(2), [None, None]),
        (tm.timestamp, pa.array([5, 6], pa.time32("s")), "a time of day"),
        (int, pa.array([pa.MonthDayNano([1, 2, 3])] * 2), "a span of time"),
        (float, pa.array([1, 2]).cast(pa.float16()), "is not supported"),
        (tm.list(int), pa.array([[1], [2]], pa.list_view(pa.int64())), [[1], [2]]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_kinds_of_arrow(column: Any, array: Any, found: Any) -> None:
    app = tm.App("arrow")
    stream = app.stream("s", x=tm.optional(column))

    @app.transaction(stream)
    def take(tx: Any, e: Any) -> dict[str, Any]:
        return {"x": e.x}

    with app.start() as mill:
        if isinstance(found, str):
            with pytest.raises(tm.InputError, match=f"column 'x', row 0: .*{found}"):
                mill.send(stream, pa.table({"x": array}))
            return
        mill.send(stream, pa.table({"x": array}))
        mill.drain()
        rows = [row["x"] for row in mill.output(take).rows()]
        assert rows == (found or array.to_pylist())
