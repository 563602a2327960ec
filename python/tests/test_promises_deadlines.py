"""The promises of the guide about calls that take too long, and functions that do not end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

import tidemill as tm
from tidemill.deadline import Calls, Overdue

GUIDE = (Path(__file__).parents[2] / "docs/guides/functions.md").read_text()


def test_without_a_deadline_a_function_takes_its_time() -> None:
    app = tm.App("deadline")

    @app.procedure
    def count(tx: Any, until: int) -> int:
        n = 0
        while n < until:
            n += 1
        return n

    late = "the function took longer than 1000 microseconds"
    with app.start(deadline_us=1000) as mill:
        with pytest.raises(tm.Abort, match=late) as caught:
            mill.call(count, until=10**9)
        # A function that exceeds its deadline aborts, which is no fault.
        assert not isinstance(caught.value, tm.Fault)
        assert mill.status()["faults"] == 0
    with app.start(deadline_us=0) as mill:
        assert mill.call(count, until=10**6) == 10**6


class Running:
    """A thread whose calls follow one another, in simulated time."""

    def __init__(self, limit_us: int, dice: random.Random) -> None:
        self.limit_us, self.dice = limit_us, dice
        self.limit_s = limit_us / 1e6
        self.call, self.now = 0, 0.0
        #: When the call begins and ends.
        self.span = (0.0, 0.0)
        #: By call how long it had taken whenever it was interrupted.
        self.interrupted: dict[int, list[float]] = {}

    def live(self, now: float) -> None:
        """Goes on until then. Some calls take less than they may, and some more."""
        self.now = now
        while self.span[1] <= now:
            begins = self.span[1] + self.dice.random() * self.limit_s
            self.span = (begins, begins + 2 * self.dice.random() * self.limit_s)
            self.call += 1

    def limit(self) -> int | None:
        return self.limit_us

    def running(self) -> tuple[int, int] | None:
        return (self.call, self.limit_us) if self.span[0] <= self.now else None

    def interrupt(self, call: int, error: type[BaseException]) -> None:
        assert (call, error) == (self.call, Overdue)
        self.interrupted.setdefault(call, []).append(self.now - self.span[0])
        # Some catch it, and go on.
        if self.dice.random() < 0.5:
            self.span = (self.span[0], self.now)


@pytest.mark.parametrize("limits", [(10_000_000,), (10_000_000, 16_000), (20_000, 900_000, 8_000)])
@pytest.mark.parametrize("seed", range(10))
def test_a_call_takes_its_deadline_and_up_to_a_quarter_more(
    limits: tuple[int, ...], seed: int
) -> None:
    assert "it aborts, up to a quarter later" in GUIDE
    dice = random.Random(seed)
    threads = [Running(limit, dice) for limit in limits]
    calls = Calls()
    for thread in threads:
        calls.add(cast(Any, thread))
    now = 0.0
    while any(thread.call < 40 for thread in threads):
        for thread in threads:
            thread.live(now)
        wait = calls.look(now)
        assert wait is not None
        now += wait
    for thread in threads:
        assert 0 < len(thread.interrupted) < thread.call
        for first, *_ in thread.interrupted.values():
            assert thread.limit_s - 1e-6 <= first <= 1.25 * thread.limit_s + 1e-6


ENDLESS = """
import tidemill as tm

app = tm.App("endless")
events = app.stream("events", n=int)
events.read(tm.files("in.csv"))


@app.transaction(events, opaque=True)
def turn(tx, e):
    print("turning", flush=True)
    while True:
        pass
"""


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ENDLESS)
    (tmp_path / "in.csv").write_text("n\n1\n")
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--set", "deadline_us=0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            # The function may begin before the start has ended.
            printed = ""
            while "turning" not in printed or "data" not in printed:
                line = process.stdout.readline()
                assert line
                printed += line
            process.send_signal(signal.SIGINT)
            said = process.stderr.readline()
            assert said == "SIGINT: stopping after this epoch; Ctrl-C again ends at once\n"
            # The run waits for the function that is still executing.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.3)
            # Two that come before one is looked at are one.
            for _ in range(100):
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    assert process.wait(timeout=0.3) in (130, -signal.SIGINT)
                    break
            assert process.poll() is not None
        finally:
            process.kill()


INTERRUPTED_START = """
import os, signal, sys, time
from tidemill import _native
from tidemill.cli import main

start = _native.Mill


def interrupted(*arguments):
    mill = start(*arguments)
    while not os.path.exists("turning"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    return mill


_native.Mill = interrupted
sys.exit(main())
"""


def test_a_start_that_is_interrupted_late_can_be_ended_too(tmp_path: Path) -> None:
    """The first Ctrl-C comes when the engine executes already, but its owner has not got it."""
    app = ENDLESS.replace('print("turning", flush=True)', 'open("turning", "w").close()')
    assert app != ENDLESS
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "in.csv").write_text("n\n1\n")
    (tmp_path / "start.py").write_text(INTERRUPTED_START)
    command = [sys.executable, "start.py", "run", "app.py", "--set", "deadline_us=0"]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
        try:
            while not (tmp_path / "turning").exists():
                assert process.poll() is None
                time.sleep(0.01)
            for _ in range(100):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    assert process.wait(timeout=0.3) in (130, -signal.SIGINT)
                    break
                process.send_signal(signal.SIGINT)
            assert process.poll() is not None
        finally:
            process.kill()


RAISED_AFTER_START = """
import sys
from tidemill import _native
from tidemill.cli import main

start = _native.Mill
# The engine is on the stack of the frame that raises.
_native.Mill = lambda *arguments: (start(*arguments), 1 // 0)
sys.exit(main())
"""


def test_an_engine_that_ends_under_an_exception_leaves_it_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ENDLESS.replace("while True", "while False"))
    (tmp_path / "in.csv").write_text("n\n1\n")
    (tmp_path / "start.py").write_text(RAISED_AFTER_START)
    command = [sys.executable, "start.py", "run", "app.py"]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.endswith("ZeroDivisionError: integer division or modulo by zero\n")
