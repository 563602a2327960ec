"""``tidemill coordinator`` and ``tidemill worker``: the processes of a cluster, one by one.

A cluster has one coordinator, which clients call over HTTP, and any number of workers, which join
and leave as they like: what they have to do is divided among those that are there. When a process
dies the others go on without it, from the last snapshot, and nothing is lost or done twice. Who
starts it again is who has started it: ``tidemill run --processes`` does for its own, elsewhere it
is the orchestrator.
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
from tidemill.cli.load import load
from tidemill.cli.output import fields, printed
from tidemill.cli.run import Care, Signals, add_places, add_settings, add_upgrade, flags
from tidemill.cluster import Coordinator, Worker, folder_of, secret_of
from tidemill.config import COORDINATOR, WORKER, placed
from tidemill.config import load as load_settings
from tidemill.errors import InputError, ProgramError, ResourceError, SettingError

#: A worker that has ended is started again after so long, at first and at most.
AGAIN_S, AGAIN_MAX_S = 0.05, 5.0

#: One that has run for so long has not failed at its start.
RUNS_S = 10.0

#: So long a coordinator is asked how its cluster does.
STATUS_S = 10.0


def add(commands: Any) -> None:
    """Adds the commands to the parser."""
    coordinator: argparse.ArgumentParser = commands.add_parser(
        "coordinator", help="run the coordinator of a cluster", description=__doc__
    )
    coordinator.add_argument("app", metavar="APP.py", help="the file that makes the app")
    coordinator.add_argument(
        "--listen", metavar="ADDRESS", help="where workers join (default: 127.0.0.1:7400)"
    )
    coordinator.add_argument(
        "--data-dir", metavar="DIR", help="where its log is (default: <app>.tidemill)"
    )
    coordinator.add_argument(
        "--http", metavar="[HOST:]PORT", help="answer clients over HTTP (default host: 127.0.0.1)"
    )
    add_upgrade(coordinator)
    _common(coordinator)
    coordinator.set_defaults(execute=_coordinator)

    worker: argparse.ArgumentParser = commands.add_parser(
        "worker", help="run a worker of a cluster", description=__doc__
    )
    worker.add_argument("app", metavar="APP.py", help="the file that makes the app")
    worker.add_argument("--join", metavar="ADDRESS", help="where the coordinator is")
    worker.add_argument(
        "--listen", metavar="ADDRESS", help="where other workers reach it (default: 127.0.0.1:0)"
    )
    # For who starts it: what it needs comes in a line, and it ends when nothing can come any more.
    worker.add_argument("--from-parent", action="store_true", help=argparse.SUPPRESS)
    _common(worker)
    worker.set_defaults(execute=_worker)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help="a file with what all processes of the cluster know, and nobody else does",
    )
    for name, help in (
        ("certificate", "this process's certificate as PEM; with it processes speak TLS"),
        ("key", "its private key as PEM"),
        ("authority", "the certificate that has signed those of all processes as PEM"),
    ):
        parser.add_argument(f"--{name}", metavar="FILE", help=help)
    add_places(parser)
    add_settings(parser)


def _settings(args: argparse.Namespace, folder: Path, mode: str) -> dict[str, Any]:
    return load_settings(args.config, folder, flags(args), os.environ, lambda _: mode)


def _secret(settings: dict[str, Any]) -> bytes:
    if "cluster_secret_file" not in settings:
        raise SettingError(
            "the cluster has no secret, by which its processes know each other",
            "openssl rand -hex 32 > secret, and give all of them --secret-file secret",
        )
    return secret_of(settings["cluster_secret_file"])


def _coordinator(args: argparse.Namespace) -> int:
    app, folder = load(args.app)
    settings = {"cluster_listen": "127.0.0.1:7400"} | _settings(args, folder, COORDINATOR)
    _check(app, settings)
    signals = Signals()
    signals.install()
    settings = placed(settings, app.name)
    care = Care(folder_of(settings), settings, is_coordinator=True)
    with signals.starting():
        coordinator = Coordinator(app, settings, _secret(settings))
    care.started()
    _say(args, coordinator, "workers join at")
    status = _watch(coordinator, signals, lambda: None, _ends(app, coordinator, settings))
    return _ended(args, status, signals)


def _check(app: App, settings: Mapping[str, Any]) -> None:
    # What others write into the log of Kafka may be events.
    reads = any(source["files"] is not None for source in app.sources)
    if not app.calls and not app.timers and not reads and "cluster_log" not in settings:
        raise ProgramError(
            f"app {app.name} reads nothing, and has nothing that clients could call",
            "clients call procedures and functions of entities; events come from files, or from "
            "whoever writes them into the log, where that is in Kafka: --log kafka://HOST:PORT",
            app.at,
        )


def _ends(app: App, coordinator: Coordinator, settings: Mapping[str, Any]) -> bool:
    """Whether nothing can come any more when files have been read to their ends."""
    is_served = coordinator.url is not None or "cluster_log" in settings
    from_files = all(source["files"] is not None for source in app.sources)
    return from_files and not app.timers and not is_served


def _say(args: argparse.Namespace, coordinator: Coordinator, what: str) -> None:
    # With --json stdout has one line, the last.
    to = sys.stderr if args.json else sys.stdout
    print(f"cluster  {what} {coordinator.address}", file=to, flush=True)
    if coordinator.url is not None:
        print(f"http     {coordinator.url}", file=to, flush=True)
    for slow in coordinator.status()["slow"]:
        print(f"slow     {slow}", file=sys.stderr, flush=True)


class Troubles:
    """What processes wait for, to be said once."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def new(self, now: dict[str, str]) -> list[tuple[str, str]]:
        """Those that were not there before, by process.

        >>> troubles = Troubles()
        >>> troubles.new({"coordinator": "no broker answers"})
        [('coordinator', 'no broker answers')]
        >>> troubles.new({"coordinator": "no broker answers"}), troubles.new({})
        ([], [])
        """
        found = [(who, what) for who, what in now.items() if who not in self._said]
        self._said = now
        return found


