"""Opaque handlers: functions that run with real values and find their rows by running.

Rows are fresh copies. Within one transaction equal keys are one row object; what changed is
written back when the function has returned. On valid data the outcome is that of the traced
function, reasons included.

What can differ is a fault (overflow, division by zero) in a value that is not needed: Python
computes it where it stands, the engine only when a step asks for it. And Python's integers do not
overflow on the way, only where they are stored.
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
    from tidemill.entity import Graph
    from tidemill.external import External
    from tidemill.remote import Calls
    from tidemill.stream import Handler
    from tidemill.trigger import Trigger

#: Sums and products of 64-bit decimals are exact with this many digits, as they are in the engine;
#: Python's default of 28 would round some.
CONTEXT = dec.Context(prec=60, rounding=dec.ROUND_HALF_EVEN)

#: Stands between what a function raised and where, as the engine has them.
AT = "\x1e"

_MUTABLE = ("list", "any")

# Values of which equal ones are of one type, so that one stands for the other.
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
    """A transaction that is running an opaque handler: what tables, streams and windows ask for.
    What is not here is in the engine's half."""

    __slots__ = ("graph", "handler")
    handler: OpaqueHandler
    #: The calls of functions in it, once there are any.
    graph: Graph | Calls | None

    def over(self, row: _native.Row, table: Table, window: Window) -> Over:
        """The versions of a row in a window."""
        window_json, whose = json.dumps(checked(window, table, here()).json), f"table {table.name}"

        def read(name: str | None, aggregate: Any) -> Any:
            column = table.key_columns[0] if name is None else table.schema.index[name]
            result_type(whose, table.schema.columns[column], aggregate, here())
            made = json.dumps(plain(aggregate))
            return self.read_window(row, column, window_json, made)

        return Over(read, whose, table.schema)

    def window_rows(self, window: OwnedWindow) -> list[Event]:
        """The active rows of a window."""
        return [Event(window.schema.names, row) for row in self.rows_of_window(window.id)]

    def window_groups(self, window: OwnedWindow, group: tuple[object] | None) -> list[Event]:
        """The groups of a window's active rows, or the one that is given."""
        return [Event(window.names, row) for row in self.groups_of_window(window.id, group)]

    def refuse(self, error: Exception) -> None:
        """Aborts with what the function may not do."""
        self.mark(*verdict(error))

    def fail(self, abort: Abort) -> NoReturn:
        """Aborts. A function that catches the exception does not undo it."""
        self.mark(*verdict(abort))
        raise abort


def settable(table: Table, name: str) -> int:
    """The number of a column that a function sets, or what is wrong with that."""
    return table.settable(name, here())


def check_row(of: Stream | OwnedWindow, values: Mapping[str, object]) -> None:
    """Refuses values that are not the columns of a stream or a window."""
    for name in values:
        if name not in of.schema.index:
            raise TypeError(f"there is no column '{name}'; the columns are {of.schema}")
    for column in of.schema.columns:
        if column.name not in values and column.default is MISSING and not column.nullable:
            raise TypeError(f"column '{column.name}' has no value")


class Tx:
    """The transaction of an opaque handler."""

    __slots__ = ("_running",)

    def __init__(self, running: Running) -> None:
        self._running = running

    def require(self, cond: object, reason: object = "refused") -> None:
        """The transaction aborts with the reason unless the condition holds."""
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
        """Refused: with real values a plain ``if`` does it."""
        raise TypeError("tx.when is for traced functions: in an opaque function write 'if'")

    def emit(
        self, stream: Stream, row: Mapping[str, object] | None = None, /, **columns: object
    ) -> None:
        """Emits an event into a stream."""
        handler = self._running.handler
        if stream not in handler.emits:
            raise TypeError(
                f"handler {handler.name} was not known to emit into stream {stream.name}; say "
                f"@app.transaction(..., emits=[{stream.name}])"
            )
        self._running.emit(stream, columns if row is None else {**row, **columns})

    def now(self) -> dt.datetime:
        """The engine's clock: that of the cut which this transaction belongs to. It is the same
        whenever the transaction runs, also after a crash; the machine's clock is not."""
        return cast(dt.datetime, self._running.now())

    def random(self) -> float:
        """A number from 0 to below 1: a hash of the event, of who takes it, of the app's ``seed``,
        and of how often the transaction has asked. So it is the same whenever the transaction runs,
        and no secret."""
        return (self._running.random()[0] >> 11) / (1 << 53)

    def external(
        self, external: External, row: Mapping[str, object] | None = None, /, **columns: object
    ) -> str:
        """Asks for work outside (:meth:`tidemill.App.external`), which begins when this transaction
        is durable. Gives the id with which the function is called."""
        key = str(self.uuid())
        external.outbox.insert({**(row or {}), **columns, "id": key})
        return key

    def lookup(self, function: Callable[..., Any], *arguments: object) -> Any:
        """What ``function(*arguments)`` says, which may ask anybody: a service, a file, the clock.

        The answer is logged with the transaction and told again, without calling the function,
        whenever the transaction runs again, also after a crash. Answer and arguments are values of
        msgpack: None, bools, ints, floats, texts, bytes, lists and dicts, an answer of at most a
        mebibyte. The function only reads: it may be called more than once, and for a transaction
        that aborts. It does not use tables. All transactions behind this one wait for it, and its
        time counts for ``deadline_us``; what takes long, or changes something outside, is for
        :meth:`tidemill.App.external`. When it raises, so does this, whenever the transaction runs:
        :class:`tidemill.LookupFailed`."""
        named = f"{function.__module__}.{function.__qualname__}"
        question = named.encode() + _native.packed(arguments)

        def ask() -> bytes:
            # Asked by another thread on several processes.
            outer, local.transaction = local.transaction, None
            asked, local.asks = local.asks, True
            try:
                with dec.localcontext(CONTEXT):
                    return b"+" + _native.packed(function(*arguments))
            except Overdue:
                raise
            except BaseException as error:
                # It is an answer too, and raised where it was asked for.
                return b"-" + described(error).encode()
            finally:
                local.transaction, local.asks = outer, asked

        answer = self._running.ask(question, ask)
        if answer[:1] == b"-":
            raise LookupFailed(answer[1:].decode())
        return _native.unpacked(answer[1:])

    def uuid(self) -> uuid.UUID:
        """An identifier (UUID version 8), made as :meth:`random` is."""
        high, low = self._running.random()
        fields = (high << 64 | low) & ~(0xF << 76 | 0x3 << 62) | 0x8 << 76 | 0x2 << 62
        return uuid.UUID(int=fields)


