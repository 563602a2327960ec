"""An app on several processes, some of which are killed, whose streams are in event time."""

from __future__ import annotations

import csv
import random
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .beside import brokers, create
from .kill.cluster import (
    PATIENCE,
    Process,
    health,
    joined,
    kill_all,
    kill_worker,
    settings,
    wait_for,
    workers_of,
)
from .test_processes_batches import TALLY, seen

pytestmark = pytest.mark.servers

CODE = """
import os

import tidemill as tm

BROKERS = os.environ.get("SERVERS_KAFKA", "localhost:9092")
NAME = os.environ.get("CHAIN", "chain")
app = tm.App("chain")
links = app.table("links", key="id", id=int, n=tm.column(int, default=0))
counts = app.table("counts", key="id", id=int, n=tm.column(int, default=0))
moves = app.stream("moves", time="at", at=int, id=int, to=int, n=int)
moves.read(tm.kafka(f"{NAME}-moves", brokers=BROKERS), out_of_orderness=OUT_OF_ORDERNESS)
moves.late.write(tm.files("late.csv"))
small = moves.filter(lambda e: e.n < 50, name="small")
small.late.keep()
ticks = app.stream("ticks", time="at", at=int, id=int)
ticks.read(tm.kafka(f"{NAME}-ticks", brokers=BROKERS), idle="500ms")


@app.transaction(moves)
def move(tx, e):
    one, other = links[e.id], links[e.to]
    tx.require(e.n != 13, "thirteen")
    both = one.n * 3 + other.n * 7 + e.n
    one.n = both % 1_000_003
    other.n = (both + e.id) % 1_000_003


@app.transaction(ticks)
def tick(tx, e):
    counts[e.id].n = (counts[e.id].n * 3 + e.at) % 1_000_003

"""

OUT_OF_ORDERNESS = 40
LINKS = 12
ROWS = 300
END = 1_000_000


