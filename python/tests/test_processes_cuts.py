"""Cuts on the coordinator's disk, with all else in Kafka."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tidemill.config import checked_settings
from tidemill.errors import SettingError

from .kill.cluster import APP, Process, settings
from .kill.processes import live


def flags(name: str, cuts: str) -> list[str]:
    log = f"kafka://{os.environ['SERVERS_KAFKA']}"
    sets = (f"cluster_name={name}", "cluster_sources=2", f"cluster_cuts={cuts}")
    return [*settings(), "--log", log, *(f"--set={s}" for s in sets)]


@pytest.mark.servers
def test_a_cluster_lives_with_its_cuts_apart(tmp_path: Path) -> None:
    name = f"cuts-{secrets.token_hex(4)}"
    together = "--set=cluster_together=16"
    hurt, _, fates = live(3, tmp_path, 3, [*flags(name, "coordinator"), together])
    assert hurt >= 3
    assert fates["acknowledged"] > 0
    # Without the cuts, it would start from scratch although outputs exist.
    (secret := tmp_path / "secret").write_text(secrets.token_hex(32))
    for cuts in ("log", "coordinator"):
        data = tmp_path / f"data-{cuts}"
        given = ["--secret-file", str(secret), "--data-dir", str(data), *flags(name, cuts)]
        with Process(tmp_path / f"wrong-{cuts}", "coordinator", str(APP), *given) as wrong:
            assert wrong.process.wait(60) != 0
            said = wrong.errors.read_text()
            assert "outputs, but no cuts" in said, said
            assert "cluster_cuts" in said, said


def test_other_places_are_refused() -> None:
    with pytest.raises(SettingError, match="none of log, coordinator"):
        checked_settings({"cluster_cuts": "kafka"}, "--set")
