"""All that a call triggers on several processes counts once, even if some are killed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .kill.cluster import Process, joined, kill_worker, settings, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

CODE = """
import tidemill as tm

app = tm.App("votes")
votes = app.table("votes", key="phone", phone=int, candidate=int)
counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
valid = app.stream("valid", phone=int, candidate=int)
slid = app.stream("slid", leads=int, number=int)
recent = app.window("recent", rows=10, slide=5, group="candidate", candidate=int)


@app.procedure()
def cast(tx, phone: int, candidate: int):
    tx.require(not votes[phone].exists(), "has voted")
    votes.insert(phone=phone, candidate=candidate)
    tx.emit(valid, phone=phone, candidate=candidate)
    return counts["cast"].n


@app.trigger(votes, changes=["insert"])
def inserted(tx, change):
    counts["cast"].n += 1


@app.procedure(valid, owns=recent)
def count(tx, valid):
    for vote in valid:
        tx.require(vote.candidate != 7, "seven is nobody")
        counts[str(vote.candidate)].n += 1
        counts["valid"].n += 1
        recent.insert(candidate=vote.candidate)


@app.trigger(recent)
def leads(tx, slide):
    counts["slides"].n += 1
    best = max(recent.groups(), key=lambda group: (group.rows, group.candidate))
    tx.emit(slid, leads=best.candidate, number=counts["slides"].n)


@app.transaction(count.aborted)
def refused(tx, e):
    counts["refused"].n += 1
"""

VOTES = 240


def test_what_calls_set_off_counts_once(tmp_path: Path) -> None:
    (tmp_path / "votes.py").write_text(CODE)

    def start(name: str) -> Process:
        flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings()]
        return Process(tmp_path / name, "run", str(tmp_path / "votes.py"), "--http", "0", *flags)

    def cast(url: str, phones: range) -> list[object]:
        """The votes' replies, each asked until there is one."""

        def reply(client: tm.Client, phone: int) -> object:
            def asked() -> object:
                try:
                    named = client.using(request_id=f"vote-{phone}")
                    return ("returned", named.call("cast", phone=phone, candidate=phone % 8))
                except tm.Abort as abort:
                    return ("aborted", abort.reason)
                except (tm.ResourceError, TimeoutError, ConnectionError):
                    return None

            return wait_for(f"reply {phone}", asked)

        with tm.Client(url) as client:
            return [reply(client, phone) for phone in phones]

    with start("first") as parent:
        url = joined(parent)
        found: dict[int, list[object]] = {}
        parts = [range(at, VOTES, 4) for at in range(4)]

        def ask(at: int) -> None:
            found[at] = cast(url, parts[at])

        asking = [threading.Thread(target=ask, args=(at,)) for at in range(4)]
        for thread in asking:
            thread.start()
        for _ in range(3):
            kill_worker(parent)
            wait_for("another worker", lambda: len(workers_of(url)) == 2)
        for thread in asking:
            thread.join()
        again = cast(url, range(VOTES))
        rows = {}
        with tm.Client(url) as client:
            for what in ("cast", "valid", "refused", "slides", *map(str, range(8))):
                row = client.row("counts", what)
                rows[what] = 0 if row is None else row["n"]
            following = client.subscribe("slid", after=-1)
            numbers = [next(following).value["number"] for _ in range(rows["slides"])]
    # Each has the reply of its one transaction: it came behind so many others.
    replies: dict[int, Any] = {}
    for at, phones in enumerate(parts):
        replies |= zip(phones, found[at], strict=True)
    assert [replies[phone] for phone in range(VOTES)] == again
    assert sorted(reply[1] for reply in replies.values()) == list(range(VOTES))
    assert numbers == list(range(1, rows["slides"] + 1))
    each = VOTES // 8
    wanted = {str(candidate): each for candidate in range(7)} | {"7": 0}
    assert rows == wanted | {
        "cast": VOTES,
        "valid": 7 * each,
        "refused": each,
        "slides": 7 * each // 5 - 1,
    }
