"""The operations that tracing records."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

import tidemill as tm

from .conftest import Ledger, payment, reference


def recorded(handler: tm.Handler) -> tuple[list[Any], list[Any], list[Any]]:
    """Expressions, rows and steps of a handler, without their lines."""
    assert handler.recorder is not None
    found = handler.recorder.json()
    exprs = [node["expr"] for node in found["exprs"]]
    rows = [(row["table"], row["key"]) for row in found["rows"]]
    steps = [(step["op"], step.get("when")) for step in found["steps"]]
    return exprs, rows, steps


def test_a_transfer(ledger: Ledger) -> None:
    accounts = ledger.accounts

    @ledger.app.transaction(ledger.payments)
    def pay(tx, e):
        src, dst = accounts[e.src], accounts[e.dst]
        tx.require(src.balance >= e.amount, "insufficient funds")
        src.balance -= e.amount
        dst.balance += e.amount
        return dict(src=e.src, left=src.balance)

    exprs, rows, steps = recorded(pay)
    assert pay.path == "traced"
    assert pay.why == "traced"
    assert rows == [(0, [0]), (0, [1])]
    assert exprs == [
        {"column": 0},
        {"column": 1},
        {"var": 0},
        {"column": 2},
        {"binary": ["ge", 2, 3]},
        {"const": {"str": "insufficient funds"}},
        {"binary": ["sub", 2, 3]},
        {"var": 1},
        {"binary": ["add", 7, 3]},
        {"var": 2},
    ]
    assert steps == [
        ({"read": {"row": 0, "column": 1, "var": 0}}, None),
        ({"require": {"cond": 4, "reason": 5}}, None),
        ({"set": {"row": 0, "column": 1, "value": 6}}, None),
        # Read after a write to the table: the two keys may be one row.
        ({"read": {"row": 1, "column": 1, "var": 1}}, None),
        ({"set": {"row": 1, "column": 1, "value": 8}}, None),
        ({"read": {"row": 0, "column": 1, "var": 2}}, None),
        ({"emit": {"stream": pay.id, "values": [0, 9]}}, None),
    ]
    assert str(pay.schema) == "src: int, left: decimal(2)"


def test_a_transfer_to_oneself_changes_nothing(ledger: Ledger) -> None:
    accounts = ledger.accounts

    @ledger.app.transaction(ledger.payments)
    def pay(tx, e):
        src, dst = accounts[e.src], accounts[e.dst]
        src.balance -= e.amount
        dst.balance += e.amount

    outcome = reference(ledger.app, (ledger.payments, [payment(src=1, dst=1)]))
    assert [row["balance"] for row in outcome.tables["accounts"]] == [Decimal("0.00")]


def test_every_kind_of_step(ledger: Ledger) -> None:
    accounts, pairs, large = ledger.accounts, ledger.pairs, ledger.large

    @ledger.app.transaction(ledger.payments)
    def work(tx, e):
        row = accounts[e.src]
        there = row.exists()
        with tx.when(there):
            row.update(balance=row.balance + 1)
            with tx.when(e.flag):
                row.delete()
        accounts.insert(id=e.dst, balance=1)
        accounts.upsert(id=e.dst, owner=e.memo)
        pairs[e.src, e.memo].n = 3
        del accounts[e.src]
        tx.emit(large, src=e.src)

    exprs, rows, steps = recorded(work)
    kinds = [(next(iter(op)), when is not None) for op, when in steps]
    assert kinds == [
        ("exists", False),
        ("read", False),  # a read never depends on a condition
        ("update", True),
        ("delete", True),
        ("insert", False),
        ("upsert", False),
        ("set", False),
        ("delete", False),
        ("emit", False),
    ]
    # A condition inside another is only looked at where that one holds.
    outer, inner = steps[2][1], steps[3][1]
    flag = exprs.index({"column": 4})
    no = exprs.index({"const": {"bool": False}})
    assert exprs[inner] == {"where": [outer, flag, no]}
    assert rows[2] == (1, [rows[0][1][0], exprs.index({"column": 3})])
    assert steps[-1][0]["emit"]["stream"] == large.id
    assert exprs[steps[-1][0]["emit"]["values"][1]] == {"const": "null"}
    assert large.origin == "emitted"


def test_constants(ledger: Ledger) -> None:
    moments = ledger.app.stream("moments", at=tm.timestamp)

    @ledger.app.transaction(moments)
    def f(tx, e):
        return dict(
            later=e.at + dt.timedelta(seconds=1),
            new=e.at > dt.datetime(1970, 1, 2, tzinfo=dt.UTC),
            half=Decimal("0.5"),
            nan=float("nan"),
            raw=b"\x01",
            same=tm.coalesce(None, e.at),
        )

    exprs, _, _ = recorded(f)
    assert {"const": {"int": 1_000_000}} in exprs
    assert {"const": {"timestamp": 86_400_000_000}} in exprs
    assert {"const": {"decimal": [5, 1]}} in exprs
    assert {"float_bits": 0x7FF8000000000000} in exprs
    assert {"const": {"bytes": [1]}} in exprs
    assert str(f.schema) == (
        "later: timestamp, new: bool, half: decimal(1), nan: float, raw: bytes, same: timestamp"
    )


def test_functions_and_operators_have_the_engines_types(ledger: Ledger) -> None:
    @ledger.app.transaction(ledger.payments)
    def f(tx, e):
        return dict(
            a=tm.div(e.amount, 3, scale=4),
            b=tm.cast(e.src, float) / 2,
            c=tm.where(e.flag, e.amount, 0),
            d=tm.min(e.src, 7, e.x),
            e=tm.length(e.memo) % 5,
            f=e.memo.upper().startswith("A") | ~e.flag,
            g=abs(-e.src // 2),
            h=tm.is_null(tm.coalesce(e.memo, "x")),
            i=1 < e.src,
            j="<" + tm.strip(e.memo),
        )

    assert str(f.schema) == (
        "a: decimal(4), b: float, c: decimal(2), d: float, e: int, f: bool, g: int, h: bool, "
        "i: bool, j: str"
    )


def test_the_same_expression_is_one_node(ledger: Ledger) -> None:
    accounts = ledger.accounts

    @ledger.app.transaction(ledger.payments)
    def f(tx, e):
        accounts[e.src + 1].balance = accounts[e.src + 1].balance + 1

    exprs, rows, _ = recorded(f)
    assert len(rows) == 1
    assert len([x for x in exprs if "binary" in x]) == 2


def test_raising_an_abort_is_recorded(ledger: Ledger) -> None:
    accounts = ledger.accounts

    @ledger.app.transaction(ledger.payments)
    def f(tx, e):
        with tx.when(e.amount > 5):
            raise tm.Abort("too much")
        accounts[e.src].balance += e.amount

    outcome = reference(ledger.app, (ledger.payments, [payment(amount=9), payment(amount=2)]))
    assert f.path == "traced"
    assert outcome.reasons() == ["too much"]
    assert [row["balance"] for row in outcome.tables["accounts"]] == [2]


def test_filter_and_map(ledger: Ledger) -> None:
    small = ledger.payments.filter(tm.col("amount") < 5, name="small")
    doubled = small.map(src=tm.col("src"), twice=tm.col("amount") * 2)
    seen = ledger.app.table("seen", key="src", src=int, twice=tm.decimal(2))

    @ledger.app.transaction(doubled)
    def note(tx, e):
        seen.upsert(src=e.src, twice=e.twice)

    assert small.origin["derived"]["from"] == ledger.payments.id
    assert doubled.name == "small.map"
    events = [payment(src=1, amount=3), payment(src=2, amount=7)]
    outcome = reference(ledger.app, (ledger.payments, events))
    assert outcome.tables["seen"] == [{"src": 1, "twice": Decimal("6.00")}]


@pytest.mark.parametrize("doublings", [3, 13])
def test_rows_that_a_stage_cannot_compute_are_dead(doublings: int) -> None:
    """Also where columns would be so large that the stage computes row by row."""
    app = tm.App("texts")
    texts = app.stream("texts", id=int, text=str, n=tm.column(int, optional=True))
    long = tm.col("text")
    for _ in range(doublings):
        long = long + long
    made = texts.map(id=tm.col("id"), len=tm.length(long), half=100 // tm.col("n"))
    kept = made.filter(100 % (tm.col("half") - 1) == 0, name="kept")
    seen = app.table("seen", key="id", id=int, len=int, half=int)

    @app.transaction(kept)
    def note(tx, e):
        seen.upsert(id=e.id, len=e.len, half=e.half)

    rows = [{"id": id, "text": "x" * 1000, "n": n} for id, n in enumerate([0, None, 100, 50, 33])]
    with app.start() as mill:
        mill.send(texts, [*rows, *({**row, "id": row["id"] + 10} for row in rows)])
        mill.drain()
        found = mill.table(seen).rows()
        dead = [
            [(row["offset"], row["reason"]) for row in mill.output(stream.dead)]
            for stream in (made, kept)
        ]
    assert found == [
        {"id": id, "len": 1000 << doublings, "half": half}
        for id, half in ((3, 2), (4, 3), (13, 2), (14, 3))
    ]
    by_zero, null = "division by zero", "null where a value is needed"
    assert dead == [
        [(0, by_zero), (1, null), (5, by_zero), (6, null)],
        [(2, by_zero), (7, by_zero)],
    ]


def test_outputs_feed_handlers(ledger: Ledger) -> None:
    count = ledger.app.table("count", key="what", what=str, n=tm.column(int, default=0))

    @ledger.app.transaction(ledger.payments)
    def check(tx, e):
        tx.require(e.amount < 5, "large: " + tm.cast(e.amount, str))
        return dict(src=e.src)

    @ledger.app.transaction(check)
    def good(tx, e):
        count["good"].n += 1

    @ledger.app.transaction(check.aborted)
    def bad(tx, e):
        count[e.reason].n += 1

    outcome = reference(ledger.app, (ledger.payments, [payment(amount=1), payment(amount=9)]))
    assert outcome.tables["count"] == [{"what": "good", "n": 1}, {"what": "large: 9.00", "n": 1}]


def test_every_declaration_knows_its_line(ledger: Ledger) -> None:
    spec, _ = ledger.app.spec({}, keep_all=False, push=True)
    places = [t["at"] for t in spec["program"]["tables"] + spec["program"]["streams"]]
    assert all("conftest.py:" in place for place in places)


def test_sources_and_sinks(ledger: Ledger) -> None:
    trades = ledger.app.stream("trades", time="at", at=tm.timestamp, n=int)
    days = ledger.app.stream("days", time="day", day=int)
    trades.read(tm.files("a.csv", delimiter=";"), out_of_orderness="2s", idle="5ms")
    days.read(tm.files("b.jsonl"), out_of_orderness=3)
    days.push()
    trades.late.write(tm.files("late.csv", overwrite=True))
    trades.dead.keep()
    spec, _ = ledger.app.spec({}, keep_all=False, push=True)
    for source in spec["sources"]:
        source.pop("at")
    assert spec["sources"] == [
        {
            "stream": "trades",
            "out_of_orderness_us": 2_000_000,
            "idle_us": 5_000,
            "files": {"path": "a.csv", "delimiter": ";"},
        },
        {"stream": "days", "out_of_orderness_us": 3, "idle_us": None, "files": {"path": "b.jsonl"}},
        {"stream": "days", "out_of_orderness_us": 0, "idle_us": None, "files": None},
        {"stream": "payments", "out_of_orderness_us": 0, "idle_us": None, "files": None},
        {"stream": "large", "out_of_orderness_us": 0, "idle_us": None, "files": None},
    ]
    assert spec["sinks"][0]["stream"] == "trades.late"
    assert spec["keep"] == ["trades.dead"]
