"""Kills an app with SIGKILL, again and again, and looks at what becomes of it.

    python -m tests.kill.driver --kills 2000 --recovery-kills 300 --progress FILE

A *life* is one data directory: the app is started, killed at a random moment, started again,
killed again, and in the end left alone until it has done everything. Then its tables, hashes and
output files must be those of a run in memory that nobody has touched, and what it had acknowledged
must have been known after every kill. Kills while a start does again what is recorded are counted
apart. All of it follows from the number of the life, but for the moments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import app as killed
from .progress import Progress, arguments

#: How long a start may take until it has done everything, in seconds.
PATIENCE = 120.0


class Differs(Exception):
    """A violation of the guarantee."""


def expected(seed: int, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outcome and the files of a run in memory that nobody touches."""
    folder.mkdir(parents=True)
    rows = killed.inputs(seed)
    killed.write_files(folder, rows)
    with contextlib.chdir(folder), killed.build().start() as mill:
        for stream in ("orders", "notes"):
            mill.send(stream, rows[stream])
    return killed.outcome(mill, mill.summary()), killed.contents(folder)


class Child:
    """The app in a process of its own."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.kill.app", str(folder), json.dumps(settings)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
        )
        self.rest = b""

    def lines(self, deadline: float) -> Iterator[dict[str, Any] | None]:
        """Yields the lines of its output until it ends; ``None`` at the deadline, once."""
        pipe = self.process.stdout
        assert pipe is not None
        while True:
            while b"\n" in self.rest:
                line, self.rest = self.rest.split(b"\n", 1)
                yield json.loads(line)
            left = max(0.0, deadline - time.monotonic())
            if not select.select([pipe], [], [], left)[0]:
                yield None
                return
            read = os.read(pipe.fileno(), 1 << 16)
            if not read:
                return
            self.rest += read

    def kill(self) -> None:
        """Ends it without a word."""
        self.process.send_signal(signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it wrote to stderr."""
        code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.seek(0)
        text = self.errors.read()
        self.errors.close()
        return code, text


class Life:
    """One data directory, from its first start to the end of everything."""

    def __init__(self, number: int, folder: Path, kills: int) -> None:
        self.number = number
        self.dice = random.Random(number)
        self.seed = number % 4
        self.folder = folder / f"life-{number}"
        self.kills = kills
        #: What had been done when it was killed, and how often.
        self.moments: Counter[str] = Counter()
        #: Whether it has said that it recovers, and not that it has; and kills meanwhile.
        self.recovers = False
        self.recovery_kills = 0
        self.acknowledged = {"orders": 0, "notes": 0}
        self.acknowledgements = 0
        self.folder.mkdir(parents=True)
        killed.write_files(self.folder, killed.inputs(self.seed))

    def settings(self) -> dict[str, Any]:
        """The settings of a start: each may have others."""
        dice = self.dice
        durable = dice.choice(["log", "log+snapshots", "log+snapshots", "log+snapshots"])
        snapshots = {"snapshot_us": dice.choice([1_000, 20_000, 100_000, 10_000_000])}
        return {
            "seed": self.seed,
            "dice": dice.random(),
            "workers": dice.choice([1, 2, 3]),
            "epoch_rows_max": dice.choice([10, 100, 1_000, 65_536]),
            "log_segment_bytes": dice.choice([1 << 16, 1 << 20]),
            "durable": durable,
            **(snapshots if durable == "log+snapshots" else {}),
            # Each start follows what was recorded in either mode.
            "recovery": dice.choice(["weak", "strong"]),
        }

    def run(self) -> dict[str, Any]:
        """Lives it; gives the outcome."""
        for _ in range(self.kills):
            moments = ["start", "start", "known", "known", "recovery", "recovery", "ack", "end"]
            found = self.start(self.dice.choice(moments))
            if found is not None:
                return found
        found = self.start(None)
        if found is None:
            raise Differs("the last start ended without a summary")
        return found

    def start(self, when: str | None) -> dict[str, Any] | None:
        """One start, killed some time after ``when``; the outcome if it came to its end before."""
        settings = self.settings()
        child = Child(self.folder, settings)
        deadline = time.monotonic() + PATIENCE
        wanted = self.dice.randrange(1, 8)
        moment: float | None = None
        said = "nothing"
        outcome: dict[str, Any] | None = None
        stopped = False
        self.recovers = False
        while not stopped:
            stopped = True
            for line in child.lines(min(deadline, moment or deadline)):
                if line is None:
                    if moment is None:
                        child.kill()
                        raise Differs(f"nothing happened for {PATIENCE} s after {said}")
                    child.kill()
                    # Its earlier output is still in the pipe.
                    for rest in child.lines(deadline):
                        said = next(iter(rest or {}), said)
                        self.hear(rest or {})
                        outcome = (rest or {}).get("summary", outcome)
                    break
                said = next(iter(line))
                self.hear(line)
                outcome = line.get("summary", outcome)
                delay: float | None = None
                if when == "start" and said == "starts":
                    delay = self.dice.choice([0.004, 0.02, 0.08])
                elif when == "known" and said == "known":
                    delay = self.dice.choice([0.01, 0.1, 0.5, 1.0])
                elif when == "recovery" and said == "known":
                    # With nothing to recover it is killed later, so that the next start has.
                    delay = self.dice.choice([0.002, 0.01, 0.05] if self.recovers else [0.5])
                elif when == "ack" and "acknowledged" in line:
                    wanted -= 1
                    delay = 0.004 if wanted == 0 else None
                elif when == "end" and line.get("acknowledged", 0) > killed.ORDERS - 250:
                    delay = self.dice.choice([0.02, 0.2])
                if delay is not None and moment is None:
                    moment = time.monotonic() + self.dice.random() * delay
                    stopped = False
                    break
        code, errors = child.end()
        if code == -signal.SIGKILL:
            self.moments[said] += 1
            self.recovery_kills += self.recovers
            return None
        if code != 0 or outcome is None:
            raise Differs(f"the app ended with {code}, settings {settings}:\n{errors}")
        return outcome

    def hear(self, line: dict[str, Any]) -> None:
        """Takes down what was acknowledged, and compares what is known with it."""
        if "known" in line or "recovered" in line:
            self.recovers = line.get("recovering", False)
        if "acknowledged" in line:
            self.acknowledged[line["stream"]] = line["acknowledged"]
            self.acknowledgements += 1
        for stream, known in line.get("known", {}).items():
            if known < self.acknowledged[stream]:
                raise Differs(
                    f"{self.acknowledged[stream]} rows of {stream} were acknowledged, and after a "
                    f"kill {known} are known"
                )

    def compare(
        self, outcome: dict[str, Any], wanted: tuple[dict[str, Any], dict[str, Any]]
    ) -> None:
        """Raises when the outcome or a file is not as it must be."""
        for name, value in wanted[0].items():
            if outcome[name] != value:
                raise Differs(f"{name} is {outcome[name]!r:.2000} and must be {value!r:.2000}")
        files = killed.contents(self.folder)
        if files.keys() != wanted[1].keys():
            raise Differs(f"the files are {sorted(files)} and must be {sorted(wanted[1])}")
        for name, content in wanted[1].items():
            if files[name] != content:
                raise Differs(
                    f"{name} has {len(files[name])} bytes or rows and must have {len(content)}, "
                    "or they are others"
                )


