"""``tidemill bench``: runs a workload and measures it.

``tidemill bench grid`` compares the adaptive strategy with all others, cell by cell of a grid.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.cli.output import fields, printed, refuse_unwritable
from tidemill.errors import SettingError
from tidemill_bench import engine, grid, plot, processes
from tidemill_bench.workloads import WORKLOADS, files, http, push

#: Flags of a workload: name, type and help.
FLAGS: tuple[tuple[str, type, str], ...] = (
    ("program", str, "form of the transactions: rust, traced or python"),
    ("threads", int, "worker threads of each process"),
    ("processes", int, "number of processes"),
    (
        "strategy",
        str,
        "strategy of execution: adaptive, serial, rounds, blocks, lists, s-store, tstream, or a "
        "graph strategy such as ns-op-lazy",
    ),
    (
        "compare",
        str,
        "other strategies to measure in each repeat, separated by commas, or all (sl, gs, tp, "
        "osed, ycsb-t)",
    ),
    ("keys", int, "number of keys"),
    ("skew", float, "skew of the keys: theta of their Zipf distribution"),
    ("overlap", float, "share of keys that were used before (sl, gs, tp, sea)"),
    (
        "length",
        int,
        "records of a transaction, 1 to 10 (gs); links of the chain (pe-triggers, ee-triggers)",
    ),
    (
        "lengths",
        str,
        "lengths of several chains, such as 1,2,4: fits the time of a batch to a line "
        "(pe-triggers, ee-triggers)",
    ),
    ("candidates", int, "number of candidates (leaderboard)"),
    ("phones", int, "number of phones that vote (leaderboard)"),
    ("every", int, "accepted votes after which a candidate is removed (leaderboard)"),
    (
        "of",
        str,
        "calls: the graphs of calls, ycsb-t (default) or tpcc; files: the work on each row, moves "
        "(default), timed, batches or rows",
    ),
    ("warehouses", int, "number of warehouses (tpcc, calls)"),
    ("items", int, "number of items that the warehouses sell (tpcc, calls)"),
    ("computed", float, "share of transactions with a key that is read from another row (gs)"),
    (
        "window",
        int,
        "size of windows, in units of event time (gs, sea); tweets of a window (osed)",
    ),
    ("window-every", int, "one of this many transactions reads windows (gs)"),
    ("abort", float, "share of transactions that abort"),
    ("deposits", float, "percentage of deposits (sl)"),
    ("epoch", int, "events of an epoch"),
    ("events", int, "number of events"),
    ("warm-up", int, "events before the measured ones (sl, gs, tp, --processes)"),
    ("seed", int, "seed of the events"),
    ("udf-ns", int, "extra work of each operation, in nanoseconds"),
    ("tweets", str, "CSV file of labelled tweets, or a folder of them (osed)"),
    (
        "batch",
        int,
        "rows sent at once (push, leaderboard, ycsb-t, tpcc, hotel, movie), or rows of a batch "
        "(files)",
    ),
    (
        "rate",
        float,
        "rows per second, sent one at a time to measure latency (push, workloads of calls)",
    ),
    ("connections", int, "connections of clients, each with one open call (http)"),
    ("serve", float, "seconds for which other programs call the address that is shown (http)"),
    (
        "beside",
        float,
        "send a stream during the calls, at this share of its own highest rate (http)",
    ),
    ("form", str, "form of the rows in Python: arrow, columns or dicts (push --program python)"),
    ("stage", str, "step before the transactions: none, filter or map (push --program python)"),
    (
        "durable",
        str,
        "durability: none, log or log+snapshots (default: log for workloads of calls, else none)",
    ),
    (
        "write-source",
        str,
        "write the generated events to files: sl.parquet, sl.csv or sl.jsonl, or votes.csv and "
        "the expected result (leaderboard)",
    ),
    ("source", str, "run end to end from the files that --write-source wrote"),
    ("sink", str, "folder for the outputs and the data directory"),
    ("sink-format", str, "format of the outputs: parquet, csv or jsonl"),
    (
        "log",
        str,
        "the log as kafka://host:port (--processes; default: the coordinator serves the log)",
    ),
    ("cuts", str, "place of the cuts: log or coordinator (--processes --log)"),
    ("together", int, "requests or replies in one Kafka message (--processes --log)"),
    ("snapshots", str, "place of the snapshots: a directory or s3://bucket/prefix (--processes)"),
    ("snapshot-us", int, "microseconds between snapshots, at least (--processes)"),
    ("seconds", float, "longest time for which requests are sent, in seconds (--processes)"),
    ("under-way", int, "most requests without a reply, where --rate is not given (--processes)"),
    ("multi", float, "percentage of transfers between two processes (ycsb-t --processes)"),
    ("kill", float, "kill a worker after this many seconds (--processes)"),
    ("kills", int, "number of workers to kill one after another, --kill seconds apart"),
    ("repeat", int, "number of runs"),
)

#: The greatest value of a numeric option.
MOST = 1 << 53

#: Flags that only the grid has: name, type and help.
GRID: tuple[tuple[str, type, str], ...] = (
    ("workload", str, "workload of the cells: sl (default), gs or tp (grid)"),
    ("out", str, "file of JSON lines, one per cell; cells in it are not measured again (grid)"),
    ("cells", str, "size of the grid: small (default) or full (grid)"),
)

#: Flags without a value: name and help.
SWITCHES: tuple[tuple[str, str], ...] = (
    ("acyclic", "write records only from records of lower levels (gs)"),
    ("average", "write the average instead of the sum (gs)"),
    ("requests", "give each call a request id (http)"),
    ("dynamic", "run 13 phases: rising skew, falling deposits, rising aborts (sl)"),
)


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="run a workload and measure it", description=__doc__
    )
    # Not "workload": the grid has a flag with that name.
    parser.add_argument(
        "what",
        metavar="WORKLOAD",
        help="workload: sl, gs, tp, sea, osed, leaderboard, ycsb-t, tpcc, hotel, movie, calls, "
        "pe-triggers, ee-triggers, push, files, http, recovery, recovery-modes, or grid",
    )
    for name, kind, text in (*FLAGS, *GRID):
        parser.add_argument(f"--{name}", type=kind, help=text, metavar=kind.__name__.upper())
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the results as SVG")
    for name, text in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true", default=None, help=text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    given: dict[str, Any] = {}
    for name in [*(flag[0] for flag in FLAGS), *(switch[0] for switch in SWITCHES)]:
        attribute = name.replace("-", "_")
        value = getattr(args, attribute)
        if value is not None:
            _check_number(name, value)
            given[attribute] = value
    if args.plot:
        refuse_unwritable(args.plot, ".svg")
    if args.what == "grid":
        found, panels = _grid(args, given)
    else:
        for name, _, _ in GRID:
            if getattr(args, name) is not None:
                raise SettingError(f"--{name}: {args.what} has no such option", "only grid has it")
        found = _run({"workload": args.what, **given})
        panels = _panels(found)
    if args.plot:
        plot.write(args.plot, _command(args, given), panels)
    if args.json:
        printed(found)
    else:
        print("\n".join(fields(found)))
    return 0 if found.get("valid", True) else 1


def _check_number(flag: str, value: object) -> None:
    """Refuses numbers that no workload takes."""
    if isinstance(value, int | float) and not 0 <= value <= MOST:
        raise SettingError(f"--{flag} {value} is out of range", f"give 0 to {MOST}")


def _run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a workload once, and returns the report."""
    if given["workload"] == "files":
        return files.run(given, _progress)
    if given.get("processes", 1) != 1 or processes.is_for(given):
        engine.refuse_two()
        return processes.run(given, _progress)
    if given["workload"] == "push" and given.get("program") == "python":
        return push.run(given)
    if given["workload"] == "http" and given.get("program") == "python":
        return http.run(given)
    if given["workload"] in ("hotel", "movie"):
        given = {"program": "python", **given}
    program, opaques = _program(given)
    if opaques:
        engine.refuse_two()
    found: dict[str, Any] = json.loads(
        engine.library().bench(json.dumps(given), program, opaques, _progress)
    )
    return found


