"""Functions on several processes: calls are messages, and a function comes and goes.

The same functions run in one process, where a call takes place as soon as it is made
(:mod:`tidemill.entity`). Here it is made, and takes place where its entity lives; an async function
waits for it, a plain one is begun again when it is there. What all of them come to is the same.
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
    """What a call will return."""

    __slots__ = ("_call", "_running")

    def __init__(self, running: Running, call: int) -> None:
        self._running: Running | None = running
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        if self._running is not None:
            yield self
        return self.result()

    def result(self) -> Any:
        """What the function has returned; whoever asks too early is begun again."""
        if self._running is not None:
            self._value = self._running.settled(self._call)
            self._running = None
        return self._value

    def calls(self) -> list[int]:
        """The calls of which nobody knows yet what they return."""
        return [] if self._running is None else [self._call]

    def __repr__(self) -> str:
        return "<reply of a call>" if self._running is not None else super().__repr__()


class Gathered(Remote):
    """What several calls will return."""

    __slots__ = ("_replies",)

    def __init__(self, replies: tuple[Reply[Any], ...]) -> None:
        self._replies = replies

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.calls():
            yield self
        return self.result()

    def result(self) -> Any:
        """What the functions have returned."""
        return tuple(reply.result() for reply in self._replies)

    def calls(self) -> list[int]:
        """The calls of which nobody knows yet what they return."""
        replies = (reply for reply in self._replies if isinstance(reply, Remote))
        return [call for reply in replies for call in reply.calls()]

    def __repr__(self) -> str:
        return f"<replies {self._replies!r}>"


class RemoteContext(Context):
    """The transaction of a function of an entity."""

    __slots__ = ()

    def gather(self, *replies: Reply[Any]) -> Reply[tuple[Any, ...]]:
        """What several calls return, in the order in which they are given."""
        for reply in replies:
            if not isinstance(reply, Reply):
                raise TypeError(f"gather takes calls, such as hotel[id].reserve(), not {reply!r}")
        return Gathered(replies)


class Calls:
    """The calls of the function that runs, as entities see them that are called in it."""

    __slots__ = ()

    #: Calls are made here, and take place elsewhere.
    is_remote = True

    @property
    def running(self) -> Running:
        """The transaction that this thread is in."""
        return cast(Running, local.transaction)

    @property
    def owner(self) -> tuple[Entity, _native.Row] | None:
        """Whose function runs, and on which row."""
        running = self.running
        handler, row = running.handler, running.own_row()
        if isinstance(handler, OpaqueFunction) and row is not None:
            return handler.called.entity, row
        return None

    def send(
        self, function: Function, key: tuple[Any, ...], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Remote:
        """Makes a call. Whatever is wrong with it aborts the transaction, also when somebody
        catches it."""
        running = cast(Running, local.transaction)
        try:
            if named or len(args) != len(function.parameters.columns):
                args = function.filled(args, named)
            return Remote(running, running.call(function.index, key, args))
        except BaseException as error:
            running.mark(*verdict(error))
            raise


CALLS = Calls()


class Described(NamedTuple):
    """A function, for the engine's half."""

    handler: OpaqueHandler
    #: The same when another function calls it: then that one's client says what may be emitted.
    inner: OpaqueHandler
    #: Of a function of an entity.
    called: Function | None
    table: Table | None
    takes_event: bool


def remote(opaques: Iterable[object]) -> list[Described]:
    """The app's functions, as its spec gives them, for nodes."""
    handlers = [opaque for opaque in opaques if isinstance(opaque, OpaqueHandler)]
    functions = [handler for handler in handlers if isinstance(handler, OpaqueFunction)]
    emits = {stream for function in functions for stream in function.emits}
    made: list[Described] = []
    for handler in handlers:
        inner = copy.copy(handler)
        inner.emits = handler.emits | emits
        called = handler.called if isinstance(handler, OpaqueFunction) else None
        table = called.entity.table if called is not None else None
        takes_event = not isinstance(handler, OpaqueCall)
        made.append(Described(handler, inner, called, table, takes_event))
    return made
