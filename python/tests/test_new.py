"""`tidemill new` makes an app that runs, with a test that passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.cli.new import make
from tidemill.errors import IoError, SettingError


def run(folder: Path, *args: str) -> str:
    command = [sys.executable, "-m", *args]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=True
    )
    return ended.stdout + ended.stderr


def test_the_starter_runs_and_its_test_passes(tmp_path: Path) -> None:
    run(tmp_path, "tidemill.cli", "new", "box-office")
    folder = tmp_path / "box-office"
    said = json.loads(run(folder, "tidemill.cli", "run", "app.py", "--json").splitlines()[-1])
    assert (said["app"], said["events"], said["refused"]) == ("box-office", 6, 2)
    assert "Tosca" in run(folder, "tidemill.cli", "query", "seats")
    assert "OK" in run(folder, "unittest")
    # The input is at its end: another run has nothing to do, and changes nothing.
    again = json.loads(run(folder, "tidemill.cli", "run", "app.py", "--json").splitlines()[-1])
    assert again["state_hash"] == said["state_hash"]


def test_an_oversold_show_fails_the_starters_test(tmp_path: Path) -> None:
    make(tmp_path / "shop")
    app = tmp_path / "shop/app.py"
    app.write_text(app.read_text().replace("show.left >= e.seats", "show.left >= 0"))
    with pytest.raises(subprocess.CalledProcessError):
        run(tmp_path / "shop", "unittest")


@pytest.mark.parametrize("name", ["9x", "a b", "-x", "ä", "x" * 65])
def test_a_name_that_no_app_has_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match="can't be the name of an app"):
        make(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(IoError, match="exists already"):
        make(tmp_path / "mine")
    with pytest.raises(IoError, match="can't make"):
        make(tmp_path / "none/mine")
    assert not list((tmp_path / "mine").iterdir())
