"""A directory holds the state of one process or of several, and never both."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill as tm
from tidemill.cli import main
from tidemill.cluster import Coordinator, Worker

BANK = """
import tidemill as tm

app = tm.App("bank")
account = app.entity("account", key="id", id=int, balance=int)


@account.function(creates=True)
def add(self, ctx, n: int):
    self.balance = (self.balance or 0) + n
    return self.balance
"""

SECRET = b"0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bank.py").write_text(BANK)
    (tmp_path / "secret").write_bytes(SECRET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bank() -> tm.App:
    names: dict[str, object] = {}
    exec(compile(BANK, "bank.py", "exec"), names)
    app = names["app"]
    assert isinstance(app, tm.App)
    return app


def one(data_dir: Path, **settings: object) -> int:
    """Adds to an account in one process; what is there then."""
    with bank().start(data_dir=data_dir, **settings) as mill:
        found = mill.call("account.add", id=1, n=1)
    assert isinstance(found, int)
    return found


@contextlib.contextmanager
def several(data_dir: Path, **settings: object) -> Iterator[None]:
    """A coordinator runs meanwhile."""
    coordinator = Coordinator(bank(), {"data_dir": str(data_dir), **settings}, SECRET)
    try:
        yield
    finally:
        coordinator.stop()
        del coordinator
        # The thread that writes its log holds the directory until its last write.
        with (data_dir / "cluster" / "LOCK").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)


def files(folder: Path) -> dict[str, str]:
    """The hash of each file of a folder, but for locks."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "LOCK")
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_several_processes_do_not_delete_what_one_has_left(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder / "bank.tidemill"
    assert one(data) == 1
    before = files(folder)
    said = refused(["run", "bank.py", "--processes", "2", "--http", "0", "--fresh"], capsys)
    assert "in one process, which --fresh does not delete" in said
    assert "without --processes" in said
    assert "--data-dir" in said
    worker = ["worker", "bank.py", "--secret-file", "secret", "--join", "127.0.0.1:9"]
    assert "start the coordinator first" in refused(worker, capsys)
    with pytest.raises(tm.SettingError, match="ran in one process"):
        Worker(bank(), {"data_dir": str(data)}, SECRET, "127.0.0.1:9")
    assert files(folder) == before
    assert not (data / "cluster").exists()
    with several(data):
        assert not (data / "APP").exists()
    assert one(data) == 2


def test_one_process_does_not_delete_what_several_have_left(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder / "bank.tidemill"
    with several(data):
        for settings in ({}, {"fresh": True}):
            with pytest.raises((tm.SettingError, tm.ResourceError)):
                one(data, **settings)
    before = files(folder)
    assert before.keys() > {"bank.py", "secret"}
    said = refused(["run", "bank.py", "--http", "0", "--fresh"], capsys)
    assert "on several processes, which --fresh does not delete" in said
    assert "--processes N --fresh" in said
    assert "--data-dir" in said
    with pytest.raises(tm.SettingError, match="on several processes"):
        one(data, fresh=True)
    assert files(folder) == before
    # In memory nothing is looked for.
    assert one(data, durable="none") == 1
    assert one(data) == 1
    assert not (data / "cluster" / "log").exists()
    with several(data):
        pass


def test_a_directory_that_holds_both_is_parted_by_whoever_it_belongs_to(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, other = folder / "bank.tidemill", folder / "other.tidemill"
    assert one(data) == 1
    with several(other):
        pass
    (other / "cluster").rename(data / "cluster")
    before = files(folder)
    for command in (
        ["run", "bank.py", "--http", "0"],
        ["run", "bank.py", "--http", "0", "--fresh"],
        ["run", "bank.py", "--http", "0", "--processes", "2"],
        ["run", "bank.py", "--http", "0", "--processes", "2", "--fresh"],
    ):
        said = refused(command, capsys)
        assert "holds two states" in said, command
        assert "mv 'bank.tidemill/cluster' OTHER/" in said
    assert files(folder) == before
    # As it says.
    (data / "cluster").rename(other / "cluster")
    assert one(data) == 2
    with several(other):
        pass


def test_fresh_says_what_goes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert one(folder / "bank.tidemill") == 1
    (folder / "rows.csv").write_text("id\n1\n")
    (folder / "bank.py").write_text(
        BANK
        + """
rows = app.stream("rows", id=int)
rows.read(tm.files("rows.csv"))


@app.transaction(rows, opaque=True)
def take(tx, e):
    pass
"""
    )
    assert main(["run", "bank.py", "--fresh"]) == 0
    said = capsys.readouterr().err
    assert "--fresh: deleted in bank.tidemill: APP, cuts, input, store" in said
    assert main(["run", "bank.py", "--fresh", "--data-dir", "new"]) == 0
    assert "fresh" not in capsys.readouterr().err


def test_commands_read_the_newest_snapshot_of_several_processes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder / "bank.tidemill"
    assert [one(data), one(data)] == [1, 2]
    with several(data):
        # They run, and have a snapshot of what one process has left.
        assert main(["query", "account", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["rows"], found["engine"]) == ([{"id": 1, "balance": 2}], "snapshot")
        assert main(["query", "account", "--key", "1"]) == 0
        assert "newest snapshot of several processes" in capsys.readouterr().out
        assert main(["inspect", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["tables"][0]["rows"] == 1
        assert main(["verify", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == 1
        assert main(["backup", "first"]) == 0
        assert main(["query", "account", "--json", "--data-dir", "first"]) == 0
        assert '"balance": 2' in capsys.readouterr().out
    assert "leave out --as-of" in refused(["query", "account", "--as-of", "1"], capsys)
    said = refused(["tail", "account.add", "--no-follow"], capsys)
    assert "results and aborts of account.add are not retained on several processes" in said
    assert main(["dlq", "ls"]) == 0
    assert capsys.readouterr().out == "no bad or late events\n"
    said = refused(["dlq", "replay", "x.dead", "--row", "1"], capsys)
    assert "'dlq_replay' needs one" in said
    said = refused(["status", "--data-dir", "bank.tidemill/cluster"], capsys)
    assert "on several processes" in said
    assert "status --cluster URL" in said
    assert main(["status"]) == 0
    assert "stopped, or runs without --http" in capsys.readouterr().out
    assert main(["schema", "diff", "bank.py"]) == 0
    assert "has not changed" in capsys.readouterr().out
    more = BANK.replace("balance=int", "balance=int, note=tm.optional(str)")
    (folder / "next.py").write_text(more)
    assert main(["schema", "diff", "next.py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [change["name"] for change in found["changes"]] == ["account.note"]
    # A backup is a state like the one that it is of.
    assert main(["backup", "copy"]) == 0
    assert main(["restore", "copy", "--data-dir", "again"]) == 0
    assert one(folder / "again") == 3
    object = next((folder / "copy" / "cluster" / "snapshots").rglob("part-*"))
    object.write_bytes(object.read_bytes()[:-9] + b"damaged!!")
    assert "damaged" in refused(["verify", "--data-dir", "copy"], capsys)


def test_restores_go_into_an_empty_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with several(folder / "bank.tidemill"):
        pass
    before = files(folder)
    (folder / "one").mkdir()
    assert one(folder / "one" / "bank.tidemill") == 1
    os.chdir(folder / "one")
    assert main(["backup", "../copy"]) == 0
    os.chdir(folder)
    capsys.readouterr()
    assert "is not empty" in refused(["restore", "copy"], capsys)
    assert {k: v for k, v in files(folder).items() if not k.startswith(("one", "copy"))} == before
