"""Which transaction this thread is in: one that is traced, or an opaque one that is running."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tidemill.errors import ProgramError
from tidemill.source import here

if TYPE_CHECKING:
    from tidemill.index import Index
    from tidemill.owned import OwnedWindow
    from tidemill.table import Table


class Transaction(Protocol):
    """What a table needs of the transaction that mentions it."""

    def row(self, table: Table, key: tuple[object, ...]) -> Any:
        """A row by key."""

    def insert(self, table: Table, values: Mapping[str, object], replace: bool) -> Any:
        """Makes a row; over an existing one only when ``replace``."""

    def contains(self, table: Table, key: tuple[object, ...]) -> bool:
        """Whether a row is there."""

    def scan(
        self, table: Table, start: tuple[object, ...], end: tuple[object, ...], limit: int | None
    ) -> Any:
        """The rows of a range of keys."""

    def find(
        self,
        index: Index,
        start: tuple[object, ...],
        end: tuple[object, ...] | None,
        limit: int | None,
    ) -> Any:
        """The rows of a range of an index, or those that begin with ``start``."""

    def window_insert(self, window: OwnedWindow, values: Mapping[str, object]) -> None:
        """Puts a row into a window."""

    def window_advance(self, window: OwnedWindow) -> None:
        """Slides a window by time."""

    def window_rows(self, window: OwnedWindow) -> Any:
        """The active rows of a window."""

    def window_groups(self, window: OwnedWindow, group: tuple[object] | None) -> Any:
        """The groups of a window's active rows, or the one that is given."""

    def refuse(self, error: Exception) -> None:
        """Notes what the function may not do, whatever it makes of the exception."""


class _Local(threading.local):
    transaction: Transaction | None = None
    #: It asks a function outside (``tx.lookup``), which is not in it, and which it waits for.
    asks: bool = False


#: Of this thread.
local = _Local()


def current(what: str) -> Transaction:
    """The transaction that this thread is in."""
    if local.transaction is None:
        raise ProgramError(
            f"{what} outside a transaction",
            "read and write tables inside a function with @app.transaction; to look at a table "
            "from outside use mill.table(...)",
            here(),
        )
    return local.transaction


def outside(what: str, may_be_asked: bool = False) -> None:
    """Refuses what a function may not do that runs as a transaction: the engine waits for the
    function, which would wait for the engine; and a function may run again.

    The transaction aborts, also when the function catches the exception. What a transaction asks
    (``tx.lookup``) may do it where it ``may_be_asked``.
    """
    running = local.transaction
    if running is None and (may_be_asked or not local.asks):
        return
    error = ProgramError(
        f"{what} is called inside a function that runs as a transaction, or that one asks",
        "there read and write rows by their tables, emit with tx.emit, call entities, and leave "
        "what is to be done outside to app.external",
        here(),
    )
    if running is not None:
        running.refuse(error)
    raise error


@contextmanager
def inside(transaction: Transaction) -> Iterator[None]:
    """This thread is in ``transaction`` for a while."""
    before = local.transaction
    local.transaction = transaction
    try:
        yield
    finally:
        local.transaction = before
