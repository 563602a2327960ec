"""Tracing: a handler is called once with symbolic values, and what it does is recorded.

The recording is data that the engine runs without Python. Values of rows are read again after any
write to a row of the same table, because two keys may turn out to be one row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tidemill import _native
from tidemill.context import inside
from tidemill.errors import Abort, Error, ProgramError, Untraceable
from tidemill.expr import Block, Traced, is_symbolic
from tidemill.source import here, is_library, raised_at, shown, silent_mistakes
from tidemill.types import BOOL, MISSING, STR, Json, Schema
from tidemill.window import Over, OverColumn, Window, checked, plain, result_type

if TYPE_CHECKING:
    from tidemill.stream import Stream
    from tidemill.table import Table


class NotTraced(Exception):
    """A function can't be traced: the line, and why."""

    def __init__(self, why: str, at: str) -> None:
        super().__init__(why)
        self.why = why
        self.at = at


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

    # Names that no column has.
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
        """Whether the row is there now."""
        return self._tidemill_recorder.exists(self._tidemill_table, self._tidemill_id)

    def over(self, window: Window) -> Over:
        """The versions of the row in a window, up to now: ``.over(tm.last(9)).column.sum()``."""
        return self._tidemill_recorder.over(self._tidemill_table, self._tidemill_id, window)

    def update(self, row: Mapping[str, object] | None = None, /, **columns: object) -> None:
        """Sets columns; the transaction aborts when the row is missing."""
        self._tidemill_recorder.update(
            self._tidemill_table, self._tidemill_id, {**(row or {}), **columns}
        )

    def delete(self) -> None:
        """Removes the row, if it is there."""
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
    """``with tx.when(cond):`` what is written, required and emitted inside happens only then."""

    def __init__(self, recorder: Recorder, cond: Traced) -> None:
        self._recorder = recorder
        self._cond = cond

    def __enter__(self) -> None:
        self._recorder.conditions.append(self._cond)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        stopped = isinstance(error, Abort)
        if isinstance(error, Abort):
            # `raise tm.Abort` under a condition: for other events the function goes on.
            self._recorder.abort(error)
        self._recorder.conditions.pop()
        return stopped


