"""Windows that belong to a procedure: the last rows that it has put there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemill.context import current
from tidemill.errors import ProgramError
from tidemill.source import here
from tidemill.types import Json, Schema

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.table import Table


#: What a trigger on a window gets: the time at which the window ends (0 by count), the active rows,
#: and how many of them have just come.
SLIDE = ("end", "rows", "came")


class OwnedWindow:
    """A window of rows that belongs to one procedure or handler, which says ``owns=[window]``.

    Made by :meth:`tidemill.App.window`. A row that comes is staged: nobody sees it. When a slide's
    worth has come, the window slides: what is staged becomes active, and the oldest rows go. Only
    its owner and the triggers in the owner's transactions see it.
    """

    def __init__(
        self,
        app: App,
        name: str,
        extent: Json,
        schema: Schema,
        group: str | None,
        sums: tuple[str, ...],
        tables: tuple[Table, Table, Table],
        at: str,
    ) -> None:
        self.app = app
        self.id = len(app.windows)
        self.name = name
        self.extent = extent
        self.schema = schema
        self.group = group
        self.sums = sums
        self.tables = tables
        self.at = at
        #: The number of the handler that it belongs to.
        self.owner: int | None = None

    def insert(self, row: Mapping[str, object] | None = None, /, **columns: object) -> None:
        """Puts a row into the window, which may slide."""
        current(f"window {self.name} is filled").window_insert(self, {**(row or {}), **columns})

    def advance(self) -> None:
        """Slides a window by time as far as the transaction's time comes."""
        current(f"window {self.name} is advanced").window_advance(self)

    def rows(self) -> list[Any]:
        """The active rows, in the order in which they came."""
        found: list[Any] = current(f"window {self.name} is read").window_rows(self)
        return found

    def groups(self) -> list[Any]:
        """The groups of the active rows, in order: each with the column of the group, the number
        of its ``rows``, and the sums. They go along with the window: to read them costs no pass
        over its rows."""
        found: list[Any] = current(f"window {self.name} is read").window_groups(self, None)
        return found

    def __getitem__(self, group: object) -> Any:
        """One group of the active rows, with ``rows`` 0 when none is in it. Where the window is not
        grouped, all are the group ``None``."""
        given = 0 if group is None and self.group is None else group
        return current(f"window {self.name} is read").window_groups(self, (given,))[0]

    def json(self) -> Json:
        """As the engine reads it."""
        if self.owner is None:
            raise ProgramError(
                f"window {self.name} belongs to nobody",
                f"say @app.procedure(..., owns=[{self.name}])",
                self.at,
            )
        rows, state, groups = (table.id for table in self.tables)
        columns = self.schema.names
        return {
            "name": self.name,
            "owner": self.owner,
            "schema": self.schema.json(),
            "extent": self.extent,
            "group": None if self.group is None else columns.index(self.group),
            "sums": [columns.index(name) for name in self.sums],
            "rows": rows,
            "state": state,
            "groups": groups,
            "at": self.at,
        }

    def __repr__(self) -> str:
        return f"<window {self.name}: {self.schema}>"


def claim(windows: object, handler: int, name: str, app: App) -> None:
    """Makes windows a handler's own."""
    at = here()
    for window in windows if isinstance(windows, list | tuple) else [windows]:
        if not isinstance(window, OwnedWindow) or window.app is not app:
            raise ProgramError(
                f"owns= takes windows of the app, not {window!r}",
                "make one with app.window(...)",
                at,
            )
        if window.owner is not None:
            other = app.handlers[window.owner].name
            raise ProgramError(
                f"window {window.name} belongs to {other}, and can't be {name}'s, too", "", at
            )
        window.owner = handler
