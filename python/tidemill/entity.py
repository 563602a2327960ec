"""Entities: rows that have functions, and functions that call each other as if nothing could fail.

A call of a client is one transaction, with all that its function calls, wherever that lives and
however deep it goes: all of it happens, or nothing does. A call takes place where it is made, also
one that nobody awaits; what it returns is awaited, because it may come from elsewhere.
"""

from __future__ import annotations

import datetime as dt
import decimal as dec
import json
from collections.abc import Callable, Generator, Iterable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, overload

from tidemill import _native
from tidemill.context import local
from tidemill.deadline import Overdue
from tidemill.errors import Abort, BadValue, ProgramError, Untraceable
from tidemill.opaque import OpaqueCall, Running, Tx, verdict
from tidemill.source import here, referenced
from tidemill.stream import Handler, Stream
from tidemill.table import Table
from tidemill.types import MISSING, Schema

if TYPE_CHECKING:
    from tidemill.app import App

#: So many calls may be in one another, and in one transaction.
DEPTH_MAX = 100
CALLS_MAX = 100_000

#: Types of values that nobody can change: they go from function to function as they are.
FIXED = frozenset((int, str, float, bool, bytes, type(None), dec.Decimal, dt.datetime))

# The types of parameters whose values are stored as they are, but for integers out of range.
_AS_IS = {"int": int, "str": str, "bool": bool, "bytes": bytes}

_INT_MAX = (1 << 63) - 1

Result = TypeVar("Result")


