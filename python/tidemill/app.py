"""Apps: tables, streams and handlers, and how to run them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from tidemill import _native
from tidemill.config import apart, checked_settings, one_process, refuse_idle
from tidemill.entity import Entity, Function
from tidemill.errors import ProgramError, SettingError
from tidemill.external import External
from tidemill.given import kept_of, parameters_of, span
from tidemill.index import Index
from tidemill.opaque import check_function
from tidemill.owned import SLIDES_MAX, Aggregates, OwnedWindow, declared
from tidemill.source import blocking, globals_changed, globals_written, here
from tidemill.stream import Handler, Stream
from tidemill.table import Table
from tidemill.trigger import Trigger
from tidemill.types import (
    INT,
    TIMESTAMP,
    Column,
    Json,
    Schema,
    any_value,
    declared_columns,
    duration_us,
    optional,
)

if TYPE_CHECKING:
    from tidemill.mill import Mill

Summary = TypeVar("Summary", bound=Callable[..., Mapping[str, Any]])


class App:
    """A program: shared tables, streams, and handlers that turn each event into a transaction.

    >>> app = App("ledger")
    >>> accounts = app.table("accounts", key="id", id=int, balance=int)
    >>> payments = app.stream("payments", src=int, dst=int, amount=int)
    >>> @app.transaction(payments)
    ... def pay(tx, e):
    ...     src, dst = accounts[e.src], accounts[e.dst]
    ...     tx.require(src.balance >= e.amount, "insufficient funds")
    ...     src.balance -= e.amount
    ...     dst.balance += e.amount
    >>> pay
    <handler pay (traced)>
    """

    def __init__(self, name: str, *, seed: int = 0) -> None:
        if not isinstance(name, str) or not name:
            raise ProgramError(f"an app's name is a text, not {name!r}", "", here())
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise ProgramError(f"a seed is an int from 0 to 2**64 - 1, not {seed!r}", "", here())
        self.name = name
        #: What ``tx.random`` and ``tx.uuid`` are made of, beside the event.
        self.seed = seed
        self.at = here()
        self.tables: dict[str, Table] = {}
        self.streams: list[Stream] = []
        self.handlers: list[Handler] = []
        self.sources: list[Json] = []
        self.sinks: list[Json] = []
        self.kept: list[str] = []
        self.nestings: list[dict[str, Any]] = []
        self.windows: list[OwnedWindow] = []
        self.triggers: list[Trigger] = []
        #: The streams of firings, and their periods in microseconds.
        self.timers: list[tuple[Stream, int]] = []
        self.externals: list[External] = []
        #: The streams of the calls of procedures.
        self.calls: list[Stream] = []
        #: By procedure: the role that its clients need.
        self.roles: dict[str, str] = {}
        self.summaries: list[Callable[..., Mapping[str, Any]]] = []

    # Declarations.

    def table(
        self,
        name: str,
        /,
        *,
        key: str | Sequence[str],
        schema: object = None,
        partition_prefix: int | None = None,
        history: str | int | dt.timedelta | tuple[object, int | None] | None = None,
        ordered: bool = False,
        **columns: object,
    ) -> Table:
        """A table: shared state, one row for each key.

        ``key`` names the key column, or several. Columns are keywords; ``schema`` takes those
        whose names are no keywords, as a dict, a dataclass or a TypedDict. With
        ``partition_prefix=n`` the first ``n`` key columns choose a row's partition, so that rows
        with one prefix live together.

        With ``history`` a table keeps versions of its rows, so that windows can be read over them:
        for a time (``history="1h"``, by event time), by count (``history=1000`` of each row), or
        as long as either wants them (``history=("1h", 1000)``; the first is an int where streams
        have an int as time). With ``ordered=True`` rows can be read by ranges of keys.
        """
        at = here()
        self._name("table", name, self.tables, at)
        made = self._columns(f"table {name}", schema, columns, at)
        names = (key,) if isinstance(key, str) else tuple(key)
        if partition_prefix is not None and not 1 <= partition_prefix <= len(names):
            raise ProgramError(
                f"table {name}: partition_prefix is a number of leading key columns, "
                f"1 to {len(names)}",
                "",
                at,
            )
        kept = None if history is None else kept_of(f"table {name}", history, at)
        if not isinstance(ordered, bool):
            raise ProgramError(f"table {name}: ordered={ordered!r} is not True or False", "", at)
        table = Table(
            self, len(self.tables), name, names, made, partition_prefix, at, kept, ordered
        )
        span = history[0] if isinstance(history, tuple) else history
        table.span = span if isinstance(span, str | dt.timedelta) else None
        if not names:
            raise ProgramError(f"table {name} has no key", 'say key="column"', at)
        for index in table.key_columns:
            column = made.columns[index]
            problem = None
            if table.key_columns.count(index) > 1:
                problem = "is in the key twice"
            elif column.nullable or column.json()["default"] is not None:
                problem = "is in the key and may neither be null nor have a default"
            elif column.ty.kind in ("list", "any"):
                problem = f"is {column.ty}, which can't be part of a key"
            if problem:
                raise ProgramError(f"table {name}: '{column.name}' {problem}", "", at)
        self.tables[name] = table
        return table

    def add_index(
        self, table: Table, columns: Sequence[str], unique: bool, name: str | None, at: str
    ) -> Index:
        """Takes an index of a table into the app."""
        owner = f"table {table.name}"
        indexed = [table.schema.find(owner, column, at) for column in columns]
        for place in indexed:
            ty = table.schema.columns[place].ty
            if ty.kind in ("list", "any"):
                raise ProgramError(
                    f"{owner}: '{table.schema.columns[place].name}' is {ty}, which can't be "
                    "indexed",
                    "",
                    at,
                )
        if len(set(indexed)) < len(indexed):
            raise ProgramError(f"{owner}: an index has each column once", "", at)
        chosen = name or f"{table.name}.by_{'_'.join(columns)}"
        self._name("table", chosen, self.tables, at)
        both = [*indexed, *(c for c in table.key_columns if c not in indexed)]
        made = [Column(table.schema.columns[c].name, table.schema.columns[c].ty) for c in both]
        key = [column.name for column in (made[: len(indexed)] if unique else made)]
        keeps = {"index": {"of": table.id, "columns": indexed}}
        # Entries live with their rows where both begin alike; elsewhere, those with equal values
        # live together.
        prefix = table.partition_prefix
        if prefix is None or indexed[:prefix] != list(table.key_columns[:prefix]):
            prefix = len(indexed)
        entries = self._kept(chosen, tuple(key), made, at, True, keeps, prefix)
        return Index(table, tuple(columns), entries, unique)

    def _kept(
        self,
        name: str,
        key: tuple[str, ...],
        columns: Sequence[Column],
        at: str,
        ordered: bool,
        keeps: Json,
        prefix: int | None = None,
    ) -> Table:
        """A table that the engine keeps."""
        self._name("table", name, self.tables, at)
        schema = Schema(columns)
        made = Table(self, len(self.tables), name, key, schema, prefix, at, None, ordered, keeps)
        self.tables[name] = made
        return made

    def window(
        self,
        name: str,
        /,
        *,
        rows: int | None = None,
        time: str | int | dt.timedelta | None = None,
        slide: str | int | dt.timedelta | None = None,
        group: str | None = None,
        sums: Iterable[str] = (),
        aggregates: Aggregates | None = None,
        schema: object = None,
        **columns: object,
    ) -> OwnedWindow:
        """A window that belongs to a procedure, or another function that runs with real values:
        the last ``rows`` that it has put there, or those of the last ``time``.

        It slides by ``slide`` rows, or by ``slide`` time at its multiples; without by its whole
        size. For each value of the column ``group`` its active rows are counted (``rows``), and
        what ``aggregates`` makes of them goes along: sums and means of ints and decimals, counts,
        and the smallest, largest, first and last value of any column. ``sums=["weight"]`` is
        ``aggregates=lambda rows: {"weight": rows.weight.sum()}``. All of it changes with each row
        that comes or goes, so reading it costs no pass over the window's rows.

        >>> app = App("vote")
        >>> votes, trend = app.stream("votes", candidate=int), app.stream("trend", leads=int)
        >>> recent = app.window("recent", rows=3, slide=1, group="candidate", candidate=int)
        >>> @app.procedure(votes, owns=[recent])
        ... def count(tx, votes):
        ...     for vote in votes:
        ...         recent.insert(candidate=vote.candidate)
        >>> @app.trigger(recent)
        ... def lead(tx, slide):
        ...     tx.emit(trend, leads=max(recent.groups(), key=lambda g: g.rows).candidate)
        >>> with app.start() as mill:
        ...     mill.send(votes, [{"candidate": c} for c in (1, 2, 2, 1, 1)])
        ...     mill.drain()
        ...     print(mill.output(trend).rows())
        [{'leads': 2}, {'leads': 2}, {'leads': 1}]
        """
        at = here()
        self._name("window", name, [w.name for w in self.windows], at)
        made = self._columns(f"window {name}", schema, columns, at)
        owner = f"window {name}"
        if (rows is None) == (time is None):
            raise ProgramError(
                f"{owner} has either rows= or time=", 'say rows=100, or time="10s"', at
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
                    f"each row would slide it {-(-size // by)} times; at most {SLIDES_MAX} are "
                    "allowed",
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
            tables.append(self._kept(f"{name}.{part}", key, kept, at, is_ordered, "window"))
        window = OwnedWindow(self, name, extent, made, group, found, tuple(tables), at)
        for what, given in (("time", time), ("slide", slide)):
            if isinstance(given, str | dt.timedelta):
                window.span = window.span or (what, given)
        self.windows.append(window)
        return window

    def trigger(
        self,
        on: Stream | Table | OwnedWindow,
        /,
        *,
        changes: Iterable[str] | None = None,
        name: str | None = None,
        emits: Iterable[Stream] = (),
    ) -> Callable[[Callable[..., Any]], Trigger]:
        """Makes a function run inside each transaction that emits into a stream, writes a table,
        fills a window or slides it. It sees what the transaction has done, and when it aborts,
        that does.

        The function is called with ``tx`` and the event; for a table with ``kind`` (of
        ``changes``: "insert", "update", "delete"), and the row ``old`` and ``new``, or None; for a
        window that slides with ``end`` (a time), the number of ``rows`` that are active and of
        those that ``came``; with ``changes=["insert"]`` on a window with the row that comes, before
        it slides the window. On a stream or a window it runs at once. On a table it runs when the
        function that has written its rows has returned, once for each row that is another then.

        >>> app = App("shop")
        >>> stock = app.table("stock", key="item", item=int, left=int)
        >>> low = app.stream("low", item=int)
        >>> @app.trigger(stock, changes=["update"])
        ... def watch(tx, change):
        ...     if change.new.left < 3 <= change.old.left:
        ...         tx.emit(low, item=change.new.item)
        >>> watch
        <trigger watch>
        """
        at = here()
        if not isinstance(on, Stream | Table | OwnedWindow):
            raise ProgramError(
                f"@app.trigger takes a stream, a table or a window, not {on!r}",
                "write @app.trigger(table)",
                at,
            )
        if on.app is not self:
            raise ProgramError(f"{on!r} belongs to another app", "", at)

        def decorate(function: Callable[..., Any]) -> Trigger:
            chosen = str(name or getattr(function, "__name__", "trigger"))
            self._name("trigger", chosen, [t.name for t in self.triggers], at)
            trigger = Trigger(self, function, on, changes, chosen, emits, at)
            self.triggers.append(trigger)
            return trigger

        return decorate

    def stream(
        self,
        name: str,
        /,
        *,
        time: str | None = None,
        late: Literal["side", "admit", "error"] = "side",
        schema: object = None,
        **columns: object,
    ) -> Stream:
        """A stream of events: read from files, pushed by ``mill.send``, or emitted by handlers.

        ``time`` names the column with the event time, a timestamp or an int; without it events
        have the time at which they arrive. ``late`` says what happens to an event whose time is
        before the newest one of its source, less the disorder: to a side stream, executed where its
        source stood, or the end of the run.
        """
        at = here()
        self._name("stream", name, [s.name for s in self.streams], at)
        made = self._columns(f"stream {name}", schema, columns, at)
        if late not in ("side", "admit", "error"):
            raise ProgramError(
                f"stream {name}: late={late!r}", 'it is "side", "admit" or "error"', at
            )
        if time is not None:
            if not isinstance(time, str):
                raise ProgramError(
                    f"stream {name}: time= names a column, and {time!r} is not a name",
                    "give a column that is called time in schema={...}",
                    at,
                )
            column = made.columns[made.find(f"stream {name}", time, at)]
            if column.ty not in (TIMESTAMP, INT) or column.nullable:
                raise ProgramError(
                    f"stream {name}: the time column '{time}' must be a timestamp or an int that "
                    f"is never null, not {'optional ' if column.nullable else ''}{column.ty}",
                    "",
                    at,
                )
        return Stream(self, name, made, "input", at, time, late)

    @overload
    def transaction(
        self, function: Stream, /, *, name: str | None = None, opaque: bool = False,
        out: object = None, emits: Iterable[Stream] = (), owns: object = (),
    ) -> Callable[[Callable[..., Any]], Handler]: ...  # fmt: skip
    @overload
    def transaction(self, function: Callable[..., Any], /) -> Handler: ...
    def transaction(
        self,
        stream: Any,
        /,
        *,
        name: str | None = None,
        opaque: bool = False,
        out: object = None,
        emits: Iterable[Stream] = (),
        owns: object = (),
    ) -> Any:
        """Makes a function the handler of a stream: each event is one transaction.

        The function is called once, now, with symbolic values, and what it does is recorded and
        runs without Python. What can't be recorded runs as an *opaque* function, with real values;
        ``opaque=True`` asks for that. The columns that an opaque function returns are given by
        ``out``, and streams that it emits into by ``emits`` where its code does not name them.
        ``owns`` are the windows that belong to it.
        """
        at = here()
        if not isinstance(stream, Stream):
            raise ProgramError(
                "@app.transaction needs the stream whose events it takes",
                "write @app.transaction(stream)",
                at,
            )
        if stream.app is not self:
            raise ProgramError(f"stream {stream.name} belongs to another app", "", at)
        if isinstance(stream, Handler):
            stream._returns("handled")

        def decorate(function: Callable[..., Any]) -> Handler:
            chosen = str(name or getattr(function, "__name__", "handler"))
            self._name("handler", chosen, [h.name for h in self.handlers], at)
            self._name("stream", chosen, [s.name for s in self.streams], at)
            made = None if out is None else self._columns(f"out of {chosen}", out, {}, at)
            return Handler(self, function, stream, chosen, at, opaque, made, emits, owns=owns)

        return decorate

    @overload
    def procedure(self, function: Callable[..., Any], /) -> Handler: ...
    @overload
    def procedure(
        self, *streams: Stream, name: str | None = None, out: object = None,
        emits: Iterable[Stream] = (), owns: object = (), role: str | None = None,
    ) -> Callable[[Callable[..., Any]], Handler]: ...  # fmt: skip
    def procedure(
        self,
        *streams: Any,
        name: str | None = None,
        out: object = None,
        emits: Iterable[Stream] = (),
        owns: object = (),
        role: str | None = None,
    ) -> Any:
        """Makes a function a procedure, which streams push or clients call.

        With streams, all events of a *round* are one transaction. A round is what an event of an
        input stream sets off. The function is called with ``tx`` and, for each stream, the list of
        its events in this round, with real values. Procedures run after whoever feeds them, so
        that each runs once a round; of two that do not feed each other the one declared first runs
        first. What a procedure returns, one dict or a list of them, has the columns ``out``.
        ``owns`` are the windows that belong to it.

        >>> app = App("shop")
        >>> stock = app.table("stock", key="item", item=int, left=int)
        >>> orders, paid = app.stream("orders", item=int), app.stream("paid", item=int)
        >>> @app.procedure(orders)
        ... def check(tx, orders):
        ...     for order in orders:
        ...         tx.emit(paid, item=order.item)
        >>> check
        <procedure check>

        Without streams it is *called*, by ``mill.call``, and each call is one transaction, in the
        one order with all others. Its parameters have types, as columns have, and may have
        defaults; what it returns is the reply.

        >>> @app.procedure
        ... def supply(tx, item: int, more: int = 1):
        ...     row = stock.insert(item=item, left=more)
        ...     return {"left": row.left}
        >>> with app.start() as mill:
        ...     mill.call(supply, item=7)
        {'left': 1}

        With ``role="clerk"`` clients over HTTP need a token with that role; ``mill.call`` asks
        nobody.
        """
        at = here()
        if len(streams) == 1 and callable(streams[0]) and not isinstance(streams[0], Stream):
            return self._called(streams[0], None, emits, owns, None, at)
        if streams and role is not None:
            raise ProgramError(
                "only a procedure that is called needs a role",
                "leave role= away: streams are not called",
                at,
            )
        if not all(isinstance(stream, Stream) for stream in streams):
            raise ProgramError(
                "@app.procedure takes streams, or nothing where it is called by clients",
                "write @app.procedure(stream), or @app.procedure",
                at,
            )
        for stream in streams:
            if stream.app is not self:
                raise ProgramError(f"stream {stream.name} belongs to another app", "", at)
            if isinstance(stream, Handler):
                stream._returns("taken")
            if streams.count(stream) > 1:
                raise ProgramError(f"stream {stream.name} is given twice", "", at)

        def decorate(function: Callable[..., Any]) -> Handler:
            if not streams:
                if out is not None:
                    raise ProgramError(
                        "a procedure that is called replies with what it returns, of any type",
                        "leave out= away",
                        at,
                    )
                return self._called(function, name, emits, owns, role, at)
            chosen = str(name or getattr(function, "__name__", "procedure"))
            self._name("handler", chosen, [h.name for h in self.handlers], at)
            self._name("stream", chosen, [s.name for s in self.streams], at)
            made = None if out is None else self._columns(f"out of {chosen}", out, {}, at)
            first, *more = streams
            return Handler(self, function, first, chosen, at, True, made, emits, more, owns=owns)

        return decorate

    def _called(
        self,
        function: Callable[..., Any],
        name: str | None,
        emits: Iterable[Stream],
        owns: object,
        role: str | None,
        at: str,
    ) -> Handler:
        """A procedure that clients call."""
        chosen = str(name or getattr(function, "__name__", "procedure"))
        self._name("handler", chosen, [h.name for h in self.handlers], at)
        self._name("stream", chosen, [s.name for s in self.streams], at)
        given = parameters_of(function, chosen, at)
        calls, _, reply = self._calls(f"procedure {chosen}", chosen, [], given, role, at)
        return Handler(
            self, function, calls, chosen, at, True, reply, emits, called=True, owns=owns
        )

    def _calls(
        self,
        owner: str,
        called: str,
        keys: Sequence[Column],
        parameters: Mapping[str, object],
        role: str | None,
        at: str,
    ) -> tuple[Stream, Schema, Schema]:
        """The stream of calls of what clients call, who may need a role: its columns are ``keys``
        and the parameters. With it the columns of the parameters, and of the reply."""
        if role is not None and (not isinstance(role, str) or not role):
            raise ProgramError(f"{owner}: a role is a text, not {role!r}", "", at)
        columns = self._columns(owner, parameters, {}, at) if parameters else Schema(())
        reply = self._columns(f"reply of {called}", {"reply": optional(any_value)}, {}, at)
        calls = Stream(self, f"{called}.calls", Schema((*keys, *columns.columns)), "input", at)
        self.calls.append(calls)
        if role is not None:
            self.roles[called] = role
        return calls, columns, reply

    def entity(
        self,
        name: str,
        /,
        *,
        key: str | Sequence[str],
        schema: object = None,
        partition_prefix: int | None = None,
        ordered: bool = False,
        **columns: object,
    ) -> Entity:
        """Entities: rows that have functions, which clients call, and which call each other.

        Key and columns are those of a table (:meth:`table`), which has the same name, for queries.
        A call of a client is one transaction with all that its function calls: when anything in it
        raises, nothing of it happens, and the caller gets the reason.

        >>> app = App("trips")
        >>> hotel = app.entity("hotel", key="id", id=str, rooms=int)
        >>> trip = app.entity("trip", key="id", id=int, hotel=str)
        >>> @hotel.function(creates=True)
        ... async def build(self, ctx, rooms: int):
        ...     self.rooms = rooms
        >>> @hotel.function
        ... async def reserve(self, ctx, n: int = 1):
        ...     ctx.require(self.rooms >= n, "no rooms left")
        ...     self.rooms -= n
        ...     return self.rooms
        >>> @trip.function(creates=True)
        ... async def book(self, ctx, hotel_id: str, n: int):
        ...     left = await hotel[hotel_id].reserve(n)
        ...     self.hotel = hotel_id
        ...     return left
        >>> with app.start() as mill:
        ...     mill.call(build, id="inn", rooms=3)
        ...     mill.call(book, id=1, hotel_id="inn", n=2)
        ...     mill.call(book, id=2, hotel_id="inn", n=2)
        Traceback (most recent call last):
        ...
        tidemill.errors.Abort: no rooms left
        """
        more: dict[str, Any] = {"partition_prefix": partition_prefix, "ordered": ordered}
        table = self.table(name, key=key, schema=schema, **more, **columns)  # type: ignore[arg-type]
        return Entity(self, table)

    def add_function(
        self,
        entity: Entity,
        function: Callable[..., Any],
        name: str,
        creates: bool,
        emits: Iterable[Stream],
        role: str | None,
        at: str,
    ) -> Function:
        """Takes a function of an entity into the app."""
        chosen, table = f"{entity.name}.{name}", entity.table
        if name.startswith("_") or name in ("exists", "delete", "create", "scan", "function"):
            raise ProgramError(f"function {chosen}: the name '{name}' is taken", "", at)
        if name in table.schema.index:
            raise ProgramError(f"function {chosen}: '{name}' is a column of {entity.name}", "", at)
        self._name("handler", chosen, [h.name for h in self.handlers], at)
        self._name("stream", chosen, [s.name for s in self.streams], at)
        parameters = parameters_of(function, chosen, at, "function")
        for parameter in parameters:
            if parameter in table.key:
                raise ProgramError(
                    f"function {chosen}: '{parameter}' is the key of {entity.name}",
                    f"read self.{parameter}: whoever calls gives the key",
                    at,
                )
        check_function(function, chosen, at, ("ctx", *parameters), may_be_async=True)
        for written in chain(globals_written(function), globals_changed(function)):
            raise ProgramError(
                f"function {chosen} writes the variable '{written}' outside of itself",
                "keep what lasts in an entity or a table: variables are not undone when a "
                "transaction aborts, and others do not see them",
                at,
            )
        for waited in blocking(function):
            raise ProgramError(
                f"function {chosen} uses {waited}, which waits, and everybody else with it",
                "ask outside with ctx.lookup, which is logged, or have it done once the "
                "transaction is durable with ctx.external",
                at,
            )
        keys = [table.schema.columns[place] for place in table.key_columns]
        calls, columns, reply = self._calls(
            f"function {chosen}", chosen, keys, parameters, role, at
        )
        return Function(entity, function, chosen, calls, columns, reply, creates, emits, at)

    def every(
        self,
        period: str | int | dt.timedelta,
        /,
        *,
        name: str | None = None,
        out: object = None,
        emits: Iterable[Stream] = (),
        owns: object = (),
    ) -> Callable[[Callable[..., Any]], Handler]:
        """Makes the clock call a function: at the multiples of ``period``, each time as one
        transaction in the one order with all others.

        It is called with ``tx`` and a firing, whose ``at`` is the time at which it was due. Firings
        are logged, so that they are executed again at their place after a crash. Those that could
        not be taken in time come as one, the last. While nothing runs nothing fires; several
        processes make up for the last one when they start.

        >>> app = App("carts")
        >>> carts = app.table("carts", key="id", id=int, until=dt.datetime)
        >>> by_until = carts.index("until")
        >>> @app.every("1s")
        ... def sweep(tx, firing):
        ...     for cart in by_until.scan(None, firing.at, limit=100):
        ...         cart.delete()
        """
        at = here()
        try:
            period_us = duration_us(period, True, "every")
            if period_us < 1000:
                raise ProgramError(f"every={period!r}: a millisecond is the shortest period")
        except ProgramError as error:
            raise ProgramError(error.what, error.help, at) from None

        def decorate(function: Callable[..., Any]) -> Handler:
            chosen = str(name or getattr(function, "__name__", "timer"))
            self._name("handler", chosen, [h.name for h in self.handlers], at)
            self._name("stream", chosen, [s.name for s in self.streams], at)
            columns = self._columns(f"firings of {chosen}", {"at": TIMESTAMP}, {}, at)
            firings = Stream(self, f"{chosen}.firings", columns, "input", at)
            made = None if out is None else self._columns(f"out of {chosen}", out, {}, at)
            handler = Handler(self, function, firings, chosen, at, True, made, emits, owns=owns)
            self.timers.append((firings, period_us))
            return handler

        return decorate

    def external(
        self,
        *,
        out: object = None,
        name: str | None = None,
        at_once: int = 4,
        retries: int = 3,
    ) -> Callable[[Callable[..., Any]], External]:
        """Makes a function one that works outside: it calls services, sends mail, charges a card.

        A transaction asks for it with ``tx.external``; what it asked is a row of the table
        ``NAME.outbox``. Once that is durable the function is called, beside everything else and
        with at most ``at_once`` calls at a time, with an id and what it was asked. What it returns,
        a dict of the columns ``out``, comes back as an event of the stream that this is, once:
        together with what it was asked. So the work is split in two transactions, and between them
        anything may happen.

        After a crash the function may be called again with the same id, which is thus one for
        services to know repeated requests by (an idempotency key). When it raises it is called
        again, ``retries`` times, after waits that grow from 0.1 to 30 seconds; then the event has
        the text in ``error`` and nulls in ``out``. It does not use tables.

        >>> app = App("shop")
        >>> orders = app.table("orders", key="item", item=int, state=str)
        >>> @app.external(out={"paid": bool})
        ... def charge(id, item: int, cents: int):
        ...     return {"paid": cents < 100}
        >>> @app.procedure
        ... def order(tx, item: int, cents: int):
        ...     orders.insert(item=item, state="open")
        ...     tx.external(charge, item=item, cents=cents)
        >>> @app.transaction(charge, opaque=True)
        ... def charged(tx, e):
        ...     orders[e.item].state = "paid" if e.paid else e.error or "refused"
        >>> with app.start() as mill:
        ...     mill.call(order, item=7, cents=50)
        ...     summary = mill.finish()
        ...     mill.table("orders").rows()
        [{'item': 7, 'state': 'paid'}]
        """
        at = here()
        for what, number, least in (("at_once", at_once, 1), ("retries", retries, 0)):
            is_int = isinstance(number, int) and not isinstance(number, bool)
            if not is_int or not least <= number <= 1000:
                text = f"{what} is a number from {least} to 1000, not {number!r}"
                raise ProgramError(text, "", at)

        def decorate(function: Callable[..., Any]) -> External:
            chosen = str(name or getattr(function, "__name__", "external"))
            self._name("stream", chosen, [s.name for s in self.streams], at)
            asked = parameters_of(function, chosen, at, "external")
            owner = f"out of {chosen}"
            said = Schema([]) if out is None else self._columns(owner, out, {}, at)
            made = External(self, function, chosen, asked, said, at_once, retries, at)
            self.externals.append(made)
            return made

        return decorate

    def nested(
        self, name: str, *procedures: Handler, before: Iterable[tuple[Handler, Handler]] = ()
    ) -> None:
        """Makes procedures one transaction: all of them commit, or none does.

        In a round they run one after the other, each seeing what those before it have written;
        nobody else runs in between, and what they emit leaves when all have committed. Whoever
        emits runs before whoever takes it; pairs in ``before`` say more about the order.
        """
        at = here()
        self._name("nested transaction", name, [n["name"] for n in self.nestings], at)
        pairs = list(before)
        for procedure in [*procedures, *(p for pair in pairs for p in pair)]:
            if not isinstance(procedure, Handler) or not procedure.is_procedure:
                raise ProgramError(
                    f"nested transaction {name}: {procedure!r} is no procedure",
                    "write app.nested(name, first, second, ...) with what @app.procedure gave",
                    at,
                )
            if procedure.app is not self:
                raise ProgramError(f"{procedure!r} belongs to another app", "", at)
        self.nestings.append(
            {
                "name": name,
                "procedures": [procedure.index for procedure in procedures],
                "before": [[a.index, b.index] for a, b in pairs],
                "at": at,
            }
        )

    def summary(self, function: Summary) -> Summary:
        """Adds what a function of the mill returns, a dict, to the summary of ``tidemill run``."""
        self.summaries.append(function)
        return function

    def _name(self, what: str, name: object, known: Iterable[str], at: str) -> None:
        if not isinstance(name, str) or not name:
            raise ProgramError(f"a {what}'s name is a text, not {name!r}", "", at)
        if name in known:
            raise ProgramError(f"there are two {what}s named '{name}'", "", at)

    def _columns(
        self, owner: str, schema: object, columns: Mapping[str, object], at: str
    ) -> Schema:
        try:
            return declared_columns(owner, schema, columns)
        except ProgramError as error:
            raise ProgramError(error.what, error.help, error.at or at) from None

    def add_stream(self, stream: Stream) -> int:
        """Takes a stream into the app; gives its number."""
        self._name("stream", stream.name, [s.name for s in self.streams], stream.at)
        self.streams.append(stream)
        return len(self.streams) - 1

    # Running.

    def start(self, **settings: Any) -> Mill:
        """Starts the app in this process; use it with ``with``. All outputs are kept.

        ``settings`` are those of ``tidemill.toml``: ``workers=2``, say. With ``data_dir="folder"``
        everything is durable: the next start with that folder goes on where this one ended, be it
        by a crash; ``fresh=True`` empties it and starts anew, and ``upgrade=True`` lets an app that
        has changed go on with it. Where functions come to something else than before a crash the
        start is refused; ``accept_replay=True`` goes on with what they come to now. Without a
        directory everything is in memory.
        """
        from tidemill.mill import Mill

        checked = checked_settings(settings, "app.start()")
        refuse_idle([("app.start()", checked)], one_process(checked))
        if "durable" in checked and checked["durable"] != "none" and "data_dir" not in checked:
            raise SettingError(
                f"app.start(): durable={checked['durable']!r} without a data directory",
                'say where to keep things: data_dir="folder"',
            )
        return Mill(self, checked, keep_all=True, push=True)

    def inspect(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """How the engine will run the app; runs nothing."""
        checked = checked_settings(settings or {}, "app.inspect()")
        spec, opaques = self.spec(apart(checked)[0], keep_all=False, push=True)
        found: dict[str, Any] = json.loads(_native.inspect(json.dumps(spec), opaques))
        return found

    def spec(
        self, settings: Mapping[str, Any], *, keep_all: bool, push: bool
    ) -> tuple[Json, list[Any]]:
        """The app as the engine reads it, and its opaque functions.

        ``push`` says whether somebody will send: streams without files are then pushed.
        """
        from tidemill.spec import spec

        return spec(self, settings, keep_all, push)

    def __repr__(self) -> str:
        return f"<app {self.name}>"
