"""``tidemill bench WORKLOAD --processes N``: a workload on several processes.

The coordinator is in this process. The workers are other processes, as with ``tidemill run
--processes``. With a log in Kafka the client is a process of its own, which writes requests into
the inputs and reads replies from the outputs. Otherwise the client is in the coordinator's process.
Run as a module, this file is the client process.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidemill.app import App
from tidemill.cli.cluster import Child
from tidemill.cluster import Coordinator
from tidemill.config import placed
from tidemill.errors import ResourceError, SettingError
from tidemill_bench import engine
from tidemill_bench.workloads import served

#: The workloads, with an upper bound on their requests per second.
PER_SECOND = {"ycsb-t": 300_000, "tpcc": 10_000, "hotel": 60_000, "movie": 30_000}
#: The factor of that bound for traced functions.
TRACED = 10

#: The options of the client.
CLIENT = ("program", "rate", "events", "keys", "skew", "abort", "seed", "warehouses", "items")
#: The options of the cluster and of the measurement.
OWN = (
    *("workload", "processes", "log", "snapshots", "snapshot_us", "seconds", "multi", "under_way"),
    *("kill", "kills", "sink", "epoch", "warm_up", "cuts", "together"),
)

#: The defaults: accounts of ycsb-t, items of tpcc, requests, and open requests without a rate.
KEYS, ITEMS, EVENTS, UNDER_WAY = 10_000, 10_000, 100_000, 20_000
#: The same as the last one for events in batches, of which nobody waits for the results.
UNDER_WAY_BATCHES = 500_000

#: The number of the cluster's sources; the client chooses one by the key.
SOURCES = 8

#: The longest wait for workers to join, and the longest wait for a reply, in seconds.
FORM_S, PATIENCE_S = 60.0, 30.0

#: The time between two looks at the other processes, in seconds.
LOOK_S = 0.02


def is_for(given: Mapping[str, Any]) -> bool:
    """Returns whether a run is on processes, even one, with a workload that supports it."""
    return "processes" in given and given["workload"] in PER_SECOND


def run(given: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Runs a workload on several processes, and returns the report."""
    workload, processes = given["workload"], given["processes"]
    _check(given)
    program = given.get("program", "python")
    folder = Path(tempfile.mkdtemp(prefix="tidemill-bench-", dir=given.get("sink")))
    name = f"bench-{secrets.token_hex(4)}"
    settings: dict[str, Any] = {"cluster_name": name, "cluster_sources": SOURCES}
    settings["data_dir"] = str(folder / "data")
    for option, setting in (
        ("log", "cluster_log"),
        ("cuts", "cluster_cuts"),
        ("snapshots", "cluster_snapshots"),
        ("snapshot_us", "cluster_snapshot_us"),
        ("epoch", "cluster_epoch_rows_max"),
        ("together", "cluster_together"),
    ):
        if option in given:
            settings[setting] = given[option]
    options = {"program": program}
    app = served.app(workload, options)
    file = folder / "app.py"
    file.write_text(
        "from tidemill_bench.workloads import served\n\n"
        f"app = served.app({workload!r}, {options!r})\n"
    )
    seen = _Seen(given.get("kill"), given.get("kills", 1))
    try:
        with _Cluster(app, file, placed(settings, app.name), processes) as cluster:
            cluster.wait_for(processes)
            client = _offer(app, cluster, given, name, progress)
            while (found := client.ended()) is None:
                cluster.look()
                seen.take(cluster)
                time.sleep(LOOK_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found["processes"] = processes
    found["strategy"] = f"{processes} processes"
    found["rates"] = {found["strategy"]: [found["events_per_s"]]}
    found["log"] = "kafka" if "log" in given else "served"
    found["snapshots"] = "s3" if "s3://" in str(given.get("snapshots")) else "dir"
    found["generations"] = sorted(seen.generations)
    found["snapshots_taken"] = len(seen.snapshots)
    found["epochs"] = seen.epoch
    if seen.killed:
        found["killed"] = seen.killed
    return found


def _check(given: Mapping[str, Any]) -> None:
    workload, processes = given["workload"], given["processes"]
    if workload not in PER_SECOND:
        known = ", ".join(PER_SECOND)
        raise SettingError(
            f"--processes: {workload} runs in one process",
            f"the workloads for several processes are {known}",
        )
    if processes < 1:
        raise SettingError(f"--processes {processes} is too small", "give 1 or more")
    for option in given:
        if option not in (*CLIENT, *OWN):
            flag = option.replace("_", "-")
            raise SettingError(f"--{flag}: a run on several processes has no such option")
    program = given.get("program", "python")
    if program not in ("python", *(["traced"] if workload == "ycsb-t" else [])):
        raise SettingError(
            f"--program {program}: {workload} runs on several processes in Python",
            "say --program python" + (" or traced" if workload == "ycsb-t" else ""),
        )
    if "multi" in given and not 0 <= given["multi"] <= 100:
        raise SettingError(f"--multi {given['multi']}: it is a percentage")
    if "kills" in given and "kill" not in given:
        raise SettingError("--kills needs --kill", "give --kill, the seconds between two of them")
    for option in ("rate", "seconds", "under_way", "events", "kill", "kills", "together"):
        if option in given and given[option] <= 0:
            raise SettingError(f"--{option.replace('_', '-')} {given[option]}: it must be above 0")


class _Cluster:
    """A coordinator in this process, and workers in others."""

    def __init__(self, app: App, file: Path, settings: dict[str, Any], count: int) -> None:
        secret = secrets.token_bytes(32)
        self.coordinator = Coordinator(app, settings, secret)
        given = {"settings": settings, "secret": secret.hex(), "join": self.coordinator.address}
        line = json.dumps(given).encode() + b"\n"
        command = [sys.executable, "-m", "tidemill.cli", "worker", str(file), "--from-parent"]
        self.children = [Child(command, line) for _ in range(count)]

    def __enter__(self) -> _Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.end()
        self.coordinator.stop()

    def look(self) -> None:
        """Starts workers again that have ended."""
        for child in self.children:
            child.look()

    def status(self) -> dict[str, Any]:
        """Returns the coordinator's status."""
        status = self.coordinator.status()
        if status["ended"] is not None:
            raise ResourceError(f"the coordinator has ended: {status['ended']}")
        return status

    def wait_for(self, count: int) -> None:
        """Waits until a generation of ``count`` workers runs."""
        until = time.monotonic() + FORM_S
        while True:
            self.look()
            status = self.status()
            if status["generation"] and len(status["members"]) == count:
                return
            if time.monotonic() > until:
                raise ResourceError(f"{len(status['members'])} of {count} workers have joined")
            time.sleep(LOOK_S)


class _Seen:
    """The events of the cluster during a run: generations, snapshots and killed workers."""

    def __init__(self, kill_s: float | None, kills: int) -> None:
        self.last_kill = time.monotonic()
        self.kill_s, self.kills = kill_s, kills
        self.killed: list[int] = []
        self.generations: set[int] = set()
        self.snapshots: set[int] = set()
        self.epoch = 0

    def take(self, cluster: _Cluster) -> None:
        """Takes the status, and kills a worker when it is due."""
        status = cluster.status()
        if status["generation"]:
            self.generations.add(status["generation"])
        if status["snapshot_epoch"]:
            self.snapshots.add(status["snapshot_epoch"])
        self.epoch = max(self.epoch, status["epoch"])
        now = time.monotonic()
        is_due = self.kill_s is not None and now - self.last_kill > self.kill_s
        # The last worker first, then the one before it, and so on in turn.
        turn = len(self.killed)
        victim = cluster.children[-1 - turn % len(cluster.children)].process
        is_there = victim is not None and victim.poll() is None and victim.pid not in self.killed
        if is_due and is_there and turn < self.kills:
            assert victim is not None
            os.kill(victim.pid, signal.SIGKILL)
            self.killed.append(victim.pid)
            self.last_kill = now


class _Here:
    """A client in this process, beside the coordinator."""

    def __init__(self, offer: Callable[[], str]) -> None:
        self.found: str | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(offer,), daemon=True)
        self.thread.start()

    def _run(self, offer: Callable[[], str]) -> None:
        try:
            self.found = offer()
        except BaseException as error:
            # `ended` raises it.
            self.error = error

    def ended(self) -> dict[str, Any] | None:
        """Returns the report if the client has ended, and None before."""
        if self.error is not None:
            raise self.error
        if self.found is None:
            return None
        found: dict[str, Any] = json.loads(self.found)
        return found


