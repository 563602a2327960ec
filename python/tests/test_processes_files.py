"""An app on several processes, some of which are killed, whose streams come from files: it writes
what it writes in one process."""

from __future__ import annotations

import gzip
import json
import random
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm

from .beside import brokers
from .kill.cluster import (
    PATIENCE,
    Process,
    joined,
    kill_all,
    kill_worker,
    settings,
    wait_for,
)

APP = """
import tidemill as tm

app = tm.App("feeds")
links = app.table("links", key="id", id=int, n=tm.column(int, default=0))
sums = app.table("sums", key="id", id=int, n=tm.column(int, default=0))
days = app.table("days", key="id", id=int, n=tm.column(int, default=0))
elevens = app.table("elevens", key="id", id=int, n=tm.column(int, default=0))
moves = app.stream("moves", time="at", at=int, id=int, to=int, n=int)
moves.read(tm.files("in/moves"), out_of_orderness=30)
ticks = app.stream("ticks", time="at", late="admit", at=int, id=int)
ticks.read(tm.files("in/ticks.jsonl"))
ticks.read(tm.files("in/tocks.jsonl"))
votes = app.stream("votes", id=int, n=int)
votes.read(tm.files("in/votes.csv.gz"))


@app.transaction(moves)
def move(tx, e):
    one, other = links[e.id], links[e.to]
    tx.require(e.n != 13, "thirteen")
    both = one.n * 3 + other.n * 7 + e.n
    one.n = both % 1_000_003
    other.n = (both + e.id) % 1_000_003
    return {"at": e.at, "id": e.id, "one": one.n, "other": other.n}


@app.transaction(ticks)
def tick(tx, e):
    links[e.id].n = (links[e.id].n * 5 + e.at) % 1_000_003
    return {"at": e.at, "n": links[e.id].n}


@app.procedure(votes.batches(7), out=dict(votes=int, n=int))
def count(tx, votes):
    for vote in votes:
        row = sums.upsert(id=vote.id)
        row.n = (row.n * 3 + vote.n) % 1_000_003
    return {"votes": len(votes), "n": sum(vote.n for vote in votes)}


@app.procedure(
    moves.filter(tm.col("n") < 50, name="small").batches(time=50), out=dict(first=int, events=int)
)
def day(tx, small):
    row = days.upsert(id=small[0].at // 50)
    row.n = len(small) * 1000 + small[0].n
    return {"first": small[0].at, "events": len(small)}


span = dict(first=int, last=int, events=int)


@app.procedure(moves.filter(tm.col("n") != 7, name="others").batches(11), out=span)
def eleven(tx, moves):
    row = elevens.upsert(id=len(moves))
    row.n = (row.n * 3 + sum(move.n for move in moves)) % 1_000_003
    return {"first": moves[0].at, "last": moves[-1].at, "events": len(moves)}


@app.procedure(ticks.filter(tm.col("id") != 4, name="some").batches(9), out=span)
def nine(tx, ticks):
    row = elevens.upsert(id=-len(ticks))
    row.n = (row.n * 3 + ticks[-1].id) % 1_000_003
    return {"first": ticks[0].at, "last": ticks[-1].at, "events": len(ticks)}


move.write(tm.files("out/moved.parquet"))
move.aborted.write(tm.files("out/refused.csv"))
tick.write(tm.files("out/ticked.csv"))
count.write(tm.files("out/counted.csv"))
day.write(tm.files("out/days.csv"))
eleven.write(tm.files("out/elevens.csv"))
nine.write(tm.files("out/nines.csv"))
moves.dead.write(tm.files("out/dead.jsonl"))
moves.late.write(tm.files("out/late.csv"))
"""

IDS = 12
ROWS = 12_000


