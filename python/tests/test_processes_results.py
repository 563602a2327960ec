"""The results of transactions on several processes: counts and reasons, in summary and status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from .kill.cluster import Process, health, settings, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

APP = """
import tidemill as tm

app = tm.App("results")
t = app.table("t", key="id", id=str, n=tm.column(int, default=0))
events = app.stream("events", id=int, who=str)
events.read(tm.files("events.csv"))
KNOWN = {"a": 1, "z": 0}


@app.transaction(events, opaque=True)
def add(tx, e):
    if e.who == "z":
        raise tm.Abort("no z")
    t[e.who].n += KNOWN[e.who]


@app.transaction(events, opaque=True)
def divide(tx, e):
    t[e.who].n += 10 // (e.id - 3)


@app.procedure
def pay(tx, id: int):
    tx.require(id != 1, "not one")
    t["a"].n += [5][id]
"""
ROWS = "id,who\n1,a\n2,a\n3,a\n4,c\nx,a\n5,z\ny,a\n"
COUNTS = {"events": 7, "committed": 7, "refused": 1, "faults": 2, "dead": 2}


def cli(folder: Path, *args: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "tidemill.cli", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_counts_and_reasons_are_in_the_summary_and_go_on_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.replace("events.csv", str(tmp_path / "events.csv")))
    (tmp_path / "events.csv").write_text(ROWS)
    flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings("on_fault=abort")]
    code, out, err = cli(tmp_path, "run", "app.py", *flags, "--json")
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert {name: summary[name] for name in COUNTS} == COUNTS
    reasons = {(r["handler"], r["reason"], r.get("at"), r["count"]) for r in summary["reasons"]}
    assert reasons == {
        ("add", "no z", None, 1),
        ("add", "fault: KeyError: 'c'", "app.py:15", 1),
        (
            "divide",
            "fault: ZeroDivisionError: integer division or modulo by zero",
            "app.py:20",
            1,
        ),
    }
    assert "app.py:15: function add failed on row 3 of source events/" in err
    assert "events.csv (counted from 0): KeyError: 'c'" in err
    assert "(2 faults so far)" in err
    with Process(
        tmp_path / "parent", "run", str(tmp_path / "app.py"), "--http", "0", *flags
    ) as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("2 workers", lambda: len(workers_of(url)) == 2)
        said = health(url)
        assert {name: said[name] for name in COUNTS} == COUNTS
        for id, status in ((0, 200), (1, 409), (7, 500)):
            assert httpx.post(f"{url}/call/pay", json={"id": id}, timeout=30).status_code == status
        code, out, err = cli(tmp_path, "status", "--cluster", url)
        assert code == 0, err
        lines = [line.split() for line in out.splitlines()]
        for name, count in COUNTS.items():
            more = {"events": 3, "committed": 1, "refused": 1, "faults": 1, "dead": 0}[name]
            assert [name, str(count + more)] in lines
        assert "handler=pay  reason=fault: IndexError: list index out of range" in out
        assert "handler=pay  reason=not one" in out
        assert parent.stop() == 0


def test_reasons_are_for_clients_with_a_token(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.replace("events.csv", str(tmp_path / "events.csv")))
    (tmp_path / "events.csv").write_text(ROWS)
    code, token, err = cli(tmp_path, "token", "tokens.toml", "ann", "--json")
    assert code == 0, err
    flags = ["--processes", "1", "--data-dir", str(tmp_path / "data"), *settings("on_fault=abort")]
    flags += ["--set", f"http_tokens={tmp_path / 'tokens.toml'}"]
    with Process(
        tmp_path / "parent", "run", str(tmp_path / "app.py"), "--http", "0", *flags
    ) as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("all rows", lambda: health(url)["events"] == COUNTS["events"])
        for headers, count in (
            ({}, None),
            ({"Authorization": f"Bearer {json.loads(token)['token']}"}, 3),
        ):
            said = httpx.get(f"{url}/health", headers=headers, timeout=30).json()
            assert said["faults"] == COUNTS["faults"]
            assert (None if "reasons" not in said else len(said["reasons"])) == count
            assert ("fault" in said) == (count is not None)


def test_an_app_that_nobody_can_call_is_refused_as_in_one_process(tmp_path: Path) -> None:
    app = APP.split("events = ", maxsplit=1)[0]
    app += """
one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))


@one.function(creates=True)
async def ask(self, ctx):
    self.n += 1
"""
    (tmp_path / "app.py").write_text(app)
    flags = ["--data-dir", str(tmp_path / "data")]
    (tmp_path / "secret").write_text("0123456789abcdef")
    for command in (
        ["run", "app.py", *flags],
        ["run", "app.py", "--processes", "2", *flags],
        ["coordinator", "app.py", "--secret-file", "secret", *flags],
    ):
        code, _, err = cli(tmp_path, *command)
        assert (code, "app results reads nothing" in err, "--http PORT" in err) == (1, True, True)
    assert not (tmp_path / "data").exists()
