"""``tidemill coordinator`` and ``tidemill worker``: start one process of a cluster.

A cluster has one coordinator and any number of workers. Clients call any of them over HTTP. Workers
may join and leave at any time, and share the work. When a process dies, the others continue without
it from the last snapshot. Nothing is lost or executed twice. ``tidemill run --processes`` restarts
its own workers; elsewhere the orchestrator restarts processes.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.app import App
from tidemill.cli.finish import finish
from tidemill.cli.load import load
from tidemill.cli.output import counted, fields, printed
from tidemill.cli.run import Signals, add_places, add_settings, add_upgrade, flags, start_report
from tidemill.cluster import Coordinator, Worker, folder_of, secret_of
from tidemill.config import COORDINATOR, WORKER, placed
from tidemill.config import load as load_settings
from tidemill.errors import Error, InputError, ProgramError, ResourceError, SettingError

#: The first and the longest wait before a worker is started again, in seconds.
AGAIN_S, AGAIN_MAX_S = 0.05, 5.0

#: The running time after which an end does not count as a failed start, in seconds.
RUNS_S = 10.0

#: The shortest time between two reports of faults, in seconds.
FAULTS_S = 10.0

#: The longest wait for the status of a cluster, in seconds.
STATUS_S = 10.0


def add(commands: Any) -> None:
    """Adds the commands to the parser."""
    coordinator: argparse.ArgumentParser = commands.add_parser(
        "coordinator", help="run the coordinator of a cluster", description=__doc__
    )
    coordinator.add_argument("app", metavar="APP.py", help="the Python file with the app")
    coordinator.add_argument(
        "--listen", metavar="ADDRESS", help="address for workers (default: 127.0.0.1:7400)"
    )
    coordinator.add_argument(
        "--data-dir",
        metavar="DIR",
        help="directory of the log and the cluster's data (default: <app>.tidemill)",
    )
    coordinator.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        help="address at which to serve clients over HTTP (default host: 127.0.0.1)",
    )
    add_upgrade(coordinator)
    _common(coordinator)
    coordinator.set_defaults(execute=_coordinator)

    worker: argparse.ArgumentParser = commands.add_parser(
        "worker", help="run a worker of a cluster", description=__doc__
    )
    worker.add_argument("app", metavar="APP.py", help="the Python file with the app")
    worker.add_argument("--join", metavar="ADDRESS", help="address of the coordinator")
    worker.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="address for other workers (default: 127.0.0.1:0, any free port)",
    )
    worker.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        help="address at which to serve clients over HTTP, too (default host: 127.0.0.1)",
    )
    # For a parent process: the worker reads its settings from a line of stdin, and ends with stdin.
    worker.add_argument("--from-parent", action="store_true", help=argparse.SUPPRESS)
    _common(worker)
    worker.set_defaults(execute=_worker)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help="file with the secret that authenticates the processes of the cluster to each other",
    )
    for name, help in (
        ("certificate", "PEM file with the certificate of this process, which turns on TLS"),
        ("key", "PEM file with the private key of the certificate"),
        ("authority", "PEM file with the certificate that signed those of all processes"),
    ):
        parser.add_argument(f"--{name}", metavar="FILE", help=help)
    add_places(parser)
    add_settings(parser)


def _settings(args: argparse.Namespace, folder: Path, mode: str) -> dict[str, Any]:
    return load_settings(args.config, folder, flags(args), os.environ, lambda _: mode)


def _secret(settings: dict[str, Any]) -> bytes:
    if "cluster_secret_file" not in settings:
        raise SettingError(
            "the cluster has no secret, with which its processes authenticate each other",
            "run openssl rand -hex 32 > secret, and give all processes --secret-file secret",
        )
    return secret_of(settings["cluster_secret_file"])


def _coordinator(args: argparse.Namespace) -> int:
    app, folder = load(args.app)
    settings = {"cluster_listen": "127.0.0.1:7400"} | _settings(args, folder, COORDINATOR)
    _check(app, settings)
    signals = Signals()
    signals.install()
    settings = placed(settings, app.name)
    settings.setdefault("on_fault", "stop")
    finish(app, args, settings, on_several=True)
    with start_report(settings, True, folder_of(settings)), signals.starting():
        coordinator = Coordinator(app, settings, _secret(settings))
    _say(args, coordinator, "workers join at")
    status = _watch(coordinator, signals, lambda: None, _ends(app, coordinator, settings))
    return _ended(args, status, signals)


def _check(app: App, settings: Mapping[str, Any]) -> None:
    # With a log in Kafka other programs may write events into it.
    called = bool(app.calls) and "http_port" in settings
    if not called and not app.timers and not app.reads and "cluster_log" not in settings:
        raise ProgramError(
            f"app {app.name} reads nothing",
            'read a stream from files with stream.read(tm.files("name.csv")), let clients call '
            "procedures or functions of entities with --http PORT, or let other programs write "
            "events into a log in Kafka: --log kafka://HOST:PORT",
            app.at,
        )


def _ends(app: App, coordinator: Coordinator, settings: Mapping[str, Any]) -> bool:
    """Returns whether the end of all files is the end of all input."""
    is_served = coordinator.url is not None or "cluster_log" in settings
    from_files = all(source["files"] is not None for source in app.sources)
    return from_files and not app.timers and not is_served


def _say(args: argparse.Namespace, coordinator: Coordinator, what: str) -> None:
    # With --json stdout has only one line, the last.
    to = sys.stderr if args.json else sys.stdout
    print(f"cluster  {what} {coordinator.address}", file=to, flush=True)
    if coordinator.url is not None:
        print(f"http     {coordinator.url}", file=to, flush=True)


class Troubles:
    """The troubles of processes, so that each is reported once."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def new(self, now: dict[str, str]) -> list[tuple[str, str]]:
        """Returns the processes whose trouble is new, with the trouble.

        >>> troubles = Troubles()
        >>> troubles.new({"coordinator": "no broker answers"})
        [('coordinator', 'no broker answers')]
        >>> troubles.new({"coordinator": "no broker answers"}), troubles.new({})
        ([], [])
        """
        found = [(who, what) for who, what in now.items() if who not in self._said]
        self._said = now
        return found


