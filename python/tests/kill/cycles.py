"""Kills workers while a workload runs over processes, again and again, and validates every key.

    python -m tests.kill.cycles --cycles 100 --progress FILE

A run is one of ``tidemill bench ycsb-t`` (with functions, and with transactions whose rows are
known) or ``tpcc`` with ``--processes 2``, in which one worker after the other is killed and started
again; at its end all rows are compared with those of the baseline, which executes the same requests
in the order that the replies tell. With ``--servers`` the log is in Kafka and snapshots are in S3,
where ``servers/run.py`` says that they are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .cluster import Differs
from .progress import Progress

#: Each workload with its options: shorter epochs where transactions meet often.
WORKLOADS: dict[str, list[str]] = {
    "ycsb-t": ["ycsb-t", "--keys", "10000"],
    "traced": ["ycsb-t", "--keys", "10000", "--program", "traced"],
    "tpcc": ["tpcc", "--items", "10000", "--epoch", "25"],
}
#: So many kills are in one run at most.
IN_A_RUN = 10
#: How much longer a run may take than it offers requests.
PATIENCE_S = 300.0


def run(workload: str, kills: int, every: float, rate: float, where: list[str]) -> dict[str, Any]:
    """One run; what it reports."""
    seconds = every * (kills + 1)
    command = [
        *(sys.executable, "-m", "tidemill.cli", "bench", *WORKLOADS[workload]),
        *("--processes", "2", "--json", "--kill", str(every), "--kills", str(kills)),
        *("--seconds", str(seconds), "--rate", str(rate)),
        *where,
    ]
    done = subprocess.run(command, text=True, capture_output=True, timeout=seconds + PATIENCE_S)
    if done.returncode != 0:
        raise Differs(f"{' '.join(command[3:])}: {done.stderr}\n{done.stdout}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found.get("valid") is not True:
        raise Differs(f"{' '.join(command[3:])}: {found}")
    return found


def servers() -> list[str]:
    """Options for a log in Kafka and snapshots in S3."""
    try:
        log, bucket = os.environ["SERVERS_KAFKA"], os.environ["SERVERS_S3_BUCKET"]
    except KeyError as missing:
        raise Differs(f"{missing} is not set: begin with ../servers/run.py --") from None
    return ["--log", f"kafka://{log}", "--snapshots", f"s3://{bucket}/cycles-{os.getpid()}"]


def main() -> None:
    """Kills as often as the arguments ask, and continues an interrupted run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100, help="kills for each workload")
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second")
    parser.add_argument("--servers", action="store_true", help="with Kafka and S3")
    parser.add_argument("--progress", type=Path, help="a file that says where to go on")
    args = parser.parse_args()
    where = servers() if args.servers else []
    progress = Progress(args.progress)
    done: dict[str, int] = progress.known()
    for workload in args.workload or WORKLOADS:
        while (kills := done.get(workload, 0)) < args.cycles:
            wanted = min(IN_A_RUN, args.cycles - kills)
            found = run(workload, wanted, args.every, args.rate, where)
            killed = len(found.get("killed", []))
            if killed == 0:
                raise Differs(f"{workload}: nobody was killed: {found}")
            done[workload] = kills + killed
            print(
                f"{workload}: {done[workload]} of {args.cycles} workers killed, "
                f"{found['events']} requests, {found['generations'][-1]} generations, valid",
                flush=True,
            )
            progress.keep(done)
    progress.done()


if __name__ == "__main__":
    try:
        main()
    except (Differs, subprocess.TimeoutExpired) as error:
        sys.exit(f"error: {error}")
