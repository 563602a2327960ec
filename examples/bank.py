"""A bank whose accounts are entities. It runs in one process or on several.

    tidemill run examples/bank.py --processes 2 --http 8080
    curl -H 'Content-Type: application/json' -d '{"id": 1, "to": 2, "amount": "12.50"}' \\
        http://127.0.0.1:8080/call/account.transfer

An account exists from its first use, with an initial balance of 100.
"""

from decimal import Decimal
from typing import Annotated, Any

import tidemill as tm

Money = Annotated[Decimal, tm.decimal(2)]

app = tm.App("bank")
account = app.entity("account", key="id", id=int, balance=tm.column(Money, default=100))
moved = app.stream("moved", src=int, dst=int, amount=Money)


@account.function(creates=True)
async def add(self: Any, ctx: tm.Context, amount: Money) -> None:
    """Adds money to the account; other accounts call this."""
    self.balance += amount


@account.function(creates=True)
async def transfer(self: Any, ctx: tm.Context, to: int, amount: Money) -> str:
    """Moves money to another account, or aborts; returns the new balance."""
    ctx.require(amount > 0, "the amount is not positive")
    ctx.require(self.balance >= amount, "insufficient funds")
    self.balance -= amount
    await account[to].add(amount)
    ctx.emit(moved, src=self.id, dst=to, amount=amount)
    return str(self.balance)
