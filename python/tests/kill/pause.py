"""How long nothing is answered when the processes of a cluster change.

    python -m tests.kill.pause --rows 1000000 --times 2 --changes 50 --json

A coordinator and two workers, with the usual settings, hold so many rows; some clients call them
all the time. Then one worker is killed, one comes in its place, and one stands still; what counts
is when the first call was answered that was made after that. Then, with few rows, workers come and
end in good order, again and again: there it is the longest time between two replies.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import tidemill as tm

from .cluster import Process, Threads, health, wait_for, workers_of
from .processes import Cluster

#: So many rows are made by one call.
BATCH = 500
#: Of all rows these are called.
ASKED = 1000
#: How much longer is watched when a generation has begun, until clients have noticed.
AFTER_S = 0.3


class Callers(Threads):
    """Clients that call at a low rate, and when each call was made and answered."""

    def __init__(self, url: str, rows: int, threads: int = 4, rate: float = 400.0) -> None:
        super().__init__(url, threads)
        self.rows, self.every = rows, threads / rate
        self.calls: list[tuple[float, float]] = []
        self.failed = 0

    def _run(self, thread: int) -> None:
        dice = random.Random(thread)
        with tm.Client(self.url, retries=0, deadline=60) as client:
            while not self.stopped.wait((0.5 + dice.random()) * self.every):
                ids = dice.sample(range(min(ASKED, self.rows)), 2)
                began = time.monotonic()
                try:
                    client.call("account.transfer", id=ids[0], dst=ids[1], amount=0, op=0)
                except tm.Error:
                    self.failed += 1
                else:
                    self.calls.append((began, time.monotonic()))

    def first_after(self, at: float) -> float:
        """The seconds until a call was answered that was made after this moment."""

        def replied() -> list[float]:
            return [replied for began, replied in self.calls if began > at]

        return float(min(wait_for("a reply", replied))) - at

    def longest(self, since: float) -> float:
        """The longest time without a reply, from this moment to now."""
        moments = sorted(replied for _, replied in self.calls if replied > since)
        pairs = zip([since, *moments], [*moments, time.monotonic()], strict=True)
        return max(later - earlier for earlier, later in pairs)


def fill(url: str, rows: int) -> None:
    """Makes the rows, and waits until a snapshot has them."""
    batches = iter(range(0, rows, BATCH))
    lock = threading.Lock()

    def run() -> None:
        with tm.Client(url, retries=10, deadline=60) as client:
            while True:
                with lock:
                    first = next(batches, None)
                if first is None:
                    return
                client.call("branch.fill", id=first, first=first, count=min(BATCH, rows - first))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def is_stored() -> bool:
        said = health(url)
        return bool(said) and said["epoch"] - said["snapshot_epoch"] < 3

    with tm.Client(url, retries=10) as client:

        def look() -> bool:
            # A snapshot is begun with a cut.
            client.call("account.transfer", id=0, dst=1, amount=0, op=0)
            return is_stored()

        wait_for("a snapshot", look, 120)


def wait_for_members(url: str, count: int) -> None:
    """Waits until the generation that runs has so many."""
    wait_for(f"{count} workers", lambda: len(workers_of(url)) == count)


def losses(folder: Path, rows: int, times: int, flags: list[str]) -> dict[str, list[float]]:
    """Seconds of workers that are killed, come and stand still."""
    found: dict[str, list[float]] = {"killed": [], "came": [], "frozen": []}
    cluster = Cluster(folder, 2, flags)
    try:
        wait_for_members(cluster.url, 2)
        fill(cluster.url, rows)
        with Callers(cluster.url, rows) as callers:
            callers.first_after(time.monotonic())
            for _ in range(times):
                victim = cluster.workers.pop()
                at = time.monotonic()
                victim.send(signal.SIGKILL)
                found["killed"].append(callers.first_after(at))
                at = time.monotonic()
                cluster.workers.append(cluster.start_worker())
                wait_for_members(cluster.url, 2)
                time.sleep(AFTER_S)
                found["came"].append(callers.longest(at))
                victim = cluster.workers[-1]
                at = time.monotonic()
                victim.send(signal.SIGSTOP)
                found["frozen"].append(callers.first_after(at))
                victim.send(signal.SIGCONT)
                wait_for_members(cluster.url, 1)
                wait_for_members(cluster.url, 2)
                callers.first_after(time.monotonic())
    finally:
        cluster.end()
    return found


def changes(folder: Path, rows: int, count: int, flags: list[str]) -> dict[str, list[float]]:
    """Seconds of workers that come and end in good order."""
    found: dict[str, list[float]] = {"came": [], "ended": [], "nothing": []}
    cluster = Cluster(folder, 2, flags)
    try:
        wait_for_members(cluster.url, 2)
        fill(cluster.url, rows)
        with Callers(cluster.url, rows) as callers:
            callers.first_after(time.monotonic())
            for n in range(count):
                at = time.monotonic()
                time.sleep(AFTER_S)
                found["nothing"].append(callers.longest(at))
                if n % 2 == 0:
                    cluster.workers.append(cluster.start_worker())
                    what, members = "came", 3
                    # It is no pause that an interpreter starts on the same machine.
                    cluster.workers[-1].find(r"(joining)")
                    at = time.monotonic()
                else:
                    at = time.monotonic()
                    ended: Process = cluster.workers.pop(0)
                    ended.stop()
                    what, members = "ended", 2
                wait_for_members(cluster.url, members)
                time.sleep(AFTER_S)
                found[what].append(callers.longest(at))
    finally:
        cluster.end()
    return found


def shown(name: str, seconds: list[float]) -> str:
    """A line of a report."""
    if not seconds:
        return f"{name}: nothing was measured"
    if len(seconds) < 5:
        return f"{name}: {', '.join(f'{s:.3f}' for s in seconds)} s"
    high = sorted(seconds)[int(0.99 * len(seconds))]
    return (
        f"{name}: p50 {1e3 * statistics.median(seconds):.0f} ms, p99 {1e3 * high:.0f} ms, "
        f"{len(seconds)} times"
    )


def measure(rows: int, times: int, count: int, few: int, flags: list[str]) -> dict[str, Any]:
    """All of it."""
    folder = Path(tempfile.mkdtemp(prefix="tidemill-pause-"))
    found: dict[str, Any] = {"rows": rows, "few_rows": few, "load_before": os.getloadavg()[0]}
    try:
        if times:
            found |= {"of_many": losses(folder / "many", rows, times, flags)}
        if count:
            found |= {"of_few": changes(folder / "few", few, count, flags)}
    finally:
        shutil.rmtree(folder)
    return found | {"load_after": os.getloadavg()[0]}


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=2, help="workers that are killed, and frozen")
    parser.add_argument("--changes", type=int, default=50, help="workers that come or end")
    parser.add_argument("--few-rows", type=int, default=1000, help="rows where nobody is lost")
    parser.add_argument("--set", action="append", default=[], help="a setting: name=value")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    flags = [part for setting in args.set for part in ("--set", setting)]
    found = measure(args.rows, args.times, args.changes, args.few_rows, flags)
    if args.json:
        print(json.dumps(found))
        return
    for of, rows in (("of_many", args.rows), ("of_few", args.few_rows)):
        for name, seconds in found.get(of, {}).items():
            print(f"{rows} rows, {shown(name, seconds)}")
    print(f"load {found['load_before']:.1f} before, {found['load_after']:.1f} after")


if __name__ == "__main__":
    main()
