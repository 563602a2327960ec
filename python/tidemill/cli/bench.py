"""``tidemill bench``: runs a workload and measures it. The package ``tidemill-bench`` has it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import Any

from tidemill import __version__
from tidemill.errors import SettingError


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    if importlib.util.find_spec("tidemill_bench") is not None:
        from tidemill_bench import command

        command.add(commands)
        return
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="run a workload and measure it (pip install tidemill-bench)"
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help="workload and its options")
    parser.set_defaults(execute=_execute)


def _execute(args: argparse.Namespace) -> int:
    raise SettingError(
        "the benchmarks are not installed",
        f"pip install tidemill-bench=={__version__}, or in the sources: make setup",
    )


def fix_library() -> None:
    """Starts this process again with the engine in the library of the benchmarks, if they are
    installed and another engine is loaded.
    """
    if importlib.util.find_spec("tidemill_bench") is None:
        return
    from tidemill_bench import engine

    if not engine.is_loaded():
        sys.stdout.flush()
        command = [sys.executable, "-m", "tidemill_bench", *sys.argv[1:]]
        os.execv(sys.executable, command)
