"""A program with types in all places where a user can write them. `make lint` checks it.

It uses each kind of declaration. So the check fails if a changed signature breaks users' code.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import tidemill as tm

Money = Annotated[Decimal, tm.decimal(2)]

app = tm.App("typed")


@dataclass
class Account:
    """The columns of a table, as a class."""

    id: int
    owner: str
    note: str | None = None
    tags: list[str] | None = None
    limit: Money | None = None


class Payment(TypedDict):
    """The columns of a stream, as a class."""

    at: dt.datetime
    src: int
    dst: int
    amount: Money
    memo: NotRequired[str | None]


accounts: tm.Table = app.table("accounts", key="id", schema=Account, balance=Money)
totals = app.table("totals", key="day", day=str, count=tm.column(int, default=0), ordered=True)
by_owner: tm.Index = accounts.index("owner")
payments: tm.Stream = app.stream("payments", time="at", schema=Payment)
large = payments.filter(tm.col("amount") >= 1000, name="large")
alarms = app.stream("alarms", id=int)


@app.transaction(payments)
def pay(tx: Any, e: Any) -> Mapping[str, object]:
    """Moves money. A traced function takes symbolic values, so its arguments are Any."""
    src, dst = accounts[e.src], accounts[e.dst]
    tx.require(src.balance >= e.amount, "insufficient funds")
    src.balance -= e.amount
    dst.balance += e.amount
    return {"src": e.src, "left": src.balance}


@app.procedure(large)
def count(tx: tm.Tx, events: list[Any]) -> None:
    """Counts large payments, with real values."""
    for event in events:
        totals[f"{event.at:%Y-%m-%d}"].count += 1
        tx.emit(alarms, id=event.src)


@app.procedure
def open_account(
    tx: tm.Tx, id: int, owner: str, note: str | None = None, first: Money = Decimal(100)
) -> dict[str, Any]:
    """Opens an account for a client."""
    tx.require(id not in accounts, "the account exists")
    tx.require(first >= 0, "the first deposit is negative")
    row = accounts.insert(id=id, owner=owner, note=note, tags=None, balance=first)
    return {"id": row.id, "accounts": len(by_owner[owner])}


@app.trigger(accounts, changes=["insert"])
def opened(tx: tm.Tx, change: Any) -> None:
    """Reports a new account."""
    tx.emit(alarms, id=change.new.id)


seats: tm.Entity = app.entity(
    "seats",
    key="show",
    show=str,
    left=tm.column(int, default=3),
    earned=tm.column(Money, default=0),
)


@seats.function(creates=True)
async def reserve(self: Any, ctx: tm.Context, n: int = 1, price: Money = Decimal(0)) -> int:
    """Reserves seats of a show."""
    ctx.require(n > 0, "ask for at least one seat")
    left: int = self.left - n
    ctx.require(left >= 0, "sold out")
    self.left = left
    total: Decimal = price * n
    self.earned += total
    return left


@seats.function(creates=True)
async def move(self: Any, ctx: tm.Context, to: str) -> int:
    """Moves a seat to another show. The statements after a call are reachable."""
    await seats[to].reserve(1)
    self.left += 1
    left: int = self.left
    return left


@seats.function(creates=True)
async def reserve_two(self: Any, ctx: tm.Context, other: str) -> list[Any]:
    """Reserves seats of two shows, or none."""
    replies = await ctx.gather(seats[self.show].reserve(1), seats[other].reserve())
    return [*replies, sum(replies)]


def files(folder: Path) -> None:
    """Declares files instead of pushed rows."""
    payments.read(tm.files(folder / "payments.csv"), out_of_orderness="1m")
    pay.write(tm.files(folder / "paid.jsonl"))


def main() -> list[dict[str, Any]]:
    """Runs the program; returns the accounts."""
    day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    with app.start(workers=1) as mill:
        for id in (1, 2):
            opened: dict[str, Any] = mill.call(open_account, id=id, owner="a")
            assert opened["id"] == id
        mill.send(payments, [{"at": day, "src": 1, "dst": 2, "amount": Decimal("1.50")}])
        assert mill.call(reserve_two, show="x", other="y") == [2, 2, 4]
        assert mill.call(move, show="x", to="y") == 3
        mill.drain()
        view: tm.OutputView = mill.output(pay)
        assert [row["left"] for row in view] == [Decimal("98.50")]
        rows: list[dict[str, Any]] = mill.table(accounts).rows()
    return rows


def ask(url: str) -> Any:
    """Calls a running app over HTTP."""
    with tm.Client(url, token="secret") as client:
        row: dict[str, Any] | None = client.row(accounts, 1)
        for event in client.subscribe(pay):
            print(event.value, row)
        return client.call(open_account, id=3, owner="b")


async def ask_async(url: str) -> Any:
    """Calls a running app over HTTP, without blocking."""
    async with tm.AsyncClient(url) as client:
        async for cut in client.changes(accounts):
            print(cut)
        return await asyncio.wait_for(client.call("reserve", show="x"), 1)


if __name__ == "__main__":
    print(main())
