"""A data directory that changes between one process and several, with all that it holds."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from .kill.cluster import Process, children, settings, wait_for
from .test_processes_settings import APP as LEDGER
from .test_processes_settings import DERIVED

#: An app with an index, a history, a map, a filter, event time and aborts.
SHOP = """
import tidemill as tm

app = tm.App("shop")
stock = app.table("stock", key="item", history=("1h", 5), item=int, n=tm.column(int, default=50))
orders = app.table("orders", key="nr", ordered=True, nr=int, item=int, n=int)
of_item = orders.index("item")
sums = app.table("sums", key="what", what=str, n=tm.column(int, default=0))
sales = app.stream("sales", time="at", at=tm.timestamp, nr=int, item=int, n=int)
sales.read(tm.files("sales.csv"))
returns = app.stream("returns", time="at", at=tm.timestamp, nr=int)
returns.read(tm.files("returns.csv"))
large = sales.filter(lambda e: e.n > 3, name="large")


@app.transaction(sales)
def sell(tx, e):
    row = stock[e.item]
    tx.require(row.n >= e.n, "sold out")
    row.n -= e.n
    orders.upsert(nr=e.nr, item=e.item, n=e.n)
    return dict(nr=e.nr, left=row.n)


@app.transaction(returns)
def take_back(tx, e):
    order = orders[e.nr]
    tx.require(order.exists(), "no such order")
    stock[order.item].n += order.n
    return dict(item=order.item)


@app.transaction(large)
def count(tx, e):
    sums["large"].n += e.n
    return dict(sum=sums["large"].n)


sell.write(tm.files("sold.csv"))
sell.aborted.write(tm.files("refused.csv"))
take_back.write(tm.files("taken.jsonl"))
count.write(tm.files("counted.csv.gz"))
"""

#: An app of procedures, with windows by time and by rows, batches, and a trigger.
MARKET = """
import tidemill as tm

app = tm.App("market")
quotes = app.table("quotes", key="item", item=int, n=tm.column(int, default=0))
sales = app.stream("sales", time="at", at=tm.timestamp, nr=int, item=int, n=int)
sales.read(tm.files("sales.csv"))
slides = app.stream("slides", end=int, rows=int, sum=int)
lots = app.stream("lots", rows=int)
minute = app.window(
    "minute", time=60, n=int, aggregates=lambda rows: {"sum": rows.n.sum()}
)
last = app.window("last", rows=7, slide=3, n=int, aggregates=lambda rows: {"sum": rows.n.sum()})
in_lots = sales.filter(lambda e: e.n > 0, name="in_lots").batches(9)


@app.procedure(sales, owns=[minute, last])
def follow(tx, sales):
    for sale in sales:
        quotes[sale.item].n += sale.n
        minute.insert(n=sale.n)
        last.insert(n=sale.n)


@app.procedure(in_lots)
def take(tx, in_lots):
    tx.emit(lots, rows=len(in_lots))


@app.trigger(minute)
def close(tx, slide):
    for group in minute.groups():
        tx.emit(slides, end=slide.end, rows=slide.rows, sum=group.sum)


@app.trigger(last)
def see(tx, slide):
    for group in last.groups():
        tx.emit(slides, end=0, rows=slide.rows, sum=group.sum)


slides.write(tm.files("slides.jsonl"))
lots.write(tm.files("lots.csv"))
"""

APPS = {"shop": SHOP, "market": MARKET}
COLUMNS = {"sales": ["at", "nr", "item", "n"], "returns": ["at", "nr"]}
SALES = 300


def grow(folder: Path, step: int) -> None:
    """Adds rows to the input, whose times go on."""
    for name, columns in COLUMNS.items():
        path = folder / f"{name}.csv"
        rows = [] if path.exists() else [columns]
        for n in range(step * SALES, (step + 1) * SALES):
            at = f"2026-01-01T{n // 360:02}:{n // 6 % 60:02}:{n % 6 * 10:02}"
            if name == "sales":
                rows.append([f"{at}Z", str(n), str(n * 7 % 23), str(n % 6)])
            elif n % 5 == 0:
                rows.append([f"{at}.5Z", str(n * 11 % (n + 1))])
        with path.open("a", newline="") as file:
            csv.writer(file).writerows(rows)


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--json", *flags]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120)


def content(path: Path) -> bytes:
    return (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()


def state(folder: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The outputs, and what one process finds in the directory."""
    done = run(folder)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    names = ("events", "committed", "refused", "dead", "late", "state_hash", "tables", "reasons")
    found = {name: summary[name] for name in names}
    found["tables"] = [(table["name"], table["rows"]) for table in found["tables"]]
    inputs = {"app.py", "moves.csv", "moves-1.csv", "moves-2.csv", "marks.csv"}
    inputs |= {f"{name}.csv" for name in COLUMNS}
    files = [path for path in folder.iterdir() if path.is_file()]
    outputs = {path.name: content(path) for path in files}
    return {name: outputs[name] for name in sorted(outputs.keys() - inputs)}, found


