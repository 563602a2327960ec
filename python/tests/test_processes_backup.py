"""Backups of an app on several processes: while it runs, and with snapshots elsewhere."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import tidemill as tm

from .kill.cluster import Process, joined, settings
from .test_processes_retained import command

APP = """
import tidemill as tm

app = tm.App("bank")
accounts = app.entity("account", key="id", id=int, n=tm.column(int, default=0))
added = app.stream("added", id=int, n=int)
rows = app.stream("rows", id=int, n=int)
rows.read(tm.files("rows.csv", follow=True))
sums = app.table("sums", key="id", id=int, n=tm.column(int, default=0))


@app.transaction(rows)
def sum(tx, e):
    sums[e.id].n += e.n


@accounts.function(creates=True)
def add(self, ctx):
    self.n += 1
    ctx.emit(added, id=self.id, n=self.n)
    return self.n
"""

ACCOUNTS = 4


class Callers:
    """Threads that call, and what they know of each account."""

    def __init__(self, url: str) -> None:
        self.url, self.is_over = url, threading.Event()
        self.sent, self.answered = [0] * ACCOUNTS, [0] * ACCOUNTS
        self.threads = [threading.Thread(target=self.call, args=(id,)) for id in range(ACCOUNTS)]
        for thread in self.threads:
            thread.start()

    def call(self, id: int) -> None:
        with tm.Client(self.url, retries=100) as client:
            while not self.is_over.is_set():
                self.sent[id] += 1
                self.answered[id] = client.call("account.add", id=id)

    def end(self) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join()


def run(folder: Path, name: str, data: str, *flags: str) -> Process:
    line = ["run", "app.py", "--http", "0", "--data-dir", data, *flags]
    return Process(folder / name, *line, within=["env", "-C", str(folder)])


TWO = ["--processes", "2", *settings()]


@pytest.mark.parametrize("place", [None, "elsewhere"])
def test_a_backup_of_a_running_app_has_all_that_was_answered(
    place: str | None, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "rows.csv").write_text("id,n\n" + "1,1\n" * 5_000)
    flags = [*TWO, *(["--snapshots", str(tmp_path / place)] if place else [])]
    bounds: list[tuple[list[int], list[int]]] = []
    with run(tmp_path, "first", "data", *flags) as parent:
        url = joined(parent)
        callers = Callers(url)
        try:
            for nth in range(4):
                before = list(callers.answered)
                code, [said], errors = command(
                    tmp_path, "backup", f"copy-{nth}", "--data-dir", "data"
                )
                assert code == 0, errors
                assert said["rows"] > 0
                bounds.append((before, list(callers.sent)))
                with (tmp_path / "rows.csv").open("a") as file:
                    file.write("2,1\n" * 1_000)
        finally:
            callers.end()
        assert parent.stop() == 0
    assert bounds[-1][0] != bounds[0][0]
    for nth, (before, after) in enumerate(bounds):
        copy = f"copy-{nth}"
        code, [verified], errors = command(tmp_path, "verify", "--data-dir", copy)
        assert code == 0, errors
        assert verified["rows"] > 0
        with run(tmp_path, copy + "-run", copy, *(TWO if nth % 2 else [])) as again:
            url = joined(again) if nth % 2 else again.find(r"http +(http://\S+)")
            with tm.Client(url, retries=100) as client:
                for id in range(ACCOUNTS):
                    row = client.row("account", id) or {"n": 0}
                    assert before[id] <= row["n"] <= after[id]
                    assert client.call("account.add", id=id) == row["n"] + 1
            assert again.stop() == 0
        # Rows of streams are numbered on without a gap.
        code, [*rows, _], errors = command(
            tmp_path, "tail", "added", "--from", "0", "--no-follow", "--data-dir", copy
        )
        assert code == 0, errors
        assert [row["row"] for row in rows] == list(range(len(rows)))
        for id in range(ACCOUNTS):
            own = [row["value"]["n"] for row in rows if row["value"]["id"] == id]
            assert own == list(range(1, len(own) + 1))


def test_commands_read_snapshots_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "rows.csv").write_text("id,n\n1,1\n1,2\nbad,3\n")
    flags = [*TWO, "--snapshots", str(tmp_path / "elsewhere")]
    with run(tmp_path, "first", "data", *flags) as parent:
        with tm.Client(joined(parent), retries=100) as client:
            assert client.call("account.add", id=1) == 1
        assert parent.stop() == 0
    for args in (["query", "account"], ["inspect"], ["verify"], ["schema", "diff", "app.py"]):
        code, said, errors = command(tmp_path, *args, "--data-dir", "data")
        assert (code, len(said)) == (0, 1), errors
    code, [listed], errors = command(tmp_path, "dlq", "ls", "--data-dir", "data")
    assert [row["stream"] for row in listed["rows"]] == ["rows.dead"], errors
    code, _, errors = command(tmp_path, "backup", "copy", "--data-dir", "data")
    assert code == 0, errors
    (tmp_path / "elsewhere").rename(tmp_path / "gone")
    code, [found], errors = command(tmp_path, "query", "account", "--data-dir", "copy")
    assert found["rows"] == [{"id": 1, "n": 1}], errors
    # One process takes over the copy.
    with run(tmp_path, "one", "copy") as one:
        with tm.Client(one.find(r"http +(http://\S+)")) as client:
            assert client.call("account.add", id=1) == 2
            assert client.row("sums", 1) == {"id": 1, "n": 3}
        assert one.stop() == 0
