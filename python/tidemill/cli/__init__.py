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
from typing import Any, NoReturn

from tidemill import __version__, _native, _starting
from tidemill.cli import bench, cluster, demo, doctor, engine, inspect, new, run, token
from tidemill.cli.output import error_line, printed
from tidemill.errors import Error

OK = 0
FAILED = 1
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest word for one that it does not know."""

    def format_help(self) -> str:
        """Returns the help for a terminal, without the marks of code in docstrings."""
        return super().format_help().replace("``", "")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action.choices, dict) and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"there is no '{value}'{_suggestion(str(value), list(action.choices))}"
            )
        super()._check_value(action, value)

    def refuse(self, left: Sequence[str]) -> NoReturn:
        """Ends the process because of arguments that the command does not have."""
        text = f"unrecognized arguments: {' '.join(left)}"
        name = left[0].partition("=")[0]
        if name.startswith("-"):
            text += _others(name, self.prog) or _suggestion(name, _options(self))
        self.error(text)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _others(flag: str, prog: str) -> str:
    """Returns for people which other commands have a flag; nothing if none has it.

    >>> _others("--upgrade", "tidemill worker"), _others("--join", "tidemill coordinator")
    ('; --upgrade is for the coordinator only', '; --join is for workers only')
    >>> _others("--fresh", "tidemill status"), _others("--frseh", "tidemill run")
    ("; --fresh is a flag of 'tidemill run'", '')
    """
    (commands,) = (a for a in parser()._actions if isinstance(a.choices, dict))
    having = [leaf.prog for leaf in _leaves(commands) if flag in _options(leaf)]
    if prog == "tidemill worker" and "tidemill coordinator" in having:
        return f"; {flag} is for the coordinator only"
    if prog == "tidemill coordinator" and having == ["tidemill worker"]:
        return f"; {flag} is for workers only"
    return f"; {flag} is a flag of {', '.join(map(repr, having))}" if having else ""


def _suggestion(given: str, known: list[str]) -> str:
    """Returns the nearest known word for people, or all of them if few are known."""
    near = _native.nearest(given, known)
    if near:
        return f"; did you mean {near}?"
    return "" if given.startswith("-") else f"; there are {', '.join(known)}"


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments of a command; ends the process if they are wrong."""
    args, left = parser().parse_known_args(argv)
    if left:
        args.parser.refuse(left)
    return args


def parser() -> Parser:
    """Returns the parser of all commands."""
    made = Parser(prog="tidemill", description="Transactions over streams of events, in one order.")
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
        command_parser.set_defaults(parser=command_parser)
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
    args = parsed(argv)
    if argv is None:
        _starting.loaded()
    if argv is None and args.command == "bench":
        bench.fix_library()
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
