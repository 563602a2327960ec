"""Owned windows: the last rows that a procedure has inserted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from tidemill import mixed
from tidemill.context import current
from tidemill.errors import ProgramError
from tidemill.given import span
from tidemill.names import check, of_events
from tidemill.source import here
from tidemill.table import add_kept
from tidemill.types import INT, Column, Json, Schema
from tidemill.window import Over, result_type

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.table import Table


#: The columns of the event for a trigger on a window: the time at which the window ends (0 for a
#: window by count), the number of active rows, and the number of rows that this slide activated.
SLIDE = ("end", "rows", "added")

#: The largest number of slides of a window by time while one row is in it. Each slide is a
#: transaction, so more would stall the engine.
SLIDES_MAX = 100_000


#: The declaration of a window's aggregates: a function from the rows of a group to aggregates by
#: name.
Aggregates = Callable[[Over], Mapping[str, object]]


@dataclass(frozen=True)
class Aggregate:
    """An aggregate that the engine maintains for each group of a window's active rows."""

    of: str
    #: The column of the window's rows, or None for the count of all rows.
    column: Column | None

    def held(self, nth: int) -> list[Column]:
        """Returns the columns in which the engine stores the aggregate of a group."""
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
    """Returns the aggregates of a window by name, and checks them."""

    def made(name: str | None, aggregate: Any) -> Aggregate:
        if not isinstance(aggregate, str):
            raise ProgramError(
                f"{owner}: a fold can't be an aggregate, because it can't remove a row that leaves",
                "fold window.rows() instead",
                at,
            )
        column = None if name is None else schema.columns[schema.find(owner, name, at)]
        if column is not None:
            result_type(owner, column, aggregate, at)
            if aggregate in ("sum", "avg") and column.ty.kind == "float":
                raise ProgramError(
                    f"{owner}: column '{column.name}' is float, whose sums are not exact: rows "
                    "that have left the window would leave errors in them",
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
                    f"{owner}: aggregates= gave {aggregate!r}, not a dict of names and aggregates",
                    "write aggregates=lambda rows: dict(low=rows.price.min(), n=rows.count())",
                    at,
                )
            found.append((name, aggregate))
    taken = ["rows"]
    for name in [*([] if group is None else [group]), *(name for name, _ in found)]:
        if name in taken:
            two = (
                "the name 'rows' is taken: it is a group's number of rows"
                if name == "rows"
                else f"a group would have two columns named '{name}'"
            )
            raise ProgramError(f"{owner}: {two}", "rename one", at)
        taken.append(name)
    return dict(found)


