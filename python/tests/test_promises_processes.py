"""The promises of docs/guides/processes.md that no process has to die for."""

from __future__ import annotations

import csv
import fcntl
import itertools
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm
from tidemill.cluster import Coordinator, Worker

PAGE = (Path(__file__).parents[2] / "docs/reference/settings.md").read_text()
SECRET = b"0123456789abcdef"
PATIENCE = 60.0

#: A log in Kafka where nobody answers.
NOWHERE = "127.0.0.1:1"


def bank(more: Callable[[tm.App, tm.Stream, tm.Table], object] | None = None) -> tm.App:
    """Accounts that events and calls change."""
    app = tm.App("bank")
    accounts = app.table("accounts", key="id", id=int, n=tm.column(int, default=0))
    payments = app.stream("payments", id=int)

    @app.procedure
    def add(tx, id: int, text: str = ""):
        accounts[id].n += 1
        return accounts[id].n

    if more is not None:
        more(app, payments, accounts)
    return app


class Cluster:
    """A coordinator and a worker, both in this process."""

    def __init__(
        self, app: tm.App, data: Path, worker: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        self.data = data
        common = {"data_dir": str(data), **settings}
        coordinator = Coordinator(app, {"http_port": 0, **common}, SECRET)
        self.running: list[Coordinator | Worker] = [coordinator]
        snapshots = {"cluster_snapshots": str(data / "cluster" / "snapshots")}
        own = {**common, **snapshots, **(worker or {})}
        self.running.append(Worker(app, own, SECRET, coordinator.address))
        self.address, self.url = coordinator.address, coordinator.url

    @property
    def coordinator(self) -> Coordinator:
        found = self.running[0]
        assert isinstance(found, Coordinator)
        return found

    def status(self) -> dict[str, Any]:
        return self.coordinator.status()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.coordinator.stop()
        # One that is dropped ends at once.
        self.running.clear()
        # The thread that writes its log holds the directory until its last write.
        with (self.data / "cluster" / "LOCK").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)


def call(cluster: Cluster, name: str, **arguments: object) -> httpx.Response:
    return httpx.post(f"{cluster.url}/call/{name}", json=arguments, timeout=PATIENCE)


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_worker_says_that_no_coordinator_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"
    common = {
        "data_dir": str(tmp_path),
        "cluster_snapshots": str(tmp_path / "snapshots"),
        "cluster_lease_us": 500_000,
        "cluster_beat_us": 50_000,
    }
    worker = Worker(bank(), common, SECRET, at)
    until(lambda: f"no coordinator answers at {at}" in (worker.trouble() or ""))
    coordinator = Coordinator(bank(), {**common, "cluster_listen": at}, SECRET)
    until(lambda: worker.trouble() is None)
    coordinator.stop()
    # Its connections end with it.
    del coordinator
    until(lambda: f"no coordinator answers at {at}" in (worker.trouble() or ""))
    worker.stop()


def test_a_worker_with_other_code_is_turned_away(tmp_path: Path) -> None:
    def other() -> tm.App:
        app = tm.App("bank")
        accounts = app.table("accounts", key="id", id=int, n=tm.column(int, default=0))
        app.stream("payments", id=int)

        @app.procedure
        def add(tx, id: int, text: str = ""):
            accounts[id].n += 2
            return accounts[id].n

        return app

    common = {"data_dir": str(tmp_path), "cluster_snapshots": str(tmp_path / "snapshots")}
    coordinator = Coordinator(bank(), common, SECRET)
    same = Worker(bank(), common, SECRET, coordinator.address)
    until(lambda: coordinator.status()["generation"] > 0)
    worker = Worker(other(), common, SECRET, coordinator.address)
    ended: list[Any] = []
    until(lambda: ended.append(worker.wait(0.1)) or ended[-1])
    assert ended[-1][0] == "refused"
    assert "runs another program" in ended[-1][1]
    for process in (worker, same, coordinator):
        process.stop()


