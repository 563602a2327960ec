"""Repeated declarations in an interactive session, such as a notebook.

There a cell is run again after a change. A declaration then replaces the earlier one of the same
name, as Python's own ``def`` does. It takes the numbers of the earlier one, so everything that was
declared around it stays as it is. In a file, a second declaration of a name is an error.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidemill.errors import ProgramError
from tidemill.types import Json, Schema

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.stream import Handler, Stream
    from tidemill.table import Table

#: How to mend a declaration that can't replace an earlier one.
ALL_AGAIN = "run all cells again from the one with tm.App(...), or give it another name"


def interactive() -> bool:
    """Returns whether the session is interactive: a notebook, IPython or Python's own prompt."""
    if hasattr(sys, "ps1") or hasattr(builtins, "get_ipython"):
        return True
    return not hasattr(sys.modules.get("__main__"), "__file__") and "-c" not in sys.orig_argv


def check_name(app: App, what: str, name: str, known: Mapping[str, Any], at: str) -> None:
    """Refuses a name that is taken, unless a new declaration may replace the earlier one."""
    if name not in known:
        return
    earlier = known[name]
    if interactive():
        refuse_running(app, what, name, at)
        if what in ("handler", "trigger"):
            refuse_used(app, what, name, earlier, at)
            return
        if what == "stream" and is_owned(app, earlier):
            return
    raise taken(what, earlier, at)


def taken(what: str, earlier: Any, at: str) -> ProgramError:
    """Returns the error for a name that is taken."""
    return ProgramError(
        f"there are two {what}s named '{earlier.name}'; the first is at {earlier.at}",
        ALL_AGAIN if interactive() else "give one another name",
        at,
    )


def refuse_running(app: App, what: str, name: str, at: str) -> None:
    """Refuses a replacement in an app that runs."""
    from tidemill.mill import running

    if any(mill.app is app for mill in running()):
        raise ProgramError(
            f"{what} {name} is declared again while the app runs",
            "stop the app first: mill.stop()",
            at,
        )


def refuse_used(app: App, what: str, name: str, earlier: Any, at: str) -> None:
    """Refuses a replacement of what other declarations use."""
    from tidemill.external import External
    from tidemill.stream import Handler

    if not isinstance(earlier, Handler):
        return
    users = list(users_of(app, earlier))
    if isinstance(earlier.input, External) or any(e is earlier.input for e in answers(app)):
        users.append("external work")
    if users:
        raise ProgramError(
            f"{what} {name} is declared again, and {', '.join(users)} refers to the earlier one",
            ALL_AGAIN,
            at,
        )


def answers(app: App) -> Iterator[Stream]:
    """Yields the streams of answers from outside."""
    for external in app.externals:
        yield external.answers


def users_of(app: App, earlier: Handler) -> Iterator[str]:
    """Yields the names of the declarations that refer to a handler's streams."""
    streams = own_streams(earlier)
    numbers = {stream.id for stream in streams}
    for handler in app.handlers:
        if handler is not earlier and any(s in streams for s in (handler.input, *handler.more)):
            yield handler.name
    for stream in app.streams:
        derived = stream.origin.get("derived") if isinstance(stream.origin, dict) else None
        if derived is not None and derived["from"] in numbers:
            yield stream.name
    for trigger in app.triggers:
        if any(trigger.on is stream for stream in streams):
            yield trigger.name


def own_streams(handler: Handler) -> list[Stream]:
    """Returns the streams that were declared with a handler."""
    streams = [handler.aborted, *handler.aborted_of]
    if handler.has_output:
        streams.append(handler)
    if handler.input.name in (f"{handler.name}.calls", f"{handler.name}.firings"):
        streams.append(handler.input)
    return streams


def is_owned(app: App, stream: Stream) -> bool:
    """Returns whether a stream was declared with a handler, or is what is left of one."""
    fed = (*app.calls, *(firings for firings, _ in app.timers))
    has_failed = any(stream is own for own in fed) and not any(
        stream is handler.input for handler in app.handlers
    )
    return (
        stream.is_vacant
        or has_failed
        or any(stream is own for handler in app.handlers for own in own_streams(handler))
    )


def add_handler(app: App, handler: Handler) -> None:
    """Adds a handler to an app, in the place of an earlier one of its name."""
    earlier = next((one for one in app.handlers if one.name == handler.name), None)
    if earlier is None:
        app.handlers.append(handler)
        return
    number = earlier.index
    app.handlers[number] = handler
    for window in app.windows:
        if window.owner == number:
            window.owner = None
    for stream in own_streams(earlier):
        if app.streams[stream.id] is stream:
            vacate(stream)
    emitted = {stream for one in app.handlers for stream in one.emits}
    emitted |= {stream for one in app.triggers for stream in one.emits}
    for stream in earlier.emits - emitted:
        stream.origin = "input"


