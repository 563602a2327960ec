"""An app on several processes that reads topics of its own, some of which are killed."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .beside import brokers, control, create, grow
from .kill.cluster import (
    Process,
    health,
    joined,
    kill_all,
    kill_worker,
    settings,
    troubles,
    wait_for,
)
from .test_processes_retained import command
from .test_promises_processes import Cluster, call

pytestmark = pytest.mark.servers

CODE = """
import os

import tidemill as tm

BROKERS = os.environ.get("SERVERS_KAFKA", "localhost:9092")
NAME = os.environ.get("LEDGER", "ledger")
app = tm.App("ledger")
accounts = app.table("accounts", key="id", id=int, n=tm.column(int, default=0))
payments = app.stream("payments", id=int, n=int, who=str)
payments.read(tm.kafka(f"{NAME}-payments", brokers=BROKERS, meta={"who": "header:who"}))
votes = app.stream("votes", id=int, n=int)
votes.read(
    tm.kafka(
        f"{NAME}-votes",
        brokers=BROKERS,
        format="avro",
        registry=os.environ.get("SERVERS_REGISTRY", "http://localhost:8081"),
    )
)
counted = app.stream("counted", id=int, n=int)


@app.transaction(payments)
def pay(tx, e):
    accounts[e.id].n += e.n
    tx.require(e.n != 13, "thirteen")


@app.procedure(votes.filter(lambda e: e.n > 0, name="valid"))
def vote(tx, votes):
    for e in votes:
        accounts[100 + e.id].n += e.n
        tx.emit(counted, id=e.id, n=e.n)


@app.transaction(counted)
def count(tx, e):
    accounts[200].n += e.n


@app.procedure()
def look(tx, id: int):
    return accounts[id].n
