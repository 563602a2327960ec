"""Output of an app on several processes to topics and files, while some are killed."""

from __future__ import annotations

import csv
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import tidemill as tm

from .beside import brokers, control, create
from .kill.cluster import (
    APP,
    Clients,
    Process,
    balances,
    health,
    joined,
    kill_all,
    kill_worker,
    settings,
    troubles,
    validate,
    wait_for,
)

ACCOUNTS = 12

FILES = """
moved.write(tm.files("moved.jsonl"))
transfer.aborted.write(tm.files("refused.csv"))
transfer.write(tm.files("left.csv"))
"""

TOPICS = """
import os

at = {"brokers": os.environ["SERVERS_KAFKA"], "transactions": TRANSACTIONS}
moved.write(tm.kafka("NAME-moved", key="src", **at))
transfer.aborted.write(tm.kafka("NAME-refused", **at))
"""

Rows = list[dict[str, Any]]


def app(folder: Path, sinks: str) -> Path:
    """The file of an app that writes."""
    path = folder / "bank.py"
    path.write_text(f"{APP.read_text()}\n{sinks}")
    return path


def writes(url: str) -> None:
    """Waits until its sinks have been opened."""
    wait_for("sinks", lambda: len(health(url).get("sinks", [])) >= 2)


def lines(path: Path) -> Rows:
    """The rows of a file of CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def check(clients: Clients, accounts: dict[int, Any], moved: Rows, refused: Rows) -> None:
    """Whether the rows are what clients were told, each once, and of each account in its order."""
    follower: Any = SimpleNamespace(
        events=[SimpleNamespace(value=row) for row in moved], error=None
    )
    validate(clients, follower, accounts)
    seen = Counter(int(row["op"]) for row in refused)
    told = {op for op, (fate, *_) in clients.done.items() if fate == "refused"}
    unsure = {op for op, (fate, *_) in clients.done.items() if fate == "unknown"}
    assert max(seen.values(), default=0) <= 1
    assert told <= set(seen) <= told | unsure, (told - set(seen), set(seen) - told)
    assert {row["reason"] for row in refused} <= {"insufficient funds", "unlucky"}


def run(
    folder: Path,
    path: Path,
    flags: Iterable[str],
    found: Callable[[], tuple[Rows, Rows]],
) -> None:
    """Calls the app while its processes are killed, and compares what was written, twice."""
    flags = [*settings("cluster_sources=3"), "--data-dir", str(folder / "data"), *flags]
    done: dict[int, tuple[str, int, int, int]] = {}

    def start() -> Process:
        args = ("run", str(path), "--processes", "2", "--http", "0", *flags)
        return Process(folder / "cwd", *args)

    def clients_of(url: str) -> Clients:
        clients = Clients(url, ACCOUNTS)
        clients.done, clients.next = done, len(done)
        return clients

    def kill(parent: Process, clients: Clients, worker: int) -> None:
        clients.wait_for_more(50)
        kill_worker(parent, worker)
        clients.wait_for_more(50)

    with start() as parent, clients_of(joined(parent)) as clients:
        kill(parent, clients, 0)
        # Kill all of them during calls.
        kill_all(parent)
    for _ in range(2):
        with start() as parent:
            url = joined(parent)
            with clients_of(url) as clients:
                kill(parent, clients, 1)
            writes(url)
            accounts = dict(balances(url, ACCOUNTS))
            # All outputs are written when the run has ended.
            assert parent.stop() == 0, parent.errors.read_text()
        check(clients, accounts, *found())


def test_files_have_each_row_once_whoever_dies(tmp_path: Path) -> None:
    at = tmp_path / "cwd"

    def found() -> tuple[Rows, Rows]:
        moved = [json.loads(line) for line in (at / "moved.jsonl").read_text().splitlines()]
        # There is a row of returned values for each acknowledged call.
        assert len(lines(at / "left.csv")) == len(moved)
        return moved, lines(at / "refused.csv")

    run(tmp_path, app(tmp_path, FILES), [], found)


def test_what_is_asked_again_is_written_once_and_other_sinks_are_another_version(
    tmp_path: Path,
) -> None:
    at, data = tmp_path / "cwd", str(tmp_path / "data")
    path = app(tmp_path, FILES)

    def start(*more: str) -> Process:
        args = ("run", str(path), "--processes", "2", "--http", "0", "--data-dir", data)
        return Process(at, *args, *settings(), *more)

    def ask(parent: Process, id: int, amount: int) -> list[int]:
        url = joined(parent)
        body = {"id": id, "dst": id + 1, "amount": amount, "op": id}
        headers = {"Idempotency-Key": f"{id}"}
        to = f"{url}/call/account.transfer"
        asked = [httpx.post(to, json=body, headers=headers, timeout=30) for _ in range(3)]
        return [answer.status_code for answer in asked]

    def counts(*names: str) -> list[int]:
        return [len((at / name).read_text().splitlines()) for name in names]

    with start() as parent:
        assert ask(parent, 1, 5) == [200] * 3
        # One that aborts has left nothing, and is executed again.
        assert ask(parent, 5, 13) == [409] * 3
        assert parent.stop() == 0
    # A header is a line of its own.
    assert counts("moved.jsonl", "left.csv", "refused.csv") == [1, 2, 4]
    path.write_text(path.read_text() + 'moved.write(tm.files("more.jsonl"))\n')
    with start() as parent:
        assert parent.process.wait(60) == 1
        assert "other sinks" in parent.errors.read_text()
    with start("--upgrade") as parent:
        assert ask(parent, 7, 5) == [200] * 3
        assert parent.stop() == 0, parent.errors.read_text()
    assert counts("moved.jsonl", "left.csv", "refused.csv", "more.jsonl") == [2, 3, 4, 1]


def test_streams_that_do_not_leave_are_refused_by_their_line(tmp_path: Path) -> None:
    sinks = 'calls = next(s for s in app.streams if s.name == "account.transfer.calls")\n'
    sinks += 'calls.write(tm.files("came.jsonl"))\n'
    path = app(tmp_path, sinks)
    flags = ["--data-dir", str(tmp_path / "data"), "--http", "0"]
    with Process(tmp_path / "cwd", "run", str(path), "--processes", "1", *flags) as parent:
        assert parent.process.wait(60) == 1
        said = parent.errors.read_text()
    assert "a sink of stream account.transfer.calls: that does not run" in said
    assert f"bank.py:{len(path.read_text().splitlines())}" in said


def topic(name: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Returns the messages of a topic: the partition, the id and the columns of each row."""
    reader = tm.App("reader")
    said = reader.stream("said", partition=int, offset=int, text=str, id=str)
    meta = {"text": "value", "id": "header:tidemill-id"}
    meta |= {name: name for name in ("partition", "offset")}
    said.read(tm.kafka(name, brokers=brokers(), meta=meta))
    texts = reader.table("texts", key="n", n=int, partition=int, offset=int, id=str, text=str)
    numbers = reader.table("numbers", key="id", id=int, n=tm.column(int, default=0))

    @reader.transaction(said, opaque=True)
    def keep(tx: Any, e: Any) -> None:
        at = {"partition": e.partition, "offset": e.offset}
        texts.insert(n=numbers[0].n, id=e.id, text=e.text, **at)
        numbers[0].n += 1

    with reader.start() as mill:
        mill.drain()
        rows = sorted(mill.table(texts).rows(), key=lambda row: int(row["n"]))
    # Each message is read once, wherever brokers were started again.
    times = Counter((row["partition"], row["offset"]) for row in rows)
    assert not (twice := [at for at in times if times[at] > 1]), twice[:20]
    return [(row["partition"], row["id"], json.loads(row["text"])) for row in rows]


