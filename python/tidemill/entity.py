"""Entities: rows that have functions, and functions that call each other as if nothing could fail.

A client's call is one transaction, together with all calls that its function makes, on whichever
processes the entities are. It commits as a whole or aborts as a whole. A call is executed where it
is made, even if its reply is never awaited. Replies are awaited because on several processes they
arrive later (:mod:`tidemill.remote`).
"""

from __future__ import annotations

import datetime as dt
import decimal as dec
import json
from collections.abc import Callable, Generator, Iterable
from itertools import chain
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, overload

from tidemill import _native
from tidemill.context import local
from tidemill.deadline import Overdue
from tidemill.errors import Abort, BadValue, ProgramError, Untraceable
from tidemill.given import caller_of, parameters_of
from tidemill.keywords import known_keywords
from tidemill.opaque import OpaqueCall, Running, Tx, check_function, verdict
from tidemill.procedure import calls_of
from tidemill.source import blocking, globals_changed, globals_written, here, referenced
from tidemill.stream import Handler, Stream
from tidemill.table import Table
from tidemill.types import MISSING, Schema

if TYPE_CHECKING:
    from tidemill.app import App

#: The largest depth of nested calls.
DEPTH_MAX = 100
#: The largest number of calls in one transaction.
CALLS_MAX = 100_000

#: Types of immutable values, which are passed between functions without a copy.
FIXED = frozenset((int, str, float, bool, bytes, type(None), dec.Decimal, dt.datetime))

# The types of parameters whose values need no conversion, except for integers out of range.
_AS_IS = {"int": int, "str": str, "bool": bool, "bytes": bytes}

_INT_MAX = (1 << 63) - 1

Result = TypeVar("Result")


