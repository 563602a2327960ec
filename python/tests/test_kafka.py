"""Topics as sources and sinks: refusals, and apps from topic to topic on a real broker."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .beside import brokers, control, create, grow

WAIT = 60


def refused(make: Callable[[], object], *words: str) -> None:
    with pytest.raises(tm.ProgramError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
    assert "test_kafka.py" in str(caught.value), "it names the user's line"


def test_what_can_not_be_is_refused_where_it_is_said() -> None:
    at = {"brokers": "b:1"}
    refused(lambda: tm.kafka("", **at), "name")
    refused(lambda: tm.kafka("t", brokers=" "), "no broker")
    refused(lambda: tm.kafka("t", **at, format="xml"), "xml")  # type: ignore[arg-type]
    refused(lambda: tm.kafka("t", **at, partitions=[]), "partitions")
    refused(lambda: tm.kafka("t", **at, partitions=[1, 1]), "twice")
    refused(lambda: tm.kafka("t", **at, partitions=[-1]), "-1")
    refused(lambda: tm.kafka("t", **at, begin="now"), "now")  # type: ignore[arg-type]
    refused(lambda: tm.kafka("t", **at, meta={"c": "topic"}), "topic", "header:NAME")
    refused(lambda: tm.kafka("t", **at, meta={"c": "header:"}), "header:NAME")
    refused(lambda: tm.kafka("t", **at, timeout=0), "timeout")
    refused(lambda: tm.kafka("t", **at, queue_bytes=5), "queue_bytes")
    refused(lambda: tm.kafka("t", **at, format="avro"), "registry")
    refused(lambda: tm.kafka("t", **at, registry="http://r"), "registry=", "avro")
    refused(lambda: tm.kafka("t", **at, subject="s"), "subject=", "avro")
    avro: dict[str, Any] = {**at, "format": "avro", "registry": "http://r"}
    refused(lambda: tm.kafka("t", **avro, schema="first"), "first", "latest")
    refused(lambda: tm.kafka("t", **avro, schema=-1), "-1")
    app = tm.App("a")
    events = app.stream("events", n=int)
    refused(lambda: events.read(tm.kafka("t", **avro, subject="s")), "subject=", "read")
    refused(lambda: events.read(tm.kafka("t", **at, key="n")), "key=", "read")
    refused(lambda: events.read(tm.kafka("t", **at, transactions="x")), "transactions=", "read")
    refused(lambda: events.write(tm.kafka("t", **at, begin="latest")), "begin=", "written")
    refused(lambda: events.read("t"), "tm.kafka")  # type: ignore[arg-type]
    refused(lambda: events.write("t"), "tm.kafka")  # type: ignore[arg-type]


def test_what_the_engine_reads() -> None:
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    topic = tm.kafka("t", brokers=["a:1", "b:2"], begin=begin, timeout=2, properties={"x": True})
    assert topic.source_json() == {
        "topic": "t",
        "brokers": "a:1,b:2",
        "begin": {"time": 1767225600000000},
        "timeout_us": 2000000,
        "properties": {"x": "true"},
    }
    assert tm.kafka("t", brokers="a:1", key="k", transactions="me").sink_json() == {
        "topic": "t",
        "brokers": "a:1",
        "key": ["k"],
        "transactions": True,
        "transactional_id": "me",
    }
    assert tm.kafka("t", brokers="a:1", begin="latest").source_json()["begin"] == "latest"
    avro = tm.kafka("t", brokers="a:1", format="avro", registry="http://r", schema=7, subject="s")
    assert avro.sink_json() == {
        "topic": "t",
        "brokers": "a:1",
        "format": "avro",
        "registry": "http://r",
        "subject": "s",
        "schema": {"id": 7},
    }


def test_a_broker_that_is_not_there_is_said() -> None:
    app = tm.App("a")
    events = app.stream("events", n=int)
    events.read(tm.kafka("t", brokers="127.0.0.1:1", timeout=1))
    with pytest.raises(tm.IoError, match=r"no broker of 127\.0\.0\.1:1 answers"):
        app.start()
    app = tm.App("a")
    app.stream("events", n=int).read(tm.kafka("t", brokers="b:1", properties={"group.id": "g"}))
    with pytest.raises(tm.SettingError, match=r"group\.id can't be set"):
        app.start()
    app = tm.App("a")
    app.stream("events", n=int).read(tm.kafka("t", brokers="b:1", meta={"m": "key"}))
    with pytest.raises(tm.SettingError, match="m"):
        app.start()
    app = tm.App("a")
    avro = tm.kafka("t", brokers="b:1", format="avro", registry="http://me:hidden@")
    app.stream("events", n=int).read(avro)
    with pytest.raises(tm.SettingError, match="not an HTTP URL") as caught:
        app.start()
    assert "hidden" not in str(caught.value)


def test_what_inspect_says(tmp_path: Path) -> None:
    (tmp_path / "copying.py").write_text(
        "import tidemill as tm\n"
        "app = tm.App('copy')\n"
        "events = app.stream('events', n=int)\n"
        "events.read(tm.kafka('in', brokers='b:1', properties={'sasl.password': 'hidden'}))\n"
        "avro = tm.kafka('out', brokers='b:1', format='avro', registry='http://me:hidden@r',\n"
        "    registry_properties={'ssl.ca.location': 'hidden'})\n"
        "events.dead.write(avro)\n"
    )
    command = [sys.executable, "-m", "tidemill.cli", "inspect", "copying.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr
    assert "kafka:in" in done.stdout
    assert "kafka:out" in done.stdout
    assert "hidden" not in done.stdout


_made = 0


def topic(name: str, partitions: int) -> str:
    """A topic that no other test has."""
    global _made
    _made += 1
    full = f"{name}-{os.getpid()}-{_made}"
    create(full, partitions)
    return full


def read(name: str, format: Any = None, **columns: Any) -> list[dict[str, Any]]:
    """All that is in a topic and committed, partition by partition."""
    app = tm.App("read")
    meta = {"partition": "partition", "id": "header:tidemill-id"}
    found = app.stream("found", **columns, partition=int, id=tm.optional(str))
    found.read(tm.kafka(name, brokers=brokers(), format=format, meta=meta))
    found.keep()
    with app.start() as mill:
        mill.finish()
        return sorted(mill.output(found).rows(), key=lambda row: row["partition"])


PROGRAM = """
import sys
import tidemill as tm

