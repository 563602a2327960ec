"""Finishes a killed run, before an app continues in the other way: in one process, or on several.

Cuts and requests that no snapshot has can only be executed in the way in which they were recorded.
So the app runs that way once more, until a snapshot has everything.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill import _native
from tidemill.app import App
from tidemill.cluster import Coordinator
from tidemill.config import ALL, DIRECTORY, PROCESSES, in_memory
from tidemill.errors import ProgramError, ResourceError, SettingError
from tidemill.mill import Mill

#: Settings that mean nothing while a run is finished.
NOT_NOW = ("fresh", "upgrade", "renames", "http_port", "cluster_listen")

#: The longest time until the workers of a killed run have executed what it recorded.
FINISH_S = 120.0


def finish(
    app: App, args: argparse.Namespace, settings: Mapping[str, Any], on_several: bool
) -> None:
    """Finishes the last run on the data directory, if it was in the other way and was killed.

    ``on_several`` says how the app goes on.

    Raises:
        ResourceError: It can't be finished.
    """
    if settings.get("fresh") or in_memory(settings) or not Path(settings["data_dir"]).exists():
        return
    needed = _native.unfinished(str(settings["data_dir"]), on_several)
    if needed is None:
        return
    how = "in one process" if on_several else "on several processes"
    print(f"finishing the last run, which was {how}", file=sys.stderr, flush=True)
    mode = DIRECTORY if on_several else PROCESSES
    fits = {name: value for name, value in settings.items() if mode in ALL[name].modes}
    own = {name: value for name, value in fits.items() if name not in NOT_NOW}
    own |= {"data_dir": settings["data_dir"], **json.loads(needed)}
    if on_several:
        _in_one(app, own).stop()
    else:
        _on_several(app, args, own)


def _in_one(app: App, settings: dict[str, Any]) -> Mill:
    try:
        return Mill(app, settings, keep_all=False, push=False)
    except SettingError:
        # The app was started from Python, which can send into any stream.
        return Mill(app, settings, keep_all=False, push=True)


def _on_several(app: App, args: argparse.Namespace, settings: dict[str, Any]) -> None:
    # Imported here because that module imports this one.
    from tidemill.cli.cluster import children_of

    secret = secrets.token_bytes(32)
    coordinator = Coordinator(app, settings, secret)
    (child,) = children_of(args.app, 1, coordinator, settings, secret)
    try:
        until = time.monotonic() + FINISH_S
        while not (status := coordinator.status())["generation"]:
            if status["ended"] is not None:
                raise ResourceError(
                    f"the last run can't be finished: {status['ended']}",
                    "run the app in the way in which it ran last, and see why",
                )
            if time.monotonic() > until:
                raise ResourceError(
                    "the last run can't be finished: no worker came",
                    "run the app with --processes N, and see why",
                )
            child.look()
            time.sleep(0.02)
        is_whole = coordinator.stop()
        if fault := coordinator.status()["stopping_fault"]:
            raise ProgramError(
                f"the last run can't be finished: {fault['what']}",
                "correct the function, and start again",
                fault["line"],
            )
        if not is_whole:
            raise ResourceError(
                "the last run could not be finished in time",
                "run the app with --processes N, and stop it with Ctrl-C: that leaves a snapshot",
            )
    finally:
        child.end()
