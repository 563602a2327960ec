"""Records results of benchmarks in `bench/results`, with machine, load, commit, date and command.

    python tools/record.py                     # runs the command of every recorded result again
    python tools/record.py sl-serial http      # runs those of these results

A new result is recorded by its name and command:

    python tools/record.py movie --command "tidemill bench movie --repeat 3 --json"

The machine should do nothing else: with a load above LOAD_MAX a command waits. If it does not end
with 0, or prints no result, the old file stays and the exit status is 1.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"

#: The load, as the number of processes that run or wait for a disk, above which a command waits.
LOAD_MAX = 0.7

#: The longest wait for a lower load, in seconds. A command runs then all the same.
WAIT_MAX_S = 120


def machine() -> dict[str, object]:
    """Describes this machine."""
    processors = Path("/proc/cpuinfo").read_text()

    def of(field: str) -> str:
        found = re.search(rf"^{field}\s*: (.*)$", processors, re.MULTILINE)
        return found[1] if found else "unknown"

    mhz = float(of("cpu MHz")) if of("cpu MHz") != "unknown" else 0.0
    cache = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{of('model name')}, family {of('cpu family')}, model {of('model')}, "
        f"{mhz / 1000:.1f} GHz",
        "cores": os.cpu_count(),
        "second_level_cache_bytes_per_core": int(cache.read_text().strip().rstrip("K")) << 10
        if cache.exists()
        else None,
        "memory_gib": memory >> 30,
        "kernel": platform.release(),
        "virtual": "hypervisor" in of("flags").split(),
        "transparent_hugepages": re.findall(r"\[(\w+)\]", pages.read_text())[0]
        if pages.exists()
        else None,
    }


def quiet_load() -> float:
    """Waits until the machine is quiet, for at most WAIT_MAX_S, and returns its load."""
    until = time.monotonic() + WAIT_MAX_S
    while (load := os.getloadavg()[0]) > LOAD_MAX and time.monotonic() < until:
        time.sleep(2)
    return load


def measured(command: str) -> dict[str, object] | None:
    """Runs a command in an empty folder, and returns the last line of its output as JSON."""
    environment = {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            shlex.split(command),
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    lines = ended.stdout.splitlines()
    if ended.returncode != 0 or not lines:
        return None
    result: dict[str, object] = json.loads(lines[-1])
    return result


def described() -> str:
    """Returns the commit, and whether files other than the recorded results have changed."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    is_changed = git("status", "--porcelain", "--untracked-files=no", ":!bench/results")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if is_changed else "")


def record(path: Path, command: str, commit: str) -> bool:
    """Runs a command and records its result; returns false if it has none."""
    load = quiet_load()
    print(f"{path.stem}: {command}", flush=True)
    result = measured(command)
    if result is None:
        print(f"{path.stem}: no result", file=sys.stderr)
        return False
    recorded = {
        "machine": {**machine(), "load_before": round(load, 2)},
        "commit": commit,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "command": command,
        "result": result,
    }
    path.write_text(json.dumps(recorded, indent=2) + "\n")
    return True


def main() -> int:
    """Records the results that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="names of results (default: all)")
    parser.add_argument("--command", help="the command of a new result")
    args = parser.parse_args()
    if args.command:
        if len(args.names) != 1:
            parser.error("--command needs the name of one result")
        path = RESULTS / f"{args.names[0]}.json"
        return 0 if record(path, args.command, described()) else 1
    paths = [RESULTS / f"{name}.json" for name in args.names] or sorted(RESULTS.glob("*.json"))
    missing = [path.stem for path in paths if not path.exists()]
    if missing:
        parser.error(f"there is no result {', '.join(missing)}; --command records a new one")
    commands = [(path, str(json.loads(path.read_text())["command"])) for path in paths]
    commit = described()
    results = [record(path, command, commit) for path, command in commands]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
