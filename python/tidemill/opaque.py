"""Opaque handlers: functions that run with real values, so only a run tells which rows they use.

Rows are fresh copies. Within one transaction equal keys are one row object. Changed rows are
written back when the function has returned. On valid data the outcome is that of the traced
function, abort reasons included.

The two can differ in a fault (overflow, division by zero) of a value that is not needed. Python
computes the value anyway, the engine only when a step needs it. Also, Python's integers do not
overflow during a computation, only where they are stored.
"""

from __future__ import annotations

import datetime as dt
import decimal as dec
import json
import os
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tidemill import _native
from tidemill.context import local
from tidemill.deadline import Overdue
from tidemill.errors import Abort, BadValue, Error, Fault, LookupFailed, ProgramError
from tidemill.owned import SLIDE, OwnedWindow
from tidemill.source import here, raised_at, shown, unknown
from tidemill.stream import Stream
from tidemill.table import Table
from tidemill.types import MISSING
from tidemill.window import Over, Window, checked, plain, result_type

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.entity import Graph
    from tidemill.external import External
    from tidemill.remote import Calls
    from tidemill.stream import Handler
    from tidemill.trigger import Trigger

#: The decimal context of functions. With 60 digits sums and products of 64-bit decimals are exact,
#: as in the engine. Python's default of 28 digits would round some.
CONTEXT = dec.Context(prec=60, rounding=dec.ROUND_HALF_EVEN)

#: The separator between an exception's text and its place, in the form that the engine reads.
AT = "\x1e"

_MUTABLE = ("list", "any")

# Types whose equal values are always of one type, so that one can replace the other.
_PLAIN = frozenset((int, str))


class Event:
    """The event of an opaque handler: its columns as attributes, or by ``e["name"]``."""

    def __init__(self, names: tuple[str, ...], values: tuple[object, ...]) -> None:
        self.__dict__.update(zip(names, values, strict=True))

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise TypeError("an event can't be changed")

    def __getattr__(self, name: str) -> Any:
        if name == "keys":
            return self.__dict__.keys
        raise AttributeError(f"the event has no column '{name}'")

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __repr__(self) -> str:
        return f"<event {self.__dict__}>"


class Running(_native.Tx):
    """A transaction that runs an opaque handler: the methods that tables and windows use.

    The native base class has the other methods.
    """

    __slots__ = ("graph", "handler")
    handler: OpaqueHandler
    #: The calls of entity functions in the transaction; None before the first one.
    graph: Graph | Calls | None

    def over(self, row: _native.Row, table: Table, window: Window) -> Over:
        """Returns the versions of a row in a window."""
        window_json, whose = json.dumps(checked(window, table, here()).json), f"table {table.name}"

        def read(name: str | None, aggregate: Any) -> Any:
            column = table.key_columns[0] if name is None else table.schema.index[name]
            result_type(whose, table.schema.columns[column], aggregate, here())
            made = json.dumps(plain(aggregate))
            return self.read_window(row, column, window_json, made)

        return Over(read, whose, table.schema)

    def window_rows(self, window: OwnedWindow) -> list[Event]:
        """Returns the active rows of a window."""
        return [Event(window.schema.names, row) for row in self.rows_of_window(window.id)]

    def window_groups(self, window: OwnedWindow, group: tuple[object] | None) -> list[Event]:
        """Returns the groups of a window's active rows, or the given one only."""
        return [Event(window.names, row) for row in self.groups_of_window(window.id, group)]

    def refuse(self, error: Exception) -> None:
        """Aborts the transaction with an error of the function."""
        self.mark(*verdict(error))

    def fail(self, abort: Abort) -> NoReturn:
        """Aborts the transaction, also when the function catches the exception."""
        self.mark(*verdict(abort))
        raise abort


def settable(table: Table, name: str) -> int:
    """Returns the index of a column that a function sets; raises if it can't be set."""
    return table.settable(name, here())


def check_row(of: Stream | OwnedWindow, values: Mapping[str, object]) -> None:
    """Refuses values that do not fit the columns of a stream or a window."""
    for name in values:
        if name not in of.schema.index:
            raise TypeError(f"there is no column '{name}'; the columns are {of.schema}")
    for column in of.schema.columns:
        if column.name not in values and column.default is MISSING and not column.nullable:
            raise TypeError(f"column '{column.name}' has no value")


