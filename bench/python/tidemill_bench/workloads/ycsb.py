"""YCSB-T: transfers between accounts, each a function that calls another."""

from __future__ import annotations

from typing import Any

from tidemill.app import App
from tidemill.entity import Context
from tidemill.errors import Abort
from tidemill.types import column

#: The initial balance of an account.
OPENING = 1_000_000


def app(opaque: bool) -> App:
    """Returns the app: functions of an entity, or one traced transaction.

    >>> [handler.name for handler in app(opaque=True).handlers]
    ['account.add', 'account.transfer']
    """
    return functions() if opaque else traced()


def functions() -> App:
    """Returns the app in which a transfer calls a function of the other account."""
    made = App("ycsb-t")
    account = made.entity("account", key="id", id=int, balance=column(int, default=OPENING))

    @account.function(creates=True)
    async def add(self: Any, ctx: Context, amount: int) -> None:
        self.balance += amount

    @account.function(creates=True)
    async def transfer(self: Any, ctx: Context, to: int, amount: int) -> None:
        if self.balance < amount:
            raise Abort("insufficient funds")
        self.balance -= amount
        await account[to].add(amount)

    return made


def traced() -> App:
    """Returns the app in which a transfer is one declared transaction."""
    made = App("ycsb-t")
    account = made.table("account", key="id", id=int, balance=column(int, default=OPENING))
    calls = made.stream("account.transfer.calls", id=int, to=int, amount=int)

    @made.transaction(calls, name="account.transfer")
    def transfer(tx: Any, e: Any) -> None:
        debtor, creditor = account[e.id], account[e.to]
        tx.require(debtor.balance >= e.amount, "insufficient funds")
        debtor.balance -= e.amount
        creditor.balance += e.amount

    return made
