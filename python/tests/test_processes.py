"""An app on several processes: real ones, which are killed, frozen, and started wrongly."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm

from .kill.cluster import (
    APP,
    LEASE_S,
    PATIENCE,
    Clients,
    Follower,
    Process,
    health,
    is_there,
    pids_of,
    settings,
    validate,
    wait_for,
    workers_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

ACCOUNTS = 24


def together(folder: Path, *more: str, count: int = 2) -> Process:
    """A coordinator that has started its workers."""
    flags = ["--processes", str(count), "--data-dir", str(folder / "data"), *settings(*more)]
    return Process(folder / "parent", "run", str(APP), "--http", "0", *flags)


def url_of(process: Process) -> str:
    return process.find(r"http +(http://\S+)")


def wait_for_workers(url: str, count: int) -> list[str]:
    """Waits until so many are members."""
    found: list[str] = wait_for(
        f"{count} workers", lambda: w if len(w := workers_of(url)) == count else None
    )
    return found


class Apart:
    """A coordinator, and workers that nobody starts again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "secret").write_text("0123456789abcdef0123456789abcdef\n")
        self.listen, self.http = "127.0.0.1:0", "127.0.0.1:0"
        self.workers: list[Process] = []
        self.started = 0
        self.coordinator = self.begin()

    def common(self, who: str) -> list[str]:
        """Returns the arguments that all processes share."""
        flags = ["--secret-file", str(self.folder / "secret"), *settings()]
        return [who, str(APP), *flags, "--snapshots", str(self.folder / "snapshots")]

    def begin(self) -> Process:
        """Starts the coordinator, where it was before."""
        self.started += 1
        self.coordinator = Process(
            self.folder / f"coordinator-{self.started}",
            *self.common("coordinator"),
            *("--listen", self.listen, "--http", self.http),
            *("--data-dir", str(self.folder / "data")),
        )
        self.listen = self.coordinator.find(r"join at (\S+)")
        self.url = url_of(self.coordinator)
        self.http = self.url.removeprefix("http://")
        return self.coordinator

    def add(self, *more: str) -> Process:
        """Starts a worker."""
        self.started += 1
        folder = self.folder / f"worker-{self.started}"
        worker = Process(folder, *self.common("worker"), "--join", self.listen, *more)
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        for process in (*self.workers, self.coordinator):
            process.__exit__()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    cluster = Apart(tmp_path / "apart")
    try:
        yield cluster
    finally:
        cluster.close()


def test_a_snapshot_has_little_that_is_superseded(tmp_path: Path) -> None:
    with together(tmp_path, "cluster_snapshot_us=20000") as parent:
        url = url_of(parent)
        wait_for_workers(url, 2)
        snapshots, merged = set[int](), set[str]()

        def many_are_merged() -> bool:
            snapshots.add(health(url)["snapshot_epoch"])
            names = [path.name for path in (tmp_path / "data").rglob("*-*-*")]
            merged.update(name for name in names if name.startswith("merge-"))
            # Two parts of each snapshot would be more.
            assert sum(name.startswith("part-") for name in names) < 80
            return len(snapshots) > 50 and len(merged) > 5

        with Clients(url, ACCOUNTS):
            wait_for("merged snapshots", many_are_merged)


def test_an_object_that_is_missing_is_named_and_waited_for(apart: Apart) -> None:
    worker = apart.add()
    wait_for_workers(apart.url, 1)
    with Clients(apart.url, ACCOUNTS) as clients:
        clients.wait_for_more()
    assert apart.coordinator.stop() == 0
    worker.send(signal.SIGKILL)
    parts = list((apart.folder / "snapshots").rglob("part-*"))
    assert parts
    for part in parts:
        part.rename(part.with_name(f".{part.name}"))
    apart.begin()
    apart.add()
    clients.url = apart.url

    def troubles() -> dict[str, str]:
        return {t["process"]: t["what"] for t in health(apart.url).get("troubles", [])}

    found = wait_for("a trouble", troubles)
    assert all(process != "coordinator" for process in found), found
    assert all("part-" in what and "is missing" in what for what in found.values()), found
    assert "waits: " in apart.workers[-1].find(r"(waits: .* is missing)")
    for part in parts:
        part.with_name(f".{part.name}").rename(part)
    wait_for_workers(apart.url, 1)
    validate(clients)
    wait_for("its end", lambda: not troubles())


