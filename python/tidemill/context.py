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
    """The methods of a transaction that tables, indexes and windows use."""

    def row(self, table: Table, key: tuple[object, ...]) -> Any:
        """Returns a row by its key."""

    def insert(self, table: Table, values: Mapping[str, object], replace: bool) -> Any:
        """Inserts a row; replaces an existing one only with ``replace``."""

    def contains(self, table: Table, key: tuple[object, ...]) -> bool:
        """Returns whether a row exists."""
        ...

    def scan(
        self,
        table: Table,
        start: tuple[object, ...],
        end: tuple[object, ...] | None,
        limit: int | None,
        reverse: bool,
    ) -> Any:
        """Returns the rows of a range of keys; with no ``end``, those that begin with ``start``."""

    def find(
        self,
        index: Index,
        start: tuple[object, ...],
        end: tuple[object, ...] | None,
        limit: int | None,
        reverse: bool,
    ) -> Any:
        """Returns the rows of a range of an index; with no ``end``, those that match ``start``."""

    def window_insert(self, window: OwnedWindow, values: Mapping[str, object]) -> None:
        """Inserts a row into a window."""

    def window_advance(self, window: OwnedWindow) -> None:
        """Slides a window by time."""

    def window_rows(self, window: OwnedWindow) -> Any:
        """Returns the active rows of a window."""

    def window_groups(self, window: OwnedWindow, group: tuple[object] | None) -> Any:
        """Returns the groups of a window's active rows, or the given one only."""

    def refuse(self, error: Exception) -> None:
        """Notes an error of the function, which counts even if the function catches it."""


class _Local(threading.local):
    transaction: Transaction | None = None
    #: Whether this thread runs a function of ``tx.lookup``, for which a transaction waits.
    asks: bool = False
    #: Whether a command of ``tidemill`` loads the user's file in this thread.
    loads: bool = False


#: The state of this thread.
local = _Local()


def current(what: str) -> Transaction:
    """Returns this thread's transaction, and raises if there is none."""
    if local.transaction is None:
        raise ProgramError(
            f"{what} outside a transaction",
            "read and write tables inside a function with @app.transaction; to look at a table "
            "from outside use mill.table(...)",
            here(),
        )
    return local.transaction


def outside(what: str, may_be_asked: bool = False) -> None:
    """Refuses a call inside a function that runs as a transaction.

    The engine waits for the function, so the function can't wait for the engine. It may also run
    again. The transaction aborts, even if the function catches the exception. With
    ``may_be_asked`` a function of ``tx.lookup`` may make the call.
    """
    running = local.transaction
    if running is None and (may_be_asked or not local.asks):
        return
    error = ProgramError(
        f"{what} is called inside a function that runs as a transaction, or that one asks",
        "in a transaction use rows of tables, tx.emit and calls of entities, and do work outside "
        "with app.external",
        here(),
    )
    if running is not None:
        running.refuse(error)
    raise error


@contextmanager
def loading() -> Iterator[None]:
    """Marks the block in which a command loads the user's file."""
    local.loads = True
    try:
        yield
    finally:
        local.loads = False


def refuse_loading() -> None:
    """Refuses a start while a command loads the file with the app, which the command starts."""
    if local.loads:
        raise ProgramError(
            "app.start() runs while a command of tidemill loads this file for its app",
            'put it under if __name__ == "__main__":, which only python APP.py executes',
            here(),
        )


@contextmanager
def inside(transaction: Transaction) -> Iterator[None]:
    """Puts this thread into a transaction for the block."""
    before = local.transaction
    local.transaction = transaction
    try:
        yield
    finally:
        local.transaction = before
