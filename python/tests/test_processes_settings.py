"""Settings of one process that mean the same on several: threads, strategies, a memory limit."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import tidemill as tm

app = tm.App("ledger")
accounts = app.table("accounts", key="id", id=int, n=tm.column(int, default=0))
moves = app.stream("moves", src=int, dst=int, n=int)
moves.read(tm.files("moves.csv"))


@app.transaction(moves)
def move(tx, e):
    tx.require(e.src != e.dst, "nowhere to go")
    accounts[e.src].n -= e.n
    accounts[e.dst].n += e.n
    return dict(src=e.src, left=accounts[e.src].n)


move.write(tm.files("moved.csv"))
move.aborted.write(tm.files("refused.csv"))
"""

#: The same, with more that follows from a move. One worker owns its rows.
DERIVED = (
    APP
    + """
sums = app.table("sums", key="src", src=int, n=tm.column(int, default=0))


@app.transaction(move)
def note(tx, e):
    sums[e.src].n += e.left
    return dict(src=e.src, sum=sums[e.src].n)


note.write(tm.files("noted.csv"))
"""
)
ROWS = 30_000


def run(folder: Path, code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(code)
    with (folder / "moves.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["src", "dst", "n"])
        rows.writerows([n * 7 % 997, n * 13 % 1009, n % 50] for n in range(ROWS))
    line = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--json", *flags]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120)


def files(folder: Path) -> dict[str, bytes]:
    names = ("moved.csv", "refused.csv", "noted.csv")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


@pytest.mark.parametrize("code", [APP, DERIVED], ids=["shared", "one owner"])
def test_threads_and_strategies_change_nothing(tmp_path: Path, code: str) -> None:
    assert run(tmp_path / "alone", code).returncode == 0
    wanted = files(tmp_path / "alone")
    for nth, (threads, strategy) in enumerate([("3", "blocks"), ("2", "lists"), ("1", "serial")]):
        folder = tmp_path / str(nth)
        more = ["--set", f"workers={threads}", "--set", f"strategy={strategy}"]
        done = run(folder, code, "--processes", "2", *more)
        assert done.returncode == 0, done.stderr
        assert files(folder) == wanted, (threads, strategy)


def test_a_limit_of_memory_ends_the_run_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    assert run(tmp_path / "alone", APP).returncode == 0
    folder = tmp_path / "limited"
    few = ["--set", "memory_bytes_max=5000", "--set", "cluster_epoch_rows_max=500"]
    done = run(folder, APP, "--processes", "2", *few)
    assert done.returncode == 1
    assert "memory_bytes_max is 5000, but tables and events" in done.stderr
    assert "raise memory_bytes_max" in done.stderr
    done = run(folder, APP, "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert files(folder) == files(tmp_path / "alone")
