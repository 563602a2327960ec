"""Functions that fail on several processes: told to callers, counted, and marked in what leaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import pytest

import tidemill as tm

from .kill.cluster import Process, health, settings, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

APP = """
import tidemill as tm

app = tm.App("failing")
t = app.table("t", key="id", id=int, n=tm.column(int, default=0))
one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))
events = app.stream("events", id=int)
events.read(tm.files("events.csv"))

def work(id):
    if id == 3:
        raise KeyError("x")
    if id == 4:
        raise tm.Abort("four is refused")

@one.function(creates=True)
async def ask(self, ctx):
    work(self.id)
    self.n += 1
    return self.n

@app.transaction(events, opaque=True)
def take(tx, e):
    t[e.id].n += 1
    work(e.id)

take.aborted.write(tm.files("aborted.jsonl"))
"""


def test_faults_are_told_and_counted(tmp_path: Path) -> None:
    app = APP
    for name in ("events.csv", "aborted.jsonl"):
        app = app.replace(name, str(tmp_path / name))
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "events.csv").write_text("id\n1\n3\n4\n2\n3\n")
    flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings("on_fault=abort")]
    with Process(
        tmp_path / "parent", "run", str(tmp_path / "app.py"), "--http", "0", *flags
    ) as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("2 workers", lambda: len(workers_of(url)) == 2)
        for id, status, body in (
            (1, 200, {"reply": 1}),
            (3, 500, {"fault": "KeyError: 'x'"}),
            (4, 409, {"aborted": "four is refused"}),
        ):
            answer = httpx.post(f"{url}/call/one.ask", json={"id": id}, timeout=30)
            assert (answer.status_code, answer.json()) == (status, body)
        with tm.Client(url) as client, pytest.raises(tm.Fault, match=r"^KeyError: 'x'$"):
            client.call("one.ask", id=3)
        # Two of calls, and two of events.
        wait_for("faults", lambda: health(url)["faults"] == 4)
        assert "\ntidemill_cluster_faults 4\n" in httpx.get(f"{url}/metrics").text
        assert parent.stop() == 0
    left = (tmp_path / "aborted.jsonl").read_text().splitlines()
    reasons = [json.loads(line)["reason"] for line in left]
    assert reasons == ["fault: KeyError: 'x'", "four is refused", "fault: KeyError: 'x'"]
