"""The replies of procedures and functions: each can be encoded, or the call has no effect."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import tidemill as tm

from .test_entities_nodes import is_one

AT = dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC)
#: Each reply, its value for a caller in Python and in JSON, or the reason of the refusal.
REPLIES: list[tuple[Any, Any, Any]] = [
    (Decimal("1.50"), Decimal("1.50"), "1.50"),
    ([Decimal("1E+40")], [Decimal("1E+40")], ["1E+40"]),
    ({"at": AT}, {"at": AT}, {"at": "2024-01-02T03:04:05.000006Z"}),
    (AT.astimezone(dt.timezone(dt.timedelta(hours=3))), AT, "2024-01-02T03:04:05.000006Z"),
    (np.int64(7), 7, 7),
    ({"x": np.float32(0.5)}, {"x": 0.5}, {"x": 0.5}),
    (np.datetime64("2024-01-02", "ns"), dt.datetime(2024, 1, 2, tzinfo=dt.UTC), None),
    ({(1, 2): 3}, {(1, 2): 3}, {"[1,2]": 3}),
    ({1: 4, None: 3}, {1: 4, None: 3}, {"1": 4, "null": 3}),
    ({1: 2, "1": 3}, None, "the same text in JSON: '1'"),
    ({Decimal("1.5"): 2, "1.5": 3}, None, "the same text in JSON: '1.5'"),
    ({(1, 2): 2, "[1,2]": 3}, None, "the same text in JSON"),
    (Decimal("sNaN"), None, "NaN"),
    (dt.datetime(2024, 1, 2), None, "no time zone"),
    (dt.timedelta(seconds=1), None, "timedelta"),
    ({1}, None, "set"),
    (np.array([1]), None, "ndarray"),
    (2**64, None, "64 bits"),
    ("\ud800", None, "Unicode"),
]


class Ledger:
    def __init__(self) -> None:
        self.app = app = tm.App("replies")
        self.rows = rows = app.table("rows", key="id", id=int)
        self.one = one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))

        @app.procedure
        def give(tx, id: int):
            rows.insert(id=id)
            return REPLIES[id][0]

        @one.function(creates=True)
        async def said(self, ctx):
            self.n = 1
            return REPLIES[self.id][0]


def test_a_reply_can_be_sent_or_nothing_is_done() -> None:
    ledger = Ledger()
    app = ledger.app
    done = {id for id, (_, _, refused) in enumerate(REPLIES) if not _is_refused(id)}
    with app.start() as mill:
        for id, (given, wanted, why) in enumerate(REPLIES):
            for call in ("give", "one.said"):
                if id in done:
                    found = mill.call(call, id=id)
                    assert (found, type(found)) == (wanted, type(wanted)), given
                    continue
                with pytest.raises(tm.Abort, match=why.replace("[", r"\[")):
                    mill.call(call, id=id)
        mill.drain()
        assert {row["id"] for row in mill.table("rows").rows()} == done
        assert {row["id"] for row in mill.table("one").rows()} == done


def _is_refused(id: int) -> bool:
    given, wanted, _ = REPLIES[id]
    return wanted is None and given is not None


def test_replies_over_http() -> None:
    app = Ledger().app
    with app.start(http_port=0) as mill, tm.Client(mill.url, retries=0) as client:
        for id, (given, _, wanted) in enumerate(REPLIES):
            for call in ("give", "one.said"):
                if _is_refused(id):
                    with pytest.raises(tm.Abort, match=wanted.replace("[", r"\[")):
                        client.call(call, id=id)
                elif wanted is not None:
                    assert client.call(call, id=id) == wanted, given
        mill.drain()
        assert (
            len(mill.table("rows").rows())
            == sum(not _is_refused(id) for id in range(len(REPLIES))) - 1
        )


def test_replies_on_several_nodes() -> None:
    calls = [("one.said", {"id": id}) for id in range(len(REPLIES))]
    is_one(lambda: Ledger().app, calls, seeds=1)


def test_what_is_called_has_no_columns_to_reply() -> None:
    app = tm.App("replies")
    with pytest.raises(tm.ProgramError, match="declares no columns"):

        @app.procedure(out={"n": int})
        def give(tx):
            return {"n": 1}


def test_a_time_of_no_year_hides_no_other_row() -> None:
    app = tm.App("far")
    table = app.table("t", key="id", id=int, at=tm.timestamp)
    stream = app.stream("s", id=int, at=tm.timestamp, by=int)

    @app.transaction(stream)
    def move(tx, e):
        table.upsert(id=e.id, at=e.at + e.by)

    with app.start() as mill:
        mill.send(stream, [{"id": 1, "at": AT, "by": 0}, {"id": 2, "at": AT, "by": 10**18}])
        mill.drain()
        us = (AT - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
        assert mill.table(table).rows() == [{"id": 1, "at": AT}, {"id": 2, "at": us + 10**18}]
