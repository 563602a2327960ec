"""Tracing: a handler is called once with symbolic values, and its operations are recorded.

The engine executes the recording without Python. After a write to a row, values of all rows of the
same table are read again, because two keys may be equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tidemill import _native, mixed
from tidemill.context import inside
from tidemill.errors import Abort, Error, ProgramError, Untraceable
from tidemill.expr import Block, Traced, is_symbolic
from tidemill.source import here, is_library, raised_at, shown, silent_mistakes
from tidemill.types import BOOL, MISSING, STR, Json, Schema
from tidemill.window import Over, OverColumn, Window, checked, plain, result_type

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.index import Index
    from tidemill.owned import OwnedWindow
    from tidemill.stream import Stream
    from tidemill.table import Table


class NotTraced(Exception):
    """A function can't be traced. It has the reason (``why``) and the line (``at``).

    ``needed`` has the operations until then that only traced functions have, with their lines.
    """

    def __init__(self, why: str, at: str, needed: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(why)
        self.why = why
        self.at = at
        self.needed = list(needed)


class SymbolicEvent:
    """The event of a handler that is traced: its columns as attributes, or by ``e["name"]``."""

    __slots__ = ("_tidemill_block",)
    _tidemill_block: Block

    def __init__(self, block: Block) -> None:
        object.__setattr__(self, "_tidemill_block", block)

    def __getattr__(self, name: str) -> Any:
        if name == "keys" and name not in self._tidemill_block.event.index:
            return lambda: self._tidemill_block.event.names
        if name.startswith("__") and name not in self._tidemill_block.event.index:
            raise AttributeError(name)
        return self._tidemill_block.column(name, here())

    def __getitem__(self, name: str) -> Traced:
        return self._tidemill_block.column(name, here())

    def __setattr__(self, name: str, value: object) -> None:
        raise ProgramError("an event can't be changed", "", here())

    def __iter__(self) -> Iterator[str]:
        return iter(self._tidemill_block.event.names)

    def __repr__(self) -> str:
        return f"<event of {self._tidemill_block.owner}>"


class SymbolicRow:
    """A row of a handler that is traced."""

    # Names that no column can have.
    __slots__ = ("_tidemill_id", "_tidemill_recorder", "_tidemill_table")
    _tidemill_id: int
    _tidemill_recorder: Recorder
    _tidemill_table: Table

    def __init__(self, recorder: Recorder, table: Table, id: int) -> None:
        object.__setattr__(self, "_tidemill_recorder", recorder)
        object.__setattr__(self, "_tidemill_table", table)
        object.__setattr__(self, "_tidemill_id", id)

    def __getattr__(self, name: str) -> Traced:
        if name.startswith("__") and name not in self._tidemill_table.schema.index:
            raise AttributeError(name)
        return self._tidemill_recorder.read(self._tidemill_table, self._tidemill_id, name)

    def __getitem__(self, name: str) -> Traced:
        return self._tidemill_recorder.read(self._tidemill_table, self._tidemill_id, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._tidemill_recorder.set(self._tidemill_table, self._tidemill_id, name, value)

    def __setitem__(self, name: str, value: object) -> None:
        self._tidemill_recorder.set(self._tidemill_table, self._tidemill_id, name, value)

    def exists(self) -> Traced:
        """Returns whether the row exists now."""
        return self._tidemill_recorder.exists(self._tidemill_table, self._tidemill_id)

    def over(self, window: Window) -> Over:
        """Returns the versions of the row in a window: ``.over(tm.last(9)).column.sum()``."""
        return self._tidemill_recorder.over(self._tidemill_table, self._tidemill_id, window)

    def update(self, row: Mapping[str, object] | None = None, /, **columns: object) -> None:
        """Sets columns of the row; the transaction aborts if the row does not exist."""
        self._tidemill_recorder.update(
            self._tidemill_table, self._tidemill_id, {**(row or {}), **columns}
        )

    def delete(self) -> None:
        """Deletes the row, if it exists."""
        self._tidemill_recorder.write(self._tidemill_table, "delete", {"row": self._tidemill_id})

    def __bool__(self) -> bool:
        raise ProgramError(
            "'if' on a row can't be traced",
            "use row.exists() in tx.require(...), tm.where(...) or 'with tx.when(...):'",
            here(),
        )

    def __eq__(self, other: object) -> bool:
        raise ProgramError("rows can't be compared", "compare their columns", here())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<row of table {self._tidemill_table.name}>"


class When:
    """The block of ``with tx.when(cond):``, whose steps run only if the condition holds."""

    def __init__(self, recorder: Recorder, cond: Traced) -> None:
        self._recorder = recorder
        self._cond = cond

    def __enter__(self) -> None:
        self._recorder.conditions.append(self._cond)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        stopped = isinstance(error, Abort)
        if isinstance(error, Abort):
            # `raise tm.Abort` under a condition: for other events the function continues.
            self._recorder.abort(error)
        self._recorder.conditions.pop()
        return stopped


class SymbolicTx:
    """The transaction of a handler that is traced: its argument ``tx``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def require(self, cond: object, reason: object = "refused") -> None:
        """Records an abort with the reason, unless the condition holds."""
        self._recorder.require(cond, reason)

    def now(self) -> NoReturn:
        """Raises ``Untraceable``."""
        raise Untraceable("the clock is for functions that run with real values")

    def random(self) -> NoReturn:
        """Raises ``Untraceable``."""
        raise Untraceable("random numbers are for functions that run with real values")

    uuid = random

    def lookup(self, *_: object) -> NoReturn:
        """Raises ``Untraceable``."""
        raise Untraceable("lookups are for functions that run with real values")

    def external(self, external: Any, *_: object, **columns: object) -> NoReturn:
        """Raises ``Untraceable``."""
        self._recorder.own(getattr(external, "outbox", None))
        raise Untraceable("external work is for functions that run with real values")

    def when(self, cond: object) -> When:
        """Returns a block whose steps run only if the condition holds."""
        return self._recorder.when(cond)

    def emit(
        self, stream: Stream, row: Mapping[str, object] | None = None, /, **columns: object
    ) -> None:
        """Records the emission of an event into a stream."""
        self._recorder.emit(stream, {**(row or {}), **columns})