def numbered(name: str) -> Rows:
    """The rows of a topic in the order of the stream: each is there once, in its partition's
    order."""
    found = topic(name)
    numbers = [int(id.rsplit("/", 1)[1]) for _, id, _ in found]
    times = Counter(numbers)
    assert not (twice := [number for number in times if times[number] > 1]), twice[:20]
    assert not (lacks := set(range(len(numbers))) - set(numbers)), sorted(lacks)[:20]
    for partition in {partition for partition, _, _ in found}:
        own = [n for n, (of, _, _) in zip(numbers, found, strict=True) if of == partition]
        assert own == sorted(own)
    return [row for _, (_, _, row) in sorted(zip(numbers, found, strict=True))]


@pytest.mark.servers
@pytest.mark.parametrize("log", ["served", "kafka"])
@pytest.mark.parametrize("transactions", [False, True])
def test_topics_have_each_row_once_whoever_dies(
    tmp_path: Path, log: str, transactions: bool
) -> None:
    name = f"sinks-{secrets.token_hex(4)}"
    for part in ("moved", "refused"):
        create(f"{name}-{part}", 3)
    sinks = TOPICS.replace("NAME", name).replace("TRANSACTIONS", str(transactions))
    flags = ["--set", f"cluster_name={name}"]
    if log == "kafka":
        flags += ["--log", f"kafka://{brokers()}"]

    def found() -> tuple[Rows, Rows]:
        return numbered(f"{name}-moved"), numbered(f"{name}-refused")

    run(tmp_path, app(tmp_path, sinks), flags, found)


@pytest.mark.alone
@pytest.mark.servers
def test_a_topic_that_is_away_holds_up_nothing_else(tmp_path: Path) -> None:
    name = f"sinks-{secrets.token_hex(4)}"
    for part in ("moved", "refused"):
        create(f"{name}-{part}", 3)
    path = app(tmp_path, TOPICS.replace("NAME", name).replace("TRANSACTIONS", "False"))
    flags = ["--data-dir", str(tmp_path / "data"), *settings()]

    def start() -> Process:
        args = ("run", str(path), "--processes", "2", "--http", "0", *flags)
        return Process(tmp_path / "cwd", *args)

    with start() as parent:
        url = joined(parent)
        with Clients(url, ACCOUNTS) as clients:
            clients.wait_for_more()
            writes(url)
            control("KAFKA", "kill")
            wait_for("a trouble", lambda: [t for t in troubles(url) if "sink of" in t])
            clients.wait_for_more(100)
            control("KAFKA", "start")
            wait_for("the end of the trouble", lambda: not troubles(url))
            clients.wait_for_more()
        accounts = dict(balances(url, ACCOUNTS))
        assert parent.stop() == 0, parent.errors.read_text()
    check(clients, accounts, numbered(f"{name}-moved"), numbered(f"{name}-refused"))