ONE: Sequence[str] = ()
TWO, THREE = ("--processes", "2"), ("--processes", "3")


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("ways", [(ONE, TWO, ONE), (TWO, ONE, THREE, TWO)], ids=["one", "two"])
def test_one_state_goes_through_all_ways_to_run(
    tmp_path: Path, app: str, ways: Sequence[Sequence[str]]
) -> None:
    found = []
    for name, steps in (("moves", ways), ("stays", [ONE] * len(ways))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "app.py").write_text(APPS[app])
        for step, flags in enumerate(steps):
            grow(folder, step)
            done = run(folder, *flags)
            assert done.returncode == 0, done.stderr
        found.append(state(folder))
    assert found[0][1] == found[1][1]
    assert found[0][0] == found[1][0]


#: An app that clients call, with a timer.
CALLS = """
import tidemill as tm

app = tm.App("calls")
counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
times = app.table("times", key="at", at=tm.timestamp, n=tm.column(int, default=0))
account = app.entity("account", key="id", id=int, cents=tm.column(int, default=0))


@app.procedure()
def add(tx, what: str, n: int) -> int:
    tx.require(n < 100, "too much")
    counts[what].n += n
    return counts[what].n


@account.function(creates=True)
async def pay(self, ctx, cents: int) -> list[int]:
    self.cents += cents
    return [self.id, self.cents]


@account.function(creates=True)
async def quiet(self, ctx, cents: int):
    self.cents += cents


# Only clients of several processes could send into it.
spare = app.stream("spare", what=str)


@app.transaction(spare)
def spared(tx, e):
    counts[e.what].n += 1


@app.every("100ms")
def tick(tx, firing):
    times[firing.at].n += 1
    counts["ticks"].n += 1
"""


