"""The commands about an app that does not run: its outputs, reasons, tables and backups."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill import _native

APP = """
import tidemill as tm

app = tm.App("bank")
accounts = app.table("accounts", key="id", id=int, note=str)
payments = app.stream("payments", id=int, note=str)
payments.read(tm.files("payments.csv"))


@app.transaction(payments)
def pay(tx, e):
    tx.require(e.id < 3, "unknown account")
    accounts.upsert(id=e.id, note=e.note)
    return {"id": e.id}
"""

LONG = "x" * 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bank.py").write_text(APP)
    rows = [f"1,{LONG}", "2,b", "3,c", "4,d", "y,z"]
    (tmp_path / "payments.csv").write_text("\n".join(["id,note", *rows]) + "\n")
    return tmp_path


def tidemill(folder: Path, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "tidemill.cli", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_stopped_app_shows_outputs_and_reasons(folder: Path) -> None:
    summary = tidemill(folder, "run", "bank.py")
    [unstable] = [line for line in summary.splitlines() if line.startswith("unstable")]
    assert unstable.split() == ["unstable", "none"]
    assert tidemill(folder, "tail", "pay").split() == ["0", "id=1", "1", "id=2"]
    assert tidemill(folder, "tail", "pay", "--from", "1").split() == ["1", "id=2"]
    rows = [
        json.loads(line) for line in tidemill(folder, "tail", "pay.aborted", "--json").splitlines()
    ]
    assert [row["value"]["reason"] for row in rows[:-1]] == ["unknown account"] * 2
    assert rows[-1]["next"] == 2
    status = tidemill(folder, "status")
    [reason] = [line for line in status.splitlines() if "unknown account" in line]
    assert {"handler=pay", "reason=unknown account", "count=2"} == set(reason.strip().split("  "))
    assert "payments.dead: 1 row\n" in tidemill(folder, "dlq", "ls")


def test_what_is_not_retained_is_refused(folder: Path) -> None:
    tidemill(folder, "run", "bank.py")
    for stream, start, what in (
        ("pay", 7, "row 7 of pay does not exist yet"),
        ("pays", 0, "there is no stream pays"),
    ):
        request = json.dumps({"do": "tail", "stream": stream, "from": start})
        *_, last = map(json.loads, _native.ask(str(folder / "bank.tidemill"), request))
        assert what in last["error"]["what"]


def test_a_running_app_shows_reasons(folder: Path, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(APP.replace('payments.read(tm.files("payments.csv"))', ""), scope)
    app: tm.App = scope["app"]
    with app.start(data_dir=tmp_path / "data") as mill:
        mill.send("payments", [{"id": 9, "note": "n"}], wait=True)
        [line] = map(json.loads, _native.ask(str(tmp_path / "data"), '{"do": "status"}'))
    assert line["status"]["reasons"] == [
        {"handler": "pay", "reason": "unknown account", "count": 1}
    ]


def test_piped_tables_have_a_line_for_each_row(folder: Path) -> None:
    tidemill(folder, "run", "bank.py")
    lines = tidemill(folder, "query", "accounts").splitlines()
    assert [line.split() for line in lines[:3]] == [["id", "note"], ["1", LONG], ["2", "b"]]


def test_a_backup_has_only_used_bytes(folder: Path) -> None:
    tidemill(folder, "run", "bank.py")
    backup = json.loads(tidemill(folder, "backup", "copy", "--json"))
    assert backup["bytes"] < 100_000
    assert backup["bytes"] == sum(
        p.stat().st_size for p in (folder / "copy").rglob("*") if p.is_file()
    )
    wanted = tidemill(folder, "query", "accounts")
    assert json.loads(tidemill(folder, "verify", "--data-dir", "copy", "--json"))["rows"] == 2
    tidemill(folder, "restore", "copy", "--data-dir", "back.tidemill")
    assert tidemill(folder, "query", "accounts", "--data-dir", "back.tidemill") == wanted
    # The restored app goes on, and so does the backup itself.
    (folder / "payments.csv").open("a").write("2,more\n")
    for where in ("back.tidemill", "copy"):
        tidemill(folder, "run", "bank.py", "--data-dir", where)
        assert "more" in tidemill(folder, "query", "accounts", "--data-dir", where)


def test_a_backup_of_a_running_app_with_pushed_rows(tmp_path: Path) -> None:
    app = tm.App("bank")
    counts = app.table("counts", key="k", k=int, n=tm.column(int, default=0))
    rows = app.stream("rows", k=int)

    @app.transaction(rows)
    def count(tx, e):
        counts[e.k].n += 1

    with app.start(data_dir=tmp_path / "data", durable="log") as mill:
        mill.send(rows, [{"k": k % 7} for k in range(3500)], wait=True)
        request = json.dumps({"do": "backup", "to": str(tmp_path / "copy")})
        [line] = map(json.loads, _native.ask(str(tmp_path / "data"), request))
        wanted = mill.table(counts).rows()
    assert line["backup"]["bytes"] < 500_000
    with app.start(data_dir=tmp_path / "copy", durable="log") as mill:
        assert mill.table(counts).rows() == wanted
        mill.send(rows, [{"k": 0}] * 10, wait=True)
        assert mill.table(counts)[0]["n"] == 510
