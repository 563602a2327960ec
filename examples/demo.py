"""Runs the ledger, kills it in the midst, goes on, and compares with a run that nobody has touched.

    python examples/demo.py

Both runs are ordinary: `tidemill run examples/ledger.py`. The kill is a SIGKILL from outside, as
soon as a quarter of the output is written; the killed run has small epochs and frequent snapshots,
so that there is a midst in a run of less than a second.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LEDGER = Path(__file__).with_name("ledger.py").resolve()
POSTED = Path("out/ledger/posted.csv")
RUN = [sys.executable, "-m", "tidemill.cli", "run", str(LEDGER)]
HASHES = ("state_hash", "output_hash")


def untouched() -> tuple[dict[str, str], int]:
    """The hashes of a run in memory, in a folder of its own, and the bytes that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        run = [*RUN, "--durable", "none", "--json"]
        ended = subprocess.run(run, cwd=folder, stdout=subprocess.PIPE, check=True)
        found = json.loads(ended.stdout.splitlines()[-1])
        return {name: found[name] for name in HASHES}, (Path(folder) / POSTED).stat().st_size


def killed(whole: int) -> bool:
    """Begins anew and kills the run when a quarter is written; whether it was still at work."""
    POSTED.unlink(missing_ok=True)
    settings = ["--set", "epoch_rows_max=500", "--set", "snapshot_us=20000"]
    process = subprocess.Popen([*RUN, "--fresh", "--json", *settings], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        if POSTED.exists() and POSTED.stat().st_size >= whole // 4:
            process.kill()
            break
        time.sleep(0.001)
    return process.wait() == -signal.SIGKILL


def main() -> int:
    """The demo."""
    wanted, whole = untouched()
    if killed(whole):
        share = POSTED.stat().st_size / whole
        print(f"killed by SIGKILL with {share:.0%} of the output written; going on", flush=True)
    else:
        print("the run was done before it could be killed", flush=True)
    ended = subprocess.run(RUN, stdout=subprocess.PIPE, text=True, check=True)
    print(ended.stdout, end="")
    pairs = (line.split() for line in ended.stdout.splitlines())
    found = {pair[0]: pair[1] for pair in pairs if pair and pair[0] in HASHES}
    equal = found == wanted
    names = ", ".join(f"{name} {value}" for name, value in found.items())
    print(f"{names}: {'as' if equal else 'NOT as'} in a run that nobody has killed")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