class Recorder:
    """The recording of one call of a handler with symbolic values."""

    def __init__(self, app: App, name: str, stream: str, event: Schema) -> None:
        self.app = app
        self.name = name
        self.block = Block(f"stream {stream}", event)
        self.rows: list[Json] = []
        self.steps: list[Json] = []
        self.conditions: list[Traced] = []
        #: The operations that only traced functions have, with their lines.
        self.needed: list[tuple[str, str]] = []
        #: The errors of the recording, which count even if the function catches them.
        self.noted: list[Exception] = []
        self.emits: set[Stream] = set()
        self.result: list[tuple[str, Traced]] | None = None
        self.result_at = ""
        #: The windows that the function reads, with their tables and lines.
        self.windows: list[tuple[Table, Window, str]] = []
        # Table, row and column of the values that were read, by the number of their node.
        self._columns: dict[int, tuple[Table, int, str]] = {}
        self._vars = 0
        self._row_ids: dict[tuple[int, tuple[int, ...]], int] = {}
        # The values that are still valid, by table, and by row and column. A write to a table
        # removes those of the table.
        self._held: dict[int, dict[tuple[int, int], Traced]] = {}

    def own(self, table: Table | None) -> None:
        """Refuses a table of another app."""
        if table is not None and table.app is not self.app:
            mixed.refuse_table(self.app, table, f"handler {self.name}", here())

    # Methods that tables call.

    def row(self, table: Table, key: tuple[object, ...]) -> SymbolicRow:
        """Returns a row by its key."""
        self.own(table)
        at = here()
        nodes = self._key(table, key, at)
        known = (table.id, tuple(nodes))
        id = self._row_ids.get(known)
        if id is None:
            id = self._row_ids[known] = len(self.rows)
            self.rows.append({"table": table.id, "key": nodes, "at": at})
        return SymbolicRow(self, table, id)

    def _key(self, table: Table, key: tuple[object, ...], at: str) -> list[int]:
        """Returns the nodes of a key, or of its leading columns."""
        nodes = []
        for value, index in zip(key, table.key_columns, strict=False):
            column = table.schema.columns[index]
            node = self.block.lift(value, at)
            if node.ty is None:
                raise ProgramError(f"the key of table {table.name} can't be null", "", at)
            if node.ty != column.ty:
                if not node.ty.stores_in(column.ty):
                    raise ProgramError(
                        f"key column '{column.name}' of table {table.name} is {column.ty}, but "
                        f"the key given is {node.ty}",
                        f"convert it with tm.cast(x, {column.ty})",
                        at,
                    )
                node = self.block.node("unary", {"cast": column.ty.json()}, [node], at)
            nodes.append(node.id)
        return nodes

    def insert(self, table: Table, values: Mapping[str, object], replace: bool) -> SymbolicRow:
        """Records the insertion of a row."""
        self.own(table)
        at = here()
        given = table.row_values(values, at)
        row = self.row(table, tuple(given[column] for column in table.key_columns))
        others = {c: v for c, v in given.items() if c not in table.key_columns}
        body = {"row": row._tidemill_id, "values": self._values(table, others, at)}
        self.write(table, "upsert" if replace else "insert", body)
        return row

    def contains(self, table: Table, key: tuple[object, ...]) -> bool:
        """Raises ``ProgramError``, because Python needs the truth value now."""
        self.own(table)
        raise ProgramError(
            f"'key in {table.name}' needs a truth value now, and it differs from event to event",
            f"write {table.name}[key].exists() in tx.require(...), tm.where(...) or "
            "'with tx.when(...):'",
            here(),
        )

    def refuse(self, error: Exception) -> None:
        """Does nothing: the error has been noted when it was made."""

    # Steps.

    def _step(self, op: Json, conditional: bool = True) -> None:
        step: Json = {"op": op, "at": here()}
        if conditional and self.conditions:
            step["when"] = self._condition().id
        self.steps.append(step)

    def _condition(self) -> Traced:
        # Outermost first. Each condition is evaluated only if those around it hold, as with `if`.
        result = self.conditions[-1]
        for outer in reversed(self.conditions[:-1]):
            at = here()
            no = self.block.const(False, at)
            result = self.block.node("where", None, [outer, result, no], at)
        return result

    def _new_var(self) -> int:
        self._vars += 1
        return self._vars - 1

    def read(self, table: Table, row: int, name: str) -> Traced:
        """Returns the current value of a row's column."""
        at = here()
        index = table.schema.find(f"table {table.name}", name, at)
        held = self._held.setdefault(table.id, {})
        if (row, index) not in held:
            var = self._new_var()
            self._step({"read": {"row": row, "column": index, "var": var}}, conditional=False)
            column = table.schema.columns[index]
            nullable = column.default is MISSING or column.default is None
            held[row, index] = self.block.push({"var": var}, column.ty, nullable, at)
            self._columns[held[row, index].id] = (table, row, name)
        return held[row, index]

    def over(self, table: Table, row: int, window: Window) -> Over:
        """Returns the versions of a row in a window."""
        at = here()
        window = checked(window, table, at)
        self.windows.append((table, window, at))

        def read(name: str | None, aggregate: Json) -> Traced:
            body = {"row": row, "window": window.json}
            return self._aggregate("window", body, table, name, aggregate)

        return Over(read, f"table {table.name}", table.schema)

    def over_value(self, value: Traced, window: Window) -> OverColumn:
        """Returns the versions of a row's column in a window, for a value that was read of it."""
        found = self._columns.get(value.id)
        if found is None:
            raise ProgramError(
                "over takes the column of a row, as in accounts[e.id].balance.over(...)", "", here()
            )
        table, row, name = found
        return self.over(table, row, window)[name]

    def scan(
        self,
        table: Table,
        start: tuple[object, ...],
        end: tuple[object, ...] | None,
        limit: int | None,
        reverse: bool,
    ) -> Over:
        """Returns the rows of a range of keys, to be aggregated."""
        self.own(table)
        at = here()
        if limit is not None:
            raise Untraceable("a limit is for rows that are iterated over")
        if reverse:
            raise Untraceable("a reverse order is for rows that are iterated over")
        if end is None and start:
            raise Untraceable("an empty text as prefix is for functions with real values")
        bounds = [self._key(table, bound, at) for bound in (start, end or ())]

        def read(name: str | None, aggregate: Json) -> Traced:
            self.needed.append((f"the aggregate of {table.name}.scan", here()))
            body = {"table": table.id, "from": bounds[0], "to": bounds[1]}
            return self._aggregate("range", body, table, name, aggregate)

        return Over(read, f"table {table.name}", table.schema)

    def find(self, index: Index, *_: object, **__: object) -> NoReturn:
        """Raises ``Untraceable``."""
        self.own(index.entries)
        raise Untraceable(f"{index} is for functions that run with real values")

    def window_insert(self, window: OwnedWindow, *_: object, **__: object) -> NoReturn:
        """Raises ``Untraceable``."""
        mixed.refuse(self.app, window, f"handler {self.name}", here())
        raise Untraceable(f"{window} is for functions that run with real values")

    window_advance = window_rows = window_groups = window_insert

    def _aggregate(
        self, kind: str, body: Json, table: Table, name: str | None, aggregate: Json
    ) -> Traced:
        at = here()
        column = table.key_columns[0]
        if name is not None:
            column = table.schema.find(f"table {table.name}", name, at)
        whose = f"table {table.name}"
        ty, nullable = result_type(whose, table.schema.columns[column], aggregate, at)
        var = self._new_var()
        step = {**body, "column": column, "aggregate": plain(aggregate), "var": var}
        self._step({kind: step}, conditional=False)
        return self.block.push({"var": var}, ty, nullable, at)

    def exists(self, table: Table, row: int) -> Traced:
        """Returns whether a row exists now."""
        held = self._held.setdefault(table.id, {})
        if (row, -1) not in held:
            var = self._new_var()
            self._step({"exists": {"row": row, "var": var}}, conditional=False)
            held[row, -1] = self.block.push({"var": var}, BOOL, False, here())
        return held[row, -1]

    def write(self, table: Table, kind: str, body: Json) -> None:
        """Records a write. The values that were read of its table are no longer valid."""
        self._step({kind: body})
        self._held.pop(table.id, None)

    def _values(self, table: Table, values: Mapping[int, object], at: str) -> Json:
        owner = f"table {table.name}"
        columns = table.schema.columns
        return [[c, self.block.fits(v, columns[c], owner, at).id] for c, v in values.items()]

    def set(self, table: Table, row: int, name: str, value: object) -> None:
        """Records the assignment of a column."""
        at = here()
        index = table.settable(name, at)
        node = self.block.fits(value, table.schema.columns[index], f"table {table.name}", at)
        self.write(table, "set", {"row": row, "column": index, "value": node.id})

    def update(self, table: Table, row: int, values: Mapping[str, object]) -> None:
        """Records the assignment of columns of a row that must exist."""
        at = here()
        by_column = {table.settable(name, at): value for name, value in values.items()}
        self.write(table, "update", {"row": row, "values": self._values(table, by_column, at)})

    def _bool(self, cond: object, what: str, at: str) -> Traced:
        if not is_symbolic(cond) and not isinstance(cond, bool):
            raise ProgramError(f"{what} takes a bool, not {cond!r}", "compare it with a value", at)
        node = self.block.lift(cond, at)
        if node.ty != BOOL:
            raise ProgramError(
                f"{what} takes a bool, not {node.ty or 'null'}", "compare it with a value", at
            )
        return node

    def require(self, cond: object, reason: object) -> None:
        """Records an abort unless the condition holds."""
        at = here()
        node = self._bool(cond, "tx.require", at)
        text = self.block.lift(reason, at)
        if text.ty != STR:
            raise ProgramError(
                f"the reason of tx.require is a text, not {text.ty or 'null'}",
                "write tm.cast(x, str)",
                at,
            )
        self._step({"require": {"cond": node.id, "reason": text.id}})

    def abort(self, error: Abort) -> None:
        """Records an abort under the current conditions of ``tx.when``."""
        at = here()
        no, reason = self.block.const(False, at), self.block.const(error.reason, at)
        self._step({"require": {"cond": no.id, "reason": reason.id}})

    def when(self, cond: object) -> When:
        """Returns a block of steps under a condition."""
        self.needed.append(("tx.when", here()))
        return When(self, self._bool(cond, "tx.when", here()))

    def emit(self, stream: Stream, values: Mapping[str, object]) -> None:
        """Records the emission of an event."""
        at = here()
        stream = _stream(stream, at)
        mixed.refuse(self.app, stream, f"handler {self.name}", at)
        stream.check_emittable(at)
        nodes = self._stream_values(stream.schema, values, f"stream {stream.name}", at)
        self.emits.add(stream)
        self._step({"emit": {"stream": stream.id, "values": nodes}})

    def _stream_values(
        self, schema: Schema, values: Mapping[str, object], owner: str, at: str
    ) -> list[int]:
        for name in values:
            schema.find(owner, name, at)
        nodes = []
        for column in schema.columns:
            if column.name in values:
                value = values[column.name]
            elif column.default is not MISSING:
                value = column.default
            elif column.nullable:
                value = None
            else:
                raise ProgramError(f"{owner}: column '{column.name}' has no value", "", at)
            nodes.append(self.block.fits(value, column, owner, at).id)
        return nodes

    def returned(self, result: object, at: str) -> None:
        """Records the function's result: one event, or nothing."""
        if result is None:
            return
        if not isinstance(result, Mapping):
            raise ProgramError(
                f"handler {self.name} returns {type(result).__name__}, not a dict",
                "return one output event as dict(column=value, ...), or nothing",
                at,
            )
        if not result or not all(isinstance(name, str) and name for name in result):
            raise ProgramError(
                f"handler {self.name} returns a dict without columns"
                if not result
                else f"handler {self.name} returns a dict whose keys are not names",
                "return dict(column=value, ...), or nothing",
                at,
            )
        self.result = [(name, self.block.lift(value, at)) for name, value in result.items()]
        self.result_at = at

    def emit_result(self, stream: int, schema: Schema) -> None:
        """Records the output event, once its stream is known."""
        assert self.result is not None
        owner = f"the output of handler {self.name}"
        nodes = self._stream_values(schema, dict(self.result), owner, self.result_at)
        op = {"emit": {"stream": stream, "values": nodes}}
        self.steps.append({"op": op, "at": self.result_at})

    def json(self) -> Json:
        """Returns the recording in the form that the engine reads."""
        return {"exprs": self.block.json(), "rows": self.rows, "steps": self.steps}

    def recorded(self) -> Json:
        """Returns the parts that two recordings of one function must have in common."""
        result = [(name, node.id) for name, node in self.result or []]
        return [self.json(), result]


