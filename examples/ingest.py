"""Streaming ingestion with cleaning: a bank's list into a warehouse, a day at a time (S-Store 1.1).

The list comes as it is: codes in Czech, amounts without a sign, rows that are wrong. Each row is
cleaned or set aside with the reason; and because reports must not see half a day, the rows of a
day are one batch, which is one transaction: facts, monthly sums and the day's own line come
together. A trigger keeps watch over the sums while they change.

    python examples/ingest.py

The summary compares the warehouse with sums over the file itself.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import tidemill as tm

HERE = Path(__file__).parent
MONEY = tm.decimal(2)
KINDS = {"PRIJEM": "credit", "VYDAJ": "debit", "VYBER": "debit"}
WAYS = {
    "VKLAD": "cash in",
    "VYBER": "cash out",
    "VYBER KARTOU": "card",
    "PREVOD Z UCTU": "from a bank",
    "PREVOD NA UCET": "to a bank",
}

app = tm.App("ingest")

facts = app.table("facts", key="id", id=int, account=int, day=str, amount=MONEY, way=str)
by_day = facts.index("day")
months = app.table(
    "months",
    key=("month", "way"),
    month=str,
    way=str,
    rows=tm.column(int, default=0),
    sum=tm.column(MONEY, default=0),
)
days = app.table("days", key="day", day=str, rows=int, rejected=int, turnover=MONEY)

rows = app.stream(
    "rows",
    time="date",
    schema={"type": str},
    trans_id=int,
    account_id=int,
    date=tm.timestamp,
    operation=tm.optional(str),
    amount=MONEY,
    balance=MONEY,
    k_symbol=tm.optional(str),
    bank=tm.optional(str),
    account=tm.optional(str),
).batches("1d")
rejected = app.stream("rejected", trans_id=int, reason=str)
records = app.stream("records", month=str, turnover=MONEY)

biggest = app.table("biggest", key="id", id=int, turnover=MONEY)


@app.procedure(rows)
def load(tx, rows):
    """One day: what is right of it goes into the warehouse at once, or none of it does."""
    day, bad, turnover = f"{rows[-1].date:%Y-%m-%d}", 0, Decimal(0)
    for row in rows:
        kind = KINDS.get(row.type)
        way = "interest" if row.k_symbol == "UROK" else WAYS.get(row.operation or "", "other")
        reason = None
        if kind is None:
            reason = f"unknown type {row.type!r}"
        elif row.amount <= 0:
            reason = "the amount is not positive"
        elif row.trans_id in facts:
            reason = "it came twice"
        if reason is not None:
            bad += 1
            tx.emit(rejected, trans_id=row.trans_id, reason=reason)
            continue
        amount = row.amount if kind == "credit" else -row.amount
        facts.insert(id=row.trans_id, account=row.account_id, day=day, amount=amount, way=way)
        month = months[day[:7], way]
        month.rows += 1
        month.sum += amount
        turnover += row.amount
    days.insert(day=day, rows=len(rows) - bad, rejected=bad, turnover=turnover)


@app.trigger(days, changes=["insert"])
def record(tx, change):
    """Says so when a day had more turnover than all before it."""
    best = biggest[0]
    if not best.exists() or change.new.turnover > best.turnover:
        biggest.upsert(id=0, turnover=change.new.turnover)
        tx.emit(records, month=change.new.day[:7], turnover=change.new.turnover)


@app.procedure
def report(tx, day: str):
    """A day of the warehouse: never half of one."""
    found = by_day[day]
    line = days[day]
    tx.require(line.exists(), "no such day")
    assert len(found) == line.rows
    assert sum(abs(row.amount) for row in found) == line.turnover
    return {"rows": line.rows, "rejected": line.rejected, "turnover": str(line.turnover)}


LIST = dict(delimiter=";", formats={"date": "%y%m%d"})
rows.read(tm.files(HERE / "data/berka/trans.csv.gz", **LIST))


def straight() -> tuple[Counter[str], Decimal]:
    """Rows by month and their sum, from the file itself."""
    count: Counter[str] = Counter()
    total = Decimal(0)
    with gzip.open(HERE / "data/berka/trans.csv.gz", "rt") as file:
        for row in csv.DictReader(file, delimiter=";"):
            count[f"19{row['date'][:2]}-{row['date'][2:4]}"] += 1
            total += Decimal(row["amount"]) * (1 if row["type"] == "PRIJEM" else -1)
    return count, total


def main(**settings: Any) -> dict[str, Any]:
    """Loads the list; what it came to."""
    with app.start(**settings) as mill:
        early = 0
        while not early:
            # Reports go on while days come in.
            try:
                early = mill.call(report, day="1993-01-05")["rows"]
            except tm.Abort:
                continue  # There is no such day yet.
        mill.drain()
        held = list(mill.table("months").rows())
        lines = list(mill.table("days").rows())
        by_month: Counter[str] = Counter()
        for row in held:
            by_month[row["month"]] += row["rows"]
        count, total = straight()
        return {
            "days": len(lines),
            "rows": sum(line["rows"] for line in lines),
            "rejected": sum(line["rejected"] for line in lines),
            "rows_of_january_5": early,
            "records": len(mill.output(records).rows()),
            "months_agree": by_month == count,
            "sum": str(sum(row["sum"] for row in held)),
            "sum_of_the_file": str(total),
        }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:22} {value}")