"""

ROWS = 600
BAD = '{"id":1,"n":"many"}'


def write(name: str, rows: int, first: int) -> tuple[Counter[int], int]:
    """Writes this many payments and votes, and some invalid rows; returns the expected results."""
    app = tm.App("writer")
    good = app.stream("good", id=int, n=int)
    bad = app.stream("bad", id=int, n=str)
    votes = app.stream("votes", id=int, n=int)
    payments = f"{name}-payments"
    good.write(tm.kafka(payments, brokers=brokers(), key="id", headers={"who": "me"}))
    bad.write(tm.kafka(payments, brokers=brokers(), headers={"who": "me"}))
    registry = os.environ["SERVERS_REGISTRY"]
    votes.write(tm.kafka(f"{name}-votes", brokers=brokers(), format="avro", registry=registry))
    wanted: Counter[int] = Counter()
    numbers = range(first, first + rows)
    with app.start() as mill:
        mill.send(good, [{"id": n % 7, "n": n % 20} for n in numbers])
        mill.send(bad, [{"id": 1, "n": "many"} for n in numbers if n % 100 == 0])
        mill.send(votes, [{"id": n % 5, "n": n % 3} for n in numbers])
        mill.finish()
    for n in numbers:
        wanted[n % 7] += 0 if n % 20 == 13 else n % 20
        wanted[100 + n % 5] += n % 3
        wanted[200] += n % 3
    return wanted, sum(n % 100 == 0 for n in numbers)


def outputs(name: str) -> list[str]:
    """Returns the contents of the topic of the outputs."""
    app = tm.App("reader")
    said = app.stream("said", text=str)
    said.read(tm.kafka(f"{name}.outputs", brokers=brokers(), meta={"text": "value"}))
    texts = app.table("texts", key="n", n=int, text=str)
    numbers = app.table("numbers", key="id", id=int, n=tm.column(int, default=0))

    @app.transaction(said, opaque=True)
    def keep(tx: Any, e: Any) -> None:
        texts.insert(n=numbers[0].n, text=e.text)
        numbers[0].n += 1

    with app.start() as mill:
        mill.drain()
        return [row["text"] for row in mill.table(texts).rows()]


def dead_letters(data: Path) -> list[dict[str, Any]]:
    """Returns the retained dead letters of the payments of a stopped app."""
    flags = ["--from", "0", "--no-follow", "--data-dir", str(data)]
    code, [*rows, _], errors = command(data, "tail", "payments.dead", *flags)
    assert code == 0, errors
    return [row["value"] for row in rows]


@pytest.mark.alone
@pytest.mark.parametrize("is_log_in_kafka", [False, True])
def test_topics_of_the_app_are_sources_of_the_cluster(
    is_log_in_kafka: bool, tmp_path: Path
) -> None:
    name = f"topics-{secrets.token_hex(4)}"
    create(f"{name}-payments", 3)
    create(f"{name}-votes", 2)
    (tmp_path / "ledger.py").write_text(CODE.replace('"LEDGER", "ledger"', f'"LEDGER", "{name}"'))
    sets = (f"cluster_name={name}", "cluster_sources=2")
    flags = ["--data-dir", str(tmp_path / "data"), *settings(*sets), "--http", "0"]
    if is_log_in_kafka:
        flags += ["--log", f"kafka://{brokers()}"]

    def start(folder: str, *more: str) -> Process:
        app = str(tmp_path / "ledger.py")
        return Process(tmp_path / folder, "run", app, "--processes", "2", *flags, *more)

    def refused(folder: str, why: str, *more: str) -> None:
        with start(folder, *more) as parent:
            assert parent.process.wait(60) == 1
            assert why in parent.errors.read_text()

    def reaches(url: str, wanted: Counter[int]) -> None:
        with tm.Client(url) as client:

            def found() -> dict[int, int]:
                return {id: client.call("look", id=id) for id in wanted}

            wait_for(f"{wanted}", lambda: found() == wanted)

    wanted, bad = write(name, ROWS, 0)
    with start("first") as parent:
        url = joined(parent)
        reaches(url, wanted)
        wait_for("all sources", lambda: len(health(url).get("sources", [])) == 7)
        # Nothing is lost where a worker is killed, and nothing counts twice.
        kill_worker(parent)
        more, worse = write(name, ROWS, ROWS)
        wanted, bad = wanted + more, bad + worse
        reaches(url, wanted)
        kill_all(parent)
    more, worse = write(name, ROWS, 2 * ROWS)
    wanted, bad = wanted + more, bad + worse
    # Without the registry messages wait whose schema is not known; what waits for it is said.
    control("REGISTRY", "kill")
    with start("second") as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("a trouble", lambda: any("votes" in what for what in troubles(url)))
        control("REGISTRY", "start")
        reaches(url, wanted)
        wait_for("no trouble", lambda: not troubles(joined(parent)))
        assert health(url)["sources"][3]["topic"] == f"{name}-payments/1"
        # A client that follows dead letters receives those from then on.
        found: list[tm.Event] = []
        with tm.Client(url) as client:
            follow = threading.Thread(
                target=lambda: found.append(next(client.subscribe("payments.dead")))
            )
            follow.start()

            def hears() -> bool:
                nonlocal bad
                more, worse = write(name, 100, 0)
                wanted.update(more)
                bad += worse
                follow.join(0.5)
                return bool(found)

            wait_for("a dead letter", hears)
        assert found[0].value["raw"] == BAD
        reaches(url, wanted)
        assert parent.stop() == 0
    dead = dead_letters(tmp_path / "data")
    if is_log_in_kafka:
        said = [json.loads(text) for text in outputs(name) if '"reason"' in text]
        assert len(said) == len(dead)
    assert len(dead) == bad
    assert all("column 'n'" in row["reason"] for row in dead)
    assert all(row["origin"].startswith(f"{name}-payments/") for row in dead)
    # More partitions are other sources: behind those that are there they may come.
    grow(f"{name}-votes", 3)
    if is_log_in_kafka:
        refused("third", f"--alter --topic {name}.outputs --partitions 8")
        grow(f"{name}.outputs", 8)
    refused("again", "-votes (3)]")
    with start("fourth", "--upgrade") as parent:
        url = parent.find(r"http +(http://\S+)")
        more, _ = write(name, ROWS, 4 * ROWS)
        reaches(url, wanted + more)
        assert parent.stop() == 0
    grow(f"{name}-payments", 4)
    if is_log_in_kafka:
        grow(f"{name}.outputs", 9)
    refused("fifth", "new sources may only come after the existing ones", "--upgrade")


BEGINS = """
import tidemill as tm

app = tm.App("begins")
sums = app.table("sums", key="id", id=int, n=tm.column(int, default=0))
numbers = app.stream("numbers", n=int)
numbers.read(tm.kafka("TOPIC", brokers="BROKERS", MORE))