#: The fields of the status that can still grow while the coordinator stops.
COUNTED = (
    "epoch", "snapshot_epoch", "sinks", "events", "committed", "refused", "faults", "dead",
    "reasons", "fault", "unstable", "aborted_slides", "aborted_slide",
)  # fmt: skip


def _slides(status: dict[str, Any], before: int) -> int:
    """Reports new aborts of triggers on windows, and returns the number of all of them."""
    count = int(status["aborted_slides"])
    if count > before:
        what = f"{status['aborted_slide']} ({count} so far)"
        print(f"a trigger of a window has aborted: {what}", file=sys.stderr, flush=True)
    return count


def _faults(status: dict[str, Any], before: int | None) -> int:
    """Reports new faults with the last one, and returns the number of all of them."""
    count = int(status["faults"] or 0)
    if before is not None and count > before:
        what = f"{status['fault']} ({counted(count, 'fault')} so far)"
        print(f"a function has failed: {what}", file=sys.stderr, flush=True)
    return count


def _watch(coordinator: Coordinator, signals: Signals, look: Any, ends: bool) -> dict[str, Any]:
    """Waits for a signal or the end of the coordinator, and returns the last status.

    With ``ends`` the end of the input ends the wait, too.
    """
    seen: tuple[object, ...] = ()
    troubles, slides, paced = Troubles(), 0, 0.0
    status = coordinator.status()
    faults = _faults(status, None)
    while not signals.asked:
        time.sleep(0.05)
        look()
        status = coordinator.status()
        if status["ended"] is not None:
            if status["late_event"] or status["over_memory"] or status["stopping_fault"]:
                coordinator.stop()  # Writes the output that has left.
            return status
        if ends and status["input_ended"]:
            break
        now = (status["generation"], len(status["members"]))
        if now != seen and now[0]:
            print(f"generation {now[0]}: {counted(now[1], 'worker')}", file=sys.stderr, flush=True)
            seen = now
        elif seen and not now[0] and now != seen:
            connected = counted(status["connected"], "worker")
            print(f"no generation runs; connected: {connected}", file=sys.stderr, flush=True)
            seen = now
        slides = _slides(status, slides)
        if time.monotonic() >= paced:
            before, faults = faults, _faults(status, faults)
            paced = time.monotonic() + FAULTS_S if faults > before else paced
        for who, what in troubles.new({t["process"]: t["what"] for t in status["troubles"]}):
            print(f"{who} waits: {what}", file=sys.stderr, flush=True)
    print("taking the last snapshot", file=sys.stderr, flush=True)
    if not coordinator.stop(more_input=signals.asked is not None or not ends):
        print("no snapshot: the next start replays the log", file=sys.stderr, flush=True)
    after = coordinator.status()
    _slides(after, slides)
    _faults(after, faults)
    if after["late_event"] or after["over_memory"] or after["stopping_fault"]:
        return after
    return status | {name: after[name] for name in COUNTED}


