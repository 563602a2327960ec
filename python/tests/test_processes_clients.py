"""Clients of an app on several processes, at any of them."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm
from tidemill.cluster import Coordinator, Worker

from .kill.cluster import PATIENCE, Process, settings, wait_for

SECRET = b"0123456789abcdef"
APP = """
import tidemill as tm

app = tm.App("counter")
counts = app.table("counts", key="name", ordered=True, name=str, n=tm.column(int, default=0))
added = app.stream("added", name=str, n=int)


@app.procedure
def count(tx, name: str):
    counts[name].n += 1
    tx.emit(added, name=name, n=counts[name].n)
    return counts[name].n


@app.procedure
def refuse(tx, name: str):
    counts[name].n += 1
    raise tm.Abort("not today")
"""


def counter() -> tm.App:
    app = tm.App("counter")
    counts = app.table("counts", key="name", ordered=True, name=str, n=tm.column(int, default=0))
    added = app.stream("added", name=str, n=int)

    @app.procedure
    def count(tx: Any, name: str) -> int:
        counts[name].n += 1
        tx.emit(added, name=name, n=counts[name].n)
        return counts[name].n  # type: ignore[no-any-return]

    @app.procedure
    def refuse(tx: Any, name: str) -> None:
        counts[name].n += 1
        raise tm.Abort("not today")

    return app


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Nodes:
    """A coordinator and two workers, all of which answer clients."""

    def __init__(self, folder: Path) -> None:
        self.common = {
            "data_dir": str(folder / "data"),
            "cluster_snapshots": str(folder / "snapshots"),
            "cluster_lease_us": 800_000,
            "cluster_beat_us": 50_000,
        }
        self.port = free_port()
        self.coordinator: Coordinator | None = None
        self.start()
        at = f"127.0.0.1:{self.port}"
        own = {**self.common, "http_port": 0}
        self.workers = [Worker(counter(), own, SECRET, at) for _ in range(2)]

    def start(self) -> None:
        at = {"cluster_listen": f"127.0.0.1:{self.port}", "http_port": 0}
        self.coordinator = Coordinator(counter(), {**self.common, **at}, SECRET)

    def urls(self) -> list[str]:
        assert self.coordinator is not None
        urls = [self.coordinator.url, *(worker.url for worker in self.workers)]
        return [url for url in urls if url is not None]

    def wait(self) -> None:
        coordinator = self.coordinator
        assert coordinator is not None
        wait_for("two workers", lambda: len(coordinator.status()["members"]) == 2)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    nodes.wait()
    yield nodes
    for worker in nodes.workers:
        worker.stop()
    if nodes.coordinator is not None:
        nodes.coordinator.stop()


def events(url: str, count: int) -> list[tuple[int, Any]]:
    with tm.Client(url) as client:
        found = itertools.islice(client.subscribe("added", after=-1), count)
        return [(event.row, event.value) for event in found]


def test_any_process_answers_any_request(nodes: Nodes) -> None:
    urls = nodes.urls()
    assert len(urls) == 3
    for nth, url in enumerate(urls):
        with tm.Client(url) as client:
            assert client.call("count", name="a") == nth + 1
            assert client.using(request_id="once").call("count", name="b") == 1
            with pytest.raises(tm.Abort, match="not today"):
                client.call("refuse", name="a")
            with pytest.raises(tm.InputError, match="name"):
                client.call("count", nobody="a")
            with pytest.raises(tm.ProgramError, match="can be called"):
                client.call("counted")
    pages = [httpx.get(f"{url}/tables/counts/rows?limit=9").json() for url in urls]
    assert pages == [{"rows": [{"name": "a", "n": 3}, {"name": "b", "n": 1}], "more": False}] * 3
    for url in urls:
        with tm.Client(url) as client:
            assert client.row("counts", "a") == {"name": "a", "n": 3}
            assert client.row("counts", "c") is None
            assert client.openapi()["info"]["title"] == "counter"
    rows = [events(url, 4) for url in urls]
    assert rows[0] == rows[1] == rows[2]
    assert [value["n"] for _, value in rows[0]] == [1, 1, 2, 3]
    found = [health(url) for url in urls]
    assert [(one["ready"], one["refused"]) for one in found] == [(True, 3)] * 3
    members = {member["http"] for member in found[2]["members"]}
    assert members == {worker.url for worker in nodes.workers}
    assert all("tidemill_cluster_workers 2" in httpx.get(f"{url}/metrics").text for url in urls)


def test_a_worker_follows_what_another_process_is_asked_for(nodes: Nodes) -> None:
    first, second = (str(worker.url) for worker in nodes.workers)
    heard: list[int] = []

    def follow() -> None:
        with tm.Client(second) as client:
            for event in client.subscribe("added", after=-1):
                heard.append(event.value["n"])
                if len(heard) == 20:
                    return

    follower = threading.Thread(target=follow)
    follower.start()
    with tm.Client(first) as client:
        for _ in range(20):
            client.call("count", name="a")
    follower.join(PATIENCE)
    assert heard == list(range(1, 21))


class Copy:
    """A copy of the table, which follows its changes at one process until the test ends."""

    def __init__(self, url: str) -> None:
        self.rows: dict[str, int] = {}
        self.resets = self.cuts = 0
        self.url = url
        self.client = tm.Client(url)
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def read(self) -> dict[str, int]:
        page = httpx.get(f"{self.url}/tables/counts/rows?limit=99", timeout=PATIENCE).json()
        return {row["name"]: row["n"] for row in page["rows"]}

    def follow(self) -> None:
        # The test ends before the thread does.
        with contextlib.suppress(tm.Error):
            self.copy()

    def copy(self) -> None:
        for found in self.client.changes("counts"):
            if isinstance(found, tm.Reset):
                self.resets += 1
                self.rows = wait_for("the rows", self.read) if self.cuts else self.read()
                continue
            self.cuts += 1
            for change in found.changes:
                assert change.row is not None
                self.rows[str(change.key[0])] = change.row["n"]


def test_changes_of_a_table_are_followed_at_any_process(nodes: Nodes) -> None:
    copies = [Copy(url) for url in nodes.urls()]
    wait_for("resets", lambda: all(copy.resets for copy in copies))
    with tm.Client(nodes.urls()) as client:
        for n in range(60):
            client.call("count", name=f"row {n % 7}")
    wanted = {f"row {n}": 9 if n < 4 else 8 for n in range(7)}
    wait_for("the changes", lambda: all(copy.rows == wanted for copy in copies))
    assert [(copy.resets, copy.cuts > 0) for copy in copies] == [(1, True)] * 3
    # A coordinator that has started again does not know what was before.
    assert nodes.coordinator is not None
    nodes.coordinator.stop()
    nodes.coordinator = None
    nodes.start()
    nodes.wait()
    with tm.Client(nodes.urls()) as client:
        client.call("count", name="row 0")
    wanted["row 0"] += 1
    wait_for("the change", lambda: all(copy.rows == wanted for copy in copies[1:]))
    with pytest.raises(tm.ProgramError, match="there is no table other"):
        next(copies[2].client.changes("other"))


def test_workers_say_so_without_a_coordinator_and_go_on_with_the_next(nodes: Nodes) -> None:
    url = str(nodes.workers[0].url)
    with tm.Client(url) as client:
        assert client.using(request_id="1").call("count", name="a") == 1
    coordinator = nodes.coordinator
    assert coordinator is not None
    coordinator.stop()
    nodes.coordinator = coordinator = None
    # The connection ends a moment after the coordinator.
    found = wait_for("nobody answers", lambda: h if "what" in (h := health(url)) else None)
    assert (found["ready"], found["live"]) == (False, True)
    for path in ("streams/added", "tables/counts/rows?key=a"):
        answer = httpx.get(f"{url}/{path}", timeout=5.0)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
    body = {"json": {"name": "a"}, "headers": {"Idempotency-Key": "2"}, "timeout": PATIENCE}
    answer = httpx.post(f"{url}/call/count", **body)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["executed"]) == (503, "unknown")
    nodes.start()
    nodes.wait()
    with tm.Client(url) as client:
        assert client.using(request_id="1").call("count", name="a") == 1
        assert client.using(request_id="2").call("count", name="a") == 2
        assert client.using(request_id="2").call("count", name="a") == 2


def health(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/health", timeout=PATIENCE).json()
    return found


def test_clients_go_on_at_another_process(tmp_path: Path) -> None:
    """One worker is killed, another one is asked to end, and clients lose no call."""
    app, secret = tmp_path / "app.py", tmp_path / "secret"
    app.write_text(APP)
    secret.write_bytes(SECRET)
    port = free_port()
    common = ["--secret-file", str(secret), *settings()]
    listen = ["--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data")]
    join = ["--join", f"127.0.0.1:{port}", "--http", "0"]
    snapshots = ["--snapshots", str(tmp_path / "snapshots")]
    commands = [["coordinator", str(app), *listen, "--http", "0", *snapshots, *common]]
    commands += [["worker", str(app), *join, *snapshots, *common]] * 3
    found = [Process(tmp_path / str(nth), *command) for nth, command in enumerate(commands)]
    coordinator, *workers = found
    try:
        urls = [worker.find(r"http +(http://\S+)") for worker in workers]
        home = coordinator.find(r"http +(http://\S+)")
        wait_for("three workers", lambda: len(httpx.get(f"{home}/health").json()["members"]) == 3)
        replies: list[list[int]] = [[], []]

        def ask(nth: int) -> None:
            # The first one is killed, and the second one is asked to end.
            with tm.Client([urls[nth], urls[2]], deadline=PATIENCE) as client:
                for _ in range(300):
                    replies[nth].append(client.call("count", name=str(nth)))

        copy = Copy(home)
        wait_for("the reset", lambda: copy.resets)
        asking = [threading.Thread(target=ask, args=(nth,)) for nth in range(2)]
        for thread in asking:
            thread.start()
        wait_for("calls", lambda: min(map(len, replies)) > 30)
        workers[0].send(signal.SIGKILL)
        wait_for("more calls", lambda: min(map(len, replies)) > 100)
        assert workers[1].stop() == 0
        for thread in asking:
            thread.join(PATIENCE)
        assert replies == [list(range(1, 301))] * 2
        # No change is missing, though workers have ended.
        wait_for("the changes", lambda: copy.rows == {"0": 300, "1": 300})
        assert copy.resets == 1
        assert coordinator.stop() == 0
    finally:
        for process in found:
            process.__exit__(None)


def test_a_worker_has_the_port_of_its_command_line_only(tmp_path: Path) -> None:
    app, secret, config = (tmp_path / name for name in ("app.py", "secret", "tidemill.toml"))
    app.write_text(APP)
    secret.write_bytes(SECRET)
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    config.write_text(f"http_port = {port}\n")
    join = ["--join", f"127.0.0.1:{free_port()}", "--secret-file", str(secret)]
    common = ["--snapshots", str(tmp_path / "snapshots"), *join, "--config", str(config)]
    with taken, Process(tmp_path / "one", "worker", str(app), *common) as worker:
        # The port in the file is the coordinator's.
        worker.find("(no coordinator answers)")
        assert "http " not in worker.said.read_text()
        flags = [*common, "--http", str(port)]
        with Process(tmp_path / "other", "worker", str(app), *flags) as other:
            assert other.process.wait(PATIENCE) == 1
            assert f"listening on 127.0.0.1:{port}" in other.errors.read_text()
        flags = [*common, "--http", f"0.0.0.0:{port}"]
        with Process(tmp_path / "third", "worker", str(app), *flags) as third:
            assert third.process.wait(PATIENCE) == 1
            assert "needs tokens and a certificate" in third.errors.read_text()
