"""The app in the form that the engine reads."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tidemill import mixed, units
from tidemill.entity import Function, OpaqueFunction, calls_entities
from tidemill.external import OpaqueExternal
from tidemill.json_schema import reply_schema
from tidemill.opaque import OpaqueCall, OpaqueHandler, OpaqueProcedure, OpaqueTrigger
from tidemill.source import code_hash
from tidemill.types import Json
from tidemill.writes import roles_of_outputs

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.stream import Handler
    from tidemill.trigger import Trigger


def spec(
    app: App, settings: Mapping[str, Any], keep_all: bool, push: bool
) -> tuple[Json, list[Any]]:
    """Returns the app in the form that the engine reads, and its functions by number."""
    handlers: list[Json] = []
    opaques: list[Any] = []
    units.check(app)
    mixed.check(app)
    share_emits(app)
    for handler in app.handlers:
        handlers.append(handler.handler_json(len(opaques)))
        if handler.recorder is None:
            kind: type[OpaqueHandler] = OpaqueHandler
            if isinstance(handler, Function):
                kind = OpaqueFunction
            elif handler.is_procedure or handler.called:
                kind = OpaqueProcedure if handler.is_procedure else OpaqueCall
            opaques.append(kind(handler.function, handler))
    triggers = []
    for trigger in app.triggers:
        triggers.append(trigger.json(len(opaques)))
        opaques.append(OpaqueTrigger(trigger))
    externals = []
    for external in app.externals:
        externals.append(external.external_json(len(opaques)))
        opaques.append(OpaqueExternal(external))
    sources = [s for s in app.sources if push or s["files"] is not None or "kafka" in s]
    served = "http_port" in settings
    # The streams of calls, timers and external answers: clients and the engine fill them.
    others = [*(app.calls if served else ()), *(stream for stream, _ in app.timers)]
    others += [external.answers for external in app.externals]
    if push or others:
        for stream in app.streams if push else others:
            if stream.origin == "input" and not stream.has_source:
                sources.append(
                    {
                        "stream": stream.name,
                        "out_of_orderness_us": 0,
                        "idle_us": None,
                        "files": None,
                        "at": stream.at,
                    }
                )
    kept = list(app.kept)
    if keep_all:
        kept += [n for n in all_outputs(app) if n not in kept]
    spec = {
        "program": {
            "name": app.name,
            "seed": app.seed,
            "tables": [table.json() for table in app.tables.values()],
            "streams": [stream.json() for stream in app.streams],
            "sources": [],
            "handlers": handlers,
            "calls": [stream.id for stream in app.calls],
            "timers": [{"stream": s.id, "period_us": us} for s, us in app.timers],
            "nested": app.nestings,
            "triggers": triggers,
            "windows": [window.json() for window in app.windows],
        },
        "sources": sources,
        "sinks": app.sinks,
        "keep": kept,
        "externals": externals,
        "functions": [
            {"handler": handler.name, "table": handler.entity.table.id}
            for handler in app.handlers
            if isinstance(handler, Function)
        ],
        "codes": codes(app),
        "procedures": {
            handler.name: {
                "private": handler.private,
                "caller": handler.caller,
                "about": inspect.getdoc(handler.function),
                "reply": reply_schema(handler.function),
            }
            for handler in app.handlers
            if handler.called
        },
        "asks_outside": asks_outside(app),
        "version": app.version,
        "settings": with_roles(app, settings) if served else dict(settings),
    }
    return spec, opaques


def codes(app: App) -> dict[str, str]:
    """Returns a hash of each function's code by its name.

    With it a start that gives other results can tell whether the code has changed.
    """
    opaque = [handler for handler in app.handlers if handler.recorder is None]
    callers: list[Handler | Trigger] = [*opaque, *app.triggers]
    return {caller.name: code_hash(caller.function) for caller in callers}


def asks_outside(app: App) -> bool:
    """Returns whether a function or trigger mentions ``lookup``, and so may ask outside."""

    def mentions(code: types.CodeType) -> bool:
        inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
        return "lookup" in code.co_names or any(map(mentions, inner))

    opaque = [handler for handler in app.handlers if handler.recorder is None]
    callers: list[Handler | Trigger] = [*opaque, *app.triggers]
    codes = (getattr(inspect.unwrap(of.function), "__code__", None) for of in callers)
    return any(code is not None and mentions(code) for code in codes)


def share_emits(app: App) -> None:
    """Adds the streams of all entity functions to each function that calls one.

    A called function may call any other one, and emits into its streams.
    """
    functions = [handler for handler in app.handlers if isinstance(handler, Function)]
    emitted = {stream for function in functions for stream in function.emits}
    opaque = [handler for handler in app.handlers if handler.recorder is None]
    callers: list[Handler | Trigger] = [*opaque, *app.triggers]
    for caller in callers if emitted else ():
        if calls_entities(caller.function):
            caller.emits = {*caller.emits, *emitted}


def with_roles(app: App, settings: Mapping[str, Any]) -> Json:
    """Returns the settings with the roles of procedures and of the tables that they write.

    Roles in the settings win.
    """
    roles = app.roles | settings.get("http_roles", {})
    outputs = roles_of_outputs(app, roles)
    found = {"http_roles": roles, "http_roles_default": outputs}
    return dict(settings) | {name: value for name, value in found.items() if value}


def all_outputs(app: App) -> Iterable[str]:
    """Yields the names of all outputs: emitted, returned, aborted, late and dead events."""
    for stream in app.streams:
        if stream.has_sides:
            yield f"{stream.name}.late"
            yield f"{stream.name}.dead"
        else:
            yield stream.name