def test_workers_are_killed_and_freeze(tmp_path: Path) -> None:
    with together(tmp_path) as parent:
        url = url_of(parent)
        wait_for_workers(url, 2)
        follower = Follower(url)
        with Clients(url, ACCOUNTS) as clients:
            clients.wait_for_more()
            before, pids = workers_of(url), pids_of(parent)
            os.kill(pids[0], signal.SIGKILL)
            clients.wait_for_more()
            # Another one is started in its place.
            wait_for("another worker", lambda: set(workers_of(url)) - set(before))
            wait_for_workers(url, 2)
            clients.wait_for_more()
            # One stands still for longer than its lease: the others go on, and it does no harm.
            generation = health(url)["generation"]
            os.kill(pids[1], signal.SIGSTOP)
            try:
                wait_for("a generation without it", lambda: len(workers_of(url)) == 1)
                clients.wait_for_more()
                time.sleep(LEASE_S)
            finally:
                os.kill(pids[1], signal.SIGCONT)
            wait_for_workers(url, 2)
            assert health(url)["generation"] > generation + 1
            clients.wait_for_more()
        assert is_there(pids[1]), "the one that stood still is a member again"
        assert clients.surprises == []
        assert clients.fates["refused"] > 0
        validate(clients, follower)
        # Stopped and started again, it has what it had.
        pids = pids_of(parent)
        assert parent.stop() == 0
        assert not any(map(is_there, pids))
    with together(tmp_path) as parent:
        clients.url = url_of(parent)
        wait_for_workers(clients.url, 2)
        validate(clients)
        with Clients(clients.url, ACCOUNTS) as more:
            more.next = clients.next
            more.wait_for_more()
        # Workers end with whoever has started them, however that ends.
        pids = pids_of(parent)
        parent.send(signal.SIGKILL)
        wait_for("the end of its workers", lambda: not any(map(is_there, pids)))


def test_coordinators_are_killed(apart: Apart) -> None:
    first, second = apart.add(), apart.add()
    wait_for_workers(apart.url, 2)
    follower = Follower(apart.url)
    with Clients(apart.url, ACCOUNTS) as clients:
        clients.wait_for_more()
        wait_for("an event", lambda: follower.events)
        for with_a_worker in (False, True, False):
            apart.coordinator.send(signal.SIGKILL)
            if with_a_worker:
                first.send(signal.SIGKILL)
            apart.begin()
            if with_a_worker:
                first = apart.add()
            clients.wait_for_more()
            wait_for_workers(apart.url, 2)
        clients.wait_for_more()
        # All of them at once.
        for victim in (first, second, apart.coordinator):
            victim.send(signal.SIGKILL)
        apart.begin()
        apart.add()
        clients.wait_for_more()
    # When the coordinator has died, the outcomes of calls in flight are unknown. A client that
    # follows the events misses none.
    assert clients.fates["unknown"] > 0
    validate(clients, follower)


def test_a_worker_that_stops_is_missed_by_nobody(apart: Apart) -> None:
    apart.add()
    second = apart.add()
    wait_for_workers(apart.url, 2)
    with Clients(apart.url, ACCOUNTS) as clients:
        clients.wait_for_more()
        assert second.stop() == 0
        wait_for_workers(apart.url, 1)
        clients.wait_for_more()
        apart.add()
        wait_for_workers(apart.url, 2)
        clients.wait_for_more()
    assert clients.surprises == []
    validate(clients)
    assert apart.coordinator.stop() == 0


OTHER_APP = """
import tidemill as tm

app = tm.App("bank")
account = app.entity("account", key="id", id=int, balance=tm.column(int, default=7))


@account.function(creates=True)
async def look(self, ctx):
    return self.balance
"""

NOTHING_TO_CALL = """
import tidemill as tm

app = tm.App("bank")
payments = app.stream("payments", id=int)


@app.transaction(payments)
def pay(tx, e):
    return dict(id=e.id)
"""

NOT_ON_PROCESSES = """
import tidemill as tm

app = tm.App("bank")
account = app.entity("account", key="id", id=int, balance=tm.column(int, default=7))
payments = app.stream("payments", time="at", at=tm.timestamp, id=int)


@account.function(creates=True)
async def look(self, ctx):
    return self.balance


for n in range(65):
    some = payments.filter(tm.col("id") > n, name=f"over{n}").batches("1s")  # here

    @app.procedure(some, name=f"many{n}")
    def many(tx, some):
        pass
"""