class Reply(Generic[Result]):
    """What a call returns: ``await`` it in an async function, elsewhere ask for ``result()``."""

    __slots__ = ("_value",)

    def __init__(self, value: Result) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._value
        yield

    def result(self) -> Result:
        """What the function has returned."""
        return self._value

    def __bool__(self) -> NoReturn:
        raise TypeError("a call was used as what it returns: await it, or ask for its result()")

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError(
            "a call was compared, not what it returns: await it, or ask for its result()"
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<reply {self._value!r}>"


class Context(Tx):
    """The transaction of a function of an entity: what ``tx`` can do, and several calls at once."""

    __slots__ = ()

    def gather(self, *replies: Reply[Any]) -> Reply[tuple[Any, ...]]:
        """What several calls return, in the order in which they are given. They may run side by
        side; what they come to is as if each had waited for the one before it, and when several
        fail the first one's reason counts."""
        for reply in replies:
            if not isinstance(reply, Reply):
                raise TypeError(f"gather takes calls, such as hotel[id].reserve(), not {reply!r}")
        return Reply(tuple(reply.result() for reply in replies))


class Function(Handler):
    """A function of an entity. Clients call it by ``ENTITY.NAME``, with the key and its parameters.

    Made by :meth:`Entity.function`.
    """

    def __init__(
        self,
        entity: Entity,
        function: Callable[..., Any],
        name: str,
        calls: Stream,
        parameters: Schema,
        reply: Schema,
        creates: bool,
        emits: Iterable[Stream],
        at: str,
    ) -> None:
        takes = ["ctx", *parameters.names]
        app = entity.app
        super().__init__(
            app, function, calls, name, at, True, reply, emits, called=True, takes=takes
        )
        self.entity = entity
        #: Whether it may run on an entity that is not there.
        self.creates = creates
        self.parameters = parameters
        #: How many columns of a call are the key.
        self.keys = len(calls.schema) - len(parameters)
        self._shape = _native.Shape(json.dumps(calls.schema.json()))
        self._as_is = tuple(
            None if column.nullable else _AS_IS.get(column.ty.kind) for column in parameters.columns
        )

    def bound(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """The values of the parameters, as their types store them."""
        columns = self.parameters.columns
        if named or len(args) != len(columns):
            args = self.filled(args, named)
        for place, value in enumerate(args):
            kind = self._as_is[place]
            is_fit = type(value) is kind
            if not is_fit or (kind is int and not -_INT_MAX <= value <= _INT_MAX):
                return self._stored(args, place)
        return args

    def check(self, row: _native.Row) -> None:
        """Aborts when the entity is not there."""
        if not row.exists():
            raise Abort(f"{row} does not exist")

    def refuse_reply(self) -> NoReturn:
        """It returns a call."""
        raise TypeError(f"{self.name} returns a call, not what it returns: write return await")

    def filled(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments with their defaults, in the order of the parameters."""
        columns = self.parameters.columns
        if len(args) > len(columns):
            raise TypeError(
                f"{self.name} takes {len(columns)} arguments, but {len(args)} are given"
            )
        left, values = dict(named), list(args)
        for column in columns[: len(args)]:
            if column.name in left:
                raise TypeError(f"{self.name}: '{column.name}' is given twice")
        for column in columns[len(args) :]:
            if column.name in left:
                values.append(left.pop(column.name))
            elif column.default is not MISSING:
                values.append(column.default)
            elif column.nullable:
                values.append(None)
            else:
                raise TypeError(f"{self.name} needs a value for '{column.name}'")
        for name in left:
            raise TypeError(f"{self.name} has no parameter '{name}'")
        return tuple(values)

    def _stored(self, args: tuple[Any, ...], begin: int) -> tuple[Any, ...]:
        values = list(args)
        for place in range(begin, len(values)):
            try:
                values[place] = self._shape.store(self.keys + place, values[place])
            except BadValue as fault:
                name = self.parameters.columns[place].name
                raise TypeError(f"{self.name}: parameter '{name}': {fault.reason}") from None
        return tuple(values)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Functions are called on an entity."""
        entity = self.entity.name
        raise TypeError(
            f"{self.name} is called on an entity: {entity}[key].{self.function.__name__}(...)"
        )

    def __repr__(self) -> str:
        return f"<function {self.name}>"


class Graph:
    """The calls of one transaction."""

    __slots__ = ("calls", "context", "depth", "failed", "owner", "running")

    #: Calls take place where they are made.
    is_remote = False

    def __init__(self, running: Running) -> None:
        self.running = running
        self.context = Context(running)
        self.calls = self.depth = 0
        #: What a function has raised last.
        self.failed: BaseException | None = None
        #: Whose function runs, and on which row.
        self.owner: tuple[Entity, _native.Row] | None = None

    def call(
        self,
        function: Function,
        row: _native.Row,
        args: tuple[Any, ...],
        named: dict[str, Any] | None,
    ) -> Any:
        """Runs a function with all that it calls; where ``named`` is None the arguments are all
        there and as they should be. Whatever it raises aborts the transaction, also when somebody
        catches it."""
        running = self.running
        self.calls += 1
        if self.calls > CALLS_MAX:
            running.fail(Abort(f"a transaction has at most {CALLS_MAX} calls"))
        if self.depth == DEPTH_MAX:
            running.fail(Abort(f"calls are more than {DEPTH_MAX} deep in one another"))
        owner, self.owner = self.owner, (function.entity, row)
        self.depth += 1
        try:
            values = args if named is None else function.bound(args, named)
            if not function.creates:
                function.check(row)
            result = function.function(row, self.context, *values)
            if type(result) is CoroutineType:
                result = _native.finished(result)
            kind = type(result)
            if kind not in FIXED or (kind is int and not -_INT_MAX <= result <= _INT_MAX):
                return _copied(function, result)
            return result
        except Overdue:
            raise
        except BaseException as error:
            # On its way up it is the same one.
            if error is not self.failed:
                self.failed = error
                running.mark(*verdict(error))
            raise
        finally:
            self.depth -= 1
            self.owner = owner


def _copied(function: Function, result: object) -> object:
    """A result that its function could still change."""
    if isinstance(result, Reply):
        function.refuse_reply()
    try:
        return _native.unpacked(_native.packed(result))
    except ValueError as error:
        raise TypeError(f"{function.name} returns what is no value of msgpack: {error}") from None


class Reference:
    """An entity, by its key: its functions are called on it, ``hotel[id].reserve(2)``."""

    __slots__ = ("_key",)
    _entity: Entity

    def __init__(self, key: tuple[Any, ...]) -> None:
        object.__setattr__(self, "_key", key)

    def exists(self) -> Reply[bool]:
        """Whether the entity is there."""
        return Reply(self._row().exists())

    def delete(self) -> Reply[None]:
        """Removes the entity; nothing happens when it is not there."""
        self._row().delete()
        return Reply(None)

    def _row(self) -> _native.Row:
        row: _native.Row = graph_of(self._entity).running.row(self._entity.table, self._key)
        return row

    def __getattr__(self, name: str) -> NoReturn:
        raise self._entity.unknown(name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(
            f"'{name}' of another {self._entity.name} can't be set: write a function of "
            f"{self._entity.name} that does it, and call that"
        )

    def __repr__(self) -> str:
        return f"<{self._entity.name}[{', '.join(map(repr, self._key))}]>"


def method(function: Function) -> Callable[..., Reply[Any]]:
    """The function as entities are given it to call."""
    entity, table = function.entity, function.entity.table

    def call(self: Reference, /, *args: Any, **named: Any) -> Reply[Any]:
        graph = graph_of(entity)
        if graph.is_remote:
            sent: Reply[Any] = graph.send(function, self._key, args, named)
            return sent
        row = graph.running.row(table, self._key)
        return Reply(graph.call(function, row, args, named))

    call.__name__, call.__doc__ = function.name, function.function.__doc__
    return call


def calls_entities(function: Callable[..., Any]) -> bool:
    """Whether a function's code names an entity."""
    return any(isinstance(found, Entity) for found in referenced(function))


def graph_of(entity: Entity) -> Any:
    """The calls of the transaction that this thread is in."""
    running = local.transaction
    if type(running) is Running:
        graph = running.graph
        if graph is None:
            running.graph = graph = Graph(running)
        return graph
    if running is not None:
        raise Untraceable(f"entities are called with real values, and {entity.name} is one")
    raise ProgramError(
        f"an entity {entity.name} is used outside a transaction",
        "from outside write mill.call(function, ...)",
        here(),
    )


class Entity:
    """Entities of one kind: rows of a table of this name, with functions.

    Made by :meth:`tidemill.App.entity`. Inside functions ``entity[key]`` is one of them.
    """

    def __init__(self, app: App, table: Table) -> None:
        self.app = app
        #: The table that holds them, for queries. Their functions write it; others should not.
        self.table = table
        self.name = table.name
        self.functions: dict[str, Function] = {}
        # Its references: functions are methods, which are found without being looked for.
        self._reference = type(self.name, (Reference,), {"__slots__": (), "_entity": self})

    @overload
    def function(self, function: Callable[..., Any], /) -> Function: ...
    @overload
    def function(
        self,
        /,
        *,
        name: str | None = None,
        creates: bool = False,
        emits: Iterable[Stream] = (),
        role: str | None = None,
    ) -> Callable[[Callable[..., Any]], Function]: ...
    def function(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        creates: bool = False,
        emits: Iterable[Stream] = (),
        role: str | None = None,
    ) -> Any:
        """Makes a function, plain or async, one of the entity: ``async def reserve(self, ctx, n:
        int = 1)``. ``self`` is the entity's row, whose columns are read and set; ``ctx`` is the
        transaction. Parameters have types, as columns have.

        The entity must be there, unless ``creates=True``: then ``self`` may be a row that is
        missing, with the defaults of its columns, and setting a column makes it. ``emits`` are
        streams that it emits into without naming them. With ``role="clerk"`` clients over HTTP need
        a token with that role."""
        at = here()

        def decorate(function: Callable[..., Any]) -> Function:
            chosen = str(name or getattr(function, "__name__", "function"))
            made = self.app.add_function(self, function, chosen, bool(creates), emits, role, at)
            self.functions[chosen] = made
            setattr(self._reference, chosen, method(made))
            return made

        return decorate if function is None else decorate(function)

    def __getitem__(self, key: object) -> Reference:
        """The entity with this key; for several key columns ``entity[a, b]``."""
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self.table.key):
            self.table.key_values(key)
        return cast(Reference, self._reference(values))

    def create(self, /, **columns: object) -> Reply[None]:
        """Makes an entity; the transaction aborts when it is there already."""
        graph_of(self).running.insert(self.table, columns, False)
        return Reply(None)

    def scan(self, start: object = None, end: object = None, *, limit: int | None = None) -> Any:
        """The entities whose keys are in a range, in key order, as rows; for functions of
        this very kind of entity, which is ``ordered``. Where keys have a prefix that chooses the
        partition (``partition_prefix=``) the range lies within that of ``self``."""
        graph = graph_of(self)
        if graph.owner is None or graph.owner[0] is not self:
            raise ProgramError(
                f"{self.name} is scanned by functions of {self.name} alone",
                f"write one that scans, and call it: {self.name}[key].its_name()",
                here(),
            )
        prefix = self.table.partition_prefix
        if prefix is not None:
            row = graph.owner[1]
            own = tuple(row[self.table.key[place]] for place in range(prefix))
            first = start if isinstance(start, tuple) else () if start is None else (start,)
            last = end if isinstance(end, tuple) else () if end is None else (end,)
            if first[:prefix] != own or (end is not None and last[:prefix] != own):
                raise ProgramError(
                    f"a scan of {self.name} begins and ends with the partition of self: {own}",
                    f"write {self.name}.scan({own}, ...)",
                    here(),
                )
            if end is None:
                rows = graph.running.scan(self.table, own, None, limit if first == own else None)
                names = self.table.key[: len(first)]
                rows = [row for row in rows if tuple(row[name] for name in names) >= first]
                return rows[:limit]
        return self.table.scan(start, end, limit=limit)

    def unknown(self, name: str) -> AttributeError:
        """What is wrong with a name that is no function."""
        if name in self.table.schema.index:
            return AttributeError(
                f"'{name}' of another {self.name} can't be read: write a function of "
                f"{self.name} that returns it, and call that"
            )
        known = ", ".join(self.functions) or "none"
        return AttributeError(f"{self.name} has no function '{name}'; it has: {known}")

    def __repr__(self) -> str:
        return f"<entity {self.name}: {self.table.schema}>"


class OpaqueFunction(OpaqueCall):
    """A function of an entity in the form that the engine calls: key and parameters are the columns
    of the event."""

    def __init__(self, function: Callable[..., Any], handler: Handler) -> None:
        super().__init__(function, handler)
        assert isinstance(handler, Function)
        self.called = handler

    def _call(self, running: Running, given: tuple[object, ...]) -> Any:
        function = self.called
        row = running.row(function.entity.table, given[: function.keys])
        running.graph = graph = Graph(running)
        return graph.call(function, row, given[function.keys :], None)