class SymbolicTx:
    """The transaction of a handler that is traced."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def require(self, cond: object, reason: object = "refused") -> None:
        """The transaction aborts with the reason unless the condition holds."""
        self._recorder.require(cond, reason)

    def now(self) -> NoReturn:
        """Not recorded."""
        raise Untraceable("the clock is for functions that run with real values")

    def random(self) -> NoReturn:
        """Not recorded."""
        raise Untraceable("random numbers are for functions that run with real values")

    uuid = random

    def lookup(self, *_: object) -> NoReturn:
        """Not recorded."""
        raise Untraceable("lookups are for functions that run with real values")

    def external(self, *_: object, **columns: object) -> NoReturn:
        """Not recorded."""
        raise Untraceable("external work is for functions that run with real values")

    def when(self, cond: object) -> When:
        """What happens in the block happens only where the condition holds."""
        return self._recorder.when(cond)

    def emit(
        self, stream: Stream, row: Mapping[str, object] | None = None, /, **columns: object
    ) -> None:
        """Emits an event into a stream."""
        self._recorder.emit(stream, {**(row or {}), **columns})


class Recorder:
    """What one call of a handler with symbolic values did."""

    def __init__(self, name: str, stream: str, event: Schema) -> None:
        self.name = name
        self.block = Block(f"stream {stream}", event)
        self.rows: list[Json] = []
        self.steps: list[Json] = []
        self.conditions: list[Traced] = []
        #: What it could not record, or was wrong: a function that catches it goes on as if nothing
        #: had been.
        self.noted: list[Exception] = []
        self.emits: set[Stream] = set()
        self.result: list[tuple[str, Traced]] | None = None
        self.result_at = ""
        #: The windows that were read, of which tables, and where.
        self.windows: list[tuple[Table, Window, str]] = []
        # Values that were read of a row's column, by their nodes.
        self._columns: dict[int, tuple[Table, int, str]] = {}
        self._vars = 0
        self._row_ids: dict[tuple[int, tuple[int, ...]], int] = {}
        # Reads that still hold: (row, column) -> value; a write forgets its table's.
        self._held: dict[int, dict[tuple[int, int], Traced]] = {}

    # What a table asks for.

    def row(self, table: Table, key: tuple[object, ...]) -> SymbolicRow:
        """A row by key."""
        at = here()
        nodes = self._key(table, key, at)
        known = (table.id, tuple(nodes))
        id = self._row_ids.get(known)
        if id is None:
            id = self._row_ids[known] = len(self.rows)
            self.rows.append({"table": table.id, "key": nodes, "at": at})
        return SymbolicRow(self, table, id)

    def _key(self, table: Table, key: tuple[object, ...], at: str) -> list[int]:
        """The nodes of a key, or of its leading columns."""
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
        """Makes a row."""
        at = here()
        given = table.row_values(values, at)
        row = self.row(table, tuple(given[column] for column in table.key_columns))
        others = {c: v for c, v in given.items() if c not in table.key_columns}
        body = {"row": row._tidemill_id, "values": self._values(table, others, at)}
        self.write(table, "upsert" if replace else "insert", body)
        return row

    def contains(self, table: Table, key: tuple[object, ...]) -> bool:
        """Refused: a truth value is needed now."""
        raise ProgramError(
            f"'key in {table.name}' needs a truth value now, and it differs from event to event",
            f"write {table.name}[key].exists() in tx.require(...), tm.where(...) or "
            "'with tx.when(...):'",
            here(),
        )

    def refuse(self, error: Exception) -> None:
        """What the function may not do: it has been noted."""

    # Steps.

    def _step(self, op: Json, conditional: bool = True) -> None:
        step: Json = {"op": op, "at": here()}
        if conditional and self.conditions:
            step["when"] = self._condition().id
        self.steps.append(step)

    def _condition(self) -> Traced:
        # Outermost first, and each only where those around it hold, as nested ifs would.
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
        """A column of a row, now."""
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
        """The versions of a row in a window."""
        at = here()
        window = checked(window, table, at)
        self.windows.append((table, window, at))

        def read(name: str | None, aggregate: Json) -> Traced:
            body = {"row": row, "window": window.json}
            return self._aggregate("window", body, table, name, aggregate)

        return Over(read, f"table {table.name}", table.schema)

    def over_value(self, value: Traced, window: Window) -> OverColumn:
        """The versions of a column that was read of a row."""
        found = self._columns.get(value.id)
        if found is None:
            raise ProgramError(
                "over takes the column of a row, as in accounts[e.id].balance.over(...)", "", here()
            )
        table, row, name = found
        return self.over(table, row, window)[name]

    def scan(
        self, table: Table, start: tuple[object, ...], end: tuple[object, ...], limit: int | None
    ) -> Over:
        """The rows of a range of keys."""
        at = here()
        if limit is not None:
            raise Untraceable("a limit is for rows that are iterated over")
        bounds = [self._key(table, bound, at) for bound in (start, end)]

        def read(name: str | None, aggregate: Json) -> Traced:
            body = {"table": table.id, "from": bounds[0], "to": bounds[1]}
            return self._aggregate("range", body, table, name, aggregate)

        return Over(read, f"table {table.name}", table.schema)

    def find(self, index: object, *_: object) -> NoReturn:
        """Not recorded."""
        raise Untraceable(f"{index} is for functions that run with real values")

    def window_insert(self, window: object, *_: object) -> NoReturn:
        """Not recorded."""
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
        """Whether a row is there, now."""
        held = self._held.setdefault(table.id, {})
        if (row, -1) not in held:
            var = self._new_var()
            self._step({"exists": {"row": row, "var": var}}, conditional=False)
            held[row, -1] = self.block.push({"var": var}, BOOL, False, here())
        return held[row, -1]

    def write(self, table: Table, kind: str, body: Json) -> None:
        """A step that changes a row: whatever was read of its table may have changed."""
        self._step({kind: body})
        self._held.pop(table.id, None)

    def _values(self, table: Table, values: Mapping[int, object], at: str) -> Json:
        owner = f"table {table.name}"
        columns = table.schema.columns
        return [[c, self.block.fits(v, columns[c], owner, at).id] for c, v in values.items()]

    def set(self, table: Table, row: int, name: str, value: object) -> None:
        """Sets a column."""
        at = here()
        index = table.settable(name, at)
        node = self.block.fits(value, table.schema.columns[index], f"table {table.name}", at)
        self.write(table, "set", {"row": row, "column": index, "value": node.id})

    def update(self, table: Table, row: int, values: Mapping[str, object]) -> None:
        """Sets columns of a row that must be there."""
        at = here()
        by_column = {table.settable(name, at): value for name, value in values.items()}
        self.write(table, "update", {"row": row, "values": self._values(table, by_column, at)})

    def _bool(self, cond: object, what: str, at: str) -> Traced:
        if not is_symbolic(cond) and not isinstance(cond, bool):
            raise ProgramError(f"{what} takes a bool, not {cond!r}", "compare it", at)
        node = self.block.lift(cond, at)
        if node.ty != BOOL:
            raise ProgramError(f"{what} takes a bool, not {node.ty or 'null'}", "compare it", at)
        return node

    def require(self, cond: object, reason: object) -> None:
        """Aborts unless the condition holds."""
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
        """Aborts in any case (under the conditions that hold here)."""
        at = here()
        no, reason = self.block.const(False, at), self.block.const(error.reason, at)
        self._step({"require": {"cond": no.id, "reason": reason.id}})

    def when(self, cond: object) -> When:
        """A block of steps under a condition."""
        return When(self, self._bool(cond, "tx.when", here()))

    def emit(self, stream: Stream, values: Mapping[str, object]) -> None:
        """Emits an event."""
        at = here()
        stream = _stream(stream, at)
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
        """What the function returned: one event, or nothing."""
        if result is None:
            return
        if not isinstance(result, Mapping):
            raise ProgramError(
                f"handler {self.name} returns {type(result).__name__}, not a dict",
                "return dict(column=value, ...): one output event; or nothing",
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
        """As the engine reads it."""
        return {"exprs": self.block.json(), "rows": self.rows, "steps": self.steps}

    def recorded(self) -> Json:
        """All that two recordings of one function must have in common."""
        result = [(name, node.id) for name, node in self.result or []]
        return [self.json(), result]


def _stream(stream: object, at: str) -> Stream:
    from tidemill.stream import Stream

    if isinstance(stream, Stream):
        return stream
    raise ProgramError(f"tx.emit takes a stream, not {stream!r}", "", at)


def record(
    function: Callable[..., Any], name: str, stream: str, event: Schema, defined_at: str
) -> Recorder:
    """Calls a function with symbolic values; gives what it did.

    Raises ``ProgramError`` for what is wrong in any case, :class:`NotTraced` for what a function
    that runs with real values could do.
    """
    recorder = Recorder(name, stream, event)
    file = defined_at.rpartition(":")[0]
    silent = silent_mistakes(function)
    if silent is not None:
        raise ProgramError(
            silent.what,
            f"{silent.help}; or run the function as it stands with opaque=True",
            f"{file}:{silent.line}",
        )
    try:
        with inside(recorder):
            result = function(SymbolicTx(recorder), SymbolicEvent(recorder.block))
            recorder.returned(result, defined_at)
        for hidden in recorder.noted:
            # The function has caught it: what was recorded is not what it does with real values.
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
            raise NotTraced(str(error), place) from error
        if _is_limit(error):
            raise NotTraced(why, place) from error
        raise ProgramError(
            f"handler {name} raised while it was traced: {why}",
            _near(error)
            or "mend it; a function that is right with real values only is declared with "
            "@app.transaction(..., opaque=True)",
            place,
        ) from error
    return recorder


#: What exceptions of others call values that are not known yet.
_SYMBOLIC = re.compile(r"\b(Traced|Deferred|SymbolicRow|SymbolicEvent)\b")


def _is_limit(error: BaseException) -> bool:
    """Whether an exception is there because values are not known yet: it says so, or comes of one
    that does. All others are mistakes that real values would show, too."""
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
    """What an attribute that is not there was probably meant to be."""
    if not isinstance(error, AttributeError) or not error.name:
        return ""
    near = _native.nearest(error.name, dir(error.obj))
    return f"did you mean '{near}'?" if near else ""


def record_twice(
    function: Callable[..., Any], name: str, stream: str, event: Schema, defined_at: str
) -> Recorder:
    """Records a function, and makes sure that it does the same again."""
    first = record(function, name, stream, event, defined_at)
    try:
        second = record(function, name, stream, event, defined_at)
        same = first.recorded() == second.recorded()
        line = None if same else _first_difference(first, second)
    except NotTraced as error:
        same, line = False, error.at
    if not same:
        raise ProgramError(
            f"handler {name} did not do the same when it was traced again: it depends on something "
            "hidden, such as random, the clock, or a variable that it changes",
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