def _grid(
    args: argparse.Namespace, given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[plot.Panel]]:
    """Measures a grid, and returns its summary and its plot."""
    size = args.cells or "small"
    if size not in grid.CELLS:
        raise SettingError(f"--cells {size}: it is one of {', '.join(grid.CELLS)}")
    out = Path(args.out) if args.out else None
    if out:
        refuse_unwritable(out, ".jsonl")
    wanted = grid.cells(args.workload or "sl", size, given)
    measured = grid.grid(wanted, out, _run, _progress)
    return grid.summary(measured), grid.panels(measured)


def _panels(found: Mapping[str, Any]) -> list[plot.Panel]:
    """Returns the plots of a report."""
    if found.get("modes"):
        return _modes(found["modes"])
    if found.get("lengths"):
        return [_lengths(found)]
    return [_phases(found) if found.get("phases") else _bars(found)]


def _modes(modes: list[dict[str, Any]]) -> list[plot.Panel]:
    """Returns the costs of each kind of recovery by the length of the chain (S-Store, Fig. 8)."""
    places = sorted({mode["length"] for mode in modes})
    of = {(mode["recovery"], mode["length"]): mode for mode in modes}

    def panel(title: str, y: str, unit: float, name: str) -> plot.Panel:
        lines = {
            kind: [of[kind, length][name] / unit for length in places]
            for kind in ("weak", "strong")
        }
        return plot.Panel(title, "procedures", y, [str(length) for length in places], lines)

    return [
        panel("forward", "events/s", 1, "events_per_s"),
        panel("log", "MB", 1e6, "log_bytes"),
        panel("replay", "events/s", 1, "replay_per_s"),
    ]


