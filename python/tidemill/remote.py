"""Functions on several processes: calls are messages, and a function comes and goes.

The same functions run in one process, where a call takes place as soon as it is made
(:mod:`tidemill.entity`). Here it is made, and takes place where its entity lives; an async function
waits for it, a plain one is begun again when it is there. What all of them come to is the same.
"""

from __future__ import annotations

import copy
import decimal as dec
from collections.abc import Generator, Iterable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from tidemill import _native
from tidemill.context import local
from tidemill.entity import FIXED, Context, Function, OpaqueFunction, Reply
from tidemill.opaque import CONTEXT, OpaqueCall, OpaqueHandler, Running, Tx, verdict

if TYPE_CHECKING:
    from tidemill.entity import Entity
    from tidemill.stream import Stream

#: Where a turn of a function ends: it is over, or waits for these of its calls, or aborts.
Outcome = list[int] | tuple[str, str] | None


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


class Gathered(Reply[tuple[Any, ...]]):
    """What several calls will return."""

    __slots__ = ("_replies",)

    def __init__(self, replies: tuple[Reply[Any], ...]) -> None:
        self._replies = replies

    def __await__(self) -> Generator[Any, Any, tuple[Any, ...]]:
        if self.calls():
            yield self
        return self.result()

    def result(self) -> tuple[Any, ...]:
        """What the functions have returned."""
        return tuple(reply.result() for reply in self._replies)

    def calls(self) -> list[int]:
        """The calls of which nobody knows yet what they return."""
        waits: list[int] = []
        for reply in self._replies:
            if isinstance(reply, Remote | Gathered):
                waits += reply.calls()
        return waits

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


class Caller:
    """A function that runs, as entities see it that are called in it."""

    __slots__ = ("coroutine", "decimals", "is_request", "owner", "running")

    #: Calls are made here, and take place elsewhere.
    is_remote = True

    def __init__(self, running: Running, is_request: bool) -> None:
        self.running = running
        self.is_request = is_request
        self.coroutine: CoroutineType[Any, Any, Any] | None = None
        self.decimals: dec.Context | None = None
        #: Whose function runs, and on which row.
        self.owner: tuple[Entity, _native.Row] | None = None

    def send(
        self, function: Function, key: tuple[Any, ...], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Remote:
        """Makes a call. Whatever is wrong with it aborts the transaction, also when somebody
        catches it."""
        running = self.running
        try:
            if named or len(args) != len(function.parameters.columns):
                args = function.filled(args, named)
            return Remote(running, running.call(function.index, key, args))
        except BaseException as error:
            running.mark(*verdict(error))
            raise


class RemoteHandler:
    """A function that takes an event, as nodes run it."""

    def __init__(self, handler: OpaqueHandler, emits: set[Stream]) -> None:
        self.handler = handler
        #: The same when another function calls it: then that one's client says what may be emitted.
        self.inner = copy.copy(handler)
        self.inner.emits = handler.emits | emits

    def begin(
        self,
        running: Running,
        key: tuple[object, ...],
        args: tuple[object, ...],
        is_request: bool,
    ) -> Outcome:
        """Begins the function."""
        running.handler = self.handler if is_request else self.inner
        running.graph = caller = Caller(running, is_request)
        outer, local.transaction = local.transaction, running
        before = dec.getcontext()
        dec.setcontext(CONTEXT.copy())
        try:
            result = self._call(caller, key, args)
            if type(result) is CoroutineType:
                caller.coroutine = result
                return self._goes_on(caller)
            self._end(caller, result)
        except BaseException as error:
            # Even SystemExit: a function can abort its transaction, and nothing more.
            return verdict(error)
        finally:
            if caller.coroutine is not None:
                caller.decimals = dec.getcontext()
            dec.setcontext(before)
            local.transaction = outer
        return None

    def resume(self, running: Running) -> Outcome:
        """Goes on, when what it waits for is there."""
        caller = running.graph
        assert isinstance(caller, Caller)
        outer, local.transaction = local.transaction, running
        before = dec.getcontext()
        assert caller.decimals is not None
        dec.setcontext(caller.decimals)
        try:
            return self._goes_on(caller)
        except BaseException as error:
            return verdict(error)
        finally:
            caller.decimals = dec.getcontext()
            dec.setcontext(before)
            local.transaction = outer

    def close(self, running: Running) -> None:
        """Ends what waits: it will not go on."""
        caller, running.graph = running.graph, None
        if isinstance(caller, Caller) and caller.coroutine is not None:
            outer, local.transaction = local.transaction, None
            try:
                caller.coroutine.close()
            except BaseException:
                # What it does at its end is not part of the transaction.
                pass
            finally:
                local.transaction = outer

    def _goes_on(self, caller: Caller) -> Outcome:
        coroutine = caller.coroutine
        assert coroutine is not None
        is_over, found = _native.step(coroutine)
        if is_over:
            self._end(caller, found)
            return None
        if not isinstance(found, Remote | Gathered):
            _native.refuse_wait(coroutine)
        waits: list[int] = found.calls()
        return waits

    def _call(self, caller: Caller, key: tuple[object, ...], args: tuple[object, ...]) -> Any:
        handler = self.handler
        return handler.function(Tx(caller.running), handler.event(args))

    def _end(self, caller: Caller, result: object) -> None:
        if result is not None:
            self.handler.emit_result(caller.running, result)
        caller.running.write_back()


class RemoteProcedure(RemoteHandler):
    """A procedure that is called."""

    def _call(self, caller: Caller, key: tuple[object, ...], args: tuple[object, ...]) -> Any:
        return self.handler.function(Tx(caller.running), *args)

    def _end(self, caller: Caller, result: object) -> None:
        caller.running.returned(result, caller.is_request, None)
        caller.running.write_back()


class RemoteFunction(RemoteHandler):
    """A function of an entity."""

    def __init__(self, handler: OpaqueFunction, emits: set[Stream]) -> None:
        super().__init__(handler, emits)
        self.called = handler.called
        self.entity = handler.called.entity
        self.function = handler.called.function

    def _call(self, caller: Caller, key: tuple[object, ...], args: tuple[object, ...]) -> Any:
        running = caller.running
        row = running.row(self.entity.table, key)
        caller.owner = (self.entity, row)
        if not self.called.creates:
            self.called.check(row)
        return self.function(row, RemoteContext(running), *args)

    def _end(self, caller: Caller, result: object) -> None:
        kind, name = type(result), None
        if kind not in FIXED or kind is int:
            if isinstance(result, Reply):
                self.called.refuse_reply()
            name = self.called.name
        caller.running.returned(result, caller.is_request, name)
        caller.running.write_back()


def remote(opaques: Iterable[object]) -> list[RemoteHandler]:
    """The app's functions, as its spec gives them, for nodes."""
    handlers = [opaque for opaque in opaques if isinstance(opaque, OpaqueHandler)]
    functions = [handler for handler in handlers if isinstance(handler, OpaqueFunction)]
    emits = {stream for function in functions for stream in function.emits}
    made: list[RemoteHandler] = []
    for handler in handlers:
        if isinstance(handler, OpaqueFunction):
            made.append(RemoteFunction(handler, emits))
        elif isinstance(handler, OpaqueCall):
            made.append(RemoteProcedure(handler, emits))
        else:
            made.append(RemoteHandler(handler, emits))
    return made
