"""A version of an app that goes on where another was, on several processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .kill.cluster import PATIENCE, Process, settings, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

FIRST = """
import tidemill as tm

app = tm.App("bank")
old = app.entity("old", key="id", id=int, what=tm.column(str, default="x"))
account = app.entity(
    "account",
    key="id",
    id=int,
    balance=tm.column(int, default=100),
    note=tm.column(str, default=""),
)


@old.function(creates=True)
async def keep(self, ctx):
    self.what = "kept"


@account.function(creates=True)
async def transfer(self, ctx, dst: int, amount: int) -> int:
    ctx.require(self.balance >= amount, "insufficient funds")
    self.balance -= amount
    self.note = f"to {dst}"
    await account[dst].receive(amount=amount)
    return self.balance


@account.function(creates=True)
async def receive(self, ctx, amount: int):
    self.balance += amount
"""

SECOND = """
import tidemill as tm

app = tm.App("bank")
account = app.entity(
    "account",
    key="id",
    id=int,
    level=tm.column(int, default=3),
    cents=tm.column(tm.decimal(2), default=100),
    note=tm.column(str, default=""),
)


@account.function(creates=True)
async def look(self, ctx) -> list[str]:
    return [str(self.cents), str(self.level), self.note]


@account.function(creates=True)
async def add(self, ctx, cents: int):
    self.cents += cents
"""


class Site:
    """A cluster on this machine, which one version after another runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        for name, text in (("first", FIRST), ("second", SECOND)):
            (folder / f"{name}.py").write_text(text)

    def flags(self, version: str, *more: str) -> list[str]:
        """How it is run."""
        app, data = self.folder / f"{version}.py", self.folder / "data"
        flags = ["--processes", "2", "--data-dir", str(data), *settings()]
        # Snapshots are rare: what is executed last is behind the newest.
        rare = ["--set", "cluster_snapshot_us=3600000000"]
        return ["run", str(app), "--http", "0", *flags, *rare, *more]

    def run(self, version: str, *more: str) -> Process:
        """Runs it."""
        self.count += 1
        return Process(self.folder / f"run-{self.count}", *self.flags(version, *more))

    def refused(self, version: str, *more: str) -> str:
        """Why it does not run."""
        line = [sys.executable, "-m", "tidemill.cli", *self.flags(version, *more)]
        done = subprocess.run(line, text=True, capture_output=True, timeout=PATIENCE)
        assert done.returncode == 1, done.stderr
        return done.stderr


def client_of(process: Process) -> tm.Client:
    """A client, when two workers are there."""
    url = process.find(r"http +(http://\S+)")
    wait_for("2 workers", lambda: len(workers_of(url)) == 2 or None)
    return tm.Client(url)


def test_another_version_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.run("first") as process:
        with client_of(process) as client:
            for n in range(40):
                client.call("account.transfer", id=n, dst=n + 1, amount=30)
            client.call("old.keep", id=1)
        process.send(signal.SIGKILL)
    upgrade = ("--upgrade", "--rename", "account.balance=account.cents")
    # Only the version that has executed them can do so again.
    assert "come after the newest snapshot" in site.refused("second", *upgrade)
    with site.run("first") as process:
        with client_of(process) as client:
            client.call("account.transfer", id=7, dst=8, amount=5)
        assert process.stop() == 0
    assert "another version of the program" in site.refused("second")
    assert "lose data" in site.refused("second", *upgrade)
    wrong = ("--upgrade", "--rename", "account.nothing=account.cents")
    assert "no column 'nothing'" in site.refused("second", *wrong)
    seen: dict[str, Any] = {}
    for _ in range(2):
        # The second time there is nothing to do.
        with site.run("second", *upgrade, "--lossy") as process:
            with client_of(process) as client:
                for id in (0, 7, 8, 20, 40, 41):
                    seen[str(id)] = client.call("account.look", id=id)
                client.call("account.add", id=50, cents=1)
            assert process.stop() == 0
    assert seen["0"] == ["70.00", "3", "to 1"]
    assert seen["7"] == ["95.00", "3", "to 8"]
    assert seen["8"] == ["105.00", "3", "to 9"]
    assert seen["20"] == ["100.00", "3", "to 21"]
    assert seen["40"] == ["130.00", "3", ""]
    assert seen["41"] == ["100.00", "3", ""], "nobody had it"
    (tmp_path / "other.py").write_text(SECOND.replace('"bank"', '"other"'))
    assert "give each app a data directory of its own" in site.refused("other", "--upgrade")
    # There is no way back without an upgrade, either.
    assert "another version of the program" in site.refused("first")
