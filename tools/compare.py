"""Compares two results of `tidemill bench … --json`: prints their figures and the ratios.

    python tools/compare.py bench/results/sl-serial.json mine.json
    python tools/compare.py bench/results mine/       # files of the same name

A file holds the line that a benchmark prints. Or it holds an object with that line as `result` and
the `machine`, `commit`, `date` and `command` beside it, as in `bench/results`.

The exit status is 1 where hashes of tables or outputs differ, or where a run is not valid. It is 2
where the files cannot be compared. Hashes are compared where both runs had the same number of
events in one process. The order of requests to several processes changes from run to run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Options of a run. Their values are no figures of its result.
SETUP = ("program", "threads", "processes", "strategy", "durable", "form", "of", "events")

#: Details of a run that two runs need not share, such as how many epochs each strategy executed.
DETAILS = ("ran", "rates", "lengths", "crises", "why_aborted")


class BadInputError(Exception):
    """Files that cannot be compared."""


@dataclass(frozen=True)
class Run:
    """The result of a benchmark, and the file that it comes from."""

    path: Path
    result: dict[str, object]

    @property
    def figures(self) -> dict[str, float]:
        """The numbers of the result by name. A dot follows the name of an object."""
        return dict(numbers(self.result))

    @property
    def hashes(self) -> dict[str, str]:
        """The hashes of tables and outputs."""
        return {
            name: value
            for name, value in self.result.items()
            if name.endswith("_hash") and isinstance(value, str)
        }

    @property
    def is_repeatable(self) -> bool:
        """Whether each run of the command has the same order of events, and so the same hashes."""
        return self.result.get("processes", 1) == 1


def numbers(result: dict[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The figures of a result. Setup, details and lists of single runs are left out."""
    for name, value in result.items():
        if not prefix and name in (*SETUP, *DETAILS):
            continue
        if isinstance(value, dict):
            yield from numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value)


def read(path: Path) -> Run:
    """The result in a file: a wrapped one, or the last line that a benchmark printed."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path} cannot be read: {error}") from None
    found: object = None
    for part in (text, text.strip().rpartition("\n")[2]):
        try:
            found = json.loads(part)
            break
        except json.JSONDecodeError as error:
            why = error
    else:
        raise BadInputError(f"{path} is no JSON: {why}")
    result = found.get("result", found) if isinstance(found, dict) else None
    if not isinstance(result, dict) or not isinstance(result.get("workload"), str):
        raise BadInputError(f"{path} has no result of a benchmark: no object with a `workload`")
    return Run(path, result)


def pairs(first: Path, second: Path) -> Iterator[tuple[Run, Run]]:
    """The results to compare: of two files, or of the files of the same name in two folders."""
    for path in (first, second):
        if not path.exists():
            raise BadInputError(f"{path} does not exist")
    if first.is_dir() != second.is_dir():
        raise BadInputError(f"{first} and {second}: give two files or two folders")
    if not first.is_dir():
        yield read(first), read(second)
        return
    of_first = {path.name for path in first.glob("*.json")}
    of_second = {path.name for path in second.glob("*.json")}
    if not of_first & of_second:
        raise BadInputError(f"{first} and {second} have no file `*.json` of the same name")
    for name in sorted(of_first ^ of_second):
        print(f"{name} is only in {first if name in of_first else second}", file=sys.stderr)
    for name in sorted(of_first & of_second):
        yield read(first / name), read(second / name)


def shown(number: float) -> str:
    """A figure with four significant digits, or as a whole number from 1,000 on."""
    return f"{number:,.0f}" if abs(number) >= 1000 or number == int(number) else f"{number:.4g}"


def compare(first: Run, second: Run) -> list[str]:
    """Prints the figures that both results have. Returns the errors found."""
    if first.result["workload"] != second.result["workload"]:
        raise BadInputError(
            f"{first.path} measures {first.result['workload']}, "
            f"{second.path} measures {second.result['workload']}: compare runs of one workload"
        )
    title = first.path.stem if first.path.stem == second.path.stem else first.result["workload"]
    print(f"\n{title!s:32} {'first':>14} {'second':>14} {'ratio':>8}")
    for name in SETUP:
        one, other = first.result.get(name), second.result.get(name)
        if one != other:
            print(f"  {name:30} {one!s:>14} {other!s:>14} differs")
    others = second.figures
    for name, one in first.figures.items():
        if name in others:
            ratio = f"{others[name] / one:8.3f}" if one else f"{'-':>8}"
            print(f"  {name:30} {shown(one):>14} {shown(others[name]):>14} {ratio}")
    wrong = [f"{run.path} is not valid" for run in (first, second) if not run.result.get("valid")]
    if first.result.get("events") != second.result.get("events"):
        print("  hashes are not compared: the runs had another number of events")
    elif not (first.is_repeatable and second.is_repeatable):
        print("  hashes are not compared: the order of requests to several processes varies")
    else:
        for name, value in first.hashes.items():
            if (other := second.hashes.get(name)) not in (None, value):
                wrong.append(f"{title}: {name} differs: {value} and {other}")
    return wrong


def main() -> int:
    """Compares the named files or folders. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path, help="a result, or a folder of results")
    parser.add_argument("second", type=Path, help="the result to compare it with, or a folder")
    given = parser.parse_args()
    wrong: list[str] = []
    try:
        for first, second in pairs(given.first, given.second):
            wrong.extend(compare(first, second))
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for one in wrong:
        print(f"error: {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
