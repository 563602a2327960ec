"""Fifteen months of real bank payments as double-entry bookkeeping.

Each row of the bank's list moves money between an account and its counterpart: cash, interest, or
the partner's account at the partner's bank. All balances begin at 0, so their sum stays exactly 0,
and each account's balance can be compared with the one that the bank itself wrote down.

A few bad rows and some orders that must be refused show what refusal looks like.

`tidemill demo` runs it, kills it midway, and runs it again: it goes on where it was.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import tidemill as tm

HERE = Path(__file__).parent
OUT = Path("out/ledger")
Money = Annotated[Decimal, tm.decimal(2)]

app = tm.App("ledger")

# bank is "" for our own bank; number is the account's number there, or "cash" or "interest".
accounts = app.table(
    "accounts",
    key=("bank", "number"),
    bank=str,
    number=str,
    balance=tm.column(Money, default=0),
    entries=tm.column(int, default=0),
)

payments = app.stream(
    "payments",
    time="date",
    schema={"type": str},
    trans_id=int,
    account_id=int,
    date=tm.timestamp,
    operation=tm.optional(str),
    amount=Money,
    balance=Money,
    k_symbol=tm.optional(str),
    bank=tm.optional(str),
    account=tm.optional(str),
)

orders = app.stream(
    "orders", time="at", order_id=int, at=tm.timestamp, src=str, dst=str, amount=Money
)


@app.transaction(payments)
def post(tx: Any, e: Any) -> dict[str, object]:
    """One row of the bank's list: its account and the counterpart change together, or neither."""
    transfer = tm.starts_with(tm.coalesce(e.operation, ""), "PREVOD")
    interest = tm.coalesce(e.k_symbol, "") == "UROK"
    partner_bank = tm.where(transfer, tm.coalesce(e.bank, "?"), "")
    partner = tm.where(
        transfer, tm.coalesce(e.account, "?"), tm.where(interest, "interest", "cash")
    )
    ours, theirs = accounts["", tm.cast(e.account_id, str)], accounts[partner_bank, partner]
    amount = tm.where(e.type == "PRIJEM", e.amount, -e.amount)
    ours.balance += amount
    ours.entries += 1
    theirs.balance -= amount
    theirs.entries += 1
    return dict(
        account=e.account_id,
        day=e.date,
        balance=ours.balance,
        recorded=e.balance,
        entries=ours.entries,
    )


@app.transaction(orders)
def transfer(tx: Any, e: Any) -> None:
    """An order of our own making: unlike the bank's rows, it may not overdraw."""
    src, dst = accounts["", e.src], accounts["", e.dst]
    tx.require(e.amount > 0, "the amount is not positive")
    tx.require(e.src != e.dst, "source and destination are one account")
    tx.require(src.balance >= e.amount, "insufficient funds")
    src.balance -= e.amount
    dst.balance += e.amount


BANK_LIST: dict[str, Any] = dict(delimiter=";", formats={"date": "%y%m%d"})
payments.read(tm.files(HERE / "data/berka/trans.csv.gz", **BANK_LIST))
payments.read(tm.files(HERE / "data/injected/rows.csv", **BANK_LIST))
orders.read(tm.files(HERE / "data/injected/orders.csv"))

post.write(tm.files(OUT / "posted.csv"))
transfer.aborted.write(tm.files(OUT / "refused.jsonl"))
payments.dead.write(tm.files(OUT / "undecodable_payments.jsonl"))
orders.dead.write(tm.files(OUT / "undecodable_orders.jsonl"))


def written(name: str) -> Iterator[dict[str, Any]]:
    """The rows of an output file: all of them, also those of runs that this one continued."""
    with (OUT / name).open(newline="") as file:
        if name.endswith(".csv"):
            yield from csv.DictReader(file)
        else:
            yield from (json.loads(line, parse_float=Decimal) for line in file)


@app.summary
def compare_with_the_bank(mill: tm.Mill) -> dict[str, Any]:
    """An account-day agrees when our balance at its end is within 0.1 CZK for each of the
    account's rows so far of the balance that the bank recorded on any row of that day: the bank
    rounds interest to 0.1, and does not say in which order the rows of a day came.
    """
    ends: dict[tuple[str, str], tuple[Decimal, int]] = {}
    recorded: dict[tuple[str, str], list[Decimal]] = defaultdict(list)
    for row in written("posted.csv"):
        day = row["account"], row["day"]
        ends[day] = Decimal(row["balance"]), int(row["entries"])
        recorded[day].append(Decimal(row["recorded"]))
    agree = sum(
        any(abs(end - bank) <= Decimal("0.1") * entries for bank in recorded[day])
        for day, (end, entries) in ends.items()
    )
    rows = mill.table("accounts").rows()
    ours = [row for row in rows if row["bank"] == "" and row["number"].isdigit()]
    largest = sorted(ours, key=lambda row: row["balance"], reverse=True)[:5]
    return {
        "account_days": len(ends),
        "account_days_agree": agree,
        "sum_of_balances": str(sum(row["balance"] for row in rows)),
        "largest_accounts": {row["number"]: str(row["balance"]) for row in largest},
        "refusals": [
            f"order {row['order_id']} ({row['src']} -> {row['dst']}, {row['amount']}): "
            f"{row['reason']}"
            for row in written("refused.jsonl")
        ],
        "undecodable": [
            f"{Path(row['origin']).name} line {row['line']}: {row['reason']}"
            for name in ("undecodable_payments.jsonl", "undecodable_orders.jsonl")
            for row in written(name)
        ],
    }