#: What may have become more until the end.
COUNTED = ("epoch", "snapshot_epoch", "sinks", "faults", "aborted_slides", "aborted_slide")


def _slides(status: dict[str, Any], before: int) -> int:
    """Says that triggers of windows have aborted, if more have than before; how many have."""
    count = int(status["aborted_slides"])
    if count > before:
        what = f"{status['aborted_slide']} ({count} so far)"
        print(f"a trigger of a window has aborted: {what}", file=sys.stderr, flush=True)
    return count


def _watch(coordinator: Coordinator, signals: Signals, look: Any, ends: bool) -> dict[str, Any]:
    """Waits for a signal, for the end of the coordinator, or for that of the input if nothing
    can come any more then; gives the last status."""
    seen: tuple[object, ...] = ()
    troubles, slides = Troubles(), 0
    while not signals.asked:
        time.sleep(0.05)
        look()
        status = coordinator.status()
        if status["ended"] is not None:
            if status["late_event"]:
                coordinator.stop()  # What has left before it is written.
            return status
        if ends and status["input_ended"]:
            break
        now = (status["generation"], len(status["members"]))
        if now != seen and now[0]:
            print(f"generation {now[0]}: {now[1]} workers", file=sys.stderr, flush=True)
            seen = now
        slides = _slides(status, slides)
        for who, what in troubles.new({t["process"]: t["what"] for t in status["troubles"]}):
            print(f"{who} waits: {what}", file=sys.stderr, flush=True)
    print("the last snapshot is taken", file=sys.stderr, flush=True)
    if not coordinator.stop(may_come=signals.asked is not None or not ends):
        print("it could not be: the next start executes again", file=sys.stderr, flush=True)
    after = coordinator.status()
    _slides(after, slides)
    return status | {name: after[name] for name in COUNTED}


def _ended(args: argparse.Namespace, status: dict[str, Any], signals: Signals) -> int:
    if args.json:
        printed(status)
    if status["ended"] is not None and status["late_event"]:
        raise InputError(
            status["ended"],
            'give the source a larger disorder, or the stream late="side" or late="admit", and '
            "start with --upgrade: all before that event is in a snapshot",
        )
    if status["ended"] is not None:
        raise ResourceError(f"the coordinator has ended: {status['ended']}", "start it again")
    if not args.json:
        print("\n".join(fields(status)))
    return signals.code


def status_of(url: str) -> dict[str, Any]:
    """What the coordinator says of its cluster, which answers clients at an address."""
    import httpx

    help = "give the address that the coordinator shows as http, such as http://127.0.0.1:8080"
    url = url if "://" in url else f"http://{url}"
    try:
        found = httpx.get(f"{url.rstrip('/')}/health", timeout=STATUS_S).json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ResourceError(f"nobody answers at {url}: {error}", help) from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or "members" not in found:
        raise SettingError(f"{url} is not the address of a cluster", help)
    return found


