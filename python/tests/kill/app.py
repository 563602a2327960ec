"""The app that is killed: pushed rows and files, event time, all kinds of sinks.

    python -m tests.kill.app FOLDER SETTINGS

runs it in a folder with a data directory, and continues an earlier run. It reports to stdout
without buffering, in one line of JSON for each step: the start, the rows that the engine knows and
whether it recovers, the end of the recovery, each acknowledgement, and at the end the summary.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import tidemill as tm

ACCOUNTS = 50
MONEY = tm.decimal(2)
#: Rows of each source.
ORDERS, NOTES, PAYMENTS, VISITS = 4_000, 1_000, 8_000, 3_000

Row = dict[str, Any]


def inputs(seed: int) -> dict[str, list[Row]]:
    """The rows of all streams."""
    dice = random.Random(seed)

    def account() -> int:
        return dice.randrange(ACCOUNTS)

    def rows(count: int, row: Any) -> list[Row]:
        return [row(index, index * 10_000 // count) for index in range(count)]

    def payment(n: int, at: int) -> Row:
        # Payments are out of order, and some are invalid. None is late.
        at = max(0, at - dice.choice([0, 0, 0, 7, 600]))
        amount = "much" if dice.random() < 0.01 else f"{dice.randrange(9_000) / 100:.2f}"
        return dict(n=n, at=at, src=account(), dst=account(), amount=amount)

    return {
        "orders": rows(
            ORDERS, lambda n, at: dict(n=n, at=at, src=account(), dst=account(), cents=n % 97)
        ),
        "notes": rows(NOTES, lambda n, at: dict(n=n, text=f"note {n} " + "x" * dice.randrange(90))),
        "payments": rows(PAYMENTS, payment),
        "visits": rows(VISITS, lambda n, at: dict(n=n, at=at, id=account())),
    }


def write_files(folder: Path, rows: dict[str, list[Row]]) -> None:
    """The files that the app reads."""
    names = list(rows["payments"][0])
    lines = [",".join(str(row[name]) for name in names) for row in rows["payments"]]
    (folder / "payments.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    (folder / "visits.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows["visits"]))


def build() -> tm.App:
    """The app, reading and writing files of the present folder."""
    app = tm.App("killed")
    accounts = app.table(
        "accounts",
        key="id",
        id=int,
        balance=tm.decimal(2, default=500),
        n=tm.column(int, default=0),
    )
    seen = app.table("seen", key=("id", "kind"), id=int, kind=str, times=tm.column(int, default=0))
    texts = app.table("texts", key="n", n=int, text=str)

    orders = app.stream("orders", time="at", n=int, at=int, src=int, dst=int, cents=int)
    notes = app.stream("notes", n=int, text=str)
    payments = app.stream("payments", time="at", n=int, at=int, src=int, dst=int, amount=MONEY)
    visits = app.stream("visits", time="at", n=int, at=int, id=int)

    @app.transaction(orders)
    def order(tx, e):
        src, dst = accounts[e.src], accounts[e.dst]
        tx.require(src.n < 300, "too many")
        src.n += 1
        dst.n += e.cents
        return dict(n=e.n, at=e.at, src=src.n, dst=dst.n)

    @app.transaction(payments)
    def pay(tx, e):
        src, dst = accounts[e.src], accounts[e.dst]
        tx.require(src.balance >= e.amount, "insufficient funds")
        src.balance -= e.amount
        dst.balance += e.amount
        return dict(n=e.n, left=src.balance, right=dst.balance, src=src.n)

    @app.transaction(visits, opaque=True, out=dict(n=int, times=int, first=bool))
    def visit(tx, e):
        row = seen[e.id, "even" if accounts[e.id].n % 2 == 0 else "odd"]
        row.times += 1
        return dict(n=e.n, times=row.times, first=row.times == 1)

    @app.transaction(notes)
    def keep(tx, e):
        texts.upsert(n=e.n, text=e.text)
        return dict(n=e.n, text=e.text)

    # Rounds: two procedures that commit together, with a window and triggers, on batches.
    zero = tm.column(int, default=0)
    sizes = app.table("sizes", key="size", size=int, notes=zero, most=zero)
    marks = app.table("marks", key="size", size=int, changes=zero)
    pieces = notes.map(n=tm.col("n"), size=tm.length(tm.col("text")) % 7).batches(4)
    counted = app.stream("counted", n=int, size=int)
    trends = app.stream("trends", size=int, rows=int)
    recent = app.window("recent", rows=12, slide=3, group="size", size=int)

    @app.procedure(pieces, emits=[counted])
    def count(tx, pieces):
        for piece in pieces:
            sizes[piece.size].notes += 1
            tx.emit(counted, n=piece.n, size=piece.size)

    @app.procedure(counted, owns=[recent])
    def trend(tx, counted):
        for piece in counted:
            recent.insert(size=piece.size)
            # It undoes what the other one has done, too.
            tx.require(piece.n % 19 != 18, "unlucky")

    @app.trigger(recent)
    def slid(tx, slide):
        best = max(recent.groups(), key=lambda group: (group.rows, group.size))
        tx.emit(trends, size=best.size, rows=best.rows)

    @app.trigger(sizes)
    def mark(tx, change):
        marks[change.new.size].changes += 1

    @app.transaction(trends, opaque=True, out=dict(size=int, most=int))
    def remember(tx, e):
        row = sizes[e.size]
        row.most = max(row.most, e.rows)
        return dict(size=e.size, most=row.most)

    app.nested("together", count, trend)

    payments.read(tm.files("payments.csv"), out_of_orderness=700)
    visits.read(tm.files("visits.jsonl"))

    order.write(tm.files("ordered.csv"))
    order.aborted.write(tm.files("refused_orders.jsonl"))
    pay.write(tm.files("paid.parquet"))
    pay.aborted.write(tm.files("refused.csv.gz"))
    visit.write(tm.files("visited.jsonl"))
    keep.write(tm.files("kept.jsonl.gz"))
    remember.write(tm.files("trends.jsonl"))
    count.aborted.write(tm.files("undone.jsonl"))
    payments.late.write(tm.files("late.parquet"))
    payments.dead.write(tm.files("dead.jsonl"))
    return app


def contents(folder: Path) -> dict[str, Any]:
    """Returns the contents of the files that the app writes: bytes, and the rows of Parquet."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.name in ("payments.csv", "visits.jsonl") or path.is_dir():
            continue
        if path.suffix == ".parquet":
            found[path.name] = pq.read_table(path).to_pylist()
        elif path.suffix == ".gz":
            found[path.name] = gzip.decompress(path.read_bytes())
        else:
            found[path.name] = path.read_bytes()
    return found


