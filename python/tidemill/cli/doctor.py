"""``tidemill doctor``: checks whether this machine can run Tidemill, and tells how to mend it."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from tidemill.cli.output import printed


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check. ``level`` is ok, warning or error."""

    name: str
    value: str
    level: str = "ok"
    help: str = ""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="check this machine", description=__doc__
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    found = list(findings())
    bad = any(finding.level == "error" for finding in found)
    if args.json:
        printed({"ok": not bad, "findings": [dataclasses.asdict(f) for f in found]})
    else:
        for finding in found:
            mark = {"ok": "ok ", "warning": "?  ", "error": "NO "}[finding.level]
            print(f"{mark} {finding.name:<18} {finding.value}")
            if finding.help:
                print(f"    {'':<18} {finding.help}")
    return 1 if bad else 0


def findings() -> Iterator[Finding]:
    """Yields the results of all checks."""
    version = platform.python_version()
    old = sys.version_info < (3, 11)
    yield Finding(
        "python",
        f"{platform.python_implementation()} {version}",
        "error" if old else "ok",
        "install Python 3.11 or newer" if old else "",
    )
    yield _native()
    yield from _libraries()
    yield Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("cores", str(cores))
    yield _load(cores or 1)
    yield from _memory()
    yield _disk()
    yield _clock()
    seed = os.environ.get("PYTHONHASHSEED")
    yield Finding("hash seed", seed or "not set: tidemill run sets 0")


def _native() -> Finding:
    try:
        from tidemill import _native
    except ImportError as error:
        return Finding(
            "engine",
            f"does not load: {error}",
            "error",
            "build it with 'make setup', or install the wheel for this system",
        )
    return Finding("engine", f"{_native.__version__}, built with Rust {_native.RUST_VERSION}")


def _libraries() -> Iterator[Finding]:
    for name in ("pyarrow", "rich"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            yield Finding(name, f"does not load: {error}", "error", f"pip install {name}")
            continue
        yield Finding(name, importlib.metadata.version(name))


def _load(cores: int) -> Finding:
    try:
        load = os.getloadavg()[0]
    except OSError:
        return Finding("load", "unknown")
    busy = load > 0.5 * cores
    return Finding(
        "load",
        f"{load:.2f} over the last minute",
        "warning" if busy else "ok",
        "other programs are running, so measurements are not reliable" if busy else "",
    )


def _memory() -> Iterator[Finding]:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        total = int(lines["MemTotal"].split()[0]) * 1024
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        yield Finding("memory", "unknown")
        return
    low = free < 1 << 30
    yield Finding(
        "memory",
        f"{free / (1 << 30):.1f} GiB free of {total / (1 << 30):.1f}",
        "warning" if low else "ok",
        "close other programs, or lower memory_bytes_max" if low else "",
    )


def _disk() -> Finding:
    usage = shutil.disk_usage(os.getcwd())
    low = usage.free < 1 << 30
    return Finding(
        "disk",
        f"{usage.free / (1 << 30):.1f} GiB free in {os.getcwd()}",
        "warning" if low else "ok",
        "free some space, or run in another folder" if low else "",
    )


def _clock() -> Finding:
    steps = []
    for _ in range(200):
        before = time.monotonic_ns()
        after = time.monotonic_ns()
        while after == before:
            after = time.monotonic_ns()
        steps.append(after - before)
    step = sorted(steps)[len(steps) // 2]
    coarse = step > 100_000
    return Finding(
        "clock",
        f"{step} ns a step",
        "warning" if coarse else "ok",
        "the clock is coarse, so measured latencies are coarse, too" if coarse else "",
    )
