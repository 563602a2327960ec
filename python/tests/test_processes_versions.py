"""Windows over versions of rows on several processes that are killed: each is there once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tidemill as tm

from .kill.cluster import (
    PATIENCE,
    Process,
    Threads,
    health,
    joined,
    kill_all,
    kill_worker,
    settings,
    wait_for,
)
from .test_gateway import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

CODE = """
import tidemill as tm

app = tm.App("versions")
rows = app.table("rows", key="id", id=int, n=tm.column(int, default=0), history=4)


@app.procedure()
def put(tx, id: int, n: int) -> list[int]:
    row = rows[id]
    before = row.over(tm.last(4)).n.sum()
    row.n = n
    return [before, row.over(tm.last(3)).n.sum(), row.over(tm.last(3)).count()]
"""


class Writers(Threads):
    """Each has a row of its own, and knows what its windows have to be."""

    def __init__(self, url: str, threads: int) -> None:
        super().__init__(url, threads)
        self.written = [0] * threads
        self.wrong: list[str] = []

    def _run(self, thread: int) -> None:
        kept: list[int] = []
        with tm.Client(self.url, retries=10_000, deadline=PATIENCE) as client:
            while not self.stopped.is_set():
                n = 7 * len(kept) + thread + 1
                found = client.call("put", id=thread, n=n)
                before = sum(kept[-4:])
                kept.append(n)
                wanted = [before, sum(kept[-3:]), min(len(kept), 3)]
                if found != wanted:
                    self.wrong.append(f"row {thread}, call {len(kept)}: {found}, not {wanted}")
                self.written[thread] += 1

    def wait_for_more(self) -> None:
        """Until each has written some more rows, or has found that one is wrong."""
        least = [count + 10 for count in self.written]
        wait_for(
            "rows",
            lambda: self.wrong or all(a >= b for a, b in zip(self.written, least, strict=True)),
        )


def test_every_version_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "versions.py").write_text(CODE)
    http = f"127.0.0.1:{free_port()}"

    def start(name: str) -> Process:
        flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings()]
        return Process(
            tmp_path / name, "run", str(tmp_path / "versions.py"), "--http", http, *flags
        )

    with start("first") as parent:
        url = joined(parent)
        with Writers(url, 4) as writers:
            writers.wait_for_more()
            for worker in range(2):
                kill_worker(parent, worker)
                writers.wait_for_more()
            kill_all(parent)
            with start("second") as parent:
                joined(parent)
                writers.wait_for_more()
                kill_worker(parent)
                writers.wait_for_more()
                writers.stop()
                assert writers.wrong == []
                assert parent.stop() == 0


def test_one_worker_owns_the_rows_of_an_app_with_a_history(tmp_path: Path) -> None:
    (tmp_path / "versions.py").write_text(CODE)
    flags = ["--processes", "1", "--data-dir", str(tmp_path / "data"), *settings()]
    app = str(tmp_path / "versions.py")
    with Process(tmp_path / "parent", "run", app, "--http", "0", *flags) as parent:
        url = parent.find(r"http +(http://\S+)")
        assert health(url)["sole_owner"] is True
