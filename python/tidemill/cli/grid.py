"""``tidemill bench grid``: the adaptive strategy beside all others, cell by cell.

In each cell of the grid one quick pass over all strategies finds the two that are worth measuring;
these, the serial executor and the adaptive strategy then run in turn. A cell that is measured is a
line of a file; cells that are there already are not measured again, so a grid can be stopped at any
time and goes on later.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill import __version__
from tidemill.cli.plot import Panel
from tidemill.errors import InputError, IoError, SettingError

#: What runs: options in, the report out.
Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]

#: Values of the axes.
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
#: Axes of a workload of its own.
OWN: Mapping[str, Mapping[str, Sequence[float]]] = {"gs": {"length": (2, 10)}}
#: Options that hold for all cells.
FIXED = (
    *("threads", "keys", "seed", "events", "warm_up", "repeat"),
    *("length", "overlap", "deposits", "computed", "acyclic", "average"),
)
#: A run takes so long in serial execution, in ns, where that is not more events than the most:
#: about so many for an operation, of which a transaction has as many as records, or so many.
#: Shorter ones are mostly what is tried in the beginning, and what others do on the machine.
RUN_NS = 1_200e6
OPERATION_NS, OPERATIONS = 17, 3.5
EVENTS_MAX = 12_000_000
#: At least so many events, and so many epochs; and of the quick pass.
EVENTS_MIN, EPOCHS_MIN = 300_000, 12
QUICK_EVENTS, QUICK_EPOCHS = 75_000, 3
#: A strategy that is so many times slower than serial execution is not measured again.
SLOWER_MAX = 5
#: What the summary wants of a cell's line.
LINE = {"best", "adaptive_to_best", "best_to_itself", "spread", "valid"}
#: The adaptive strategy does well where it is at least so fast as the best, as a share.
GOOD = 0.95


def cells(workload: str, size: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of all cells; an axis that is given has that value only."""
    axes = {**CELLS[size], **OWN.get(workload, {})}
    unknown = [name for name in given if name not in axes and name not in FIXED]
    if unknown:
        raise SettingError(
            f"--{unknown[0].replace('_', '-')}: the grid has no such option",
            f"those it has: {', '.join([*axes, *FIXED]).replace('_', '-')}",
        )
    axes = {name: (given[name],) if name in given else values for name, values in axes.items()}
    made = []
    for values in itertools.product(*axes.values()):
        cell: dict[str, Any] = {"version": __version__, "workload": workload}
        cell |= {"threads": 2, "repeat": 3, **given, **dict(zip(axes, values, strict=True))}
        # First the adaptive strategy finds out what there is, and memory is new to all.
        each_ns = cell.get("length", OPERATIONS) * (OPERATION_NS + cell["udf_ns"])
        events = min(EVENTS_MAX, int(RUN_NS / each_ns))
        cell.setdefault("events", max(events, EVENTS_MIN, EPOCHS_MIN * cell["epoch"]))
        cell.setdefault("warm_up", cell["events"] // 3)
        made.append(cell)
    return made


def key(cell: Mapping[str, Any]) -> str:
    """What says that two cells are the same one."""
    return json.dumps(cell, sort_keys=True)


def measure(cell: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """What the cell comes to."""
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
        # What a choice without any cost would come to.
        "best_to_itself": statistics.median(itself),
        "events_per_s": medians,
        "ratio_to_serial": ratios,
        "ran": again["ran"],
        "between_cores_ns": again.get("between_cores_ns", []),
        "valid": quick["valid"] and again["valid"],
    }


def strategies(report: Mapping[str, Any]) -> dict[str, list[float]]:
    """The rates of all runs but the baseline's."""
    return {name: of for name, of in report["rates"].items() if name != report["baseline"]}


def _good(shares: Sequence[float]) -> float:
    return sum(share >= GOOD for share in shares) / len(shares)


def _ratio(of: Sequence[float], to: Sequence[float]) -> float:
    """The median of the quotients of runs that stood beside each other."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def grid(
    wanted: Sequence[Mapping[str, Any]], out: Path | None, run: Run, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measures the cells that the file has not yet, and gives all."""
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
    """The cells of a file. Half a line, which a run that was ended has left, is cut off."""
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
                f"{path}, line {number}: this is no cell of a grid",
                "give a file that 'tidemill bench grid' has written, or a new one",
            ) from error


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise IoError(f"writing {path}: {error.strerror or error}") from error


def summary(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the cells come to together."""
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
    """Each skew's rates to that of serial execution, over the extra work: medians of the cells.

    Shown are the adaptive strategy, serial execution, and whatever was the best of a cell.
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
