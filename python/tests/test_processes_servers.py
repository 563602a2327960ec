"""A cluster on real servers that go away for a while: it says so, and loses nothing."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

import tidemill as tm

from .beside import configure, control
from .kill.cluster import (
    APP,
    Clients,
    Process,
    health,
    joined,
    settings,
    validate,
    wait_for,
    workers_of,
)
from .test_processes_sizes import start, url_of

pytestmark = pytest.mark.servers

ACCOUNTS = 24


def troubles(url: str) -> dict[str, str]:
    """Returns the reports of processes that wait for something."""
    return {t["process"]: t["what"] for t in health(url).get("troubles", [])}


@pytest.mark.alone
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
        url = joined(parent)
        with Clients(url, ACCOUNTS) as clients:
            clients.wait_for_more()
            # Without the store calls are answered as before, and no snapshot counts.
            control("S3", "kill")
            # An interrupted request is reported first, and then the address without an answer.
            wait_for(
                "a trouble with the store",
                lambda: (t := troubles(url)) and all("http://127.0.0.1" in w for w in t.values()),
            )
            before = health(url)["snapshot_epoch"]
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
        validate(clients)
        assert "waits: no broker of" in parent.errors.read_text()


def test_the_later_of_two_coordinators_takes_over(tmp_path: Path) -> None:
    name = f"two-{secrets.token_hex(4)}"
    (secret := tmp_path / "secret").write_text(secrets.token_hex(32))
    flags = ["--secret-file", str(secret), *settings(f"cluster_name={name}", "cluster_sources=2")]
    flags += ["--log", f"kafka://{os.environ['SERVERS_KAFKA']}"]
    flags += ["--snapshots", f"s3://{os.environ['SERVERS_S3_BUCKET']}/{name}"]

    def begin(nth: int) -> Process:
        # Each has a directory of its own, as on another machine.
        where = ["--listen", "127.0.0.1:0", "--http", "0", "--data-dir", str(tmp_path / f"d{nth}")]
        return Process(tmp_path / f"coordinator-{nth}", "coordinator", str(APP), *flags, *where)

    def join(nth: int, coordinator: Process) -> Process:
        at = coordinator.find(r"join at (\S+)")
        return Process(tmp_path / f"worker-{nth}", "worker", str(APP), *flags, "--join", at)

    with begin(1) as first, join(1, first) as old:
        url = first.find(r"http +(http://\S+)")
        with Clients(url, ACCOUNTS) as clients:
            clients.wait_for_more()
        with begin(2) as second, join(2, second):
            other = second.find(r"http +(http://\S+)")
            wait_for("the second's worker", lambda: workers_of(other))
            # The first one finds out when it has something to do.
            late = Clients(url, ACCOUNTS, seed=1)
            late.next, late.done = clients.next, clients.done
            with late:
                assert first.process.wait(60) != 0
            assert "the coordinator has ended" in first.errors.read_text()
            late.url = other
            validate(late)
            more = Clients(other, ACCOUNTS, seed=2)
            more.next, more.done = late.next, late.done
            with more:
                more.wait_for_more()
            validate(more)
            assert old.process.poll() != 0


def test_a_message_that_is_larger_than_brokers_take_is_named(tmp_path: Path) -> None:
    """Settings that do not fit each other: what waits for them leaves when they are mended."""
    name = f"large-{secrets.token_hex(4)}"
    more = (f"cluster_name={name}", "cluster_sources=1", "cluster_message_bytes_max=3000000")
    places = ["--log", f"kafka://{os.environ['SERVERS_KAFKA']}"]
    places += ["--snapshots", f"s3://{os.environ['SERVERS_S3_BUCKET']}/{name}"]
    with start(tmp_path, "small", *more, flags=places) as parent:
        url = url_of(parent)
        with tm.Client(url, retries=100, deadline=60) as client:
            assert client.call("letter.reply", id=1, text="x" * 10, times=9_000) == "x" * 90_000
            hasty = client.using(deadline=5)
            with pytest.raises(tm.DeadlineError) as late:
                hasty.call("letter.reply", id=1, text="x" * 10, times=70_000)
        found = wait_for("a trouble with the size", lambda: troubles(url))
        assert any("is larger than partition 0 of the topic" in what for what in found.values())
        assert any("raise max.message.bytes" in what for what in found.values())
    configure(f"{name}.outputs", "max.message.bytes", "4000000")
    large = "cluster_log_options=message.max.bytes=4000000"
    with start(tmp_path, "large", *more, large, flags=places) as parent:
        url = url_of(parent)
        with tm.Client(url, retries=100, deadline=60) as client:
            again = client.using(request_id=late.value.request_id)
            assert again.call("letter.reply", id=1, text="x" * 10, times=70_000) == "x" * 700_000
            assert client.row("letter", 1) == {"id": 1, "sent": 2}
        assert not troubles(url)