def vacate(stream: Stream) -> None:
    """Makes a stream one that nothing emits into, until another stream takes its place."""
    stream.is_vacant = True
    stream.origin = "emitted"
    forget_ends(stream)


def add_stream(app: App, stream: Stream) -> int:
    """Adds a stream to an app, in the place of an earlier one of its name; returns its number."""
    earlier = next((one for one in app.streams if one.name == stream.name), None)
    if earlier is None:
        app.streams.append(stream)
        return len(app.streams) - 1
    number = earlier.id
    if not interactive() or not may_replace(app, earlier, stream):
        raise taken("stream", earlier, stream.at)
    forget_ends(earlier)
    app.streams[number] = stream
    app.calls = [calls for calls in app.calls if calls is not earlier]
    app.timers = [timer for timer in app.timers if timer[0] is not earlier]
    return number


def may_replace(app: App, earlier: Stream, stream: Stream) -> bool:
    """Returns whether a stream may take the place of an earlier one."""
    if earlier.is_vacant:
        return True
    kinds = [next(iter(s.origin)) if isinstance(s.origin, dict) else "" for s in (earlier, stream)]
    if kinds[0] != kinds[1] or type(earlier) is not type(stream):
        return False
    return is_owned(app, earlier) or is_bare(app)


def forget_ends(stream: Stream) -> None:
    """Removes the sources and sinks of a stream, which are declared again with it."""
    app, sides = stream.app, (stream.name, f"{stream.name}.late", f"{stream.name}.dead")
    app.sources = [source for source in app.sources if source["stream"] != stream.name]
    app.sinks = [sink for sink in app.sinks if sink["stream"] not in sides]
    stream.has_source = stream.pushed = False
    stream.batched = None


def same_stream(app: App, made: Json, name: str, at: str) -> Stream | None:
    """Returns the earlier stream of this name if its declaration is the same."""
    earlier = next((stream for stream in app.streams if stream.name == name), None)
    if earlier is None or is_owned(app, earlier):
        return None
    refuse_running(app, "stream", name, at)
    if declared(earlier) == made:
        forget_ends(earlier)
        return earlier
    if not is_bare(app):
        raise changed("stream", name, at)
    return None


def same_derived(
    app: App, name: str | None, schema: Schema, origin: Json, at: str
) -> Stream | None:
    """Returns the earlier stream that is derived in the same way."""
    wanted = [schema.json(), None, "side", origin]
    for stream in app.streams:
        if name in (None, stream.name) and declared(stream) == wanted:
            refuse_running(app, "stream", stream.name, at)
            forget_ends(stream)
            return stream
    return None


def declared(stream: Stream) -> Json:
    """Returns the declaration of a stream, in a form to compare."""
    origin = "input" if stream.origin == "emitted" else stream.origin
    return [stream.schema.json(), stream.time, stream.late_policy, origin]


def same_table(app: App, made: Table) -> Table:
    """Returns the table of an app for a declaration: the earlier one if it is the same."""
    earlier = app.tables.get(made.name)
    if earlier is None:
        return made
    refuse_running(app, "table", made.name, made.at)
    made.id = earlier.id
    if without_line(earlier.json()) == without_line(made.json()):
        return earlier
    if not is_bare(app) or earlier.keeps is not None:
        raise changed("table", made.name, made.at)
    return made


def without_line(declaration: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a declaration without the user's line."""
    return {name: value for name, value in declaration.items() if name != "at"}


def is_bare(app: App) -> bool:
    """Returns whether an app has only tables and streams, which refer to nothing."""
    has_more = app.handlers or app.triggers or app.windows or app.externals
    plain = all(table.keeps is None for table in app.tables.values())
    return not has_more and plain and all(type(s.origin) is str for s in app.streams)


def changed(what: str, name: str, at: str) -> ProgramError:
    """Returns the error for a changed declaration that others may refer to."""
    return ProgramError(
        f"{what} {name} is declared again in another way, and other declarations may use it",
        ALL_AGAIN,
        at,
    )


def replaced(
    items: list[Any], made: Any, name: Callable[[Any], object] = lambda item: item.name
) -> None:
    """Adds an item to a list, in the place of an earlier one of its name."""
    for place, earlier in enumerate(items):
        if name(earlier) == name(made):
            items[place] = made
            return
    items.append(made)
