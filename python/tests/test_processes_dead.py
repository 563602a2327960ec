"""Events that a map or filter can't compute are dead letters, in one process and on several."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .kill.cluster import Process, health, kill_worker, settings, wait_for, workers_of

APP = """
import tidemill as tm

app = tm.App("views")
counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
events = app.stream("events", TIME, id=int, by=int, at=int)
some = events.filter(lambda e: e.id // e.by > 1, name="some")
more = some.map(id=tm.col("id"), q=100 // (tm.col("id") - 4), name="more")
BATCHES

@app.transaction(events)
def all(tx, e):
    counts["all"].n += 1

@app.transaction(some)
def few(tx, e):
    counts["few"].n += 1

@app.TAKES
def fewer(tx, e):
    counts["fewer"].n += 1

events.read(tm.files("events.csv")BOUND)
some.dead.write(tm.files("some.csv"))
more.dead.write(tm.files("more.csv"))
"""

#: The time of the stream, its batches, and the handler that takes them.
WAYS = {
    "arrival": ("", "", "transaction(more)"),
    "side": ("time='at'", "", "transaction(more)"),
    "admitted": ("time='at', late='admit'", "", "transaction(more)"),
    "batches": ("time='at'", "more = more.batches(time=10)", "procedure(more)"),
}


def write(folder: Path, way: str, rows: int = 400) -> None:
    time, batches, takes = WAYS[way]
    app = APP.replace("TIME, ", f"{time}, " if time else "").replace("BATCHES", batches)
    app = app.replace("BOUND", ", out_of_orderness=3" if time else "")
    (folder / "app.py").write_text(app.replace("TAKES", takes))
    dice = random.Random(rows)
    lines = ["id,by,at"]
    for at in range(rows):
        back = dice.choice([0, 0, 1, 2, 30])
        lines.append(f"{dice.randrange(9)},{dice.randrange(4)},{max(0, at - back)}")
    (folder / "events.csv").write_text("\n".join(lines) + "\n")


def run(folder: Path, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--json", *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def query(folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tidemill.cli", "query", "counts", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def all_wait(url: str) -> bool:
    return bool(health(url)["buffered"] == 60)


def letters(folder: Path) -> dict[str, list[tuple[str, ...]]]:
    return {
        name: [tuple(row) for row in csv.reader((folder / name).open())][1:]
        for name in ("some.csv", "more.csv")
    }


@pytest.mark.parametrize("way", WAYS)
def test_the_same_events_are_dead_letters_in_one_process_and_on_several(
    tmp_path: Path, way: str
) -> None:
    found = []
    for number, flags in enumerate(
        (
            [],
            ["--processes", "1", "--set", "cluster_epoch_rows_max=7"],
            ["--processes", "3", "--set", "cluster_epoch_rows_max=50"],
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, way)
        summary = run(folder, *flags)
        lost = {name: sorted(rows) for name, rows in letters(folder).items()}
        found.append((query(folder), lost, summary["dead"]))
        if way == "arrival":
            assert letters(folder) == {
                name: sorted(rows, key=lambda row: int(row[1])) for name, rows in lost.items()
            }
    assert found[1:] == 2 * found[:1]
    _, lost, dead = found[0]
    assert dead == sum(map(len, lost.values())) > 50
    origins = Counter((row[2], row[4]) for rows in lost.values() for row in rows)
    assert origins == {("stage", "division by zero"): dead}


@pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")
def test_a_killed_worker_loses_and_repeats_no_letter(tmp_path: Path) -> None:
    write(tmp_path, "arrival", rows=30_000)
    wanted = tmp_path / "one"
    wanted.mkdir()
    write(wanted, "arrival", rows=30_000)
    run(wanted)
    flags = ["--processes", "2", "--set", "cluster_epoch_rows_max=50", *settings()]
    with Process(tmp_path, "run", "app.py", "--http", "0", *flags) as process:
        url = process.find(r"http +(http://\S+)")
        for _ in range(3):
            wait_for("2 workers", lambda: len(workers_of(url)) == 2)
            kill_worker(process)
        wait_for("all rows", lambda: health(url)["input_ended"])
        assert process.stop() == 0
    assert letters(tmp_path) == letters(wanted)


def test_letters_of_events_that_wait_come_once(tmp_path: Path) -> None:
    """They come with the cut that has read the event, which is executed later."""
    write(tmp_path, "side", rows=60)
    app = (tmp_path / "app.py").read_text()
    app = app.replace('tm.files("events.csv")', 'tm.files("events.csv", follow=True)')
    (tmp_path / "app.py").write_text(app.replace("out_of_orderness=3", "out_of_orderness=1000"))
    wanted = tmp_path / "one"
    wanted.mkdir()
    write(wanted, "side", rows=60)
    run(wanted)
    several = ["--processes", "2", *settings()]
    for flags in (several, several, []):
        with Process(tmp_path, "run", "app.py", "--http", "0", *flags) as process:
            url = process.find(r"http +(http://\S+)")
            if flags:
                wait_for("all rows", partial(all_wait, url))
            wait_for("all letters", lambda: letters(tmp_path) == letters(wanted))
            assert process.stop() == 0
        assert letters(tmp_path) == letters(wanted)
    # Workers would read these rows again.
    with Process(tmp_path, "run", "app.py", *several) as process:
        assert process.process.wait(60) == 1
        assert "events of stream events that can't come to stream" in process.errors.read_text()
    with (tmp_path / "events.csv").open("a") as file:
        file.write("1,1,5000\n")
    executed = {"what": "all", "n": 60}
    with Process(tmp_path, "run", "app.py", "--http", "0") as process:
        process.find(r"http +(http://\S+)")
        wait_for("the last row", lambda: executed in query(tmp_path))
        assert process.stop() == 0
    assert letters(tmp_path) == letters(wanted)
    with Process(tmp_path, "run", "app.py", "--http", "0", *several) as process:
        url = process.find(r"http +(http://\S+)")
        wait_for("2 workers", lambda: len(workers_of(url)) == 2)
        assert process.stop() == 0
    assert letters(tmp_path) == letters(wanted)


def test_letters_of_later_events_do_not_prevent_a_verdict(tmp_path: Path) -> None:
    """An event that ends workers is left out, whatever comes after it in its epoch."""
    write(tmp_path, "arrival", rows=40)
    app = (tmp_path / "app.py").read_text().replace("import tidemill", "import os\nimport tidemill")
    app = app.replace(
        "@app.transaction(events)\ndef all(tx, e):",
        "@app.transaction(events, opaque=True)\ndef all(tx, e):\n    if e.id == 66: os._exit(3)",
    )
    (tmp_path / "app.py").write_text(app)
    lines = (tmp_path / "events.csv").read_text().splitlines()
    lines[20:20] = ["66,1,0"]
    (tmp_path / "events.csv").write_text("\n".join(lines) + "\n")
    found = run(tmp_path, "--processes", "2", "--set", "poison_after=2", *settings())
    assert {"what": "all", "n": 40} in query(tmp_path)
    lost = letters(tmp_path)
    assert len(lost["some.csv"]) > 5
    assert found["dead"] == 1 + sum(map(len, lost.values()))
