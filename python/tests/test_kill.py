"""An app that is killed at any moment has the results of one that was not. For more of it: ``make
soak``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .kill.driver import Lives

#: Lives, and how often each is killed at most.
LIVES = [(101, 5), (102, 4), (103, 6)]


@pytest.mark.parametrize(("number", "kills"), LIVES)
def test_nothing_is_lost_and_nothing_happens_twice(tmp_path: Path, number: int, kills: int) -> None:
    lives = Lives(tmp_path)
    first = int(os.environ.get("TIDEMILL_KILL_LIFE", number))
    lives.live(first, kills)
    assert lives.acknowledgements > 0
