"""``tidemill bench``: runs a workload and measures it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from tidemill import _native
from tidemill.cli.output import fields, printed
from tidemill.workloads import WORKLOADS, push

#: Flags of a workload: name, type, what it says.
FLAGS: tuple[tuple[str, type, str], ...] = (
    ("program", str, "rust, traced or python"),
    ("threads", int, "workers a process"),
    ("processes", int, "processes"),
    ("strategy", str, "adaptive, serial, s-store, tstream, or such as ns-chain-lazy"),
    ("keys", int, "number of keys"),
    ("skew", float, "Zipf's theta of the keys"),
    ("overlap", float, "share of keys drawn again from those used before (sl, gs, tp, sea)"),
    ("length", int, "records a transaction, 1 to 10 (gs)"),
    ("computed", float, "share of transactions with a key that another row tells (gs)"),
    ("window", int, "how far back window reads go, in units of event time (gs, sea)"),
    ("window-every", int, "so many transactions have one that reads windows (gs)"),
    ("abort", float, "share of transactions that abort"),
    ("deposits", float, "percentage of deposits (sl)"),
    ("epoch", int, "events an epoch"),
    ("events", int, "number of events"),
    ("seed", int, "seed of the events"),
    ("udf-ns", int, "extra work an operation, in nanoseconds"),
    ("batch", int, "rows sent at once (push)"),
    ("rate", float, "rows a second, sent one at a time: measures latency (push)"),
    ("form", str, "how Python gives rows: arrow, columns or dicts (push --program python)"),
    ("durable", str, "none, log or log+snapshots"),
    ("write-source", str, "write the generated events to files: sl.parquet, sl.csv or sl.jsonl"),
    ("source", str, "run end to end from the files written so"),
    ("sink", str, "folder for the outputs and the data directory"),
    ("sink-format", str, "parquet, csv or jsonl"),
    ("log", str, "kafka for a real log"),
    ("snapshots", str, "s3 for real snapshots"),
    ("repeat", int, "number of runs"),
)

#: Flags that are there or not.
SWITCHES: tuple[tuple[str, str], ...] = (
    ("acyclic", "records are written from those of lower levels only (gs)"),
    ("average", "write the average and not the sum (gs)"),
    ("dynamic", "13 phases: skew up, deposits down, aborts up (sl)"),
)


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="run a workload and measure it", description=__doc__
    )
    parser.add_argument("workload", metavar="WORKLOAD", help="sl, gs, tp, ...")
    for name, kind, text in FLAGS:
        parser.add_argument(f"--{name}", type=kind, help=text, metavar=kind.__name__.upper())
    for name, text in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true", default=None, help=text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    given: dict[str, Any] = {"workload": args.workload}
    for name in [*(flag[0] for flag in FLAGS), *(switch[0] for switch in SWITCHES)]:
        attribute = name.replace("-", "_")
        value = getattr(args, attribute)
        if value is not None:
            given[attribute] = value
    if args.workload == "push" and args.program == "python":
        found = push.run(given)
    else:
        program, opaques = _program(given)
        line = _native.bench(json.dumps(given), program, opaques, _progress)
        found = json.loads(line)
    if args.json:
        printed(found)
    else:
        print("\n".join(fields(found)))
    return 0 if found.get("valid", True) else 1


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