class _There:
    """A client in a process of its own."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", "tidemill_bench.processes"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(given).encode() + b"\n")
        self.process.stdin.close()

    def ended(self) -> dict[str, Any] | None:
        """Returns the report if the client has ended, and None before."""
        if self.process.poll() is None:
            return None
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        if self.process.returncode:
            raise ResourceError(f"the client has ended ({self.process.returncode})")
        found: dict[str, Any] = json.loads(said)
        return found


def _offer(
    app: App,
    cluster: _Cluster,
    given: Mapping[str, Any],
    name: str,
    progress: Callable[[str], None],
) -> _Here | _There:
    """Starts the client, and returns it."""
    workload = given["workload"]
    seconds = given.get("seconds")
    arguments: dict[str, Any] = {"workload": workload, "program": "python", "keys": KEYS}
    if workload == "tpcc":
        arguments["items"] = ITEMS
    if seconds is not None:
        bound = PER_SECOND[workload] * (TRACED if given.get("program") == "traced" else 1)
        arguments["events"] = int(seconds * given.get("rate", bound)) + 1
    else:
        arguments["events"] = EVENTS
    arguments |= {option: given[option] for option in CLIENT if option in given}
    # Events by column are sent by the coordinator's process, with any log.
    in_batches = given.get("program") == "traced"
    offered = {
        "sources": SOURCES,
        "processes": given["processes"],
        "seconds": seconds,
        "under_way": given.get("under_way", UNDER_WAY_BATCHES if in_batches else UNDER_WAY),
        "warm_up": given.get("warm_up", 0),
        "patience_s": PATIENCE_S,
        "multi": given.get("multi"),
        "together": given.get("together", 1),
    }
    texts = (json.dumps(arguments), json.dumps(offered))
    if in_batches or "log" not in given:
        spec, opaques = app.spec({}, keep_all=False, push=False)
        native = cluster.coordinator.native
        text = json.dumps(spec)
        return _Here(lambda: engine.library().offer(text, opaques, *texts, progress, native))
    brokers = given["log"].removeprefix("kafka://").rstrip("/")
    program = {"program": arguments["program"]}
    return _There({"app": [workload, program], "texts": texts, "kafka": [brokers, name, {}]})


def _client() -> None:
    """Runs the client in a process of its own; a line of stdin has its arguments."""
    given = json.loads(sys.stdin.buffer.readline())
    spec, opaques = served.app(*given["app"]).spec({}, keep_all=False, push=False)
    brokers, name, properties = given["kafka"]
    arguments, offered = given["texts"]

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    way = (brokers, name, properties)
    print(
        engine.library().offer(json.dumps(spec), opaques, arguments, offered, progress, kafka=way)
    )


if __name__ == "__main__":
    _client()