def refused(data: Path, app: tm.App, **settings: object) -> str:
    """Why a coordinator does not start."""
    with pytest.raises(tm.Error) as caught:
        Coordinator(app, {"data_dir": str(data), **settings}, SECRET)
    return str(caught.value)


# -- settings


def test_what_a_process_is_told_has_the_defaults_of_the_page(tmp_path: Path) -> None:
    # Both are named where one does not fit the default of the other.
    assert "| `cluster_lease_us` | 2,000,000 |" in PAGE
    assert "| `cluster_beat_us` | 100,000 |" in PAGE
    said = refused(tmp_path, bank(), cluster_lease_us=299_999)
    assert "cluster_lease_us is 299999, and cluster_beat_us 100000" in said
    said = refused(tmp_path, bank(), cluster_beat_us=666_667)
    assert "cluster_lease_us is 2000000, and cluster_beat_us 666667" in said
    assert not any(tmp_path.iterdir())
    with Cluster(bank(), tmp_path) as cluster:
        assert cluster.address.startswith("127.0.0.1:")
        assert "| `cluster_sources` | 8 |" in PAGE
        until(lambda: len(cluster.status()["sources"]) == 8)
        assert "| `cluster_message_bytes_max` | 900,000 |" in PAGE
        # It is written twice.
        assert call(cluster, "add", id=1, text="x" * 440_000).json() == {"reply": 1}
        large = call(cluster, "add", id=1, text="x" * 460_000)
        assert large.status_code == 400
        assert "and may take 900000" in large.json()["error"]["what"]
        assert call(cluster, "add", id=1).json() == {"reply": 2}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"cluster_listen": "0.0.0.0:0"}, "set cluster_advertised to"),
        ({"cluster_listen": "here"}, "not an address"),
        ({"cluster_log": "http://x:1"}, "which is not a log"),
        ({"cluster_snapshots": "http://x"}, "which is not a store"),
        ({"cluster_certificate": "a.crt"}, "without cluster_key and cluster_authority"),
        ({"cluster_key": "a", "cluster_authority": "b"}, "without cluster_certificate"),
        ({"fresh": True, "cluster_log": f"kafka://{NOWHERE}"}, "can't be emptied from here"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    settings: dict[str, object], why: str, tmp_path: Path
) -> None:
    assert why in refused(tmp_path, bank(), **settings)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "LOCK"]
    assert left == []


def test_a_store_elsewhere_is_reached_by_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://192.0.2.1:1")
    said = refused(tmp_path, bank(), cluster_snapshots="s3://bucket/bank")
    assert "http://192.0.2.1:1 is not encrypted" in said
    assert "snapshots_allow_http" in said


def test_what_has_not_succeeded_in_time_in_a_store_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "| `cluster_snapshots_timeout_us` | 60,000,000 |" in PAGE
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    # It takes what is asked, and answers nothing.
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        said = refused(
            tmp_path,
            bank(),
            cluster_snapshots="s3://bucket/bank",
            cluster_snapshots_timeout_us=300_000,
        )
    assert f"http://{host}:{port}" in said


# -- topics


