"""Batches of procedures on several processes, some of which are killed: each event is in one."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from .kill.cluster import Process, across_deaths, settings, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

#: Of an app: who has taken which events together.
TALLY = """
tally = app.entity("tally", key="id", id=str, times=list[int], sizes=list[int])


def note(of, events):
    row = tally.table[of]
    times, sizes = (row.times, row.sizes) if row.exists() else ([], [])
    times = [*times, *(when(e) for e in events)]
    tally.table.upsert(id=of, times=times, sizes=[*sizes, len(events)])


@tally.function
async def seen(self, ctx) -> list[list[int]]:
    return [self.times, self.sizes]
"""

CODE = """
import tidemill as tm

app = tm.App("batches")
"""
CODE += TALLY
CODE += """

def when(firing):
    return int(firing.at.timestamp() * 1000)


@app.every("20ms")
def each(tx, firing):
    note("each", [firing])


firings = next(s for s in app.streams if s.name == "each.firings")
of_seven = firings.filter(True, name="of_seven").batches(7)
of_time = firings.filter(True, name="of_time").batches("250ms")


@app.procedure(of_seven)
def count(tx, of_seven):
    note("count", of_seven)


@app.procedure(of_time)
def gather(tx, of_time):
    note("gather", of_time)
"""


def seen(url: str, of: str) -> tuple[list[int], list[int]]:
    """When what was taken had fired, in its order, and how many were in each batch."""
    try:
        answer = httpx.post(f"{url}/call/tally.seen", json={"id": of}, timeout=10)
    except httpx.HTTPError:
        return [], []
    return tuple(answer.json()["reply"]) if answer.status_code == 200 else ([], [])


def test_every_firing_is_in_one_batch(tmp_path: Path) -> None:
    (tmp_path / "batches.py").write_text(CODE)

    def start(name: str, *more: str) -> Process:
        flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings(), *more]
        return Process(tmp_path / name, "run", str(tmp_path / "batches.py"), "--http", "0", *flags)

    def more(url: str, than: int) -> int:
        def done() -> int | None:
            sizes = seen(url, "count")[1]
            return len(sizes) if len(sizes) > than + 3 else None

        return wait_for("batches", done)

    with across_deaths(start, more) as (parent, _, count):
        assert parent.stop() == 0
    # Buffered rows stay when the numbers of streams change.
    app = 'app = tm.App("batches")\n'
    (tmp_path / "batches.py").write_text(CODE.replace(app, f'{app}app.stream("other", n=int)\n'))
    with start("third", "--upgrade") as parent:
        url = parent.find(r"http +(http://\S+)")
        more(url, count)
        found = {of: seen(url, of) for of in ("count", "gather", "each")}
        assert parent.stop() == 0
    each, ones = found["each"]
    assert set(ones) == {1}
    for of in ("count", "gather"):
        times, sizes = found[of]
        assert times == each[: len(times)]
        assert sum(sizes) == len(times)
    assert set(found["count"][1]) == {7}
    # About as many as there are in that time, and those that were missed came as one.
    assert len(each) > len(found["gather"][1]) > 2
