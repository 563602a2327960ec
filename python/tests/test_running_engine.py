"""The commands against a real engine: while it runs, after it was killed, and from a backup."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

APP = """
import tidemill as tm

app = tm.App("bank")
accounts = app.table("accounts", key="id", id=int, balance=tm.decimal(2, default=0))
payments = app.stream("payments", id=int, amount=tm.decimal(2))


@app.transaction(payments)
def pay(tx, e):
    row = accounts[e.id]
    row.balance += e.amount
    tx.require(row.balance >= 0, "overdrawn")
    return dict(id=e.id, balance=row.balance)


payments.read(tm.files("in", "jsonl", follow=True))
pay.write(tm.files("paid.csv"))
"""


class Bank:
    """A folder with the app, and commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app.py").write_text(APP)
        (folder / "in").mkdir()
        self.process: subprocess.Popen[str] | None = None

    def start(self, *more: str) -> None:
        """Runs the app, and waits until it answers."""
        run = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--set", "http_port=0", *more]
        log = (self.folder / "run.log").open("w")
        self.process = subprocess.Popen(run, cwd=self.folder, stdout=log, stderr=log, text=True)
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            code, said, _ = self.tidemill("status")
            if code == 0 and said["engine"] == "running" and said["state"] == "running":
                return
            time.sleep(0.02)
        raise AssertionError((self.folder / "run.log").read_text())

    def pay(self, text: str) -> None:
        """Appends lines, and waits until their epoch is there."""
        before = self.tidemill("status")[1]["events"]
        with (self.folder / "in" / "a.jsonl").open("a") as file:
            file.write(text)
        wanted = before + text.count("\n")
        deadline = time.monotonic() + 60
        while self.tidemill("status")[1]["events"] < wanted:
            assert time.monotonic() < deadline, (self.folder / "run.log").read_text()
            time.sleep(0.02)

    def end(self, how: signal.Signals) -> int:
        """Ends the run."""
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(60)

    def tidemill(self, *arguments: str) -> tuple[int, Any, str]:
        """A command with --json: its exit code, its last line, and what it said of errors."""
        run = [sys.executable, "-m", "tidemill.cli", *arguments, "--json"]
        done = subprocess.run(run, cwd=self.folder, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        return done.returncode, json.loads(lines[-1]) if lines else None, done.stderr


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    found = Bank(tmp_path)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait()


def balances(said: Any) -> dict[int, str]:
    """Of a query."""
    return {row["id"]: row["balance"] for row in said["rows"]}


def test_a_running_engine_a_killed_one_and_a_backup(bank: Bank) -> None:
    bank.start()
    bank.pay('{"id": 1, "amount": 5}\n{"id": 2, "amount": 7.25}\noops\n')
    bank.pay('{"id": 1, "amount": -6}\n')
    first = bank.tidemill("query", "accounts")[1]
    assert balances(first) == {1: "5.00", 2: "7.25"}
    bank.pay('{"id": 1, "amount": 1}\n')
    now = {1: "6.00", 2: "7.25"}
    assert balances(bank.tidemill("query", "accounts")[1]) == now
    past = bank.tidemill("query", "accounts", "--as-of", str(first["as_of"]))[1]
    assert balances(past) == balances(first)
    assert balances(bank.tidemill("query", "accounts", "--key", "2")[1]) == {2: "7.25"}
    assert balances(bank.tidemill("query", "accounts", "--filter", "balance < 7")[1]) == {1: "6.00"}
    said = bank.tidemill("dlq", "ls")[1]
    assert [row["value"]["raw"] for row in said["rows"]] == ["oops"]
    code, said, _ = bank.tidemill("inspect")
    assert (code, said["tables"][0]["rows"], said["outputs"]["pay"]) == (0, 2, 3)

    address = bank.tidemill("status")[1]["http"]
    with urllib.request.urlopen(f"http://{address}/metrics") as reply:
        assert b"tidemill_events_total 5\n" in reply.read()
    with urllib.request.urlopen(f"http://{address}/health") as reply:
        assert json.load(reply)["ready"]
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://{address}/secrets")

    code, _, why = bank.tidemill("run", "app.py")
    assert (code, "another process runs" in why) == (1, True), why
    assert bank.tidemill("verify")[0] == 1
    assert bank.tidemill("backup", "copy")[0] == 0
    bank.pay('{"id": 3, "amount": 1}\n')
    now[3] = "1.00"
    assert bank.end(signal.SIGKILL) == -signal.SIGKILL

    said = bank.tidemill("query", "accounts")[1]
    assert (said["engine"], balances(said)) == ("stopped", now)
    assert bank.tidemill("verify")[0] == 0
    assert bank.tidemill("restore", "copy", "--data-dir", "back")[0] == 0
    said = bank.tidemill("query", "accounts", "--data-dir", "back")[1]
    assert balances(said) == {1: "6.00", 2: "7.25"}

    bank.start()
    assert balances(bank.tidemill("query", "accounts")[1]) == now
    assert bank.end(signal.SIGTERM) == 0
    assert (bank.folder / "paid.csv").read_text().splitlines() == [
        "id,balance",
        "1,5.00",
        "2,7.25",
        "1,6.00",
        "3,1.00",
    ]


def test_tail_shows_what_comes(bank: Bank) -> None:
    bank.start()
    bank.pay('{"id": 1, "amount": 5}\n')
    tail = [sys.executable, "-m", "tidemill.cli", "tail", "pay", "--from", "0", "--json"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    follower = subprocess.Popen(
        tail, cwd=bank.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["value"] == {"id": 1, "balance": "5.00"}
    bank.pay('{"id": 1, "amount": 2}\n')
    assert json.loads(follower.stdout.readline())["value"] == {"id": 1, "balance": "7.00"}
    bank.end(signal.SIGTERM)
    rest, why = follower.communicate(timeout=60)
    assert (follower.returncode, json.loads(rest)["next"]) == (0, 2), why