def _stream(stream: object, at: str) -> Stream:
    from tidemill.stream import Stream

    if isinstance(stream, Stream):
        return stream
    raise ProgramError(f"tx.emit takes a stream, not {stream!r}", "", at)


def record(
    app: App, function: Callable[..., Any], name: str, stream: str, event: Schema, defined_at: str
) -> Recorder:
    """Calls a function with symbolic values, and returns the recording.

    Raises :class:`NotTraced` for a function that may still run with real values, and
    ``ProgramError`` for an error that real values would not mend.
    """
    recorder = Recorder(app, name, stream, event)
    file = defined_at.rpartition(":")[0]
    silent = silent_mistakes(function)
    if silent is not None:
        raise ProgramError(
            silent.what,
            f"{silent.help}; or run the function unchanged with opaque=True",
            f"{file}:{silent.line}",
        )
    try:
        with inside(recorder):
            result = function(SymbolicTx(recorder), SymbolicEvent(recorder.block))
            recorder.returned(result, defined_at)
        for hidden in recorder.noted:
            # The function has caught the error, so the recording is not what real values would do.
            raise hidden
    except Abort as error:
        recorder.abort(error)
    except Error:
        raise
    except NameError as error:
        raise ProgramError(
            f"handler {name}: {error}",
            "a handler is traced where it is declared: define what it uses above it",
            _place(error, defined_at),
        ) from None
    except Exception as error:
        place = _place(error, defined_at)
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, Untraceable):
            raise NotTraced(str(error), place, recorder.needed) from error
        if _is_limit(error):
            raise NotTraced(why, place, recorder.needed) from error
        raise ProgramError(
            f"handler {name} raised while it was traced: {why}",
            _near(error)
            or "mend the function, or declare it with @app.transaction(..., opaque=True) if it is "
            "right for real values only",
            place,
        ) from error
    return recorder


