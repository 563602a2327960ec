"""Processes of a cluster, clients that call them, and what must hold of all accounts in the end."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import tidemill as tm

APP = Path(__file__).with_name("bank.py")
OPENING = 100

#: How long anything may take that has to happen.
PATIENCE = 60.0

#: A freeze is longer than this lease, and tests are short.
LEASE_S = 0.8
QUICK = (
    f"cluster_lease_us={int(LEASE_S * 1e6)}",
    "cluster_beat_us=50000",
    "cluster_snapshot_us=150000",
)


class Differs(Exception):
    """A violation of the guarantee."""


def wait_for(what: str, holds: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Waits until something holds, and gives it."""
    until = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > until:
            raise Differs(f"{what}: it did not come within {seconds:.0f} s")
        time.sleep(0.02)
    return found


class Process:
    """A command of the package, in a process of its own."""

    def __init__(self, folder: Path, *args: str, within: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.args = args
        self.said, self.errors = folder / "stdout", folder / "stderr"
        with self.said.open("w") as out, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", "tidemill.cli", *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=folder,
                env={k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")},
            )

    def find(self, pattern: str) -> str:
        """Waits until it has said something; gives the group of the pattern."""

        def holds() -> re.Match[str] | None:
            found = re.search(pattern, self.said.read_text() + self.errors.read_text())
            if found is None and self.process.poll() is not None:
                raise Differs(f"it has ended: {self.errors.read_text()}")
            return found

        return str(wait_for(f"{self.args}: {pattern}", holds)[1])

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: int) -> None:
        """Sends a signal, and waits for the end of what it ends."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Asks it to end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: object = None, *error: object) -> None:
        ended = self.process.poll()
        if ended is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        if kind is not None:
            # A test that failed shows what it printed.
            state = "still ran" if ended is None else f"had ended ({ended})"
            print(f"{self.args} {state}:\n{self.errors.read_text()[-4000:]}")


def settings(*more: str) -> list[str]:
    """Flags for settings."""
    return [part for setting in (*QUICK, *more) for part in ("--set", setting)]


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(text) for text in (tasks / "children").read_text().split()]
    return sorted(found)


def is_there(pid: int) -> bool:
    """Whether a process lives."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def pids_of(parent: Process) -> list[int]:
    """A run's two workers, once both live: whoever was killed may still be listed, and its
    successor be still to come."""

    def all_alive() -> list[int]:
        found = [pid for pid in children(parent.pid) if is_there(pid)]
        return found if len(found) == 2 else []

    alive: list[int] = wait_for("two workers that live", all_alive)
    return alive


def kill_worker(parent: Process, which: int = 0) -> None:
    """One of a run's two workers; it is gone afterwards."""
    pid = pids_of(parent)[which]
    os.kill(pid, signal.SIGKILL)
    wait_for("its end", lambda: not is_there(pid))


def kill_all(parent: Process) -> None:
    """A process and all that it has started, at once."""
    for pid in [*children(parent.pid), parent.pid]:
        # One that was killed just now may be gone since it was listed.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    parent.process.wait()


@contextlib.contextmanager
def across_deaths(
    start: Callable[[str], Process], more: Callable[[str, int], int]
) -> Iterator[tuple[Process, str, int]]:
    """A run of two workers in the place of one that was killed, after that had gone on when one of
    its workers had been; with its address, and how far it has come. ``more`` waits until that is
    further than something, and gives it."""
    with start("first") as parent:
        url = parent.find(r"http +(http://\S+)")
        count = more(url, 0)
        kill_worker(parent)
        count = more(url, count)
        kill_all(parent)
    with start("second") as parent:
        url = parent.find(r"http +(http://\S+)")
        yield parent, url, more(url, count)


def health(url: str) -> dict[str, Any]:
    """Returns a coordinator's report about itself; empty where it does not answer."""
    import httpx

    try:
        found: dict[str, Any] = httpx.get(f"{url}/health", timeout=5).json()
    except (httpx.HTTPError, ValueError):
        return {}
    return found


def troubles(url: str) -> list[str]:
    """Returns the reports of processes that wait for something."""
    return [trouble["what"] for trouble in health(url).get("troubles", [])]


def workers_of(url: str) -> list[str]:
    """The members of the generation that runs."""
    return [member["worker"] for member in health(url).get("members", [])]


def joined(parent: Process, workers: int = 2) -> str:
    """Where clients of a run are answered, once all of its workers are there."""
    url = parent.find(r"http +(http://\S+)")
    wait_for("workers", lambda: len(workers_of(url)) == workers)
    return url


