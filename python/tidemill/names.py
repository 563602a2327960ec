"""Names that columns can't have, because rows and events have attributes with these names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from tidemill import _native
from tidemill.errors import ProgramError


@cache
def of_rows() -> frozenset[str]:
    """Returns the attributes of rows, traced or with real values.

    >>> sorted(name for name in of_rows() if not name.startswith("_"))
    ['delete', 'exists', 'over', 'update']
    """
    from tidemill.trace import SymbolicRow

    return frozenset((*dir(SymbolicRow), *dir(_native.Row)))


@cache
def of_events() -> frozenset[str]:
    """Returns the attributes of events.

    >>> [name for name in of_events() if not name.startswith("_")]
    []
    """
    from tidemill.opaque import Event
    from tidemill.trace import SymbolicEvent

    return frozenset((*dir(SymbolicEvent), *dir(Event)))


def check(owner: str, what: str, columns: Iterable[str], taken: frozenset[str], at: str) -> None:
    """Refuses columns that an attribute would hide."""
    for column in columns:
        if column in taken:
            other = f"its_{column.strip('_')}"
            raise ProgramError(
                f"{owner}: a column can't be named '{column}': {what} has an attribute of that "
                "name, so the column could not be read",
                f"give it another name, such as '{other}'; if a file or topic has that name, read "
                f"it with columns={{'{other}': '{column}'}} of tm.files or tm.kafka",
                at,
            )
