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