def rows(data: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a stopped engine's table."""
    line = [sys.executable, "-m", "tidemill.cli", "query", table, "--data-dir", str(data), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def ask(url: str, name: str, key: str, **arguments: object) -> tuple[int, Any]:
    headers = {"Idempotency-Key": key}
    said = httpx.post(f"{url}/call/{name}", json=arguments, headers=headers, timeout=30)
    body = said.json()
    reply = body.get("reply", body.get("aborted", body.get("error", {}).get("what")))
    return said.status_code, reply


def more_ticks(url: str, least: int) -> int | None:
    """How often the timer has fired, if that is enough."""
    found = httpx.get(f"{url}/tables/counts/rows?key=ticks", timeout=30)
    count = int(found.json()["row"]["n"]) if found.status_code == 200 else 0
    return count if count >= least else None


def test_requests_are_executed_once_in_all_ways_to_run(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(CALLS)
    asked: dict[str, tuple[str, dict[str, object]]] = {}
    known: dict[str, tuple[int, Any]] = {}
    cents, ticks = 0, 0
    for step, flags in enumerate([ONE, TWO, ONE, TWO, THREE, ONE]):
        line = ["run", "app.py", "--http", "0", "--data-dir", "data", *flags]
        line += settings() if flags else []
        with Process(tmp_path / f"run-{step}", *line, within=["env", "-C", str(tmp_path)]) as app:
            url = app.find(r"http +(http://\S+)")
            for id, reply in known.items():
                name, arguments = asked[id]
                assert ask(url, name, id, **arguments) == reply, (step, id)
                status, why = ask(url, name, id, **arguments | {next(reversed(arguments)): 99})
                assert status == 422, (step, id)
                assert "another call" in why, (step, id)
            for name, arguments in {
                "add": {"what": "all", "n": step},
                "account.pay": {"id": step % 2, "cents": 5 + step},
                "account.quiet": {"id": 0, "cents": 1},
            }.items():
                id = f"{name} {step}"
                asked[id], known[id] = (name, arguments), ask(url, name, id, **arguments)
                assert known[id][0] == 200, known[id]
            cents += 6 + step
            assert ask(url, "add", "much", what="all", n=100)[0] == 409

            ticks = wait_for("firings", partial(more_ticks, url, ticks + 3))
            assert app.stop() == 0
    # The last way was one process.
    assert sum(row["cents"] for row in rows(tmp_path / "data", "account")) == cents
    all = {row["what"]: row["n"] for row in rows(tmp_path / "data", "counts")}
    assert all["all"] == sum(range(6))
    times = [row["n"] for row in rows(tmp_path / "data", "times")]
    assert (set(times), len(times)) == ({1}, all["ticks"])


#: Two streams in event time on one table. Events of one wait for the other.
TIMED = (
    LEDGER.replace('"moves", src', '"moves", time="at", at=int, src').replace(
        "moves.csv", "moves-*.csv"
    )
    + """
marks = app.stream("marks", time="at", at=int, id=int)
marks.read(tm.files("marks.csv"))


@app.transaction(marks)
def mark(tx, e):
    return dict(at=e.at, n=accounts[e.id].n)


mark.write(tm.files("marked.csv"))
"""
)
MOVES = 400_000


def fill(folder: Path, app: str) -> int:
    """Writes the code and the input of an app. Returns the number of its events."""
    (folder / "app.py").write_text(app)
    moves = [[n * 7 % 997, n * 13 % 1009, n % 50] for n in range(MOVES)]
    files: dict[str, list[list[int]]] = {"moves.csv": moves}
    columns = {"moves.csv": "src,dst,n"}
    if app is TIMED:
        files = {
            "moves-1.csv": [[10 * n, *row] for n, row in enumerate(moves) if n % 3],
            "moves-2.csv": [[10 * n, *row] for n, row in enumerate(moves) if not n % 3],
            "marks.csv": [[70 * n + 5, n % 1000] for n in range(MOVES // 7)],
        }
        columns = dict.fromkeys(files, "at,src,dst,n") | {"marks.csv": "at,id"}
    for name, rows in files.items():
        with (folder / name).open("w", newline="") as file:
            file.write(f"{columns[name]}\n")
            csv.writer(file).writerows(rows)
    return sum(len(rows) for rows in files.values())


def written(output: Path) -> int:
    return output.stat().st_size if output.exists() else 0


def kill_in_the_middle(folder: Path, step: int, flags: Sequence[str]) -> bool:
    """Kills a run after it has written some more rows. Returns whether it still ran."""
    output = folder / "moved.csv"
    line = ["run", "app.py", *flags, *(settings() if flags else [])]
    with Process(folder / f"run-{step}", *line, within=["env", "-C", str(folder)]) as app:
        # The last run is finished then.
        app.find(r"^(data|cluster) ")
        had = written(output)
        process = app.process
        wait_for("rows", lambda: written(output) > had + 50_000 or process.poll() is not None)
        runs = app.process.poll() is None
        assert runs or app.process.poll() == 0, app.errors.read_text()
        if runs:
            for worker in children(app.pid):
                os.kill(worker, signal.SIGKILL)
            app.send(signal.SIGKILL)
    return runs


SLOW_APPS = {"declared": LEDGER, "derived": DERIVED, "timed": TIMED}


@pytest.mark.parametrize("app", SLOW_APPS.values(), ids=SLOW_APPS)
def test_killed_runs_are_finished_before_the_state_moves(tmp_path: Path, app: str) -> None:
    found = []
    for name in ("moves", "stays"):
        folder = tmp_path / name
        folder.mkdir()
        events = fill(folder, app)
        if name == "moves":
            ways = [TWO, ONE, THREE, ONE]
            killed = [kill_in_the_middle(folder, *step) for step in enumerate(ways)]
            assert any(killed[:2])
            done = run(folder, *TWO)
        else:
            done = run(folder)
        assert done.returncode == 0, done.stderr
        found.append(state(folder))
    assert found[0] == found[1]
    assert found[0][1]["events"] == events


PUSHED = """
import tidemill as tm

app = tm.App("pushed")
sums = app.table("sums", key="id", id=int, n=tm.column(int, default=0))
moves = app.stream("moves", time="at", at=int, id=int, n=int)
moves.push(out_of_orderness=1_000_000)
large = moves.filter(lambda e: e.n > 5, name="large")


@app.transaction(moves)
def move(tx, e):
    sums[e.id].n = sums[e.id].n * 7 % 1_000_003 + e.n
    return dict(at=e.at, id=e.id, n=sums[e.id].n)


@app.transaction(large)
def count(tx, e):
    sums[-1].n += 1


@app.procedure()
def look(tx) -> int:
    return sums[-1].n


move.write(tm.files("moved.csv"))
"""


def push(folder: Path, rows: list[list[int]], end: bool = False) -> dict[str, Any]:
    """Pushes rows into the app in one process."""
    names: dict[str, Any] = {}
    exec(compile(PUSHED.replace("moved.csv", f"{folder}/moved.csv"), "app.py", "exec"), names)
    mill = names["app"].start(data_dir=folder / "data")
    mill.send("moves", [dict(zip(("at", "id", "n"), row, strict=True)) for row in rows])
    summary: dict[str, Any] = (mill.finish if end else mill.stop)()
    return summary


def test_pushed_events_that_wait_are_received_again(tmp_path: Path) -> None:
    rows = [[40_000 * n + (n * 7 % 11) * 60_000, n % 5, n % 9] for n in range(200)]
    found = []
    for name in ("moves", "stays"):
        folder = tmp_path / name
        folder.mkdir()
        code = PUSHED.replace("moved.csv", f"{folder}/moved.csv")
        (folder / "app.py").write_text(code)
        push(folder, rows[:90])
        if name == "moves":
            for step, flags in enumerate((TWO, THREE)):
                line = ["run", str(folder / "app.py"), "--http", "0", *flags, *settings()]
                line += ["--data-dir", str(folder / "data")]
                with Process(folder / f"run-{step}", *line) as app:
                    url = app.find(r"http +(http://\S+)")
                    wait_for("waiting events", partial(waiting, url))
                    assert app.stop() == 0
                push(folder, rows[90 + 30 * step : 120 + 30 * step])
        else:
            push(folder, rows[90:120])
            push(folder, rows[120:150])
        summary = push(folder, rows[150:], end=True)
        moved = (folder / "moved.csv").read_text()
        found.append((moved, [summary[of] for of in ("events", "late", "state_hash")]))
    assert found[0] == found[1]
    assert found[0][1][0] == len(rows)


def waiting(url: str) -> bool:
    health = httpx.get(f"{url}/health", timeout=30).json()
    return bool(health["generation"] and health["buffered"])


def test_random_numbers_differ_after_moves(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(
        """
import tidemill as tm

app = tm.App("ids")
ids = app.table("ids", key="id", id=str, nr=int)
counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
rows = app.stream("rows", nr=int)
rows.read(tm.files("rows.csv"))


@app.procedure()
def new(tx, nr: int) -> str:
    id = str(tx.uuid())
    ids.insert(id=id, nr=nr)
    return id


@app.transaction(rows, opaque=True)
def take(tx, e):
    ids.insert(id=str(tx.uuid()), nr=e.nr)
    counts["ticks"].n += 1
"""
    )
    made: list[str] = []
    for step, flags in enumerate([ONE, TWO, ONE, THREE, ONE]):
        with (tmp_path / "rows.csv").open("a") as file:
            file.write("nr\n" * (step == 0) + f"{step}\n" * 20)
        line = ["run", "app.py", "--http", "0", "--data-dir", "data", *flags]
        line += settings() if flags else []
        with Process(tmp_path / f"run-{step}", *line, within=["env", "-C", str(tmp_path)]) as app:
            url = app.find(r"http +(http://\S+)")
            for n in range(5):
                status, id = ask(url, "new", f"{step} {n}", nr=n)
                assert status == 200, id
                made.append(id)
            wait_for("rows", partial(more_ticks, url, 20 * (step + 1)))
            assert app.stop() == 0
    found = {row["id"] for row in rows(tmp_path / "data", "ids")}
    assert len(found) == 5 * 20 + len(made)
    assert found > set(made)


def test_a_killed_run_is_finished_with_its_own_settings(tmp_path: Path) -> None:
    fill(tmp_path, LEDGER)
    name = ["--set", "cluster_name=other", "--set", "cluster_sources=3"]
    assert kill_in_the_middle(tmp_path, 0, [*TWO, *name])
    found = state(tmp_path)[1]
    assert found["events"] == MOVES


def test_another_number_of_sources_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SHOP)
    grow(tmp_path, 0)
    assert run(tmp_path, *TWO).returncode == 0
    for sources in (3, 12):
        done = run(tmp_path, *TWO, "--set", f"cluster_sources={sources}")
        assert done.returncode == 1
        assert f"cluster_sources is {sources}" in done.stderr


def test_a_directory_that_has_lost_the_places_of_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SHOP)
    grow(tmp_path, 0)
    assert run(tmp_path, *TWO).returncode == 0
    places = tmp_path / "shop.tidemill" / "cluster" / "feeds"
    kept = places.read_bytes()
    places.unlink()
    grow(tmp_path, 1)
    for flags in (TWO, ONE):
        done = run(tmp_path, *flags)
        assert done.returncode == 1
        assert "feeds is missing" in done.stderr
    places.write_bytes(kept)
    assert run(tmp_path).returncode == 0