class Lives:
    """Lives, one after another, until there were so many kills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wanted: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.kills = 0
        self.recovery_kills = 0
        self.acknowledgements = 0
        self.moments: Counter[str] = Counter()

    def live(self, number: int, kills: int) -> None:
        """One life with at most so many kills."""
        life = Life(number, self.folder, kills)
        if life.seed not in self.wanted:
            self.wanted[life.seed] = expected(life.seed, self.folder / f"whole-{life.seed}")
        try:
            life.compare(life.run(), self.wanted[life.seed])
        except Differs as error:
            raise Differs(f"life {number} in {life.folder}: {error}") from None
        shutil.rmtree(life.folder)
        self.kills += life.moments.total()
        self.recovery_kills += life.recovery_kills
        self.acknowledgements += life.acknowledgements
        self.moments += life.moments


def main() -> None:
    """Kills as often as the arguments ask, and continues an interrupted run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument(
        "--recovery-kills", type=int, default=0, help="how many of them, at least, in a recovery"
    )
    arguments(parser)
    args = parser.parse_args()
    state = {"life": args.first or 0, "kills": 0, "recovery_kills": 0, "acknowledgements": 0}
    progress = Progress(args.progress, is_anew=args.first is not None)
    state |= progress.known()
    lives = Lives(Path(tempfile.mkdtemp(prefix="tidemill-kill-")))
    lives.kills, lives.acknowledgements = state["kills"], state["acknowledgements"]
    lives.recovery_kills = state["recovery_kills"]
    number = state["life"]
    while lives.kills < args.kills or lives.recovery_kills < args.recovery_kills:
        kills = random.Random(number).randrange(1, 9)
        left = max(args.kills - lives.kills, args.recovery_kills - lives.recovery_kills)
        lives.live(number, min(kills, left))
        number += 1
        print(
            f"{lives.kills} of {args.kills} kills, {lives.recovery_kills} of "
            f"{args.recovery_kills} in a recovery, {number} lives, "
            f"{lives.acknowledgements} acknowledgements, 0 lost, 0 twice",
            flush=True,
        )
        progress.keep(
            {
                "life": number,
                "kills": lives.kills,
                "recovery_kills": lives.recovery_kills,
                "acknowledgements": lives.acknowledgements,
            }
        )
    progress.done()
    shutil.rmtree(lives.folder)
    print(f"killed after it had said: {dict(lives.moments)}")


if __name__ == "__main__":
    try:
        main()
    except Differs as error:
        sys.exit(f"error: {error}")
