"""``tidemill run``: runs an app until its input ends, and continues where an earlier run ended.

The data directory has everything that must outlive the process. It is ``<app>.tidemill`` in the
current folder, unless ``--data-dir`` names another. Ctrl-C and SIGTERM end a run after the current
epoch, with a snapshot. The same command continues the run later, also after a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from tidemill import _native
from tidemill.app import App
from tidemill.cli.finish import finish
from tidemill.cli.load import load, user_error
from tidemill.cli.output import counted, fields, printed
from tidemill.config import DURABLE, LOSSY, PROCESSES, in_memory, one_process, placed
from tidemill.config import load as load_settings
from tidemill.errors import Error, ProgramError, SettingError
from tidemill.mill import Mill, described

#: The last port, and the largest number of processes on one machine.
PORT_MAX, PROCESSES_MAX = 65_535, 256


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run", help="run an app, or continue an earlier run", description=__doc__
    )
    parser.add_argument("app", metavar="APP.py", help="the Python file with the app")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start from scratch: empty the data directory and replace output files",
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="the data directory (default: <app>.tidemill)"
    )
    parser.add_argument(
        "--durable",
        choices=DURABLE,
        help="content of the data directory (default: log+snapshots); none keeps everything in "
        "memory",
    )
    parser.add_argument("--workers", metavar="N", help="worker threads (default: one per core)")
    parser.add_argument(
        "--accept-replay",
        action="store_true",
        help="continue even if functions give other results than before a crash, and use the new "
        "results",
    )
    add_upgrade(parser)
    parser.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        help="serve clients over HTTP at this address, until the run is stopped (default host: "
        "127.0.0.1; port 0: any free port)",
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        type=int,
        help="run on N worker processes of this machine, with the coordinator in this process",
    )
    add_places(parser, "with --processes: ")
    add_settings(parser)
    parser.set_defaults(execute=execute)


def add_places(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Adds the flags for the log and the snapshots that the processes of a cluster share."""
    parser.add_argument(
        "--log",
        metavar="URL",
        help=f"{when}the log as kafka://host:port (default: the coordinator serves the log)",
    )
    parser.add_argument(
        "--snapshots",
        metavar="DIR",
        help=f"{when}place of the snapshots: a directory or s3://bucket/prefix",
    )


def add_upgrade(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that let a new version of an app continue with the data of the old one."""
    parser.add_argument(
        "--upgrade",
        action="store_true",
        help="continue with the data of another version of the app ('tidemill schema diff' shows "
        "the changes, for an app in one process)",
    )
    parser.add_argument(
        "--lossy",
        action="store_true",
        help="with --upgrade: drop data that this version of the app has no place for",
    )
    add_renames(parser)


def add_renames(parser: argparse.ArgumentParser) -> None:
    """Adds the flag for renamed tables and columns."""
    parser.add_argument(
        "--rename",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help="a renamed table, or a renamed column as table.column; repeatable",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that give settings."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="file of settings (default: tidemill.toml beside the app)",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="value of a setting; repeatable",
    )


def flags(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that the flags of a command give."""
    given: dict[str, Any] = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"--set {text}: there is no value", "write --set key=value")
        given[name.strip()] = value.strip()
    if getattr(args, "workers", None) is not None:
        given["workers"] = args.workers
    if getattr(args, "fresh", False):
        given["fresh"] = True
    if getattr(args, "accept_replay", False):
        given["accept_replay"] = True
    if getattr(args, "lossy", False) and not args.upgrade:
        raise SettingError("--lossy needs --upgrade", "write --upgrade --lossy")
    if getattr(args, "upgrade", False):
        given["upgrade"] = LOSSY if args.lossy else True
    if (http := getattr(args, "http", None)) is not None:
        given |= _http(http)
    if renames := getattr(args, "rename", []):
        given["renames"] = ",".join(renames)
    for name in ("data_dir", "durable"):
        if getattr(args, name, None) is not None:
            given[name] = getattr(args, name)
    for name in (
        "listen", "secret_file", "certificate", "key", "authority", "log", "snapshots",
    ):  # fmt: skip
        if getattr(args, name, None) is not None:
            given[f"cluster_{name}"] = getattr(args, name)
    return given


def _http(text: str) -> dict[str, Any]:
    """Returns the settings for ``--http [HOST:]PORT``.

    >>> _http("[::1]:8080")
    {'http_port': 8080, 'http_host': '[::1]'}
    """
    host, colon, port = text.rpartition(":")
    help = "give [HOST:]PORT, such as 8080 or 127.0.0.1:8080; port 0 is any free port"
    if not re.fullmatch(r"[0-9]{1,9}", port, re.ASCII) or int(port) > PORT_MAX:
        what = f"'{port[:40]}' is not a port, which is a number from 0 to {PORT_MAX:,}"
        raise SettingError(f"--http {text[:80]!r}: {what}", help)
    if colon and not host.strip():
        raise SettingError(f"--http {text!r}: there is no host before the colon", help)
    return {"http_port": int(port)} | ({"http_host": host} if host else {})


