"""The typed program runs. `make lint` checks its types, and those of the examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "typed/program.py"


def test_the_typed_program_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "'balance': Decimal('98.50')" in done.stdout