#: The names by which exceptions of Python and libraries mention symbolic values.
_SYMBOLIC = re.compile(r"\b(Traced|Deferred|SymbolicRow|SymbolicEvent)\b")


def _is_limit(error: BaseException) -> bool:
    """Returns whether symbolic values caused an exception, or one of its causes.

    All other exceptions are faults that real values would raise, too.
    """
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        named = isinstance(found, TypeError | AttributeError) and _SYMBOLIC.search(str(found))
        if isinstance(found, Untraceable) or named:
            return True
        seen.append(found)
        found = found.__cause__ or found.__context__
    return False


def _near(error: Exception) -> str:
    """Returns a hint with the attribute nearest to a missing one, if there is one."""
    if not isinstance(error, AttributeError) or not error.name:
        return ""
    near = _native.nearest(error.name, dir(error.obj))
    return f"did you mean '{near}'?" if near else ""


def record_twice(
    app: App, function: Callable[..., Any], name: str, stream: str, event: Schema, defined_at: str
) -> Recorder:
    """Records a function twice, and raises if the recordings differ."""
    first = record(app, function, name, stream, event, defined_at)
    try:
        second = record(app, function, name, stream, event, defined_at)
        same = first.recorded() == second.recorded()
        line = None if same else _first_difference(first, second)
    except NotTraced as error:
        same, line = False, error.at
    if not same:
        raise ProgramError(
            f"handler {name} did not do the same when it was traced again: it depends on something "
            "hidden, such as random numbers, the clock, or a variable that it changes",
            "a handler may depend on its event, on tables and on constants only",
            line or defined_at,
        )
    return first


def _first_difference(first: Recorder, second: Recorder) -> str | None:
    pairs: Sequence[tuple[list[Json], list[Json]]] = (
        (first.block.nodes, second.block.nodes),
        (first.rows, second.rows),
        (first.steps, second.steps),
    )
    for one, other in pairs:
        for a, b in zip(one, other, strict=False):
            if a != b:
                return str(a["at"])
        if len(one) != len(other):
            longer = one if len(one) > len(other) else other
            return str(longer[min(len(one), len(other))]["at"])
    return None


def _place(error: BaseException, default: str) -> str:
    found = raised_at(error)
    return f"{shown(found[0])}:{found[1]}" if found and not is_library(found[0]) else default
