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


def test_a_full_disk_keeps_nobody_from_reading(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=24m none "$0"; exec "$@"'
    own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", mount, tmp_path]
    has = shutil.which("unshare")
    if not has or subprocess.run([*own, "true"], capture_output=True).returncode:
        pytest.skip("no file system of its own to be had here")
    command = [*own, sys.executable, "-c", APP, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout == "done\n", done.stderr
