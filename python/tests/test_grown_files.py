"""Files that get more rows when everything had ended: the next run executes these."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .kill.cluster import PATIENCE, settings

APP = """
import tidemill as tm

UNIX = {"at": "unix_us"}
app = tm.App("grown")
seen = app.table("seen", key="k", k=str, n=tm.column(int, default=0))
steps = app.stream("steps", time="at", at=tm.timestamp, id=int)
steps.read(tm.files("steps.csv", formats=UNIX))
turns = app.stream("turns", time="at", at=tm.timestamp, id=int)
turns.read(tm.files("turns.jsonl", formats=UNIX), out_of_orderness="5us")
steps.late.write(tm.files("out/late.csv"))
turns.late.write(tm.files("out/turns.csv"))


@app.transaction(steps)
def step(tx, e):
    seen["step"].n = seen["step"].n * 10 + e.id
    return {"id": e.id}


@app.transaction(turns)
def turn(tx, e):
    seen["turn"].n = seen["turn"].n * 10 + e.id
    return {"id": e.id}


many = steps.filter(True, name="many").batches(3)
each = steps.filter(True, name="each").batches("10us")
batch = dict(ids=str)


@app.procedure(many, out=batch)
def three(tx, many):
    return {"ids": "-".join(str(e.id) for e in many)}


@app.procedure(each, out=batch)
def interval(tx, each):
    return {"ids": "-".join(str(e.id) for e in each)}


