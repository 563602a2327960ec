"""The units of time: a span must be in the unit of the time column that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.entity import Entity
from tidemill.source import referenced
from tidemill.stream import Stream
from tidemill.table import Table
from tidemill.types import INT, other_unit

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.stream import Handler


def input_of(stream: Stream) -> Stream:
    """Returns the input stream from which a stream is derived, or the stream itself."""
    while isinstance(stream.origin, dict) and "derived" in stream.origin:
        stream = stream.app.streams[stream.origin["derived"]["from"]]
    return stream


def counts_ints(stream: Stream) -> bool:
    """Returns whether the time of a stream, or of its input stream, is an int."""
    source = input_of(stream)
    if source.time is None:
        return False
    return source.schema.columns[source.schema.index[source.time]].ty == INT


def check(app: App) -> None:
    """Refuses spans in hours and seconds where a time is an int, whose unit is unknown."""
    by_stream = {s: input_of(s) for s in app.streams if counts_ints(s)}
    size = -1
    while size != len(by_stream):
        # Returned and emitted events have the time of the handler's input.
        size = len(by_stream)
        for handler in app.handlers:
            source = _source(handler, by_stream)
            if source is not None:
                made = [handler, *handler.emits, *handler.aborted_of]
                by_stream.update({s: source for s in made if isinstance(s, Stream)})
    by_table: dict[Table, Stream] = {}
    for handler in app.handlers:
        source = _source(handler, by_stream)
        if source is not None:
            for table in _touched(handler):
                by_table.setdefault(table, source)
    for table in app.tables.values():
        table.counts = by_table.get(table)
        if table.counts is not None and table.span is not None:
            raise other_unit(
                f"table {table.name}: history={table.span!r}",
                "history",
                table.counts.name,
                table.at,
            )
    for window in app.windows:
        owner = None if window.owner is None else app.handlers[window.owner]
        source = None if owner is None else _source(owner, by_stream)
        if source is not None and window.span is not None:
            what, given = window.span
            raise other_unit(
                f"window {window.name}: {what}={given!r}", what, source.name, window.at
            )
    for handler in app.handlers:
        for table, over, at in handler.recorder.windows if handler.recorder is not None else ():
            over.check_unit(table, at)


def _source(handler: Handler, by_stream: dict[Stream, Stream]) -> Stream | None:
    taken = (by_stream.get(stream) for stream in (handler.input, *handler.more))
    return next((source for source in taken if source is not None), None)


def _touched(handler: Handler) -> Iterator[Table]:
    """Yields the tables that a handler reads or writes, as far as its code shows."""
    tables = list(handler.app.tables.values())
    if handler.recorder is not None:
        recorded: list[Any] = [*handler.recorder.rows]
        recorded += [
            step["op"]["range"] for step in handler.recorder.steps if "range" in step["op"]
        ]
        yield from (tables[found["table"]] for found in recorded)
        return
    for found in referenced(handler.function):
        table = found.table if isinstance(found, Entity) else found
        if isinstance(table, Table) and table.app is handler.app:
            yield table
