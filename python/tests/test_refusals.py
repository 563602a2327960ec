"""Every refusal names the user's line, what is wrong, and what to write instead."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest

import tidemill as tm

from .conftest import Ledger, refusal


def test_if(ledger: Ledger) -> None:
    def define() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            if e.amount > 5:  # here
                ledger.accounts[e.src].balance = 0

    error = refusal(define)
    assert error.what == "'if' on a value that differs from event to event can't be traced"
    for advice in ("tm.where", "tx.require", "with tx.when", "& | ~", "opaque=True"):
        assert advice in error.help


def test_and(ledger: Ledger) -> None:
    def define() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(e.flag and e.amount > 5, "no")  # here

    error = refusal(define)
    assert "'and'" in error.what
    assert error.help.startswith("write (a) & (b)")


def test_or_not_in_and_chained_comparisons(ledger: Ledger) -> None:
    def either() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(e.flag or e.amount > 5, "no")  # here

    def negated() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(not e.flag, "no")  # here

    def chained() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(1 < e.src < 3, "no")  # here

    def member() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(e.src in [1, 2], "no")  # here

    def key() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(e.src in ledger.accounts, "no")  # here

    assert "|" in refusal(either).help
    assert refusal(negated).help.startswith("write ~x")
    assert "chained comparison" in refusal(chained).what
    assert "(x == a) | (x == b)" in refusal(member).help
    assert "exists()" in refusal(key).help


def test_builtins_that_branch(ledger: Ledger) -> None:
    def define() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.src].balance = max(e.amount, 0)  # here

    assert "tm.min, tm.max" in refusal(define).help


def test_a_row_is_no_condition(ledger: Ledger) -> None:
    def define() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            if ledger.accounts[e.src]:  # here
                pass

    assert "row.exists()" in refusal(define).help


def test_is_none_is_found_though_python_asks_nobody(ledger: Ledger) -> None:
    def define() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            row = ledger.accounts[e.src]
            owner = row.owner
            if owner is None:  # here
                row.owner = e.memo

    assert "tm.is_null(x)" in refusal(define).help


def test_return_under_a_condition(ledger: Ledger) -> None:
    def define() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            with tx.when(e.flag):
                return dict(src=e.src)  # here
            return dict(src=0)

    assert "tx.emit" in refusal(define).help


def test_an_f_string_beside_what_only_traced_functions_have(ledger: Ledger) -> None:
    accounts, large = ledger.accounts, ledger.large
    ordered = ledger.app.table("ordered", key="id", ordered=True, id=int, n=int)

    def when_first() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            with tx.when(e.flag):
                tx.emit(large, src=1, note=f"card {e.src}")  # here

    def when_later() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            note = f"card {e.src}"  # here
            with tx.when(e.flag):
                tx.emit(large, src=1, note=note)

    def returns() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            with tx.when(e.flag):
                accounts[e.src].balance = 0
            return {"note": f"card {e.src}"}  # here

    for define in (when_first, when_later, returns):
        error = refusal(define)
        assert error.what.startswith("handler f can't be traced, which tx.when in line ")
        assert error.what.endswith(
            "needs: an f-string needs the value itself ('text ' + tm.cast(x, str) can be traced)"
        )
        assert "write 'if'" in error.help

    def inverted() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(~e.flag, f"card {e.src}")  # here

    def scanned() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(ordered.scan(0, e.src).n.sum() > 0, f"card {e.src}")  # here

    assert ", which ~ in line " in refusal(inverted).what
    assert ", which the aggregate of ordered.scan in line " in refusal(scanned).what
    assert ledger.app.handlers == []

    def helper(tx: tm.Tx, e: Any) -> None:
        with tx.when(e.flag):
            accounts[e.src].balance = 0

    def helped() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            helper(tx, e)
            tx.emit(large, src=1, note=f"card {e.src}")  # here

    assert ", which tx.when in line " in refusal(helped).what


def test_when_in_a_function_with_real_values(ledger: Ledger) -> None:
    app, one = ledger.app, ledger.app.entity("one", key="id", id=int, n=int)

    def opaque() -> None:
        @app.transaction(ledger.payments, opaque=True)
        def f(tx, e):
            with tx.when(e.flag):  # here
                pass

    def procedure() -> None:
        @app.procedure
        def f(tx, flag: bool):
            def inner() -> None:
                tx.when(flag)  # here

            inner()

    def trigger() -> None:
        @app.trigger(ledger.accounts)
        def f(tx, change):
            tx.when(True)  # here

    def entity() -> None:
        @one.function
        def f(self, ctx):
            ctx.when(self.n > 0)  # here

    for define in (opaque, procedure, trigger, entity):
        assert "runs with real values, and tx.when is for traced" in refusal(define).what


def test_types(ledger: Ledger) -> None:
    def mixed() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.src].balance += e.x  # here

    def literal() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(e.amount > 0.5, "no")  # here

    def stored() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.src].owner = e.src  # here

    def key() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.memo].balance = 1  # here

    def condition() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.require(e.src, "no")  # here

    def branches() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.src].owner = tm.where(e.flag, e.memo, e.src)  # here

    def division() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.src].balance = e.amount / 2  # here

    assert "mixes decimal(2) and float" in refusal(mixed).what
    assert refusal(literal).help == 'write decimal.Decimal("0.5") instead of 0.5'
    assert refusal(stored).what == "table accounts: 'owner' is str, but the value given is int"
    assert "key column 'id' of table accounts is int" in refusal(key).what
    assert refusal(condition).what == "tx.require takes a bool, not int"
    assert "the types str and int" in refusal(branches).what
    assert "tm.div(a, b, scale=2)" in refusal(division).what


def test_names(ledger: Ledger) -> None:
    def event() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.source].balance = 1  # here

    def row() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.src].balanse = 1  # here

    def undefined() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[helper(e.src)].balance = 1  # noqa: F821  # here

    assert "its columns are" in refusal(event).help
    assert refusal(row).help == "did you mean 'balance'?"
    assert "define what it uses above it" in refusal(undefined).help


def test_keys(ledger: Ledger) -> None:
    def number() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.pairs[e.src].n = 1  # here

    def part() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.src].id = 1  # here

    def missing() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.pairs.insert(a=e.src, b="x")  # here

    def whole() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            ledger.accounts[e.src] = 5  # here

    assert "has the key (a, b), but 1 value was given" in refusal(number).what
    assert "part of the key" in refusal(part).what
    assert "needs a value for column 'n'" in refusal(missing).what
    assert "upsert" in refusal(whole).help


def test_streams(ledger: Ledger) -> None:
    def sourced() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            tx.emit(ledger.payments, src=1)  # here

    def column() -> None:
        @ledger.app.transaction(ledger.payments)
        def g(tx, e):
            tx.emit(ledger.large, sources=1)  # here

    ledger.payments.read(tm.files("x.csv"))
    assert "can't emit into it" in refusal(sourced).what
    assert "has no column 'sources'" in refusal(column).what


def test_hidden_non_determinism(ledger: Ledger) -> None:
    def define() -> None:
        @ledger.app.transaction(ledger.payments)
        def lucky(tx, e):
            ledger.accounts[e.src].balance = random.randrange(10**9)  # here

    error = refusal(define)
    assert "handler lucky did not do the same" in error.what
    assert "random" in error.what


def test_a_function_that_returns_needs_out_to_be_opaque(ledger: Ledger) -> None:
    def define() -> None:
        @ledger.app.transaction(ledger.payments)
        def f(tx, e):
            return dict(text=f"{e.src}")  # here

    error = refusal(define)
    assert "an f-string needs the value itself" in error.what
    assert "out=dict(column=type, ...)" in error.help

    def asked() -> None:
        @ledger.app.transaction(ledger.payments, opaque=True)  # here
        def f(tx, e):
            return dict(text="x")

    assert "out=dict(column=type, ...)" in refusal(asked).help


def test_a_value_of_another_event(ledger: Ledger) -> None:
    kept = []

    @ledger.app.transaction(ledger.payments)
    def first(tx, e):
        kept.append(e.src)

    def define() -> None:
        @ledger.app.transaction(ledger.payments)
        def second(tx, e):
            ledger.accounts[kept[0]].balance = 1  # here

    assert "another event" in refusal(define).what


def test_tables_outside_handlers(ledger: Ledger) -> None:
    def define() -> None:
        ledger.accounts[1].balance = 5  # here

    assert "mill.table" in refusal(define).help


@pytest.mark.parametrize(
    ("declare", "what"),
    [
        (lambda app: app.table("accounts", key="id", id=int), "two tables named 'accounts'"),
        (lambda app: app.stream("payments", id=int), "two streams named 'payments'"),
        (lambda app: app.table("t", key="id", id=int, a=complex), "is not the type of a column"),
        (lambda app: app.table("t", key="no", id=int), "has no column 'no'"),
        (lambda app: app.table("t", key=("id", "id"), id=int), "is in the key twice"),
        (lambda app: app.table("t", key="id", id=tm.optional(int)), "neither be null nor have"),
        (lambda app: app.table("t", key="id", id=tm.list(int)), "can't be part of a key"),
        (lambda app: app.table("t", key="id"), "has no columns"),
        (lambda app: app.table("t", key="id", id=tm.decimal), "is a function, not a type"),
        (lambda app: app.table("t", key="i", i=int, x=tm.column(int, default="a")), "its default"),
        (lambda app: app.table("t", key="a", schema={"a": int}, a=int), "two columns named 'a'"),
        (lambda app: app.stream("s", time="at", at=str), "must be a timestamp or an int"),
        (lambda app: app.stream("s", late="never", at=int), "late='never'"),
        (lambda app: app.stream("s", time=tm.timestamp, a=int), "is not a name"),
        (lambda app: app.stream("s", a=int).read("x.csv"), "read takes tm.files"),
        (
            lambda app: app.stream("s", a=int).read(tm.files("x"), out_of_orderness="2s"),
            "event time",
        ),
        (
            lambda app: app.stream("s", time="a", a=int).read(tm.files("x"), out_of_orderness="2s"),
            "an int in the same unit",
        ),
        (
            lambda app: app.stream("s", time="a", a=tm.timestamp).read(
                tm.files("x"), out_of_orderness=2
            ),
            "has no unit",
        ),
        (lambda app: app.stream("s", a=int).filter(tm.col("a")), "filter takes a bool"),
        (lambda app: app.stream("s", a=int).filter(tm.col("b") > 1), "has no column 'b'"),
        (lambda app: app.stream("s", a=int).write(tm.files("x.csv", nulls=["-"])), "nulls= means"),
        (lambda app: app.transaction(print), "needs the stream"),
    ],
)
def test_declarations(ledger: Ledger, declare, what: str) -> None:
    with pytest.raises(tm.ProgramError) as caught:
        declare(ledger.app)
    assert what in caught.value.what
    assert caught.value.at is not None
    assert "test_refusals.py:" in caught.value.at


def test_handlers_are_plain_functions(ledger: Ledger) -> None:
    with pytest.raises(tm.ProgramError, match="is a coroutine"):

        @ledger.app.transaction(ledger.payments)
        async def f(tx, e):
            pass

    with pytest.raises(tm.ProgramError, match=r"can't be called with \(tx, e\)"):

        @ledger.app.transaction(ledger.payments)
        def g(e):
            pass


def test_a_stream_that_returns_nothing_can_not_be_written(ledger: Ledger) -> None:
    @ledger.app.transaction(ledger.payments)
    def f(tx, e):
        ledger.accounts[e.src].balance = Decimal("1.5")

    with pytest.raises(tm.ProgramError, match="returns nothing"):
        f.write(tm.files("x.csv"))
    f.aborted.write(tm.files("y.csv"))
