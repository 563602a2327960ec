"""An app whose rows do not grow: accounts that send each other money, and count how often."""

from __future__ import annotations

from typing import Any

import tidemill as tm

OPENING = 1_000

app = tm.App("till")
account = app.entity(
    "account",
    key="id",
    id=int,
    balance=tm.column(int, default=OPENING),
    sent=tm.column(int, default=0),
    received=tm.column(int, default=0),
)
moved = app.stream("moved", src=int, dst=int, amount=int)


@account.function(creates=True)
async def transfer(self: Any, ctx: tm.Context, dst: int, amount: int) -> int:
    """Sends money, into debt where need be."""
    self.balance -= amount
    self.sent += 1
    await account[dst].receive(amount=amount)
    ctx.emit(moved, src=self.id, dst=dst, amount=amount)
    return int(self.balance)


@account.function(creates=True)
async def receive(self: Any, ctx: tm.Context, amount: int) -> None:
    """Takes money."""
    self.balance += amount
    self.received += 1
