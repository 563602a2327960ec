"""Requests that come again, on several processes: executed once, whatever dies between."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from .kill.cluster import APP, Process, kill_worker, settings, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")


def test_requests_with_ids_are_executed_once_across_deaths(tmp_path: Path) -> None:
    flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings()]
    with Process(tmp_path / "parent", "run", str(APP), "--http", "0", *flags) as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("two workers", lambda: len(workers_of(url)) == 2)

        def ask(key: int, id: str, amount: int = 5) -> httpx.Response:
            body = {"id": key, "dst": key + 1, "amount": amount, "op": key}
            headers = {"Idempotency-Key": id}
            return httpx.post(
                f"{url}/call/account.transfer", json=body, headers=headers, timeout=30
            )

        # Some live with one worker, some with the other; so do the ids.
        first = {key: ask(key, f"id {key}").json() for key in range(0, 40, 2)}
        assert all("reply" in reply for reply in first.values())
        for round in range(2):
            kill_worker(parent, round)
            assert {key: ask(key, f"id {key}").json() for key in first} == first
        other = ask(0, "id 0", amount=6)
        assert other.status_code == 422
        assert "another call" in other.json()["error"]["what"]
        # An aborted one has left nothing, and is executed again.
        assert [ask(50, "much", amount=10**6).status_code for _ in range(2)] == [409, 409]
        found = httpx.get(f"{url}/tables/account/rows?key=0", timeout=30).json()
        again = httpx.post(
            f"{url}/call/account.transfer",
            json={"id": 0, "dst": 1, "amount": 5, "op": 99},
            timeout=30,
        )
        assert again.json()["reply"] == found["row"]["balance"] - 5


COMPLAINTS = """
import tidemill as tm

app = tm.App("complaints")
counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))


@app.procedure()
def pay(tx, n: int):
    counts["paid"].n += n
    tx.require(n < 5, "too much")
    return counts["paid"].n


@app.transaction(pay.aborted)
def note(tx, e):
    counts[e.reason].n += e.n


pay.write(tm.files("paid.csv"))
pay.aborted.write(tm.files("refused.csv"))
"""


def test_a_request_whose_abort_somebody_takes_is_executed_once(tmp_path: Path) -> None:
    app = tmp_path / "complaints.py"
    app.write_text(COMPLAINTS)
    flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings()]
    folder = tmp_path / "parent"
    with Process(folder, "run", str(app), "--http", "0", *flags) as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("two workers", lambda: len(workers_of(url)) == 2)

        def pay(n: int, id: str) -> tuple[int, object]:
            headers = {"Idempotency-Key": id}
            found = httpx.post(f"{url}/call/pay", json={"n": n}, headers=headers, timeout=30)
            return found.status_code, found.json().get("reply", found.json().get("aborted"))

        def count(what: str) -> int:
            params = {"key": what}
            found = httpx.get(f"{url}/tables/counts/rows", params=params, timeout=30)
            return int(found.json()["row"]["n"])

        for round in range(2):
            assert pay(3, "small") == (200, 3)
            assert pay(7, "large") == (409, "too much")
            assert pay(9, "larger") == (409, "too much")
            assert (count("paid"), count("too much")) == (3, 16)
            kill_worker(parent, round)
        assert parent.stop() == 0
    assert (folder / "paid.csv").read_text().splitlines()[1:] == ["3"]
    assert (folder / "refused.csv").read_text().splitlines()[1:] == ["7,too much", "9,too much"]
