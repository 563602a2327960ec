"""Hurts the network between processes of a cluster, again and again, while clients call it.

    python -m tests.kill.network --faults 100 --progress FILE

Coordinator and workers are each in a network namespace of their own (`switch.py`; this needs
root). In a *life* of a cluster packets between two of them are lost in one direction or in both,
all of them or some, or come late; between two workers, or between a worker and the coordinator;
after some seconds all is well again. Clients call the coordinator all the time. Then every account
must be as those calls have left it that were acknowledged. Now and then two workers stay apart for
long: then one of them must be left out, and calls must go on before the network is mended.
"""

from __future__ import annotations

import argparse
import functools
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .cluster import (
    APP,
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
from .switch import CUT, Network, Way, why_not

ACCOUNTS = 40
COORDINATOR = 0
#: What may happen, more often the more often it stands here.
FAULTS = ("cut", "cut", "one way", "one way", "loss", "loss", "late", "off", "long")


class Cluster:
    """A coordinator and workers, each on a host of its own."""

    def __init__(self, folder: Path, network: Network, workers: int) -> None:
        self.folder, self.network = folder, network
        folder.mkdir(parents=True)
        (folder / "secret").write_text(f"{random.SystemRandom().getrandbits(256):064x}")
        at = network.addresses[COORDINATOR]
        self.coordinator = self._start(
            *(COORDINATOR, "coordinator", "--listen", f"{at}:0", "--http", "127.0.0.1:0"),
            *("--data-dir", str(folder / "data")),
        )
        join = self.coordinator.find(r"join at (\S+)")
        self.url = self.coordinator.find(r"http +(http://\S+)")
        self.workers = [
            self._start(n, "worker", "--join", join, "--listen", f"{network.addresses[n]}:0")
            for n in range(1, workers + 1)
        ]

    def _start(self, host: int, who: str, *more: str) -> Process:
        common = ["--secret-file", str(self.folder / "secret"), *settings()]
        common += ["--snapshots", str(self.folder / "snapshots")]
        within = self.network.within(host)
        return Process(self.folder / f"{who}-{host}", who, str(APP), *common, *more, within=within)

    def is_whole(self) -> bool:
        """Whether all its workers are members."""
        return len(workers_of(self.url)) == len(self.workers)

    def end(self) -> None:
        """Kills all of it."""
        for process in (*self.workers, self.coordinator):
            process.__exit__()


def ways_of(what: str, workers: int, dice: random.Random) -> dict[tuple[int, int], Way]:
    """A fault, as what happens to packets."""
    hosts = range(1, workers + 1)
    if what == "long" and workers > 1:
        one, other = dice.sample(hosts, 2)
    else:
        one, other = dice.sample([COORDINATOR, *hosts], 2)
    way = {
        "loss": Way(loss=dice.choice([0.05, 0.1, 0.3])),
        "late": Way(delay_s=dice.choice([0.05, 0.1, 0.2])),
    }.get(what, CUT)
    if what == "off":
        # A worker that nobody reaches.
        one = dice.choice(hosts)
        return {w: way for n in (COORDINATOR, *hosts) if n != one for w in ((one, n), (n, one))}
    both = {(one, other): way, (other, one): way}
    return {(one, other): way} if what == "one way" else both


def hurt(cluster: Cluster, what: str, dice: random.Random, clients: Clients) -> float:
    """One fault, until it is mended; the longest time without an acknowledged call meanwhile."""
    workers = len(cluster.workers)
    cluster.network.set(ways_of(what, workers, dice))
    longest, at = 0.0, time.monotonic()
    if what == "long" and workers > 1:
        # Long enough for the two to lose some generations, and for one without one of them.
        wait_for("a worker that is left out", lambda: health(cluster.url).get("left_out"), 90)
        clients.wait_for_more(30)
        longest = time.monotonic() - at
        time.sleep(dice.random() * 20)
    else:
        until = time.monotonic() + dice.choice([0.5, 3.0, 8.0])
        while (left := until - time.monotonic()) > 0:
            before = clients.fates["acknowledged"]
            began = time.monotonic()
            while clients.fates["acknowledged"] == before and time.monotonic() < until:
                time.sleep(0.01)
            longest = max(longest, time.monotonic() - began)
            time.sleep(min(left, 0.01))
    cluster.network.set({})
    return longest


def live(number: int, folder: Path, faults: int, kinds: Sequence[str] = FAULTS) -> Life:
    """One cluster, whose network is hurt so often."""
    dice = random.Random(number)
    workers = dice.choice([1, 2, 2, 3] if kinds == FAULTS else [2, 3])
    network = Network(workers + 1)
    acts: Counter[str] = Counter()
    cluster = None
    try:
        with network.inside(COORDINATOR):
            cluster = Cluster(folder / f"life-{number}", network, workers)
            fates = hurt_often(cluster, dice, faults, kinds, acts)
    except Differs as error:
        raise Differs(f"life {number} in {folder}, after {dict(acts)}: {error}") from None
    finally:
        if cluster is not None:
            cluster.end()
        network.close()
    shutil.rmtree(folder / f"life-{number}")
    return faults, acts, fates


def hurt_often(
    cluster: Cluster,
    dice: random.Random,
    faults: int,
    kinds: Sequence[str],
    acts: Counter[str],
) -> Counter[str]:
    """Faults while clients call, and whether all is right in the end; the fates of calls."""
    try:
        wait_for("all workers", cluster.is_whole)
        with Clients(cluster.url, ACCOUNTS, seed=faults) as clients:
            for _ in range(faults):
                what = dice.choice(kinds)
                acts[what] += 1
                longest = hurt(cluster, what, dice, clients)
                print(f"  {what}: at most {longest:.1f} s without a reply", flush=True)
                if dice.randrange(2):
                    clients.wait_for_more()
                if dice.randrange(2):
                    # One that was left out comes back when its time is over.
                    wait_for("all workers", cluster.is_whole, 120)
                    clients.wait_for_more()
            clients.wait_for_more()
        validate(clients)
    except Differs as error:
        raise Differs(f"{error}; {health(cluster.url)}") from None
    for process in (*cluster.workers, cluster.coordinator):
        if process.process.poll() is not None:
            raise Differs(f"a process has ended by itself: {process.errors.read_text()}")
    return clients.fates


def main() -> None:
    """Injects as many faults as the arguments ask, and continues an interrupted run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--only", choices=sorted(set(FAULTS)), action="append")
    arguments(parser)
    args = parser.parse_args()
    if (why := why_not()) is not None:
        # A skipped run is no error, but its output says that it was skipped.
        print(f"skipped: {why}")
        return
    of_these = functools.partial(live, kinds=args.only or FAULTS)
    live_on(args, "faults", "faults", range(3, 9), of_these)


if __name__ == "__main__":
    try:
        main()
    except (Differs, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
