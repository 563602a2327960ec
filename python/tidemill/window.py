"""Windows over the versions of a row, and aggregates of them.

>>> sliding("10s"), last(100), tumbling("1h").needs_us
(tm.sliding('10s'), tm.last(100), 3600000000)
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.errors import ProgramError, Untraceable
from tidemill.expr import Block
from tidemill.keywords import known_keywords
from tidemill.source import here
from tidemill.types import FLOAT, INT, Column, DataType, Json, Schema, duration_us, other_unit

if TYPE_CHECKING:
    from tidemill.table import Table


class Window:
    """A window: the versions of a row that an aggregate reads.

    :func:`sliding`, :func:`tumbling`, :func:`session` and :func:`last` make windows. A row's
    versions in one are ``row.over(window)``. The table's ``history`` must retain them.
    """

    __slots__ = ("json", "needs_us", "needs_versions", "span", "text")

    def __init__(
        self, json: Json, text: str, us: int | None, versions: int | None, *spans: object
    ) -> None:
        self.json = json
        self.text = text
        #: The size that was given as a text or timedelta, if there is one.
        self.span = next((s for s in spans if isinstance(s, str | dt.timedelta)), None)
        self.needs_us = us
        self.needs_versions = versions

    def check_unit(self, table: Table, at: str) -> None:
        """Refuses a size in hours or seconds for a table whose writers have an int as time.

        Args:
            table: The table over whose rows the window is read.
            at: The line in the user's code, for errors.

        Raises:
            ProgramError: The units differ.
        """
        if table.counts is not None and self.span is not None:
            raise other_unit(f"{self} over table {table.name}", "its size", table.counts.name, at)

    def __repr__(self) -> str:
        return self.text


def _size(given: object, what: str) -> int:
    """Returns a size in microseconds, or an int in the unit of an int time column."""
    if isinstance(given, int) and not isinstance(given, bool):
        size = given
    else:
        try:
            size = duration_us(given, True, what)
        except ProgramError as error:
            raise ProgramError(error.what, error.help, here()) from None
    if size <= 0:
        raise ProgramError(f"{what}={given!r}: it must be more than 0", "", here())
    return size


def _count(given: object, what: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given <= 0:
        raise ProgramError(f"{what} is a number of versions, not {given!r}", "", here())
    return given


@known_keywords
def sliding(
    size: str | int | dt.timedelta, *, slide: str | int | dt.timedelta | None = None
) -> Window:
    """Returns the window of the last ``size`` of event time, up to and including the event.

    Args:
        size: The size, such as ``"10s"``. An int is in the unit of an int time column.
        slide: If given, the window is the last complete one that ended at a multiple of it. The
            default is none.

    Returns:
        The window.

    Raises:
        ProgramError: A size is not a duration, or is not positive.

    Example:
        >>> import tidemill as tm
        >>> app = tm.App("shop")
        >>> items = app.table("items", key="id", id=int, price=float, history="1h")
        >>> sales = app.stream("sales", id=int, price=float)
        >>> @app.transaction(sales)
        ... def sell(tx, e):
        ...     item = items[e.id]
        ...     item.price = e.price
        ...     return dict(id=e.id, mean=item.over(tm.sliding("10m")).price.avg())
        >>> sell
        <handler sell (traced)>
    """
    us = _size(size, "size")
    if slide is None:
        return Window({"sliding": {"size_us": us}}, f"tm.sliding({size!r})", us, None, size)
    slide_us = _size(slide, "slide")
    json = {"hopping": {"size_us": us, "slide_us": slide_us}}
    text = f"tm.sliding({size!r}, slide={slide!r})"
    return Window(json, text, us + slide_us, None, size, slide)


@known_keywords
def tumbling(
    size: str | int | dt.timedelta | None = None, *, versions: int | None = None
) -> Window:
    """Returns the window that contains the event, from its begin to the event.

    Args:
        size: The size, such as ``"1h"``. Windows begin at its multiples. An int is in the unit of
            an int time column. Give this or ``versions``.
        versions: The size as a number of versions: each ``n``-th version of a row begins a window.

    Returns:
        The window.

    Raises:
        ProgramError: Both sizes or neither are given, or a size is not positive.

    Example:
        >>> tumbling("1h"), tumbling(versions=100)
        (tm.tumbling('1h'), tm.tumbling(versions=100))
    """
    if (size is None) == (versions is None):
        raise ProgramError(
            "tm.tumbling takes either a size or versions=",
            'write tm.tumbling("1h"), or tm.tumbling(versions=100)',
            here(),
        )
    if versions is not None:
        json = {"tumbling_versions": {"versions": _count(versions, "versions")}}
        return Window(json, f"tm.tumbling(versions={versions})", None, versions)
    us = _size(size, "size")
    return Window({"tumbling": {"size_us": us}}, f"tm.tumbling({size!r})", us, None, size)


@known_keywords
def session(gap: str | int | dt.timedelta) -> Window:
    """Returns the session window: back from the event while versions are close together.

    It reaches at most as far back as the table's ``history`` by time.

    Args:
        gap: The largest time between two versions of one session, such as ``"30s"``. An int is in
            the unit of an int time column.

    Returns:
        The window.

    Raises:
        ProgramError: The gap is not a duration, or is not positive.

    Example:
        >>> session("30s")
        tm.session('30s')
    """
    us = _size(gap, "gap")
    return Window({"session": {"gap_us": us}}, f"tm.session({gap!r})", us, None, gap)


@known_keywords
def last(versions: int) -> Window:
    """Returns the window of the last versions of a row.

    Args:
        versions: The number of versions.

    Returns:
        The window.

    Raises:
        ProgramError: The number is not a positive int.

    Example:
        >>> last(100)
        tm.last(100)
    """
    json = {"last": {"versions": _count(versions, "tm.last's argument")}}
    return Window(json, f"tm.last({versions})", None, versions)


def checked(window: object, table: Table, at: str) -> Window:
    """Returns the window if the table's history covers it, and raises otherwise."""
    if not isinstance(window, Window):
        raise ProgramError(
            f"over takes a window, not {window!r}", 'write tm.sliding("10s"), tm.last(100), ...', at
        )
    kept_us, kept = table.history or (None, None)
    if table.history is None:
        wanted = window.needs_versions or '"..."'
        raise ProgramError(
            f"table {table.name} has no history over which {window} could be read",
            f"declare it with history={wanted}",
            at,
        )
    short = (
        kept_us is None or kept_us < window.needs_us
        if window.needs_us is not None
        else kept is None or kept < (window.needs_versions or 0)
    )
    if short:
        raise ProgramError(
            f"{window} is longer than the history of table {table.name}",
            "declare the table with a longer history=, or take a shorter window; a window by time "
            "needs a history by time, and one by count a history by count",
            at,
        )
    window.check_unit(table, at)
    return window


