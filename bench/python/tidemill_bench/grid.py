"""``tidemill bench grid``: compares the adaptive strategy with all others, cell by cell.

In each cell of the grid, one quick pass over all strategies finds the best two. These, the serial
executor and the adaptive strategy then run in turn. A measured cell is a line of a file. Cells in
the file are not measured again, so a grid can be stopped at any time and continued later.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill import __version__
from tidemill.errors import InputError, IoError, SettingError
from tidemill_bench.plot import Panel

#: A function that runs a workload with options and returns the report.
Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]

#: The values of the axes of the full grid.
FULL: Mapping[str, Sequence[float]] = {
    "skew": (0.0, 0.6, 0.99),
    "abort": (0.0, 0.04, 0.5),
    "epoch": (1_000, 10_000, 100_000),
    "udf_ns": (0, 20, 50, 200, 1_000),
}
CELLS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "small": {**FULL, "abort": (0.0,), "epoch": (10_000,)},
    "full": FULL,
}
#: The axes that only one workload has.
OWN: Mapping[str, Mapping[str, Sequence[float]]] = {"gs": {"length": (2, 10)}}
#: The options that are the same for all cells.
FIXED = (
    *("threads", "keys", "seed", "events", "warm_up", "repeat"),
    *("length", "overlap", "deposits", "computed", "acyclic", "average"),
)
#: The time of a run in serial execution, in ns, unless it needs more than `EVENTS_MAX` events.
#: In shorter runs the first trials and other programs of the machine would dominate.
RUN_NS = 1_200e6
#: The time of an operation in ns, and the operations of a transaction without a given length.
OPERATION_NS, OPERATIONS = 17, 3.5
EVENTS_MAX = 12_000_000
#: The fewest events and epochs of a run.
EVENTS_MIN, EPOCHS_MIN = 300_000, 12
#: The events and epochs of the quick pass.
QUICK_EVENTS, QUICK_EPOCHS = 75_000, 3
#: A strategy that is this many times slower than serial execution is not measured again.
SLOWER_MAX = 5
#: The fields of a cell's line that the summary needs.
LINE = {"best", "adaptive_to_best", "best_to_itself", "spread", "valid"}
#: The share of the best strategy's rate from which the adaptive strategy counts as good.
GOOD = 0.95


def cells(workload: str, size: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the options of all cells; an axis that is given has only that value."""
    axes = {**CELLS[size], **OWN.get(workload, {})}
    unknown = [name for name in given if name not in axes and name not in FIXED]
    if unknown:
        raise SettingError(
            f"--{unknown[0].replace('_', '-')}: the grid has no such option",
            f"it has: {', '.join([*axes, *FIXED]).replace('_', '-')}",
        )
    axes = {name: (given[name],) if name in given else values for name, values in axes.items()}
    made = []
    for values in itertools.product(*axes.values()):
        cell: dict[str, Any] = {"version": __version__, "workload": workload}
        cell |= {"threads": 2, "repeat": 3, **given, **dict(zip(axes, values, strict=True))}
        # In the warm-up the adaptive strategy learns the workload, and memory is allocated.
        each_ns = cell.get("length", OPERATIONS) * (OPERATION_NS + cell["udf_ns"])
        events = min(EVENTS_MAX, int(RUN_NS / each_ns))
        cell.setdefault("events", max(events, EVENTS_MIN, EPOCHS_MIN * cell["epoch"]))
        cell.setdefault("warm_up", cell["events"] // 3)
        made.append(cell)
    return made


def key(cell: Mapping[str, Any]) -> str:
    """Returns the text that identifies a cell."""
    return json.dumps(cell, sort_keys=True)


def measure(cell: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Measures a cell, and returns its line."""
    options = {name: value for name, value in cell.items() if name != "version"}
    events = min(cell["events"], max(QUICK_EVENTS, QUICK_EPOCHS * cell["epoch"]))
    few = {"events": events, "warm_up": 0, "repeat": 1}
    quick = run({**options, **few, "strategy": "serial", "compare": "all"})
    rates = {name: runs[0] for name, runs in strategies(quick).items()}
    serial = rates["serial"]
    worth = [name for name in rates if rates[name] * SLOWER_MAX >= serial]
    best_two = sorted(worth, key=lambda name: -rates[name])[:2]
    again = run({**options, "strategy": "adaptive", "compare": ",".join(best_two)})
    runs = strategies(again)
    medians = {name: statistics.median(of) for name, of in runs.items()}
    best = max((name for name in medians if name != "adaptive"), key=lambda name: medians[name])
    ratios = {name: rate / serial for name, rate in rates.items()}
    ratios |= {name: _ratio(of, runs["serial"]) for name, of in runs.items()}
    quotients = [a / b for a, b in zip(runs["adaptive"], runs[best], strict=True)]
    itself = [a / b for a, b in zip(runs[best], runs[best][1:] + runs[best][:1], strict=True)]
    return {
        "cell": dict(cell),
        "best": best,
        "adaptive_to_best": statistics.median(quotients),
        "spread": max(quotients) - min(quotients),
        # The ratio of the best strategy to itself: the noise that even a perfect choice would have.
        "best_to_itself": statistics.median(itself),
        "events_per_s": medians,
        "ratio_to_serial": ratios,
        "ran": again["ran"],
        "between_cores_ns": again.get("between_cores_ns", []),
        "valid": quick["valid"] and again["valid"],
    }


def strategies(report: Mapping[str, Any]) -> dict[str, list[float]]:
    """Returns the rates of all strategies except the baseline."""
    return {name: of for name, of in report["rates"].items() if name != report["baseline"]}


def _good(shares: Sequence[float]) -> float:
    return sum(share >= GOOD for share in shares) / len(shares)


def _ratio(of: Sequence[float], to: Sequence[float]) -> float:
    """Returns the median of the quotients of adjacent runs."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def grid(
    wanted: Sequence[Mapping[str, Any]], out: Path | None, run: Run, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measures the cells that the file lacks, and returns the lines of all cells."""
    there = dict(_read(out)) if out else {}
    found = []
    for at, cell in enumerate(wanted, 1):
        line = there.get(key(cell))
        if line is None:
            line = measure(cell, run)
            if out:
                _append(out, line)
            say(f"cell {at} of {len(wanted)}: {_told(line)}")
        found.append(line)
    return found


def _told(line: Mapping[str, Any]) -> str:
    cell = line["cell"]
    axes = " ".join(f"{name}={cell[name]:g}" for name in (*FULL, "length") if name in cell)
    return f"{axes}: best {line['best']}, adaptive at {line['adaptive_to_best']:.2f} of it"


def _read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the cells of a file; cuts off an incomplete line that a stopped run has left."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            line = json.loads(text)
            cell = key(line["cell"])
            if missing := LINE - line.keys():
                raise KeyError(*missing)
            yield cell, line
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path}, line {number}: this is not a cell of a grid",
                "give a file that 'tidemill bench grid' has written, or a new one",
            ) from error


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise IoError(f"writing {path}: {error.strerror or error}") from error


def summary(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the summary of all cells."""
    shares = [line["adaptive_to_best"] for line in found]
    lowest = sorted(found, key=lambda line: line["adaptive_to_best"])[:5]
    axes = ("workload", *FULL, "length")

    def row(line: Mapping[str, Any]) -> dict[str, Any]:
        shape = {name: line["cell"][name] for name in axes if name in line["cell"]}
        return {**shape, "best": line["best"], "adaptive_to_best": line["adaptive_to_best"]}

    return {
        "cells": len(found),
        "share_at_least_0_95": _good(shares),
        "share_best_to_itself": _good([line["best_to_itself"] for line in found]),
        "adaptive_to_best_min": min(shares),
        "adaptive_to_best_median": statistics.median(shares),
        "spread_median": statistics.median(line["spread"] for line in found),
        "lowest": [row(line) for line in lowest],
        "valid": all(line["valid"] for line in found),
    }


def panels(found: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Returns one plot for each skew: the rate relative to serial execution over the extra work.

    The rates are medians of the cells. The lines are the adaptive strategy, serial execution, and
    each strategy that was the best of a cell.
    """
    names = sorted({"adaptive", "serial"} | {line["best"] for line in found})
    works = sorted({line["cell"]["udf_ns"] for line in found})

    def median(skew: float, work: int, name: str) -> float | None:
        at = (skew, work)
        of = [line for line in found if (line["cell"]["skew"], line["cell"]["udf_ns"]) == at]
        ratios = [line["ratio_to_serial"][name] for line in of if name in line["ratio_to_serial"]]
        return statistics.median(ratios) if ratios else None

    return [
        Panel(
            title=f"skew {skew:g}",
            x="extra work per operation, ns",
            y="rate to that of serial execution",
            places=[str(work) for work in works],
            lines={name: [median(skew, work, name) for work in works] for name in names},
        )
        for skew in sorted({line["cell"]["skew"] for line in found})
    ]
