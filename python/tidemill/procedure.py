"""Procedures: functions that take batches of streams, or that clients call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemill import again, mixed
from tidemill.columns import columns_at
from tidemill.errors import ProgramError
from tidemill.given import caller_of, parameters_of
from tidemill.stream import Handler, Stream
from tidemill.types import Column, Schema, any_value, optional

if TYPE_CHECKING:
    from tidemill.app import App


def declare(
    app: App,
    streams: Sequence[Any],
    name: str | None,
    out: object,
    emits: Iterable[Stream],
    owns: object,
    role: str | None,
    at: str,
) -> Any:
    """Declares a procedure, or returns the decorator that does; see :meth:`App.procedure`."""
    if len(streams) == 1 and callable(streams[0]) and not isinstance(streams[0], Stream):
        return called(app, streams[0], None, emits, owns, None, at)
    if streams and role is not None:
        raise ProgramError(
            "a procedure that takes streams can't have a role",
            "leave out role=: clients do not call a procedure that takes streams",
            at,
        )
    if not all(isinstance(stream, Stream) for stream in streams):
        raise ProgramError(
            "@app.procedure takes streams, or nothing where clients call it",
            "write @app.procedure(stream), or @app.procedure",
            at,
        )
    for stream in streams:
        mixed.refuse(app, stream, "the procedure", at)
        if isinstance(stream, Handler):
            stream._returns("taken")
        if streams.count(stream) > 1:
            raise ProgramError(f"stream {stream.name} is given twice", "", at)

    def decorate(function: Callable[..., Any]) -> Handler:
        if not streams:
            if out is not None:
                raise ProgramError(
                    "a procedure that clients call declares no columns: it may return any value",
                    "leave out the argument out=",
                    at,
                )
            return called(app, function, name, emits, owns, role, at)
        chosen = str(name or getattr(function, "__name__", "procedure"))
        app._name("handler", chosen, app.handlers, at)
        app._name("stream", chosen, app.streams, at)
        made = None if out is None else columns_at(at, f"out of {chosen}", out, {})
        first, *more = streams
        return Handler(app, function, first, chosen, at, True, made, emits, more, owns=owns)

    return decorate


def called(
    app: App,
    function: Callable[..., Any],
    name: str | None,
    emits: Iterable[Stream],
    owns: object,
    role: str | None,
    at: str,
) -> Handler:
    """Declares a procedure that clients call."""
    chosen = str(name or getattr(function, "__name__", "procedure"))
    app._name("handler", chosen, app.handlers, at)
    app._name("stream", chosen, app.streams, at)
    given = parameters_of(function, chosen, at)
    calls, _, reply = calls_of(app, f"procedure {chosen}", chosen, [], given, role, at)
    made = Handler(app, function, calls, chosen, at, True, reply, emits, called=True, owns=owns)
    made.caller = caller_of(function)
    return made


def calls_of(
    app: App,
    owner: str,
    called: str,
    keys: Sequence[Column],
    parameters: Mapping[str, object],
    role: str | None,
    at: str,
) -> tuple[Stream, Schema, Schema]:
    """Declares the stream of the calls of a procedure or function.

    Returns the stream, whose columns are ``keys`` and the parameters, then the columns of the
    parameters and of the reply.
    """
    if role is not None and (not isinstance(role, str) or not role):
        raise ProgramError(f"{owner}: a role is a text, not {role!r}", "", at)
    columns = columns_at(at, owner, parameters, {}) if parameters else Schema(())
    reply = columns_at(at, f"reply of {called}", {"reply": optional(any_value)}, {})
    calls = Stream(app, f"{called}.calls", Schema((*keys, *columns.columns)), "input", at)
    app.calls.append(calls)
    app.roles.pop(called, None)
    if role is not None:
        app.roles[called] = role
    return calls, columns, reply


def nest(
    app: App,
    name: str,
    procedures: Sequence[Handler],
    pairs: Sequence[tuple[Handler, Handler]],
    at: str,
) -> None:
    """Makes procedures one nested transaction; see :meth:`App.nested`."""
    if not again.interactive():
        known = [nesting["name"] for nesting in app.nestings]
        if name in known:
            raise ProgramError(
                f"there are two nested transactions named '{name}'", "give one another name", at
            )
    for procedure in [*procedures, *(p for pair in pairs for p in pair)]:
        if not isinstance(procedure, Handler) or not procedure.is_procedure:
            raise ProgramError(
                f"nested transaction {name}: {procedure!r} is not a procedure",
                "write app.nested(name, first, second, ...) with what @app.procedure gave",
                at,
            )
        mixed.refuse(app, procedure, f"nested transaction {name}", at)
    nesting = {
        "name": name,
        "procedures": [procedure.index for procedure in procedures],
        "before": [[a.index, b.index] for a, b in pairs],
        "at": at,
    }
    again.replaced(app.nestings, nesting, lambda one: one["name"])
