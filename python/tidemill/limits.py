"""How many rows a scan gives at most."""

from __future__ import annotations

from tidemill.errors import ProgramError
from tidemill.source import here


def check_limit(limit: object) -> None:
    """Refuses what is no number of rows.

    >>> check_limit(3)
    """
    is_number = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
    if limit is not None and not is_number:
        raise ProgramError(f"limit is a number of rows, not {limit!r}", "", here())
