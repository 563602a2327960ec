"""Windows over the versions of a row, and what is made of them.

>>> sliding("10s"), last(100), tumbling("1h").needs_us
(tm.sliding('10s'), tm.last(100), 3600000000)
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.errors import ProgramError, Untraceable
from tidemill.expr import Block
from tidemill.source import here
from tidemill.types import FLOAT, INT, Column, DataType, Json, Schema, duration_us, other_unit

if TYPE_CHECKING:
    from tidemill.table import Table


class Window:
    """Which versions of a row are looked at. Made by :func:`sliding`, :func:`tumbling`,
    :func:`session` and :func:`last`."""

    __slots__ = ("json", "needs_us", "needs_versions", "span", "text")

    def __init__(
        self, json: Json, text: str, us: int | None, versions: int | None, *spans: object
    ) -> None:
        self.json = json
        self.text = text
        #: What was given in hours or seconds, if anything was.
        self.span = next((s for s in spans if isinstance(s, str | dt.timedelta)), None)
        self.needs_us = us
        self.needs_versions = versions

    def check_unit(self, table: Table, at: str) -> None:
        """Refuses hours and seconds where the time of what writes a table is an int."""
        if table.counts is not None and self.span is not None:
            raise other_unit(f"{self} over table {table.name}", "its size", table.counts.name, at)

    def __repr__(self) -> str:
        return self.text


def _size(given: object, what: str) -> int:
    """A time as the engine has it. A plain int is in the unit of an int time column."""
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


def sliding(
    size: str | int | dt.timedelta, *, slide: str | int | dt.timedelta | None = None
) -> Window:
    """The last ``size`` of event time, up to and with the event.

    With ``slide`` it is the last whole window that ended at a multiple of ``slide``.
    """
    us = _size(size, "size")
    if slide is None:
        return Window({"sliding": {"size_us": us}}, f"tm.sliding({size!r})", us, None, size)
    slide_us = _size(slide, "slide")
    json = {"hopping": {"size_us": us, "slide_us": slide_us}}
    text = f"tm.sliding({size!r}, slide={slide!r})"
    return Window(json, text, us + slide_us, None, size, slide)


def tumbling(
    size: str | int | dt.timedelta | None = None, *, versions: int | None = None
) -> Window:
    """The window that the event is in, so far: it began at the last multiple of ``size``.

    With ``versions=n`` each ``n``-th version of a row begins a window.
    """
    if (size is None) == (versions is None):
        raise ProgramError("tm.tumbling takes a size or versions=", "", here())
    if versions is not None:
        json = {"tumbling_versions": {"versions": _count(versions, "versions")}}
        return Window(json, f"tm.tumbling(versions={versions})", None, versions)
    us = _size(size, "size")
    return Window({"tumbling": {"size_us": us}}, f"tm.tumbling({size!r})", us, None, size)


def session(gap: str | int | dt.timedelta) -> Window:
    """Back from the event as long as versions are at most ``gap`` apart, within what is kept by
    time."""
    us = _size(gap, "gap")
    return Window({"session": {"gap_us": us}}, f"tm.session({gap!r})", us, None, gap)


def last(versions: int) -> Window:
    """The last versions of a row, so many."""
    json = {"last": {"versions": _count(versions, "tm.last's argument")}}
    return Window(json, f"tm.last({versions})", None, versions)


def checked(window: object, table: Table, at: str) -> Window:
    """The window, if the table's history holds it."""
    if not isinstance(window, Window):
        raise ProgramError(
            f"over takes a window, not {window!r}", 'write tm.sliding("10s"), tm.last(100), ...', at
        )
    kept_us, kept = table.history or (None, None)
    if table.history is None:
        wanted = window.needs_versions or '"..."'
        raise ProgramError(
            f"table {table.name} keeps no history to read {window} over",
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


#: Makes what is asked for: the column, if it is of one, and the aggregate.
Read = Callable[["str | None", Json], Any]


class OverColumn:
    """A column of the versions in a window, or of the rows in a range."""

    __slots__ = ("_name", "_read")

    def __init__(self, read: Read, name: str) -> None:
        self._read = read
        self._name = name

    def sum(self) -> Any:
        """The sum; 0 of nothing."""
        return self._read(self._name, "sum")

    def avg(self) -> Any:
        """The mean; null of nothing."""
        return self._read(self._name, "avg")

    def min(self) -> Any:
        """The smallest; null of nothing."""
        return self._read(self._name, "min")

    def max(self) -> Any:
        """The largest; null of nothing."""
        return self._read(self._name, "max")

    def count(self) -> Any:
        """How many are not null."""
        return self._read(self._name, "count")

    def first(self) -> Any:
        """The first; null of nothing."""
        return self._read(self._name, "first")

    def last(self) -> Any:
        """The last; null of nothing."""
        return self._read(self._name, "last")


class Over:
    """Versions in a window, or rows of a range or a group: ``.column.sum()`` and so on."""

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
        """How many there are."""
        return self._read(None, "count")

    def fold(self, start: object, step: Callable[[Any, Any], object]) -> Any:
        """A state that begins as ``start``, a constant, and that each version, oldest first, makes
        ``step(state, version)`` of. The function is recorded once, as handlers are; it may use the
        state, the version's columns and constants.
        """
        at = here()
        return self._read(None, {"fold": fold(self._whose, self._schema, start, step, at)})

    def __iter__(self) -> Any:
        raise Untraceable("the rows of a range are not known yet")


def fold(
    whose: str, schema: Schema, start: object, step: Callable[[Any, Any], object], at: str
) -> Json:
    """A user's aggregate as the engine reads it."""
    from tidemill.trace import SymbolicEvent

    block = Block(whose, schema)
    first = block.const(start, at)
    if first.ty is None:
        raise ProgramError("a fold begins with a constant that is not null", "", at)
    state = block.push({"var": 0}, first.ty, False, at)
    result = block.lift(step(state, SymbolicEvent(block)), at)
    if result.ty != first.ty or result.nullable:
        raise ProgramError(
            f"the fold begins with a {first.ty}, but goes on with "
            f"a {'nullable ' if result.nullable else ''}{result.ty or 'null'}",
            "bring both to one type with tm.cast(x, type), and nulls with tm.coalesce",
            at,
        )
    return {"exprs": block.json(), "start": first.id, "step": result.id, "_type": first.ty}


def result_type(whose: str, spec: Column, aggregate: Json, at: str | None) -> tuple[DataType, bool]:
    """The type of what is made of a column, and whether it may be null."""
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
    """An aggregate without what only the tracer knows."""
    if not isinstance(aggregate, dict):
        return aggregate
    return {"fold": {k: v for k, v in aggregate["fold"].items() if k != "_type"}}
