"""Names that columns can't have: rows and events have them themselves."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from tidemill import _native
from tidemill.errors import ProgramError


@cache
def of_rows() -> frozenset[str]:
    """What a row has beside its columns, be it traced or one of real values.

    >>> sorted(name for name in of_rows() if not name.startswith("_"))
    ['delete', 'exists', 'over', 'update']
    """
    from tidemill.trace import SymbolicRow

    return frozenset((*dir(SymbolicRow), *dir(_native.Row)))


@cache
def of_events() -> frozenset[str]:
    """What an event has beside its columns.

    >>> [name for name in of_events() if not name.startswith("_")]
    []
    """
    from tidemill.opaque import Event
    from tidemill.trace import SymbolicEvent

    return frozenset((*dir(SymbolicEvent), *dir(Event)))


def check(owner: str, what: str, columns: Iterable[str], taken: frozenset[str], at: str) -> None:
    """Refuses columns that could not be read."""
    for column in columns:
        if column in taken:
            other = f"its_{column.strip('_')}"
            raise ProgramError(
                f"{owner}: a column can't be named '{column}': {what} has that itself, so the "
                "column could not be read",
                f"name it otherwise, '{other}' say; where a file or a topic calls it so, read it "
                f"with columns={{'{other}': '{column}'}} of tm.files or tm.kafka",
                at,
            )