class Signals:
    """The handler of signals: the first SIGINT or SIGTERM ends the run, a second SIGINT kills it.

    During a start (:meth:`starting`) the first signal ends the process at once, because nothing
    has been done yet.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        #: Reports the first signal, at once.
        self.say: Callable[[str], None] | None = None
        self._starts = False

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Marks a start, which a signal may end at once."""
        self._starts = True
        try:
            yield
        finally:
            self._starts = False

    @property
    def code(self) -> int:
        """The exit code after an orderly end: 130 after Ctrl-C, and 0 otherwise.

        SIGTERM is the usual way to stop a service, so it is not an interrupt.
        """
        return 130 if self.asked == "SIGINT" else 0

    def install(self) -> None:
        """Installs the handler for SIGINT and SIGTERM."""
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            os._exit(130)
        self.asked = signal.Signals(number).name
        if self.say is not None:
            what = "ending the start" if self._starts else "stopping after this epoch"
            self.say(f"{self.asked}: {what}; Ctrl-C again ends at once")
        if self._starts:
            if number == signal.SIGTERM:
                raise SystemExit(0)
            raise KeyboardInterrupt


class Progress:
    """A line with the progress of the run, on stderr if that is a terminal."""

    def __init__(self, quiet: bool) -> None:
        self.shown = not quiet and sys.stderr.isatty()
        self._width = 0
        self._next = 0.0
        self._stalled: str | None = None
        self._troubles: dict[str, str] = {}
        self._faults = 0
        self._reported: set[tuple[str, str]] = set()

    def update(self, mill: Mill) -> None:
        """Updates the line, a few times a second."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.25
        status = mill.status()
        if status["stalled"] != self._stalled:
            self._stalled = status["stalled"]
            # The user must free disk space, so this is printed even without a terminal.
            self.clear()
            print(self._stalled or "continuing", file=sys.stderr, flush=True)
        if status["troubles"] != self._troubles:
            self.clear()
            for who in self._troubles.keys() - status["troubles"].keys():
                print(f"{who}: continuing", file=sys.stderr, flush=True)
            for who, what in status["troubles"].items():
                if self._troubles.get(who) != what:
                    print(f"{who}: {what}", file=sys.stderr, flush=True)
            self._troubles = status["troubles"]
        if status["faults"] > self._faults:
            self._faults = status["faults"]
            self.faults(mill)
        if self.shown:
            self._show(status)

    def faults(self, mill: Mill) -> None:
        """Prints the first fault of each line of the user's code."""
        for fault in mill.faults():
            place = fault.get("at", fault["reason"])
            if (fault["handler"], place) not in self._reported:
                self._reported.add((fault["handler"], place))
                self.clear()
                print(f"a function failed: {described(fault)}", file=sys.stderr, flush=True)

    def _show(self, status: dict[str, Any]) -> None:
        parts = [f"{status.get('events', 0):,} events"]
        if status.get("events_per_s") is not None:
            parts.append(f"{status['events_per_s']:,.0f}/s")
        parts.append(f"epoch {status.get('epoch', 0):,}")
        if status.get("lag_us"):
            parts.append(f"lag {status['lag_us'] / 1e6:,.1f} s")
        if status.get("buffered"):
            parts.append(f"{status['buffered']:,} buffered")
        if status.get("aborted"):
            parts.append(f"{status['aborted']:,} aborted")
        if status.get("faults"):
            parts.append(f"{status['faults']:,} faults")
        text = "  ".join(parts)
        if status["recovering"]:
            text = f"recovering: epoch {status['epoch']:,} of {status['known_epoch']:,}"
        print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def say(self, text: str) -> None:
        """Prints a permanent line. A handler of signals may call it in the middle of a print."""
        line = f"\r{text:<{self._width}}\n" if self.shown else f"{text}\n"
        self._width = 0
        # Without a standard error there is nobody to tell.
        with contextlib.suppress(OSError):
            os.write(2, line.encode())

    def clear(self) -> None:
        """Clears the line."""
        if self.shown and self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    app, folder = load(args.app)
    if args.processes is not None and not 1 <= args.processes <= PROCESSES_MAX:
        raise SettingError(
            f"--processes {args.processes}: an app runs on 1 to {PROCESSES_MAX} workers",
            "give about as many as there are cores",
        )

    def mode(found: Mapping[str, Any]) -> str:
        one = one_process(placed(found, app.name))
        return one if args.processes is None else PROCESSES

    settings = load_settings(args.config, folder, flags(args), os.environ, mode)
    if args.processes is not None:
        return on_processes(app, args, placed(settings, app.name))
    called = bool(app.calls) and "http_port" in settings
    if not called and not app.reads:
        raise ProgramError(
            f"app {app.name} reads nothing",
            'read a stream from files with stream.read(tm.files("name.csv")), let clients call '
            "procedures with --http PORT, or send events from Python with app.start()",
            app.at,
        )
    settings = placed(settings, app.name)
    settings.setdefault("on_fault", "stop")
    signals = Signals()
    signals.install()
    finish(app, args, settings, on_several=False)
    summary = run(app, settings, signals, Progress(args.json), quiet=args.json)
    if args.json:
        printed(summary)
    else:
        print("\n".join(fields(summary)))
    return signals.code


