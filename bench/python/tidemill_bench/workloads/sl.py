"""Streaming Ledger: deposits into an account and an asset, transfers between two of each."""

from __future__ import annotations

from typing import Any

from tidemill.app import App
from tidemill.types import INT, TIMESTAMP, column


def app(opaque: bool) -> App:
    """Returns the app, traced or with opaque functions.

    >>> [handler.path for handler in app(opaque=False).handlers]
    ['traced', 'traced']
    """
    made = App("sl")
    accounts = made.table("accounts", key="id", id=int, balance=column(int, default=0))
    assets = made.table("assets", key="id", id=int, balance=column(int, default=0))
    deposits = made.stream("deposits", time="at", at=TIMESTAMP, account=int, asset=int, amount=int)
    transfers = made.stream(
        "transfers",
        time="at",
        at=TIMESTAMP,
        src_account=int,
        src_asset=int,
        dst_account=int,
        dst_asset=int,
        amount=int,
    )
    out = {"account": INT, "balance": INT}

    @made.transaction(deposits, opaque=opaque, out=out)
    def deposit(tx: Any, e: Any) -> Any:
        account, asset = accounts[e.account], assets[e.asset]
        balance = account.balance + e.amount
        account.balance = balance
        asset.balance += e.amount
        return {"account": e.account, "balance": balance}

    @made.transaction(transfers, opaque=opaque, out=out)
    def transfer(tx: Any, e: Any) -> Any:
        src, src_asset = accounts[e.src_account], assets[e.src_asset]
        dst, dst_asset = accounts[e.dst_account], assets[e.dst_asset]
        tx.require(src.balance >= e.amount, "insufficient funds")
        tx.require(src_asset.balance >= e.amount, "insufficient funds")
        left = src.balance - e.amount
        src.balance = left
        src_asset.balance -= e.amount
        dst.balance += e.amount
        dst_asset.balance += e.amount
        return {"account": e.src_account, "balance": left}

    return made
