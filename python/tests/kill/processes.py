"""Kills and freezes processes of a cluster, again and again, while clients call it.

    python -m tests.kill.processes --kills 100 --progress FILE

A *life* is one cluster: a coordinator and workers, each a process. Clients call it all the time. A
few of its processes are killed or frozen at any moment, also while a generation forms after the
last fault. Killed processes are started again. Then every account must have the effects of exactly
the acknowledged calls. The number of the life determines which processes are killed in which order,
but not the moments.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from .cluster import (
    APP,
    LEASE_S,
    Clients,
    Differs,
    Process,
    health,
    settings,
    validate,
    wait_for,
    workers_of,
)
from .progress import Life, arguments, live_on

ACCOUNTS = 40
#: What may happen, more often the more often it stands here.
ACTS = ("worker", "worker", "coordinator", "both", "freeze", "freeze coordinator", "all")


class Cluster:
    """A coordinator, and workers that are started again."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        flags: list[str] | None = None,
        app: Path = APP,
        coordinator: list[str] | None = None,
    ) -> None:
        self.folder, self.app = folder, app
        self.flags = settings() if flags is None else flags
        #: What means something to it alone.
        self.coordinator_flags = coordinator or []
        folder.mkdir(parents=True)
        (folder / "secret").write_text(f"{random.SystemRandom().getrandbits(256):064x}")
        self.listen, self.http = "127.0.0.1:0", "127.0.0.1:0"
        self.started = 0
        self.coordinator = self.start_coordinator()
        self.workers = [self.start_worker() for _ in range(workers)]

    def _start(self, who: str, *more: str) -> Process:
        self.started += 1
        common = ["--secret-file", str(self.folder / "secret"), *self.flags]
        common += ["--snapshots", str(self.folder / "snapshots")]
        return Process(self.folder / f"{who}-{self.started}", who, str(self.app), *common, *more)

    def start_coordinator(self) -> Process:
        """Starts it where it was."""
        started = self._start(
            "coordinator",
            *("--listen", self.listen, "--http", self.http),
            *("--data-dir", str(self.folder / "data")),
            *self.coordinator_flags,
        )
        self.listen = started.find(r"join at (\S+)")
        self.url = started.find(r"http +(http://\S+)")
        self.http = self.url.removeprefix("http://")
        return started

    def start_worker(self) -> Process:
        """Starts one more."""
        return self._start("worker", "--join", self.listen)

    def act(self, what: str, dice: random.Random) -> int:
        """Does something to it; how many processes were hurt."""
        place = dice.randrange(len(self.workers))
        worker = self.workers[place]
        if what.startswith("freeze"):
            victim = self.coordinator if what == "freeze coordinator" else worker
            victim.send(signal.SIGSTOP)
            time.sleep(dice.choice([0.1, LEASE_S, 2 * LEASE_S]))
            victim.send(signal.SIGCONT)
            return 1
        hurt = {"worker": [worker], "coordinator": [self.coordinator]}.get(
            what,
            [worker, self.coordinator] if what == "both" else [*self.workers, self.coordinator],
        )
        dice.shuffle(hurt)
        for victim in hurt:
            victim.send(signal.SIGKILL)
            time.sleep(dice.choice([0.0, 0.0, 0.05]))
        # A supervisor restarts processes with a delay.
        time.sleep(dice.random() * dice.choice([0.01, 0.5]))
        if self.coordinator in hurt:
            self.coordinator = self.start_coordinator()
        self.workers = [self.start_worker() if w in hurt else w for w in self.workers]
        return len(hurt)

    def is_whole(self) -> bool:
        """Whether all its workers are members."""
        return len(workers_of(self.url)) == len(self.workers)

    def end(self) -> None:
        """Kills all of it."""
        for process in (*self.workers, self.coordinator):
            process.__exit__()


def live(number: int, folder: Path, kills: int, flags: list[str] | None = None) -> Life:
    """One cluster, hurt so often at least: how often it was, by what, and the fates of calls."""
    dice = random.Random(number)
    cluster = Cluster(folder / f"life-{number}", dice.choice([1, 2, 2, 3]), flags)
    acts: Counter[str] = Counter()
    hurt = 0
    try:
        wait_for("the first generation", lambda: workers_of(cluster.url))
        with Clients(cluster.url, ACCOUNTS, seed=number) as clients:
            while hurt < kills:
                what = dice.choice(ACTS)
                acts[what] += 1
                hurt += cluster.act(what, dice)
                # During a recovery, during calls, or when the cluster is quiet again.
                match dice.randrange(3):
                    case 0:
                        time.sleep(dice.random() * 0.5)
                    case 1:
                        clients.wait_for_more(dice.randrange(1, 50))
                    case _:
                        wait_for("all workers", cluster.is_whole)
                        clients.wait_for_more()
            clients.wait_for_more()
        validate(clients)
        for process in (*cluster.workers, cluster.coordinator):
            if process.process.poll() is not None:
                raise Differs(f"a process has ended by itself: {process.errors.read_text()}")
    except Differs as error:
        state = health(cluster.url)
        raise Differs(
            f"life {number} in {cluster.folder}, after {dict(acts)}: {error}; {state}"
        ) from None
    finally:
        cluster.end()
    shutil.rmtree(cluster.folder)
    return hurt, acts, clients.fates


def main() -> None:
    """Kills as often as the arguments ask, and continues an interrupted run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    arguments(parser)
    live_on(parser.parse_args(), "kills", "processes killed or frozen", range(3, 12), live)


if __name__ == "__main__":
    try:
        main()
    except Differs as error:
        sys.exit(f"error: {error}")
