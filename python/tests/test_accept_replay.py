"""A start with other results than before a crash: its report, and how to continue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

APP = """
import os, sys
from pathlib import Path
import tidemill as tm

app = tm.App("sums")
sums = app.table("sums", key="k", k=int, n=tm.column(int, default=0))
rows = app.stream("rows", k=int)


@app.procedure(rows)
def add(tx, rows):
    for row in rows:
        sums[row.k].n += STEP


what = sys.argv[1:]
settings = dict(data_dir="data", snapshot_us=10**12)
if "accept" in what:
    settings["accept_replay"] = True
try:
    mill = app.start(**settings)
    if "send" in what:
        mill.send(rows, [{"k": 1}, {"k": 1}], wait=True)
    if "die" in what:
        os._exit(7)
    mill.drain()
    told = mill.status()["troubles"]
    print(mill.table(sums)[1]["n"], told.get("recovery", ""))
    mill.stop()
except tm.Error as error:
    print(type(error).__name__, error)
    os._exit(1)
"""


def run(where: Path, step: str, *what: str) -> str:
    """Runs the app; returns its output."""
    (where / "app.py").write_text(APP.replace("STEP", step))
    command = [sys.executable, "app.py", *what]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=120)
    assert not done.stderr, done.stderr
    return done.stdout


def test_other_code_is_named_and_the_old_one_goes_on(tmp_path: Path) -> None:
    assert run(tmp_path, "1", "send").startswith("2 ")
    run(tmp_path, "1", "send", "die")
    said = run(tmp_path, "2")
    assert "the code of add has changed since the newest snapshot" in said
    assert "--accept-replay" in said
    assert "--fresh" not in said
    # The code from before, stopped in good order, leaves a snapshot behind which other code begins.
    assert run(tmp_path, "1").startswith("4 ")
    assert run(tmp_path, "2", "send").startswith("8 ")


def test_what_comes_of_it_now_is_accepted_once(tmp_path: Path) -> None:
    run(tmp_path, "1", "send", "die")
    said = run(tmp_path, "3")
    assert "either the code of a function has changed" in said
    said = run(tmp_path, "3", "accept")
    assert said.startswith("6 ")
    assert "accept_replay=True accepts that" in said
    assert run(tmp_path, "3", "send", "die") == ""
    assert run(tmp_path, "3").startswith("12 ")
