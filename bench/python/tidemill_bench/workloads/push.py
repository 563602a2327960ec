"""Durable push through the Python API: rows are sent in batches, or one at a time at a rate."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.app import App
from tidemill.errors import SettingError
from tidemill.expr import col
from tidemill.types import column

#: The forms of rows for :meth:`tidemill.mill.Mill.send`.
FORMS = ("arrow", "columns", "dicts")
#: The steps between the stream and the transactions. They keep all rows as they are.
STAGES = ("none", "filter", "map")
#: The number of rows in a batch.
BATCH = 8192
#: The number of first rows sent at a rate whose latency does not count.
WARM_UP = 1000


def app(stage: str = "none") -> App:
    """Returns the app. Each row adds an amount to an account, after one of :data:`STAGES`.

    >>> [handler.path for handler in app().handlers]
    ['traced']
    """
    made = App("push")
    accounts = made.table("accounts", key="id", id=int, balance=column(int, default=0))
    deposits = made.stream("deposits", account=int, amount=int)

    amounts = deposits
    if stage == "filter":
        amounts = deposits.filter(col("amount") > 0)
    elif stage == "map":
        amounts = deposits.map(account=col("account"), amount=col("amount") + 0)

    @made.transaction(amounts)
    def deposit(tx: Any, e: Any) -> None:
        accounts[e.account].balance += e.amount

    return made


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the workload; the fields are those of the benchmark in Rust."""
    form = given.get("form", "arrow")
    if form not in FORMS:
        raise SettingError(f"--form {form}: it must be one of {', '.join(FORMS)}")
    stage = given.get("stage", "none")
    if stage not in STAGES:
        raise SettingError(f"--stage {stage}: it must be one of {', '.join(STAGES)}")
    events, keys = given.get("events", 1_000_000), given.get("keys", 122_880)
    rate, durable = given.get("rate"), given.get("durable", "none")
    size = 1 if rate else given.get("batch", BATCH)
    draw = random.Random(given.get("seed", 42))
    wanted: dict[int, int] = {}
    batches = []
    for first in range(0, events, size):
        count = min(size, events - first)
        columns = {
            "account": [draw.randrange(keys) for _ in range(count)],
            "amount": [draw.randrange(1, 101) for _ in range(count)],
        }
        for account, amount in zip(*columns.values(), strict=True):
            wanted[account] = wanted.get(account, 0) + amount
        batches.append(_rows(columns, form))
    settings: dict[str, Any] = {"durable": durable, "fresh": True}
    if durable == "log+snapshots":
        settings["snapshot_us"] = 1_000_000
    if durable != "none":
        if "sink" not in given:
            raise SettingError("--durable needs a folder for the data directory: give --sink")
        settings["data_dir"] = f"{given['sink']}/data"
    rates, waits, valid, state_hash = [], [], True, ""
    for _ in range(given.get("repeat", 5)):
        mill = app(stage).start(**settings)
        begun = time.perf_counter()
        if rate:
            waits += _paced(mill, batches, rate)
        else:
            for batch in batches[:-1]:
                mill.send("deposits", batch)
            mill.send("deposits", batches[-1], wait=True)
        rates.append(events / (time.perf_counter() - begun))
        balances = {row["id"]: row["balance"] for row in mill.table("accounts").rows()}
        summary = mill.finish()
        state_hash = summary["state_hash"]
        valid = valid and balances == wanted and summary["events"] == events
    rates.sort()
    waits.sort()
    latency = {"p50": waits[len(waits) // 2], "p99": waits[len(waits) * 99 // 100]} if waits else {}
    return {
        "workload": "push",
        "program": "python",
        "form": form,
        "stage": stage,
        "durable": durable,
        "events": events,
        "seconds": events / rates[len(rates) // 2],
        "events_per_s": rates[len(rates) // 2],
        "events_per_s_min": rates[0],
        "events_per_s_max": rates[-1],
        "rates": {form: rates},
        "latency_ms": latency | {"max": waits[-1]} if waits else None,
        "state_hash": state_hash,
        "valid": valid,
    }


def _rows(columns: dict[str, list[int]], form: str) -> object:
    if form == "columns":
        return columns
    if form == "dicts":
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    import pyarrow as pa

    return pa.record_batch(columns)


def _paced(mill: Any, batches: Sequence[object], rate: float) -> list[float]:
    """Sends rows at a rate; returns the latencies in milliseconds, from the due times."""
    waits: list[float] = []
    begun = time.perf_counter() + 0.001

    def send(first: int, step: int) -> None:
        for nth in range(first, len(batches), step):
            due = begun + nth / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            mill.send("deposits", batches[nth], wait=True)
            if nth >= min(WARM_UP, len(batches) // 10):
                waits.append((time.perf_counter() - due) * 1000)

    # Eight threads never wait for one another, unless a row takes eight times the interval.
    threads = [threading.Thread(target=send, args=(first, 8)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits
