"""Work outside that functions on several processes ask for: it is done, whatever dies, and its
answer counts once."""

from __future__ import annotations

import signal
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

import tidemill as tm

from .kill.cluster import Process, joined, kill_worker, settings, wait_for, workers_of
from .test_processes_outside import asked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

CODE = """
import os
import random
import time

import tidemill as tm

app = tm.App("shop")
orders = app.entity("order", key="id", id=int, state=str, work=str, said=tm.column(int, default=0))
counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))


@app.external(out={{"said": int}}, at_once=3, retries=1)
def charge(id: str, order: int):
    # Nobody says the same twice; some say nothing, and some fail always.
    said = random.SystemRandom().randrange(1 << 40)
    time.sleep(0.02)
    if order % 10 == 7:
        raise ValueError("no money")
    with open(os.path.join({folder!r}, "charged"), "a") as file:
        file.write(f"{{id}} {{order}} {{said}}\\n")
    if said % 5 == 0:
        raise KeyError("the line is dead")
    return {{"said": said}}


@orders.function(creates=True)
async def place(self, ctx):
    self.state = "open"
    self.work = ctx.external(charge, order=self.id)
    return self.work


@app.procedure()
def place_and_count(tx, id: int):
    counts["placed"].n += 1
    orders.table.insert(id=id, state="open", work=tx.external(charge, order=id))
    return counts["placed"].n


@app.procedure()
def refuse(tx, id: int):
    tx.external(charge, order=id)
    tx.require(False, "nobody wants it")


@app.transaction(charge, opaque=True)
def charged(tx, e):
    order = orders.table[e.order]
    order.state = "paid" if e.error is None else e.error
    order.said = -1 if e.said is None else e.said
    counts["charged"].n += 1
"""

ORDERS = 60


def test_work_is_done_and_its_answer_counts_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CODE.format(folder=str(tmp_path)))

    def start(name: str) -> Process:
        flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings()]
        return Process(tmp_path / name, "run", str(tmp_path / "shop.py"), "--http", "0", *flags)

    def count(client: tm.Client, what: str) -> int:
        row = client.row("counts", what)
        return 0 if row is None else int(row["n"])

    keys: dict[int, str] = {}

    def is_refused(client: tm.Client, id: int) -> bool:
        try:
            client.call("refuse", id=id)
        except tm.Abort:
            return True
        except (tm.ResourceError, TimeoutError, ConnectionError):
            return False
        raise AssertionError("it was not refused")

    def place(url: str, numbers: range) -> None:
        with tm.Client(url) as client:
            for id in numbers:
                if id % 3:
                    keys[id] = asked(client, "order.place", f"place-{id}", id=id)
                else:
                    asked(client, "place_and_count", f"place-{id}", id=id)
                if id % 20 == 1:
                    wait_for("a refusal", lambda id=id: is_refused(client, 1000 + id))

    def said() -> dict[str, set[int]]:
        found = defaultdict[str, set[int]](set)
        for line in (tmp_path / "charged").read_text().splitlines():
            id, _, answer = line.split()
            found[id].add(int(answer))
        return found

    with start("first") as parent:
        url = joined(parent)
        placing = [
            threading.Thread(target=place, args=(url, range(at, ORDERS, 2))) for at in range(2)
        ]
        for thread in placing:
            thread.start()
        for nth in range(3):
            done = len(keys)
            wait_for("orders", lambda done=done: len(keys) > done + 4 or not placing[0].is_alive())
            kill_worker(parent, nth % 2)
            wait_for("another worker", lambda: len(workers_of(url)) == 2)
        for thread in placing:
            thread.join()
        # Some of it is perhaps still to be done.
        parent.send(signal.SIGKILL)
    with start("second") as parent:
        url = joined(parent)
        with tm.Client(url) as client:
            wait_for("all answers", lambda: count(client, "charged") >= ORDERS)
            rows = {id: client.row("order", id) for id in range(ORDERS)}
            assert all(client.row("charge.outbox", key) is None for key in keys.values())
            assert count(client, "charged") == ORDERS
            assert count(client, "placed") == sum(1 for id in range(ORDERS) if id % 3 == 0)
        for id, row in rows.items():
            assert row is not None
            assert keys.get(id, row["work"]) == row["work"]
            if id % 10 == 7:
                assert row["state"].startswith("ValueError: no money")
            elif row["state"] == "paid":
                assert row["said"] in said()[row["work"]]
            else:
                assert "the line is dead" in row["state"]
        # Work of aborted transactions was not done.
        placed = [line.split()[1] for line in (tmp_path / "charged").read_text().splitlines()]
        assert max(map(int, placed)) < ORDERS
