"""Windows that belong to a procedure: the last rows that it has put there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.context import current
from tidemill.errors import ProgramError
from tidemill.names import check, of_events
from tidemill.source import here
from tidemill.types import INT, Column, Json, Schema
from tidemill.window import Over, result_type

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.table import Table


#: What a trigger on a window gets: the time at which the window ends (0 by count), the active rows,
#: and how many of them have just come.
SLIDE = ("end", "rows", "came")

#: So often a window by time slides at most while a row is in it: each slide is a transaction.
SLIDES_MAX = 100_000


#: What goes along with the groups of a window's active rows: from the rows of one to names and what
#: is made of its columns.
Aggregates = Callable[[Over], Mapping[str, object]]


@dataclass(frozen=True)
class Aggregate:
    """What goes along with each group of a window's active rows."""

    of: str
    #: The column of the window's rows; none of a count of all.
    column: Column | None

    def held(self, nth: int) -> list[Column]:
        """What the engine holds of it for each group."""
        if self.column is None:
            return []
        value = Column(f"#{nth}", self.column.ty, True)
        count, high, low, front, behind = (
            Column(f"#{nth}.{part}", INT) for part in ("count", "high", "low", "front", "behind")
        )
        return {
            "count": [count],
            "sum": [high, low],
            "avg": [high, low, count],
            "last": [value],
        }.get(self.of, [value, front, behind])


def declared(
    owner: str,
    schema: Schema,
    group: str | None,
    sums: Iterable[str],
    aggregates: Aggregates | None,
    at: str,
) -> dict[str, Aggregate]:
    """What goes along with each group of a window, by name."""

    def made(name: str | None, aggregate: Any) -> Aggregate:
        if not isinstance(aggregate, str):
            raise ProgramError(
                f"{owner}: a fold can't go along, because nothing says how a row leaves it",
                "fold window.rows()",
                at,
            )
        column = None if name is None else schema.columns[schema.find(owner, name, at)]
        if column is not None:
            result_type(owner, column, aggregate, at)
            if aggregate in ("sum", "avg") and column.ty.kind == "float":
                raise ProgramError(
                    f"{owner}: column '{column.name}' is float, whose sums are not exact: what "
                    "has come and gone would be left in them",
                    "make it a decimal, or add up window.rows()",
                    at,
                )
        return Aggregate(aggregate, column)

    found = [(name, made(name, "sum")) for name in sums]
    if aggregates is not None:
        given = aggregates(Over(made, owner, schema)) if callable(aggregates) else aggregates
        named = dict(given) if isinstance(given, Mapping) else {"": given}
        for name, aggregate in named.items():
            if not isinstance(aggregate, Aggregate) or not name:
                raise ProgramError(
                    f"{owner}: aggregates= gave {aggregate!r}, and takes names and what is made "
                    "of columns",
                    "say aggregates=lambda rows: dict(low=rows.price.min(), n=rows.count())",
                    at,
                )
            found.append((name, aggregate))
    taken = ["rows"]
    for name in [*([] if group is None else [group]), *(name for name, _ in found)]:
        if name in taken:
            two = (
                "a group's 'rows' are their number"
                if name == "rows"
                else f"a group would have two columns named '{name}'"
            )
            raise ProgramError(f"{owner}: {two}", "rename one", at)
        taken.append(name)
    return dict(found)


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
        aggregates: Mapping[str, Aggregate],
        tables: tuple[Table, ...],
        at: str,
    ) -> None:
        self.app = app
        self.id = len(app.windows)
        self.name = name
        self.extent = extent
        self.schema = schema
        self.group = group
        self.aggregates = aggregates
        #: The columns of its groups.
        self.names = (group or "all", "rows", *aggregates)
        self.tables = tables
        self.at = at
        #: What is given in hours or seconds, if anything is.
        self.span: tuple[str, object] | None = None
        check(f"window {name}", "its row", schema.names, of_events(), at)
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
        of its ``rows``, and the aggregates. They go along with the window: to read them costs no
        pass over its rows."""
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
        rows, state, groups, queues = (table.id for table in self.tables)
        columns = self.schema.index
        return {
            "name": self.name,
            "owner": self.owner,
            "schema": self.schema.json(),
            "extent": self.extent,
            "group": None if self.group is None else columns[self.group],
            "aggregates": [
                {"name": name, "of": a.of, "column": a.column and columns[a.column.name]}
                for name, a in self.aggregates.items()
            ],
            "rows": rows,
            "state": state,
            "groups": groups,
            "queues": queues,
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
