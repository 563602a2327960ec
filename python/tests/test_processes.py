"""An app on several processes: real ones, which are killed, frozen, and started wrongly."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .kill.cluster import (
    APP,
    LEASE_S,
    PATIENCE,
    Clients,
    Follower,
    Process,
    children,
    health,
    is_there,
    settings,
    validate,
    wait_for,
    workers_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")

ACCOUNTS = 24


def together(folder: Path, *more: str, count: int = 2) -> Process:
    """A coordinator that has started its workers."""
    flags = ["--processes", str(count), "--data-dir", str(folder / "data"), *settings(*more)]
    return Process(folder / "parent", "run", str(APP), "--http", "0", *flags)


def url_of(process: Process) -> str:
    return process.find(r"http +(http://\S+)")


def wait_for_workers(url: str, count: int) -> list[str]:
    """Waits until so many are members."""
    found: list[str] = wait_for(
        f"{count} workers", lambda: (w if len(w := workers_of(url)) == count else None)
    )
    return found


class Apart:
    """A coordinator, and workers that nobody starts again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "secret").write_text("0123456789abcdef0123456789abcdef\n")
        self.listen, self.http = "127.0.0.1:0", "127.0.0.1:0"
        self.workers: list[Process] = []
        self.started = 0
        self.coordinator = self.begin()

    def common(self, who: str) -> list[str]:
        """What all processes are told."""
        flags = ["--secret-file", str(self.folder / "secret"), *settings()]
        return [who, str(APP), *flags, "--snapshots", str(self.folder / "snapshots")]

    def begin(self) -> Process:
        """Starts the coordinator, where it was before."""
        self.started += 1
        self.coordinator = Process(
            self.folder / f"coordinator-{self.started}",
            *self.common("coordinator"),
            *("--listen", self.listen, "--http", self.http),
            *("--data-dir", str(self.folder / "data")),
        )
        self.listen = self.coordinator.find(r"join at (\S+)")
        self.url = url_of(self.coordinator)
        self.http = self.url.removeprefix("http://")
        return self.coordinator

    def add(self, *more: str) -> Process:
        """Starts a worker."""
        self.started += 1
        folder = self.folder / f"worker-{self.started}"
        worker = Process(folder, *self.common("worker"), "--join", self.listen, *more)
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        for process in (*self.workers, self.coordinator):
            process.__exit__()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    cluster = Apart(tmp_path / "apart")
    try:
        yield cluster
    finally:
        cluster.close()


def test_workers_are_killed_and_freeze(tmp_path: Path) -> None:
    with together(tmp_path) as parent:
        url = url_of(parent)
        wait_for_workers(url, 2)
        follower = Follower(url)
        with Clients(url, ACCOUNTS) as clients:
            clients.wait_for_more()
            before, pids = workers_of(url), children(parent.pid)
            assert len(pids) == 2
            os.kill(pids[0], signal.SIGKILL)
            clients.wait_for_more()
            # Another one is started in its place.
            wait_for("another worker", lambda: set(workers_of(url)) - set(before))
            wait_for_workers(url, 2)
            clients.wait_for_more()
            # One stands still for longer than its lease: the others go on, and it does no harm.
            generation = health(url)["generation"]
            os.kill(pids[1], signal.SIGSTOP)
            try:
                wait_for("a generation without it", lambda: len(workers_of(url)) == 1)
                clients.wait_for_more()
                time.sleep(LEASE_S)
            finally:
                os.kill(pids[1], signal.SIGCONT)
            wait_for_workers(url, 2)
            assert health(url)["generation"] > generation + 1
            clients.wait_for_more()
        assert is_there(pids[1]), "the one that stood still is a member again"
        assert clients.surprises == []
        assert clients.fates["refused"] > 0
        validate(clients, follower)
        # Stopped and started again, it has what it had.
        pids = children(parent.pid)
        assert parent.stop() == 130
        assert not any(map(is_there, pids))
    with together(tmp_path) as parent:
        clients.url = url_of(parent)
        wait_for_workers(clients.url, 2)
        validate(clients)
        with Clients(clients.url, ACCOUNTS) as more:
            more.next = clients.next
            more.wait_for_more()
        # Workers end with whoever has started them, however that ends.
        pids = children(parent.pid)
        assert len(pids) == 2
        parent.send(signal.SIGKILL)
        wait_for("the end of its workers", lambda: not any(map(is_there, pids)))