step.write(tm.files("out/step.csv"))
turn.write(tm.files("out/turn.csv"))
three.write(tm.files("out/three.csv"))
interval.write(tm.files("out/interval.csv"))
"""


def grow(folder: Path, steps: list[tuple[int, int]], turns: list[tuple[int, int]]) -> None:
    """Adds rows of a time and a number."""
    path = folder / "steps.csv"
    with path.open("a") as file:
        if file.tell() == 0:
            file.write("at,id\n")
        file.writelines(f"{at},{id}\n" for at, id in steps)
    with (folder / "turns.jsonl").open("a") as file:
        file.writelines(json.dumps({"at": at, "id": id}) + "\n" for at, id in turns)


def run(folder: Path, flags: list[str]) -> dict[str, list[str]]:
    """Runs the app until it ends; the last column of all that it has written so far."""
    line = [sys.executable, "-m", "tidemill.cli", "run", "app.py", *flags]
    done = subprocess.run(line, cwd=folder, timeout=PATIENCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {}
    for path in (folder / "out").iterdir():
        if path.is_file():
            lines = path.read_text().splitlines()[1:]
            found[path.stem] = [line.rsplit(",", 1)[-1].strip('"') for line in lines]
    return found


@pytest.mark.parametrize("processes", [1, 2])
def test_the_next_run_executes_what_has_come(processes: int, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "out").mkdir()
    flags = [] if processes == 1 else ["--processes", "2", *settings()]
    grow(tmp_path, [(1, 1), (2, 2), (13, 3), (14, 4)], [(1, 1), (12, 2)])
    found = run(tmp_path, flags)
    # The end executes buffered events that are within the out-of-orderness, and incomplete batches.
    assert found["step"] == ["1", "2", "3", "4"]
    assert found["turn"] == ["1", "2"]
    assert found["three"] == ["1-2-3", "4"]
    assert found["interval"] == ["1-2", "3-4"]
    # A time that is no earlier than the last, and one of an interval that has been executed.
    grow(tmp_path, [(21, 5), (25, 6)], [(22, 3)])
    found = run(tmp_path, flags)
    assert found["step"] == ["1", "2", "3", "4", "5", "6"]
    assert found["turn"] == ["1", "2", "3"]
    assert found["three"] == ["1-2-3", "4", "5-6"]
    assert found["interval"] == ["1-2", "3-4", "5-6"]
    assert found.get("late", []) == found.get("turns", []) == []
    # One stream only: a row that is late by those before it, one of an interval that was executed,
    # and two that are not late.
    grow(tmp_path, [(24, 7), (29, 8), (30, 9), (41, 1)], [])
    found = run(tmp_path, flags)
    assert found["step"] == ["1", "2", "3", "4", "5", "6", "9", "1"]
    assert found["late"] == ["7", "8"]
    assert found["three"] == ["1-2-3", "4", "5-6", "9-1"]
    assert found["interval"] == ["1-2", "3-4", "5-6", "9", "1"]
    # Nothing has come.
    assert run(tmp_path, flags) == found


@pytest.mark.parametrize("durable", ["log", "log+snapshots"])
def test_a_source_that_has_grown_holds_the_others_back(durable: str, tmp_path: Path) -> None:
    """The source ends again after the new rows, and a recovery gives the same results."""
    (tmp_path / "left.csv").write_text("at,id\n1,1\n")
    (tmp_path / "right.csv").write_text("at,id\n2,2\n")
    app = tm.App("two")
    log = app.table("log", key="k", k=int, ids=tm.column(str, default=""))
    for name in ("left", "right"):
        stream = app.stream(name, time="at", at=tm.timestamp, id=int)
        stream.read(tm.files(tmp_path / f"{name}.csv", formats={"at": "unix_us"}))

        def note(tx: Any, e: Any) -> None:
            log[0].ids = log[0].ids + tm.cast(e.id, str)

        app.transaction(stream, name=f"note {name}")(note)

    def come() -> str:
        with app.start(data_dir=tmp_path / "data", durable=durable, epoch_rows_max=20) as mill:
            assert mill.wait(PATIENCE)
            assert mill.status()["late"] == 0
            ids: str = mill.table("log")[0]["ids"]
            return ids

    assert [come(), come()] == ["12", "12"]
    rows = "".join(f"{10 * at + 1},{at % 9}\n" for at in range(1, 400))
    with (tmp_path / "left.csv").open("a") as file:
        file.write(rows)
    with (tmp_path / "right.csv").open("a") as file:
        file.write("3005,-\n3006,0\n")
    ids = "".join(str(at % 9) for at in range(1, 400))
    wanted = "12" + ids[:300] + "0" + ids[300:]
    assert [come(), come()] == [wanted, wanted]


def counting(folder: Path) -> tuple[tm.App, tm.Stream, tm.Table]:
    """An app that counts rows of two files; a pushed stream keeps it from ending by itself."""
    app = tm.App("grown")
    seen = app.table("seen", key="k", k=str, n=tm.column(int, default=0), history=8)
    steps = app.stream("steps", time="at", at=int, id=int)
    steps.read(tm.files(folder / "steps.csv"))
    turns = app.stream("turns", time="at", at=int, id=int)
    turns.read(tm.files(folder / "turns.csv"))
    pushed = app.stream("pushed", id=int).push()

    @app.transaction(steps)
    def step(tx, e):
        seen["steps"].n += 1
        return {"id": e.id}

    @app.transaction(step)
    def follow(tx, e):
        tx.require(seen["steps"].over(tm.last(4)).count() > 0, "it is there")

    @app.transaction(turns)
    def turn(tx, e):
        seen["turns"].n += 1

    @app.procedure
    def ask(tx, k: str):
        return seen[k].n

    return app, pushed, seen


def test_a_drain_waits_for_files_that_have_grown_since_they_ended(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("at,id\n")
    (tmp_path / "turns.csv").write_text("at,id\n1,1\n")
    for rows in range(1, 16):
        with (tmp_path / "steps.csv").open("a") as file:
            file.write(f"{rows},{rows}\n")
        app, pushed, seen = counting(tmp_path)
        with app.start(data_dir=tmp_path / "data") as mill:
            mill.drain()
            found = {row["k"]: row["n"] for row in mill.table(seen).rows()}
            assert found == {"steps": rows, "turns": 1}
            mill.send(pushed, {"id": [rows]}, wait=True)