brokers, source, paid, refused, dead, transactions, folder = sys.argv[1:8]
app = tm.App("ledger")
accounts = app.table("accounts", key="id", id=str, balance=tm.column(int, default=100))
payments = app.stream("payments", time="at", at=int, src=str, dst=str, amount=int, place=int)

@app.transaction(payments)
def pay(tx, e):
    src, dst = accounts[e.src], accounts[e.dst]
    tx.require(src.balance >= e.amount, "insufficient funds")
    src.balance -= e.amount
    dst.balance += e.amount
    return dict(src=e.src, place=e.place, left=src.balance)

payments.read(tm.kafka(source, brokers=brokers, meta={"src": "key", "place": "offset"}))
to = dict(brokers=brokers, transactions=transactions == "1")
pay.write(tm.kafka(paid, key="src", **to))
pay.aborted.write(tm.kafka(refused, format="msgpack", **to))
payments.dead.write(tm.kafka(dead, **to))
with app.start(data_dir=folder, snapshot_us=200_000, epoch_rows_max=200) as mill:
    print("started", flush=True)
    summary = mill.finish()
    print(summary["state_hash"], mill.status()["dead"], flush=True)
"""


def send(name: str, count: int) -> None:
    """Appends payments; some can't be read, because they have no amount."""
    app = tm.App("send")
    sent = app.stream("sent", k=str, at=int, dst=str, amount=tm.optional(int))
    sent.write(tm.kafka(name, brokers=brokers(), key="k"))
    rows = [
        {
            "k": f"a{n * 7 % 11}",
            "at": n,
            "dst": f"a{n * 5 % 13}",
            "amount": n % 29 if n % 97 else None,
        }
        for n in range(count)
    ]
    with app.start() as mill:
        mill.send(sent, rows)
        mill.finish()


