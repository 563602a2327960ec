"""A real file system that is full: reading goes on, and writing when there is room again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: Run on a file system of 24 MiB.
APP = """
import sys, threading, time
from pathlib import Path

import tidemill as tm

folder = Path(sys.argv[1])
app = tm.App("full")
counts = app.table("counts", key="k", k=int, n=tm.column(int, default=0))
events = app.stream("events", k=int, text=str)

@app.transaction(events)
def count(tx, e):
    counts[e.k].n += 1

ballast = folder / "ballast"
mill = app.start(data_dir=folder / "data", log_segment_bytes=1 << 20, durable="log")
mill.send("events", [{"k": 0, "text": ""}], wait=True)
with ballast.open("wb") as file:
    try:
        while file.write(bytes(1 << 16)) and not file.flush():
            pass
    except OSError:
        pass

sent = 4000
def send():
    for n in range(sent):
        mill.send("events", [{"k": n % 7, "text": "x" * 1000}])

sending = threading.Thread(target=send)
sending.start()
while not mill.status()["stalled"]:
    time.sleep(0.01)
for _ in range(3):
    events = mill.status()["events"]
    assert sum(row["n"] for row in mill.table("counts").rows()) == events, events
    assert 0 < events < sent
    assert mill.table("counts")[0]["n"] > 0
    assert mill.summary()["events"] == events
    time.sleep(0.2)
assert mill.status()["stalled"]
ballast.unlink()
sending.join()
mill.drain()
assert not mill.status()["stalled"]
assert sum(row["n"] for row in mill.table("counts").rows()) == sent + 1
mill.stop()
with app.start(data_dir=folder / "data", durable="log") as mill:
    assert sum(row["n"] for row in mill.table("counts").rows()) == sent + 1
print("done")
"""

#: The same, and the disk is full before it starts.
START = """
import os, subprocess, sys, time
from pathlib import Path

import tidemill as tm

folder = Path(sys.argv[1])
app = tm.App("full")
counts = app.table("counts", key="k", k=int, n=tm.column(int, default=0))
events = app.stream("events", k=int, text=str)

@app.transaction(events)
def count(tx, e):
    counts[e.k].n += 1
    return {"k": e.k}

count.write(tm.files(folder / "counts.jsonl"))
settings = dict(data_dir=folder / "data", log_segment_bytes=1 << 20)
if len(sys.argv) > 2:
    mill = app.start(**settings)
    for n in range(3):
        mill.send("events", [{"k": n, "text": ""}], wait=True)
    os.kill(os.getpid(), 9)
subprocess.run([sys.executable, "-c", sys.orig_argv[2], folder, "child"])
with (folder / "ballast").open("wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
mill = app.start(**settings)
assert [row["k"] for row in mill.table(counts).rows()] == [0, 1, 2]
mill.send("events", [{"k": 3, "text": "x" * 500_000}])
while not mill.status()["stalled"]:
    time.sleep(0.01)
assert "no room" in mill.status()["stalled"]
assert len(mill.table(counts)) == 3
(folder / "ballast").unlink()
mill.drain()
assert not mill.status()["stalled"]
assert len(mill.table(counts)) == 4
mill.stop()
assert (folder / "counts.jsonl").read_text().count("{") == 4
print("done")
"""

CLUSTER = """
import os, signal, subprocess, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
inside = Path(sys.argv[2])
(inside / "app.py").write_text('''
import tidemill as tm

app = tm.App("full")
seen = app.table("seen", key="id", id=int)
lines = app.stream("lines", id=int, text=str)
lines.read(tm.files("in.jsonl", follow=True))

@app.transaction(lines)
def take(tx, e):
    seen.upsert(id=e.id)
    return {"id": e.id, "text": e.text}

take.write(tm.files("%s/out.jsonl"))
''' % folder)
rows = "".join('{"id": %d, "text": "%s"}\\n' % (n, "x" * 500) for n in range(4000))
source = inside / "in.jsonl"
source.write_text(rows[: rows.index("\\n") + 1])
with (folder / "ballast").open("wb") as file:
    file.write(bytes(23 << 20))
log = (inside / "log").open("w")
run = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--processes", "2", "--http", "0"]
process = subprocess.Popen(run, cwd=inside, stdout=log, stderr=log)
out = folder / "out.jsonl"

def wait(what, holds):
    until = time.monotonic() + 60
    while not holds():
        assert process.poll() is None, (inside / "log").read_text()
        assert time.monotonic() < until, what + (inside / "log").read_text()
        time.sleep(0.05)

wait("a row", lambda: out.exists() and out.read_text().count("\\n"))
with source.open("a") as file:
    file.write(rows[rows.index("\\n") + 1 :])
wait("a reason", lambda: "no room" in (inside / "log").read_text())
(folder / "ballast").unlink()
wait("all rows", lambda: out.read_text().count("\\n") == 4000)
process.send_signal(signal.SIGTERM)
process.wait(60)
assert out.read_text() == rows.replace(", ", ",").replace(": ", ":"), out.read_text()[:100]
print("done")
"""


def within_24_mib(tmp_path: Path, program: str, *args: Path) -> None:
    """Runs a program that has a small file system of its own in a folder."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = 'mount -t tmpfs -o size=24m none "$0"; exec "$@"'
    own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", mount, folder]
    has = shutil.which("unshare")
    if not has or subprocess.run([*own, "true"], capture_output=True).returncode:
        pytest.skip("no file system of its own to be had here")
    command = [*own, sys.executable, "-c", program, folder, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout == "done\n", done.stderr


def test_a_full_disk_keeps_nobody_from_reading(tmp_path: Path) -> None:
    within_24_mib(tmp_path, APP)


def test_a_start_on_a_full_disk_waits_for_room(tmp_path: Path) -> None:
    within_24_mib(tmp_path, START)


def test_a_file_of_a_cluster_waits_for_room(tmp_path: Path) -> None:
    within_24_mib(tmp_path, CLUSTER, tmp_path)