class Threads:
    """Threads that call a cluster, from the beginning of a ``with`` block to its end."""

    def __init__(self, url: str, threads: int) -> None:
        self.url = url
        self.stopped = threading.Event()
        #: Of what all of them count.
        self.lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(threads)
        ]

    def _run(self, thread: int) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends when what is on its way has come back."""
        self.stopped.set()
        # Every call has a deadline, and what is validated next must have all of them.
        for thread in self.threads:
            thread.join()


class Clients(Threads):
    """Threads that send money to and fro, and what they were told."""

    def __init__(self, url: str, accounts: int, threads: int = 4, seed: int = 0) -> None:
        super().__init__(url, threads)
        self.accounts, self.seed = accounts, seed
        self.done: dict[int, tuple[str, int, int, int]] = {}
        self.next = 0
        self.fates: Counter[str] = Counter()
        self.surprises: list[str] = []

    def _run(self, thread: int) -> None:
        dice = random.Random(f"{self.seed} {thread}")
        client = tm.Client(self.url, retries=0, deadline=PATIENCE / 2)
        while not self.stopped.is_set():
            with self.lock:
                op = self.next
                self.next += 1
            src = dice.randrange(self.accounts)
            dst = (src + dice.randrange(1, self.accounts)) % self.accounts
            amount = dice.randrange(40)
            try:
                client.call("account.transfer", id=src, dst=dst, amount=amount, op=op)
                fate = "acknowledged"
            except tm.Abort as abort:
                fate = "refused"
                if abort.reason not in ("insufficient funds", "unlucky"):
                    self.surprises.append(abort.reason)
            except tm.Error as error:
                fate = "unknown"
                self.surprises.append(str(error))
                # Do not retry at once while the cluster can't be reached.
                time.sleep(0.02)
            with self.lock:
                self.done[op] = (fate, src, dst, amount)
                self.fates[fate] += 1
        client.close()

    def wait_for_more(self, count: int = 20) -> float:
        """Waits until so many more calls were acknowledged; the seconds that it took."""
        began, wanted = time.monotonic(), self.fates["acknowledged"] + count
        wait_for("calls", lambda: self.fates["acknowledged"] >= wanted)
        return time.monotonic() - began


class Follower:
    """A client that follows the events, from the first on."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.events: list[tm.Event] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with tm.Client(self.url, retries=10_000) as client:
                for event in client.subscribe("moved", after=-1):
                    self.events.append(event)
        except Exception as error:
            self.error = error


def balances(url: str, accounts: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """All accounts, as clients see them."""
    with tm.Client(url, retries=30) as client:
        for id in range(accounts):
            row = client.row("account", id)
            yield id, row or {"id": id, "balance": OPENING, "seen": []}


def validate(
    clients: Clients,
    follower: Follower | None = None,
    rows: dict[int, dict[str, Any]] | None = None,
) -> None:
    """Whether each acknowledged transfer has happened once, on both sides, and no refused one; one
    whose fate nobody knows may have, and then on both sides, too. Events are those that have
    happened, each once, and for each account in the order in which they did. ``rows`` are the
    accounts, where nobody is there any more who could be asked."""
    if rows is None:
        rows = dict(balances(clients.url, clients.accounts))
    expected = dict.fromkeys(rows, OPENING)
    happened = set()
    places: dict[int, list[int]] = {}
    for id, row in rows.items():
        for op in row["seen"]:
            places.setdefault(op, []).append(id)
    for op, (fate, src, dst, amount) in sorted(clients.done.items()):
        where = sorted(places.pop(op, []))
        wanted = {"acknowledged": [sorted((src, dst))], "refused": [[]]}
        if where not in wanted.get(fate, [[], sorted((src, dst))]):
            raise Differs(f"transfer {op} from {src} to {dst} was {fate} and is at {where}")
        if where:
            happened.add(op)
            expected[src] -= amount
            expected[dst] += amount
    if places:
        raise Differs(f"nobody has asked for the transfers {places}")
    for id, row in rows.items():
        if row["balance"] != expected[id]:
            raise Differs(f"account {id} has {row['balance']} and should have {expected[id]}")
    if follower is None:
        return
    wait_for("events", lambda: follower.error or len(follower.events) >= len(happened), 20)
    if follower.error is not None:
        raise Differs(f"following the events failed: {follower.error}")
    events = [event.value for event in follower.events]
    seen = Counter(event["op"] for event in events)
    if set(seen) != happened or max(seen.values(), default=0) > 1:
        raise Differs(
            f"events lack {sorted(happened - set(seen))[:20]}, have "
            f"{sorted(set(seen) - happened)[:20]} too many, and "
            f"{[op for op, count in seen.items() if count > 1][:20]} several times"
        )
    for id, row in rows.items():
        sent = [op for op in row["seen"] if clients.done[op][1] == id]
        told = [event["op"] for event in events if event["src"] == id]
        if sent != told:
            raise Differs(f"account {id} has sent {sent}, and events tell {told}")
