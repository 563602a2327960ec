"""A cluster on real servers that go away for a while: it says so, and loses nothing."""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

import pytest

from .beside import control
from .kill.cluster import (
    APP,
    Clients,
    Process,
    children,
    health,
    settings,
    validate,
    wait_for,
    workers_of,
)

pytestmark = pytest.mark.servers

ACCOUNTS = 24


def troubles(url: str) -> dict[str, str]:
    """What the processes wait for."""
    return {t["process"]: t["what"] for t in health(url).get("troubles", [])}


def test_broker_and_store_go_away_under_a_cluster(tmp_path: Path) -> None:
    name = f"away-{secrets.token_hex(4)}"
    sets = (
        f"cluster_name={name}",
        "cluster_sources=2",
        "cluster_together=16",
        "cluster_snapshots_timeout_us=2000000",
    )
    places = ["--log", f"kafka://{os.environ['SERVERS_KAFKA']}"]
    places += ["--snapshots", f"s3://{os.environ['SERVERS_S3_BUCKET']}/{name}"]
    flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings(*sets), *places]
    with Process(tmp_path / "parent", "run", str(APP), "--http", "0", *flags) as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("workers", lambda: len(workers_of(url)) == 2)
        with Clients(url, ACCOUNTS) as clients:
            clients.wait_for_more()
            # Without the store calls are answered as before, and no snapshot counts.
            control("S3", "kill")
            wait_for("a trouble with the store", lambda: troubles(url))
            before = health(url)["snapshot_epoch"]
            assert all("http://127.0.0.1" in what for what in troubles(url).values())
            clients.wait_for_more(100)
            assert health(url)["snapshot_epoch"] == before
            control("S3", "start")
            wait_for("a snapshot", lambda: health(url)["snapshot_epoch"] > before)
            wait_for("the end of the trouble", lambda: not troubles(url))
            # Without the broker they wait; then they go on.
            control("KAFKA", "kill")
            found = wait_for(
                "a trouble of all processes", lambda: t if len(t := troubles(url)) == 3 else None
            )
            assert all("no broker of 127.0.0.1" in what for what in found.values()), found
            control("KAFKA", "start")
            clients.wait_for_more(100)
            wait_for("the end of the trouble", lambda: not troubles(url))
            # What was recorded meanwhile is what a recovery finds.
            os.kill(children(parent.pid)[0], signal.SIGKILL)
            clients.wait_for_more(100)
        validate(clients)
        assert "waits: no broker of" in parent.errors.read_text()
