"""Functions that take too long, on several processes: nobody is given up for it, and what a clock
has said holds."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .kill.cluster import Process, health, joined, kill_worker, settings, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

#: Longer than the lease, so that whoever is at such a function would be given up.
LEASE_US, DEADLINE_US = 2_000_000, 5_000_000
LATE = f"the function took longer than {DEADLINE_US} microseconds"

CODE = """
import os

import tidemill as tm

app = tm.App("slow")
pots = app.entity("pot", key="id", id=int, sum=tm.column(int, default=0))


def loop(n):
    with open(os.path.join({folder!r}, "begun"), "a") as file:
        file.write(f"{{n}}\\n")
    # The first time only: whoever runs it again must not have to wait to know.
    while os.path.exists(os.path.join({folder!r}, "slow")):
        pass


@pots.function(creates=True)
async def add(self, ctx, n: int):
    self.sum += n
    return self.sum


@pots.function(creates=True)
async def never(self, ctx, n: int):
    self.sum += n
    await pots[self.id + 1].add(n)
    loop(n)
    return n
"""


def asked(client: tm.Client, what: str, request: str, **arguments: int) -> Any:
    """Returns the outcome of a call that is executed once, asking until it is known."""

    def outcome() -> list[Any]:
        try:
            return [client.using(request_id=request).call(what, **arguments)]
        except tm.Abort as abort:
            return [abort.reason]
        except (tm.ResourceError, TimeoutError, ConnectionError):
            return []

    return wait_for(f"what {request} comes to", outcome)[0]


def test_a_function_without_end_aborts_once_and_for_all(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(CODE.format(folder=str(tmp_path)))
    (tmp_path / "slow").write_text("")

    def start(name: str) -> Process:
        flags = ["--processes", "2", "--data-dir", str(tmp_path / "data")]
        # Nothing is in a snapshot: all is executed again.
        flags += settings(
            f"deadline_us={DEADLINE_US}",
            f"cluster_lease_us={LEASE_US}",
            "cluster_snapshot_us=600000000",
        )
        return Process(tmp_path / name, "run", str(tmp_path / "slow.py"), "--http", "0", *flags)

    def sums(client: tm.Client) -> list[int]:
        rows = [client.row("pot", pot) for pot in range(6)]
        return [0 if row is None else row["sum"] for row in rows]

    with start("first") as parent:
        url = joined(parent)
        with tm.Client(url) as client:
            assert asked(client, "pot.add", "one", id=1, n=1) == 1
            before = health(url)["generation"]
            assert asked(client, "pot.never", "two", id=1, n=5) == LATE
            assert asked(client, "pot.add", "three", id=2, n=2) == 2
            assert health(url)["generation"] == before
            begun = (tmp_path / "begun").read_text().split().count("5")
            (tmp_path / "slow").unlink()
            # The outcome stays, although the call would end now.
            kill_worker(parent)
            wait_for("another worker", lambda: len(workers_of(url)) == 2)
            assert sums(client) == [0, 1, 2, 0, 0, 0]
            assert asked(client, "pot.never", "four", id=1, n=7) == 7
            assert sums(client) == [0, 8, 9, 0, 0, 0]
        parent.send(signal.SIGKILL)
    with start("second") as parent:
        url = joined(parent)
        with tm.Client(url) as client:
            assert sums(client) == [0, 8, 9, 0, 0, 0]
            assert asked(client, "pot.add", "three", id=2, n=2) == 2
    # Nobody has begun again what a clock had ended.
    assert (tmp_path / "begun").read_text().split().count("5") == begun >= 1
