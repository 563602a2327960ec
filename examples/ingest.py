"""Streaming ingestion with cleaning: a bank's list into a warehouse, one day at a time (S-Store,
section 1.1).

The list is raw: codes in Czech, amounts without a sign, invalid rows. The app cleans each row or
rejects it with a reason. Reports must never see half a day. So the rows of a day are one batch,
which is one transaction: facts, monthly sums and the day's own line appear together. A trigger
watches the sums while they change.

    python examples/ingest.py

The summary compares the warehouse with sums over the file itself.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import tidemill as tm

#: A real bank list, which comes with the package.
BANK_LIST = Path(tm.__file__).parent / "demo/data/berka/trans.csv.gz"
Money = Annotated[Decimal, tm.decimal(2)]
KINDS = {"PRIJEM": "credit", "VYDAJ": "debit", "VYBER": "debit"}
WAYS = {
    "VKLAD": "cash in",
    "VYBER": "cash out",
    "VYBER KARTOU": "card",
    "PREVOD Z UCTU": "from a bank",
    "PREVOD NA UCET": "to a bank",
}

app = tm.App("ingest")

facts = app.table("facts", key="id", id=int, account=int, day=str, amount=Money, way=str)
by_day = facts.index("day")
months = app.table(
    "months",
    key=("month", "way"),
    month=str,
    way=str,
    rows=tm.column(int, default=0),
    sum=tm.column(Money, default=0),
)
days = app.table("days", key="day", day=str, rows=int, rejected=int, turnover=Money)

rows = app.stream(
    "rows",
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
).batches("1d")
rejected = app.stream("rejected", trans_id=int, reason=str)
records = app.stream("records", month=str, turnover=Money)

biggest = app.table("biggest", key="id", id=int, turnover=Money)


@app.procedure(rows)
def load(tx: tm.Tx, rows: list[Any]) -> None:
    """Adds the valid rows of one day to the warehouse: all of them at once, or none."""
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
            reason = "the id is a duplicate"
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
def record(tx: tm.Tx, change: Any) -> None:
    """Reports a day with more turnover than all days before it."""
    best = biggest[0]
    if not best.exists() or change.new.turnover > best.turnover:
        biggest.upsert(id=0, turnover=change.new.turnover)
        tx.emit(records, month=change.new.day[:7], turnover=change.new.turnover)


@app.procedure
def report(tx: tm.Tx, day: str) -> dict[str, Any]:
    """Returns a day of the warehouse, which is always complete."""
    found = by_day[day]
    line = days[day]
    tx.require(line.exists(), "no such day")
    assert len(found) == line.rows
    assert sum(abs(row.amount) for row in found) == line.turnover
    return {"rows": line.rows, "rejected": line.rejected, "turnover": str(line.turnover)}


LIST: dict[str, Any] = dict(delimiter=";", formats={"date": "%y%m%d"})
rows.read(tm.files(BANK_LIST, **LIST))


def straight() -> tuple[Counter[str], Decimal]:
    """Returns the number of rows by month and the total, from the file itself."""
    count: Counter[str] = Counter()
    total = Decimal(0)
    with gzip.open(BANK_LIST, "rt") as file:
        for row in csv.DictReader(file, delimiter=";"):
            count[f"19{row['date'][:2]}-{row['date'][2:4]}"] += 1
            total += Decimal(row["amount"]) * (1 if row["type"] == "PRIJEM" else -1)
    return count, total


def main(**settings: Any) -> dict[str, Any]:
    """Loads the list; returns a summary."""
    with app.start(**settings) as mill:
        early = 0
        while not early:
            # Reports are possible while days arrive.
            try:
                early = mill.call(report, day="1993-01-05")["rows"]
            except tm.Abort:
                continue  # This day has not arrived yet.
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
