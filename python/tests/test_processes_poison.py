"""Transactions that end the process of every worker that executes them."""

from __future__ import annotations

import csv
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .kill.cluster import Process, joined, settings, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

#: The number of deaths after which there is a verdict, and its words.
DEATHS = 3
REASON = f"it ended the process of a worker {DEATHS} times in a row"

#: An opaque function, on rows of several owners.
BANK = """
import os

import tidemill as tm

app = tm.App("bank")
accounts = app.table("accounts", key="id", id=int, cents=tm.column(int, default=1000))
visits = app.table("visits", key="id", id=int, times=tm.column(int, default=0))
payments = app.stream("payments", src=int, dst=int, cents=int)
payments.read(tm.files("payments.csv"))
others = app.stream("others", src=int, dst=int, cents=int)
others.read(tm.files("others.csv"))


def die():
    with open("begun", "a") as file:
        file.write("x")
    os._exit(9)


@app.transaction(payments, out=dict(src=int, left=int), opaque=True)
def pay(tx, e):
    if e.cents == 666:
        die()
    src, dst = accounts[e.src], accounts[e.dst]
    tx.require(src.cents >= e.cents, "insufficient funds")
    src.cents -= e.cents
    dst.cents += e.cents
    return dict(src=e.src, left=src.cents)


@app.transaction(others, out=dict(src=int), opaque=True)
def also(tx, e):
    if e.cents == 666:
        die()
    visits[e.src].times += 1
    return dict(src=e.src)


pay.write(tm.files("paid.csv"))
pay.aborted.write(tm.files("refused.csv"))
also.write(tm.files("also.csv"))
"""

#: The same with a trigger: one worker owns all rows.
TRIGGERED = """
paid = app.table("paid", key="id", id=int, times=tm.column(int, default=0))


@app.trigger(accounts)
def count(tx, change):
    paid[0].times += 1
"""


def write(path: Path, *, poison: bool) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["src", "dst", "cents"])
        for n in range(120):
            if n in (50, 90):
                if poison:
                    rows.writerow([n % 7, n % 5, 666])
                continue
            rows.writerow([n % 7, n * 3 % 11, n * 37 % 400])


def run(folder: Path, *flags: str) -> dict[str, Any]:
    with Process(folder, "run", "bank.py", "--json", *flags) as process:
        assert process.process.wait(120) == 0, process.errors.read_text()
        found: dict[str, Any] = json.loads(process.said.read_text().splitlines()[-1])
        return found


@pytest.mark.parametrize("more", ["", TRIGGERED], ids=["owners", "sole owner"])
def test_events_that_end_workers_become_dead_letters(tmp_path: Path, more: str) -> None:
    with_poison, without = tmp_path / "with", tmp_path / "without"
    for folder in (with_poison, without):
        folder.mkdir()
        (folder / "bank.py").write_text(BANK + more)
        # Each worker reads one of the files.
        for name in ("payments.csv", "others.csv"):
            write(folder / name, poison=folder == with_poison)
    flags = settings(f"poison_after={DEATHS}")
    # Each epoch has several events, so that it must be found out which one it is.
    found = run(with_poison, "--processes", "2", *flags, "--set", "cluster_epoch_rows_max=30")
    assert (found["dead"], found["events"]) == (4, 240)
    assert found["sole_owner"] == bool(more)
    assert run(without)["dead"] == 0
    for name in ("paid.csv", "refused.csv", "also.csv"):
        assert (with_poison / name).read_text() == (without / name).read_text()
    begun = len((with_poison / "begun").read_text())
    assert begun >= 4 * DEATHS
    # Nothing executes them again, not even one process with the same directory.
    assert run(with_poison)["dead"] == 4
    assert len((with_poison / "begun").read_text()) == begun


CALLS = """
import os

import tidemill as tm

app = tm.App("pots")
pots = app.entity("pot", key="id", id=int, sum=tm.column(int, default=0))


def die():
    with open("begun", "a") as file:
        file.write("x")
    os._exit(9)


@pots.function(creates=True)
async def add(self, ctx, n: int):
    if n == 666:
        die()
    self.sum += n
    return self.sum


@pots.function(creates=True)
async def both(self, ctx, n: int, m: int):
    self.sum += n
    return await pots[self.id + 1].add(m)
"""


def test_calls_that_end_workers_abort_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "pots.py").write_text(CALLS)

    def start(name: str) -> Process:
        flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), "--http", "0"]
        # Nothing is in a snapshot: all is executed again.
        flags += settings(f"poison_after={DEATHS}", "cluster_snapshot_us=600000000")
        return Process(tmp_path / name, "run", str(tmp_path / "pots.py"), *flags)

    def sums(client: tm.Client) -> list[int]:
        rows = [client.row("pot", pot) for pot in range(5)]
        return [0 if row is None else row["sum"] for row in rows]

    def begun() -> int:
        return sum(len(path.read_text()) for path in tmp_path.glob("*/begun"))

    with start("first") as parent:
        url = joined(parent)
        with tm.Client(url) as client:
            client.call("pot.add", id=1, n=1)
            assert client.call("pot.both", id=2, n=2, m=3) == 3
            # The second worker to execute it is in the call of another entity.
            for function, values in (("add", {"n": 666}), ("both", {"n": 5, "m": 666})):
                with pytest.raises(tm.Abort, match=REASON):
                    client.call(f"pot.{function}", id=1, **values)
            assert client.call("pot.add", id=1, n=4) == 5
            assert sums(client) == [0, 5, 2, 3, 0]
            assert begun() == 2 * DEATHS
            wait_for("both workers", lambda: len(workers_of(url)) == 2)
        parent.send(signal.SIGKILL)
    with start("second") as parent:
        url = joined(parent)
        with tm.Client(url) as client:
            assert sums(client) == [0, 5, 2, 3, 0]
            assert begun() == 2 * DEATHS
