"""``tidemill demo``: runs fifteen months of bank payments as transactions, with a crash midway.

The demo runs the same app twice: once undisturbed in memory, and once with a data directory, where
it kills the process (SIGKILL) when a quarter of the output is written, and starts it again. Then it
compares the hashes of all tables and outputs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Any

from tidemill.cli.output import printed
from tidemill.errors import InternalError, IoError

#: The output by whose size the demo knows how far a run is.
POSTED = Path("out/ledger/posted.csv")
HASHES = ("state_hash", "output_hash")


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo", help="run a ledger of real bank payments, with a crash midway", description=__doc__
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        type=Path,
        default=Path("tidemill-demo"),
        help="folder for the data directory and the outputs (default: tidemill-demo)",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    folder: Path = args.dir
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise IoError(f"can't make {folder}: {error.strerror}", "name another with --dir") from None
    with resources.as_file(resources.files("tidemill") / "demo") as demo:
        app = demo / "ledger.py"
        undisturbed, whole = _undisturbed(app)
        share = _killed(app, folder, whole)
        said = "the run ended before it could be killed"
        if share is not None:
            said = f"killed by SIGKILL with {share:.0%} of the output written; starting again"
        if not args.json:
            print(said, flush=True)
        found = _run(app, folder) if args.json else _shown(app, folder)
    is_equal = all(found[name] == undisturbed[name] for name in HASHES)
    if args.json:
        printed({**found, "killed_at": share, "equal": is_equal})
    else:
        names = ", ".join(f"{name} {found[name]}" for name in HASHES)
        print(f"{names}: {'equal to' if is_equal else 'NOT EQUAL to'} an undisturbed run")
        print(f"the outputs are in {folder / POSTED.parent}")
    if not is_equal:
        raise InternalError(
            "the run after the crash has other results than an undisturbed one",
            f"report it, with the folder {folder}",
        )
    return 0


def _command(app: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidemill.cli", "run", str(app), *arguments]


def _run(app: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    """Runs the app to its end; gives its summary."""
    command = _command(app, "--json", *arguments)
    ended = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    summary: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return summary


def _shown(app: Path, folder: Path) -> dict[str, Any]:
    """Runs the app to its end and shows its summary as people see it; gives its hashes."""
    ended = subprocess.run(_command(app), cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    print(ended.stdout, end="")
    pairs = (line.split() for line in ended.stdout.splitlines())
    return {pair[0]: pair[1] for pair in pairs if pair and pair[0] in HASHES}


def _undisturbed(app: Path) -> tuple[dict[str, Any], int]:
    """The summary of a run in memory, in a folder of its own, and the bytes of its output."""
    with tempfile.TemporaryDirectory() as folder:
        summary = _run(app, Path(folder), "--durable", "none")
        return summary, (Path(folder) / POSTED).stat().st_size


def _killed(app: Path, folder: Path, whole: int) -> float | None:
    """Starts a run from scratch and kills it at a quarter of its output.

    Small epochs and frequent snapshots make a run of less than a second long enough for that.

    Returns:
        The share of the output that was written, or nothing where the run ended before.
    """
    posted = folder / POSTED
    posted.unlink(missing_ok=True)
    settings = ["--set", "epoch_rows_max=500", "--set", "snapshot_us=20000"]
    command = _command(app, "--fresh", "--json", *settings)
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        if posted.exists() and posted.stat().st_size >= whole // 4:
            process.kill()
            break
        time.sleep(0.001)
    return posted.stat().st_size / whole if process.wait() < 0 else None