FROM_FILES = """
import tidemill as tm

app = tm.App("bank")
account = app.entity("account", key="id", id=int, balance=tm.column(int, default=7))
payments = app.stream("payments", id=int)
payments.read(tm.files("payments.csv"))  # here


@account.function(creates=True)
async def look(self, ctx):
    return self.balance


@app.transaction(payments)
def pay(tx, e):
    account.table[e.id].balance += 1
"""


def test_what_can_not_be_is_refused(apart: Apart, tmp_path: Path) -> None:
    apart.add()
    wait_for_workers(apart.url, 1)
    for name, text in (
        ("other", OTHER_APP),
        ("nothing", NOTHING_TO_CALL),
        ("unfit", NOT_ON_PROCESSES),
        ("files", FROM_FILES),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "wrong").write_text("fedcba9876543210fedcba9876543210")
    (tmp_path / "short").write_text("secret")
    secret, join = ["--secret-file", str(apart.folder / "secret")], ["--join", apart.listen]
    snapshots = ["--snapshots", str(apart.folder / "snapshots")]
    app = str(APP)
    worker, run = ["worker", app, *snapshots], ["run", app, "--http", "0"]
    coordinator = ["coordinator", app, *secret, "--http", "0"]
    taken = ["--data-dir", str(apart.folder / "data")]
    served = ["--http", "0"]
    fresh = ["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "fresh")]
    names = ("other", "nothing", "unfit", "files")
    other, nothing, unfit, files = (str(tmp_path / f"{n}.py") for n in names)
    wanted = [
        ([*worker, *join, "--secret-file", str(tmp_path / "wrong")], "does not know the secret"),
        ([*worker, *join, "--secret-file", str(tmp_path / "short")], "secret has 6 bytes"),
        ([*worker, *join, "--secret-file", str(tmp_path / "none")], "none can't be read"),
        ([*worker, *join], "the cluster has no secret"),
        ([*worker, *secret], "give its address: --join ADDRESS"),
        ([*worker, *secret, "--join", "here"], "join is 'here', which is not an address"),
        (["worker", other, *secret, *join], "differs in its tables, streams, handlers or sinks"),
        (
            [*worker, *secret, *join, "--set", "cluster_sources=4"],
            "differs in its number of sources",
        ),
        (
            [*worker, *secret, *join, "--set", "cluster_name=tank"],
            "belongs to cluster 'bank', not 'tank'",
        ),
        (["coordinator", files, *secret, *fresh], "files.py:7: there is no file payments.csv"),
        (["coordinator", nothing, *secret, *fresh], "app bank reads nothing"),
        (
            ["run", nothing, "--http", "0", "--processes", "2"],
            "app bank reads nothing",
        ),
        (["run", unfit, "--http", "0", "--processes", "2"], "unfit.py:15"),
        (["coordinator", unfit, *secret, *served, *fresh], "unfit.py:15"),
        (
            ["coordinator", other, *secret, *served, "--listen", "127.0.0.1:0", *taken],
            "another process",
        ),
        ([*coordinator, "--listen", "127.0.0.1:0", *taken], "another process"),
        ([*run, "--processes", "2", "--fresh", *taken], "another process"),
        ([*coordinator, *fresh[2:], "--listen", apart.listen], f"listening at {apart.listen}"),
        (["coordinator", app, *secret, *fresh, "--http", apart.http], "listening on "),
        ([*run, "--processes", "0"], "--processes 0"),
    ]
    running = [Process(tmp_path / f"refused-{n}", *args) for n, (args, _) in enumerate(wanted[:9])]
    for n, (args, words) in enumerate(wanted):
        process = running[n]
        with process:
            code = process.process.wait(PATIENCE)
        said = process.errors.read_text()
        assert code == 1, (args, said)
        assert words in said, (args, said)
        assert "Traceback" not in said, (args, said)
        if (later := len(running)) < len(wanted):
            running.append(Process(tmp_path / f"refused-{later}", *wanted[later][0]))
    # Nothing of it has harmed whoever runs.
    with Clients(apart.url, ACCOUNTS) as clients:
        clients.wait_for_more()
    assert clients.surprises == []
    validate(clients)
    assert apart.coordinator.stop() == 0
    other_one = ["coordinator", other, *secret, *served, *fresh[:2], *taken]
    late = Process(tmp_path / "late", *other_one)
    with late:
        assert late.process.wait(PATIENCE) == 1
    assert "belongs to another version of the program" in late.errors.read_text()


def test_strangers_at_the_ports_harm_nobody(apart: Apart) -> None:
    apart.add(), apart.add()
    wait_for_workers(apart.url, 2)
    members = health(apart.url)["members"]
    dice = random.Random(7)
    generation = health(apart.url)["generation"]
    with Clients(apart.url, ACCOUNTS) as clients, contextlib.ExitStack() as open_ones:
        for at in (apart.listen, *(member["address"] for member in members)):
            host, _, port = at.rpartition(":")
            for n in range(90):
                # Some say nothing, and stay. There are more than are greeted at once.
                stranger = open_ones.enter_context(socket.create_connection((host, int(port)), 5))
                with contextlib.suppress(OSError):
                    greeting = b"tidemesh\x01" if n % 3 == 1 else b""
                    if n % 3 < 2:
                        stranger.sendall(greeting + dice.randbytes(dice.randrange(1, 3_000)))
            clients.wait_for_more()
        clients.wait_for_more()
        # A worker of the cluster is admitted all the same.
        apart.add()
        wait_for_workers(apart.url, 3)
        clients.wait_for_more()
    assert clients.surprises == []
    assert health(apart.url)["generation"] == generation + 1
    validate(clients)


def command(*args: str) -> subprocess.CompletedProcess[str]:
    """A command of the package, to its end."""
    line = [sys.executable, "-m", "tidemill.cli", *args]
    return subprocess.run(line, text=True, capture_output=True, timeout=PATIENCE)


def test_how_a_cluster_does(tmp_path: Path) -> None:
    with together(tmp_path, count=1) as parent:
        url = url_of(parent)
        (worker,) = wait_for_workers(url, 1)
        with tm.Client(url, retries=0) as client:
            client.call("account.transfer", id=1, dst=2, amount=5, op=0)
        shown = command("status", "--cluster", url)
        assert shown.returncode == 0, shown.stderr
        assert all(word in shown.stdout for word in (worker, "generation", "bank"))
        found: dict[str, Any] = json.loads(command("status", "--cluster", url, "--json").stdout)
        assert [member["worker"] for member in found["members"]] == [worker]
        assert found["process"] == parent.process.pid
        child = wait_for("the id of the worker", lambda: health(url)["members"][0]["process"])
        started_by = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[1]
        assert int(started_by) == parent.process.pid
        assert f"process {parent.process.pid}" in shown.stdout
        assert found["ready"]
        assert found["epoch"] >= 1
        # One request has come in at one of the sources.
        assert sum(source["requests"] for source in found["sources"]) == 1
        assert {source["worker"] for source in found["sources"]} == {worker}
        assert {source["lag"] for source in found["sources"]} == {0}
        assert "ratio to the mean" in shown.stdout
        metrics = httpx.get(f"{url}/metrics").text
        assert 'tidemill_cluster_source_lag{source="7"} 0' in metrics
        assert 'tidemill_cluster_source_skew{source="0"} ' in metrics
        wrong = command("status", "--cluster", url, "--data-dir", str(tmp_path))
        assert (wrong.returncode, "one of them" in wrong.stderr) == (1, True)
    gone = command("status", "--cluster", url)
    assert (gone.returncode, "no coordinator answers" in gone.stderr) == (1, True)
    flags = ["--http", "0", "--processes", "2", "--json", "--data-dir", str(tmp_path / "other")]
    with Process(tmp_path / "json", "run", str(APP), *flags) as parent:
        url = url_of(parent)
        wait_for_workers(url, 2)
        with tm.Client(url, retries=0) as client:
            client.call("account.transfer", id=1, dst=2, amount=5, op=0)
        assert parent.stop() == 0
        summary = json.loads(parent.said.read_text())
    assert (summary["app"], len(summary["members"])) == ("bank", 2)
    # The last snapshot has all of it.
    assert summary["snapshot_epoch"] >= summary["epoch"] >= 1