#: Evaluates an aggregate: the column's name, or None for all rows, and the aggregate.
Read = Callable[["str | None", Json], Any]


class OverColumn:
    """A column of the versions in a window, or of the rows in a range, to be aggregated."""

    __slots__ = ("_name", "_read")

    def __init__(self, read: Read, name: str) -> None:
        self._read = read
        self._name = name

    def sum(self) -> Any:
        """Returns the sum; 0 if there are no values."""
        return self._read(self._name, "sum")

    def avg(self) -> Any:
        """Returns the mean; null if there are no values."""
        return self._read(self._name, "avg")

    def min(self) -> Any:
        """Returns the smallest value; null if there are no values."""
        return self._read(self._name, "min")

    def max(self) -> Any:
        """Returns the largest value; null if there are no values."""
        return self._read(self._name, "max")

    def count(self) -> Any:
        """Returns the number of values that are not null."""
        return self._read(self._name, "count")

    def first(self) -> Any:
        """Returns the first value, which may be null; null if there are no versions."""
        return self._read(self._name, "first")

    def last(self) -> Any:
        """Returns the last value, which may be null; null if there are no versions."""
        return self._read(self._name, "last")


class Over:
    """The versions in a window, or the rows of a range or group: ``.column.sum()`` and so on."""

    __slots__ = ("_read", "_schema", "_whose")

    def __init__(self, read: Read, whose: str, schema: Schema) -> None:
        self._read = read
        self._whose = whose
        self._schema = schema

    def __getattr__(self, name: str) -> OverColumn:
        if name.startswith("__") and name not in self._schema.index:
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> OverColumn:
        self._schema.find(self._whose, name, here())
        return OverColumn(self._read, name)

    def count(self) -> Any:
        """Returns the number of versions or rows."""
        return self._read(None, "count")

    def fold(self, start: object, step: Callable[[Any, Any], object]) -> Any:
        """Folds the versions, oldest first, into a state.

        Args:
            start: The first state, a constant that is not null.
            step: A function from a state and a version to the next state. It is traced once, as
                handlers are. It may use the state, the version's columns and constants.

        Returns:
            The last state, of the type of ``start``.
        """
        at = here()
        return self._read(None, {"fold": fold(self._whose, self._schema, start, step, at)})

    def __iter__(self) -> Any:
        raise Untraceable("the rows of a range are not known yet")


def fold(
    whose: str, schema: Schema, start: object, step: Callable[[Any, Any], object], at: str
) -> Json:
    """Returns a user's aggregate in the form that the engine reads."""
    from tidemill.trace import SymbolicEvent

    block = Block(whose, schema)
    first = block.const(start, at)
    if first.ty is None:
        raise ProgramError(
            "a fold must begin with a constant that is not null", "give one, such as 0", at
        )
    state = block.push({"var": 0}, first.ty, False, at)
    result = block.lift(step(state, SymbolicEvent(block)), at)
    if result.ty != first.ty or result.nullable:
        raise ProgramError(
            f"the fold begins with {first.ty}, but its step gives "
            f"{'nullable ' if result.nullable else ''}{result.ty or 'null'}",
            "convert both to one type with tm.cast(x, type), and replace nulls with tm.coalesce",
            at,
        )
    return {"exprs": block.json(), "start": first.id, "step": result.id, "_type": first.ty}


def result_type(whose: str, spec: Column, aggregate: Json, at: str | None) -> tuple[DataType, bool]:
    """Returns the type of an aggregate of a column, and whether it may be null."""
    if isinstance(aggregate, dict):
        return aggregate["fold"]["_type"], False
    if aggregate == "count":
        return INT, False
    is_number = spec.ty.kind in ("int", "float", "decimal")
    if aggregate in ("sum", "avg") and not is_number:
        what = "sum" if aggregate == "sum" else "mean"
        raise ProgramError(
            f"column '{spec.name}' of {whose} is {spec.ty}: it has no {what}", "", at
        )
    if aggregate in ("min", "max") and spec.ty.kind in ("list", "any"):
        raise ProgramError(f"column '{spec.name}' of {whose} is {spec.ty}: it has no order", "", at)
    if aggregate == "avg" and spec.ty == INT:
        return FLOAT, True
    return spec.ty, aggregate != "sum"


def plain(aggregate: Json) -> Json:
    """Returns an aggregate in the form that the engine reads, without its type."""
    if not isinstance(aggregate, dict):
        return aggregate
    return {"fold": {k: v for k, v in aggregate["fold"].items() if k != "_type"}}