class Ledger:
    """The program with topics and a data directory of its own."""

    def __init__(self, folder: Path, source: str, transactions: bool) -> None:
        folder.mkdir()
        self.outputs = [topic(name, 3) for name in ("paid", "refused", "dead")]
        (folder / "ledger.py").write_text(PROGRAM)
        data = str(folder / "data")
        self.command = [sys.executable, str(folder / "ledger.py"), brokers(), source]
        self.command += [*self.outputs, str(int(transactions)), data]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)

    def run(self) -> str:
        """Runs it to its end; what it says of that."""
        done = subprocess.run(self.command, stdout=subprocess.PIPE, text=True, timeout=WAIT)
        assert done.returncode == 0
        return done.stdout.splitlines()[-1]

    def contents(self) -> list[list[tuple[Any, ...]]]:
        """Returns the contents of the topics: each row once, and those of a partition in their
        order.
        """
        paid, refused, dead = self.outputs
        columns: list[tuple[str, dict[str, Any]]] = [
            (paid, {"src": str, "place": int, "left": int}),
            (refused, {"src": str, "dst": str, "place": int, "reason": str, "format": "msgpack"}),
            (dead, {"offset": int, "line": int, "reason": str, "raw": str}),
        ]
        found = []
        for name, of in columns:
            rows = read(name, **of)
            ids = Counter(row["id"].rsplit("/", 1)[1] for row in rows)
            assert sorted(map(int, ids)) == list(range(len(rows))), "each row once"
            before: dict[int, int] = {}
            for row in rows:
                number, partition = int(row.pop("id").rsplit("/", 1)[1]), row["partition"]
                assert before.get(partition, -1) < number, "in order"
                before[partition] = number
            if name == dead:
                # Which source's bad rows are taken first depends on the cuts.
                rows = [{**row, "partition": 0} for row in rows]
                rows.sort(key=lambda row: str(row["raw"]))
            found.append([tuple(row.values()) for row in rows])
        return found


@pytest.mark.servers
@pytest.mark.parametrize("transactions", [False, True])
def test_a_killed_app_comes_to_the_same_topics(tmp_path: Path, transactions: bool) -> None:
    source = topic("payments", 3)
    send(source, 20_000)
    whole = Ledger(tmp_path / "whole", source, transactions)
    said = whole.run()
    assert said.endswith(" 207"), "the poison is dead"
    killed = Ledger(tmp_path / "killed", source, transactions)
    kills = 0
    for pause in (0.05, 0.2, 0.4, 0.6, 0.1, 0.8, 1.0, 0.3):
        process = killed.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT)
        kills += line == "started\n" and process.returncode == -signal.SIGKILL
    assert kills >= 3
    assert killed.run() == said
    assert killed.contents() == whole.contents()
    # Started again, it has nothing to do, and adds nothing.
    assert killed.run() == said
    assert killed.contents() == whole.contents()


@pytest.mark.servers
def test_an_app_from_avro_to_avro(tmp_path: Path) -> None:
    source, out = topic("avro-in", 2), topic("avro-out", 2)
    # Authentication is optional there, and any login is accepted.
    registry = os.environ["SERVERS_REGISTRY"].replace("://", "://me:hidden@")
    avro: dict[str, Any] = {"brokers": brokers(), "format": "avro", "registry": registry}
    columns: dict[str, Any] = {"n": int, "amount": tm.decimal(2), "at": dt.datetime}

    def send(count: int, **to: Any) -> None:
        app = tm.App("send")
        sent = app.stream("sent", **columns, who=tm.optional(str))
        sent.write(tm.kafka(source, **to))
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        rows = [
            {"n": n, "amount": decimal.Decimal(n) / 4, "at": at, "who": str(n) if n else None}
            for n in range(count)
        ]
        with app.start() as mill:
            mill.send(sent, rows)
            mill.finish()

    def run() -> dict[str, Any]:
        app = tm.App("double")
        events = app.stream(
            "events", n=int, amount=tm.decimal(2), at=dt.datetime, more=tm.optional(int)
        )

        @app.transaction(events)
        def double(tx: Any, e: Any) -> dict[str, Any]:
            return {"n": e.n * 2, "amount": e.amount + e.amount, "at": e.at}

        events.read(tm.kafka(source, **avro))
        double.write(tm.kafka(out, subject=f"{out}-doubled", **avro))
        with app.start(data_dir=str(tmp_path / "data")) as mill:
            mill.finish()
            return mill.status()

    send(100, **avro)
    assert run()["dead"] == 0
    # A message that is not Avro is a dead letter.
    send(3, brokers=brokers())
    send(10, **avro)
    assert run()["dead"] == 3
    assert run()["dead"] == 3
    app = tm.App("read")
    found = app.stream("found", **columns)
    found.read(tm.kafka(out, unknown_fields="refuse", **avro))
    found.keep()
    with app.start() as mill:
        mill.finish()
        rows = mill.output(found).rows()
    assert sorted(row["n"] for row in rows) == sorted(2 * n for n in [*range(100), *range(10)])
    assert all(row["amount"] == decimal.Decimal(row["n"]) / 4 for row in rows)
    for path in (tmp_path / "data").rglob("*"):
        assert not path.is_file() or b"hidden" not in path.read_bytes(), path