def on_processes(app: App, args: argparse.Namespace, settings: dict[str, Any]) -> int:
    """Runs the app on several processes of this machine, until a signal."""
    # Imported here because that module imports this one.
    from tidemill.cli.cluster import run_here

    return run_here(app, args, settings)


def run(
    app: App, settings: dict[str, Any], signals: Signals, progress: Progress, quiet: bool
) -> dict[str, Any]:
    """Runs an app to the end of its input, or until a signal, and returns the summary."""
    signals.say = progress.say
    with start_report(settings, False), signals.starting():
        mill = Mill(app, settings, keep_all=False, push=False)
    start = mill.status()
    if not quiet:
        print(f"data  {_found(settings, start)}", flush=True)
        if mill.url is not None:
            print(f"http  {mill.url}", flush=True)
    try:
        while not signals.asked and not mill.wait(0.1):
            progress.update(mill)
        progress.clear()
        # A signal interrupts a recovery, too.
        summary = mill.stop_now() if signals.asked else mill.finish()
        if mill.url is not None:
            progress.faults(mill)
    except BaseException:
        progress.clear()
        raise
    summary["app"] = app.name
    summary["hash_seed"] = os.environ.get("PYTHONHASHSEED", "random")
    summary["interrupted"] = signals.asked is not None
    summary["data_dir"] = None if in_memory(settings) else settings["data_dir"]
    summary["continued_at_epoch"] = start["known_epoch"]
    for function in app.summaries:
        summary |= _own_fields(function, mill, app)
    if summary["dead"] and not summary["transactions"]:
        _report_dead(summary)
    return summary


def _report_dead(summary: Mapping[str, Any]) -> None:
    """Reports on stderr that every row was rejected, with the first reason."""
    # Imported here because that module imports this one.
    from tidemill.cli.engine import first_dead

    folder = summary["data_dir"]
    why = None if folder is None else first_dead(folder)
    text = f"no row was executed: {counted(summary['dead'], 'row')} could not be read"
    if why is not None:
        text += f"; the first: {why}"
    if folder is not None:
        text += f"\n  help: see all with tidemill dlq ls --data-dir {folder}"
    if why is not None and "the file's encoding" in why:
        text += '\n  help: name the encoding, such as tm.files(..., encoding="windows-1252")'
    print(text, file=sys.stderr, flush=True)


def is_open(folder: Path) -> bool:
    """Returns whether other users of the machine may read a folder."""
    try:
        return folder.stat().st_mode & 0o077 != 0
    except OSError:
        return False


@contextlib.contextmanager
def start_report(
    settings: Mapping[str, Any], is_coordinator: bool, folder: Path | None = None
) -> Iterator[None]:
    """Reports on stderr what a start has done to a directory: deleted files and changed access.

    A start that was refused has done nothing. ``folder`` is the data directory by default.
    """
    if folder is None:
        if in_memory(settings):
            yield
            return
        folder = Path(settings["data_dir"])
    was_open, names = is_open(folder), []
    if settings.get("fresh"):
        names = _native.fresh_deletes(str(folder), is_coordinator)
    try:
        yield
    except BaseException:
        names = [name for name in names if not (folder / name).exists()]
        raise
    finally:
        if names:
            print(f"--fresh: deleted in {folder}: {', '.join(names)}", file=sys.stderr, flush=True)
    if was_open and not is_open(folder):
        text = f"{folder} was open to other users: now only its owner can read it"
        print(text, file=sys.stderr, flush=True)


def _found(settings: dict[str, Any], start: dict[str, Any]) -> str:
    if in_memory(settings):
        return "in memory: nothing is stored"
    if start["known_epoch"] == 0:
        return f"{settings['data_dir']}: started from scratch"
    return (
        f"{settings['data_dir']}: continuing at epoch {start['known_epoch']:,}, "
        f"{counted(start['known_rows'], 'event')} recorded"
    )


def _own_fields(function: Any, mill: Mill, app: App) -> dict[str, Any]:
    try:
        found = function(mill)
        if not isinstance(found, dict):
            raise TypeError(f"@app.summary returned {type(found).__name__}, not a dict")
        return found
    except Error:
        raise
    except Exception as error:
        raise user_error(error, app.at) from error
