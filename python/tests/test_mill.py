"""Running apps in this process."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidemill as tm

from .conftest import Ledger, payment, reference
from .test_same_outcome import EVENT, build, statements


def declare(ledger: Ledger, opaque: bool = False) -> tm.Handler:
    accounts = ledger.accounts

    @ledger.app.transaction(ledger.payments, opaque=opaque, out=dict(src=int, left=tm.decimal(2)))
    def pay(tx, e):
        src, dst = accounts[e.src], accounts[e.dst]
        tx.require(src.balance + 100 >= e.amount, "insufficient funds")
        src.balance -= e.amount
        dst.balance += e.amount
        return dict(src=e.src, left=src.balance)

    return pay


@pytest.mark.parametrize("opaque", [False, True])
def test_send_and_look(ledger: Ledger, opaque: bool) -> None:
    pay = declare(ledger, opaque)
    with ledger.app.start() as mill:
        mill.send(ledger.payments, [payment(1, 2, 60), payment(1, 3, 60)])
        mill.drain()
        accounts = mill.table("accounts")
        assert accounts[1]["balance"] == Decimal("-60.00")
        assert 3 not in accounts
        assert len(accounts) == 2
        assert [row["id"] for row in accounts] == [1, 2]
        assert accounts.to_arrow().column("balance").to_pylist() == [-60, 60]
        with pytest.raises(KeyError):
            accounts[99]
        assert list(mill.output(pay)) == [{"src": 1, "left": Decimal("-60.00")}]
        assert mill.output(pay).to_arrow().num_rows == 1
        refused = mill.output(pay.aborted).rows()
        assert [row["reason"] for row in refused] == ["insufficient funds"]
        assert refused[0]["dst"] == 3
        # More of the same: outputs go on.
        mill.send("payments", [payment(1, 2, 1)])
        mill.drain()
        assert len(mill.output(pay)) == 2
        assert mill.status()["transactions"] == 3
    found = mill.summary()
    assert (found["committed"], found["refused"]) == (2, 1)


@pytest.mark.parametrize(
    "form",
    [
        lambda rows: rows,
        lambda rows: iter(rows),
        lambda rows: {name: [row[name] for row in rows] for name in rows[0]},
        lambda rows: pa.Table.from_pylist(rows),
        lambda rows: pa.RecordBatch.from_pylist(rows),
    ],
)
def test_rows_come_in_every_form(ledger: Ledger, form: Callable[[Any], Any]) -> None:
    pay = declare(ledger)
    with ledger.app.start() as mill:
        mill.send(ledger.payments, form([payment(1, 2, 60), payment(2, 3, 20)]))
        mill.drain()
        assert len(mill.output(pay)) == 2


@pytest.mark.parametrize(
    ("rows", "what", "help"),
    [
        ([payment(), payment(src="x")], "row 1, column 'src': \"x\" is a str, and the column", ""),
        ([payment(src=None)], "row 0, column 'src': it is None", ""),
        ([payment(src=2**63)], "row 0, column 'src': 9223372036854775808 is out of range", ""),
        ([payment(amount=0.5)], "is a float, and decimal(2) takes a decimal.Decimal", ""),
        ([payment(amount=Decimal("0.125"))], "has more than 2 digits after the point", ""),
        ([{"src": 1}], "row 0, column 'dst': it has no value", ""),
        ([payment(amuont=1)], "has no column 'amuont' (row 0)", "did you mean 'amount'?"),
        ([1], "row 0 is a int, not a dict", "dict(column=value, ...)"),
        ("rows", "a value of type str holds no rows", "a list of dicts"),
        (5, "a value of type int holds no rows", "a list of dicts"),
        ({"src": [1], "dst": [1, 2]}, "has 2 values, but another has 1", ""),
        ({"src": 1}, "column 'src' is not a list of values", "[dict(...)]"),
        (pa.table({"src": ["x"]}), "does not fit column 'src', row 0", ""),
    ],
)
def test_bad_rows_are_named_and_nothing_is_sent(
    ledger: Ledger, rows: object, what: str, help: str
) -> None:
    declare(ledger)
    with ledger.app.start() as mill:
        with pytest.raises(tm.InputError) as caught:
            mill.send(ledger.payments, rows)
        assert what in caught.value.what
        assert help in caught.value.help
        mill.drain()
        assert mill.status()["transactions"] == 0


def test_wrong_names(ledger: Ledger) -> None:
    pay = declare(ledger)
    with ledger.app.start() as mill:
        with pytest.raises(tm.ProgramError, match="there is no stream 'nope'"):
            mill.send("nope", [])
        with pytest.raises(tm.ProgramError, match="nothing can be sent into it"):
            mill.send(pay, [])
        with pytest.raises(tm.ProgramError, match="there is no table 'nope'"):
            mill.table("nope")
    with pytest.raises(tm.SettingError, match="there is no setting 'wrkers'") as caught:
        ledger.app.start(wrkers=2)
    assert caught.value.help == "did you mean 'workers'?"


def test_event_time_orders_what_is_sent(ledger: Ledger) -> None:
    last = ledger.app.table("last", key="k", k=int, n=int)
    timed = ledger.app.stream("timed", time="at", at=tm.timestamp, k=int, n=int)

    @ledger.app.transaction(timed)
    def f(tx, e):
        last.upsert(k=e.k, n=e.n)

    now = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    second = dt.timedelta(seconds=1)
    timed.push(out_of_orderness="1h")
    with ledger.app.start() as mill:
        mill.send(timed, [dict(at=now + second, k=1, n=2), dict(at=now, k=1, n=1)])
        mill.drain()
        assert mill.table(last)[1]["n"] == 2


def test_files_in_and_out(ledger: Ledger, tmp_path: Path) -> None:
    pay = declare(ledger)
    given = tmp_path / "in.csv"
    given.write_text(
        "src,dst,amount,memo,flag,x\n1,2,5.50,a,true,0\n1,2,no,a,true,0\n1,2,500,,1,0\n"
    )
    ledger.payments.read(tm.files(given))
    pay.write(tm.files(tmp_path / "paid.jsonl"))
    pay.aborted.write(tm.files(tmp_path / "refused.csv"))
    ledger.payments.dead.write(tm.files(tmp_path / "dead.jsonl"))
    with ledger.app.start() as mill:
        mill.drain()
    assert (tmp_path / "paid.jsonl").read_text().count("\n") == 1
    assert "insufficient funds" in (tmp_path / "refused.csv").read_text()
    assert "amount" in (tmp_path / "dead.jsonl").read_text()
    assert mill.summary()["dead"] == 1


def test_parquet_in_and_out(tmp_path: Path) -> None:
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    table = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int32()),
            "at": pa.array([at] * 3, pa.timestamp("ms", "UTC")),
            "amount": pa.array([Decimal("1.5"), Decimal("2.25"), None], pa.decimal128(9, 2)),
            "note": pa.array(["a", None, "c"]),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    app = tm.App("copy")
    rows = app.stream("rows", id=int, at=tm.timestamp, amount=tm.decimal(3), note=str | None)
    rows.read(tm.files(tmp_path / "in.parquet"))

    @app.transaction(rows, out=dict(id=int, at=tm.timestamp, amount=tm.decimal(3)))
    def copy(tx, e):
        return dict(id=e.id, at=e.at, amount=e.amount)

    copy.write(tm.files(tmp_path / "out.parquet"))
    rows.dead.write(tm.files(tmp_path / "dead.jsonl"))
    with app.start() as mill:
        mill.drain()
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["id"] for row in found] == [1, 2]
    assert found[1]["amount"] == Decimal("2.250")
    assert found[0]["at"] == at
    dead = (tmp_path / "dead.jsonl").read_text()
    assert "column 'amount': null" in dead
    assert '"offset":2' in dead


def test_a_file_is_followed(tmp_path: Path) -> None:
    given = tmp_path / "in.csv"
    given.write_text("k\n1\n")
    app = tm.App("follow")
    counts = app.table("counts", key="k", k=int, n=tm.column(int, default=0))
    rows = app.stream("rows", k=int)
    rows.read(tm.files(given, follow=True))

    @app.transaction(rows)
    def count(tx, e):
        counts[e.k].n += 1

    def wait_for(events: int) -> None:
        deadline = time.monotonic() + 20
        while mill.summary()["events"] < events:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    with app.start() as mill:
        wait_for(1)
        with given.open("a") as file:
            file.write("1\n2\n3")
        wait_for(3)
        with given.open("a") as file:
            file.write("3\n")
        wait_for(4)
        assert {row["k"]: row["n"] for row in mill.table(counts)} == {1: 2, 2: 1, 33: 1}
        mill.stop()


def test_an_unstable_function_is_found(ledger: Ledger) -> None:
    count = [0]

    @ledger.app.transaction(ledger.payments, opaque=True)
    def f(tx, e):
        count[0] += 1
        ledger.accounts[e.src].balance = count[0]

    with ledger.app.start(rerun_every=1) as mill:
        mill.send(ledger.payments, [payment()])
    assert [found["handler"] for found in mill.summary()["unstable"]] == ["f"]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(statements(2), st.lists(st.fixed_dictionaries(EVENT), max_size=8))
def test_the_engine_does_what_the_reference_does(
    lines: list[str], events: list[dict[str, Any]]
) -> None:
    for opaque in (False, True):
        app, feed, handler = build(lines, opaque)
        expected = reference(app, (feed, events))
        with app.start() as mill:
            mill.send(feed, events)
            mill.drain()
            assert repr(mill.table("rows").rows()) == repr(expected.tables["rows"])
            for name in ("handler", "handler.aborted", "seen"):
                assert repr(mill.output(name).rows()) == repr(expected.outputs.get(name, []))
        assert handler.path == ("opaque" if opaque else "traced")