def make(folder: Path, rows: int = ROWS) -> None:
    """The app, and what it reads: moves in two files whose times go side by side, out of order, and
    some of them too late."""
    dice = random.Random(5)
    (folder / "in" / "moves").mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    for nth, name in enumerate(("a.csv", "b.csv")):
        # No two have one time, so that their order is one.
        times = list(range(nth, 2 * rows, 2))
        blocks = [times[at : at + 10] for at in range(0, rows, 10)]
        for block in blocks:
            dice.shuffle(block)
        lines = ["at,id,to,n"]
        for at in (at for block in blocks for at in block):
            id = dice.randrange(IDS)
            to = (id + 1 + dice.randrange(IDS - 1)) % IDS
            lines.append(f"{at},{id},{to},{dice.randrange(100)}")
            if dice.random() < 0.001:
                lines.append(f"{at},none,{to}")
            if dice.random() < 0.01:
                lines.append(f"{at - 90},{id},{to},1")
        (folder / "in" / "moves" / name).write_text("\n".join(lines) + "\n")
    ticks = [json.dumps({"at": at * 7, "id": dice.randrange(IDS)}) for at in range(rows // 4)]
    # The second file ends long before the first.
    few = range(1, rows // 8, 2)
    # Each tenth of them is late: it stands where the one before it does.
    for at in range(19, len(ticks), 10):
        ticks[at] = json.dumps({"at": 7 * at - 70, "id": dice.randrange(IDS)})
    texts = ([ticks[at] for at in few], [t for at, t in enumerate(ticks) if at not in few])
    for name, text in zip(("tocks", "ticks"), texts, strict=True):
        (folder / "in" / f"{name}.jsonl").write_text("\n".join(text) + "\n")
    votes = [f"{dice.randrange(IDS)},{dice.randrange(1000)}" for _ in range(rows + 3)]
    with gzip.open(folder / "in" / "votes.csv.gz", "wt") as file:
        file.write("id,n\n" + "\n".join(votes) + "\n")


def outputs(folder: Path) -> dict[str, bytes]:
    """Returns the written files."""
    found = lines(folder)
    moved = tm.App("moved")
    rows = moved.stream("rows", at=int, id=int, one=int, other=int)
    rows.read(tm.files(folder / "out" / "moved.parquet"))
    with moved.start() as mill:
        mill.wait(PATIENCE)
        # A file's own bytes depend on where its parts ended.
        found["moved.parquet"] = repr(mill.output("rows").rows()).encode()
    return found


def lines(folder: Path) -> dict[str, bytes]:
    """Returns the written files that have lines."""
    files = [path for path in (folder / "out").iterdir() if path.suffix in (".csv", ".jsonl")]
    found = {path.name: path.read_bytes() for path in files}
    # In which order a cut tells of bad and late rows of two files is its own affair.
    for name in ("dead.jsonl", "late.csv"):
        found[name] = b"".join(sorted(found[name].splitlines(True)))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that a run in one process writes."""
    folder = tmp_path_factory.mktemp("alone")
    make(folder)
    line = [sys.executable, "-m", "tidemill.cli", "run", "app.py"]
    subprocess.run(line, cwd=folder, check=True, timeout=PATIENCE, capture_output=True)
    return outputs(folder)


def start(folder: Path, *more: str) -> Process:
    """The app on two processes."""
    return Process(folder, "run", "app.py", "--processes", "2", *settings(), *more)


def written(folder: Path) -> int:
    """How much of it has been written."""
    path = folder / "out" / "ticked.csv"
    return path.stat().st_size if path.exists() else 0


def moved(folder: Path, parent: Process) -> Callable[[], bool]:
    """Whether more has been written since now, or the process has ended."""
    before = written(folder)
    return lambda: written(folder) > before or parent.process.poll() is not None


def to_the_end(folder: Path, flags: Sequence[str]) -> None:
    """Runs it while its processes are killed, until it ends by itself."""
    with start(folder, *flags) as parent:
        wait_for("rows", lambda: written(folder) > 1000)
        kill_worker(parent)
        wait_for("rows", moved(folder, parent))
        kill_all(parent)
    with start(folder, *flags) as parent:
        # On a busy machine the whole takes longer than PATIENCE, while rows are written.
        while parent.process.poll() is None:
            wait_for("rows or the end", moved(folder, parent))
        assert parent.process.wait() == 0, parent.errors.read_text()


def differences(found: dict[str, bytes], wanted: dict[str, bytes]) -> list[str]:
    """The names of the files that differ."""
    assert set(found) == set(wanted)
    return [name for name in wanted if found[name] != wanted[name]]


def test_it_comes_to_what_one_process_does(tmp_path: Path, alone: dict[str, bytes]) -> None:
    make(tmp_path)
    to_the_end(tmp_path, ["--set", "cluster_epoch_rows_max=20"])
    assert differences(outputs(tmp_path), alone) == []
    counted = alone["counted.csv"].decode().splitlines()
    assert (ROWS + 3) % 7 != 0
    assert counted[-1].split(",")[0] == str((ROWS + 3) % 7)
    for name, of in (("elevens.csv", 11), ("nines.csv", 9)):
        sizes = [int(line.rsplit(",", 1)[1]) for line in alone[name].decode().splitlines()[1:]]
        assert {*sizes[:-1]} == {of}
        assert 0 < sizes[-1] < of
    # Nothing has come: it ends, and everything stays.
    with start(tmp_path) as parent:
        assert parent.process.wait(PATIENCE) == 0
    assert differences(outputs(tmp_path), alone) == []
    # Files that are not what they were are not read on.
    path = tmp_path / "in" / "moves" / "a.csv"
    text = path.read_text()
    other = text.replace("\n2,", "\n4,", 1)
    for changed, words in (
        (other, "app.py:10: in/moves/a.csv has changed: its first"),
        (text[:-40], "in/moves/a.csv"),
    ):
        assert changed != text
        path.write_text(changed)
        with start(tmp_path) as parent:
            assert parent.process.wait(PATIENCE) == 1
            said = parent.errors.read_text()
        assert words in said, said
        assert "Traceback" not in said
    path.write_text(text)
    (tmp_path / "in" / "moves" / "c.csv").write_text("at,id,to,n\n1,2,3,4\n")
    with start(tmp_path) as parent:
        assert parent.process.wait(PATIENCE) == 1
        said = parent.errors.read_text()
    assert "stream moves reads the files a.csv, b.csv, c.csv" in said, said
    assert "app.py:10" in said
    assert "Traceback" not in said


FOLLOWED = """
import tidemill as tm

app = tm.App("followed")
seen = app.table("seen", key="id", id=int, n=tm.column(int, default=0))
steps = app.stream("steps", id=int)
steps.read(tm.files("steps.csv", follow=True))


@app.transaction(steps)
def step(tx, e):
    row = seen[e.id]
    row.n += 1
    return {"id": e.id, "n": row.n}


step.write(tm.files("left.csv"))
"""


def test_a_file_that_grows_is_read_on(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FOLLOWED)
    path, left = tmp_path / "steps.csv", tmp_path / "left.csv"
    path.write_text("id\n")
    count = 0

    def grow(rows: int) -> None:
        nonlocal count
        with path.open("a") as file:
            file.writelines(f"{n % 3}\n" for n in range(count, count + rows))
        count += rows

    def wanted() -> list[str]:
        return ["id,n", *(f"{n % 3},{n // 3 + 1}" for n in range(count))]

    def found() -> list[str]:
        return left.read_text().splitlines() if left.exists() else []

    with start(tmp_path, "--http", "0") as parent:
        joined(parent)
        grow(5)
        wait_for("rows", lambda: found() == wanted())
        kill_worker(parent)
        grow(50)
        wait_for("rows", lambda: found() == wanted())
        kill_all(parent)
    grow(7)
    with start(tmp_path, "--http", "0") as parent:
        url = joined(parent)
        grow(5)
        wait_for("rows", lambda: found() == wanted())
        sources: list[dict[str, Any]] = httpx.get(f"{url}/health").json()["sources"]
        assert sources[-1]["topic"].endswith("steps.csv")
        assert parent.stop() == 0
    assert found() == wanted()
    # Files that were read already are missing.
    path.write_text("id\n0\n")
    with start(tmp_path, "--http", "0") as parent:
        assert parent.process.wait(PATIENCE) == 1
        assert "steps.csv" in parent.errors.read_text()


@pytest.mark.parametrize("files", ["none", "others"])
def test_a_worker_without_the_files_gets_the_rows(
    files: str, tmp_path: Path, alone: dict[str, bytes]
) -> None:
    """The worker sees no files, or others of the same names and lengths."""
    make(tmp_path / "coordinator")
    (tmp_path / "worker").mkdir()
    if files == "others":
        make(tmp_path / "worker")
        for path in (tmp_path / "worker" / "in").rglob("*.*"):
            first, *rest = path.read_bytes().splitlines(True)
            path.write_bytes(b"".join([first, *reversed(rest)]))
    (secret := tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    common = [str(tmp_path / "coordinator" / "app.py"), *settings(), "--secret-file", str(secret)]
    common += ["--snapshots", str(tmp_path / "snapshots")]
    at = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with Process(tmp_path / "coordinator", "coordinator", *common, *at) as coordinator:
        join = [*common, "--join", coordinator.find(r"join at (\S+)"), "--set", "log=info"]
        url = coordinator.find(r"http +(http://\S+)")
        with Process(tmp_path / "worker", "worker", *join) as worker:
            wait_for("the end", lambda: httpx.get(f"{url}/health").json()["input_ended"])
            assert coordinator.stop() == 0, coordinator.errors.read_text()
        why = worker.errors.read_text()
    # The Parquet file is not complete, because others may send more.
    wanted = {name: rows for name, rows in alone.items() if name != "moved.parquet"}
    assert differences(lines(tmp_path / "coordinator"), wanted) == []
    assert why.count("the coordinator reads the files") == 4, why
    assert {"none": "there is no file", "others": "has changed"}[files] in why, why


OUTSIDE = """
import time

import tidemill as tm

app = tm.App("outside")
paid = app.table("paid", key="id", id=int, cents=tm.column(int, default=0))
orders = app.stream("orders", id=int, cents=int)
orders.read(tm.files("orders.csv"))


@app.external(out={"took": int})
def charge(id, order: int, cents: int):
    time.sleep(0.05)
    return {"took": cents}


@app.transaction(orders, opaque=True)
def order(tx, e):
    paid.insert(id=e.id)
    tx.external(charge, order=e.id, cents=e.cents)


@app.transaction(charge)
def charged(tx, e):
    paid[e.order].cents = e.took
    return {"order": e.order, "cents": paid[e.order].cents}


charged.write(tm.files("charged.csv"))
"""


def test_it_ends_when_work_outside_has_come_back(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(OUTSIDE)
    rows = [f"{id},{id * 7 % 100}" for id in range(60)]
    (tmp_path / "orders.csv").write_text("\n".join(["id,cents", *rows]) + "\n")
    with start(tmp_path) as parent:
        assert parent.process.wait(PATIENCE) == 0, parent.errors.read_text()
    found = (tmp_path / "charged.csv").read_text().splitlines()
    assert sorted(found[1:]) == sorted(rows)


@pytest.mark.servers
def test_a_log_in_kafka_makes_no_difference(tmp_path: Path, alone: dict[str, bytes]) -> None:
    make(tmp_path)
    flags = ["--log", f"kafka://{brokers()}", "--set", f"cluster_name=feeds-{secrets.token_hex(4)}"]
    flags += ["--snapshots", str(tmp_path / "snapshots"), "--http", "0"]
    with start(tmp_path, *flags, "--set", "cluster_epoch_rows_max=50") as parent:
        wait_for("rows", lambda: written(tmp_path) > 1000)
        kill_worker(parent)
        before = written(tmp_path)
        wait_for("rows", lambda: written(tmp_path) > before)
        kill_all(parent)
    wanted = alone["ticked.csv"]
    with start(tmp_path, *flags) as parent:
        wait_for("the end", lambda: written(tmp_path) == len(wanted))
        # Others may ask for more: it goes on.
        url = joined(parent)
        wait_for("the end", lambda: httpx.get(f"{url}/health").json()["input_ended"])
        assert parent.stop() == 0
    for name in ("ticked.csv", "refused.csv", "counted.csv", "days.csv"):
        assert (tmp_path / "out" / name).read_bytes() == alone[name], name
