"""Drivers that hurt something so often, life after life, and go on where they were stopped."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What one life came to: how often it was hurt, by what, and the fates of the calls in it.
Life = tuple[int, Counter[str], Counter[str]]


class Progress:
    """How far a driver has come, in a file that is there until the driver is done."""

    def __init__(self, path: Path | None, is_anew: bool = False) -> None:
        self.path, self.is_anew = path, is_anew

    def known(self) -> dict[str, Any]:
        """Returns the last stored state; empty for a run that starts from scratch."""
        if self.path is None or self.is_anew or not self.path.exists():
            return {}
        found: dict[str, Any] = json.loads(self.path.read_text())
        return found

    def keep(self, state: dict[str, Any]) -> None:
        """Stores the state, from which the next start of the driver continues."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(state))

    def done(self) -> None:
        """Nothing is left to go on with."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of every driver with lives."""
    parser.add_argument("--first", type=int, help="the number of the first life")
    parser.add_argument("--progress", type=Path, help="a file that says where to go on")


def live_on(
    args: argparse.Namespace,
    count: str,
    shown: str,
    most: range,
    live: Callable[[int, Path, int], Life],
) -> None:
    """One life after the other until so many `count` have been, as the arguments say.

    Each life has its number, a folder and how often it is to be hurt, which is in `most`, but for
    the last one. `shown` says what is counted.
    """
    wanted = getattr(args, count)
    progress = Progress(args.progress, is_anew=args.first is not None)
    state = {"life": args.first or 0, count: 0, "acts": {}, "fates": {}} | progress.known()
    acts, fates = Counter(state["acts"]), Counter(state["fates"])
    folder = Path(tempfile.mkdtemp(prefix="tidemill-kill-"))
    while (left := wanted - state[count]) > 0:
        number = state["life"]
        times = random.Random(-1 - number).choice(most)
        hurt, did, ended = live(number, folder, min(times, left))
        acts, fates = acts + did, fates + ended
        state = {"life": number + 1, count: state[count] + hurt, "acts": acts, "fates": fates}
        print(
            f"{state[count]} of {wanted} {shown}, {state['life']} lives, "
            f"{dict(fates)} calls, 0 lost, 0 twice",
            flush=True,
        )
        progress.keep(state)
    progress.done()
    shutil.rmtree(folder)
    print(f"what has happened: {dict(acts)}")
