"""Functions that run with real values."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest

import tidemill as tm

from .conftest import Ledger, marked_line, payment, reference


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda x: {x: 1}, "key of a dict"),
        (lambda x: int(x), "tm.cast(x, int)"),
        (lambda x: f"{x}", "f-string"),
        (lambda x: list(x), "iterated"),
        (lambda x: math.sqrt(x), "float() needs the value"),
        (lambda x: x**2, "unsupported operand"),
        (lambda x: range(3)[x], "an index needs the value"),
        (lambda x: round(x), "round() needs the value"),
        (lambda x: x.bit_length(), "'.bit_length' needs the value"),
        (lambda x: [1, x] + tm.where(True, x, [x]), ""),
    ],
)
def test_what_can_not_be_traced_runs_with_real_values(ledger: Ledger, use, why: str) -> None:
    @ledger.app.transaction(ledger.payments)
    def f(tx, e):
        use(e.src)

    assert f.path == "opaque"
    assert why in f.why
    assert "test_opaque.py:" in f.why


def test_the_reason_names_the_line(ledger: Ledger) -> None:
    def f(tx, e):
        ledger.accounts[e.src].balance = Decimal(int(e.src))  # here

    handler = ledger.app.transaction(ledger.payments)(f)
    assert handler.why.rsplit("/", 1)[-1].startswith(marked_line(f))


def test_a_function_that_returns_runs_when_its_output_is_given(ledger: Ledger) -> None:
    @ledger.app.transaction(ledger.payments, out=dict(text=str, big=tm.optional(int)))
    def f(tx, e):
        return dict(text=f"{e.src}->{e.dst}")

    outcome = reference(ledger.app, (ledger.payments, [payment()]))
    assert f.path == "opaque"
    assert outcome.outputs["f"] == [{"text": "1->2", "big": None}]


def test_real_values_have_pythons_types(ledger: Ledger) -> None:
    every = ledger.app.stream(
        "every",
        i=int,
        f=float,
        b=bool,
        s=str,
        y=bytes,
        t=tm.timestamp,
        d=tm.decimal(2),
        l=tm.list(int),
        a=tm.any,
        n=tm.optional(int),
    )
    kept = ledger.app.table("kept", key="i", schema=every.schema)
    seen: list[object] = []

    @ledger.app.transaction(every, opaque=True)
    def f(tx, e):
        seen.append(dict(e))
        kept.insert(dict(e))

    row = {
        "i": 7,
        "f": 0.5,
        "b": True,
        "s": "é",
        "y": b"\x00",
        "t": dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        "d": Decimal("1.50"),
        "l": [1, 2],
        "a": {"x": [1, None, 2.5, "s", b"y", True], "big": 2**64 - 1},
        "n": None,
    }
    outcome = reference(ledger.app, (every, [row]))
    assert outcome.reasons() == []
    assert repr(seen) == repr([row])
    assert repr(outcome.tables["kept"]) == repr([row])


def test_rows(ledger: Ledger) -> None:
    accounts = ledger.accounts

    @ledger.app.transaction(ledger.payments, opaque=True)
    def f(tx, e):
        row = accounts[e.src]
        assert not row.exists()
        assert row.balance == 0
        assert row.owner is None
        assert row is accounts[e.src]
        row.balance += 1
        assert accounts[e.src].exists()
        assert e.src in accounts
        accounts.upsert(id=e.src, owner="x")
        assert (row.balance, row.owner) == (0, "x")
        row.update(owner="y")
        del accounts[e.src]
        assert not row.exists()
        row.tags.append("made in place")

    outcome = reference(ledger.app, (ledger.payments, [payment()]))
    assert outcome.reasons() == []


def test_lists_changed_in_place_are_written_back(ledger: Ledger) -> None:
    accounts = ledger.accounts

    @ledger.app.transaction(ledger.payments, opaque=True)
    def f(tx, e):
        accounts[e.src].tags.append(e.memo)

    events = [payment(memo="a"), payment(memo="b")]
    outcome = reference(ledger.app, (ledger.payments, events))
    assert [row["tags"] for row in outcome.tables["accounts"]] == [["a", "b"]]


@pytest.mark.parametrize("first", ["list", "number"])
def test_a_missing_row_keeps_all_that_a_function_gives_it(ledger: Ledger, first: str) -> None:
    accounts = ledger.accounts

    @ledger.app.transaction(ledger.payments, opaque=True)
    def f(tx, e):
        row = accounts[e.src]
        if first == "list":
            row.tags.append(e.memo)
        row.balance += 1
        if first == "number":
            row.tags.append(e.memo)

    outcome = reference(ledger.app, (ledger.payments, [payment(memo="a")]))
    [row] = outcome.tables["accounts"]
    assert (row["tags"], row["balance"]) == (["a"], 1)


def test_reading_writes_nothing(ledger: Ledger) -> None:
    accounts = ledger.accounts

    @ledger.app.transaction(ledger.payments, opaque=True)
    def f(tx, e):
        assert accounts[e.src].tags == []

    outcome = reference(ledger.app, (ledger.payments, [payment()]))
    assert outcome.reasons() == []
    assert outcome.tables["accounts"] == []


def test_aborts(ledger: Ledger) -> None:
    accounts = ledger.accounts

    def f(tx, e):
        accounts[e.src].balance += 1
        if e.memo == "abort":
            raise tm.Abort("meant")
        if e.memo == "caught":
            with contextlib.suppress(tm.Abort):
                tx.require(False, "a refusal stays")
        if e.memo == "bug":
            e.memo + 1
        if e.memo == "exit":
            raise SystemExit
        if e.memo == "large":
            accounts[e.src].balance = 10**30
        if e.memo == "null":
            accounts[e.src].balance = None
        if e.memo == "type":
            accounts[e.src].balance = "x"
        if e.memo == "when":
            getattr(tx, "when")(True)  # noqa: B009
        if e.memo == "insert":
            accounts.insert(id=e.src)
        if e.memo == "update":
            accounts[99].update(balance=1)
        if e.memo == "incomplete":
            ledger.pairs[1, "b"].n
            accounts[5].delete()
            ledger.pairs[1, "b"].update()

    ledger.app.transaction(ledger.payments, opaque=True)(f)
    memos = ["abort", "caught", "bug", "exit", "large", "null", "type", "when", "insert"]
    memos += ["update", "incomplete"]
    outcome = reference(ledger.app, (ledger.payments, [payment(memo=memo) for memo in memos]))
    reasons = outcome.reasons()
    assert reasons[:3] == [
        "meant",
        "a refusal stays",
        'fault: TypeError: can only concatenate str (not "int") to str',
    ]
    assert reasons[3] == "fault: SystemExit"
    assert reasons[4] == "overflow"
    assert reasons[5] == "null in column 'balance'"
    assert "can't be stored in column 'balance' of type decimal(2)" in reasons[6]
    assert "in an opaque function write 'if'" in reasons[7]
    assert reasons[8] == "accounts[1] exists already"
    assert reasons[9] == "accounts[99] is missing"
    assert reasons[10] == 'pairs[1, "b"] is missing'
    assert outcome.tables["accounts"] == []


def test_what_is_kept_beyond_the_transaction_is_dead(ledger: Ledger) -> None:
    kept = []

    @ledger.app.transaction(ledger.payments, opaque=True)
    def f(tx, e):
        if kept:
            kept[0].balance
        kept.append(ledger.accounts[e.src + len(kept)])

    outcome = reference(ledger.app, (ledger.payments, [payment(), payment()]))
    assert "the transaction is over" in outcome.reasons()[0]


def test_not_of_a_real_bool(ledger: Ledger) -> None:
    @ledger.app.transaction(ledger.payments, opaque=True)
    def f(tx, e):
        tx.require(~e.flag, "no")

    outcome = reference(ledger.app, (ledger.payments, [payment()]))
    assert "write 'not x'" in outcome.reasons()[0]


def test_emitting(ledger: Ledger) -> None:
    hidden = {"large": ledger.large}

    @ledger.app.transaction(ledger.payments, opaque=True)
    def unknown(tx, e):
        tx.emit(hidden["large"], src=1)

    @ledger.app.transaction(ledger.payments, opaque=True, emits=[ledger.large])
    def known(tx, e):
        tx.emit(hidden["large"], src=e.src)

    outcome = reference(ledger.app, (ledger.payments, [payment()]))
    assert "write @app.transaction(..., emits=[large])" in outcome.reasons()[0]
    assert outcome.outputs["large"] == [{"src": 1, "note": None}]


def test_functions_on_real_values_follow_the_engine() -> None:
    assert tm.div(1, 3, scale=2) == Decimal("0.33")
    assert tm.cast("1.5", tm.decimal(1)) == Decimal("1.5")
    assert tm.min(1, 0.5) == 0.5
    assert tm.where(False, 1, "x") == "x"
    assert tm.coalesce(None, 0) == 0
    assert tm.contains([1, 2], 2)
    assert tm.not_(False)
    assert tm.upper("straße") == "STRASSE"
    with pytest.raises(tm.BadValue, match="overflow"):
        tm.abs(-(2**63))
    with pytest.raises(tm.BadValue, match="division by zero"):
        tm.div(1, 0, scale=2)
    with pytest.raises(tm.BadValue, match="null"):
        tm.max(None, 1)


def test_decimals_keep_all_digits(ledger: Ledger) -> None:
    wide = ledger.app.table("wide", key="id", id=int, x=tm.decimal(18))

    @ledger.app.transaction(ledger.payments, opaque=True)
    def f(tx, e):
        third = Decimal("1.111111111")
        wide[e.src].x = third * third

    outcome = reference(ledger.app, (ledger.payments, [payment()]))
    assert outcome.tables["wide"][0]["x"] == Decimal("1.234567900987654321")


def test_a_function_that_does_not_end_aborts_and_a_replay_obeys(tmp_path) -> None:
    app = tm.App("slow")
    seen = app.table("seen", key="n", n=int)
    numbers = app.stream("numbers", n=int)
    slow = {3}

    @app.transaction(numbers, opaque=True)
    def look(tx, e):
        seen.insert(n=e.n)
        while e.n in slow:
            try:
                pass
            except Exception:
                continue

    folder = str(tmp_path / "data")
    settings = {"data_dir": folder, "durable": "log", "deadline_us": 200_000}
    with app.start(**settings) as mill:
        mill.send(numbers, {"n": [1, 2, 3, 4]}, wait=True)
        [aborted] = mill.output(look.aborted).rows()
        assert (aborted["n"], aborted["reason"]) == (
            3,
            "the function took longer than 200000 microseconds",
        )
        assert [row["n"] for row in mill.table("seen").rows()] == [1, 2, 4]
    # Whatever it would do now: it took too long.
    slow.clear()
    with app.start(**settings) as mill:
        assert [row["n"] for row in mill.table("seen").rows()] == [1, 2, 4]
        mill.send(numbers, {"n": [5]}, wait=True)
        assert [row["n"] for row in mill.table("seen").rows()] == [1, 2, 4, 5]


def test_a_trigger_of_a_declared_transaction_has_a_deadline(tmp_path) -> None:
    app = tm.App("slow")
    seen = app.table("seen", key="n", n=int, twice=int)
    numbers = app.stream("numbers", n=int)
    slow = {3}

    @app.transaction(numbers)
    def note(tx, e):
        seen.insert(n=e.n, twice=2 * e.n)

    @app.transaction(numbers, opaque=True)
    def look(tx, e):
        while e.n == 2 and slow:
            pass

    @app.trigger(seen, changes=["insert"])
    def watch(tx, change):
        while change.new.n in slow:
            pass

    assert note.path == "traced"
    folder = str(tmp_path / "data")
    settings = {"data_dir": folder, "durable": "log", "deadline_us": 200_000}
    with app.start(**settings) as mill:
        mill.send(numbers, {"n": [1, 2, 3, 4]}, wait=True)
        reason = "the function took longer than 200000 microseconds"
        for handler, n in ((look, 2), (note, 3)):
            [aborted] = mill.output(handler.aborted).rows()
            assert (aborted["n"], aborted["reason"]) == (n, reason)
        assert [row["n"] for row in mill.table("seen").rows()] == [1, 2, 4]
    # Whatever it would do now: it took too long.
    slow.clear()
    with app.start(**settings) as mill:
        assert [row["n"] for row in mill.table("seen").rows()] == [1, 2, 4]
        assert mill.output(look.aborted).rows()[0]["n"] == 2


def test_a_function_without_end_that_operates_aborts() -> None:
    app = tm.App("endless")
    numbers, many = app.stream("numbers", n=int), app.stream("many", n=int)

    @app.transaction(numbers, opaque=True)
    def repeat(tx, e):
        n = 0
        while True:
            tx.emit(many, n=(n := n + 1))

    done = reference(app, (numbers, [{"n": 1}]))
    assert done.reasons() == ["a transaction has at most 1000000 operations"]
    assert "many" not in done.outputs


def test_tables_and_streams_of_another_app_are_refused() -> None:
    other = tm.App("other")
    strange = other.table("strange", key="id", id=int)
    heard = other.stream("heard", id=int)
    app = tm.App("own")
    own = app.table("own", key="id", id=int)
    numbers = app.stream("numbers", id=int)
    said = app.stream("said", id=int)

    hidden: dict[str, Any] = {"table": strange, "stream": heard}

    @app.transaction(numbers, opaque=True, emits=[said])
    def use(tx, e):
        own.insert(id=e.id)
        if e.id == 0:
            hidden["table"].insert(id=e.id)
        elif e.id == 1:
            tx.emit(hidden["stream"], id=e.id)
        elif e.id == 2:
            assert hidden["table"][2].exists()
        tx.emit(said, id=e.id)

    with app.start(workers=1) as mill:
        mill.send(numbers, [dict(id=n) for n in range(4)])
        mill.finish()
        assert [row["id"] for row in mill.table(own).rows()] == [3]
        reasons = [row["reason"] for row in mill.output("use.aborted")]
    assert "<table strange: id: int> belongs to another app" in reasons[0]
    assert "stream heard belongs to another app" in reasons[1]
    assert "belongs to another app" in reasons[2]