def _ended(args: argparse.Namespace, status: dict[str, Any], signals: Signals) -> int:
    if args.json:
        printed(status)
    if status["ended"] is not None and (fault := status["stopping_fault"]):
        raise ProgramError(
            fault["what"],
            "correct the function and start again, and the run continues with the event; with "
            "on_fault=abort (--set on_fault=abort) such events are counted, and the run continues "
            "without them, also where an earlier run has executed the event and told its result",
            fault["line"],
        )
    if status["ended"] is not None and status["late_event"]:
        raise InputError(
            status["ended"],
            'give the source a larger out_of_orderness, or the stream late="side" or late="admit", '
            "and start with --upgrade: all before that event is in a snapshot",
        )
    if status["ended"] is not None and status["over_memory"]:
        what, help = status["ended"].split(": ", 1)
        raise ResourceError(what, f"{help}; all before is in a snapshot")
    if status["ended"] is not None:
        raise ResourceError(f"the coordinator has ended: {status['ended']}", "start it again")
    if not args.json:
        print("\n".join(fields(status)))
    return signals.code


def status_of(url: str) -> dict[str, Any]:
    """Returns the status of the cluster whose coordinator serves an address."""
    import httpx

    help = "give the address that a process shows as http, such as http://127.0.0.1:8080"
    url = url if "://" in url else f"http://{url}"
    try:
        found = httpx.get(f"{url.rstrip('/')}/health", timeout=STATUS_S).json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ResourceError(f"no coordinator answers at {url}: {error}", help) from None
    except ValueError:
        found = None
    if isinstance(found, dict) and "what" in found:
        raise ResourceError(f"{url}: {found['what']}", found["help"])
    if not isinstance(found, dict) or "members" not in found:
        raise SettingError(f"{url} is not the address of a cluster", help)
    return found


#: The counts of results in the status.
RESULTS = ("events", "committed", "refused", "faults", "dead")


def stored_status(folder: Path) -> dict[str, Any]:
    """Returns the status of the cluster in a data directory.

    Asks its coordinator, if that answers. Otherwise these are the stored results only.
    """
    try:
        url: str | None = (folder / "http").read_text()
    except OSError:
        url = None
    found: dict[str, Any] = {"data_dir": str(folder.parent)}
    if url is not None:
        try:
            return found | status_of(url)
        except Error as error:
            found |= {"state": "unknown", "why": error.what}
    else:
        found |= {"state": "stopped, or runs without --http"}
    try:
        found |= json.loads((folder / "counts").read_text())["report"]
    except (OSError, ValueError, KeyError):
        found["reasons"] = []
    return found


