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
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tidemill import _native
from tidemill.context import inside
from tidemill.deadline import WATCH, Overdue
from tidemill.errors import Abort, Error, Fault, ProgramError
from tidemill.owned import SLIDE, OwnedWindow
from tidemill.source import here, raised_at
from tidemill.stream import Stream
from tidemill.table import Table
from tidemill.types import MISSING, Column, Schema
from tidemill.window import Over, Window, checked, plain, result_type

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.index import Index
    from tidemill.stream import Handler
    from tidemill.trigger import Trigger

# Sums and products of 64-bit decimals are exact with this many digits, as they are in the engine;
# Python's default of 28 would round some.
_CONTEXT = dec.Context(prec=60, rounding=dec.ROUND_HALF_EVEN)

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


class RowState:
    """A row of the transaction that is running; all row objects with its key share it."""

    __slots__ = (
        "before",
        "dirty",
        "existed",
        "exists",
        "key",
        "loaded",
        "made",
        "row",
        "table",
        "values",
    )

    def __init__(self, table: TableShape, key: tuple[object, ...]) -> None:
        self.table = table
        self.key = key
        self.values: list[Any] = []
        self.exists = False
        self.existed = False
        self.loaded = False
        self.dirty = False
        self.made = False
        self.before = ""
        #: The one row object that the function has of it.
        self.row: Row | None = None

    def missing(self) -> list[Any]:
        """What a missing row has: its key, defaults, null."""
        values = self.table.defaults()
        for value, index in zip(self.key, self.table.key_columns, strict=True):
            values[index] = value
        return values

    def mutable(self) -> str:
        """The values that a function can change in place, as a text that tells them apart."""
        return repr([self.values[i] for i in self.table.mutable]) if self.table.mutable else ""

    def __str__(self) -> str:
        shape, columns = self.table.shape, self.table.key_columns
        shown = [shape.show(c, v) for c, v in zip(columns, self.key, strict=True)]
        return f"{self.table.name}[{', '.join(shown)}]"


class TableShape:
    """A table, as rows of opaque handlers need it."""

    def __init__(self, table: Table) -> None:
        self.id = table.id
        self.name = table.name
        self.table = table
        self.key_columns = table.key_columns
        self.columns = table.schema.columns
        self.index = table.schema.index
        self.shape = _native.Shape(json.dumps(table.schema.json()))
        # Looking a line up for an error costs more than the whole transaction: only then.
        self.settable = {n: i for n, i in self.index.items() if i not in table.key_columns}
        self.mutable = [i for i, c in enumerate(self.columns) if c.ty.kind in _MUTABLE]
        self._defaults = [_default(self.shape, i, c) for i, c in enumerate(self.columns)]
        self._copied = [
            i for i in self.mutable if self._defaults[i] is not None and self.columns[i].default
        ]

    def defaults(self) -> list[Any]:
        """Fresh copies of the defaults."""
        values = list(self._defaults)
        for index in self._copied:
            values[index] = self.shape.store(index, values[index])
        return values


def _default(shape: _native.Shape, index: int, column: Column) -> Any:
    if column.default is MISSING or column.default is None:
        return None
    return shape.store(index, column.default)


class Row:
    """A row of an opaque handler: its columns as attributes, or by ``row["name"]``."""

    __slots__ = ("_state", "_tx")
    _state: RowState
    _tx: Running

    def __init__(self, tx: Running, state: RowState) -> None:
        object.__setattr__(self, "_tx", tx)
        object.__setattr__(self, "_state", state)

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __getitem__(self, name: str) -> Any:
        state = self._state
        if not state.loaded:
            self._tx.load(state)
        index = state.table.index.get(name)
        if index is None:
            raise AttributeError(f"table {state.table.name} has no column '{name}'")
        return state.values[index]

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __setitem__(self, name: str, value: object) -> None:
        state = self._tx.load(self._state)
        index = state.table.settable.get(name)
        if index is None:
            index = state.table.table.settable(name, here())
        self._tx.set(state, index, value)

    def exists(self) -> bool:
        """Whether the row is there now."""
        return self._tx.load(self._state).exists

    def over(self, window: Window) -> Over:
        """The versions of the row in a window, up to now: ``.over(tm.last(9)).column.sum()``."""
        return self._tx.over(self._state, window)

    def update(self, row: Mapping[str, object] | None = None, /, **columns: object) -> None:
        """Sets columns; the transaction aborts when the row is missing."""
        state = self._tx.load(self._state)
        values = {**(row or {}), **columns}
        for name in values:
            if name not in state.table.settable:
                state.table.table.settable(name, here())
        settable = {state.table.settable[name]: v for name, v in values.items()}
        if not state.exists:
            self._tx.refuse(Abort(f"{state} is missing"))
        for index, value in settable.items():
            self._tx.set(state, index, value)

    def delete(self) -> None:
        """Removes the row, if it is there."""
        self._tx.remove(self._tx.load(self._state))

    def __repr__(self) -> str:
        return f"<row {self._state}>"


