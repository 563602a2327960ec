"""Installs wheels into empty environments and tries them as a new user would.

    python tools/try_wheel.py dist/*manylinux*.whl

First it checks what is in the wheels of the engine and the benchmarks. It uses the oldest and the
newest Python on this machine that they support. In each empty environment it installs the engine,
runs `tidemill demo`, makes an app with `tidemill new`, and runs the app and its test. Then it
installs the benchmarks and runs one. It prints how long all of that took. Packages come from the
registry of pip.
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
import zipfile
from collections.abc import Iterator
from pathlib import Path

#: The oldest Python that the package supports.
OLDEST = (3, 11)
#: The most bytes of a wheel.
MOST = 40_000_000
#: The C libraries in each wheel, whose licences it must contain.
LIBRARIES = ("librdkafka", "mimalloc", "OpenSSL", "zstd")


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


def checked(wheel: Path) -> None:
    """Checks the size of a wheel, its licences, and the links of its page."""
    assert wheel.stat().st_size <= MOST, f"{wheel.name} has over {MOST} bytes"
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            Path(name).name: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/" in name and not name.endswith(".json")
        }
    assert "Apache License" in texts["LICENSE"]
    for library in LIBRARIES:
        assert f"{library}, in C, within" in texts["THIRD-PARTY.txt"], library
    for link in re.findall(r"\]\(([^)\s]+)\)", texts["METADATA"]):
        assert link.startswith("https://"), f"{wheel.name}: the link {link} leads nowhere"


def tried(python: Path, engine: Path, bench: Path) -> dict[str, float]:
    """Tries the wheels with an interpreter; gives the seconds of each step."""
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
        step("install", (bin / "pip", "install", "--quiet", engine))
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
        names = run(
            folder, bin / "python", "-c", "from tidemill import _native; print(dir(_native))"
        )
        assert "run_reference" not in names, "the wheel has functions for tests"
        refused = subprocess.run([bin / "tidemill", "bench", "sl"], capture_output=True, text=True)
        assert "pip install tidemill-bench==" in refused.stderr, refused
        step("install bench", (bin / "pip", "install", "--quiet", bench))
        small = ("--events", "2000", "--keys", "100", "--repeat", "1", "--program", "python")
        step("bench", (bin / "tidemill", "bench", "sl", *small))
    return seconds


def main() -> int:
    """Tries the wheels that are named; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path, nargs="+")
    wheels: list[Path] = [wheel.resolve() for wheel in parser.parse_args().wheels]
    named = {wheel.name.partition("-")[0]: wheel for wheel in wheels if wheel.is_file()}
    if len(wheels) != 2 or set(named) != {"tidemill", "tidemill_bench"}:
        parser.error("name a wheel of tidemill and one of tidemill-bench: 'make wheel' builds them")
    engine, bench = named["tidemill"], named["tidemill_bench"]
    checked(engine)
    checked(bench)
    found = sorted(pythons())
    if not found:
        parser.error("there is no Python 3.11 or newer")
    for version, python in dict([found[0], found[-1]]).items():
        seconds = tried(python, engine, bench)
        shown = ".".join(map(str, version))
        total = round(sum(seconds.values()), 1)
        sizes = {name: round(wheel.stat().st_size / 1e6, 1) for name, wheel in named.items()}
        result = {"wheels_mb": sizes, "python": shown}
        print(json.dumps({**result, "seconds": total, "steps": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
