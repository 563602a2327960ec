"""Timers of an app on several processes: real ones, which are killed; every firing counts once."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path

import httpx
import pytest

from .kill.cluster import Process, across_deaths, settings, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

PERIOD_MS = 50
CODE = f'''
import tidemill as tm

app = tm.App("ticks")
tally = app.entity("tally", key="id", id=int, times=list[int])


def note(number, firing):
    row = tally.table[number]
    times = row.times if row.exists() else []
    tally.table.upsert(id=number, times=[*times, int(firing.at.timestamp() * 1000)])


@app.every("{PERIOD_MS}ms")
def first(tx, firing):
    note(1, firing)


@app.transaction(next(s for s in app.streams if s.name == "first.firings"), opaque=True)
def second(tx, firing):
    note(2, firing)


firings = next(s for s in app.streams if s.name == "first.firings")
firings.write(tm.files("FOLDER/firings.jsonl"))
firings.filter(True, name="same").write(tm.files("FOLDER/same.jsonl"))


@tally.function
async def seen(self, ctx) -> list[int]:
    return self.times
'''


def seen(url: str, handler: int = 1) -> list[int]:
    """When it has fired, in the order in which that was executed, in milliseconds."""
    try:
        answer = httpx.post(f"{url}/call/tally.seen", json={"id": handler}, timeout=10)
    except httpx.HTTPError:
        return []
    return [int(at) for at in answer.json()["reply"]] if answer.status_code == 200 else []


def test_every_firing_counts_once(tmp_path: Path) -> None:
    (tmp_path / "ticks.py").write_text(CODE.replace("FOLDER", str(tmp_path)))

    def start(name: str) -> Process:
        flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings()]
        return Process(tmp_path / name, "run", str(tmp_path / "ticks.py"), "--http", "0", *flags)

    def more(url: str, than: int) -> int:
        return len(wait_for("firings", lambda: at if len(at := seen(url)) > than + 5 else None))

    with across_deaths(start, more) as (parent, url, _):
        times = seen(url)
        # The second handler of a firing is never left out, whoever has died between the two.
        assert seen(url, 2)[: len(times)] == times
        assert parent.stop() == 0
    assert all(at % PERIOD_MS == 0 for at in times)
    assert times == sorted(set(times))

    def lines(name: str) -> list[str]:
        return (tmp_path / f"{name}.jsonl").read_text().splitlines()

    # The input, and the part that passes a filter, is written once and in order.
    for name in ("firings", "same"):
        rows = [json.loads(line)["at"] for line in lines(name)]
        fired = [int(dt.datetime.fromisoformat(at).timestamp() * 1000) for at in rows]
        assert fired[: len(times)] == times
