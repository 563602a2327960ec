"""Whether memory grows: a long run at a steady rate, in which a worker is killed now and then.

    python -m tests.kill.steady --hours 2 --every 600 --out FILE

A coordinator and two workers, each a process, hold a fixed number of rows. Clients call them at a
steady rate. At intervals, one of the workers is killed and started again. The resident memory of
each process is written into FILE, a line of JSON for each sample.

The run is judged by the second half, because caches and buffers fill in the first. For the
coordinator, and for the workers together, a line is fitted through the medians between two kills.
It must not rise over that half by more than a tenth, or 16 MiB if that is more. At the end, every
account is compared with the acknowledged calls.

A stopped run starts from scratch: the memory must be that of processes of the same age.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import tidemill as tm

from .cluster import PATIENCE, Differs, Process, Threads, wait_for, workers_of
from .processes import Cluster
from .till import OPENING

APP = Path(__file__).with_name("till.py")
#: Ids of calls are forgotten within a run, so that there is a steady state.
FLAGS = ["--set", "http_requests_kept_us=30000000"]
SAMPLE_S = 5.0
#: Of what is resident.
GROWS, GROWS_BYTES = 0.1, 16 << 20


class Callers(Threads):
    """Clients at a steady rate, and what each account must come to."""

    def __init__(self, url: str, rows: int, rate: float, threads: int = 4) -> None:
        super().__init__(url, threads)
        self.rows, self.every = rows, threads / rate
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self.moved: Counter[int] = Counter()
        self.done = 0
        self.errors: list[str] = []

    def _run(self, thread: int) -> None:
        dice = random.Random(thread)
        # With an id: whoever asks again finds what it has come to.
        with tm.Client(self.url, retries=1000, deadline=PATIENCE) as client:
            while not self.stopped.wait(2 * dice.random() * self.every):
                src, dst = dice.sample(range(self.rows), 2)
                amount = dice.randrange(40)
                try:
                    client.call("account.transfer", id=src, dst=dst, amount=amount)
                except tm.Error as error:
                    self.errors.append(str(error))
                    return
                with self.lock:
                    self.sent[src] += 1
                    self.received[dst] += 1
                    self.moved[src] -= amount
                    self.moved[dst] += amount
                    self.done += 1

    def validate(self) -> None:
        """Whether each account is what the calls have made of it."""
        if self.errors:
            raise Differs(f"a call has failed: {self.errors[0]}")
        with tm.Client(self.url, retries=30) as client:
            for id in range(self.rows):
                row = client.row("account", id) or {}
                found = tuple(row.get(name, 0) for name in ("sent", "received"))
                balance = row.get("balance", OPENING)
                wanted = self.sent[id], self.received[id], OPENING + self.moved[id]
                if (*found, balance) != wanted:
                    raise Differs(f"account {id} is {(*found, balance)} and should be {wanted}")


def resident(process: Process) -> int:
    """The bytes of a process that are in memory."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def size(folder: Path) -> int:
    """The bytes of all files in a folder; some go while they are counted."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(where) / name).stat().st_size
            except OSError:
                continue
    return total


def growth(medians: list[float]) -> float:
    """By how much a line through these rises, from the first to the last."""
    if len(medians) < 2:
        return 0.0
    fitted = statistics.linear_regression(range(len(medians)), medians)
    return float(fitted.slope) * (len(medians) - 1)


def judge(samples: list[dict[str, Any]]) -> dict[str, float]:
    """How much more the processes have at the end of the second half than at its beginning.

    Raises what grows.
    """
    found = {}
    stages = sorted({sample["stage"] for sample in samples})
    half = stages[len(stages) // 2 :]
    for who in ("coordinator", "workers"):
        medians = [
            statistics.median(s[who] for s in samples if s["stage"] == stage) for stage in half
        ]
        found[who] = growth(medians)
        limit = max(GROWS * statistics.mean(medians), GROWS_BYTES)
        if found[who] > limit:
            mib = [round(median / 2**20, 1) for median in medians]
            raise Differs(f"the memory of the {who} grows: MiB between kills were {mib}")
    return found


def watch(
    cluster: Cluster, callers: Callers, seconds: float, every: float, out: Path | None
) -> list[dict[str, Any]]:
    """Kills and samples; what was sampled."""
    samples: list[dict[str, Any]] = []
    began = time.monotonic()
    stage = 0
    while (now := time.monotonic() - began) < seconds:
        if now > (stage + 1) * every:
            stage += 1
            victim = cluster.workers.pop(0)
            victim.send(signal.SIGKILL)
            cluster.workers.append(cluster.start_worker())
            wait_for("two workers", lambda: len(workers_of(cluster.url)) == 2)
            last = [s for s in samples if s["stage"] == stage - 1]
            mib = {
                who: round(statistics.median(s[who] for s in last) / 2**20, 1)
                for who in ("coordinator", "workers", "files")
            }
            print(
                f"{now / 60:.0f} of {seconds / 60:.0f} minutes, {stage} kills, "
                f"{callers.done} calls, MiB {mib}",
                flush=True,
            )
        sample = {
            "at_s": round(now, 1),
            "stage": stage,
            "calls": callers.done,
            "coordinator": resident(cluster.coordinator),
            "workers": sum(map(resident, cluster.workers)),
            "files": size(cluster.folder),
        }
        samples.append(sample)
        if out is not None:
            with out.open("a") as lines:
                lines.write(json.dumps(sample) + "\n")
        if callers.errors:
            raise Differs(f"a call has failed: {callers.errors[0]}")
        time.sleep(SAMPLE_S)
    return samples


def main() -> None:
    """Runs, and says whether it has grown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=600.0, help="seconds between two kills")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=200.0, help="calls a second")
    parser.add_argument("--out", type=Path, help="a file for what was sampled")
    args = parser.parse_args()
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.unlink(missing_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tidemill-steady-"))
    cluster = Cluster(folder / "cluster", 2, [], APP, FLAGS)
    try:
        wait_for("two workers", lambda: len(workers_of(cluster.url)) == 2)
        with Callers(cluster.url, args.rows, args.rate) as callers:
            samples = watch(cluster, callers, args.hours * 3600, args.every, args.out)
        callers.validate()
    finally:
        cluster.end()
    grown = {who: f"{more / 2**20:+.1f} MiB" for who, more in judge(samples).items()}
    print(f"{callers.done} calls, every account is right; in the second half {grown}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    try:
        main()
    except Differs as error:
        sys.exit(f"error: {error}")
