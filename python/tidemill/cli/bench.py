"""``tidemill bench``: runs a workload and measures it.

``tidemill bench grid`` measures the adaptive strategy beside all others, cell by cell.
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

from tidemill import _native
from tidemill.cli import grid, plot, processes
from tidemill.cli.output import fields, printed, refuse_unwritable
from tidemill.errors import SettingError
from tidemill.workloads import WORKLOADS, files, http, push

#: Flags of a workload: name, type, what it says.
FLAGS: tuple[tuple[str, type, str], ...] = (
    ("program", str, "rust, traced or python"),
    ("threads", int, "workers a process"),
    ("processes", int, "processes"),
    (
        "strategy",
        str,
        "adaptive, serial, rounds, blocks, lists, s-store, tstream, or such as ns-op-lazy",
    ),
    (
        "compare",
        str,
        "strategies beside it in each repeat, with commas between, or all (sl, gs, tp, osed, "
        "ycsb-t)",
    ),
    ("keys", int, "number of keys"),
    ("skew", float, "Zipf's theta of the keys"),
    ("overlap", float, "share of keys drawn again from those used before (sl, gs, tp, sea)"),
    ("length", int, "records a transaction, 1 to 10 (gs); links of the chain (pe-, ee-triggers)"),
    ("lengths", str, "several chains, such as 1,2,4: time a batch is fitted (pe-, ee-triggers)"),
    ("candidates", int, "candidates of the show (leaderboard)"),
    ("phones", int, "phones of its viewers (leaderboard)"),
    ("every", int, "after so many accepted votes a candidate has to go (leaderboard)"),
    (
        "of",
        str,
        "graphs of calls: ycsb-t (default) or tpcc (calls); what is done with a row: moves "
        "(default), timed, batches or rows (files)",
    ),
    ("warehouses", int, "warehouses (tpcc, calls)"),
    ("items", int, "items that they sell (tpcc, calls)"),
    ("computed", float, "share of transactions with a key that another row tells (gs)"),
    (
        "window",
        int,
        "how far back window reads go, in units of event time (gs, sea); tweets a window (osed)",
    ),
    ("window-every", int, "so many transactions have one that reads windows (gs)"),
    ("abort", float, "share of transactions that abort"),
    ("deposits", float, "percentage of deposits (sl)"),
    ("epoch", int, "events an epoch"),
    ("events", int, "number of events"),
    ("warm-up", int, "events that come before those whose time counts (sl, gs, tp, --processes)"),
    ("seed", int, "seed of the events"),
    ("udf-ns", int, "extra work an operation, in nanoseconds"),
    ("tweets", str, "CSV file of labelled tweets, or a folder of them (osed)"),
    (
        "batch",
        int,
        "rows sent at once (push, leaderboard, ycsb-t, tpcc, hotel, movie); of a batch (files)",
    ),
    (
        "rate",
        float,
        "rows a second, sent one at a time: measures latency (push and workloads of calls)",
    ),
    ("connections", int, "connections of clients, each waiting for its reply (http)"),
    ("serve", float, "for so many seconds others call, at the address that is shown (http)"),
    ("beside", float, "the share of its own maximum at which a stream is sent beside calls (http)"),
    ("form", str, "how Python gives rows: arrow, columns or dicts (push --program python)"),
    ("durable", str, "none (default; of workloads of calls log), log or log+snapshots"),
    (
        "write-source",
        str,
        "write the generated events to files: sl.parquet, sl.csv or sl.jsonl; or votes.csv, with "
        "what they come to (leaderboard)",
    ),
    ("source", str, "run end to end from the files written so"),
    ("sink", str, "folder for the outputs and the data directory"),
    ("sink-format", str, "parquet, csv or jsonl"),
    ("log", str, "kafka://host:port (--processes); else the coordinator serves one"),
    ("cuts", str, "log or coordinator: where cuts are (--processes --log)"),
    ("together", int, "so many requests and replies are one message of Kafka (--processes --log)"),
    ("snapshots", str, "a directory, or s3://bucket/prefix (--processes)"),
    ("snapshot-us", int, "snapshots are so far apart at least, in microseconds (--processes)"),
    ("seconds", float, "so long requests are offered at most (--processes)"),
    ("under-way", int, "without a rate, so many requests wait for replies at most (--processes)"),
    ("multi", float, "percentage of transfers between two processes (ycsb-t --processes)"),
    ("kill", float, "after so many seconds a worker is killed (--processes)"),
    ("kills", int, "so many workers, one after the other, each so much later (--kill)"),
    ("repeat", int, "number of runs"),
)

#: No option is greater.
MOST = 1 << 53

#: Flags of the grid alone: name, type, what it says.
GRID: tuple[tuple[str, type, str], ...] = (
    ("workload", str, "sl (default), gs or tp (grid)"),
    ("out", str, "file of JSON lines, one a cell; cells that are there are skipped (grid)"),
    ("cells", str, "small (default) or full (grid)"),
)

#: Flags that are there or not.
SWITCHES: tuple[tuple[str, str], ...] = (
    ("acyclic", "records are written from those of lower levels only (gs)"),
    ("average", "write the average and not the sum (gs)"),
    ("requests", "each call has a request id (http)"),
    ("dynamic", "13 phases: skew up, deposits down, aborts up (sl)"),
)


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="run a workload and measure it", description=__doc__
    )
    # The grid has a flag of this name, too.
    parser.add_argument(
        "what",
        metavar="WORKLOAD",
        help="sl, gs, tp, sea, osed, leaderboard, ycsb-t, tpcc, hotel, movie, calls, "
        "pe-triggers, ee-triggers, push, files, http, recovery, recovery-modes, or grid",
    )
    for name, kind, text in (*FLAGS, *GRID):
        parser.add_argument(f"--{name}", type=kind, help=text, metavar=kind.__name__.upper())
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw what was measured")
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
    """Refuses numbers that mean nothing in any workload."""
    if isinstance(value, int | float) and not 0 <= value <= MOST:
        raise SettingError(f"--{flag} {value} is out of range", f"give 0 to {MOST}")


def _run(given: Mapping[str, Any]) -> dict[str, Any]:
    """The report of one run."""
    if given["workload"] == "files":
        return files.run(given, _progress)
    if given.get("processes", 1) != 1 or processes.is_for(given):
        return processes.run(given, _progress)
    if given["workload"] == "push" and given.get("program") == "python":
        return push.run(given)
    if given["workload"] == "http" and given.get("program") == "python":
        return http.run(given)
    if given["workload"] in ("hotel", "movie"):
        given = {"program": "python", **given}
    program, opaques = _program(given)
    found: dict[str, Any] = json.loads(
        _native.bench(json.dumps(given), program, opaques, _progress)
    )
    return found


def _grid(
    args: argparse.Namespace, given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[plot.Panel]]:
    """What a grid comes to, and its plot."""
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
    """What is worth drawing of a report."""
    if found.get("modes"):
        return _modes(found["modes"])
    if found.get("lengths"):
        return [_lengths(found)]
    return [_phases(found) if found.get("phases") else _bars(found)]


def _modes(modes: list[dict[str, Any]]) -> list[plot.Panel]:
    """What each kind of recovery costs and gives, by the length of the chain (S-Store's Fig. 8)."""
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
    """The time of chains by their length, and the line that fits."""
    lengths = found["lengths"]
    lines = {"measured": [at["ns"] / 1000 for at in lengths]}
    if fit := found.get("fit"):
        named = f"{fit['a_ns']:.0f} + {fit['b_ns']:.0f} ns a link"
        lines[named] = [(fit["a_ns"] + fit["b_ns"] * at["length"]) / 1000 for at in lengths]
    places = [str(at["length"]) for at in lengths]
    return plot.Panel("", "links", "µs a batch", places, lines)


def _bars(found: Mapping[str, Any]) -> plot.Panel:
    """The rate of each that ran, with the slowest and the fastest run."""
    # The baseline first, then the serial executor, then what was asked for.
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
    """The rate in each phase, beside that of the serial executor."""
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
    """The workload's program, where it is to be the one in Python."""
    workload, kind = given["workload"], given.get("program")
    if kind not in ("traced", "python") or workload not in WORKLOADS:
        return None, []
    app = WORKLOADS[workload](kind == "python", given)
    spec, opaques = app.spec({}, keep_all=False, push=False)
    return json.dumps(spec["program"]), opaques


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
