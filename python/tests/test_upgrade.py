"""An app changes, and takes over what its earlier version has left."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill.config import checked_settings

BEFORE = """
import tidemill as tm

app = tm.App("bank")
accounts = app.table("accounts", key="id", id=int, holder=str, balance=int)
deposits = app.stream("deposits", id=int, holder=str, cents=int)


@app.transaction(deposits)
def pay_in(tx, e):
    tx.require(e.cents >= 0, "nothing to pay in")
    accounts.upsert(id=e.id, holder=e.holder, balance=e.cents)


deposits.read(tm.files("deposits.jsonl"))
pay_in.aborted.write(tm.files("refused.jsonl"))
"""
AFTER = (
    BEFORE.replace("holder=str, balance=int", "owner=str, balance=tm.decimal(2), note=NOTE")
    .replace("upsert(id=e.id, holder=", "upsert(id=e.id, owner=")
    .replace("NOTE", "tm.optional(str)")
)
RENAME = ("--rename", "accounts.holder=accounts.owner")


class Folder:
    """A folder with an app, and commands in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.deposit(1, "Ann", 500)
        self.deposit(2, "Ben", 70)

    def deposit(self, number: int, holder: str, cents: int) -> None:
        with (self.path / "deposits.jsonl").open("a") as file:
            print(json.dumps({"id": number, "holder": holder, "cents": cents}), file=file)

    def write(self, text: str) -> None:
        (self.path / "app.py").write_text(text)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")}
        return subprocess.run(
            [sys.executable, "-m", "tidemill.cli", *arguments],
            cwd=self.path,
            env={**base, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def tidemill(self, *arguments: str) -> tuple[int, str]:
        """A command: its exit code, and what it says to people."""
        done = self.run(*arguments)
        return done.returncode, done.stdout + done.stderr

    def json(self, *arguments: str) -> Any:
        """A command with --json: its line, and its exit code."""
        done = self.run(*arguments, "--json")
        return {**json.loads(done.stdout.splitlines()[-1]), "code": done.returncode}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write(BEFORE)
    assert made.json("run", "app.py")["events"] == 2
    return made


def test_an_app_that_has_not_changed_is_the_same(folder: Folder) -> None:
    code, said = folder.tidemill("schema", "diff", "app.py")
    assert (code, said) == (0, "app bank has not changed since it wrote bank.tidemill\n")
    found = folder.json("schema", "diff", "app.py")
    assert found == {"same": True, "possible": True, "why": [], "changes": [], "code": 0}


def test_the_diff_says_what_an_upgrade_does_and_the_run_does_it(folder: Folder) -> None:
    folder.write(AFTER)
    code, said = folder.tidemill("run", "app.py")
    assert code == 1
    assert "written by another version of this program" in said
    assert "tidemill schema diff" in said
    assert "--upgrade" in said
    found = folder.json("schema", "diff", "app.py", *RENAME)
    assert (found["code"], found["same"], found["possible"], found["why"]) == (0, False, True, [])
    assert found["changes"] == [
        {
            "what": "column",
            "change": "renamed",
            "name": "accounts.owner",
            "from": "accounts.holder",
            "upgrade": "kept",
            "lossless": True,
        },
        {
            "what": "column",
            "change": "widened",
            "name": "accounts.balance",
            "from": "int",
            "to": "decimal(2)",
            "upgrade": "converted",
            "lossless": True,
        },
        {
            "what": "column",
            "change": "added",
            "name": "accounts.note",
            "upgrade": "null in every row",
            "lossless": True,
        },
    ]
    code, said = folder.tidemill("schema", "diff", "app.py", *RENAME)
    assert code == 0
    assert "column widened" in said
    # The command is complete: without the names it would drop what has another name now.
    upgrade = shlex.join(["tidemill", "run", "app.py", "--upgrade", *RENAME])
    assert said.endswith(f"an upgrade is possible: {upgrade}\n")
    folder.deposit(3, "Cem", 1)
    folder.deposit(1, "Ann", -1)
    found = folder.json("run", "app.py", "--upgrade", *RENAME)
    assert (found["code"], found["events"]) == (0, 4)
    rows = [
        {"id": 1, "owner": "Ann", "balance": "500.00", "note": None},
        {"id": 2, "owner": "Ben", "balance": "70.00", "note": None},
        {"id": 3, "owner": "Cem", "balance": "1.00", "note": None},
    ]
    assert folder.json("query", "accounts")["rows"] == rows
    assert len((folder.path / "refused.jsonl").read_text().splitlines()) == 1
    # It is this version's now, and the flags may stay.
    assert folder.json("run", "app.py", "--upgrade", *RENAME)["code"] == 0
    assert folder.json("run", "app.py")["events"] == 4
    folder.write(BEFORE)
    assert folder.json("run", "app.py")["code"] == 1


def test_what_would_be_lost_is_kept_until_somebody_says_so(folder: Folder) -> None:
    folder.write(AFTER)
    code, said = folder.tidemill("schema", "diff", "app.py")
    # Without the name that it had, a column is a new one, and needs a value.
    assert code == 1
    assert "column accounts.owner is new, has no default and may not be null" in said
    folder.write(BEFORE.replace(", balance=int)", ")").replace(", balance=e.cents", ""))
    code, said = folder.tidemill("schema", "diff", "app.py")
    assert code == 0
    assert "its values in 2 rows are dropped" in said
    assert said.endswith("loses data: tidemill run app.py --upgrade --lossy\n")
    code, said = folder.tidemill("run", "app.py", "--upgrade")
    assert code == 1
    assert "an upgrade would lose data: column accounts.balance" in said
    assert folder.json("run", "app.py", "--lossy")["code"] == 1
    assert folder.json("run", "app.py", "--upgrade", "--lossy")["code"] == 0
    assert folder.json("query", "accounts")["rows"] == [
        {"id": 1, "holder": "Ann"},
        {"id": 2, "holder": "Ben"},
    ]


def test_only_a_new_index_is_called_added(folder: Folder) -> None:
    indexed = BEFORE.replace("\n\n@app", '\nof = accounts.index("holder", name="of")\n\n\n@app', 1)
    folder.write(indexed)
    assert folder.run("run", "app.py", "--fresh").returncode == 0
    more = 'of = accounts.index("holder", name="of"); sums = accounts.index("balance", name="sums")'
    folder.write(indexed.replace('of = accounts.index("holder", name="of")', more))
    changes = folder.json("schema", "diff", "app.py")["changes"]
    assert [(change["change"], change["name"]) for change in changes] == [("added", "sums")]


def test_names_that_are_not_there_are_refused(folder: Folder) -> None:
    folder.write(AFTER)
    code, said = folder.tidemill("schema", "diff", "app.py", "--rename", "accounts.holdr=x.y")
    assert code == 1
    assert "has no table 'x'" in said
    code, said = folder.tidemill("run", "app.py", "--upgrade", "--rename", "accounts.holdr")
    assert code == 1
    assert "does not map old names to new ones" in said


def test_settings_come_from_the_file(folder: Folder) -> None:
    folder.write(AFTER)
    toml = 'upgrade = true\n[renames]\naccounts.holder = "accounts.owner"\n'
    (folder.path / "tidemill.toml").write_text(toml)
    code, said = folder.tidemill("run", "app.py")
    assert code == 1
    assert "put names with a dot in quotes" in said
    (folder.path / "tidemill.toml").write_text(toml.replace("accounts.holder", '"accounts.holder"'))
    assert folder.json("schema", "diff", "app.py")["possible"] is True
    assert folder.json("run", "app.py")["code"] == 0


TRIPS = """
import tidemill as tm

app = tm.App("trips")
trips = app.table("trips", key="id", id=int, n=tm.column(int, default=0))
told = app.stream("told", id=int)
notes = app.stream("notes", id=int)
notes.read(tm.files("notes.jsonl"))


@app.transaction(notes, opaque=True)
def note(tx, e):
    trips[e.id].n += 1


@app.procedure(emits=[told])
def book(tx, id: int):
    trips[id].n += 1
    tx.emit(told, id=id)


@app.procedure
def cancel(tx, id: int):
    trips[id].n -= 1
"""
FIRST = """
extra = app.stream("extra", id=int)


@app.procedure
def refund(tx, id: int):
    trips[id].n -= 1


"""


@pytest.fixture
def trips(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write(TRIPS)
    (tmp_path / "notes.jsonl").write_text('{"id": 1}\n')
    return made


def serve(folder: Folder, *flags: str) -> None:
    """Runs the app with --http until it answers, and stops it."""
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--http", "0", *flags]
    with subprocess.Popen(command, cwd=folder.path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("http") for line in process.stdout), flags
        process.terminate()
        process.stdout.read()
    assert process.returncode == 0, flags


def test_new_and_old_procedures_do_not_look_like_another_way_of_starting(trips: Folder) -> None:
    serve(trips)
    trips.write(TRIPS.replace("\n@app.transaction(notes", FIRST + "@app.transaction(notes"))
    code, said = trips.tidemill("run", "app.py", "--http", "0")
    assert code == 1
    assert "handler refund is new" in said
    assert "same command" not in said
    assert "help: see the differences: tidemill schema diff" in said
    # Numbers of streams have changed, but nothing else of the other handlers.
    code, said = trips.tidemill("schema", "diff", "app.py")
    assert code == 0
    assert "handler changed" not in said, said
    assert said.endswith("an upgrade is possible: tidemill run app.py --upgrade --http 0\n")
    trips.write(TRIPS[: TRIPS.index("@app.procedure\ndef cancel")])
    code, said = trips.tidemill("run", "app.py", "--http", "0")
    assert code == 1
    assert "handler cancel is gone" in said
    assert "app.start()" not in said
    serve(trips, "--upgrade")


def test_another_way_of_starting_is_called_so(trips: Folder) -> None:
    assert trips.json("run", "app.py")["code"] == 0
    code, said = trips.tidemill("run", "app.py", "--http", "0")
    assert code == 1
    assert "by this program, which was started in another way" in said
    assert (
        "earlier runs had no clients, and here they can call book: start it without --http" in said
    )
    assert "schema diff" not in said
    serve(trips, "--upgrade")
    code, said = trips.tidemill("run", "app.py")
    assert code == 1
    assert "clients could call book, cancel, and here they can't" in said
    assert "schema diff" not in said


def test_the_upgrade_of_an_app_that_python_starts_is_in_python(trips: Folder) -> None:
    app = TRIPS.replace('notes.read(tm.files("notes.jsonl"))\n', "")
    trips.write(app)
    python = "from app import app; app.start(data_dir='trips.tidemill', upgrade=False).stop()"
    subprocess.run([sys.executable, "-c", python], cwd=trips.path, check=True, timeout=60)
    trips.write(
        app.replace("n=tm.column(int, default=0)", "m=tm.column(int, default=0)").replace(
            "].n ", "].m "
        )
    )
    code, said = trips.tidemill("schema", "diff", "app.py", "--rename", "trips.n=trips.m")
    assert code == 0
    how = "app.start(upgrade=True, renames={'trips.n': 'trips.m'})"
    assert said.endswith(f"an upgrade is possible: {how}\n"), said


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("upgrade", "true", True),
        ("upgrade", False, False),
        ("upgrade", "lossy", "lossy"),
        ("renames", {"a": "b"}, {"a": "b"}),
        ("renames", "a=b,c.d = e.f", {"a": "b", "c.d": "e.f"}),
        ("renames", {}, {}),
    ],
)
def test_settings_of_an_upgrade(name: str, value: object, found: object) -> None:
    assert checked_settings({name: value}, "here") == {name: found}


@pytest.mark.parametrize(
    ("name", "value"),
    [("upgrade", "maybe"), ("upgrade", 2), ("renames", "a"), ("renames", ["a"]), ("renames", 7)],
)
def test_settings_of_an_upgrade_that_are_wrong(name: str, value: object) -> None:
    with pytest.raises(tm.SettingError, match=name):
        checked_settings({name: value}, "here")
