"""The command line: ``tidemill run``, ``inspect``, ``status``, ``query`` and the others.

Exit codes: 0 for success, 1 for an error of the app, its settings or its input, 2 for wrong usage,
and 130 after an interrupt.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from tidemill import __version__
from tidemill.cli import bench, cluster, demo, doctor, engine, inspect, new, run, token
from tidemill.cli.output import error_line, printed
from tidemill.errors import Error

OK = 0
FAILED = 1
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    made = argparse.ArgumentParser(
        prog="tidemill", description="Transactions over streams of events, in one order."
    )
    made.add_argument("--version", action="version", version=f"tidemill {__version__}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (demo, new, run, cluster, inspect, engine, bench, token, doctor):
        command.add(commands)
    for command_parser in _leaves(commands):
        command_parser.add_argument(
            "--json", action="store_true", help="print one line of JSON as the last line of stdout"
        )
        command_parser.add_argument(
            "--debug", action="store_true", help="show tracebacks of errors"
        )
    return made


def _leaves(commands: Any) -> Iterator[argparse.ArgumentParser]:
    """Yields the parsers of commands without subcommands."""
    for parser in commands.choices.values():
        nested = [action for action in parser._actions if isinstance(action.choices, dict)]
        if nested:
            for action in nested:
                yield from _leaves(action)
        else:
            yield parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command, and returns the exit code."""
    args = parser().parse_args(argv)
    if argv is None and args.command in ("run", "coordinator", "worker", "inspect", "schema"):
        fix_hash_seed()
    try:
        code: int = args.execute(args)
        sys.stdout.flush()
        return code
    except Error as error:
        if args.debug:
            traceback.print_exc()
        if args.json:
            printed(error_line(error))
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone, so no message can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def fix_hash_seed() -> None:
    """Starts this process again with a fixed hash seed, unless the user has set one.

    Opaque functions may iterate over sets of texts, whose order depends on the seed. With one seed
    for all runs they give the same results.
    """
    if "PYTHONHASHSEED" not in os.environ:
        sys.stdout.flush()
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
