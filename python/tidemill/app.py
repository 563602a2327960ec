"""Apps: tables, streams and handlers, and how to run them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from tidemill import _native, again, mixed, owned, procedure
from tidemill.columns import columns_at
from tidemill.config import apart, checked_settings, one_process, refuse_idle
from tidemill.entity import Entity
from tidemill.errors import ProgramError, SettingError
from tidemill.external import External
from tidemill.given import kept_of, parameters_of
from tidemill.index import Index
from tidemill.keywords import known_keywords
from tidemill.owned import Aggregates, OwnedWindow
from tidemill.source import here
from tidemill.stream import Handler, Stream
from tidemill.table import Table
from tidemill.trigger import Trigger
from tidemill.types import (
    INT,
    TIMESTAMP,
    Json,
    Schema,
    duration_us,
)

if TYPE_CHECKING:
    from tidemill.mill import Mill

Summary = TypeVar("Summary", bound=Callable[..., Mapping[str, Any]])


class App:
    """A program: shared tables, streams, and handlers that turn each event into a transaction.

    Args:
        name: The app's name. It must not be empty. ``tidemill run`` derives the name of the
            data directory from it.
        seed: The seed of ``tx.random`` and ``tx.uuid``, from 0 to 2**64 - 1. The default is 0.
            The numbers of a transaction follow from the seed and the event.
        version: The app's version, for the readers of its OpenAPI document. The default is none.

    Raises:
        ProgramError: The name is empty, the seed is out of range, or the version is no text.

    Example:
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

    @known_keywords
    def __init__(self, name: str, *, seed: int = 0, version: str | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise ProgramError(
                f"an app's name is a text, not {name!r}", 'write tm.App("name")', here()
            )
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise ProgramError(f"a seed is an int from 0 to 2**64 - 1, not {seed!r}", "", here())
        self.name, self.version = name, version
        #: The seed of ``tx.random`` and ``tx.uuid``; the event is the other part.
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
        self.indexes: dict[str, Index] = {}
        self.triggers: list[Trigger] = []
        #: The streams of firings, and their periods in microseconds.
        self.timers: list[tuple[Stream, int]] = []
        self.externals: list[External] = []
        #: The streams of the calls of procedures.
        self.calls: list[Stream] = []
        #: The role that clients of a procedure need, by the procedure's name.
        self.roles: dict[str, str] = {}
        self.summaries: list[Callable[..., Mapping[str, Any]]] = []

    @property
    def reads(self) -> bool:
        """Whether a stream reads files or a topic."""
        return any(source["files"] is not None or "kafka" in source for source in self.sources)

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
        """Declares a table: shared state with one row for each key.

        Args:
            name: The table's name, which no other table of the app has.
            key: The name of the key column, or several names.
            schema: More columns with their types: a dict, a dataclass or a TypedDict. It takes
                columns whose names are not valid keywords. The default is none.
            partition_prefix: The number of leading key columns that choose a row's partition.
                Rows with the same prefix are in the same partition. The default is all of them.
            history: The versions that the table retains of each row, so that windows can read
                them. ``"1h"`` retains an hour of event time, and ``1000`` retains that many
                versions. ``("1h", 1000)`` retains a version as long as either of the two does.
                Where the time of streams is an int, the time is an int in the same unit. The
                default is no history.
            ordered: Whether rows can be read by ranges of keys. The default is False.
            **columns: The columns with their types, such as ``id=int``.

        Returns:
            The table. Inside a transaction ``table[key]`` is a row.

        Raises:
            ProgramError: The name is taken, a column's type is unknown, or the key is not valid.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("ledger")
            >>> app.table("accounts", key="id", id=int, balance=tm.column(int, default=0))
            <table accounts: id: int, balance: int>
        """
        at = here()
        self._name("table", name, () if again.interactive() else self.tables.values(), at)
        made = columns_at(at, f"table {name}", schema, columns, self.table)
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
            raise ProgramError(
                f"table {name}: ordered={ordered!r} is not True or False",
                "write ordered=True, or leave it out",
                at,
            )
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
        table = again.same_table(self, table)
        self.tables[name] = table
        return table

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
        """Declares a window of rows that belongs to one procedure or opaque handler.

        The window holds the last ``rows`` rows that its owner inserted, or the rows of the last
        ``time``. For each value of the column ``group`` it has the number of active rows
        (``rows``) and the aggregates. The engine updates them with each row that enters or
        leaves, so reading them needs no pass over the window's rows.

        Args:
            name: The window's name, which no other window of the app has.
            rows: The size as a number of rows. Give this or ``time``.
            time: The size as a span of event time, such as ``"10s"``. Where the time of the
                owner's stream is an int, it is an int in the same unit.
            slide: The step by which the window slides: a number of rows, or a time. A window by
                time slides at multiples of it. The default is the whole size.
            group: The column whose values group the rows. The default is one group of all rows.
            sums: The columns whose sums each group has. ``sums=["weight"]`` stands for
                ``aggregates=lambda rows: {"weight": rows.weight.sum()}``. The default is none.
            aggregates: A function from the rows of a group to names and aggregates. There are
                sums and means of ints and decimals, counts, and the smallest, largest, first and
                last value of any column. The default is none.
            schema: More columns with their types, as in :meth:`table`. The default is none.
            **columns: The columns with their types.

        Returns:
            The window. Its owner declares it with ``owns=[window]``.

        Raises:
            ProgramError: Both or neither of ``rows`` and ``time`` are given, the slide is larger
                than the size, or a column can't be grouped or aggregated.

        Example:
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
        self._name("window", name, self.windows, at)
        made = columns_at(at, f"window {name}", schema, columns, self.window)
        window = owned.declare(self, name, made, rows, time, slide, group, sums, aggregates, at)
        self.windows.append(window)
        return window

    @known_keywords
    def trigger(
        self,
        on: Stream | Table | OwnedWindow,
        /,
        *,
        changes: Iterable[str] | None = None,
        name: str | None = None,
        emits: Iterable[Stream] = (),
    ) -> Callable[[Callable[..., Any]], Trigger]:
        """Makes a function a trigger, which runs inside the transaction that causes it.

        A transaction triggers it by an event into the stream, a write to the table, or a row or
        slide of the window. The function sees everything that the transaction has done so far.
        When the function aborts, the transaction aborts.

        The function is called with ``tx`` and one argument:

        - on a stream, the event. The trigger runs at once.
        - on a table, a change with ``kind`` (one of ``changes``), ``old`` and ``new``. Each of
          these is a row or None. The trigger runs when the function that wrote the rows has
          returned, once for each row that differs then.
        - on a window that slides, the ``end`` of the window (a time), the number of active
          ``rows``, and the number of rows that this slide ``added``. It runs at once.
        - on a window with ``changes=["insert"]``, the new row, before that row slides the window.

        Args:
            on: The stream, table or window that triggers the function.
            changes: The changes that trigger it. For a table they are any of ``"insert"``,
                ``"update"`` and ``"delete"``, and the default is all three. For a window it is
                ``["slide"]`` (the default) or ``["insert"]``. For a stream leave it out.
            name: The trigger's name. The default is the function's name.
            emits: The streams that the function emits into without naming them in its code.
                The default is none.

        Returns:
            A decorator, which returns the :class:`Trigger`.

        Raises:
            ProgramError: ``on`` belongs to another app, ``changes`` are not valid, or the
                function returns something.

        Example:
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
        mixed.refuse(self, on, "the trigger", at)

        def decorate(function: Callable[..., Any]) -> Trigger:
            chosen = str(name or getattr(function, "__name__", "trigger"))
            self._name("trigger", chosen, self.triggers, at)
            trigger = Trigger(self, function, on, changes, chosen, emits, at)
            again.replaced(self.triggers, trigger)
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
        """Declares a stream of events.

        Its events are read from files or topics, pushed by ``mill.send``, or emitted by handlers.

        Args:
            name: The stream's name, which no other stream of the app has.
            time: The name of the column with the event time, a timestamp or an int. Without it
                the time of an event is its arrival. The default is none.
            late: The fate of a late event. An event is late if it is further behind the newest
                event of its source than the source's ``out_of_orderness``. ``"side"`` (the
                default) moves it to the stream ``late``, ``"admit"`` executes it where its source
                stood, and ``"error"`` ends the run.
            schema: More columns with their types, as in :meth:`table`. The default is none.
            **columns: The columns with their types.

        Returns:
            The stream.

        Raises:
            ProgramError: The name is taken, a column's type is unknown, or ``time`` names no
                column that can be a time.

        Example:
            >>> app = App("ledger")
            >>> app.stream("payments", time="at", at=dt.datetime, amount=int)
            <stream payments: at: timestamp, amount: int>
        """
        at = here()
        self._name("stream", name, () if again.interactive() else self.streams, at)
        made = columns_at(at, f"stream {name}", schema, columns, self.stream)
        if late not in ("side", "admit", "error"):
            raise ProgramError(
                f"stream {name}: late={late!r} does not say what happens to late rows",
                'say "side", "admit" or "error"',
                at,
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
        same = again.same_stream(self, [made.json(), time, late, "input"], name, at)
        return Stream(self, name, made, "input", at, time, late) if same is None else same

    @overload
    def transaction(
        self, function: Stream, /, *, name: str | None = None, opaque: bool = False,
        out: object = None, emits: Iterable[Stream] = (), owns: object = (),
    ) -> Callable[[Callable[..., Any]], Handler]: ...  # fmt: skip
    @overload
    def transaction(self, function: Callable[..., Any], /) -> Handler: ...
    @known_keywords
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

        The function is *traced* now: it is called with symbolic values, and its operations are
        recorded. The engine then executes the recording without Python. A function that can't be
        traced runs as an *opaque* function, which is called with real values for each event.

        Args:
            stream (Stream): The stream whose events the function takes.
            name: The handler's name. The default is the function's name.
            opaque: Whether to skip tracing and run the function as an opaque one. The default is
                False.
            out: The columns that the function returns, with their types: a dict, a dataclass or
                a TypedDict. An opaque function that returns events needs it. The default is none.
            emits: The streams that an opaque function emits into without naming them in its code.
                The default is none.
            owns: The windows (:meth:`window`) that belong to the function. The default is none.

        Returns:
            A decorator, which returns the :class:`Handler`. The handler is also the stream of the
            returned events.

        Raises:
            ProgramError: The stream belongs to another app, the name is taken, or the function
                does something that no transaction may do.

        Example:
            >>> app = App("shop")
            >>> stock = app.table("stock", key="item", item=int, left=int)
            >>> orders = app.stream("orders", item=int, n=int)
            >>> @app.transaction(orders)
            ... def order(tx, e):
            ...     tx.require(stock[e.item].left >= e.n, "sold out")
            ...     stock[e.item].left -= e.n
            ...     return {"item": e.item, "left": stock[e.item].left}
            >>> order.path
            'traced'
        """
        at = here()
        if not isinstance(stream, Stream):
            raise ProgramError(
                "@app.transaction needs the stream whose events it takes",
                "write @app.transaction(stream)",
                at,
            )
        mixed.refuse(self, stream, "the handler", at)
        if isinstance(stream, Handler):
            stream._returns("handled")

        def decorate(function: Callable[..., Any]) -> Handler:
            chosen = str(name or getattr(function, "__name__", "handler"))
            self._name("handler", chosen, self.handlers, at)
            self._name("stream", chosen, self.streams, at)
            made = None if out is None else columns_at(at, f"out of {chosen}", out, {})
            return Handler(self, function, stream, chosen, at, opaque, made, emits, owns=owns)

        return decorate

    @overload
    def procedure(self, function: Callable[..., Any], /) -> Handler: ...
    @overload
    def procedure(
        self, *streams: Stream, name: str | None = None, out: object = None,
        emits: Iterable[Stream] = (), owns: object = (), role: str | None = None,
    ) -> Callable[[Callable[..., Any]], Handler]: ...  # fmt: skip
    @known_keywords
    def procedure(
        self,
        *streams: Any,
        name: str | None = None,
        out: object = None,
        emits: Iterable[Stream] = (),
        owns: object = (),
        role: str | None = None,
    ) -> Any:
        """Makes a function a procedure, which events of streams run or clients call.

        With streams, all events of a *round* are one transaction. A round is everything that one
        event of an input stream triggers. The function is called with ``tx`` and, for each
        stream, the list of its events in this round, with real values. A procedure runs after
        the functions that emit into its streams, so it runs once a round. Of two procedures that
        do not depend on each other, the one declared first runs first.

        Without streams, clients *call* the procedure with ``mill.call`` or :class:`Client`. Each
        call is one transaction, in the one order with all others. The parameters after ``tx``
        have types, as columns have, and may have defaults. The returned value is the reply.

        Args:
            *streams (Stream): The streams whose events the procedure takes. The default is none.
            name: The procedure's name. The default is the function's name.
            out: The columns of the events that the procedure returns, as one dict or a list of
                them. It is only for procedures with streams. The default is none.
            emits: The streams that the function emits into without naming them in its code.
                The default is none.
            owns: The windows (:meth:`window`) that belong to the procedure. The default is none.
            role: The role that the token of an HTTP client needs to call the procedure.
                ``mill.call`` needs no role. The default is none.

        Returns:
            A decorator, which returns the :class:`Handler`. ``@app.procedure`` without
            parentheses declares a procedure that clients call.

        Raises:
            ProgramError: A stream belongs to another app or is given twice, the name is taken, or
                an option does not fit a procedure of this kind.

        Example:
            >>> app = App("shop")
            >>> stock = app.table("stock", key="item", item=int, left=int)
            >>> orders, paid = app.stream("orders", item=int), app.stream("paid", item=int)
            >>> @app.procedure(orders)
            ... def check(tx, orders):
            ...     for order in orders:
            ...         tx.emit(paid, item=order.item)
            >>> check
            <procedure check>

            >>> @app.procedure
            ... def supply(tx, item: int, more: int = 1):
            ...     row = stock.insert(item=item, left=more)
            ...     return {"left": row.left}
            >>> with app.start() as mill:
            ...     mill.call(supply, item=7)
            {'left': 1}
        """
        return procedure.declare(self, streams, name, out, emits, owns, role, here())

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
        """Declares a kind of entity: rows with functions that clients and other entities call.

        The rows are in a table of the same name (:meth:`table`), which queries can read. A
        client's call is one transaction, together with all calls that its function makes. When
        any function in it raises, the whole transaction aborts, and the caller gets the reason.

        Args:
            name: The entity's name, which no other table or entity of the app has.
            key: The name of the key column, or several names.
            schema: More columns with their types, as in :meth:`table`. The default is none.
            partition_prefix: The number of leading key columns that choose an entity's partition,
                as in :meth:`table`. The default is all of them.
            ordered: Whether functions can read entities by ranges of keys. The default is False.
            **columns: The columns with their types.

        Returns:
            The kind of entity. Its functions are declared with :meth:`Entity.function`.

        Raises:
            ProgramError: The name is taken, a column's type is unknown, or the key is not valid.

        Example:
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
        if table.entity is None:
            table.entity = Entity(self, table)
        return table.entity

    @known_keywords
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
        """Makes a function a timer, which runs at the multiples of a period of the clock.

        Each run is one transaction, in the one order with all others. The function is called with
        ``tx`` and a firing, whose ``at`` is the time at which it was due. Firings are logged, so
        after a crash they are executed again at their place. Several firings that are overdue
        become one, the last. Nothing fires while the app does not run. On several processes, a
        start makes up for the last firing that was missed.

        Args:
            period: The period, such as ``"1s"``. The shortest is a millisecond.
            name: The timer's name. The default is the function's name.
            out: The columns that the function returns, with their types. The default is none.
            emits: The streams that the function emits into without naming them in its code.
                The default is none.
            owns: The windows (:meth:`window`) that belong to the function. The default is none.

        Returns:
            A decorator, which returns the :class:`Handler`.

        Raises:
            ProgramError: The period is not a duration or is too short, or the name is taken.

        Example:
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
            self._name("handler", chosen, self.handlers, at)
            self._name("stream", chosen, self.streams, at)
            columns = columns_at(at, f"firings of {chosen}", {"at": TIMESTAMP}, {})
            firings = Stream(self, f"{chosen}.firings", columns, "input", at)
            made = None if out is None else columns_at(at, f"out of {chosen}", out, {})
            handler = Handler(self, function, firings, chosen, at, True, made, emits, owns=owns)
            self.timers.append((firings, period_us))
            return handler

        return decorate

    @known_keywords
    def external(
        self,
        *,
        out: object = None,
        name: str | None = None,
        at_once: int = 4,
        retries: int = 3,
    ) -> Callable[[Callable[..., Any]], External]:
        """Makes a function external: it calls services, sends mail, or charges a card.

        A transaction requests the work with ``tx.external``. The request is a row of the table
        ``NAME.outbox``. Once that row is durable, the function is called with an id and the
        columns of the request. Calls run beside the transactions. The function returns a dict of
        the columns ``out``, or None where there are none. Request and result then arrive as one
        event of the stream that this decorator returns, exactly once. The work thus spans two
        transactions, and other transactions may run between them.

        After a crash the function may be called again with the same id. Pass the id to services
        as an idempotency key, by which they recognize a repeated request. The function must not
        use tables.

        Args:
            out: The columns that the function returns, with their types. The default is none.
            name: The function's name in the app. The default is the function's own name.
            at_once: The number of calls that run at the same time, 1 to 1000. The default is 4.
            retries: How often a call that raised is repeated, 0 to 1000. The default is 3. The
                waits between the calls grow from 0.1 to 30 seconds. After the last one the event
                has the exception's text in ``error`` and nulls in the columns ``out``.

        Returns:
            A decorator, which returns the stream of results.

        Raises:
            ProgramError: A number is out of range, the name is taken, or two columns have the
                same name.

        Example:
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
            self._name("stream", chosen, self.streams, at)
            asked = parameters_of(function, chosen, at, "external")
            owner = f"out of {chosen}"
            said = Schema([]) if out is None else columns_at(at, owner, out, {})
            made = External(self, function, chosen, asked, said, at_once, retries, at)
            self.externals.append(made)
            return made

        return decorate

    @known_keywords
    def nested(
        self, name: str, *procedures: Handler, before: Iterable[tuple[Handler, Handler]] = ()
    ) -> None:
        """Makes procedures one nested transaction: all of them commit, or none does.

        In a round they run one after the other, and each sees the writes of those before it.
        Nothing else runs in between. Their events are emitted when all have committed. A
        procedure that emits into a stream runs before the procedure that takes the stream.

        Args:
            name: The name of the nested transaction, which no other one has.
            *procedures: The procedures that belong to it.
            before: Pairs of procedures of which the first runs before the second. The default is
                none.

        Raises:
            ProgramError: The name is taken, or an argument is not a procedure of this app.

        Example:
            >>> app = App("trips")
            >>> orders = app.stream("orders", hotel=int, flight=int)
            >>> @app.procedure(orders)
            ... def book_hotel(tx, orders): ...
            >>> @app.procedure(orders)
            ... def book_flight(tx, orders): ...
            >>> app.nested("trip", book_hotel, book_flight)
        """
        procedure.nest(self, name, procedures, list(before), here())

    def summary(self, function: Summary) -> Summary:
        """Adds fields to the summary that ``tidemill run`` prints at its end.

        Args:
            function: A function that takes the :class:`Mill` and returns a dict of the fields.

        Returns:
            The function itself, so that this is a decorator.

        Example:
            >>> app = App("counter")
            >>> counts = app.table("counts", key="word", word=str, n=int)
            >>> @app.summary
            ... def words(mill):
            ...     return {"words": len(mill.table(counts))}
        """
        if again.interactive():
            again.replaced(self.summaries, function, lambda one: one.__qualname__)
        else:
            self.summaries.append(function)
        return function

    def _name(self, what: str, name: object, known: Iterable[Any], at: str) -> None:
        if not isinstance(name, str) or not name:
            raise ProgramError(
                f"a {what}'s name is a text, not {name!r}", 'give it a name, such as "payments"', at
            )
        again.check_name(self, what, name, {one.name: one for one in known}, at)

    def add_stream(self, stream: Stream) -> int:
        """Adds a stream to the app and returns its number."""
        self._name("stream", stream.name, (), stream.at)
        return again.add_stream(self, stream)

    # Running.

    @known_keywords
    def start(self, **settings: Any) -> Mill:
        """Starts the app in this process; use it with ``with``.

        All outputs are retained in memory, for :meth:`Mill.output`. Without a data directory
        everything else is in memory, too. With ``data_dir="folder"`` the app is durable: the next
        start with that folder continues where this run ended, also after a crash.

        Args:
            **settings: The settings, as in ``tidemill.toml``, such as ``workers=2``. With
                ``fresh=True`` the start empties the data directory. With ``upgrade=True`` an app
                that has changed continues with the data of its older version. A start is refused
                where functions give other results than they gave before a crash. With
                ``accept_replay=True`` it continues with the new results.

        Returns:
            The running app.

        Raises:
            SettingError: A setting is unknown, out of range, or means nothing here.
            ProgramError: The app is not complete, or a function gives other results than before.
            ResourceError: Another process uses the data directory, or memory or disk is full.
            IoError: A file or a connection can't be opened.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="word", word=str, n=tm.column(int, default=0))
            >>> words = app.stream("words", word=str)
            >>> @app.transaction(words)
            ... def count(tx, e):
            ...     counts[e.word].n += 1
            >>> with app.start(workers=1) as mill:
            ...     mill.send(words, [{"word": "tide"}, {"word": "tide"}])
            ...     mill.drain()
            ...     mill.table(counts)["tide"]
            {'word': 'tide', 'n': 2}
        """
        from tidemill.mill import Mill

        checked = checked_settings(settings, "app.start()", is_python=True)
        refuse_idle([("app.start()", checked)], one_process(checked))
        if "durable" in checked and checked["durable"] != "none" and "data_dir" not in checked:
            raise SettingError(
                f"app.start(): durable={checked['durable']!r} without a data directory",
                'name the directory: data_dir="folder"',
            )
        return Mill(self, checked, keep_all=True, push=True)

    def inspect(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns how the engine would execute the app, without running it.

        Args:
            settings: The settings, as in :meth:`start`. The default is none.

        Returns:
            The tables, streams, handlers and groups of the app, as ``tidemill inspect --json``
            prints them.

        Raises:
            SettingError: A setting is unknown or out of range.
            ProgramError: The app is not complete.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> words = app.stream("words", name=str)
            >>> @app.transaction(words)
            ... def count(tx, e):
            ...     counts[e.name].n += 1
            ...     return dict(name=e.name)
            >>> [handler["name"] for handler in app.inspect()["handlers"]]
            ['count']
        """
        checked = checked_settings(settings or {}, "app.inspect()", is_python=True)
        spec, opaques = self.spec(apart(checked)[0], keep_all=False, push=True)
        found: dict[str, Any] = json.loads(_native.inspect(json.dumps(spec), opaques))
        return found

    def spec(
        self, settings: Mapping[str, Any], *, keep_all: bool, push: bool
    ) -> tuple[Json, list[Any]]:
        """Returns the app in the form that the engine reads, and its opaque functions.

        Args:
            settings: The engine's settings.
            keep_all: Whether all outputs are retained in memory.
            push: Whether events will be sent. Streams without sources are pushed then.

        Returns:
            The app as JSON, and the opaque functions by their numbers.
        """
        from tidemill.spec import spec

        return spec(self, settings, keep_all, push)

    def __repr__(self) -> str:
        return f"<app {self.name}>"
