"""Installs a wheel into empty environments and tries it as a new user would.

    python tools/try_wheel.py dist/tidemill-*manylinux*.whl

It uses the oldest and the newest Python on this machine that the wheel supports. In each empty
environment it installs the wheel, runs `tidemill demo`, makes an app with `tidemill new`, runs the
app and its test, and prints how long all of that took. Packages come from the registry of pip.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: The oldest Python that the package supports.
OLDEST = (3, 11)


def pythons() -> Iterator[tuple[tuple[int, ...], Path]]:
    """The interpreters on this machine that the package supports, with their versions."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders.extend(Path.home().glob(".pyenv/versions/*/bin"))
    for folder in folders:
        for path in folder.glob("python3.*"):
            if not re.fullmatch(r"python3\.\d+", path.name):
                continue
            asked = "import sys; print(*sys.version_info[:3])"
            said = subprocess.run([path, "-c", asked], capture_output=True, text=True)
            if said.returncode == 0:
                version = tuple(int(part) for part in said.stdout.split())
                if version >= OLDEST:
                    yield version, path


def run(folder: Path, *command: str | Path) -> str:
    """The output of a command, which must succeed."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("TIDEMILL_")}
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if ended.returncode:
        shown = " ".join(map(str, command))
        sys.exit(f"{shown}: exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}")
    return ended.stdout


def tried(python: Path, wheel: Path) -> dict[str, float]:
    """Tries a wheel with an interpreter; gives the seconds of each step."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def step(what: str, *commands: tuple[str | Path, ...], at: Path = folder) -> str:
            began = time.perf_counter()
            said = "".join(run(at, *command) for command in commands)
            seconds[what] = round(time.perf_counter() - began, 2)
            return said

        bin = folder / "env/bin"
        step("environment", (python, "-m", "venv", "env"))
        step("install", (bin / "pip", "install", "--quiet", wheel))
        demo = json.loads(step("demo", (bin / "tidemill", "demo", "--json")).splitlines()[-1])
        assert demo["equal"], demo
        step(
            "new",
            (bin / "tidemill", "new", "shop"),
        )
        app = folder / "shop"
        step(
            "app",
            (bin / "tidemill", "run", "app.py", "--fresh"),
            (bin / "python", "-m", "unittest"),
            at=app,
        )
        step("import", (bin / "python", "-c", "import tidemill"))
    return seconds


def main() -> int:
    """Tries the wheel that is named; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    wheel: Path = parser.parse_args().wheel.resolve()
    if not wheel.is_file():
        parser.error(f"{wheel} is no file: build it with 'make wheel'")
    found = sorted(pythons())
    if not found:
        parser.error("there is no Python 3.11 or newer")
    for version, python in dict([found[0], found[-1]]).items():
        seconds = tried(python, wheel)
        shown = ".".join(map(str, version))
        total = round(sum(seconds.values()), 1)
        result = {"wheel_mb": round(wheel.stat().st_size / 1e6, 1), "python": shown}
        print(json.dumps({**result, "seconds": total, "steps": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
