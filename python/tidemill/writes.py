"""The tables that a function writes, as far as its code shows, and the roles of its outputs.

Functions that run with real values are not recorded, so their source is analysed. Rows are found by
the names of variables, in the function itself and in the user's functions that it calls.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tidemill.entity import Entity, Function
from tidemill.external import External
from tidemill.index import Index
from tidemill.owned import OwnedWindow
from tidemill.source import is_library
from tidemill.stream import Handler, Stream
from tidemill.table import Table
from tidemill.trigger import Trigger

if TYPE_CHECKING:
    from tidemill.app import App

#: The methods of tables and rows that write.
_WRITING = frozenset(["create", "delete", "insert", "update", "upsert"])

#: Functions that only read the rows in their arguments.
_LOOKING = frozenset(["bool", "dict", "enumerate", "len", "list", "next", "print", "sorted", "sum"])


@dataclass
class Written:
    """The tables that a function writes, and others that it may write, by name."""

    surely: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    #: The functions of entities that it calls.
    calls: list[Function] = field(default_factory=list, repr=False)
    #: The external functions from which it requests work.
    asks: list[External] = field(default_factory=list, repr=False)


def written(function: Callable[..., Any], own: Table | None = None) -> Written:
    """Returns the tables that a function writes.

    ``own`` is the table of the row that is the function's first parameter, if it is a row.

    >>> import tidemill as tm
    >>> app = tm.App("bank")
    >>> accounts = app.table("accounts", key="id", id=int, balance=int)
    >>> audit = app.table("audit", key="id", id=int, text=str)
    >>> def pay(tx, id: int):
    ...     account = accounts[id]
    ...     account.balance -= 1
    ...     return audit[id].text
    >>> written(pay)
    Written(surely={'accounts'}, maybe=set())
    """
    found = Written()
    _look(function, own, found, set())
    return found


def _look(
    function: Callable[..., Any], own: Table | None, found: Written, seen: set[object]
) -> None:
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is None or code in seen:
        return
    seen.add(code)
    outside = {**plain.__globals__, **_nonlocals(plain)}
    try:
        tree = ast.parse(textwrap.dedent("".join(inspect.getsourcelines(plain)[0])))
    except (OSError, TypeError, SyntaxError):
        # Without source, each table that the code names may be written.
        named = (outside.get(name) for name in (*code.co_names, *code.co_freevars))
        found.maybe |= {table.name for table in map(_table, named) if table is not None}
        return
    rows: dict[str, set[Table]] = {}
    if own is not None and code.co_argcount:
        rows[code.co_varnames[0]] = {own}
    looked = _Looked(outside, rows, found)
    looked.bind(tree)
    for called in looked.look(tree):
        _look(called, None, found, seen)


def _nonlocals(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, ValueError):
        return {}


def _table(value: object) -> Table | None:
    """Returns the table of a table, entity or index, and None for other objects."""
    if isinstance(value, Table):
        return value
    return value.table if isinstance(value, Entity | Index) else None


class _Looked:
    """The analysis of a function's source, with the names of tables and rows in it."""

    def __init__(
        self, outside: dict[str, Any], rows: dict[str, set[Table]], found: Written
    ) -> None:
        self.outside = outside
        self.rows = rows
        self.found = found

    def value(self, node: ast.expr) -> object:
        """Returns the object of an outer name, or of an attribute of one."""
        if isinstance(node, ast.Name):
            return self.outside.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            is_plain = owner is not None and not isinstance(owner, Table | Entity | Index)
            return getattr(owner, node.attr, None) if is_plain else None
        return None

    def root(self, node: ast.expr) -> set[Table]:
        """Returns the table with which an expression begins, or with a row of which it begins.

        There are several where a variable holds rows of different tables in turn.
        """
        while True:
            if isinstance(node, ast.Name) and node.id in self.rows:
                return self.rows[node.id]
            if (table := _table(self.value(node))) is not None:
                return {table}
            if isinstance(node, ast.Attribute | ast.Subscript | ast.Await | ast.Starred):
                node = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                if node.func.id not in _LOOKING:
                    return set()
                node = node.args[0]
            else:
                return set()

    def row(self, node: ast.expr) -> set[Table]:
        """Returns the tables whose rows an expression gives, or that it gives itself."""
        # An attribute of a row is a value.
        is_value = isinstance(node, ast.Attribute) and _table(self.value(node)) is None
        return set() if is_value else self.root(node)

    def bind(self, tree: ast.AST) -> None:
        """Finds the variables that hold rows."""
        grown = True
        while grown:
            grown = False
            for targets, value in _bindings(tree):
                tables = self.row(value)
                for name in (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
                    if isinstance(name.ctx, ast.Store) and not tables <= self.rows.get(
                        name.id, set()
                    ):
                        self.rows[name.id] = self.rows.get(name.id, set()) | tables
                        grown = True

    def look(self, tree: ast.AST) -> Iterator[Any]:
        """Finds the written tables, and yields the called functions."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute | ast.Subscript):
                if not isinstance(node.ctx, ast.Load):
                    self.found.surely |= {table.name for table in self.root(node.value)}
            elif isinstance(node, ast.Call):
                yield from self._called(node)

    def _called(self, node: ast.Call) -> Iterator[Any]:
        if isinstance(node.func, ast.Attribute):
            for table in self.root(node.func.value):
                if node.func.attr in _WRITING:
                    self.found.surely.add(table.name)
                for handler in table.app.handlers:
                    is_called = handler.name == f"{table.name}.{node.func.attr}"
                    if isinstance(handler, Function) and is_called:
                        self.found.calls.append(handler)
        called = self.value(node.func)
        called = getattr(called, "function", called)
        if isinstance(called, FunctionType) and not is_library(called.__code__.co_filename):
            yield called
        if isinstance(node.func, ast.Name) and node.func.id in _LOOKING:
            return
        for given in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if isinstance(asked := self.value(given), External):
                self.found.asks.append(asked)
                self.found.surely.add(asked.outbox.name)
            # Another function may write the rows in its arguments.
            if not isinstance(given, ast.Call):
                self.found.maybe |= {table.name for table in self.row(given)}


def _bindings(tree: ast.AST) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield [node.target], node.value
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield [node.target], node.iter


def effects(handler: Handler) -> tuple[Written, set[str]]:
    """Returns the tables and streams that a function writes, with all that it triggers."""
    tables, streams = Written(), set[str]()
    todo: list[Handler | Trigger] = [handler]
    done: list[Handler | Trigger] = []
    while todo:
        one = todo.pop()
        if any(one is other for other in done):
            continue
        done.append(one)
        if isinstance(one, Handler) and one.recorder is not None:
            by = Written(surely=_recorded(one.recorder, handler.app))
        else:
            by = written(one.function, one.entity.table if isinstance(one, Function) else None)
        tables.surely |= by.surely
        tables.maybe |= by.maybe
        emitted: set[Stream] = {*one.named_emits, *by.asks}
        if isinstance(one, Handler):
            emitted |= {one, *one.aborted_of}
        streams |= {stream.name for stream in emitted}
        todo += by.calls
        todo += _set_off(handler.app, emitted, by.surely | by.maybe, one)
    return tables, streams


def _set_off(
    app: App, emitted: set[Stream], tables: set[str], by: Handler | Trigger
) -> Iterator[Handler | Trigger]:
    for handler in app.handlers:
        if any(taken in emitted for taken in (handler.input, *handler.more)):
            yield handler
    for trigger in app.triggers:
        on = trigger.on
        if isinstance(on, Table):
            is_set_off = on.name in tables
        elif isinstance(on, OwnedWindow):
            is_set_off = isinstance(by, Handler) and on.owner == by.index
        else:
            is_set_off = on in emitted
        if is_set_off:
            yield trigger


def _recorded(recorder: Any, app: App) -> set[str]:
    """Returns the tables that a traced function writes."""
    by_id = {table.id: table.name for table in app.tables.values()}
    bodies = (
        step["op"].get(kind)
        for step in recorder.steps
        for kind in ("set", "update", "insert", "upsert", "delete")
    )
    return {by_id[recorder.rows[body["row"]]["table"]] for body in bodies if body is not None}


def roles_of_outputs(app: App, roles: dict[str, str]) -> dict[str, str]:
    """Returns the roles for reading the outputs of functions that need roles.

    The names are ``streams/NAME`` and ``tables/NAME``, and one of the roles of the functions is
    enough. Outputs of a function that every client may call are for every client.
    """
    called = [handler for handler in app.handlers if handler.called]
    guarded = {handler.name for handler in called if roles.get(handler.name, "*") != "*"}
    needed: dict[str, set[str]] = {}
    for handler in called if guarded else ():
        if handler.name in guarded:
            tables, streams = effects(handler)
            for output in _outputs(tables.surely | tables.maybe, streams):
                needed.setdefault(output, set()).update(roles[handler.name].split("|"))
    for handler in called if guarded else ():
        if handler.name not in guarded:
            tables, streams = effects(handler)
            for output in _outputs(tables.surely, streams):
                needed.pop(output, None)
    return {output: "|".join(sorted(of)) for output, of in needed.items()}


def _outputs(tables: Iterable[str], streams: Iterable[str]) -> Iterator[str]:
    yield from (f"tables/{name}" for name in tables)
    yield from (f"streams/{name}" for name in streams)
