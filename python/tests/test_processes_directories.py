"""Directories of several processes that earlier versions have left are continued."""

from __future__ import annotations

import tarfile
from functools import partial
from pathlib import Path

import pytest

import tidemill as tm
from tidemill.cli import main

from .kill.cluster import Process, settings, wait_for, workers_of

#: An app with its directories: one was stopped, and one was killed with cuts after its snapshot.
ARCHIVE = Path(__file__).parents[2] / "corpus" / "directories" / "cluster-v7.tar.gz"
BALANCES = {
    "stopped": ["103.00", "101.00", "95.00", "100.00", "99.00", "98.00", "104.00"],
    "killed": ["102.00", "99.00", "97.00", "100.00", "97.00", "100.00", "105.00"],
}


def two_workers(url: str) -> bool | None:
    return len(workers_of(url)) == 2 or None


@pytest.mark.parametrize("left", BALANCES)
def test_snapshots_of_named_parts_are_stored_again(tmp_path: Path, left: str) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    data = tmp_path / left
    before = {path.name for path in data.rglob("part-*")}
    flags = ["run", str(tmp_path / "app.py"), "--processes", "2", "--http", "0", *settings()]
    for nth in range(2):
        with Process(tmp_path / f"run-{nth}", *flags, "--data-dir", str(data)) as process:
            url = process.find(r"http +(http://\S+)")
            wait_for("2 workers", partial(two_workers, url))
            with tm.Client(url) as client:
                ids = [f"a{n}" for n in range(7)]
                found = [client.call("account.deposit", id=id, cents=0) for id in ids]
                assert found == BALANCES[left]
                assert (client.row("moves", 7) or {})["dst"] == "a1"

                def old_parts_are_removed(client: tm.Client = client) -> bool | None:
                    client.call("account.deposit", id="a0", cents=0)
                    return not before & {path.name for path in data.rglob("part-*")} or None

                wait_for("the end of old parts", old_parts_are_removed)
            assert process.stop() == 0


@pytest.mark.parametrize("left", BALANCES)
def test_one_process_takes_them_over(
    tmp_path: Path, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    data = ["--data-dir", str(tmp_path / left)]
    assert main(["query", "account", *data]) == 1
    assert "an earlier version" in capsys.readouterr().err
    flags = ["run", str(tmp_path / "app.py"), "--http", "0", *data]
    with Process(tmp_path / "run", *flags) as process:
        url = process.find(r"http +(http://\S+)")
        with tm.Client(url) as client:
            ids = [f"a{n}" for n in range(7)]
            found = [client.call("account.deposit", id=id, cents=0) for id in ids]
        assert found == BALANCES[left]
        assert process.stop() == 0
    assert main(["query", "account", *data, "--json"]) == 0
