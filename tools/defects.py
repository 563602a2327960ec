"""Injects known defects into a copy of the sources, and checks that tests find each.

    python tools/defects.py                     # all defects: ten minutes on two cores
    python tools/defects.py --only skip-undo    # this one; the option may be repeated
    python tools/defects.py --check             # whether the files fit the sources, without a build

A file `tests/defects.toml` of a crate lists defects and tests. A defect has a name, a sentence that
says what it does, edits, and the tests that must find it. An edit replaces a text that is in its
file exactly once. A test has a number of cases, which it gets as TIDEMILL_CASES.

The copy has all files that git tracks, as they are now. Without a defect each test must pass, with
few cases. With each defect the sources must compile, and each of its tests must fail. A test that
does not end in time has found the defect, too. If a defect is not found, the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: The copy of the sources, and its builds.
SOURCE = ROOT / "target" / "defects" / "source"
BUILD = ROOT / "target" / "defects" / "build"

#: The cases with which a test must pass without a defect. Some tests count several as one.
FEW_CASES = 100
#: The longest time of a test, in seconds.
TEST_MAX_S = 900


class InvalidError(Exception):
    """Something that must be mended in a file of defects, or in the sources."""


@dataclass(frozen=True)
class Test:
    """A test of a crate."""

    name: str
    package: str
    #: The options of cargo that select its executable.
    target: tuple[str, ...]
    path: str
    cases: int


@dataclass(frozen=True)
class Edit:
    """A change of a file's text."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Defect:
    """A defect, and the tests that must find it."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[Test, ...]


def tracked() -> list[str]:
    """The files that git tracks and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [file for file in listed.stdout.decode().split("\0") if file and (ROOT / file).exists()]


def field(table: dict[str, Any], key: str, kind: type, of: str) -> Any:
    """A field of a table that must be there; a text or list must not be empty."""
    value = table.get(key)
    if not isinstance(value, kind) or not (value or key == "new"):
        raise InvalidError(f"{of}: '{key}' must be a {kind.__name__} that is not empty")
    return value


def defects_of(file: str) -> list[Defect]:
    """The defects of a file."""
    try:
        content = tomllib.loads((ROOT / file).read_text())
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(f"{file}: {error}") from None
    tests = {}
    for name, table in field(content, "tests", dict, file).items():
        of = f"{file}: test {name}"
        texts = [field(table, key, str, of) for key in ("package", "target", "test")]
        package, target, path = texts
        tests[name] = Test(
            name, package, tuple(target.split()), path, field(table, "cases", int, of)
        )
    found = []
    for table in field(content, "defect", list, file):
        name = field(table, "name", str, f"{file}: a defect")
        of = f"{file}: defect {name}"
        field(table, "what", str, of)
        named = field(table, "tests", list, of)
        if unknown := [test for test in named if test not in tests]:
            raise InvalidError(f"{of}: there is no test {', '.join(map(str, unknown))}")
        edits = [
            Edit(*(field(edit, key, str, of) for key in ("file", "old", "new")))
            for edit in field(table, "edit", list, of)
        ]
        found.append(Defect(name, tuple(edits), tuple(tests[test] for test in named)))
    if unused := tests.keys() - {test.name for defect in found for test in defect.tests}:
        raise InvalidError(f"{file}: no defect names the test {', '.join(sorted(unused))}")
    return found


def edited(defect: Defect, folder: Path) -> dict[str, str]:
    """The files that a defect changes, as they are with it."""
    texts: dict[str, str] = {}
    for edit in defect.edits:
        path = folder / edit.file
        if not path.is_file():
            raise InvalidError(f"defect {defect.name}: there is no file {edit.file}")
        text = texts.get(edit.file) or path.read_text()
        if (count := text.count(edit.old)) != 1:
            shown = edit.old.strip()
            raise InvalidError(
                f"defect {defect.name}: {edit.file} has {count} times, not once: {shown}"
            )
        if edit.old == edit.new:
            raise InvalidError(f"defect {defect.name}: an edit of {edit.file} changes nothing")
        texts[edit.file] = text.replace(edit.old, edit.new)
    return texts


def check(defects: list[Defect], files: list[str]) -> None:
    """Checks that the names of defects are unique, edits apply, and tests exist."""
    names = [defect.name for defect in defects]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidError(f"several defects are named {', '.join(twice)}")
    for defect in defects:
        edited(defect, ROOT)
    folders = {}
    for file in files:
        if Path(file).name == "Cargo.toml":
            package = tomllib.loads((ROOT / file).read_text()).get("package", {})
            folders[package.get("name")] = f"{Path(file).parent}/"
    for test in {test for defect in defects for test in defect.tests}:
        if (folder := folders.get(test.package)) is None:
            raise InvalidError(f"test {test.name}: there is no package {test.package}")
        function = f"fn {test.path.rsplit('::', 1)[-1]}()"
        sources = [file for file in files if file.startswith(folder) and file.endswith(".rs")]
        if not any(function in (ROOT / file).read_text() for file in sources):
            raise InvalidError(f"test {test.name}: {test.package} has no {function}")


