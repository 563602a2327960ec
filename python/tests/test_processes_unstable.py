"""Functions that are not deterministic are found on several processes, as in one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

APP = """
import itertools
import tidemill as tm

app = tm.App("odd")
seen = app.table("seen", ordered=True, key="id", id=int, n=tm.column(int, default=0))
users = app.entity("user", key="id", id=int, n=tm.column(int, default=0))
events = app.stream("events", id=int)
numbers = itertools.count()

@app.transaction(events, opaque=True)
def steady(tx, e):
    seen[e.id].n += int(tx.random() * 10)
    seen[e.id + 1].n += len(list(seen.scan(e.id, e.id + 1)))

@app.transaction(events, opaque=True)
def odd(tx, e):
    seen[-e.id].n = next(numbers)

@app.transaction(events, opaque=True)
def reads(tx, e):
    if next(numbers) % 2:
        seen[10_000 + e.id].n += seen[20_000].n
    tx.require(e.id % 7 != 3, "three")

events.read(tm.files("events.csv"))
"""

#: Lines that have one worker own all rows.
ONE_OWNER = """
some = app.stream("some", id=int)

@app.transaction(events, opaque=True)
def passes(tx, e):
    tx.emit(some, id=e.id)

@app.transaction(some, opaque=True)
def after(tx, e):
    seen[30_000 + e.id].n = next(numbers)
"""


def unstable(folder: Path, *flags: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--json", "--fresh", *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {one["handler"]: one["times"] for one in found["unstable"]}


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("one_owner", [False, True])
def test_what_differs_is_named(tmp_path: Path, processes: int, one_owner: bool) -> None:
    (tmp_path / "app.py").write_text(APP + (ONE_OWNER if one_owner else ""))
    (tmp_path / "events.csv").write_text("id\n" + "\n".join(map(str, range(100))) + "\n")
    several = ["--processes", str(processes), "--data-dir", "several"]
    found = unstable(tmp_path, *several, "--set", "rerun_every=1")
    names = {"odd", "reads", *(["after"] if one_owner else [])}
    assert found.keys() == names
    assert found["odd"] >= 100
    assert unstable(tmp_path, *several, "--set", "rerun_every=0") == {}
    of_one = unstable(tmp_path, "--data-dir", "one", "--set", "rerun_every=1")
    assert of_one.keys() == names
