"""The benchmark over several processes: small runs, all rows compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    """The report of ``tidemill bench``."""
    command = [sys.executable, "-m", "tidemill.cli", "bench", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["valid"], found
    return found


def test_transfers(tmp_path: Path) -> None:
    common = ("--processes", "2", "--keys", "50", "--events", "600", "--abort", "0.1")
    python = bench(tmp_path, "ycsb-t", *common, "--seed", "3")
    assert python["aborted"] > 0
    assert python["unanswered"] == python["rows_wrong"] == 0
    assert python["rows_compared"] == 50
    assert python["client"] == "in the coordinator's process"
    traced = bench(tmp_path, "ycsb-t", *common, "--seed", "3", "--program", "traced")
    # Which of them abort hangs on no order: they ask for more than any account has.
    assert traced["state_hash"] == python["state_hash"]
    assert traced["aborted"] == python["aborted"]


def test_transfers_at_a_rate(tmp_path: Path) -> None:
    given = ("--rate", "500", "--seconds", "1", "--multi", "0", "--snapshot-us", "100000")
    found = bench(tmp_path, "ycsb-t", "--processes", "2", *given)
    assert found["offered_per_s"] == 500
    assert found["events"] == 500
    assert found["snapshots_taken"] > 1


@pytest.mark.parametrize("workload", ["tpcc", "hotel", "movie"])
def test_workloads(tmp_path: Path, workload: str) -> None:
    small = ("--warehouses", "2", "--items", "100") if workload == "tpcc" else ()
    found = bench(tmp_path, workload, "--processes", "2", "--events", "300", *small)
    assert found["events"] == 300
    assert found["rows_compared"] > 300


@pytest.mark.parametrize("kind", ["moves", "timed", "batches", "rows"])
def test_files(tmp_path: Path, kind: str) -> None:
    given = ("files", "--of", kind, "--events", "3017", "--keys", "40", "--batch", "25")
    found = [
        bench(tmp_path, *given, *processes)
        for processes in ((), ("--processes", "2", "--epoch", "90"))
    ]
    assert [one["processes"] for one in found] == [1, 2]
    assert found[0]["output_hash"] == found[1]["output_hash"]


def test_a_worker_is_killed(tmp_path: Path) -> None:
    given = ("--rate", "400", "--seconds", "3", "--kill", "1")
    found = bench(tmp_path, "ycsb-t", "--processes", "2", *given)
    assert len(found["killed"]) == 1
    assert len(found["generations"]) > 1


@pytest.mark.parametrize("option", ["--threads=2", "--program=rust", "--multi=101", "--rate=0"])
def test_refusals(tmp_path: Path, option: str) -> None:
    command = [sys.executable, "-m", "tidemill.cli", "bench", "ycsb-t", "--processes=2", option]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert option.split("=")[0] in done.stderr


@pytest.mark.servers
@pytest.mark.parametrize("program", ["python", "traced"])
def test_servers(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka and S3 in earnest; a worker is killed while requests come."""
    log = f"kafka://{os.environ['SERVERS_KAFKA']}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["SERVERS_S3_ENDPOINT"])
    snapshots = f"s3://{os.environ['SERVERS_S3_BUCKET']}/bench-{program}"
    servers = ("--processes", "2", "--program", program, "--log", log, "--snapshots", snapshots)
    together = ("--together", "64")
    for more in ((), together):
        found = bench(tmp_path, "ycsb-t", *servers, *more, "--events", "5000")
        # Events by column come from the coordinator's process.
        is_apart = program == "python"
        assert found["client"] == (
            "a process of its own" if is_apart else "in the coordinator's process"
        )
    killed = ("--rate", "1000", "--seconds", "8", "--kill", "3")
    found = bench(tmp_path, "ycsb-t", *servers, *together, *killed)
    assert len(found["killed"]) == 1
    assert len(found["generations"]) > 1
    assert found["snapshots_taken"] > 0