def copy(files: list[str]) -> None:
    """Copies the files, except for equal ones, so that these are not compiled again."""
    wanted = set(files)
    for path in sorted(SOURCE.rglob("*")):
        if (path.is_symlink() or path.is_file()) and str(path.relative_to(SOURCE)) not in wanted:
            path.unlink()
    for file in files:
        content, path = (ROOT / file).read_bytes(), SOURCE / file
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def options(defects: list[Defect]) -> list[str]:
    """The options of cargo for all builds.

    The crates that defects change are compiled in several units, and only those that have changed.
    """
    manifests = {
        SOURCE / Path(edit.file).parts[0] / "Cargo.toml" for d in defects for edit in d.edits
    }
    found = ["--release", "--offline", "--target-dir", str(BUILD)]
    for manifest in sorted(manifests):
        package = tomllib.loads(manifest.read_text())["package"]["name"]
        for setting in ("codegen-units=16", "incremental=true"):
            found += ["--config", f"profile.release.package.{package}.{setting}"]
    return found


def cargo(
    arguments: list[str], cases: int = 0, longest_s: int | None = None
) -> tuple[int | None, str]:
    """Runs cargo in the copy; gives its exit status, None if it did not end in time, and output."""
    environment = {name: value for name, value in os.environ.items() if name != "TIDEMILL_SEED"}
    process = subprocess.Popen(
        ["cargo", *arguments],
        cwd=SOURCE,
        env={**environment, "TIDEMILL_CASES": str(cases), "CARGO_TERM_COLOR": "never"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=longest_s)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        # The process of the test may outlive cargo.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, output


def build(tests: tuple[Test, ...], common: list[str]) -> None:
    """Compiles the executables of tests."""
    for package, target in dict.fromkeys((test.package, test.target) for test in tests):
        status, output = cargo(["test", *common, "--no-run", "--package", package, *target])
        if status != 0:
            raise InvalidError(f"the sources do not compile:\n{output}")


def run(test: Test, cases: int, common: list[str]) -> str | None:
    """Runs a test; says how it has failed, or gives None if it has passed."""
    arguments = ["test", *common, "--package", test.package, *test.target]
    status, output = cargo([*arguments, "--", "--exact", test.path], cases, TEST_MAX_S)
    if status is None:
        return "does not end"
    if status == 0:
        if "test result: ok. 1 passed" not in output:
            raise InvalidError(f"{test.package} {' '.join(test.target)} has no test {test.path}")
        return None
    if "error: test failed" not in output:
        raise InvalidError(f"the test {test.name} did not run:\n{output}")
    seed = re.search(r"\bseed (\d+)", output)
    return f"seed {seed[1]}" if seed else "panic"


def find(defect: Defect, common: list[str]) -> list[str]:
    """Injects a defect and prints how its tests find it; gives the tests that do not."""
    began = time.monotonic()
    before = {file: (SOURCE / file).read_text() for file in {edit.file for edit in defect.edits}}
    for file, text in edited(defect, SOURCE).items():
        (SOURCE / file).write_text(text)
    try:
        build(defect.tests, common)
        built = time.monotonic()
        found = {test.name: run(test, test.cases, common) for test in defect.tests}
    except InvalidError as error:
        raise InvalidError(f"defect {defect.name}: {error}") from None
    finally:
        for file, text in before.items():
            (SOURCE / file).write_text(text)
    shown = ", ".join(f"{test}: {how or 'NOT FOUND'}" for test, how in found.items())
    times = f"{built - began:.0f} s to compile, {time.monotonic() - built:.0f} s to find"
    print(f"{defect.name}: {shown} ({times})", flush=True)
    return [test for test, how in found.items() if how is None]


def inject(defects: list[Defect], common: list[str]) -> int:
    """Runs the tests without a defect and with each; gives the exit status."""
    began = time.monotonic()
    tests = tuple(dict.fromkeys(test for defect in defects for test in defect.tests))
    print("compiling without a defect", flush=True)
    build(tests, common)
    for test in tests:
        if (how := run(test, FEW_CASES, common)) is not None:
            raise InvalidError(f"the test {test.name} fails without a defect: {how}")
        print(f"{test.name}: passes without a defect", flush=True)
    missed, broken = [], []
    for nth, defect in enumerate(defects, 1):
        print(f"[{nth}/{len(defects)}] ", end="", flush=True)
        try:
            missed += [f"{defect.name} by {test}" for test in find(defect, common)]
        except InvalidError as error:
            print(error, flush=True)
            broken.append(defect.name)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(defects)} injected in {minutes:.0f} minutes")
    if missed:
        print(f"not found: {', '.join(missed)}")
    if broken:
        print(f"not injected: {', '.join(broken)}")
    if not missed and not broken:
        print("all were found")
    return 1 if missed or broken else 0


def main() -> int:
    """Checks or injects the defects; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="inject this defect only")
    parser.add_argument("--check", action="store_true", help="check the files, and compile nothing")
    args = parser.parse_args()
    try:
        files = tracked()
        listed = [file for file in files if file.endswith("/tests/defects.toml")]
        defects = [defect for file in listed for defect in defects_of(file)]
        check(defects, files)
        if args.check:
            return 0
        copy(files)
        common = options(defects)
        if args.only:
            if unknown := set(args.only) - {defect.name for defect in defects}:
                parser.error(f"there is no defect {', '.join(sorted(unknown))}")
            defects = [defect for defect in defects if defect.name in args.only]
        return inject(defects, common)
    except InvalidError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
