"""The status of a cluster that is started by hand: with workers, without them, and after it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from .kill.cluster import Process, health, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

APP = """
import tidemill as tm

app = tm.App("hotels")
hotel = app.table("hotel", key="name", name=str, free=int, ordered=True)


@app.procedure
def book(tx, name: str):
    tx.require(name != "Ritz", "the Ritz is full")
    hotel.upsert(name=name, free=1)
"""


def cli(folder: Path, *args: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tidemill.cli", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_cluster_without_workers_says_so(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "secret").write_text("0123456789abcdef")
    app, secret = str(tmp_path / "app.py"), ["--secret-file", str(tmp_path / "secret")]
    data = ["--data-dir", str(tmp_path / "hotels.tidemill")]
    flags = ["--listen", "127.0.0.1:0", "--http", "0", *data]
    with Process(tmp_path / "coordinator", "coordinator", app, *secret, *flags) as coordinator:
        url = coordinator.find(r"http +(http://\S+)")
        join = ["--join", coordinator.find(r"workers join at (\S+)")]
        workers = [Process(tmp_path / f"worker-{n}", "worker", app, *secret, *join) for n in (0, 1)]
        with workers[0], workers[1]:
            wait_for("2 workers", lambda: len(workers_of(url)) == 2)
            for name, status in (("Adlon", 200), ("Ritz", 409), ("Sacher", 200)):
                answer = httpx.post(f"{url}/call/book", json={"name": name}, timeout=30)
                assert answer.status_code == status
            epoch = health(url)["epoch"]
            assert epoch > 0
            for worker in workers:
                worker.send(signal.SIGKILL)
            wait_for("no generation", lambda: health(url)["generation"] == 0)
            assert health(url)["epoch"] >= epoch
            epoch = health(url)["epoch"]
        coordinator.find(r"(no generation runs; connected: 0 workers)")
        before = time.monotonic()
        for path in ("tables/hotel/rows", "tables/hotel/rows?key=Adlon"):
            answer = httpx.get(f"{url}/{path}", timeout=30)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["what"] == "no worker answers now"
        assert time.monotonic() - before < 8
        # The plain command finds the address beside the log.
        for args in (["status", "--cluster", url], ["status"], ["status", *data]):
            code, said = cli(tmp_path, *args)
            assert code == 0, said
            assert re.search(r"^state +forms a generation; connected: 0 workers$", said, re.M)
            assert re.search(rf"^epoch +{epoch}$", said, re.M), said
            assert re.search(r"^committed +2$", said, re.M)
        assert coordinator.stop() == 0
    code, said = cli(tmp_path, "status")
    assert code == 0, said
    assert re.search(r"^state +stopped, or runs without --http$", said, re.M)
    assert re.search(r"^refused +1$", said, re.M)
    assert "reason=the Ritz is full" in said
    code, said = cli(tmp_path, "status", "--json")
    assert json.loads(said)["events"] == 3
    # The address that a killed coordinator left leads nowhere.
    (tmp_path / "hotels.tidemill" / "cluster" / "http").write_text(url)
    code, said = cli(tmp_path, "status")
    assert code == 0, said
    assert f"no coordinator answers at {url}" in said
    assert re.search(r"^committed +2$", said, re.M)
