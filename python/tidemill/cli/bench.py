"""``tidemill bench``: runs a workload and measures it."""

from __future__ import annotations

import argparse
import json
import sys
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
    ("length", int, "operations a transaction"),
    ("abort", float, "share of transactions that abort"),
    ("deposits", float, "percentage of deposits (Streaming Ledger)"),
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


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="run a workload and measure it", description=__doc__
    )
    parser.add_argument("workload", metavar="WORKLOAD", help="sl, gs, tp, ...")
    for name, kind, text in FLAGS:
        parser.add_argument(f"--{name}", type=kind, help=text, metavar=kind.__name__.upper())
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    given: dict[str, Any] = {"workload": args.workload}
    for name, _, _ in FLAGS:
        attribute = name.replace("-", "_")
        value = getattr(args, attribute)
        if value is not None:
            given[attribute] = value
    if args.workload == "push" and args.program == "python":
        found = push.run(given)
    else:
        program, opaques = _program(args.workload, args.program)
        line = _native.bench(json.dumps(given), program, opaques, _progress)
        found = json.loads(line)
    if args.json:
        printed(found)
    else:
        print("\n".join(fields(found)))
    return 0 if found.get("valid", True) else 1


def _program(workload: str, kind: str | None) -> tuple[str | None, list[Any]]:
    """The workload's program, where it is to be the one in Python."""
    if kind not in ("traced", "python") or workload not in WORKLOADS:
        return None, []
    spec, opaques = WORKLOADS[workload](kind == "python").spec({}, keep_all=False, push=False)
    return json.dumps(spec["program"]), opaques


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