@app.transaction(numbers)
def add(tx, e):
    sums[0].n += e.n


@app.procedure()
def total(tx):
    return sums[0].n
"""


@pytest.mark.parametrize(
    ("more", "wanted"), [('begin="latest"', 1000), ("partitions=[1]", 10), ("", 1111)]
)
def test_reading_begins_where_the_app_says(more: str, wanted: int, tmp_path: Path) -> None:
    topic = f"begins-{secrets.token_hex(4)}"
    create(topic, 2)
    text = BEGINS.replace("TOPIC", topic).replace("BROKERS", brokers()).replace("MORE", more)
    (tmp_path / "begins.py").write_text(text)

    def write(*numbers: int) -> None:
        """Writes the first, third, ... message to partition 0, and the others to 1."""
        app = tm.App("writer")
        rows = app.stream("rows", n=int)
        rows.write(tm.kafka(topic, brokers=brokers()))
        with app.start() as mill:
            mill.send(rows, [{"n": n} for n in numbers])
            mill.finish()

    def total(parent: Process) -> int:
        with tm.Client(joined(parent), retries=100) as client:
            found = client.call("total")
        assert isinstance(found, int)
        return found

    def start(name: str) -> Process:
        app, data = str(tmp_path / "begins.py"), str(tmp_path / "data")
        flags = ["--data-dir", data, *settings(), "--http", "0", "--processes", "2"]
        return Process(tmp_path / name, "run", app, *flags)

    write(100, 10, 1)
    with start("first") as parent:
        total(parent)
        kill_all(parent)
    # It arrives while the app does not run.
    write(1000)
    for name in ("second", "third"):
        with start(name) as parent:
            wait_for(f"{wanted}", lambda at=parent: total(at) == wanted)
            kill_all(parent)


def test_topics_of_the_log_and_missing_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.py").write_text(CODE)
    app = str(tmp_path / "ledger.py")
    log = ["--log", f"kafka://{brokers()}"]
    for topic, more, why in (
        (None, [], "there is no topic ledger-payments"),
        (None, log, "there is no topic ledger-payments"),
        ("own.inputs", [*log, "--set", "cluster_name=own"], "belongs to the cluster's log itself"),
    ):
        if topic:
            text = CODE.replace('f"{NAME}-payments"', f'"{topic}"')
            (tmp_path / "ledger.py").write_text(text)
        flags = ["--data-dir", str(tmp_path / "data"), "--http", "0", *more]
        with Process(tmp_path / "refused", "run", app, "--processes", "1", *flags) as parent:
            assert parent.process.wait(60) in (1, 2)
            assert why in parent.errors.read_text()


@pytest.mark.parametrize(("together", "sizes"), [(None, []), (1, []), (4, [4, 4, 2]), (64, [10])])
def test_so_many_events_of_a_stream_are_one_message(
    together: int | None, sizes: list[int], tmp_path: Path
) -> None:
    name = f"lists-{secrets.token_hex(4)}"
    app = tm.App("lists")
    told = app.stream("told", n=int)
    app.table("none", key="id", id=int)

    @app.procedure
    def tell(tx, count: int):
        for n in range(count):
            tx.emit(told, n=n)
        return count

    settings: dict[str, Any] = {
        "cluster_name": name,
        "cluster_sources": 1,
        "cluster_log": f"kafka://{brokers()}",
    }
    if together is not None:
        settings["cluster_together"] = together
    with Cluster(app, tmp_path, **settings) as cluster:
        assert call(cluster, "tell", count=10).json() == {"reply": 10}
    # Where a generation begins, a message has nothing in it.
    found = [json.loads(text) for text in outputs(name) if text]
    lists = [message for message in found if isinstance(message, list)]
    assert [len(message) for message in lists] == sizes
    singles = [message for message in found if not isinstance(message, list)]
    assert [one for one in singles if "n" not in one] == [{"reply": 10}]
    if not sizes:
        assert [one["n"] for one in singles if "n" in one] == list(range(10))
        return
    assert len(singles) == 1
    events = [one for message in lists for one in message]
    assert [one["row"] for one in events] == [{"n": n} for n in range(10)]
    assert {one["stream"] for one in events} == {"told"}
    assert len({one["id"] for one in events}) == 10
