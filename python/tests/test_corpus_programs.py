"""The programs of the corpus write what they are to write, however they are run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .kill.cluster import PATIENCE, Process, settings

PROGRAMS = Path(__file__).parents[2] / "corpus" / "programs"
NAMES = sorted(path.parent.name for path in PROGRAMS.glob("*/app.py"))


def prepare(name: str, folder: Path) -> dict[str, str]:
    """Copies a program and what it reads; what it is to write."""
    shutil.copy(PROGRAMS / name / "app.py", folder)
    shutil.copytree(PROGRAMS / name / "in", folder / "in")
    (folder / "out").mkdir()
    return {path.name: path.read_text() for path in (PROGRAMS / name / "out").iterdir()}


def written(folder: Path) -> dict[str, str]:
    """Returns the written files."""
    return {path.name: path.read_text() for path in (folder / "out").iterdir() if path.is_file()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--workers", "1", "--set", "epoch_rows_max=1"],
        ["--workers", "3", "--set", "epoch_rows_max=50"],
    ],
)
def test_in_one_process(name: str, flags: list[str], tmp_path: Path) -> None:
    wanted = prepare(name, tmp_path)
    line = [sys.executable, "-m", "tidemill.cli", "run", "app.py", *flags]
    subprocess.run(line, cwd=tmp_path, check=True, timeout=PATIENCE, capture_output=True)
    assert written(tmp_path) == wanted


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("flags", [[], ["--set", "cluster_epoch_rows_max=20"]])
def test_on_two_processes(name: str, flags: list[str], tmp_path: Path) -> None:
    wanted = prepare(name, tmp_path)
    with Process(tmp_path, "run", "app.py", "--processes", "2", *settings(), *flags) as parent:
        assert parent.process.wait(PATIENCE) == 0, parent.errors.read_text()
    assert written(tmp_path) == wanted
