"""Rows of a file into an app that reads only this file, in one process or on several."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tidemill.app import App
from tidemill.errors import ResourceError, SettingError
from tidemill.files import files
from tidemill.types import column

#: The kinds of apps. A row moves an amount between two others, in order of arrival or of event
#: time. Or a procedure takes a batch and changes one row, or one for each row of the batch.
KINDS = ("moves", "timed", "batches", "rows")
#: The possible options.
OPTIONS = ("workload", "of", "processes", "events", "keys", "batch", "epoch", "seed", "repeat")
#: The longest time of a run, in seconds.
PATIENCE_S = 1800

Row = tuple[int, int, int, int]


def app(kind: str, batch: int) -> App:
    """Returns the app, which reads ``events.csv`` and writes ``out.csv``.

    >>> [handler.path for handler in app("moves", 0).handlers]
    ['traced']
    """
    made = App("ingest")
    rows = made.table("rows", key="id", id=int, n=column(int, default=0))
    timed: dict[str, Any] = {"time": "at"} if kind == "timed" else {}
    events = made.stream("events", at=int, id=int, to=int, n=int, **timed)
    events.read(files("events.csv"))
    if kind in ("moves", "timed"):

        @made.transaction(events)
        def take(tx: Any, e: Any) -> Any:
            rows[e.id].n -= e.n
            rows[e.to].n += e.n
            return {"id": e.id, "n": rows[e.id].n}

        take.write(files("out.csv"))
        return made

    @made.procedure(events.batches(batch), out={"id": int, "n": int})
    def take_batch(tx: Any, events: Any) -> Any:
        last = events[-1] if kind == "rows" else events[0]
        for event in events if kind == "rows" else events[:1]:
            rows[event.id].n += event.n
        return {"id": last.id, "n": rows[last.id].n}

    take_batch.write(files("out.csv"))
    return made


def come(kind: str, batch: int, rows: list[Row]) -> Iterator[str]:
    """Yields the expected lines of the output."""
    sums: dict[int, int] = defaultdict(int)
    if kind in ("moves", "timed"):
        for _, id, to, n in rows:
            sums[id] -= n
            sums[to] += n
            yield f"{id},{sums[id]}"
        return
    for first in range(0, len(rows), batch):
        some = rows[first : first + batch if kind == "rows" else first + 1]
        for _, id, _, n in some:
            sums[id] += n
        last = some[-1][1]
        yield f"{last},{sums[last]}"


def run(given: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Runs the workload. It is valid if its output equals that of one loop, bit for bit."""
    for option in given:
        if option not in OPTIONS:
            raise SettingError(f"--{option.replace('_', '-')}: files has no such option")
    kind, batch = given.get("of", KINDS[0]), given.get("batch", 100)
    if kind not in KINDS:
        raise SettingError(f"--of {kind}: it must be one of {', '.join(KINDS)}")
    count, keys, repeat = (
        given.get(name, default)
        for name, default in (("events", 400_000), ("keys", 10_000), ("repeat", 1))
    )
    for name, value in (("events", count), ("keys", keys), ("repeat", repeat), ("batch", batch)):
        if value < 1:
            raise SettingError(f"--{name} {value}: it must be above 0")
    draw = random.Random(given.get("seed", 42))
    rows = [
        (at, draw.randrange(keys), draw.randrange(keys), draw.randrange(100)) for at in range(count)
    ]
    wanted = "\n".join(["id,n", *come(kind, batch, rows)]) + "\n"
    folder = Path(tempfile.mkdtemp(prefix="tidemill-bench-"))
    line = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--fresh", "--json"]
    if "processes" in given:
        line += ["--processes", str(given["processes"])]
    if "epoch" in given:
        name = "cluster_epoch_rows_max" if "processes" in given else "epoch_rows_max"
        line += ["--set", f"{name}={given['epoch']}"]
    seconds, valid, log_share = [], True, None
    try:
        (folder / "app.py").write_text(
            f"from tidemill_bench.workloads import files\n\napp = files.app({kind!r}, {batch})\n"
        )
        with (folder / "events.csv").open("w") as file:
            file.write("at,id,to,n\n")
            file.writelines(f"{at},{id},{to},{n}\n" for at, id, to, n in rows)
        for nth in range(repeat):
            progress(f"run {nth + 1} of {repeat}")
            begun = time.perf_counter()
            done = subprocess.run(
                line, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S,
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )  # fmt: skip
            seconds.append(time.perf_counter() - begun)
            if done.returncode != 0:
                raise ResourceError(f"the run failed: {done.stderr.strip()}", "mend that")
            valid = valid and (folder / "out.csv").read_text() == wanted
            log_bytes = json.loads(done.stdout.splitlines()[-1]).get("log_bytes")
            if log_bytes is not None:
                log_share = log_bytes / (folder / "events.csv").stat().st_size
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    took = statistics.median(seconds)
    return {
        "workload": "files",
        "program": "traced" if kind in ("moves", "timed") else "python",
        "of": kind,
        "processes": given.get("processes", 1),
        "events": count,
        "seconds": took,
        "events_per_s": count / took,
        "events_per_s_min": count / max(seconds),
        "events_per_s_max": count / min(seconds),
        "rates": {kind: [count / each for each in seconds]},
        "log_bytes_per_input_byte": log_share,
        "replies": 0,
        "output_hash": hashlib.sha256(wanted.encode()).hexdigest()[:32],
        "valid": valid,
    }