@pytest.mark.alone
@pytest.mark.servers
def test_an_app_goes_on_when_the_broker_is_back(tmp_path: Path) -> None:
    source, out = topic("in", 2), topic("out", 2)
    app = tm.App("copy")
    events = app.stream("events", n=int)

    @app.transaction(events)
    def copy(tx: Any, e: Any) -> dict[str, Any]:
        return {"n": e.n}

    events.read(tm.kafka(source, brokers=brokers()))
    copy.write(tm.kafka(out, brokers=brokers()))
    other = tm.App("other")
    numbers = other.stream("numbers", n=int)
    numbers.write(tm.kafka(source, brokers=brokers()))
    with app.start(data_dir=str(tmp_path / "data")) as mill, other.start() as sender:
        sender.send(numbers, [{"n": n} for n in range(100)])
        sender.drain()
        control("KAFKA", "kill")
        deadline = time.monotonic() + WAIT
        while not mill.status()["troubles"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (who,) = mill.status()["troubles"]
        assert source in who
        sender.send(numbers, [{"n": n} for n in range(100, 200)])
        control("KAFKA", "start")
        while mill.status()["events"] < 200 or mill.status()["troubles"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        sender.finish()
        mill.finish()
    assert sorted(row["n"] for row in read(out, n=int)) == list(range(200))


@pytest.mark.servers
def test_partitions_that_are_added(tmp_path: Path) -> None:
    source = topic("grows", 1)
    send(source, 50)

    def run(upgrade: bool = False, partitions: list[int] | None = None) -> int:
        app = tm.App("grown")
        events = app.stream("events", at=int)
        counts = app.table("counts", key="all", all=int, n=tm.column(int, default=0))

        @app.transaction(events)
        def count(tx: Any, e: Any) -> None:
            counts[0].n += 1

        events.read(tm.kafka(source, brokers=brokers(), partitions=partitions))
        with app.start(data_dir=str(tmp_path / "data"), upgrade=upgrade) as mill:
            mill.finish()
            return int(mill.table("counts").rows()[0]["n"])

    assert run() == 50
    grow(source, 3)
    send(source, 30)
    with pytest.raises(tm.SettingError, match=f"there are also .*{source}/1.*{source}/2"):
        run()
    assert 50 < run(partitions=[0]) < 80
    assert run(upgrade=True) == 80


@pytest.mark.servers
def test_the_end_of_the_first_start_stays_the_begin(tmp_path: Path) -> None:
    source = topic("latest", 1)
    send(source, 10)

    def run(fresh: bool = False) -> int:
        app = tm.App("late")
        events = app.stream("events", at=int)
        events.read(tm.kafka(source, brokers=brokers(), begin="latest"))
        events.keep()
        with app.start(data_dir=str(tmp_path / "data"), fresh=fresh) as mill:
            mill.finish()
            return int(mill.status()["events"])

    assert run() == 0
    send(source, 7)
    assert run() == 7
    assert run(fresh=True) == 0
