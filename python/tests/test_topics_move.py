"""An app that reads topics moves between one process and several."""

from __future__ import annotations

import json
import random
import secrets
import time
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .beside import brokers, create
from .kill.cluster import Process, joined, settings
from .test_processes_retained import command

pytestmark = pytest.mark.servers

#: The rows depend on the order of all events. Bids that are late are admitted, and asks are not.
CODE = """
import tidemill as tm

app = tm.App("market")
count = tm.column(int, default=0)
books = app.table("books", key="id", id=int, hash=tm.column(int, default=7), n=count)
bids = app.stream("bids", time="at", late="admit", at=int, id=int, n=int)
bids.read(tm.kafka("NAME-bids", brokers="BROKERS"), out_of_orderness=20)
asks = app.stream("asks", time="at", at=int, id=int, n=int)
asks.read(tm.kafka("NAME-asks", brokers="BROKERS"), out_of_orderness=10)
notes = app.stream("notes", id=int, n=int)
notes.read(tm.kafka("NAME-notes", brokers="BROKERS"))
texts = app.table("texts", key="id", id=int, n=tm.column(int, default=0))
trades = app.stream("trades", id=int, hash=int)


def place(tx, e, factor):
    book = books[e.id]
    book.hash = (book.hash * factor + e.n + e.at) % 1_000_003
    book.n += 1
    tx.emit(trades, id=e.id, hash=book.hash)


@app.transaction(bids)
def bid(tx, e):
    place(tx, e, 31)


@app.transaction(asks)
def ask(tx, e):
    place(tx, e, 37)


@app.procedure(notes.batches(7))
def note(tx, notes):
    for e in notes:
        texts[e.id].n = texts[e.id].n * 3 % 1_000_003 + e.n


trades.write(tm.files("trades.jsonl"))
"""

TABLES = ("books", "texts")


class Writer:
    """Writes messages of all topics. Some have no value that can be read."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.random, self.now = name, random.Random(seed), 0

    def write(self, count: int) -> None:
        app = tm.App("writer")
        topics = ("bids", "asks", "notes")
        good = {topic: app.stream(topic, at=int, id=int, n=int) for topic in topics}
        bad = {topic: app.stream(f"bad_{topic}", at=str, id=int, n=int) for topic in topics}
        for streams in (good, bad):
            for topic, stream in streams.items():
                stream.write(tm.kafka(f"{self.name}-{topic}", brokers=brokers()))
        with app.start() as mill:
            for _ in range(count):
                self.now += self.random.choice((0, 0, 1, 1, 5))
                late = self.random.choice((0, 0, 0, 3, 9, 25, 60))
                row: dict[str, Any] = {"at": max(self.now - late, 0)}
                row |= {"id": self.random.randrange(5), "n": self.random.randrange(1000)}
                topic = self.random.choice(("bids", "bids", "asks", "notes"))
                if self.random.random() < 0.02:
                    mill.send(bad[topic], [row | {"at": "bad"}])
                else:
                    mill.send(good[topic], [row])
            mill.finish()


def rows(folder: Path, data: str) -> dict[str, Any]:
    """The tables, and the rows that were late or bad, in a stopped directory."""
    found: dict[str, Any] = {}
    for table in TABLES:
        code, [result], errors = command(folder, "query", f"{table}", "--data-dir", data)
        assert code == 0, errors
        found[table] = sorted(map(str, result["rows"]))
    code, [listed], errors = command(folder, "dlq", "ls", "--data-dir", data)
    assert code == 0, errors
    found["dlq"] = sorted((row["stream"], str(row["value"])) for row in listed["rows"])
    return found


@pytest.mark.parametrize("seed", range(2))
def test_moves_are_one_run(seed: int, tmp_path: Path) -> None:
    name = f"moves-{secrets.token_hex(4)}"
    for topic, partitions in (("bids", 2), ("asks", 1), ("notes", 1)):
        create(f"{name}-{topic}", partitions)
    writer, dice = Writer(name, seed), random.Random(seed)
    text = CODE.replace("NAME", name).replace("BROKERS", brokers())

    def start(folder: Path, step: str, *flags: str) -> Process:
        line = ["run", "app.py", "--data-dir", "data", "--http", "0", *flags]
        return Process(folder / step, *line, within=["env", "-C", str(folder)])

    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "app.py").write_text(text)
    for step in range(5):
        writer.write(300)
        flags = ["--processes", "2", *settings()] if step % 2 == seed % 2 else []
        with start(moved, f"step-{step}", *flags) as process:
            url = joined(process) if flags else process.find(r"http +(http://\S+)")
            with tm.Client(url, retries=100) as client:
                client.row("books", 1)
            # Some steps end while there are more messages.
            time.sleep(dice.choice((0, 0.1, 0.5, 1.5)))
            assert process.stop() == 0, process.errors.read_text()
    writer.write(300)
    one = tmp_path / "one"
    one.mkdir()
    (one / "app.py").write_text(text)

    def finish(folder: Path, wanted: dict[str, Any] | None) -> dict[str, Any]:
        """Runs until all has been read: until the rows are those wanted, or change no more."""
        found: dict[str, Any] = {}
        for again in range(10):
            with start(folder, f"finish-{again}") as process:
                process.find(r"http +(http://\S+)")
                time.sleep(1.5)
                assert process.stop() == 0, process.errors.read_text()
            before, found = found, rows(folder, "data")
            if found == (wanted or before):
                break
        return found

    wanted = finish(one, None)
    assert {"bids.dead", "asks.dead", "asks.late"} <= {row[0] for row in wanted["dlq"]}
    found = finish(moved, wanted)
    assert found == wanted
    trades = [(folder / "trades.jsonl").read_text().splitlines() for folder in (one, moved)]
    assert trades[0] == trades[1]
    assert len(trades[0]) > 500
    assert json.loads(trades[0][0])