def status_lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    generation, members = found["generation"], found["members"]
    state = f"ended: {found['ended']}" if found["ended"] else "forms" if not generation else "runs"
    head = {
        "app": found["app"],
        "state": state,
        "generation": generation,
        "epoch": found["epoch"],
        "snapshot at epoch": found["snapshot_epoch"],
        "requests that wait": sum(found["lag"]),
        "replies that wait": found["requests_open"],
        "coordinator": found["coordinator"],
    }
    if found.get("outside") is not None:
        head["work outside that waits"] = found["outside"]
    workers = [f"  {member['worker']}  {member['address']}" for member in members]
    lines = [*fields(head), f"workers ({len(members)})", *workers]
    if found["sources"]:
        lines.append("sources: requests, waiting, a second, times the mean, worker")
        for source in found["sources"]:
            lines.append(
                f"  {source['source']:>4}  {source['requests']:>12,}  {source['lag']:>8,}"
                f"  {source['requests_per_s']:>10,.1f}  {source['skew']:>6.2f}  {source['worker']}"
                f"  {source['topic'] or ''}".rstrip()
            )
    if found.get("event_time"):
        parked, late = found["parked"], found["late"]
        lines.append(f"event time: {parked:,} events wait for their watermark, {late:,} were late")
        for stream in found["event_time"]:
            mark, behind = stream["watermark"], stream["behind"]
            held = "nothing has come of some source" if mark is None else f"held back by {behind}"
            held = "which has ended" if stream["ended"] else held
            lines.append(f"  {'-' if mark is None else mark:>20}  {stream['stream']}, {held}")
    if found.get("sinks"):
        lines.append("sinks: rows")
        lines += [f"  {s['rows']:>12,}  {s['stream']} to {s['to']}" for s in found["sinks"]]
    if found["left_out"]:
        lines.append("left out, because they can't reach others")
        for left in found["left_out"]:
            others = ", ".join(map(str, left["from"]))
            lines.append(f"  {left['worker']}  from {others}, for {left['for_s']:.0f} s more")
    if found["troubles"]:
        lines.append("wait for what does not come")
        lines += [f"  {trouble['process']}  {trouble['what']}" for trouble in found["troubles"]]
    if found.get("slow"):
        lines += ["slow on several processes", *(f"  {what}" for what in found["slow"])]
    if found["refused"]:
        lines += ["turned away", *(f"  {why}" for why in found["refused"])]
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
        secret, join = _secret(settings), args.join
    if join is None:
        raise SettingError("a worker joins a coordinator", "say where it is: --join ADDRESS")
    signals = Signals()
    signals.install()
    if args.from_parent:
        # Who stops the parent from a terminal stops both, and the parent needs its workers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals.starting():
        worker = Worker(app, placed(settings, app.name), secret, join)
    if not args.json and not args.from_parent:
        print(f"worker {worker.number} at {worker.address}, joining {join}", flush=True)
    ended = None
    troubles = Troubles()
    while not signals.asked and ended is None:
        ended = worker.wait(0.1)
        # What a parent starts tells it over the cluster.
        what = None if args.from_parent else worker.trouble()
        for _, new in troubles.new({} if what is None else {"worker": what}):
            print(f"worker {worker.number} waits: {new}", file=sys.stderr, flush=True)
    worker.stop()
    if args.json:
        printed({"worker": worker.number, "ended": ended and ended[0], "why": ended and ended[1]})
    if ended is not None and ended[0] == "refused":
        raise SettingError(f"the coordinator at {join} and this worker do not match: {ended[1]}")
    if ended is not None and ended[0] != "stopped":
        raise ResourceError(f"the worker has ended: {ended[1]}", "start another one")
    return signals.code


def _end_with_parent() -> None:
    """Waits until nobody holds the other end of stdin any more."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


class Child:
    """A worker process, and when to start another in its place."""

    def __init__(self, command: list[str], given: bytes) -> None:
        self.command, self.given = command, given
        self.process: subprocess.Popen[bytes] | None = None
        self.started = self.due = 0.0
        self.pause = AGAIN_S

    def look(self) -> None:
        """Starts the process when there is none and it is time to."""
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
                # There is no room for it, or it has ended already, which is seen the next time.
                self.pause = min(2 * self.pause, AGAIN_MAX_S)
                self.due = now + self.pause
                print(f"a worker could not be started: {error}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Ends it, at once: whatever it does is done again by whoever comes next."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def run_here(app: App, args: argparse.Namespace, settings: dict[str, Any]) -> int:
    """A coordinator in this process, and workers in others of this machine."""
    _check(app, settings)
    signals = Signals()
    signals.install()
    secret = secrets.token_bytes(32)
    care = Care(folder_of(settings), settings, is_coordinator=True)
    with signals.starting():
        coordinator = Coordinator(app, settings, secret)
    care.started()
    _say(args, coordinator, f"{args.processes} workers join at")
    theirs = {k: v for k, v in settings.items() if k != "cluster_listen"}
    given = {"settings": theirs, "secret": secret.hex(), "join": coordinator.address}
    line = json.dumps(given).encode() + b"\n"
    command = [sys.executable, "-m", "tidemill.cli", "worker", args.app, "--from-parent"]
    children = [Child(command, line) for _ in range(args.processes)]

    def look() -> None:
        for child in children:
            child.look()

    try:
        status = _watch(coordinator, signals, look, _ends(app, coordinator, settings))
    finally:
        for child in children:
            child.end()
    return _ended(args, status, signals)