class Moves:
    """Moves in the order of writing, and their results in the order of their times."""

    def __init__(self) -> None:
        self.dice = random.Random(7)
        self.all: list[dict[str, int]] = []

    def some(self) -> list[dict[str, int]]:
        """The next ones: no two have one time, and none is late wherever it is written."""
        first = len(self.all)
        rows = []
        for at in range(first, first + ROWS):
            id = self.dice.randrange(LINKS)
            to = (id + 1 + self.dice.randrange(LINKS - 1)) % LINKS
            rows.append({"at": at, "id": id, "to": to, "n": self.dice.randrange(100)})
        self.all += rows
        # In blocks that are shorter than what may be out of order.
        blocks = [
            rows[at : at + OUT_OF_ORDERNESS // 2] for at in range(0, ROWS, OUT_OF_ORDERNESS // 2)
        ]
        for block in blocks:
            self.dice.shuffle(block)
        return [row for block in blocks for row in block]

    def come_to(self) -> dict[int, int]:
        links = dict.fromkeys(range(LINKS), 0)
        for row in sorted(self.all, key=lambda row: row["at"]):
            if row["n"] != 13:
                both = links[row["id"]] * 3 + links[row["to"]] * 7 + row["n"]
                links[row["id"]] = both % 1_000_003
                links[row["to"]] = (both + row["id"]) % 1_000_003
        return links


def write(topic: str, rows: list[dict[str, int]]) -> None:
    """Writes rows, those of one id to one partition."""
    app = tm.App("writer")
    out = app.stream("out", **dict.fromkeys(rows[0], int))
    out.write(tm.kafka(topic, brokers=brokers(), key="id"))
    with app.start() as mill:
        mill.send(out, rows)
        mill.finish()


def test_events_are_executed_in_the_order_of_their_times(tmp_path: Path) -> None:
    name = f"times-{secrets.token_hex(4)}"
    create(f"{name}-moves", 3)
    create(f"{name}-ticks", 2)
    code = CODE.replace('"CHAIN", "chain"', f'"CHAIN", "{name}"')
    code = code.replace("OUT_OF_ORDERNESS", str(OUT_OF_ORDERNESS)).replace(
        "late.csv", str(tmp_path / "late.csv")
    )
    (tmp_path / "chain.py").write_text(code)
    sets = (f"cluster_name={name}", "cluster_sources=2")
    flags = ["--data-dir", str(tmp_path / "data"), *settings(*sets), "--http", "0"]
    flags += ["--log", f"kafka://{brokers()}", "--snapshots", str(tmp_path / "snapshots")]

    def start(folder: str, *more: str) -> Process:
        app = str(tmp_path / "chain.py")
        return Process(tmp_path / folder, "run", app, "--processes", "2", *flags, *more)

    def rows(url: str, table: str, ids: list[int]) -> dict[int, int]:
        with tm.Client(url) as client:
            found = {id: client.row(table, id) for id in ids}
        return {id: 0 if row is None else row["n"] for id, row in found.items()}

    def waits(url: str) -> int:
        return int(health(url).get("buffered", 0))

    def watermark(url: str, stream: str) -> Any:
        found = {of["stream"]: of for of in health(url).get("event_time", [])}
        return found.get(stream, {}).get("watermark")

    def end(at: int) -> None:
        """In each partition something that all before it waits for."""
        write(f"{name}-moves", [{"at": at, "id": id, "to": id, "n": 13} for id in range(99)])

    moves = Moves()
    with start("first") as parent:
        url = joined(parent)
        write(f"{name}-moves", moves.some())
        # Events within the out-of-orderness of the newest are buffered.
        wait_for("events that wait", lambda: waits(url) > 0 and watermark(url, "moves"))
        kill_worker(parent)
        write(f"{name}-moves", moves.some())
        wait_for("workers", lambda: len(workers_of(url)) == 2)
        # A stream of which one source never gives anything goes on without it.
        ticks = [{"at": at, "id": 5} for at in range(20)]
        write(f"{name}-ticks", ticks)
        wanted = 0
        for row in ticks:
            wanted = (wanted * 3 + row["at"]) % 1_000_003
        wait_for("ticks", lambda: rows(url, "counts", [5]) == {5: wanted})
        kill_all(parent)
    write(f"{name}-moves", moves.some())
    with start("second") as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("events that wait", lambda: waits(url) > 0)
        assert parent.stop() == 0
    with start("third") as parent:
        url = parent.find(r"http +(http://\S+)")
        end(END)
        ids = list(range(LINKS))
        wait_for("all moves", lambda: rows(url, "links", ids) == moves.come_to())
        # Buffered events are in the log, and some of the last ones still wait.
        wait_for("the end", lambda: (watermark(url, "moves") or 0) >= END - OUT_OF_ORDERNESS)
        late = [{"at": 10 + n, "id": n, "to": 0, "n": 20 * n} for n in range(5)]
        write(f"{name}-moves", late)
        end(END + 1000)
        wait_for("the end", lambda: (watermark(url, "moves") or 0) > END)
        assert rows(url, "links", ids) == moves.come_to()
        with tm.Client(url) as client:
            following = client.subscribe("small.late", after=-1)
            few = [next(following).value for _ in range(3)]
        assert {row["n"] for row in few} == {0, 20, 40}
        # Not while the second worker joins.
        joined(parent)
        line = [sys.executable, "-m", "tidemill.cli", "status", "--cluster", url]
        shown = subprocess.run(line, text=True, capture_output=True, timeout=PATIENCE).stdout
        assert "events wait for their watermark, 5 were late" in shown, shown
        assert "moves, held back by" in shown
        assert parent.stop() == 0
    with (tmp_path / "late.csv").open() as file:
        found = [{k: int(v) for k, v in row.items()} for row in csv.DictReader(file)]
    assert sorted(found, key=lambda row: row["at"]) == late


STRICT = """
import tidemill as tm

app = tm.App("strict")
seen = app.table("seen", key="id", id=int, n=tm.column(int, default=0))
steps = app.stream("steps", time="at", late="error", at=int, id=int)
steps.read(tm.kafka("TOPIC", brokers="BROKERS"))


@app.transaction(steps)
def step(tx, e):
    seen[e.id].n = seen[e.id].n * 10 + e.at
"""


def test_a_late_event_ends_the_run_where_it_is_an_error(tmp_path: Path) -> None:
    name = f"strict-{secrets.token_hex(4)}"
    create(name, 2)
    code = STRICT.replace("TOPIC", name).replace("BROKERS", brokers())
    (tmp_path / "strict.py").write_text(code)
    flags = ["--data-dir", str(tmp_path / "data"), "--http", "0"]
    flags += [*settings(f"cluster_name={name}", "cluster_sources=2")]
    flags += ["--log", f"kafka://{brokers()}", "--snapshots", str(tmp_path / "snapshots")]
    ids = {1, 2, 3, 4, 5, 6}

    def start(folder: str, *more: str) -> Process:
        app = str(tmp_path / "strict.py")
        return Process(tmp_path / folder, "run", app, "--processes", "2", *flags, *more)

    def seen(url: str) -> dict[int, int]:
        with tm.Client(url) as client:
            found = {id: client.row("seen", id) for id in ids}
        return {id: row["n"] for id, row in found.items() if row is not None}

    def all_at(time: int) -> list[dict[str, int]]:
        return [{"at": time, "id": id} for id in sorted(ids)]

    with start("first") as parent:
        url = joined(parent)
        write(name, [*all_at(1), *all_at(2), *all_at(3)])
        # At the watermark's own time it is before some of the events.
        both = {12, 123}
        wait_for("events", lambda: set(seen(url)) == ids and set(seen(url).values()) <= both)
        write(name, [{"at": 2, "id": 5}])
        assert parent.process.wait(PATIENCE) == 1
        said = parent.errors.read_text()
        assert re.search(
            rf"stream steps: row \d+ of source {name}/\d \(counted from 0\) is late", said
        ), said
        assert "its time is 2, and it may not be before 3" in said, said
        assert "--upgrade" in said
    # It is the next event, whoever starts.
    with start("again") as parent:
        assert parent.process.wait(PATIENCE) == 1
        assert "is late" in parent.errors.read_text()
    (tmp_path / "strict.py").write_text(code.replace('late="error"', 'late="admit"'))
    with start("upgraded", "--upgrade") as parent:
        url = joined(parent)
        write(name, all_at(9))
        # Where its source stood: behind the event at 3.
        wanted = dict.fromkeys(ids, 123) | {5: 1232}

        def come() -> dict[int, int]:
            return {id: int(str(n).removesuffix("9")) for id, n in seen(url).items()}

        wait_for("the late event, and what is behind it", lambda: come() == wanted)
        assert parent.stop() == 0


INTERVALS = """
import os

import tidemill as tm

BROKERS = os.environ.get("SERVERS_KAFKA", "localhost:9092")
app = tm.App("steps")
"""
INTERVALS += TALLY
INTERVALS += """

def when(step):
    return step.at


steps = app.stream("steps", time="at", at=int, id=int)
steps.read(tm.kafka("NAME-steps", brokers=BROKERS), out_of_orderness=OUT_OF_ORDERNESS)
of_three = steps.filter(tm.col("id") != 7, name="of_three").batches(3)
few = steps.filter(tm.col("id") > 3, name="few").batches(time=30)
each = steps.filter(True, name="each")
steps.batches(time=20)
counts = app.table("counts", key="of", of=str, n=tm.column(int, default=0))
lasts = app.table("lasts", key="of", of=int, at=tm.column(int, default=0), history=(100, None))
windows = app.table("windows", key="at", at=int, n=int, sum=int)


@app.transaction(each)
def look(tx, e):
    last = lasts[e.id % 3]
    last.at = e.at
    over = last.over(tm.sliding(100))
    windows.upsert(at=e.at, n=over.count(), sum=over.at.sum())
    counts["steps"].n += 1


@app.procedure(few)
def sparse(tx, few):
    note("few", few)
    row = counts[f"few {few[-1].at}"]
    row.n = counts["steps"].n


@app.procedure(steps)
def gather(tx, steps):
    note("intervals", steps)


@app.procedure(of_three)
def count(tx, of_three):
    note("threes", of_three)
"""


def test_intervals_of_event_time_are_batches(tmp_path: Path) -> None:
    name = f"steps-{secrets.token_hex(4)}"
    create(f"{name}-steps", 3)
    code = INTERVALS.replace("NAME", name).replace("OUT_OF_ORDERNESS", str(OUT_OF_ORDERNESS))
    (tmp_path / "steps.py").write_text(code)
    sets = (f"cluster_name={name}", "cluster_sources=2")
    flags = ["--data-dir", str(tmp_path / "data"), *settings(*sets), "--http", "0"]
    flags += ["--log", f"kafka://{brokers()}", "--snapshots", str(tmp_path / "snapshots")]

    def start(folder: str) -> Process:
        app = str(tmp_path / "steps.py")
        return Process(tmp_path / folder, "run", app, "--processes", "2", *flags)

    moves = Moves()

    def some() -> list[dict[str, int]]:
        return [{"at": row["at"], "id": row["id"]} for row in moves.some() if row["n"] % 5]

    written = some()
    with start("first") as parent:
        url = joined(parent)
        write(f"{name}-steps", written)
        wait_for("intervals", lambda: len(seen(url, "intervals")[1]) > 3)
        kill_worker(parent)
        more = some()
        write(f"{name}-steps", more)
        count = wait_for("more", lambda: at if (at := len(seen(url, "intervals")[1])) > 16 else 0)
        kill_all(parent)
    last = some()
    write(f"{name}-steps", last)
    # In each partition something that all before it waits for.
    write(f"{name}-steps", [{"at": END, "id": id} for id in range(99)])
    written += more + last
    with start("second") as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("all", lambda: len(seen(url, "intervals")[0]) >= len(written))
        found, threes, few = (seen(url, of) for of in ("intervals", "threes", "few"))
        with tm.Client(url) as client:
            windows = {row["at"]: client.row("windows", row["at"]) for row in written}
            counts = {at: client.row("counts", f"few {at}") for at in few[0]}
        assert parent.stop() == 0
    at = sorted(row["at"] for row in written)
    assert found[0] == at
    assert found[1] == [sum(a // 20 == of for a in at) for of in sorted({a // 20 for a in at})]
    assert len(found[1]) > count
    # A batch of a part has the place of its last event, though others of the interval come behind.
    part = sorted(row["at"] for row in written if row["id"] > 3)
    intervals = sorted({a // 30 for a in part})
    assert few[0] == part
    assert few[1] == [sum(a // 30 == of for a in part) for of in intervals]
    lasts = [max(a for a in part if a // 30 == of) for of in intervals]
    assert {a: row["n"] for a, row in counts.items() if row} == {
        a: sum(other <= a for other in at) for a in lasts
    }
    # Versions have the times of events.
    for row in written:
        near = [
            other["at"]
            for other in written
            if other["id"] % 3 == row["id"] % 3 and row["at"] - 100 < other["at"] <= row["at"]
        ]
        assert windows[row["at"]] == {"at": row["at"], "n": len(near), "sum": sum(near)}
    some_of = sorted(row["at"] for row in written if row["id"] != 7)
    assert threes[0][: len(some_of) // 3 * 3] == some_of[: len(some_of) // 3 * 3]
    assert set(threes[1]) == {3}
