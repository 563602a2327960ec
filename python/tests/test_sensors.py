"""Windows over two hot rows, in long epochs: whatever is tried, what comes out is the same."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

APP = Path(__file__).parents[2] / "corpus" / "programs" / "sensors" / "app.py"
START = dt.datetime(2013, 12, 2, 21, 15)


def prepare(folder: Path) -> None:
    """Copies the program, with more to read: an epoch of it is long."""
    shutil.copy(APP, folder)
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    for name, rows, step_s in (("machine", 12_000, 300), ("ambient", 4_000, 3_600)):
        with (folder / "in" / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["at", "value"])
            for i in range(rows):
                value = 80 + 15 * math.sin(i / 97) + (7 * i % 13) / 3
                at = START + dt.timedelta(seconds=step_s * i)
                out.writerow([at.isoformat(), f"{value - (60 if i % 1_003 == 0 else 0):.6f}"])


def outcome(folder: Path, *flags: str) -> tuple[str, str]:
    """Returns the outcome: the tables, and all outputs."""
    folder.mkdir()
    prepare(folder)
    line = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--json", *flags]
    ran = subprocess.run(line, cwd=folder, check=True, capture_output=True, timeout=120)
    said = json.loads(ran.stdout)
    return said["state_hash"], said["output_hash"]


def test_whatever_is_tried_comes_to_the_same(tmp_path: Path) -> None:
    wanted = outcome(tmp_path / "serial", "--set", "strategy=serial")
    # Short epochs in front of long ones, and many epochs, are what it takes to try something.
    for nth, flags in enumerate(
        (
            ["--workers", "2"],
            ["--workers", "2", "--set", "epoch_rows_max=1500"],
            ["--workers", "2", "--set", "strategy=ns-op-eager"],
        )
    ):
        assert outcome(tmp_path / f"{nth}", *flags) == wanted, flags
