"""A start refuses a damaged data directory by name; nothing changes or hangs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

#: How long anything may take that has to happen.
PATIENCE = 60.0

PUSHED = """
import os, sys
import tidemill as tm

app = tm.App("pushed")
seen = app.table("seen", key="id", id=int)
ids = app.stream("ids", id=int)


@app.transaction(ids)
def take(tx, e):
    seen.insert(id=e.id)


with app.start(data_dir="data") as mill:
    if len(sys.argv) > 1:
        for n in (1, 2):
            mill.send(ids, [{"id": n}], wait=True)
        os.kill(os.getpid(), 9)
    print([row["id"] for row in mill.table(seen).rows()])
"""

FOLLOWED = """
import time
import tidemill as tm

app = tm.App("followed")
seen = app.table("seen", key="id", id=int)
ids = app.stream("ids", id=int)
ids.read(tm.files("in.csv", follow=True))


@app.transaction(ids)
def take(tx, e):
    seen.insert(id=e.id)
    return {"id": e.id}


take.write(tm.files("out.jsonl"))
"""

SLOW = FOLLOWED.replace("    return", "    time.sleep(0.005)\n    return").replace(
    "@app.transaction(ids)", "@app.transaction(ids, opaque=True, out=dict(id=int))"
)


def python(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end."""
    command = [sys.executable, *args]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def tidemill(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return python(folder, "-m", "tidemill.cli", *args)


def began(folder: Path, *args: str) -> subprocess.Popen[str]:
    """A command that runs."""
    command = [sys.executable, "-m", "tidemill.cli", *args]
    output = (folder / "run.log").open("w")
    return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, text=True)


def wait_for_rows(path: Path, rows: int, process: subprocess.Popen[str]) -> None:
    """Waits until an output has so many."""
    until = time.monotonic() + PATIENCE
    while not path.exists() or path.read_text().count("\n") < rows:
        said = path.with_name("run.log").read_text()
        assert process.poll() is None, said
        assert time.monotonic() < until, said
        time.sleep(0.02)


def files(folder: Path) -> dict[str, str]:
    """The hash of each file of a folder."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


@pytest.mark.parametrize("harm", ["bit", "zeros", "gone"])
def test_what_is_missing_of_acknowledged_rows_is_named(tmp_path: Path, harm: str) -> None:
    (tmp_path / "app.py").write_text(PUSHED)
    assert python(tmp_path, "app.py", "send").returncode == -signal.SIGKILL
    (segment,) = (tmp_path / "data" / "input").glob("*.log")
    text = bytearray(segment.read_bytes())
    # The last block begins 8 bytes before its magic.
    last = text.rindex(b"TIDB") - 8
    match harm:
        case "bit":
            text[last + 45] ^= 1
            segment.write_bytes(text)
        case "zeros":
            segment.write_bytes(text[:last] + bytes(len(text) - last))
        case "gone":
            segment.unlink()
    before = files(tmp_path / "data")
    for command in (
        python(tmp_path, "app.py"),
        tidemill(tmp_path, "verify", "--data-dir", "data"),
        tidemill(tmp_path, "backup", str(tmp_path / "copy"), "--data-dir", "data"),
    ):
        assert command.returncode == 1, command
        assert segment.name in command.stderr, command
        assert "restore" in command.stderr, command.stderr
    assert files(tmp_path / "data") == before
    if harm != "gone":
        # The earlier data is intact once the file is repaired.
        text[last + 45] ^= harm == "bit"
        segment.write_bytes(text)
        assert python(tmp_path, "app.py").stdout == "[1, 2]\n"


@pytest.mark.parametrize("flags", [(), ("--processes", "2")])
def test_a_followed_file_that_is_shorter_is_refused(tmp_path: Path, flags: tuple[str]) -> None:
    (tmp_path / "app.py").write_text(FOLLOWED)
    source = tmp_path / "in.csv"
    source.write_text("id\n1\n2\n")
    process = began(tmp_path, "run", "app.py", *flags)
    wait_for_rows(tmp_path / "out.jsonl", 2, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in [process.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    source.write_text("id\n1\n")
    again = tidemill(tmp_path, "run", "app.py", *flags)
    assert again.returncode == 1, again
    assert "in.csv" in again.stderr, again.stderr
    assert "--fresh" in again.stderr, again.stderr


def test_a_recovery_ends_on_the_first_signal(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SLOW)
    (tmp_path / "in.csv").write_text("id\n")
    run = ("run", "app.py", "--set", "snapshot_us=1000000000")
    process = began(tmp_path, *run)
    # The rows between two looks are an epoch. A recovery can be interrupted between two epochs.
    for first in range(0, 300, 30):
        with (tmp_path / "in.csv").open("a") as source:
            source.write("".join(f"{n}\n" for n in range(first, first + 30)))
        wait_for_rows(tmp_path / "out.jsonl", first + 30, process)
    process.kill()
    process.wait()
    again = began(tmp_path, *run)
    until = time.monotonic() + PATIENCE
    while "continuing" not in (tmp_path / "run.log").read_text():
        assert again.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    again.send_signal(signal.SIGINT)
    assert again.wait(PATIENCE) == 130
    said = (tmp_path / "run.log").read_text()
    executed = re.search(r"^events +([\d,]+)$", said, re.M)
    assert executed, said
    assert int(executed[1].replace(",", "")) < 200, said
    # Nothing is lost: the next one begins the recovery anew.
    last = began(tmp_path, *run)
    wait_for_rows(tmp_path / "out.jsonl", 300, last)
    last.send_signal(signal.SIGTERM)
    last.wait(PATIENCE)
    rows = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").open()]
    assert rows == list(range(300))