class Running:
    """A transaction that is running an opaque handler: what tables ask for."""

    def __init__(self, handler: OpaqueHandler, native: _native.Tx) -> None:
        self.handler = handler
        self.native = native
        self.states: dict[tuple[object, ...], RowState] = {}
        # By keys as they were given, where they are of plain types: most are asked for again.
        self.known: dict[tuple[int, tuple[object, ...]], RowState] = {}
        self.refused: Abort | None = None

    def refuse(self, abort: Abort) -> NoReturn:
        """Aborts. A function that catches the exception does not undo it."""
        self.refused = self.refused or abort
        raise self.refused

    def store(self, table: TableShape, index: int, value: object) -> Any:
        """The value as it will be read back."""
        try:
            return table.shape.store(index, value)
        except Fault as fault:
            self.refuse(fault)

    def state(self, table: TableShape, key: tuple[object, ...]) -> RowState:
        """The one state of this key."""
        is_plain = all(type(value) in _PLAIN for value in key)
        if is_plain:
            known = self.known.get((table.id, key))
            if known is not None:
                return known
        stored: list[object] = []
        for value, index in zip(key, table.key_columns, strict=True):
            if value is None:
                self.refuse(Fault(f"null in the key of {table.name}"))
            # Adding 0.0 makes -0.0 the 0.0 that it is in a key.
            held = self.store(table, index, value)
            stored.append(held + 0.0 if isinstance(held, float) else held)
        # Every NaN is one key, and NaN is not equal to itself.
        same = (table.id, *("nan" if value != value else (value,) for value in stored))
        state = self.states.get(same)
        if state is None:
            state = self.states[same] = RowState(table, tuple(stored))
        if is_plain:
            self.known[table.id, key] = state
        return state

    def load(self, state: RowState) -> RowState:
        """Fetches the row, the first time."""
        if not state.loaded:
            held = self.native.get(state.table.id, state.key)
            state.loaded = True
            state.exists = state.existed = held is not None
            state.values = state.missing() if held is None else list(held)
            state.before = state.mutable()
        return state

    def set(self, state: RowState, index: int, value: object) -> None:
        """Sets a column; a missing row is made."""
        if not state.exists:
            state.values = state.missing()
            state.exists = True
            state.made = True
        state.values[index] = self.store(state.table, index, value)
        state.dirty = True

    def remove(self, state: RowState) -> None:
        """Removes a row."""
        state.exists = False
        state.dirty = True
        state.values = state.missing()
        state.before = state.mutable()

    # What a table asks for.

    def row(self, table: Table, key: tuple[object, ...]) -> Row:
        """A row by key; equal keys give one object."""
        state = self.state(self.handler.tables[table.id], key)
        if state.row is None:
            state.row = Row(self, state)
        return state.row

    def contains(self, table: Table, key: tuple[object, ...]) -> bool:
        """Whether a row is there."""
        return self.row(table, key).exists()

    def insert(self, table: Table, values: Mapping[str, object], replace: bool) -> Row:
        """Makes a row."""
        given = table.row_values(values, "")
        row = self.row(table, tuple(given[index] for index in table.key_columns))
        state = self.load(row._state)
        if state.exists and not replace:
            self.refuse(Abort(f"{state} exists already"))
        fresh = state.missing()
        for index, value in given.items():
            if index not in table.key_columns:
                fresh[index] = self.store(state.table, index, value)
        state.values = fresh
        state.exists = True
        state.dirty = True
        return row

    def over(self, state: RowState, window: Window) -> Over:
        """The versions of a row in a window."""
        table = state.table.table
        window_json = json.dumps(checked(window, table, here()).json)

        def read(name: str | None, aggregate: Any) -> Any:
            column = table.key_columns[0] if name is None else state.table.index[name]
            result_type(table, column, aggregate, here())
            self.flush(table)
            made = json.dumps(plain(aggregate))
            return self.native.window(table.id, state.key, column, window_json, made)

        return Over(read, table)

    def scan(
        self, table: Table, start: tuple[object, ...], end: tuple[object, ...], limit: int | None
    ) -> list[Row]:
        """The rows of a range of keys, in key order."""
        self.flush(table)
        shape = self.handler.tables[table.id]
        most = sys.maxsize if limit is None else max(limit, 0)
        rows = []
        for values in self.native.scan(table.id, start, end, most):
            row = self.row(table, tuple(values[index] for index in table.key_columns))
            state = row._state
            if not state.loaded:
                state.loaded = state.exists = state.existed = True
                state.values = list(values)
                state.before = state.mutable()
            assert state.table is shape
            rows.append(row)
        return rows

    def find(
        self,
        index: Index,
        start: tuple[object, ...],
        end: tuple[object, ...] | None,
        limit: int | None,
    ) -> list[Row]:
        """The rows of a range of an index, or those that begin with ``start``."""
        self.flush(index.table)
        most = sys.maxsize if limit is None else max(limit, 0)
        entries = index.entries.id
        if end is None:
            found = self.native.find(entries, start, most)
        else:
            found = self.native.scan(entries, start, end, most)
        return [self.row(index.table, tuple(e[place] for place in index.places)) for e in found]

    def window_insert(self, window: OwnedWindow, values: Mapping[str, object]) -> None:
        """Puts a row into a window."""
        row = stream_row(window.schema, values)
        with self.shown(window.id in self.handler.slid):
            self.native.window_insert(window.id, row)

    def window_advance(self, window: OwnedWindow) -> None:
        """Slides a window by time."""
        with self.shown(window.id in self.handler.slid):
            self.native.window_advance(window.id)

    def window_rows(self, window: OwnedWindow) -> list[Event]:
        """The active rows of a window."""
        return [Event(window.schema.names, row) for row in self.native.window_rows(window.id)]

    def window_groups(self, window: OwnedWindow, group: tuple[object] | None) -> list[Event]:
        """The groups of a window's active rows, or the one that is given."""
        names = (window.group or "all", "rows", *window.sums)
        found = self.native.window_groups(window.id, group)
        if group is not None and not found:
            shape = self.handler.tables[window.tables[2].id].shape
            found = [(*group, 0, *(shape.store(at, 0) for at in range(2, len(names))))]
        return [Event(names, row) for row in found]

    def emit(self, stream: int, row: tuple[object, ...]) -> None:
        """Emits an event."""
        with self.shown(stream in self.handler.watched):
            self.native.emit(stream, row)

    @contextmanager
    def shown(self, has_triggers: bool) -> Iterator[None]:
        """Something sets off triggers: they see what was written, and what they write is seen."""
        if has_triggers:
            for table in self.handler.tables:
                self.flush(table.table)
        yield
        if has_triggers:
            for state in self.states.values():
                state.loaded = state.loaded and state.dirty

    def flush(self, table: Table) -> None:
        """Writes what has changed in a table, for reads that the engine makes. A new row that still
        lacks a column waits."""
        for state in self.states.values():
            changed = state.loaded and (state.dirty or state.mutable() != state.before)
            if state.table.id != table.id or not changed:
                continue
            if state.exists:
                columns = zip(state.values, state.table.columns, strict=True)
                if any(value is None and not column.nullable for value, column in columns):
                    continue
                self.native.put(table.id, tuple(state.values))
            elif state.existed:
                self.native.delete(table.id, state.key)
            state.existed, state.dirty, state.before = state.exists, False, state.mutable()

    # The end.

    def write_back(self) -> None:
        """Writes what has changed."""
        for state in self.states.values():
            if not state.loaded or not (state.dirty or state.mutable() != state.before):
                continue
            if not state.exists:
                if not state.dirty:
                    # A list of a missing row was changed in place: that makes the row, as setting
                    # the column would.
                    state.exists = state.made = True
                else:
                    if state.existed:
                        self.native.delete(state.table.id, state.key)
                    continue
            if state.made:
                for index, column in enumerate(state.table.columns):
                    if state.values[index] is None and not column.nullable:
                        self.refuse(Fault(f"{state} has no value for column '{column.name}'"))
            self.native.put(state.table.id, tuple(state.values))


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
            self._running.refuse(Fault("null where a value is needed"))
        if cond is not False:
            # numpy's bools are fine; ~True is the int -2, which Python takes for true.
            if type(cond).__name__ not in ("bool", "bool_"):
                raise TypeError(
                    f"tx.require takes a bool, not {cond!r}; with real values write 'not x' or "
                    "tm.not_(x) instead of '~x'"
                )
            if cond:
                return
        self._running.refuse(Abort(str(reason)))

    def when(self, cond: object) -> NoReturn:
        """Refused: with real values a plain ``if`` does it."""
        raise TypeError("tx.when is for traced functions: in an opaque function write 'if'")

    def emit(
        self, stream: Stream, row: Mapping[str, object] | None = None, /, **columns: object
    ) -> None:
        """Emits an event into a stream."""
        handler = self._running.handler
        if stream.id not in handler.emits:
            raise TypeError(
                f"handler {handler.name} was not known to emit into stream {stream.name}; say "
                f"@app.transaction(..., emits=[{stream.name}])"
            )
        self._running.emit(stream.id, stream_row(stream.schema, {**(row or {}), **columns}))

    def now(self) -> dt.datetime:
        """The engine's clock: that of the cut which this transaction belongs to. It is the same
        whenever the transaction runs, also after a crash; the machine's clock is not."""
        return cast(dt.datetime, self._running.native.now())

    def random(self) -> float:
        """A number from 0 to below 1: a hash of the event, of who takes it, of the app's ``seed``,
        and of how often the transaction has asked. So it is the same whenever the transaction runs,
        and no secret."""
        return (self._running.native.random()[0] >> 11) / (1 << 53)

    def uuid(self) -> uuid.UUID:
        """An identifier (UUID version 8), made as :meth:`random` is."""
        high, low = self._running.native.random()
        fields = (high << 64 | low) & ~(0xF << 76 | 0x3 << 62) | 0x8 << 76 | 0x2 << 62
        return uuid.UUID(int=fields)


