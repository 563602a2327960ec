"""Calls of a function over HTTP at a rate, each sent at its due time, over several connections."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidemill.errors import SettingError
from tidemill_bench.workloads import ycsb

#: The defaults: calls per second, and connections.
RATE = 1_000.0
CONNECTIONS = 8


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the workload: transfers of YCSB-T by a client in the same process. Every balance is
    compared. The fields are those of the benchmark in Rust.
    """
    if "sink" not in given:
        raise SettingError("--program python needs a folder for the data directory: give --sink")
    events, keys = given.get("events", 10_000), given.get("keys", 10_000)
    rate, connections = given.get("rate", RATE), given.get("connections", CONNECTIONS)
    if min(events, keys - 1, rate, connections) <= 0:
        raise SettingError("--events, --rate and --connections must be above 0, and --keys above 1")
    draw = random.Random(given.get("seed", 42))
    transfers = [draw.sample(range(keys), 2) for _ in range(events)]
    wanted: dict[int, int] = {}
    for debtor, creditor in transfers:
        wanted[debtor] = wanted.get(debtor, ycsb.OPENING) - 1
        wanted[creditor] = wanted.get(creditor, ycsb.OPENING) + 1
    folder = Path(given["sink"]) / "data"
    waits: list[float] = []
    failed: list[object] = []
    with ycsb.app(opaque=True).start(data_dir=folder, http_port=0, fresh=True) as mill:
        address = urlsplit(str(mill.url)).netloc
        begun = time.perf_counter() + 0.1

        def client(first: int) -> None:
            connection = http.client.HTTPConnection(address)
            for nth in range(first, events, connections):
                due = begun + nth / rate
                time.sleep(max(0.0, due - time.perf_counter()))
                debtor, creditor = transfers[nth]
                body = json.dumps({"id": debtor, "to": creditor, "amount": 1})
                kind = {"content-type": "application/json"}
                connection.request("POST", "/call/account.transfer", body, kind)
                response = connection.getresponse()
                said = response.read()
                if response.status != 200:
                    failed.append(said)
                waits.append((time.perf_counter() - due) * 1000)

        threads = [threading.Thread(target=client, args=(n,)) for n in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
        balances = {row["id"]: row["balance"] for row in mill.table("account").rows()}
    waits.sort()
    valid = len(waits) == events and not failed and balances == wanted
    return {
        "workload": "http",
        "program": "python",
        "events": events,
        "seconds": seconds,
        "events_per_s": events / seconds,
        "rates": {"http": [events / seconds]},
        "connections": connections,
        "latency_ms": {
            "p50": waits[len(waits) // 2],
            "p99": waits[len(waits) * 99 // 100],
            "max": waits[-1],
        },
        "valid": valid,
    }