class Reply(Generic[Result]):
    """The reply of a call to an entity's function.

    ``await`` it in an async function, and call :meth:`result` in a plain one.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Result) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._value
        yield

    def result(self) -> Result:
        """Returns the value that the called function returned.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("bank")
            >>> account = app.entity("account", key="id", id=int, balance=tm.column(int, default=0))
            >>> @account.function(creates=True)
            ... def pay_in(self, ctx, amount: int):
            ...     self.balance += amount
            ...     return self.balance
            >>> @app.procedure
            ... def give(tx, to: int):
            ...     return account[to].pay_in(10).result() + 1
            >>> with app.start() as mill:
            ...     mill.call(give, to=2)
            11
        """
        return self._value

    def __bool__(self) -> NoReturn:
        raise TypeError("a reply was used as the value in it: await it, or call result()")

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("a reply was compared, and not the value in it: await it, or call result()")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<reply {self._value!r}>"


class Context(Tx):
    """The transaction of an entity's function: its argument ``ctx``.

    It has the methods of ``tx`` in other functions: ``require``, ``emit``, ``now``, ``random``,
    ``uuid``, ``lookup`` and ``external``. In addition it has :meth:`gather`.
    """

    __slots__ = ()

    def gather(self, *replies: Reply[Any]) -> Reply[tuple[Any, ...]]:
        """Waits for several calls, which may run side by side.

        The result is the same as if each call had waited for the one before it. When several
        calls fail, the reason of the first one counts.

        Args:
            *replies: The calls, such as ``hotel[id].reserve(2)``.

        Returns:
            The reply, a tuple of the values that the calls returned, in the given order.

        Raises:
            TypeError: An argument is not a call.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("bank")
            >>> account = app.entity("account", key="id", id=int, balance=tm.column(int, default=0))
            >>> @account.function(creates=True)
            ... def pay_in(self, ctx, amount: int):
            ...     self.balance += amount
            ...     return self.balance
            >>> @account.function(creates=True)
            ... async def split(self, ctx, to: int, amount: int):
            ...     both = account[to].pay_in(amount), account[to + 1].pay_in(amount)
            ...     return await ctx.gather(*both)
            >>> with app.start() as mill:
            ...     mill.call(split, id=1, to=2, amount=5)
            [5, 5]
        """
        for reply in replies:
            if not isinstance(reply, Reply):
                raise TypeError(f"gather takes calls, such as hotel[id].reserve(), not {reply!r}")
        return Reply(tuple(reply.result() for reply in replies))


class Function(Handler):
    """A function of an entity. Clients call it by ``ENTITY.NAME``, with the key and its parameters.

    :meth:`Entity.function` makes functions.

    Attributes:
        entity: The kind of entity to which the function belongs.
        creates: Whether the function may run on an entity that does not exist.
        parameters: The columns of its parameters.
        keys: The number of key columns, which come first in a call.
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
            app, function, calls, name, at, True, reply, emits, called=True, takes=takes, tx=1
        )
        self.entity = entity
        self.creates = creates
        self.parameters = parameters
        self.keys = len(calls.schema) - len(parameters)
        self._shape = _native.Shape(json.dumps(calls.schema.json()))
        self._as_is = tuple(
            None if column.nullable else _AS_IS.get(column.ty.kind) for column in parameters.columns
        )

    def bound(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the values of all parameters, converted to their types.

        Args:
            args: The positional arguments.
            named: The arguments by name.

        Returns:
            One value for each parameter.

        Raises:
            TypeError: An argument is missing, unknown or of another type.
        """
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
        """Raises ``Abort`` if the entity does not exist."""
        if not row.exists():
            raise Abort(f"{row} does not exist")

    def refuse_reply(self) -> NoReturn:
        """Raises ``TypeError`` for a function that returns a reply without awaiting it."""
        raise TypeError(f"{self.name} returns a reply, and not the value in it: write return await")

    def with_caller(
        self, args: tuple[Any, ...], named: dict[str, Any], caller: str
    ) -> dict[str, Any]:
        """Returns the arguments by name, with the name of the function that calls.

        Args:
            args: The positional arguments.
            named: The arguments by name.
            caller: The name of the calling function.

        Raises:
            TypeError: The caller names itself.
        """
        assert self.caller is not None
        if self.caller in named or len(args) >= len(self.parameters.columns):
            raise TypeError(f"{self.name}: its caller can't give '{self.caller}'")
        return {**named, self.caller: f"function:{caller}"}

    def filled(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments with defaults filled in, in the order of the parameters.

        Args:
            args: The positional arguments.
            named: The arguments by name.

        Returns:
            One value for each parameter, not converted yet.

        Raises:
            TypeError: An argument is missing, unknown or given twice.
        """
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
        """Raises ``TypeError``: functions are called on an entity."""
        entity = self.entity.name
        raise TypeError(
            f"{self.name} is called on an entity: {entity}[key].{self.function.__name__}(...)"
        )

    def __repr__(self) -> str:
        return f"<function {self.name}>"


class Graph:
    """The calls of one transaction."""

    __slots__ = ("calls", "context", "depth", "failed", "function", "owner", "running")

    #: False: calls are executed at once, in this process.
    is_remote = False

    def __init__(self, running: Running) -> None:
        self.running = running
        self.context = Context(running)
        self.calls = self.depth = 0
        #: The last exception that a function raised.
        self.failed: BaseException | None = None
        #: The kind of entity whose function runs, and its row.
        self.owner: tuple[Entity, _native.Row] | None = None
        #: The name of the function that runs.
        self.function = running.handler.name

    def call(
        self,
        function: Function,
        row: _native.Row,
        args: tuple[Any, ...],
        named: dict[str, Any] | None,
    ) -> Any:
        """Runs a function with all calls that it makes.

        With ``named`` None the arguments are complete and converted already. An exception aborts
        the transaction, also when a caller catches it.
        """
        running = self.running
        self.calls += 1
        if self.calls > CALLS_MAX:
            running.fail(Abort(f"a transaction has at most {CALLS_MAX} calls"))
        if self.depth == DEPTH_MAX:
            running.fail(Abort(f"calls are more than {DEPTH_MAX} deep in one another"))
        owner, self.owner = self.owner, (function.entity, row)
        caller, self.function = self.function, function.name
        self.depth += 1
        try:
            if named is not None and function.caller is not None:
                named = function.with_caller(args, named, caller)
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
            # The exception passes each caller, but is recorded once.
            if error is not self.failed:
                self.failed = error
                running.mark(*verdict(error))
            raise
        finally:
            self.depth -= 1
            self.owner, self.function = owner, caller


def _copied(function: Function, result: object) -> object:
    """Copies a result that is mutable, so that its function can't change it later."""
    if isinstance(result, Reply):
        function.refuse_reply()
    try:
        return _native.unpacked(_native.packed(result))
    except ValueError as error:
        raise TypeError(f"{function.name} returns what is no value of msgpack: {error}") from None


class Reference:
    """A reference to an entity by its key: ``hotel[id].reserve(2)`` calls a function of it."""

    __slots__ = ("_key",)
    _entity: Entity
    _key: tuple[Any, ...]

    def __init__(self, key: tuple[Any, ...]) -> None:
        object.__setattr__(self, "_key", key)

    def exists(self) -> Reply[bool]:
        """Returns whether the entity exists."""
        return Reply(self._row().exists())

    def delete(self) -> Reply[None]:
        """Deletes the entity, if it exists."""
        self._row().delete()
        return Reply(None)

    def _row(self) -> _native.Row:
        row: _native.Row = graph_of(self._entity).running.row(self._entity.table, self._key)
        return row

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Reply[Any]]: ...

    else:

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
    """Returns a method of references that calls the function."""
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
    """Returns whether a function's code names an entity."""
    return any(isinstance(found, Entity) for found in referenced(function))


