"""Limits on the number of rows of a scan."""

from __future__ import annotations

from tidemill.errors import ProgramError
from tidemill.source import here


def check_limit(limit: object) -> None:
    """Refuses a limit that is not a number of rows.

    >>> check_limit(3)
    """
    is_number = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
    if limit is not None and not is_number:
        raise ProgramError(f"limit is a number of rows, not {limit!r}", "", here())