def outcome(mill: tm.Mill, summary: dict[str, Any]) -> dict[str, Any]:
    """Returns the results that must be equal in every run: all except times, epochs and memory."""
    same = (
        "events",
        "committed",
        "refused",
        "dead",
        "late",
        "outputs",
        "state_hash",
        "output_hash",
    )
    tables = {name: mill.table(name).rows() for name in mill.app.tables}
    return {**{name: summary[name] for name in same}, "tables": repr(tables)}


def say(**what: Any) -> None:
    """Writes a line to stdout, past all buffers: it is with the parent before anything else."""
    os.write(1, json.dumps(what).encode() + b"\n")


def send(mill: tm.Mill, stream: str, rows: list[Row], dice: random.Random) -> None:
    """Sends what the engine does not know yet, in pieces."""
    at = mill.sent(stream)
    while at < len(rows):
        piece = rows[at : at + dice.choice([1, 5, 40, 200])]
        wait = dice.random() < 0.3
        mill.send(stream, piece, wait=wait)
        at += len(piece)
        if wait:
            say(stream=stream, acknowledged=at)


def recover(mill: tm.Mill) -> None:
    """Says when everything recorded has been done again."""
    mill.summary()
    say(recovered=True)


def main() -> None:
    """Runs the app to its end."""
    os.chdir(sys.argv[1])
    settings = json.loads(sys.argv[2])
    rows = inputs(settings.pop("seed"))
    dice = random.Random(settings.pop("dice"))
    app = build()
    say(starts=True)
    # It is killed from outside, and no event is to blame.
    mill = app.start(data_dir="data", poison_after=1_000_000, **settings)
    known = {name: mill.sent(name) for name in ("orders", "notes")}
    say(known=known, recovering=mill.status()["recovering"])
    # Two threads send, each into its own stream, also while the engine recovers.
    with ThreadPoolExecutor(2) as pool:
        recovered = pool.submit(recover, mill)
        other = pool.submit(send, mill, "notes", rows["notes"], random.Random(dice.random()))
        send(mill, "orders", rows["orders"], dice)
        other.result()
        recovered.result()
    say(summary=outcome(mill, mill.finish()))


if __name__ == "__main__":
    main()
