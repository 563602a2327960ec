"""The app that runs on several processes: accounts that send each other money.

Each account keeps which transfers it was part of, so that each can be looked for on both sides.
"""

from __future__ import annotations

from typing import Any

import tidemill as tm

OPENING = 100

app = tm.App("bank")
account = app.entity(
    "account",
    key="id",
    id=int,
    balance=tm.column(int, default=OPENING),
    seen=tm.column(tm.list(int), default=[]),
)
branch = app.entity("branch", key="id", id=int)
moved = app.stream("moved", op=int, src=int, dst=int, amount=int)


@account.function(creates=True)
async def transfer(self: Any, ctx: tm.Context, dst: int, amount: int, op: int) -> int:
    """Sends money. If the receiver refuses, the whole transfer aborts."""
    ctx.require(self.balance >= amount, "insufficient funds")
    self.balance -= amount
    self.seen = [*self.seen, op]
    await account[dst].receive(amount=amount, op=op)
    ctx.emit(moved, op=op, src=self.id, dst=dst, amount=amount)
    return int(self.balance)


@account.function(creates=True)
async def receive(self: Any, ctx: tm.Context, amount: int, op: int) -> None:
    """Takes money, unless the amount is unlucky."""
    self.balance += amount
    self.seen = [*self.seen, op]
    ctx.require(amount != 13, "unlucky")


@account.function(creates=True)
async def open(self: Any, ctx: tm.Context) -> None:
    """Makes the row."""
    self.balance = OPENING


@branch.function(creates=True)
async def fill(self: Any, ctx: tm.Context, first: int, count: int) -> int:
    """Opens many accounts."""
    for id in range(first, first + count):
        account[id].open()
    return count