def stream_row(schema: Schema, values: Mapping[str, object]) -> tuple[object, ...]:
    """The values of a stream's columns, in their order."""
    for name in values:
        if name not in schema.index:
            raise TypeError(f"there is no column '{name}'; the columns are {schema}")
    row = []
    for column in schema.columns:
        if column.name in values:
            row.append(values[column.name])
        elif column.default is not MISSING:
            row.append(column.default)
        elif column.nullable:
            row.append(None)
        else:
            raise TypeError(f"column '{column.name}' has no value")
    return tuple(row)


class OpaqueHandler:
    """A user's function in the form that the engine calls: event and transaction in, nothing or
    (kind, reason) of an abort out."""

    def __init__(
        self, function: Callable[..., Any], handler: Handler, app: App, deadline_us: int = 0
    ) -> None:
        self.names = handler.input.schema.names
        self.output = handler if handler.has_output else None
        self._prepare(function, handler.name, handler.emits, app, deadline_us)

    def _prepare(
        self,
        function: Callable[..., Any],
        name: str,
        emits: Iterable[Stream],
        app: App,
        deadline_us: int,
    ) -> None:
        self.function = function
        self.name = name
        self.tables = [TableShape(table) for table in app.tables.values()]
        self.emits = {stream.id for stream in emits}
        #: The streams and windows that have triggers.
        self.watched = {t.on.id for t in app.triggers if isinstance(t.on, Stream)}
        self.slid = {t.on.id for t in app.triggers if isinstance(t.on, OwnedWindow)}
        self.deadline_us = deadline_us

    def __call__(self, event: tuple[object, ...], native: _native.Tx) -> tuple[str, str] | None:
        """Runs one transaction."""
        return self._run(native, Event(self.names, event))

    def _run(self, native: _native.Tx, *given: object) -> tuple[str, str] | None:
        if not self.deadline_us:
            return self._transact(native, *given)
        outcome, call = None, WATCH.begin(self.deadline_us / 1e6)
        try:
            try:
                outcome = self._transact(native, *given)
            finally:
                WATCH.end(call)
        except Overdue:
            # It came while the call was ending.
            WATCH.end(call)
        if call.fired:
            # Whatever it came to: how far it had come is the machine's business.
            return "overdue", f"the function took longer than {self.deadline_us} microseconds"
        return outcome

    def _transact(self, native: _native.Tx, *given: object) -> tuple[str, str] | None:
        running = Running(self, native)
        try:
            with inside(running), dec.localcontext(_CONTEXT):
                result = self.function(Tx(running), *given)
                if isinstance(result, Coroutine):
                    result = finished(result)
                if running.refused is not None:
                    return running.refused.kind, running.refused.reason
                if result is not None:
                    self._emit_result(running, result)
                running.write_back()
        except Abort as abort:
            abort = running.refused or abort
            return abort.kind, abort.reason
        except BaseException as error:
            # Even SystemExit: a function can abort its transaction, and nothing more.
            if running.refused is not None:
                return running.refused.kind, running.refused.reason
            return "raised", described(error)
        return None

    def _emit_result(self, running: Running, result: object) -> None:
        if self.output is None:
            raise TypeError(
                f"handler {self.name} returned {type(result).__name__}, but was declared to "
                "return nothing; say out=dict(column=type, ...)"
            )
        for event in self._events(result):
            if not isinstance(event, Mapping):
                raise TypeError(f"handler {self.name} returned {type(event).__name__}, not a dict")
            running.emit(self.output.id, stream_row(self.output.schema, event))

    def _events(self, result: object) -> Iterable[object]:
        return (result,)