def status_lines(found: dict[str, Any]) -> list[str]:
    """Returns the status of a cluster as lines for people."""
    generation, members = found["generation"], found["members"]
    state = "runs"
    if found["ended"]:
        state = f"ended: {found['ended']}"
    elif not generation:
        connected = counted(found["connected"], "worker")
        state = f"forms a generation; connected: {connected}"
    head = {
        "app": found["app"],
        "state": state,
        "generation": generation,
        "epoch": found["epoch"],
        **{name: found.get(name) for name in RESULTS},
        "snapshot at epoch": found["snapshot_epoch"],
        "waiting requests": sum(found["lag"]),
        "waiting replies": found["requests_open"],
        "coordinator": f"{found['coordinator']}  process {found['process']}",
    }
    if found.get("outside") is not None:
        head["waiting external work"] = found["outside"]
    workers = [
        f"  {member['worker']}  {member['address']}  process {member['process'] or 'unknown'}"
        f"  {member['http'] or ''}".rstrip()
        for member in members
    ]
    owner = ", the first of which owns all rows" if found["sole_owner"] and members else ""
    lines = [*fields(head), f"workers ({len(members)}){owner}", *workers]
    if found.get("reasons"):
        lines += fields({"reasons": found["reasons"]})
    if found["sources"]:
        lines.append("sources: requests, waiting, per second, ratio to the mean, worker")
        for source in found["sources"]:
            lines.append(
                f"  {source['source']:>4}  {source['requests']:>12,}  {source['lag']:>8,}"
                f"  {source['requests_per_s']:>10,.1f}  {source['skew']:>6.2f}  {source['worker']}"
                f"  {source['topic'] or ''}".rstrip()
            )
    if found.get("event_time"):
        buffered, late = found["buffered"], found["late"]
        lines.append(
            f"event time: {buffered:,} events wait for their watermark, {late:,} were late"
        )
        for stream in found["event_time"]:
            mark, behind = stream["watermark"], stream["behind"]
            held = "a source has no events yet" if mark is None else f"held back by {behind}"
            held = "which has ended" if stream["ended"] else held
            lines.append(f"  {'-' if mark is None else mark:>20}  {stream['stream']}, {held}")
    if found.get("sinks"):
        lines.append("sinks: rows")
        lines += [f"  {s['rows']:>12,}  {s['stream']} to {s['to']}" for s in found["sinks"]]
    if found["left_out"]:
        lines.append("excluded, because they can't reach others")
        for left in found["left_out"]:
            others = ", ".join(map(str, left["from"]))
            lines.append(f"  {left['worker']}  from {others}, for {left['for_s']:.0f} s more")
    if found["troubles"]:
        lines.append("waiting for a log, store or broker")
        lines += [f"  {trouble['process']}  {trouble['what']}" for trouble in found["troubles"]]
    if found["turned_away"]:
        lines += ["turned away", *(f"  {why}" for why in found["turned_away"])]
    return lines


def _worker(args: argparse.Namespace) -> int:
    app, folder = load(args.app)
    if args.from_parent:
        given = json.loads(sys.stdin.buffer.readline())
        settings, secret, join = given["settings"], bytes.fromhex(given["secret"]), given["join"]
        threading.Thread(target=_end_with_parent, daemon=True).start()
    else:
        settings = _settings(args, folder, WORKER)
        if args.listen is None and "cluster_advertised" in flags(args):
            raise SettingError(
                "command line: cluster_advertised means nothing without --listen",
                "say where the worker listens: --listen ADDRESS",
            )
        settings.pop("cluster_advertised", None) if args.listen is None else None
        if "http_port" not in flags(args):
            # The port in a file or the environment is the coordinator's.
            settings = _without_http(settings)
        secret, join = _secret(settings), args.join
    if join is None:
        raise SettingError("a worker needs a coordinator", "give its address: --join ADDRESS")
    signals = Signals()
    signals.install()
    if args.from_parent:
        # Ctrl-C in a terminal reaches both processes, and the parent needs its workers to stop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals.starting():
        worker = Worker(app, placed(settings, app.name), secret, join)
    if not args.json and not args.from_parent:
        print(f"worker {worker.number} at {worker.address}, joining {join}", flush=True)
        if worker.url is not None:
            print(f"http   {worker.url}", flush=True)
    ended = None
    troubles = Troubles()
    while not signals.asked and ended is None:
        ended = worker.wait(0.1)
        # The parent learns of troubles through the cluster.
        what = None if args.from_parent else worker.trouble()
        for _, new in troubles.new({} if what is None else {"worker": what}):
            print(f"worker {worker.number} waits: {new}", file=sys.stderr, flush=True)
    worker.stop()
    if args.json:
        printed({"worker": worker.number, "ended": ended and ended[0], "why": ended and ended[1]})
    if ended is not None and ended[0] == "refused":
        raise SettingError(
            f"the coordinator at {join} and this worker do not match: {ended[1]}",
            "start both with the same secret, app, Python and build",
        )
    if ended is not None and ended[0] != "stopped":
        raise ResourceError(f"the worker has ended: {ended[1]}", "start another one")
    return signals.code


