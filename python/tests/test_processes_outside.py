"""The questions of functions on several processes to the outside: whichever process dies, the
answers are repeated.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .kill.cluster import Process, joined, kill_worker, settings, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

CODE = """
import os
import random

import tidemill as tm

app = tm.App("rates")
none = tm.column(int, default=0)
pots = app.entity("pot", key="id", id=int, sum=none, last=none)
totals = app.table("totals", key="what", what=str, sum=tm.column(int, default=0))
paid = app.stream("paid", rate=int)
told = app.stream("told", pot=int, rate=int)


def rate(what, n):
    # Each answer is new, with overwhelming probability.
    said = random.SystemRandom().randrange(1 << 40)
    with open(os.path.join({folder!r}, "asked"), "a") as file:
        file.write(f"{{what}} {{n}} {{said}}\\n")
    return said


@pots.function(creates=True)
async def add(self, ctx, more: int):
    self.sum += more
    return self.sum


@pots.function(creates=True, emits=[told])
async def pay(self, ctx, other: int):
    here = ctx.lookup(rate, "pay", self.id)
    # The other pot may be on any process. It receives the answer before others are asked.
    await pots[other].add(here)
    there = ctx.lookup(rate, "back", self.id)
    self.last = here + there
    ctx.emit(told, pot=self.id, rate=here)
    return [here, there]


@app.procedure()
def give(tx, n: int):
    said = tx.lookup(rate, "give", n)
    totals["given"].sum += said
    tx.emit(paid, rate=said)
    return said


@app.transaction(paid, opaque=True)
def count(tx, e):
    # Of the same round, which is executed as a whole.
    totals["paid"].sum += e.rate
    totals["twice"].sum += tx.lookup(rate, "count", e.rate)
"""

POTS, CALLS, CLIENTS = 8, 25, 4


def asked(client: tm.Client, what: str, request: str, **arguments: int) -> Any:
    """The reply of a call that is executed once, asked until there is one."""

    def reply() -> list[Any]:
        try:
            return [client.using(request_id=request).call(what, **arguments)]
        except (tm.ResourceError, TimeoutError, ConnectionError):
            return []

    return wait_for(f"reply to {request}", reply)[0]


def test_what_outside_said_is_part_of_history(tmp_path: Path) -> None:
    (tmp_path / "rates.py").write_text(CODE.format(folder=str(tmp_path)))

    def start(name: str) -> Process:
        flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings()]
        return Process(tmp_path / name, "run", str(tmp_path / "rates.py"), "--http", "0", *flags)

    pays: list[tuple[int, int, list[int]]] = []
    gives: list[int] = []

    def ask(url: str, nth: int) -> None:
        dice = random.Random(nth)
        with tm.Client(url) as client:
            for n in range(CALLS):
                pot, other = dice.randrange(POTS), dice.randrange(POTS)
                said = asked(client, "pot.pay", f"pay-{nth}-{n}", id=pot, other=other)
                pays.append((pot, other, said))
                gives.append(asked(client, "give", f"give-{nth}-{n}", n=n))

    def check(url: str, follows: bool) -> None:
        sums, givers = defaultdict[int, int](int), defaultdict[int, list[int]](list)
        for pot, other, (here, there) in pays:
            sums[other] += here
            givers[pot].append(here + there)
        with tm.Client(url) as client:
            for pot in range(POTS):
                row = client.row("pot", pot)
                assert row is not None
                assert row["sum"] == sums[pot]
                assert not givers[pot] or row["last"] in givers[pot]
            total = {what: client.row("totals", what)["sum"] for what in ("given", "paid", "twice")}
            if follows:
                following = client.subscribe("told", after=-1)
                events = [next(following).value["rate"] for _ in pays]
                assert sorted(events) == sorted(here for _, _, (here, _) in pays)
        assert total["given"] == total["paid"] == sum(gives)
        # Of each count it is one that somebody has said.
        said: dict[str, set[int]] = defaultdict(set)
        for line in (tmp_path / "asked").read_text().splitlines():
            what, n, answer = line.split()
            said[f"{what} {n}"].add(int(answer))
        assert total["twice"] >= sum(min(said[f"count {rate}"]) for rate in gives)
        assert total["twice"] <= sum(max(said[f"count {rate}"]) for rate in gives)

    with start("first") as parent:
        url = joined(parent)
        asking = [threading.Thread(target=ask, args=(url, nth)) for nth in range(CLIENTS)]
        for thread in asking:
            thread.start()
        for nth in range(4):
            done = len(pays)
            wait_for("calls", lambda done=done: len(pays) > done + 3 or not asking[0].is_alive())
            kill_worker(parent, nth % 2)
            wait_for("another worker", lambda: len(workers_of(url)) == 2)
        for thread in asking:
            thread.join()
        assert len(pays) == len(gives) == CALLS * CLIENTS
        check(url, follows=True)
        parent.send(signal.SIGKILL)
    before = (tmp_path / "asked").read_text()
    with start("second") as parent:
        url = joined(parent)
        check(url, follows=False)
        # Nobody was asked for what is known.
        assert (tmp_path / "asked").read_text() == before