class OwnedWindow:
    """A window of rows that belongs to one procedure or handler, declared with ``owns=[window]``.

    An inserted row is staged first, and is not visible. When enough rows for a slide are staged,
    the window slides: the staged rows become active, and the oldest rows leave. Only the owner
    and the triggers in its transactions can use the window. ``window[value]`` is one group of the
    active rows. :meth:`tidemill.App.window` makes windows.
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
        #: The name and value of an argument that was given as a text or timedelta, if one was.
        self.span: tuple[str, object] | None = None
        check(f"window {name}", "its row", schema.names, of_events(), at)
        #: The number of the handler that owns the window; None before it is declared.
        self.owner: int | None = None

    def insert(self, row: Mapping[str, object] | None = None, /, **columns: object) -> None:
        """Inserts a row into the window, which may slide it.

        Args:
            row: Values by column, as a dict. The default is none.
            **columns: More values by column. They win over ``row``.

        Raises:
            ProgramError: There is no transaction.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("vote")
            >>> votes = app.stream("votes", candidate=int)
            >>> seen = app.stream("seen", rows=int, groups=int)
            >>> recent = app.window("recent", rows=2, slide=1, group="candidate", candidate=int)
            >>> @app.procedure(votes, owns=[recent])
            ... def count(tx, votes):
            ...     for vote in votes:
            ...         recent.insert(candidate=vote.candidate)
            ...     tx.emit(seen, rows=len(recent.rows()), groups=len(recent.groups()))
            >>> with app.start() as mill:
            ...     mill.send(votes, [{"candidate": 1}, {"candidate": 1}, {"candidate": 2}])
            ...     mill.drain()
            ...     mill.output(seen).rows()
            [{'rows': 0, 'groups': 0}, {'rows': 2, 'groups': 1}, {'rows': 2, 'groups': 2}]
        """
        current(f"window {self.name} is filled").window_insert(self, {**(row or {}), **columns})

    def advance(self) -> None:
        """Slides a window by time up to the transaction's time, without a new row.

        Raises:
            ProgramError: There is no transaction.
        """
        current(f"window {self.name} is advanced").window_advance(self)

    def rows(self) -> list[Any]:
        """Returns the active rows, in the order of their insertion.

        Raises:
            ProgramError: There is no transaction.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("vote")
            >>> votes = app.stream("votes", candidate=int)
            >>> seen = app.stream("seen", rows=int, groups=int)
            >>> recent = app.window("recent", rows=2, slide=1, group="candidate", candidate=int)
            >>> @app.procedure(votes, owns=[recent])
            ... def count(tx, votes):
            ...     for vote in votes:
            ...         recent.insert(candidate=vote.candidate)
            ...     tx.emit(seen, rows=len(recent.rows()), groups=len(recent.groups()))
            >>> with app.start() as mill:
            ...     mill.send(votes, [{"candidate": 1}, {"candidate": 1}, {"candidate": 2}])
            ...     mill.drain()
            ...     mill.output(seen).rows()
            [{'rows': 0, 'groups': 0}, {'rows': 2, 'groups': 1}, {'rows': 2, 'groups': 2}]
        """
        found: list[Any] = current(f"window {self.name} is read").window_rows(self)
        return found

    def groups(self) -> list[Any]:
        """Returns the groups of the active rows, in the order of their values.

        Each group has the column ``group`` of the declaration, the number of its ``rows``, and the
        aggregates. The engine maintains them, so reading them needs no pass over the rows.

        Raises:
            ProgramError: There is no transaction.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("vote")
            >>> votes = app.stream("votes", candidate=int)
            >>> seen = app.stream("seen", rows=int, groups=int)
            >>> recent = app.window("recent", rows=2, slide=1, group="candidate", candidate=int)
            >>> @app.procedure(votes, owns=[recent])
            ... def count(tx, votes):
            ...     for vote in votes:
            ...         recent.insert(candidate=vote.candidate)
            ...     tx.emit(seen, rows=len(recent.rows()), groups=len(recent.groups()))
            >>> with app.start() as mill:
            ...     mill.send(votes, [{"candidate": 1}, {"candidate": 1}, {"candidate": 2}])
            ...     mill.drain()
            ...     mill.output(seen).rows()
            [{'rows': 0, 'groups': 0}, {'rows': 2, 'groups': 1}, {'rows': 2, 'groups': 2}]
        """
        found: list[Any] = current(f"window {self.name} is read").window_groups(self, None)
        return found

    def __getitem__(self, group: object) -> Any:
        """Returns one group of the active rows; its ``rows`` are 0 if it has none.

        A window that is not grouped has the single group ``None``.
        """
        given = 0 if group is None and self.group is None else group
        return current(f"window {self.name} is read").window_groups(self, (given,))[0]

    def json(self) -> Json:
        """Returns the window in the form that the engine reads."""
        if self.owner is None:
            raise ProgramError(
                f"window {self.name} has no owner",
                f"declare one: @app.procedure(..., owns=[{self.name}])",
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
    """Makes a handler the owner of windows."""
    at = here()
    for window in windows if isinstance(windows, list | tuple) else [windows]:
        if not isinstance(window, OwnedWindow):
            raise ProgramError(
                f"owns= takes windows of the app, not {window!r}",
                "make one with app.window(...)",
                at,
            )
        mixed.refuse(app, window, f"handler {name}", at)
        if window.owner is not None:
            other = app.handlers[window.owner].name
            raise ProgramError(
                f"window {window.name} belongs to {other}, so {name} can't own it", "", at
            )
        window.owner = handler


def declare(
    app: App,
    name: str,
    made: Schema,
    rows: int | None,
    time: str | int | dt.timedelta | None,
    slide: str | int | dt.timedelta | None,
    group: str | None,
    sums: Iterable[str],
    aggregates: Aggregates | None,
    at: str,
) -> OwnedWindow:
    """Makes a window with columns ``made`` and its tables; see :meth:`App.window`."""
    owner = f"window {name}"
    if (rows is None) == (time is None):
        raise ProgramError(
            f"{owner} needs either rows= or time=", 'say rows=100, or time="10s"', at
        )
    extent: Json
    try:
        if rows is not None:
            step = rows if slide is None else slide
            for what, count in (("rows", rows), ("slide", step)):
                if isinstance(count, bool) or not isinstance(count, int):
                    raise ProgramError(f"{what}={count!r} is not a number of rows")
            extent = {"rows": {"size": rows, "slide": step}}
            size, by = rows, int(str(step))
        else:
            size = span(time, "time")
            by = size if slide is None else span(slide, "slide")
            extent = {"time": {"size_us": size, "slide_us": by}}
        if not 1 <= by <= size:
            raise ProgramError(
                f"its size is {size} and its slide {by}: a slide is at least 1, and at most "
                "the size"
            )
        if rows is None and -(-size // by) > SLIDES_MAX:
            raise ProgramError(
                f"each row would slide it {-(-size // by)} times; at most {SLIDES_MAX} are allowed",
                "make slide= longer, or time= shorter",
            )
    except ProgramError as error:
        raise ProgramError(f"{owner}: {error.what}", error.help, at) from None
    found = declared(owner, made, group, sums, aggregates, at)
    grouped = Column("#", INT)
    if group is not None:
        grouped = made.columns[made.find(owner, group, at)]
        if grouped.nullable or grouped.ty.kind in ("list", "any"):
            raise ProgramError(
                f"{owner}: its rows can't be grouped by '{group}', which is "
                f"{'nullable ' if grouped.nullable else ''}{grouped.ty}",
                "",
                at,
            )
    int_columns = [Column(part, INT) for part in ("#", "first", "end", "next")]
    parts = {
        "rows": [Column("#", INT), Column("#at", INT), *made.columns],
        "state": [*int_columns, Column("edge", INT, True)],
        "groups": [
            Column(grouped.name, grouped.ty),
            Column("#rows", INT),
            *chain.from_iterable(one.held(nth) for nth, one in enumerate(found.values())),
        ],
        "queues": [
            Column("#of", INT),
            Column("#group", grouped.ty),
            Column("#place", INT),
            Column("#", INT),
        ],
    }
    tables = []
    for part, kept in parts.items():
        key = tuple(column.name for column in kept[: 3 if part == "queues" else 1])
        is_ordered = part == "groups"
        tables.append(add_kept(app, f"{name}.{part}", key, kept, at, is_ordered, "window"))
    window = OwnedWindow(app, name, extent, made, group, found, tuple(tables), at)
    for what, given in (("time", time), ("slide", slide)):
        if isinstance(given, str | dt.timedelta):
            window.span = window.span or (what, given)
    return window