@pytest.mark.parametrize(
    ("topic", "options", "why"),
    [
        ("payments", {"properties": {"group.id": "x"}}, "no group is joined"),
        ("payments", {"timeout": 0.05}, f"no broker of {NOWHERE} answers"),
        ("bank.inputs", {}, "belongs to the cluster's log itself"),
    ],
)
def test_topics_that_can_not_be_read_are_refused(
    topic: str, options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    def reads(app: tm.App, payments: tm.Stream, accounts: tm.Table) -> None:
        payments.read(tm.kafka(topic, **{"brokers": NOWHERE, **options}))

        @app.transaction(payments)
        def pay(tx, e):
            accounts[e.id].n += 1

    said = refused(tmp_path, bank(reads), cluster_log=f"kafka://{NOWHERE}")
    assert why in said
    assert "test_promises_processes.py" in said


# -- files


def from_files(folder: Path, sink: str, source: str = "ids.csv", **written: Any) -> tm.App:
    """Reads ids from a file, and writes those that could be divided by."""
    (folder / "ids.csv").write_text("id\n1\n0\n2\n")

    def reads(app: tm.App, payments: tm.Stream, accounts: tm.Table) -> None:
        payments.read(tm.files(str(folder / source)))
        halves = payments.map(id=tm.col("id"), half=1 // tm.col("id"))

        @app.transaction(payments)
        def pay(tx, e):
            accounts[e.id].n += 1

        @app.transaction(halves)
        def halve(tx, e):
            return dict(id=e.id)

        halve.write(tm.files(str(folder / sink), **written))

    return bank(reads)


def rows_of(cluster: Cluster, id: int) -> object:
    found = httpx.get(f"{cluster.url}/tables/accounts/rows?key={id}", timeout=PATIENCE)
    return found.json()["row"]


def ends(cluster: Cluster) -> None:
    """Waits until all files have been read and their results have been written."""
    until(lambda: cluster.status()["input_ended"])
    until(lambda: [sink["rows"] for sink in cluster.status()["sinks"]] == [2])


def test_what_a_map_can_not_compute_is_a_dead_letter_of_that_stream(tmp_path: Path) -> None:
    app = from_files(tmp_path, "out.csv")
    with Cluster(app, tmp_path / "data") as cluster:
        ends(cluster)
        assert [rows_of(cluster, id) for id in range(3)] == [
            {"id": 0, "n": 1},
            {"id": 1, "n": 1},
            {"id": 2, "n": 1},
        ]
        with tm.Client(str(cluster.url)) as client:
            [letter] = itertools.islice(client.subscribe("payments.map.dead", after=-1), 1)
        assert (letter.value["origin"], letter.value["raw"]) == ("stage", "0")
    with (tmp_path / "out.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == ["1", "2"]


def test_parquet_stays_in_parts_until_all_input_has_ended(tmp_path: Path) -> None:
    app = from_files(tmp_path, "out.parquet")
    out, parts = tmp_path / "out.parquet", tmp_path / "out.parquet.parts"
    with Cluster(app, tmp_path / "data") as cluster:
        ends(cluster)
    assert (out.exists(), parts.is_dir()) == (False, True)
    with Cluster(app, tmp_path / "data") as cluster:
        ends(cluster)
        assert cluster.coordinator.stop(more_input=False)
    assert (out.is_file(), parts.exists()) == (True, False)


def test_a_file_that_is_there_is_written_over_where_that_is_said(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("mine\n")
    said = refused(tmp_path / "data", from_files(tmp_path, "out.csv"))
    assert "out.csv" in said
    assert "is there already" in said
    assert out.read_text() == "mine\n"
    with Cluster(from_files(tmp_path, "out.csv", overwrite=True), tmp_path / "one") as cluster:
        ends(cluster)
    assert out.read_text().splitlines() == ["id", "1", "2"]
    out.write_text("mine\n")
    with Cluster(from_files(tmp_path, "out.csv"), tmp_path / "two", fresh=True) as cluster:
        ends(cluster)
    assert out.read_text().splitlines() == ["id", "1", "2"]


# -- what it says of itself


def test_one_worker_owns_the_rows_of_an_app_with_windows(tmp_path: Path) -> None:
    def windowed(app: tm.App, payments: tm.Stream, accounts: tm.Table) -> None:
        recent = app.window("recent", rows=4, slide=2, id=int)

        @app.procedure(owns=[recent])
        def look(tx, id: int):
            recent.insert(id=id)
            return len(list(recent.rows()))

    with Cluster(bank(windowed), tmp_path) as cluster:
        assert cluster.status()["sole_owner"] is True
        assert httpx.get(f"{cluster.url}/health").json()["sole_owner"] is True
        assert [call(cluster, "look", id=n).json()["reply"] for n in range(6)] == [0, 0, 0, 4, 4, 4]


def test_health_and_metrics_name_each_source(tmp_path: Path) -> None:
    with Cluster(bank(), tmp_path) as cluster:
        assert call(cluster, "add", id=1).json() == {"reply": 1}
        # Its report about itself follows a moment later.
        until(lambda: sum(source["requests"] for source in cluster.status()["sources"]) == 1)
        health = httpx.get(f"{cluster.url}/health").json()
        assert len(health["sources"]) == 8
        keys = {"source", "requests", "lag", "requests_per_s", "skew", "worker"}
        assert all(source.keys() >= keys for source in health["sources"])
        keys = {"worker", "address", "process", "http"}
        assert [member.keys() for member in health["members"]] == [keys]
        until(lambda: cluster.status()["members"][0]["process"] == os.getpid())
        assert cluster.status()["process"] == os.getpid()
        assert (health["left_out"], health["turned_away"], health["troubles"]) == ([], [], [])
        metrics = httpx.get(f"{cluster.url}/metrics").text
        assert "\ntidemill_cluster_processes_in_trouble 0\n" in metrics
        for name in ("lag", "skew"):
            found = re.findall(rf'^tidemill_cluster_source_{name}{{source="(\d)"}}', metrics, re.M)
            assert found == [str(n) for n in range(8)]


# -- its end


def test_without_workers_a_coordinator_ends_and_the_next_start_executes_again(
    tmp_path: Path,
) -> None:
    with Cluster(bank(), tmp_path, cluster_snapshot_us=60_000_000) as cluster:
        assert call(cluster, "add", id=1).json() == {"reply": 1}
        until(lambda: cluster.status()["epoch"] > 0)
        cluster.running.pop()
        cluster.coordinator.stop()
        assert cluster.status()["snapshot_epoch"] == 0
    with Cluster(bank(), tmp_path) as cluster:
        assert rows_of(cluster, 1) == {"id": 1, "n": 1}
        assert call(cluster, "add", id=1).json() == {"reply": 2}


def test_in_good_order_all_is_in_a_snapshot(tmp_path: Path) -> None:
    with Cluster(bank(), tmp_path, cluster_snapshot_us=60_000_000) as cluster:
        assert call(cluster, "add", id=1).json() == {"reply": 1}
        assert cluster.coordinator.stop()
        status = cluster.status()
        assert status["snapshot_epoch"] == status["epoch"] > 0


def test_what_is_another_log_or_reads_other_files_is_refused(tmp_path: Path) -> None:
    app = from_files(tmp_path, "out.csv")
    with Cluster(app, tmp_path / "data") as cluster:
        ends(cluster)
    said = refused(tmp_path / "data", app, cluster_name="other")
    assert "the log of another app" in said
    (tmp_path / "more.csv").write_text("id\n1\n0\n2\n3\n")
    said = refused(tmp_path / "data", from_files(tmp_path, "out.csv", source="more.csv"))
    assert "reads the files more.csv, but its log began with ids.csv" in said
    assert "--fresh" in said
    # Others that say when and how often things happen may be other ones.
    with Cluster(app, tmp_path / "data", cluster_epoch_rows_max=7) as cluster:
        ends(cluster)
        assert call(cluster, "add", id=1).json() == {"reply": 2}


def test_streams_can_be_written_as_they_come_and_as_stages_leave_them(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id\n3\n1\n")
    (tmp_path / "in" / "b.csv").write_text("id\n2\nnone\n0\n")

    def reads(app: tm.App, payments: tm.Stream, accounts: tm.Table) -> None:
        # Without event time files are read one after the other.
        payments.read(tm.files(str(tmp_path / "in" / "*.csv")))
        large = payments.filter(tm.col("id") > 1, name="large")
        twice = large.map(n=tm.col("id") * 2, name="twice")
        for stream in (payments, large, twice, payments.dead):
            stream.write(tm.files(str(tmp_path / f"{stream.name}.jsonl")))

        @app.transaction(payments)
        def pay(tx, e):
            tx.require(e.id > 0, "nobody")
            accounts[e.id].n += 1

        pay.aborted.write(tm.files(str(tmp_path / "refused.jsonl")))

    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]

    with Cluster(bank(reads), tmp_path / "data") as cluster:
        until(lambda: cluster.status()["input_ended"])
        assert cluster.coordinator.stop(more_input=False)
    assert lines("payments.jsonl") == [{"id": id} for id in (3, 1, 2, 0)]
    assert lines("large.jsonl") == [{"id": id} for id in (3, 2)]
    assert lines("twice.jsonl") == [{"n": n} for n in (6, 4)]
    assert lines("refused.jsonl") == [{"id": 0, "reason": "nobody"}]
    [dead] = lines("payments.dead.jsonl")
    assert (dead["raw"], dead["line"]) == ("none", 3)


# -- certificates


def certificate(folder: Path, name: str, by: str) -> dict[str, str]:
    """The settings of a process with a certificate of an authority, which is made where needed."""

    def openssl(*args: str) -> None:
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        command = ["openssl", "req", "-x509", *new, *args]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    openssl("-subj", f"/CN={by}", "-keyout", f"{by}.key", "-out", f"{by}.crt")
    openssl(
        *("-CA", f"{by}.crt", "-CAkey", f"{by}.key", "-subj", f"/CN={name}"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
        *("-keyout", f"{name}.key", "-out", f"{name}.crt"),
    )
    files = {"certificate": f"{name}.crt", "key": f"{name}.key", "authority": "both.crt"}
    return {f"cluster_{what}": str(folder / file) for what, file in files.items()}


def test_the_old_and_the_new_authority_may_sign_meanwhile(tmp_path: Path) -> None:
    old, new = certificate(tmp_path, "one", "old"), certificate(tmp_path, "two", "new")
    both = [(tmp_path / f"{by}.crt").read_text() for by in ("old", "new")]
    (tmp_path / "both.crt").write_text("".join(both))
    with Cluster(bank(), tmp_path / "data", worker=new, **old) as cluster:
        assert call(cluster, "add", id=1).json() == {"reply": 1}
    # With the new one alone the old certificate is nobody's.
    (tmp_path / "both.crt").write_text(both[1])
    assert "not issued by the authority" in refused(tmp_path / "data", bank(), **old)
    with Cluster(bank(), tmp_path / "data", **new) as cluster:
        assert call(cluster, "add", id=1).json() == {"reply": 2}


def test_another_number_of_sources_is_another_log(tmp_path: Path) -> None:
    with Cluster(bank(), tmp_path, cluster_sources=3) as cluster:
        assert call(cluster, "add", id=1).json() == {"reply": 1}
    for other in (2, 4, 8):
        assert "the number of sources of the log" in refused(
            tmp_path, bank(), cluster_sources=other
        )
    with Cluster(bank(), tmp_path, cluster_sources=3) as cluster:
        assert call(cluster, "add", id=1).json() == {"reply": 2}


def test_a_coordinator_without_workers_says_that_it_has_no_snapshot(tmp_path: Path) -> None:
    cluster = Cluster(bank(), tmp_path, cluster_snapshot_us=60_000_000)
    assert call(cluster, "add", id=1).json() == {"reply": 1}
    until(lambda: cluster.status()["epoch"] > 0)
    cluster.running.pop()
    assert cluster.status()["snapshot_epoch"] == 0
    assert not cluster.coordinator.stop()
    cluster.__exit__()
    with Cluster(bank(), tmp_path) as again:
        assert rows_of(again, 1) == {"id": 1, "n": 1}


def test_changes_of_a_table_can_be_followed(tmp_path: Path) -> None:
    with Cluster(bank(), tmp_path) as cluster, tm.Client(cluster.url) as client:
        changes = client.changes("accounts")
        assert isinstance(next(changes), tm.Reset)
        assert call(cluster, "add", id=1).json() == {"reply": 1}
        cut = next(changes)
        assert isinstance(cut, tm.Cut)
        assert [change.row for change in cut.changes] == [{"id": 1, "n": 1}]
        paths = httpx.get(f"{cluster.url}/openapi.json").json()["paths"]
        assert "/tables/accounts/changes" in paths
