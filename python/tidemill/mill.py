"""A running app, in this process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidemill import _native
from tidemill.config import apart, in_memory
from tidemill.context import local, outside
from tidemill.errors import Error, Fault, ProgramError, aborted
from tidemill.source import here
from tidemill.stream import Handler, Side, Stream
from tidemill.table import Table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from tidemill.app import App
    from tidemill.entity import Entity

#: So long one is waited for that Ctrl-C has not let end, in microseconds.
_ENDING_US = 3_000_000


class Mill:
    """A running app. Made by :meth:`tidemill.App.start`; use it with ``with``.

    In memory, leaving the ``with`` block runs everything that was sent to its end. With a data
    directory it waits until what was sent is safe and stops, so that the next start goes on;
    :meth:`finish` is for whoever will send no more, ever. Leaving it by an exception stops after
    what is in work. One that nobody holds any more is stopped, too, with a ``ResourceWarning``.

    All methods may be called from any thread, but not from inside a function that runs as a
    transaction, and not in a child process that was forked. While they wait Ctrl-C is noticed.
    """

    def __init__(
        self, app: App, settings: Mapping[str, Any], *, keep_all: bool, push: bool
    ) -> None:
        self.app = app
        outside("app.start()")
        self._process = os.getpid()
        spec, opaques = app.spec(apart(settings)[0], keep_all=keep_all, push=push)
        self._native = _native.Mill(json.dumps(spec), opaques)
        self._scheme = "https" if "http_cert" in settings else "http"
        self._ended = self._ending = False
        self._durable = not in_memory(settings)
        #: By stream: the row behind what this process has sent.
        self._sent: dict[str, int] = {}
        self._lock = threading.Lock()
        _RUNNING.add(self)

    def _open(self, what: str) -> _native.Mill:
        """The engine, for whoever may ask it."""
        outside(f"mill.{what}()")
        if os.getpid() != self._process:
            raise ProgramError(
                f"this process, {os.getpid()}, was forked from {self._process}, in which the "
                "engine runs: it can't be used here",
                "use it where it was started, or start the process with multiprocessing's method "
                "'spawn' and let it be a client: app.start(http_port=0) and tm.Client(mill.url)",
                here(),
            )
        return self._native

    def _leave(self) -> None:
        """Ends it for whoever has not."""
        if os.getpid() != self._process:
            return
        if self._ended:
            if self._ending and local.transaction is None:
                # What it ends with is for whoever called stop() or finish(), and they were
                # interrupted: this only lets it come to its end.
                with contextlib.suppress(Error):
                    self._native.wait(_ENDING_US)
            return
        self._ended = True
        warnings.warn(
            f"a mill of app {self.app.name} was let go while it ran, and is stopped: use it with "
            "'with app.start() as mill:', or call mill.stop() or mill.finish()",
            ResourceWarning,
            stacklevel=3,
            source=self,
        )
        if local.transaction is not None or local.asks:
            # A function runs here, which the engine waits for.
            self._native.abandon()
            return
        # Whatever has ended it: nobody is left to be told.
        with contextlib.suppress(Error):
            self._native.stop()

    def __del__(self) -> None:
        if hasattr(self, "_durable"):
            self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended or os.getpid() != self._process:
            return
        if kind is None and not self._durable:
            self.finish()
            return
        try:
            if kind is None:
                self._acknowledge_all()
        except BaseException:
            self.give_way()
            raise
        if kind is None:
            self.stop()
        else:
            self.give_way()

    def send(self, stream: Stream | str, rows: object, wait: bool = False) -> None:
        """Sends events: a list of dicts, a dict of lists, or what has Arrow's interface.

        That is tables and batches of pyarrow, frames of pandas and polars, relations of DuckDB;
        columns whose type is the stream's already are taken without a copy. When one row does not
        fit, none of the call is sent, and the error names the row and its column.

        Waits while the engine is behind. With ``wait=True`` it returns when the rows are in a cut:
        their transactions have been executed, or wait for their time, and where there is a data
        directory they are on disk for good. Without it, rows may be lost in a crash until
        then; :meth:`sent` says after a restart from which row on to send again. Many threads may
        send with ``wait=True``; their rows go to disk together.

        Instead of a stream there may be a procedure that is called, or a function of an entity:
        then each row is a call, its parameters, whose reply nobody waits for.
        """
        native = self._open("send")
        name = self._stream_name(stream)
        behind = native.send(name, rows)
        if self._durable:
            with self._lock:
                self._sent[name] = max(behind, self._sent.get(name, 0))
        if wait and behind:
            native.acknowledge(name, behind)

    def call(self, procedure: Handler | str, /, **arguments: object) -> Any:
        """Calls a procedure, and waits for its reply.

        The call is a transaction in the one order with all others, and what it has done is on disk,
        where there is a data directory, before it returns. When it aborts, by ``tx.require``, say,
        ``tm.Abort`` is raised with the reason, or a class derived from it, as the function has
        raised it; when the function fails, by any other exception, ``tm.Fault``. Many threads may
        call; their calls go to disk together.

        When the engine ends before there is a reply, an error says so: whether the call was
        executed is then seen after the next start.
        """
        native = self._open("call")
        name = procedure.name if isinstance(procedure, Handler) else procedure
        if not any(calls.name == f"{name}.calls" for calls in self.app.calls):
            raise ProgramError(
                f"{procedure!r} can't be called", "call what @app.procedure has made", here()
            )
        kind, value = native.call(name, [arguments])
        if kind == "aborted":
            raise aborted(value)
        if kind == "fault":
            raise Fault(value)
        return None if value is None else value[0]

    @property
    def url(self) -> str | None:
        """Where clients are answered over HTTP (see ``tidemill.Client``), if they are."""
        address = self._native.address()
        return None if address is None else f"{self._scheme}://{address}"

    def sent(self, stream: Stream | str) -> int:
        """How many rows of a stream the engine knows, those of runs before included.

        After a restart whoever sends goes on behind them: they are on disk.
        """
        return self._open("sent").sent(self._stream_name(stream))

    def _acknowledge_all(self) -> None:
        with self._lock:
            sent = dict(self._sent)
        for name, behind in sent.items():
            self._native.acknowledge(name, behind)

    def drain(self) -> None:
        """Waits until everything sent so far is committed, and files are read to their end."""
        self._open("drain").drain()

    def finish(self) -> dict[str, Any]:
        """Ends all input for good, runs everything to the end and closes; gives the summary.

        With a data directory the end is recorded, too: a later start finds everything done, and
        nothing can be sent any more.
        """
        return self._end(self._open("finish").finish)

    def stop(self) -> dict[str, Any]:
        """Ends after what is in work, without waiting for more input; gives the summary.

        With a data directory it takes a snapshot, and the next start goes on from there.
        """
        return self._end(self._open("stop").stop)

    def _end(self, end: Callable[[], str]) -> dict[str, Any]:
        self._ended = self._ending = True
        summary = end()
        # Not where Ctrl-C has ended the waiting: the engine goes on ending then.
        self._ending = False
        return self._summary(summary)

    def give_way(self) -> dict[str, Any]:
        """As :meth:`stop`, but a recovery gives way: the next start begins it anew.

        What was recorded is as safe as before.
        """
        return self._end(self._open("give_way").give_way)

    def wait(self, seconds: float) -> bool:
        """Waits for the end of all input at most so long; whether it has come."""
        return self._open("wait").wait(max(0, int(seconds * 1_000_000)))

    def status(self) -> dict[str, Any]:
        """Where the run is: epoch, events, transactions, rate, lag; ``recovering`` while what was
        recorded before is being executed again, ``stalled`` with the reason while the disk is full,
        ``troubles`` with what holds sources and sinks up (brokers that are away), and the epoch of
        the newest snapshot.
        """
        found: dict[str, Any] = json.loads(self._open("status").status())
        return found

    def summary(self) -> dict[str, Any]:
        """What has been done so far."""
        return self._summary(self._open("summary").summary())

    def table(self, table: Table | Entity | str) -> TableView:
        """A table, or that of an entity, as the last finished epoch left it."""
        self._open("table")
        name = table if isinstance(table, str) else getattr(table, "name", None)
        if not isinstance(name, str):
            raise ProgramError(f"{table!r} is no table", "give a table, or its name", here())
        if name not in self.app.tables:
            raise ProgramError(f"there is no table '{name}'", _known(name, self.app.tables), here())
        return TableView(self, self.app.tables[name])

    def output(self, stream: Side | str) -> OutputView:
        """The events of a handler's output, its ``aborted``, a stream's ``late`` or ``dead``."""
        self._open("output")
        name = stream.name if isinstance(stream, Side) else stream
        known = []
        for one in self.app.streams:
            known.append(one.name)
            if one.has_sides:
                known += [f"{one.name}.dead", f"{one.name}.late"]
        if name not in known:
            if any(handler.name == name for handler in self.app.handlers):
                raise ProgramError(
                    f"handler {name} returns nothing", "return dict(column=value, ...)", here()
                )
            raise ProgramError(f"there is no stream '{name}'", _known(name, known), here())
        return OutputView(self, name)

    def _stream_name(self, stream: Stream | str) -> str:
        if isinstance(stream, Handler) and stream.called:
            stream = stream.input
        name = stream.name if isinstance(stream, Stream) else stream
        for known in self.app.streams:
            if known.name == name:
                if known.origin != "input":
                    raise ProgramError(
                        f"stream {name} is made by the app; nothing can be sent into it",
                        "send into the stream that it comes from",
                        here(),
                    )
                return name
        names = [stream.name for stream in self.app.streams if stream.origin == "input"]
        raise ProgramError(f"there is no stream '{name}'", _known(name, names), here())

    def _summary(self, text: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(text)
        return found


class TableView:
    """The rows of a table, as the last finished epoch left them."""

    def __init__(self, mill: Mill, table: Table) -> None:
        self._mill = mill
        self._table = table

    @property
    def _native(self) -> _native.Mill:
        return self._mill._open("table")

    def rows(self) -> list[dict[str, Any]]:
        """All rows, by key."""
        return self._native.table_rows(self._table.name)

    def to_arrow(self) -> pa.RecordBatch:
        """All rows, by key."""
        return self._native.table_arrow(self._table.name)

    def to_pandas(self) -> pd.DataFrame:
        """All rows, by key, as a frame of pandas."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All rows, by key, as a frame of polars."""
        return _to_polars(self.to_arrow())

    def __getitem__(self, key: object) -> dict[str, Any]:
        """The row with this key; ``KeyError`` when there is none."""
        row = self._native.table_row(self._table.name, self._table.key_values(key))
        if row is None:
            raise KeyError(key)
        return row

    def __contains__(self, key: object) -> bool:
        try:
            self[key]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def __len__(self) -> int:
        return int(self._native.table_arrow(self._table.name).num_rows)

    def __repr__(self) -> str:
        return f"<table {self._table.name} of a running app>"