def _without_http(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if not name.startswith("http_")}


def _end_with_parent() -> None:
    """Ends this process when the other end of stdin is closed."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


class Child:
    """A worker process, which is started again when it ends."""

    def __init__(self, command: list[str], given: bytes) -> None:
        self.command, self.given = command, given
        self.process: subprocess.Popen[bytes] | None = None
        self.started = self.due = 0.0
        self.pause = AGAIN_S

    def look(self) -> None:
        """Starts the process if none runs and the wait is over."""
        now = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            self.process = None
            has_run = now - self.started > RUNS_S
            self.pause = AGAIN_S if has_run else min(2 * self.pause, AGAIN_MAX_S)
            self.due = now + self.pause
            print(f"a worker has ended ({code}); another one starts", file=sys.stderr, flush=True)
        if now >= self.due:
            self.started = now
            try:
                self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE)
                assert self.process.stdin is not None
                self.process.stdin.write(self.given)
                self.process.stdin.flush()
            except OSError as error:
                # Memory is short, or the worker ended at once, which the next look sees.
                self.pause = min(2 * self.pause, AGAIN_MAX_S)
                self.due = now + self.pause
                print(f"a worker could not be started: {error}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Kills the process; another worker executes its unfinished work again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def children_of(
    app: str, count: int, coordinator: Coordinator, settings: Mapping[str, Any], secret: bytes
) -> list[Child]:
    """Returns worker processes of this machine, which are not started yet."""
    # The coordinator is on this machine, too, and answers its clients.
    theirs = {k: v for k, v in _without_http(settings).items() if k != "cluster_listen"}
    # The workers share the cores of this machine.
    share = max(1, (os.cpu_count() or 1) // count)
    theirs["workers"] = settings.get("workers") or share
    given = {"settings": theirs, "secret": secret.hex(), "join": coordinator.address}
    line = json.dumps(given).encode() + b"\n"
    command = [sys.executable, "-m", "tidemill.cli", "worker", app, "--from-parent"]
    return [Child(command, line) for _ in range(count)]


def run_here(app: App, args: argparse.Namespace, settings: dict[str, Any]) -> int:
    """Runs a coordinator in this process, and workers in other processes of this machine."""
    _check(app, settings)
    settings.setdefault("on_fault", "stop")
    signals = Signals()
    signals.install()
    secret = secrets.token_bytes(32)
    finish(app, args, settings, on_several=True)
    with start_report(settings, True, folder_of(settings)), signals.starting():
        coordinator = Coordinator(app, settings, secret)
    joins = "joins" if args.processes == 1 else "join"
    _say(args, coordinator, f"{counted(args.processes, 'worker')} {joins} at")
    children = children_of(args.app, args.processes, coordinator, settings, secret)

    def look() -> None:
        for child in children:
            child.look()

    try:
        status = _watch(coordinator, signals, look, _ends(app, coordinator, settings))
    finally:
        for child in children:
            child.end()
    return _ended(args, status, signals)