class OpaqueProcedure(OpaqueHandler):
    """A user's procedure in the form that the engine calls: a batch of events for each stream."""

    def __init__(
        self, function: Callable[..., Any], handler: Handler, app: App, deadline_us: int = 0
    ) -> None:
        super().__init__(function, handler, app, deadline_us)
        self.batches = [stream.schema.names for stream in (handler.input, *handler.more)]

    def call_batch(
        self, batches: tuple[list[tuple[object, ...]], ...], native: _native.Tx
    ) -> tuple[str, str] | None:
        """Runs one transaction."""
        pairs = zip(self.batches, batches, strict=True)
        return self._run(native, *([Event(names, e) for e in events] for names, events in pairs))

    def _events(self, result: object) -> Iterable[object]:
        return result if isinstance(result, list | tuple) else (result,)


class OpaqueCall(OpaqueHandler):
    """A procedure that is called: its parameters are the columns of the event, and what it returns
    is the reply."""

    def __call__(self, event: tuple[object, ...], native: _native.Tx) -> tuple[str, str] | None:
        """Runs one transaction."""
        return self._run(native, *event)

    def _emit_result(self, running: Running, result: object) -> None:
        assert self.output is not None
        running.emit(self.output.id, (result,))


class OpaqueTrigger(OpaqueHandler):
    """A trigger in the form that the engine calls. The deadline is that of the function which has
    set it off."""

    def __init__(self, trigger: Trigger, app: App) -> None:
        self.output = None
        self._prepare(trigger.function, trigger.name, trigger.emits, app, 0)
        self.on = trigger.on

    def __call__(self, event: tuple[object, ...], native: _native.Tx) -> tuple[str, str] | None:
        """Runs it in the transaction that has set it off."""
        return self._run(native, self._event(event))

    def _event(self, event: tuple[object, ...]) -> Event:
        if isinstance(self.on, OwnedWindow):
            return Event(SLIDE, event)
        if isinstance(self.on, Stream):
            return Event(self.on.schema.names, event)
        assert isinstance(self.on, Table)
        names, kind = self.on.schema.names, event[0]
        old = None if kind == "insert" else Event(names, event[1 : 1 + len(names)])
        new = None if kind == "delete" else Event(names, event[1 + len(names) :])
        return Event(("kind", "old", "new"), (kind, old, new))


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing from outside."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise TypeError(
        "an async procedure awaits something that is not there yet: a transaction waits for "
        "nothing from outside; fetch it before, and send it as an event or a parameter"
    )


def described(error: BaseException) -> str:
    """An exception as the reason of an abort: the same on every machine, so no folders."""
    text = error.what if isinstance(error, Error) else str(error)
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place = raised_at(error)
    return f"{reason} ({os.path.basename(place[0])}:{place[1]})" if place else reason


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
    try:
        inspect.signature(function).bind(None, *takes)
    except TypeError as error:
        given = ", ".join(("tx", *takes))
        raise ProgramError(
            f"handler {name} can't be called with ({given}): {error}",
            f"declare it as def {name}({given}):",
            at,
        ) from None