def _lengths(found: Mapping[str, Any]) -> plot.Panel:
    """Returns the plot of the time of chains by their length, with the fitted line."""
    lengths = found["lengths"]
    lines = {"measured": [at["ns"] / 1000 for at in lengths]}
    if fit := found.get("fit"):
        named = f"{fit['a_ns']:.0f} + {fit['b_ns']:.0f} ns a link"
        lines[named] = [(fit["a_ns"] + fit["b_ns"] * at["length"]) / 1000 for at in lengths]
    places = [str(at["length"]) for at in lengths]
    return plot.Panel("", "links", "µs a batch", places, lines)


def _bars(found: Mapping[str, Any]) -> plot.Panel:
    """Returns the plot of the rates of all strategies, with the slowest and the fastest run."""
    # The baseline first, then the serial executor, then the strategy of the run.
    first = {found.get("baseline"): 0, "serial": 1, found.get("strategy"): 2}
    rates = dict(sorted(found["rates"].items(), key=lambda item: first.get(item[0], 3)))
    return plot.Panel(
        title=f"median, slowest and fastest of {max(map(len, rates.values()))}",
        x="",
        y="events/s",
        places=list(rates),
        lines={"events/s": [statistics.median(runs) for runs in rates.values()]},
        whiskers=[(min(runs), max(runs)) for runs in rates.values()],
    )


def _phases(found: Mapping[str, Any]) -> plot.Panel:
    """Returns the plot of the rate in each phase, beside that of the serial executor."""
    phases = found["phases"]
    lines: dict[str, list[float | None]] = {
        "serial": [phase["events_per_s"] / phase["ratio_to_serial"] for phase in phases],
        found["strategy"]: [phase["events_per_s"] for phase in phases],
    }
    places = [str(number) for number in range(1, len(phases) + 1)]
    return plot.Panel("", "phase", "events/s", places, lines)


def _command(args: argparse.Namespace, given: Mapping[str, Any]) -> str:
    """The command that measured."""
    said = {**given, **{name: getattr(args, name) for name, _, _ in GRID}}
    words = ["tidemill", "bench", args.what]
    for name, value in said.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            words += [flag] if value is True else [flag, f"{value}"]
    return shlex.join(words)


def _program(given: Mapping[str, Any]) -> tuple[str | None, list[Any]]:
    """Returns the workload's program and functions in Python; None where Rust has them."""
    workload, kind = given["workload"], given.get("program")
    if kind not in ("traced", "python") or workload not in WORKLOADS:
        return None, []
    app = WORKLOADS[workload](kind == "python", given)
    spec, opaques = app.spec({}, keep_all=False, push=False)
    return json.dumps(spec["program"]), opaques


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
