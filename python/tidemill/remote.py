"""Functions on several processes: calls are messages, and a function may pause or run again.

In one process a call is executed as soon as it is made (:mod:`tidemill.entity`). Here the process
that owns the entity executes it. An async function waits for the reply. A plain function runs again
from its begin when the reply has arrived. The results are the same.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tidemill import _native
from tidemill.context import local
from tidemill.entity import Context, Function, OpaqueFunction, Reply
from tidemill.opaque import OpaqueCall, OpaqueHandler, Running, verdict

if TYPE_CHECKING:
    from tidemill.entity import Entity
    from tidemill.table import Table


class Remote(Reply[Any]):
    """The reply of a call on another process, which may not have arrived yet."""

    __slots__ = ("_call", "_running")

    def __init__(self, running: Running, call: int) -> None:
        self._running: Running | None = running
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        if self._running is not None:
            yield self
        return self.result()

    def result(self) -> Any:
        """Returns the reply; before it has arrived, ends the function to run it again later."""
        if self._running is not None:
            self._value = self._running.settled(self._call)
            self._running = None
        return self._value

    def calls(self) -> list[int]:
        """Returns the numbers of the calls whose replies have not arrived."""
        return [] if self._running is None else [self._call]

    def __repr__(self) -> str:
        return "<reply of a call>" if self._running is not None else super().__repr__()


class Gathered(Remote):
    """The replies of several calls."""

    __slots__ = ("_replies",)

    def __init__(self, replies: tuple[Reply[Any], ...]) -> None:
        self._replies = replies

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.calls():
            yield self
        return self.result()

    def result(self) -> Any:
        """Returns the replies as a tuple."""
        return tuple(reply.result() for reply in self._replies)

    def calls(self) -> list[int]:
        """Returns the numbers of the calls whose replies have not arrived."""
        replies = (reply for reply in self._replies if isinstance(reply, Remote))
        return [call for reply in replies for call in reply.calls()]

    def __repr__(self) -> str:
        return f"<replies {self._replies!r}>"


class RemoteContext(Context):
    """The transaction of an entity's function on several processes."""

    __slots__ = ()

    def gather(self, *replies: Reply[Any]) -> Reply[tuple[Any, ...]]:
        """Waits for several calls, and gives their replies in the given order."""
        for reply in replies:
            if not isinstance(reply, Reply):
                raise TypeError(f"gather takes calls, such as hotel[id].reserve(), not {reply!r}")
        return Gathered(replies)


class Calls:
    """The calls of the running function, in the form that entities use."""

    __slots__ = ()

    #: True: calls are executed on the process that owns the entity.
    is_remote = True

    @property
    def running(self) -> Running:
        """This thread's transaction."""
        return cast(Running, local.transaction)

    @property
    def owner(self) -> tuple[Entity, _native.Row] | None:
        """The kind of entity whose function runs, and its row."""
        running = self.running
        handler, row = running.handler, running.own_row()
        if isinstance(handler, OpaqueFunction) and row is not None:
            return handler.called.entity, row
        return None

    def send(
        self, function: Function, key: tuple[Any, ...], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Remote:
        """Sends a call. An error in it aborts the transaction, even if the function catches it."""
        running = cast(Running, local.transaction)
        try:
            if function.caller is not None:
                named = function.with_caller(args, named, running.handler.name)
            if named or len(args) != len(function.parameters.columns):
                args = function.filled(args, named)
            return Remote(running, running.call(function.index, key, args))
        except BaseException as error:
            running.mark(*verdict(error))
            raise


CALLS = Calls()


class NodeFunction(NamedTuple):
    """A function in the form that the native code reads."""

    handler: OpaqueHandler
    #: The handler for calls from another function. It may emit into the streams of all functions.
    inner: OpaqueHandler
    #: The function of an entity, if it is one.
    called: Function | None
    table: Table | None
    takes_event: bool


def remote(opaques: Iterable[object]) -> list[NodeFunction]:
    """Returns the functions of an app's spec in the form that nodes read."""
    handlers = [opaque for opaque in opaques if isinstance(opaque, OpaqueHandler)]
    functions = [handler for handler in handlers if isinstance(handler, OpaqueFunction)]
    emits = {stream for function in functions for stream in function.emits}
    made: list[NodeFunction] = []
    for handler in handlers:
        inner = copy.copy(handler)
        inner.emits = handler.emits | emits
        called = handler.called if isinstance(handler, OpaqueFunction) else None
        table = called.entity.table if called is not None else None
        takes_event = not isinstance(handler, OpaqueCall)
        made.append(NodeFunction(handler, inner, called, table, takes_event))
    return made