class OpaqueHandler:
    """A user's function in the form that the engine calls: event and transaction in, nothing or
    (kind, reason) of an abort out."""

    def __init__(self, function: Callable[..., Any], handler: Handler) -> None:
        self.names = handler.input.schema.names
        self.output = handler if handler.has_output else None
        self._prepare(function, handler.name, handler.emits)

    def _prepare(self, function: Callable[..., Any], name: str, emits: Iterable[Stream]) -> None:
        self.function = function
        self.name = name
        self.emits = set(emits)

    def __call__(self, event: tuple[object, ...], running: Running) -> tuple[str, str] | None:
        """Runs one transaction."""
        return self._run(running, self.event(event))

    def event(self, values: tuple[object, ...]) -> Event:
        """An event as the function is given it."""
        return Event(self.names, values)

    def _run(self, running: Running, *given: object) -> tuple[str, str] | None:
        running.handler, running.graph = self, None
        outer, local.transaction = local.transaction, running
        # A copy: whatever a function sets in it is gone with its transaction.
        context = dec.getcontext()
        dec.setcontext(CONTEXT.copy())
        try:
            result = self._call(running, given)
            if result is not None:
                self.emit_result(running, result)
            running.write_back()
        except BaseException as error:
            # Even SystemExit: a function can abort its transaction, and nothing more.
            return verdict(error)
        finally:
            dec.setcontext(context)
            local.transaction = outer
            # It knows this very transaction, which is used again once nobody else knows it.
            running.graph = None
        return None

    def _call(self, running: Running, given: tuple[object, ...]) -> Any:
        result = self.function(Tx(running), *given)
        if result is None:
            return None
        return _native.finished(result) if isinstance(result, Coroutine) else result

    def emit_result(self, running: Running, result: object) -> None:
        """Emits what the function has returned."""
        if self.output is None:
            raise TypeError(
                f"handler {self.name} returned {type(result).__name__}, but was declared to "
                "return nothing; say out=dict(column=type, ...)"
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
        """Runs one transaction."""
        return self._run(running, *batches)

    def _events(self, result: object) -> Iterable[object]:
        return result if isinstance(result, list | tuple) else (result,)


class OpaqueCall(OpaqueHandler):
    """A procedure that is called: its parameters are the columns of the event, and what it returns
    is the reply."""

    def __call__(self, event: tuple[object, ...], running: Running) -> tuple[str, str] | None:
        """Runs one transaction."""
        return self._run(running, *event)

    def emit_result(self, running: Running, result: object) -> None:
        """The reply is an event, too."""
        assert self.output is not None
        running.emit_value(self.output, result)


class OpaqueTrigger(OpaqueHandler):
    """A trigger in the form that the engine calls. The deadline is that of the function which has
    set it off, if one has."""

    def __init__(self, trigger: Trigger) -> None:
        self.output = None
        self._prepare(trigger.function, trigger.name, trigger.emits)
        self.on = trigger.on
        self.of_window: tuple[str, ...] = SLIDE
        if isinstance(self.on, OwnedWindow) and trigger.changes == ("insert",):
            self.of_window = self.on.schema.names

    def __call__(self, event: tuple[object, ...], running: Running) -> tuple[str, str] | None:
        """Runs it in the transaction that has set it off."""
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
    """Kind and reason of the abort that an exception comes to; this raises nothing."""
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
        # What is no text for others is none here either.
        return kind, reason.encode("utf-8", "replace").decode()
    except Exception:
        return "raised", type(error).__name__


def described(error: BaseException) -> str:
    """An exception as others are told it: the same on every machine, so no files and no lines."""
    text = error.what if isinstance(error, Error) else str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def placed(error: BaseException) -> str | None:
    """Where in the user's files it was raised, for whoever mends them."""
    place = raised_at(error)
    return f"{os.path.basename(place[0])}:{place[1]}" if place else None


def check_function(
    function: Callable[..., Any],
    name: str,
    at: str,
    takes: Sequence[str] = ("e",),
    may_be_async: bool = False,
) -> None:
    """Refuses what can't be a handler in any form; ``takes`` names what it is given beside tx."""
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