class OutputView:
    """The events of an output that were kept, in their order.

    They are kept in memory: with a data directory, those that came out since the last snapshot
    before the start are here, and all of them in the files that the output is written to.
    """

    def __init__(self, mill: Mill, name: str) -> None:
        self._mill = mill
        self._name = name

    @property
    def _native(self) -> _native.Mill:
        return self._mill._open("output")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        index = 0
        while batches := self._native.output_rows(self._name, index):
            index += len(batches)
            for batch in batches:
                yield from batch

    def rows(self) -> list[dict[str, Any]]:
        """All events so far."""
        return list(self)

    def to_arrow(self) -> pa.Table:
        """All events so far."""
        return self._native.output_arrow(self._name)

    def to_pandas(self) -> pd.DataFrame:
        """All events so far, as a frame of pandas."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All events so far, as a frame of polars."""
        return _to_polars(self.to_arrow())

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        return f"<output {self._name} of a running app>"


def _to_polars(found: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(found)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _known(name: str, known: Iterable[str]) -> str:
    """What a name that is not there was probably meant to be, or which there are."""
    names = list(known)
    near = _native.nearest(name, names)
    return f"did you mean '{near}'?" if near else f"there are {', '.join(names)}"


#: Those that were started in this process, or in one that it was forked from.
_RUNNING: weakref.WeakSet[Mill] = weakref.WeakSet()


def _leave_all() -> None:
    """Ends those that still run, as long as the interpreter does: their functions need it."""
    for mill in list(_RUNNING):
        mill._leave()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_native.forked)