def graph_of(entity: Entity) -> Any:
    """Returns the calls of this thread's transaction."""
    running = local.transaction
    if type(running) is Running:
        graph = running.graph
        if graph is None:
            running.graph = graph = Graph(running)
        return graph
    if running is not None:
        raise Untraceable(f"{entity.name} is an entity, and calls of entities can't be traced")
    raise ProgramError(
        f"an entity {entity.name} is used outside a transaction",
        "from outside write mill.call(function, ...)",
        here(),
    )


class Entity:
    """A kind of entity: the rows of a table of the same name, with functions.

    Inside functions ``entity[key]`` is a reference to one entity, and
    ``entity[key].its_function(...)`` calls a function of it. For several key columns write
    ``entity[a, b]``. :meth:`tidemill.App.entity` makes kinds of entities.

    Attributes:
        table: The table of the entities, for queries. Only their functions should write it.
        functions: The functions by name.
    """

    def __init__(self, app: App, table: Table) -> None:
        self.app = app
        self.table = table
        self.name = table.name
        self.functions: dict[str, Function] = {}
        # The class of references. Its functions are methods, so that a call needs no lookup.
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
        private: bool = False,
    ) -> Callable[[Callable[..., Any]], Function]: ...
    @known_keywords
    def function(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        creates: bool = False,
        emits: Iterable[Stream] = (),
        role: str | None = None,
        private: bool = False,
    ) -> Any:
        """Makes a function, plain or async, a function of the entity.

        It is declared as ``async def reserve(self, ctx, n: int = 1)``. ``self`` is the entity's
        row, whose columns can be read and set. ``ctx`` is the transaction (:class:`Context`). The
        other parameters have types, as columns have, and may have defaults. A last parameter of
        type :data:`tidemill.Caller` receives the caller.

        Args:
            function: The function, where the decorator is used without parentheses.
            name: The function's name. The default is its Python name.
            creates: Whether the function may run on an entity that does not exist. ``self`` then
                reads as the defaults of the columns, and setting a column inserts the row. The
                default is False: a call aborts if the entity does not exist.
            emits: The streams that the function emits into without naming them in its code.
                The default is none.
            role: The role that the token of an HTTP client needs to call the function. The
                default is none.
            private: Whether only other functions of the app may call the function. The default is
                False: clients may, too.

        Returns:
            The :class:`Function`, or a decorator that returns it.

        Raises:
            ProgramError: The name is taken, a parameter has no type, or the function does
                something that no transaction may do.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("bank")
            >>> account = app.entity("account", key="id", id=int, balance=int)
            >>> @account.function(creates=True)
            ... async def deposit(self, ctx, amount: int):
            ...     ctx.require(amount > 0, "nothing to deposit")
            ...     self.balance = (self.balance if self.exists() else 0) + amount
            ...     return self.balance
            >>> with app.start() as mill:
            ...     mill.call(deposit, id=1, amount=5), mill.call(deposit, id=1, amount=2)
            (5, 7)
        """
        at = here()

        def decorate(function: Callable[..., Any]) -> Function:
            chosen = str(name or getattr(function, "__name__", "function"))
            if private and role is not None:
                raise ProgramError(
                    f"function {self.name}.{chosen} is private, and has a role for clients",
                    "leave out role=, or private=True",
                    at,
                )
            made = _declared(self, function, chosen, bool(creates), emits, role, at)
            made.private, made.caller = bool(private), caller_of(function)
            self.functions[chosen] = made
            setattr(self._reference, chosen, method(made))
            return made

        return decorate if function is None else decorate(function)

    def __getitem__(self, key: object) -> Reference:
        """Returns a reference to the entity with this key; for several columns ``entity[a, b]``."""
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self.table.key):
            self.table.key_values(key)
        return cast(Reference, self._reference(values))

    def create(self, /, **columns: object) -> Reply[None]:
        """Inserts an entity; the transaction aborts if it exists already.

        Args:
            **columns: The values by column.

        Returns:
            The reply, without a value.

        Raises:
            ProgramError: A column is unknown, a value is missing, or there is no transaction.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("bank")
            >>> account = app.entity("account", key="id", id=int, balance=tm.column(int, default=0))
            >>> @account.function(creates=True)
            ... def open(self, ctx):
            ...     self.balance = 5
            >>> @app.procedure
            ... def begin(tx, id: int):
            ...     account.create(id=id, balance=1).result()
            >>> with app.start() as mill:
            ...     mill.call(begin, id=7)
            ...     mill.table(account).rows()
            [{'id': 7, 'balance': 1}]
        """
        graph_of(self).running.insert(self.table, columns, False)
        return Reply(None)

    def scan(
        self,
        start: object = None,
        end: object = None,
        *,
        prefix: object = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Any:
        """Returns the entities of a range of keys, in key order, as rows.

        Only functions of the same kind of entity can call it. The kind was declared with
        ``ordered=True``. With ``partition_prefix=`` the range lies within the partition of
        ``self``.

        Args:
            start: The first key of the range, inclusive. For several key columns it is a tuple of
                the leading ones. The default is None, no bound.
            end: The key after the range, exclusive, in the same form. The default is None.
            prefix: The beginning of the keys' texts or bytes, instead of the bounds. For several
                key columns it is a tuple of leading values, of which the last is such a beginning.
                The default is None.
            limit: The largest number of rows. The default is all.
            reverse: Whether the rows are in reverse order, so that a limit gives the last ones. The
                default is False.

        Returns:
            A list of rows.

        Raises:
            ProgramError: The caller is another kind of function, the kind is not ordered, or the
                range lies in several partitions.
        """
        graph = graph_of(self)
        if graph.owner is None or graph.owner[0] is not self:
            raise ProgramError(
                f"only functions of {self.name} can scan {self.name}",
                f"write one that scans, and call it: {self.name}[key].its_name()",
                here(),
            )
        partition = self.table.partition_prefix
        if partition is not None:
            row = graph.owner[1]
            own = tuple(row[self.table.key[place]] for place in range(partition))
            first, last = (
                bound if isinstance(bound, tuple) else () if bound is None else (bound,)
                for bound in ((start, end) if prefix is None else (prefix, None))
            )
            is_within = len(first) > partition or prefix is None
            is_within = is_within and (not last or last[:partition] == own)
            if first[:partition] != own or not is_within:
                raise ProgramError(
                    f"a scan of {self.name} must begin and end with the partition of self: {own}",
                    f"write {self.name}.scan({own}, ...)",
                    here(),
                )
            if prefix is None and end is None:
                most = limit if first == own else None
                rows = graph.running.scan(self.table, own, None, most, reverse)
                names = self.table.key[: len(first)]
                rows = [row for row in rows if tuple(row[name] for name in names) >= first]
                return rows[:limit]
        return self.table.scan(start, end, prefix=prefix, limit=limit, reverse=reverse)

    def unknown(self, name: str) -> AttributeError:
        """Returns the error for a name that no function has."""
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
    """A function of an entity in the form that the engine calls.

    The columns of the event are the key and the parameters.
    """

    def __init__(self, function: Callable[..., Any], handler: Handler) -> None:
        super().__init__(function, handler)
        assert isinstance(handler, Function)
        self.called = handler

    def _call(self, running: Running, given: tuple[object, ...]) -> Any:
        function = self.called
        row = running.row(function.entity.table, given[: function.keys])
        running.graph = graph = Graph(running)
        return graph.call(function, row, given[function.keys :], None)


def _declared(
    entity: Entity,
    function: Callable[..., Any],
    name: str,
    creates: bool,
    emits: Iterable[Stream],
    role: str | None,
    at: str,
) -> Function:
    """Declares a function of an entity; :meth:`Entity.function` calls it."""
    chosen, table = f"{entity.name}.{name}", entity.table
    if name.startswith("_") or name in ("exists", "delete", "create", "scan", "function"):
        raise ProgramError(
            f"function {chosen}: the name '{name}' is taken",
            "give it another name, without _ at its beginning: entities have create, delete, "
            "exists, scan and function themselves",
            at,
        )
    if name in table.schema.index:
        raise ProgramError(
            f"function {chosen}: '{name}' is a column of {entity.name}", "rename one of them", at
        )
    entity.app._name("handler", chosen, entity.app.handlers, at)
    entity.app._name("stream", chosen, entity.app.streams, at)
    parameters = parameters_of(function, chosen, at, "function")
    for parameter in parameters:
        if parameter in table.key:
            raise ProgramError(
                f"function {chosen}: '{parameter}' is the key of {entity.name}",
                f"read self.{parameter}: the caller gives the key",
                at,
            )
    check_function(function, chosen, at, ("ctx", *parameters), may_be_async=True)
    for written in chain(globals_written(function), globals_changed(function)):
        raise ProgramError(
            f"function {chosen} writes the variable '{written}' outside of itself",
            "store lasting state in an entity or a table: an abort does not undo variables, "
            "and other processes do not see them",
            at,
        )
    for waited in blocking(function):
        raise ProgramError(
            f"function {chosen} uses {waited}: it waits, and all other transactions wait with it",
            "ask an outside service with ctx.lookup, which is logged, or request the work with "
            "ctx.external, which does it once the transaction is durable",
            at,
        )
    keys = [table.schema.columns[place] for place in table.key_columns]
    calls, columns, reply = calls_of(
        entity.app, f"function {chosen}", chosen, keys, parameters, role, at
    )
    return Function(entity, function, chosen, calls, columns, reply, creates, emits, at)