class Tx:
    """The transaction of a function that runs with real values: its argument ``tx``."""

    __slots__ = ("_running",)

    def __init__(self, running: Running) -> None:
        self._running = running

    def require(self, cond: object, reason: object = "refused") -> None:
        """Aborts the transaction unless a condition holds.

        Args:
            cond (bool): The condition.
            reason: The reason of the abort. The default is ``"refused"``.

        Raises:
            Abort: The condition does not hold. The transaction aborts, also when the function
                catches this exception.
            TypeError: The condition is not a bool.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("tickets")
            >>> sold = app.table("sold", key="id", id=str, at=tm.timestamp, seat=int)
            >>> @app.procedure
            ... def sell(tx):
            ...     tx.require(False, "sold out")
            >>> with app.start() as mill:
            ...     try:
            ...         mill.call(sell)
            ...     except tm.Abort as abort:
            ...         str(abort)
            'sold out'
        """
        if cond is True:
            return
        if cond is None or (cond is False and reason is None):
            self._running.fail(BadValue("null where a value is needed"))
        if cond is not False:
            # numpy's bools are fine; ~True is the int -2, which Python takes for true.
            if type(cond).__name__ not in ("bool", "bool_"):
                raise TypeError(
                    f"tx.require takes a bool, not {cond!r}; with real values write 'not x' or "
                    "tm.not_(x) instead of '~x'"
                )
            if cond:
                return
        self._running.fail(Abort(str(reason)))

    def when(self, cond: object) -> NoReturn:
        """Raises ``TypeError``: with real values write a plain ``if``."""
        raise TypeError("tx.when is for traced functions: in an opaque function write 'if'")

    def emit(
        self, stream: Stream, row: Mapping[str, object] | None = None, /, **columns: object
    ) -> None:
        """Emits an event into a stream.

        Args:
            stream: The stream. The function's code names it, or its declaration has it in
                ``emits=``.
            row: Values by column, as a dict. The default is none.
            **columns: More values by column. They win over ``row``.

        Raises:
            TypeError: The stream is not known as one that the function emits into, a column is
                unknown, or a value is missing.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("tickets")
            >>> sold = app.stream("sold", seat=int)
            >>> seats = app.table("seats", key="id", id=int)
            >>> @app.procedure
            ... def sell(tx, seat: int):
            ...     seats.insert(id=seat)
            ...     tx.emit(sold, seat=seat)
            >>> with app.start() as mill:
            ...     mill.call(sell, seat=3)
            ...     mill.output(sold).rows()
            [{'seat': 3}]
        """
        handler = self._running.handler
        if stream not in handler.emits:
            if stream.app is not handler.app:
                raise TypeError(f"stream {stream.name} belongs to another app")
            raise TypeError(
                f"handler {handler.name} does not declare that it emits into stream "
                f"{stream.name}; write @app.transaction(..., emits=[{stream.name}])"
            )
        self._running.emit(stream, columns if row is None else {**row, **columns})

    def now(self) -> dt.datetime:
        """Returns the engine's clock, which is the time of the transaction's cut.

        It is the same whenever the transaction runs, also after a crash. The machine's clock is
        not.

        Returns:
            The time, in UTC.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("tickets")
            >>> sold = app.table("sold", key="id", id=str, at=tm.timestamp, seat=int)
            >>> @app.procedure
            ... def sell(tx):
            ...     return tx.now().tzinfo is not None
            >>> with app.start() as mill:
            ...     mill.call(sell)
            True
        """
        return cast(dt.datetime, self._running.now())

    def random(self) -> float:
        """Returns a pseudorandom number.

        It is a hash of the event, the handler, the app's ``seed``, and the number of earlier
        calls in the transaction. So it is the same whenever the transaction runs, and is no
        secret.

        Returns:
            A number from 0 to below 1.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("tickets")
            >>> sold = app.table("sold", key="id", id=str, at=tm.timestamp, seat=int)
            >>> @app.procedure
            ... def sell(tx):
            ...     return 0 <= tx.random() < 1
            >>> with app.start() as mill:
            ...     mill.call(sell)
            True
        """
        return (self._running.random()[0] >> 11) / (1 << 53)

    def external(
        self, external: External, row: Mapping[str, object] | None = None, /, **columns: object
    ) -> str:
        """Requests work of an external function (:meth:`tidemill.App.external`).

        The work begins when this transaction is durable.

        Args:
            external: The stream that ``@app.external`` returned.
            row: The request's values by column, as a dict. The default is none.
            **columns: More values by column. They win over ``row``.

        Returns:
            The id with which the function will be called.
        """
        key = str(self.uuid())
        external.outbox.insert({**(row or {}), **columns, "id": key})
        return key

    def lookup(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Calls a function that asks an outside service, a file or the clock.

        The answer is logged with the transaction. When the transaction runs again, also after a
        crash, the logged answer is used and the function is not called. The function must only
        read, because it may be called more than once, and for a transaction that aborts. It must
        not use tables. All later transactions wait for it, and its time counts for
        ``deadline_us``. For slow work, or for changes outside, use :meth:`tidemill.App.external`.

        Args:
            function: The function.
            *arguments: Its arguments. They and the answer are values of msgpack: None, bools,
                ints, floats, texts, bytes, lists and dicts.

        Returns:
            The answer, of at most a mebibyte.

        Raises:
            LookupFailed: The function raised. It is raised whenever the transaction runs.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("tickets")
            >>> sold = app.table("sold", key="id", id=str, at=tm.timestamp, seat=int)
            >>> def price_of(seat):
            ...     return 9  # ask a service here
            >>> @app.procedure
            ... def sell(tx):
            ...     return tx.lookup(price_of, "a")
            >>> with app.start() as mill:
            ...     mill.call(sell)
            9
        """
        named = f"{function.__module__}.{function.__qualname__}"
        question = named.encode() + _native.packed(arguments)

        def ask() -> bytes:
            # On several processes another thread calls this.
            outer, local.transaction = local.transaction, None
            asked, local.asks = local.asks, True
            try:
                with dec.localcontext(CONTEXT):
                    return b"+" + _native.packed(function(*arguments))
            except Overdue:
                raise
            except BaseException as error:
                # The exception is an answer, too; the lookup raises it again.
                return b"-" + described(error).encode()
            finally:
                local.transaction, local.asks = outer, asked

        answer = self._running.ask(question, ask)
        if answer[:1] == b"-":
            raise LookupFailed(answer[1:].decode())
        return _native.unpacked(answer[1:])

    def uuid(self) -> uuid.UUID:
        """Returns an identifier (UUID version 8), from the same hash as :meth:`random`.

        Returns:
            The identifier, which is the same whenever the transaction runs.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("tickets")
            >>> sold = app.table("sold", key="id", id=str, at=tm.timestamp, seat=int)
            >>> @app.procedure
            ... def sell(tx):
            ...     return len(str(tx.uuid()))
            >>> with app.start() as mill:
            ...     mill.call(sell)
            36
        """
        high, low = self._running.random()
        fields = (high << 64 | low) & ~(0xF << 76 | 0x3 << 62) | 0x8 << 76 | 0x2 << 62
        return uuid.UUID(int=fields)


class OpaqueHandler:
    """A user's function in the form that the engine calls.

    It takes an event and a transaction. It returns None, or kind and reason of an abort.
    """

    def __init__(self, function: Callable[..., Any], handler: Handler) -> None:
        self.names = handler.input.schema.names
        self.output = handler if handler.has_output else None
        self._prepare(handler.app, function, handler.name, handler.emits)

    def _prepare(
        self, app: App, function: Callable[..., Any], name: str, emits: Iterable[Stream]
    ) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.emits = set(emits)

    def __call__(self, event: tuple[object, ...], running: Running) -> tuple[str, str] | None:
        """Runs one transaction, and returns kind and reason if it aborts."""
        return self._run(running, self.event(event))

    def event(self, values: tuple[object, ...]) -> Event:
        """Returns an event in the form that the function takes."""
        return Event(self.names, values)

    def _run(self, running: Running, *given: object) -> tuple[str, str] | None:
        running.handler, running.graph = self, None
        outer, local.transaction = local.transaction, running
        # A copy, so that a function's changes to it end with its transaction.
        context = dec.getcontext()
        dec.setcontext(CONTEXT.copy())
        try:
            result = self._call(running, given)
            if result is not None:
                self.emit_result(running, result)
            running.write_back()
        except BaseException as error:
            # Even SystemExit: a function can only abort its transaction.
            return verdict(error)
        finally:
            dec.setcontext(context)
            local.transaction = outer
            # The graph refers to `running`, which the engine reuses when nothing refers to it.
            running.graph = None
        return None

    def _call(self, running: Running, given: tuple[object, ...]) -> Any:
        result = self.function(Tx(running), *given)
        if result is None:
            return None
        return _native.finished(result) if isinstance(result, Coroutine) else result

    def emit_result(self, running: Running, result: object) -> None:
        """Emits the events that the function returned."""
        if self.output is None:
            raise TypeError(
                f"handler {self.name} returned {type(result).__name__}, but was declared to "
                "return nothing; declare its columns with out=dict(column=type, ...)"
            )
        for event in self._events(result):
            if not isinstance(event, Mapping):
                raise TypeError(f"handler {self.name} returned {type(event).__name__}, not a dict")
            running.emit(self.output, dict(event))

    def _events(self, result: object) -> Iterable[object]:
        return (result,)


class OpaqueProcedure(OpaqueHandler):
    """A user's procedure in the form that the engine calls: a batch of events for each stream."""

    def call_batch(
        self, batches: tuple[list[Event], ...], running: Running
    ) -> tuple[str, str] | None:
        """Runs one transaction, and returns kind and reason if it aborts."""
        return self._run(running, *batches)

    def _events(self, result: object) -> Iterable[object]:
        return result if isinstance(result, list | tuple) else (result,)


class OpaqueCall(OpaqueHandler):
    """A procedure that clients call, in the form that the engine calls.

    The columns of the event are its parameters, and the returned value is the reply.
    """

    def __call__(self, event: tuple[object, ...], running: Running) -> tuple[str, str] | None:
        """Runs one transaction, and returns kind and reason if it aborts."""
        return self._run(running, *event)

    def emit_result(self, running: Running, result: object) -> None:
        """Emits the reply, which is an event, too."""
        assert self.output is not None
        running.emit_value(self.output, result)


class OpaqueTrigger(OpaqueHandler):
    """A trigger in the form that the engine calls.

    Its deadline is that of the function that triggered it, if a function did.
    """

    def __init__(self, trigger: Trigger) -> None:
        self.output = None
        self._prepare(trigger.app, trigger.function, trigger.name, trigger.emits)
        self.on = trigger.on
        self.of_window: tuple[str, ...] = SLIDE
        if isinstance(self.on, OwnedWindow) and trigger.changes == ("insert",):
            self.of_window = self.on.schema.names

    def __call__(self, event: tuple[object, ...], running: Running) -> tuple[str, str] | None:
        """Runs the trigger in the transaction that triggered it."""
        return self._run(running, self._event(event))

    def _event(self, event: tuple[object, ...]) -> Event:
        if isinstance(self.on, OwnedWindow):
            return Event(self.of_window, event)
        if isinstance(self.on, Stream):
            return Event(self.on.schema.names, event)
        assert isinstance(self.on, Table)
        names, kind = self.on.schema.names, event[0]
        old = None if kind == "insert" else Event(names, event[1 : 1 + len(names)])
        new = None if kind == "delete" else Event(names, event[1 + len(names) :])
        return Event(("kind", "old", "new"), (kind, old, new))


def verdict(error: BaseException) -> tuple[str, str]:
    """Returns kind and reason of the abort for an exception; raises nothing itself."""
    try:
        kind, reason = "raised", ""
        if isinstance(error, Abort):
            kind, reason = error.kind, str(error.reason)
            if type(error) not in (Abort, BadValue, Fault):
                reason = f"{type(error).__name__}: {reason}"
        else:
            reason, place = described(error), placed(error)
            if place:
                reason = f"{reason}{AT}{place}"
        # Characters that UTF-8 can't encode, such as lone surrogates, are replaced.
        return kind, reason.encode("utf-8", "replace").decode()
    except Exception:
        return "raised", type(error).__name__


def described(error: BaseException) -> str:
    """Returns an exception's text without files and lines: it is the same on every machine."""
    text = error.what if isinstance(error, Error) else str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def placed(error: BaseException) -> str | None:
    """Returns file and line of the user's code that raised an exception, if any did."""
    place = raised_at(error)
    return f"{os.path.basename(place[0])}:{place[1]}" if place else None


def check_function(
    function: Callable[..., Any],
    name: str,
    at: str,
    takes: Sequence[str] = ("e",),
    may_be_async: bool = False,
) -> None:
    """Refuses a function that can't be a handler in any form.

    ``takes`` names the arguments after the first one.
    """
    import inspect

    if not inspect.isfunction(function):
        raise ProgramError(f"handler {name} is {function!r}, not a function", "", at)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ProgramError(f"handler {name} is a generator", "write a plain function", at)
    if inspect.iscoroutinefunction(function) and not may_be_async:
        raise ProgramError(
            f"handler {name} is a coroutine", "write a plain function, or make it a procedure", at
        )
    import tidemill

    for attribute, line in unknown(function, tidemill):
        near = _native.nearest(attribute, dir(tidemill))
        raise ProgramError(
            f"handler {name}: module 'tidemill' has no attribute '{attribute}'",
            f"did you mean '{near}'?" if near else "",
            f"{shown(function.__code__.co_filename)}:{line}",
        )
    try:
        inspect.signature(function).bind(None, *takes)
    except TypeError as error:
        given = ", ".join(("tx", *takes))
        raise ProgramError(
            f"handler {name} can't be called with ({given}): {error}",
            f"declare it as def {name}({given}):",
            at,
        ) from None
