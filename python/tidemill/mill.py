"""An app that runs in this process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidemill import _native, mixed
from tidemill.config import apart, in_memory
from tidemill.context import local, outside, refuse_loading
from tidemill.errors import Error, Fault, ProgramError, ResourceError, aborted
from tidemill.source import here, user_frame
from tidemill.stream import Handler, Side, Stream
from tidemill.table import Table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from tidemill.app import App
    from tidemill.entity import Entity

#: The longest wait for the end of a mill whose stop Ctrl-C interrupted, in microseconds.
_ENDING_US = 3_000_000


class Mill:
    """A running app, made by :meth:`tidemill.App.start`. Use it with ``with``.

    At the end of the ``with`` block, an app in memory executes everything that was sent. With a
    data directory it waits until all sent rows are durable, and stops, so that the next start
    continues. Call :meth:`finish` if nothing will ever be sent again. An exception in the block
    stops the app after the current epoch. A mill without any reference left is stopped, too, with
    a ``ResourceWarning``.

    All methods may be called from any thread. They may not be called inside a function that runs
    as a transaction, or in a forked child process: there they raise :class:`ProgramError`. Ctrl-C
    interrupts them while they wait.

    The examples of the methods use the app of this one.

    Example:
        >>> import tidemill as tm
        >>> app = tm.App("counter")
        >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
        >>> words = app.stream("words", name=str)
        >>> @app.transaction(words)
        ... def count(tx, e):
        ...     counts[e.name].n += 1
        ...     return dict(name=e.name)
        >>> with app.start() as mill:
        ...     mill.send(words, [{"name": "tide"}, {"name": "tide"}])
        ...     mill.drain()
        ...     mill.table(counts)["tide"]
        {'name': 'tide', 'n': 2}
    """

    def __init__(
        self, app: App, settings: Mapping[str, Any], *, keep_all: bool, push: bool
    ) -> None:
        self.app = app
        outside("app.start()")
        refuse_loading()
        self._process = os.getpid()
        self._at = here()
        self._folder = None if in_memory(settings) else os.path.realpath(settings["data_dir"])
        spec, opaques = app.spec(apart(settings)[0], keep_all=keep_all, push=push)
        try:
            self._native = _native.Mill(json.dumps(spec), opaques)
        except ResourceError:
            self._refuse_second()
            raise
        self._scheme = "https" if "http_cert" in settings else "http"
        self._ended = self._ending = False
        self._durable = not in_memory(settings)
        #: Whether the end warns of faults: the summary of `tidemill run` lists them anyway.
        self._warns = keep_all
        #: The faults that callers got as exceptions, by handler.
        self._raised: Counter[str] = Counter()
        #: The row number after the last sent row, by stream.
        self._sent: dict[str, int] = {}
        self._lock = threading.Lock()
        _RUNNING.add(self)

    def _refuse_second(self) -> None:
        """Raises the error for a data directory that this process has open already."""
        for mill in running():
            if self._folder is not None and mill._folder == self._folder:
                raise ResourceError(
                    f"this process has the data directory {self._folder} open already, since "
                    f"{mill._at}",
                    "use that mill, or end it first with mill.stop(); another run needs another "
                    "data_dir",
                    here(),
                ) from None

    def _open(self, what: str) -> _native.Mill:
        """Returns the engine, if this thread and process may use it."""
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
        """Stops the engine, if the user has not."""
        if os.getpid() != self._process:
            return
        if self._ended:
            if self._ending and local.transaction is None:
                # Ctrl-C interrupted stop() or finish(). Their caller got the error, so this only
                # waits for the end.
                with contextlib.suppress(Error):
                    self._native.wait(_ENDING_US)
            return
        self._ended = True
        warnings.warn(
            f"a mill of app {self.app.name} lost its last reference while it ran, and is stopped: "
            "use 'with app.start() as mill:', or call mill.stop() or mill.finish()",
            ResourceWarning,
            stacklevel=3,
            source=self,
        )
        if local.transaction is not None or local.asks:
            # A function runs in this thread, and the engine waits for it.
            self._native.abandon()
            return
        # No caller is left to whom an error could be raised.
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
            self.stop_now()
            raise
        if kind is None:
            self.stop()
        else:
            self.stop_now()

    def send(self, stream: Stream | str, rows: object, wait: bool = False) -> None:
        """Sends events into a stream.

        The method waits while the engine is behind. When one row does not fit, no row of the call
        is sent. Without ``wait=True``, a crash may lose rows that are in no cut yet. After a
        restart :meth:`sent` returns the row from which to send again.

        Args:
            stream: The stream, or its name. A procedure that clients call, or a function of an
                entity, is possible, too: then each row has the parameters of one call, and the
                replies are dropped.
            rows: The events: a list of dicts, a dict of lists, or an object with Arrow's
                interface. Tables and batches of pyarrow, frames of pandas and polars, and
                relations of DuckDB have it. Columns that have the stream's type already are taken
                without a copy.
            wait: Whether to wait until the rows are in a cut. Their transactions have been
                executed then, or are buffered until their time. With a data directory the rows
                are on disk. Rows that several threads send are written together. The default is
                False.

        Raises:
            InputError: A row does not fit. The error names the row and its column.
            ProgramError: The stream is unknown, or is made by the app.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="word", word=str, n=tm.column(int, default=0))
            >>> words = app.stream("words", word=str)
            >>> @app.transaction(words)
            ... def count(tx, e):
            ...     counts[e.word].n += 1
            >>> with app.start() as mill:
            ...     mill.send(words, {"word": ["ebb", "flow", "ebb"]}, wait=True)
            ...     mill.table(counts).rows()
            [{'word': 'ebb', 'n': 2}, {'word': 'flow', 'n': 1}]
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
        """Calls a procedure or a function of an entity, and waits for its reply.

        The call is one transaction, in the one order with all others. With a data directory its
        writes are on disk before the method returns. Calls of several threads are written
        together. When the engine ends before the reply, an error says so. The next start then
        shows whether the call was executed.

        Args:
            procedure: The procedure or function, or its name.
            **arguments: The values of its parameters. For a function of an entity the key columns
                come with them.

        Returns:
            The value that the function returned.

        Raises:
            Abort: The function aborted, for instance by ``tx.require``. The exception has the
                class that the function raised.
            Fault: The function raised any other exception.
            ProgramError: The procedure is unknown, or clients can't call it.
            InputError: The arguments do not fit the parameters.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> @app.procedure
            ... def count(tx, name: str, by: int = 1):
            ...     counts[name].n += by
            ...     return counts[name].n
            >>> with app.start() as mill:
            ...     mill.call(count, name="tides", by=2)
            2
        """
        native = self._open("call")
        name = procedure.name if isinstance(procedure, Handler) else procedure
        called = next((one for one in self.app.handlers if one.called and one.name == name), None)
        if called is None:
            self._refuse_foreign(procedure)
            raise ProgramError(
                f"{procedure!r} can't be called",
                "give a procedure that @app.procedure declared without streams",
                here(),
            )
        called.refuse_private(here())
        if called.caller in arguments:
            raise ProgramError(
                f"{name} gets its caller from the engine, and '{called.caller}' is given",
                f"leave out {called.caller}=",
                here(),
            )
        kind, value = native.call(name, [arguments])
        if kind == "aborted":
            raise aborted(value)
        if kind == "fault":
            with self._lock:
                self._raised[called.name] += 1
            raise Fault(value)
        return None if value is None else value[0]

    @property
    def url(self) -> str | None:
        """The address for HTTP clients (:class:`tidemill.Client`); None without ``http_port``.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> added = app.stream("added", name=str)
            >>> @app.procedure
            ... def count(tx, name: str, by: int = 1):
            ...     counts[name].n += by
            ...     tx.emit(added, name=name)
            ...     return counts[name].n
            >>> with app.start(http_port=0) as mill:
            ...     mill.url.startswith("http://127.0.0.1:")
            True
        """
        address = self._native.address()
        return None if address is None else f"{self._scheme}://{address}"

    def sent(self, stream: Stream | str) -> int:
        """Returns the number of rows of a stream that the engine has.

        Rows of earlier runs count, too. After a restart they are on disk, and a sender continues
        with the row of this number.

        Args:
            stream: The stream, or its name.

        Returns:
            The number of rows.

        Raises:
            ProgramError: The stream is unknown, or is made by the app.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     mill.sent(words)
            3
        """
        return self._open("sent").sent(self._stream_name(stream))

    def _acknowledge_all(self) -> None:
        with self._lock:
            sent = dict(self._sent)
        for name, behind in sent.items():
            self._native.acknowledge(name, behind)

    def drain(self) -> None:
        """Waits until all rows sent so far are committed, and all files are read to their end.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     mill.output(count).rows()[-1]
            {'name': 'tide'}
        """
        self._open("drain").drain()

    def finish(self) -> dict[str, Any]:
        """Ends all input for good, executes everything that was sent, and closes the app.

        With a data directory the end is recorded: a later start finds everything done, and no
        more rows can be sent.

        Returns:
            The summary of the run, as :meth:`summary` returns it.

        Example:
            >>> mill = app.start()
            >>> mill.send(words, [{"name": "tide"}])
            >>> mill.finish()["events"]
            1
        """
        return self._end(self._open("finish").finish)

    def stop(self) -> dict[str, Any]:
        """Stops the app after the current epoch, without waiting for more input.

        With a data directory it takes a snapshot, and the next start continues from there.

        Returns:
            The summary of the run, as :meth:`summary` returns it.

        Example:
            >>> mill = app.start()
            >>> mill.stop()["events"]
            0
        """
        return self._end(self._open("stop").stop)

    def _end(self, end: Callable[[], str]) -> dict[str, Any]:
        self._ended = self._ending = True
        summary = end()
        # After Ctrl-C this line is not reached, because the engine still ends.
        self._ending = False
        if self._warns:
            self._warn()
        return self._summary(summary)

    def _warn(self) -> None:
        """Warns of the faults of which nobody else has learned."""
        by_handler = Counter[str]()
        faults = self.faults()
        for fault in faults:
            by_handler[fault["handler"]] += fault["count"]
        unseen = by_handler - self._raised
        frame = user_frame()
        if not unseen or frame is None:
            return
        count = unseen.total()
        first = next(fault for fault in faults if fault["handler"] in unseen)
        text = f"{count:,} transaction{'s' if count > 1 else ''} failed: {described(first)}"
        if len(faults) > 1:
            text += "; mill.faults() has all reasons"
        warnings.warn_explicit(
            text,
            RuntimeWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
        )

    def faults(self) -> list[dict[str, Any]]:
        """Returns the reasons of all faults so far, the most frequent one first.

        Returns:
            A dict for each reason, with ``handler``, ``reason``, ``count``, and the line ``at``
            of the function that failed, if that is known.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("orders")
            >>> done = app.table("done", key="id", id=int)
            >>> @app.procedure
            ... def order(tx, id: int):
            ...     done.insert(id=10 // id)
            >>> with app.start() as mill:
            ...     try:
            ...         mill.call(order, id=0)
            ...     except tm.Fault:
            ...         [fault["handler"] for fault in mill.faults()]
            ['order']
        """
        found: list[dict[str, Any]] = json.loads(self._open("faults").faults())
        return found

    def stop_now(self) -> dict[str, Any]:
        """Stops the app as :meth:`stop` does, and interrupts a recovery that is in progress.

        The next start begins that recovery again. Everything recorded stays durable.

        Returns:
            The summary of the run, as :meth:`summary` returns it.

        Example:
            >>> mill = app.start()
            >>> mill.stop_now()["events"]
            0
        """
        return self._end(self._open("stop_now").stop_now)

    def wait(self, seconds: float) -> bool:
        """Waits for the end of all input.

        Args:
            seconds: The longest wait, in seconds.

        Returns:
            Whether all input has ended.

        Example:
            >>> with app.start() as mill:
            ...     mill.wait(0.01)
            False
        """
        return self._open("wait").wait(max(0, int(seconds * 1_000_000)))

    def status(self) -> dict[str, Any]:
        """Returns the state of the run.

        Returns:
            Epoch, events, transactions, rate, lag, and the epoch of the newest snapshot.
            ``recovering`` is true while the log is replayed. ``stalled`` has the reason while the
            disk is full. ``troubles`` has the problems of sources and sinks, such as brokers that
            do not answer.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     mill.status()["transactions"]
            3
        """
        found: dict[str, Any] = json.loads(self._open("status").status())
        return found

    def summary(self) -> dict[str, Any]:
        """Returns the summary of the run so far: counts of events, transactions and aborts.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     mill.summary()["committed"]
            3
        """
        return self._summary(self._open("summary").summary())

    def table(self, table: Table | Entity | str) -> TableView:
        """Returns a view of a table, or of an entity's table.

        Args:
            table: The table or kind of entity, or its name.

        Returns:
            The view. Each of its methods reads the table as the last finished epoch left it.

        Raises:
            ProgramError: There is no such table.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     mill.table(counts)["tide"]
            {'name': 'tide', 'n': 2}
        """
        self._open("table")
        name = table if isinstance(table, str) else getattr(table, "name", None)
        if not isinstance(name, str):
            raise ProgramError(f"{table!r} is not a table", "give a table, or its name", here())
        if name not in self.app.tables:
            self._refuse_foreign(table)
            raise ProgramError(
                f"there is no table '{name}'", _known(name, self.app.tables, "table"), here()
            )
        return TableView(self, self.app.tables[name])

    def output(self, stream: Side | str) -> OutputView:
        """Returns a view of the retained events of an output.

        Args:
            stream: A handler, a stream that handlers emit into, ``handler.aborted``,
                ``stream.late`` or ``stream.dead``, or the name of one.

        Returns:
            The view.

        Raises:
            ProgramError: There is no such stream, or the handler returns nothing.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     len(mill.output(count))
            3
        """
        self._open("output")
        name = stream.name if isinstance(stream, Side) else self._text(stream, "an output")
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
            self._refuse_foreign(stream)
            raise ProgramError(
                f"there is no stream '{name}'", _known(name, known, "stream"), here()
            )
        return OutputView(self, name)

    @staticmethod
    def _text(given: object, what: str) -> str:
        """Returns a name, which is a text."""
        if not isinstance(given, str):
            raise ProgramError(f"{given!r:.100} is not {what}", f"give {what} or its name", here())
        return given

    def _stream_name(self, stream: Stream | str) -> str:
        if isinstance(stream, Handler) and stream.called:
            stream = stream.input
        name = stream.name if isinstance(stream, Stream) else self._text(stream, "a stream")
        for known in self.app.streams:
            if known.name == name:
                if known.origin != "input":
                    raise ProgramError(
                        f"stream {name} is made by the app, so nothing can be sent into it",
                        "send into the input stream that it derives from"
                        if isinstance(known.origin, dict) and "derived" in known.origin
                        else "transactions make its events: send what causes them",
                        here(),
                    )
                for handler in self.app.handlers:
                    if handler.called and handler.input is known:
                        handler.refuse_private(here())
                return name
        self._refuse_foreign(stream)
        names = [stream.name for stream in self.app.streams if stream.origin == "input"]
        raise ProgramError(
            f"there is no stream '{name}'", _known(name, names, "stream that takes rows"), here()
        )

    def _refuse_foreign(self, thing: object) -> None:
        if hasattr(thing, "app"):
            mixed.refuse(self.app, thing, "the mill", here())

    def _summary(self, text: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(text)
        return found


class TableView:
    """A view of a table's rows, as the last finished epoch left them.

    ``view[key]`` is a row as a dict, or raises ``KeyError``. ``key in view``, ``len(view)`` and
    iteration work as with a dict of rows, in the order of the keys. :meth:`Mill.table` makes
    views.
    """

    def __init__(self, mill: Mill, table: Table) -> None:
        self._mill = mill
        self._table = table

    @property
    def _native(self) -> _native.Mill:
        return self._mill._open("table")

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows as dicts, in the order of their keys.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     mill.table(counts).rows()
            [{'name': 'mill', 'n': 1}, {'name': 'tide', 'n': 2}]
        """
        return self._native.table_rows(self._table.name)

    def to_arrow(self) -> pa.RecordBatch:
        """Returns all rows as a record batch of pyarrow, in the order of their keys.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     mill.table(counts).to_arrow().num_rows
            2
        """
        return self._native.table_arrow(self._table.name)

    def to_pandas(self) -> pd.DataFrame:
        """Returns all rows as a data frame of pandas, in the order of their keys."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Returns all rows as a data frame of polars, in the order of their keys."""
        return _to_polars(self.to_arrow())

    def __getitem__(self, key: object) -> dict[str, Any]:
        """Returns the row with this key, and raises ``KeyError`` when there is none."""
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
    """A view of the retained events of an output, in their order.

    They are retained in memory. With a data directory the view has the events since the last
    snapshot before the start; the files that the output is written to have all of them.
    :meth:`Mill.output` makes views. They can be iterated over.
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
        """Returns all events so far, as dicts.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     mill.output(count).rows()
            [{'name': 'tide'}, {'name': 'mill'}, {'name': 'tide'}]
        """
        return list(self)

    def to_arrow(self) -> pa.Table:
        """Returns all events so far, as a table of pyarrow.

        Example:
            >>> with app.start() as mill:
            ...     mill.send(words, [{"name": "tide"}, {"name": "mill"}, {"name": "tide"}])
            ...     mill.drain()
            ...     mill.output(count).to_arrow().num_rows
            3
        """
        return self._native.output_arrow(self._name)

    def to_pandas(self) -> pd.DataFrame:
        """Returns all events so far, as a data frame of pandas."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Returns all events so far, as a data frame of polars."""
        return _to_polars(self.to_arrow())

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        return f"<output {self._name} of a running app>"


def described(fault: Mapping[str, Any]) -> str:
    """Returns a reason of faults in words."""
    reason = fault["reason"].removeprefix("fault: ")
    place = f" ({fault['at']})" if "at" in fault else ""
    return f"{reason} in {fault['handler']}{place}"


def _to_polars(found: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(found)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _known(name: str, known: Iterable[str], kind: str) -> str:
    """Returns a hint for an unknown name: the nearest known name, or all of them."""
    names = list(known)
    near = _native.nearest(name, names)
    if near:
        return f"did you mean '{near}'?"
    if len(names) < 2:
        return f"the only {kind} is {names[0]}" if names else f"the app has no {kind}"
    return f"there are {', '.join(names)}"


#: The mills that this process started, or a process from which it was forked.
_RUNNING: weakref.WeakSet[Mill] = weakref.WeakSet()


def running() -> list[Mill]:
    """Returns the mills that run in this process."""
    return [mill for mill in _RUNNING if not mill._ended and mill._process == os.getpid()]


def _leave_all() -> None:
    """Stops the running mills before the interpreter ends, because their functions need it."""
    for mill in list(_RUNNING):
        mill._leave()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_native.forked)
