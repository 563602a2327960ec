"""The requests of transactions to the outside: lookups, whose answers are logged, and work that is
done once it is durable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

Made = tuple[tm.App, tm.Table, tm.Stream]


def rates(ask: Callable[[str], Any]) -> Made:
    """An app that asks for the rate of a currency, and adds what it is."""
    app = tm.App("rates")
    sums = app.table("sums", key="currency", currency=str, sum=tm.column(int, default=0))
    payments = app.stream("payments", currency=str, cents=int)

    @app.transaction(payments, opaque=True)
    def pay(tx: Any, e: Any) -> None:
        sums[e.currency].sum += e.cents * tx.lookup(ask, e.currency)

    return app, sums, payments


@pytest.mark.parametrize("recovery", ["weak", "strong"])
def test_answers_are_logged_and_told_again(tmp_path: Path, recovery: str) -> None:
    said: list[str] = []

    def rate(currency: str) -> int:
        said.append(currency)
        return len(said)

    settings = {"data_dir": tmp_path / "data", "durable": "log", "recovery": recovery}
    app, sums, payments = rates(rate)
    with app.start(**settings) as mill:
        mill.send(payments, [dict(currency="EUR", cents=1), dict(currency="USD", cents=10)])
        mill.drain()
        mill.send(payments, [dict(currency="EUR", cents=100)])
        mill.drain()
        before = mill.table(sums).rows()
        mill.stop()
    assert said == ["EUR", "USD", "EUR"]
    assert [row["sum"] for row in before] == [301, 20]
    app, sums, payments = rates(rate)
    with app.start(**settings) as mill:
        mill.send(payments, [dict(currency="USD", cents=1000)])
        mill.drain()
        after = mill.table(sums).rows()
        summary = mill.finish()
    assert said == ["EUR", "USD", "EUR", "USD"]
    assert [row["sum"] for row in after] == [301, 4020]
    assert summary["unstable"] == []


def test_questions_of_an_epoch_are_asked_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(5, timeout=30)

    def rate(currency: str) -> int:
        # The first answer is slow, and the others wait for each other.
        if currency == "0":
            time.sleep(0.05)
        else:
            together.wait()
        return int(currency)

    path = tmp_path / "payments.csv"
    path.write_text("currency,cents\n" + "".join(f"{n},10\n" for n in range(6)))
    app, sums, payments = rates(rate)
    payments.read(tm.files(path))
    with app.start(data_dir=tmp_path / "data") as mill:
        summary = mill.finish()
        found = {row["currency"]: row["sum"] for row in mill.table(sums).rows()}
    assert summary["faults"] == 0
    assert found == {str(n): 10 * n for n in range(6)}


def test_an_answer_that_takes_too_long_ends_its_function_only(tmp_path: Path) -> None:
    over = threading.Event()

    def rate(currency: str) -> int:
        # All are slow enough to be asked together, and one is too slow.
        time.sleep(0.01)
        while currency == "slow" and not over.is_set():
            time.sleep(0.01)
        return 7

    path = tmp_path / "payments.csv"
    path.write_text("currency,cents\na,1\nslow,1\nb,1\n")
    app, sums, payments = rates(rate)
    payments.read(tm.files(path))
    with app.start(data_dir=tmp_path / "data", deadline_us=300_000, on_fault="abort") as mill:
        summary = mill.finish()
        found = {row["currency"]: row["sum"] for row in mill.table(sums).rows()}
    over.set()
    assert summary["refused"] == 1
    assert "took longer" in summary["reasons"][0]["reason"]
    assert found == {"a": 7, "b": 7}


def test_an_answer_is_the_same_for_the_run_that_checks(tmp_path: Path) -> None:
    def now(_: str) -> int:
        return time.monotonic_ns()

    app, _, payments = rates(now)
    with app.start(rerun_every=1) as mill:
        mill.send(payments, [dict(currency="EUR", cents=1)] * 20)
        assert mill.finish()["unstable"] == []


def test_what_can_go_wrong_with_a_lookup_aborts(tmp_path: Path) -> None:
    def wrong(currency: str) -> Any:
        assert len(asked) < len(kinds), "nobody asks again"
        asked.append(currency)
        match currency:
            case "raises":
                raise KeyError("no rate")
            case "object":
                return object()
            case "long":
                return "x" * (1 << 20)
            case "exits":
                raise SystemExit
        return 1

    asked: list[str] = []
    app, sums, payments = rates(wrong)
    kinds = ["raises", "object", "long", "exits", "right"]
    settings = {"data_dir": tmp_path / "data", "durable": "log"}
    reasons = []
    for _ in range(2):
        with app.start(**settings) as mill:
            if not reasons:
                mill.send(payments, [dict(currency=kind, cents=1) for kind in kinds])
                mill.drain()
                reasons = [row["reason"] for row in mill.output("pay.aborted")]
            assert mill.table(sums).rows() == [{"currency": "right", "sum": 1}]
            mill.stop()
        app, sums, payments = rates(wrong)
    assert reasons[0].startswith("fault: LookupFailed: KeyError: 'no rate'")
    assert "LookupFailed: ValueError: a value of type object" in reasons[1]
    assert reasons[2] == "an answer from outside has more than 1048576 bytes"
    assert reasons[3].startswith("fault: LookupFailed: SystemExit")


def test_a_lookup_uses_no_tables_and_can_be_caught() -> None:
    app = tm.App("caught")
    notes = app.table("notes", key="id", id=int, text=str)
    asks = app.stream("asks", id=int)

    def look(id: int) -> str:
        return str(notes[id].text)

    @app.transaction(asks, opaque=True)
    def note(tx: Any, e: Any) -> None:
        try:
            text = tx.lookup(look, e.id)
        except tm.LookupFailed as failed:
            text = str(failed)
        notes.insert(id=e.id, text=text)

    with app.start() as mill:
        mill.send(asks, [dict(id=1)])
        mill.finish()
        [row] = mill.table(notes).rows()
    assert "outside a transaction" in row["text"]


def shop(
    charge: Callable[..., Any], **options: Any
) -> tuple[tm.App, tm.Table, tm.Stream, tm.Stream]:
    """An app whose orders are charged outside."""
    app = tm.App("shop")
    orders = app.table("orders", key="item", item=int, state=str, times=tm.column(int, default=0))
    placed = app.stream("placed", item=int, cents=int)

    @app.external(name="charge", out=dict(paid=bool, note=tm.optional(str)), **options)
    def outside(id: str, item: int, cents: int) -> Any:
        return charge(id, item, cents)

    @app.transaction(placed, opaque=True)
    def order(tx: Any, e: Any) -> None:
        orders.insert(item=e.item, state="open")
        tx.external(outside, item=e.item, cents=e.cents)
        tx.require(e.cents != 13, "no such price")

    @app.transaction(outside, opaque=True)
    def charged(tx: Any, e: Any) -> None:
        row = orders[e.item]
        row.state = e.error or ("paid" if e.paid else "refused")
        row.times += 1

    return app, orders, placed, outside


def test_work_outside_is_done_once_it_is_durable_and_comes_back(tmp_path: Path) -> None:
    asked: dict[str, int] = {}

    def charge(id: str, item: int, cents: int) -> dict[str, Any]:
        asked[id] = item
        return {"paid": cents < 100}

    app, orders, placed, _ = shop(charge)
    with app.start(data_dir=tmp_path / "data") as mill:
        mill.send(placed, [dict(item=n, cents=n) for n in range(200)])
        mill.finish()
        rows = mill.table(orders).rows()
        assert mill.table("charge.outbox").rows() == []
    assert sorted(asked.values()) == [n for n in range(200) if n != 13]
    assert {row["item"]: row["state"] for row in rows} == {
        n: "paid" if n < 100 else "refused" for n in range(200) if n != 13
    }
    assert {row["times"] for row in rows} == {1}


def test_a_function_that_raises_is_called_again_and_then_the_event_says_so() -> None:
    calls: list[int] = []

    def charge(id: str, item: int, cents: int) -> Any:
        calls.append(item)
        match item:
            case 0 if calls.count(0) < 2:
                raise ConnectionError("away")
            case 1:
                raise ConnectionError("gone")
            case 2:
                return {"paid": "perhaps"}
            case 3:
                return {"payed": True}
            case 4:
                return "yes"
            case 6:
                return {"note": "x"}
        return {"paid": True, "note": "x"}

    app, orders, placed, _ = shop(charge, retries=1)
    with app.start() as mill:
        mill.send(placed, [dict(item=n, cents=1) for n in range(7)])
        mill.finish()
        states = {row["item"]: row["state"] for row in mill.table(orders).rows()}
    assert (calls.count(0), calls.count(1)) == (2, 2)
    assert states[0] == states[5] == "paid"
    assert states[1] == "ConnectionError: gone"
    assert "can't be stored in column 'paid'" in states[2]
    assert "'payed', which is not in out=" in states[3]
    assert "it returned str, not a dict" in states[4]
    assert "it returned no 'paid', which is in out= and not optional" in states[6]


def test_what_was_not_answered_is_asked_again_after_a_restart(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []
    blocks = threading.Event()
    goes_on = threading.Event()

    def charge(id: str, item: int, cents: int) -> dict[str, Any]:
        asked.append((id, item))
        if item == 1 and not goes_on.is_set():
            blocks.set()
            goes_on.wait(20)
        return {"paid": True}

    app, orders, placed, _ = shop(charge, at_once=2)
    mill = app.start(data_dir=tmp_path / "data")
    mill.send(placed, [dict(item=n, cents=1) for n in range(3)])
    assert blocks.wait(20)
    deadline = time.monotonic() + 20
    while len(mill.table("charge.outbox").rows()) != 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    mill.stop()
    goes_on.set()
    app, orders, placed, _ = shop(charge, at_once=2)
    with app.start(data_dir=tmp_path / "data") as mill:
        mill.finish()
        rows = mill.table(orders).rows()
    assert [(row["state"], row["times"]) for row in rows] == [("paid", 1)] * 3
    first, second = (id for id, item in asked if item == 1)
    assert first == second
    assert len(asked) == 4


def test_an_async_function_works_outside_and_answers_may_ask_again() -> None:
    app = tm.App("countdown")
    seen = app.table("seen", key="n", n=int)
    starts = app.stream("starts", n=int)

    @app.external(at_once=1)
    async def step(id: str, n: int) -> None:
        return None

    @app.transaction(starts, opaque=True)
    def begin(tx: Any, e: Any) -> None:
        tx.external(step, n=e.n)

    @app.transaction(step, opaque=True)
    def stepped(tx: Any, e: Any) -> None:
        seen.insert(n=e.n)
        if e.n:
            tx.external(step, n=e.n - 1)

    with app.start() as mill:
        mill.send(starts, [dict(n=5)])
        mill.finish()
        assert [row["n"] for row in mill.table(seen).rows()] == [0, 1, 2, 3, 4, 5]


def test_what_is_wrong_with_a_declaration_is_said() -> None:
    app = tm.App("wrong")
    with pytest.raises(tm.ProgramError, match="at_once is a number from 1 to 1000"):
        app.external(at_once=0)
    with pytest.raises(tm.ProgramError, match="retries is a number from 0"):
        app.external(retries=-1)
    with pytest.raises(tm.ProgramError, match="two columns named 'error'"):

        @app.external(out=dict(error=str))
        def first(id: str, n: int) -> None: ...

    with pytest.raises(tm.ProgramError, match="external second: parameter 'n' has no type"):

        @app.external()
        def second(id, n): ...  # type: ignore[no-untyped-def]
