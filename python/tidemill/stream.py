"""Streams: events on their way to handlers and from them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidemill import again, mixed
from tidemill.errors import ProgramError
from tidemill.expr import Block, Traced
from tidemill.files import Files
from tidemill.kafka import Kafka
from tidemill.keywords import known_keywords
from tidemill.names import check, of_events
from tidemill.source import here
from tidemill.trace import NotTraced, Recorder, SymbolicEvent, record_twice
from tidemill.types import BOOL, STR, TIMESTAMP, Column, Json, Schema, duration_us

if TYPE_CHECKING:
    from tidemill.app import App

Duration = str | int | dt.timedelta


class Side:
    """A side stream of an input stream: its late events, or its rows that failed to decode."""

    def __init__(self, app: App, name: str, empty: tuple[str, str] | None = None) -> None:
        self.app = app
        self.name = name
        #: Why the stream can never have events, and the remedy; None where it can.
        self.empty = empty

    def write(self, to: Files | Kafka) -> None:
        """Writes the events to a file or a topic.

        Args:
            to: The file or topic, made by :func:`tidemill.files` or :func:`tidemill.kafka`.

        Raises:
            ProgramError: The argument is neither, or the stream can never have events.
        """
        at = here()
        if self.empty is not None:
            why, help = self.empty
            raise ProgramError(f"{why}, so nothing would ever be written", help, at)
        if not isinstance(to, Files | Kafka):
            raise ProgramError(f"write takes tm.files(...) or tm.kafka(...), not {to!r}", "", at)
        kind = "files" if isinstance(to, Files) else "kafka"
        self.app.sinks.append({"stream": self.name, kind: to.sink_json(), "at": at})

    def keep(self) -> None:
        """Retains the events in memory, so that :meth:`Mill.output` has them."""
        if self.name not in self.app.kept:
            self.app.kept.append(self.name)

    def __repr__(self) -> str:
        return f"<stream {self.name}>"


class Stream(Side):
    """A stream of events.

    :meth:`tidemill.App.stream`, :meth:`filter`, :meth:`map` and handlers make streams.
    """

    def __init__(
        self,
        app: App,
        name: str,
        schema: Schema,
        origin: Json,
        at: str,
        time: str | None = None,
        late: str = "side",
    ) -> None:
        super().__init__(app, name)
        check(f"stream {name}", "an event", schema.names, of_events(), at)
        self.schema = schema
        self.origin = origin
        self.at = at
        self.time = time
        self.late_policy = late
        self.pushed = False
        self.has_source = False
        self.batched: Json = None
        #: Whether it is left of a handler that was declared again without it.
        self.is_vacant = False
        self.id = app.add_stream(self)

    # Where events come from.

    @known_keywords
    def read(
        self,
        source: Files | Kafka,
        *,
        out_of_orderness: Duration = "0s",
        idle: Duration | None = None,
    ) -> Stream:
        """Reads events from files or a topic. Call it again for each further source.

        Args:
            source: The files or topic, made by :func:`tidemill.files` or :func:`tidemill.kafka`.
            out_of_orderness: How far an event may be behind the newest event time of its source,
                such as ``"5s"``. Where the stream's time is an int, it is an int in the same
                unit. The default is none. It needs event time.
            idle: The duration without input after which the source no longer holds back the
                watermark of the others. The default is to hold it back always.

        Returns:
            The stream itself.

        Raises:
            ProgramError: The source is not valid, or the stream is made by the app.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("ledger")
            >>> payments = app.stream("payments", time="at", at=dt.datetime, amount=int)
            >>> payments.read(tm.files("payments.csv"), out_of_orderness="5s")
            <stream payments: at: timestamp, amount: int>
        """
        at = here()
        if not isinstance(source, Files | Kafka):
            raise ProgramError(
                f"read takes tm.files(...) or tm.kafka(...), not {source!r}",
                'write tm.files("name.csv"), or tm.kafka("topic", brokers="host:9092")',
                at,
            )
        self._source(source, out_of_orderness, idle, at)
        return self

    @known_keywords
    def push(self, *, out_of_orderness: Duration = "0s", idle: Duration | None = None) -> Stream:
        """Takes events from :meth:`Mill.send`, beside those that :meth:`read` reads.

        A stream without sources takes events from ``mill.send`` without this call.

        Args:
            out_of_orderness: How far an event may be behind the newest event time of those that
                were sent, as in :meth:`read`. The default is none.
            idle: The duration without input after which the sender no longer holds back the
                watermark of the other sources. The default is to hold it back always.

        Returns:
            The stream itself.

        Raises:
            ProgramError: The stream is pushed already, or is made by the app.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("bank")
            >>> payments = app.stream("payments", time="at", at=int, amount=int)
            >>> payments.push(out_of_orderness=10)
            <stream payments: at: int, amount: int>
        """
        at = here()
        if self.pushed:
            raise ProgramError(f"stream {self.name} is pushed already", "call push() once", at)
        self.pushed = True
        self._source(None, out_of_orderness, idle, at)
        return self

    @known_keywords
    def batches(
        self, of: int | str | dt.timedelta | None = None, *, time: int | Duration | None = None
    ) -> Stream:
        """Groups the stream's events into batches for procedures, by number or by interval.

        A batch is one round. Its place in the one order is that of its last event. An interval of
        event time begins at a multiple of its length; without event time it begins with its first
        event. When the stream ends, the remaining events are a batch, too. Handlers that take
        events one by one need a derived stream, made by :meth:`filter` or :meth:`map`.

        Args:
            of: The number of events in a batch, or an interval such as ``"10s"``. Give this or
                ``time``.
            time: The interval of a batch. Where the stream's time is an int, it is an int in the
                same unit.

        Returns:
            The stream itself.

        Raises:
            ProgramError: Both arguments or neither are given, or a batch would have no events.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("sums")
            >>> numbers = app.stream("numbers", n=int).batches(3)
            >>> @app.procedure(numbers, out={"sum": int})
            ... def add(tx, numbers):
            ...     return {"sum": sum(number.n for number in numbers)}
            >>> with app.start() as mill:
            ...     mill.send(numbers, [{"n": n} for n in range(8)])
            ...     summary = mill.finish()
            ...     print(mill.output(add).rows())
            [{'sum': 3}, {'sum': 12}, {'sum': 13}]
        """
        from tidemill.units import counts_ints

        at = here()
        if (of is None) == (time is None):
            raise ProgramError(
                f"stream {self.name}: batches() takes either a number of events or a time",
                'write batches(100), batches("10s"), or batches(time=10)',
                at,
            )
        if isinstance(of, int) and not isinstance(of, bool):
            self.batched = {"count": of}
            size = of
        else:
            given, what = (of, "batches") if time is None else (time, "time")
            try:
                size = duration_us(given, not counts_ints(self), what)
            except ProgramError as error:
                help = "write batches(time=n)" if what == "batches" else error.help
                help = help if counts_ints(self) else error.help
                raise ProgramError(f"stream {self.name}: {error.what}", help, at) from None
            self.batched = {"time_us": size}
        if size <= 0:
            given = of if time is None else time
            raise ProgramError(
                f"stream {self.name}: a batch of {given!r} has no events", "give more than 0", at
            )
        return self

    def _source(
        self,
        source: Files | Kafka | None,
        out_of_orderness: Duration,
        idle: Duration | None,
        at: str,
    ) -> None:
        if self.origin != "input":
            raise ProgramError(f"stream {self.name} is made by the app and has no sources", "", at)
        self.has_source = True
        try:
            out_of_orderness_us = self._out_of_orderness(out_of_orderness)
            idle_us = None if idle is None else duration_us(idle, True, "idle")
        except ProgramError as error:
            raise ProgramError(f"stream {self.name}: {error.what}", error.help, at) from None
        self.app.sources.append(
            {
                "stream": self.name,
                "out_of_orderness_us": out_of_orderness_us,
                "idle_us": idle_us,
                "files": source.source_json() if isinstance(source, Files) else None,
                **({"kafka": source.source_json()} if isinstance(source, Kafka) else {}),
                "at": at,
            }
        )

    def _out_of_orderness(self, out_of_orderness: Duration) -> int:
        if out_of_orderness == "0s":
            return 0
        if self.time is None:
            raise ProgramError(
                "out_of_orderness needs event time", 'declare the stream with time="..."'
            )
        column = self.schema.columns[self.schema.index[self.time]]
        return duration_us(out_of_orderness, column.ty == TIMESTAMP, "out_of_orderness")

    # Steps before transactions.

    @known_keywords
    def filter(self, keep: object, /, *, name: str | None = None) -> Stream:
        """Derives the stream of the events for which a condition holds.

        Args:
            keep: The condition: a bool expression over :func:`tidemill.col`, or a function from
                an event to one.
            name: The name of the new stream. The default is ``STREAM.filter``, with a number
                where that name is taken.

        Returns:
            The new stream.

        Raises:
            ProgramError: The condition is not a bool, or the stream is an output.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("ledger")
            >>> payments = app.stream("payments", id=int, amount=int)
            >>> payments.filter(tm.col("amount") > 0, name="paid")
            <stream paid: id: int, amount: int>
        """
        at = here()
        block, node = self._expression(keep, at)
        if node.ty != BOOL:
            raise ProgramError(
                f"filter takes a bool, not {node.ty or 'null'}", "compare it with a value", at
            )
        stage = {"filter": {"exprs": block.json(), "keep": node.id}}
        return self._derived(name, "filter", self.schema, stage, at)

    def map(self, /, **columns: object) -> Stream:
        """Derives a stream of events with new columns.

        Args:
            **columns: The columns, each as an expression over :func:`tidemill.col`, or a function
                from an event to one. ``name=``, if it is a text, is the name of the new stream.
                Its default is ``STREAM.map``, with a number where that name is taken.

        Returns:
            The new stream, which has the given columns only.

        Raises:
            ProgramError: No column is given, a column has no type, or the stream is an output.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("ledger")
            >>> payments = app.stream("payments", id=int, amount=int)
            >>> payments.map(id=tm.col("id"), cents=tm.col("amount") * 100)
            <stream payments.map: id: int, cents: int>
        """
        at = here()
        name: str | None = None
        if isinstance(columns.get("name"), str):
            name = str(columns.pop("name"))
        if not columns:
            raise ProgramError("map needs at least one column", "write map(x=tm.col('x') + 1)", at)
        block = self._block(at)
        made: list[Column] = []
        nodes: list[int] = []
        for column, expression in columns.items():
            node = self._lift(block, expression, at)
            if node.ty is None:
                raise ProgramError(
                    f"column '{column}' has no type", "give it one with tm.cast(x, type)", at
                )
            made.append(Column(column, node.ty, node.nullable))
            nodes.append(node.id)
        stage = {"map": {"exprs": block.json(), "columns": nodes}}
        return self._derived(name, "map", Schema(made), stage, at)

    def _block(self, at: str) -> Block:
        if self.origin != "input" and not _is_derived(self.origin):
            raise ProgramError(
                f"stream {self.name} is an output: map and filter come before transactions",
                "filter in the handler that reads it, with tx.when or tx.require",
                at,
            )
        return Block(f"stream {self.name}", self.schema)

    def _expression(self, expression: object, at: str) -> tuple[Block, Traced]:
        block = self._block(at)
        return block, self._lift(block, expression, at)

    def _lift(self, block: Block, expression: object, at: str) -> Traced:
        from tidemill.expr import Symbolic

        if callable(expression) and not isinstance(expression, Symbolic):
            expression = expression(SymbolicEvent(block))
        return block.lift(expression, at)

    def _derived(self, name: str | None, kind: str, schema: Schema, stage: Json, at: str) -> Stream:
        origin = {"derived": {"from": self.id, "stage": stage}}
        if again.interactive():
            same = again.same_derived(self.app, name, schema, origin, at)
            if same is not None:
                return same
        names = {stream.name for stream in self.app.streams}
        if name is None:
            name = f"{self.name}.{kind}"
            count = 1
            while name in names:
                count += 1
                name = f"{self.name}.{kind}{count}"
        return Stream(self.app, name, schema, origin, at)

    # Sides.

    @property
    def dead(self) -> Side:
        """The stream of the rows that could not be decoded or computed, with the reason."""
        return self._side("dead")

    @property
    def late(self) -> Side:
        """The stream of the late events, where the stream has ``late="side"``."""
        return self._side("late", self._never_late())

    def _never_late(self) -> tuple[str, str] | None:
        """Returns why none of its events can be late, and the remedy; None where some can."""
        from tidemill.units import input_of

        root = input_of(self)
        if root.time is None:
            return (
                f"stream {root.name} has no event time, and no late rows",
                'leave it out, or declare the stream with time="..."',
            )
        if root.late_policy != "side":
            return (
                f'stream {root.name} has late="{root.late_policy}", and no late rows',
                'leave it out, or declare the stream with late="side"',
            )
        return None

    @property
    def has_sides(self) -> bool:
        """Whether the stream can have the side streams ``late`` and ``dead``."""
        return self.origin == "input" or _is_derived(self.origin)

    def _side(self, which: str, empty: tuple[str, str] | None = None) -> Side:
        if not self.has_sides:
            raise ProgramError(
                f"stream {self.name} has no {which} events: it has no sources", "", here()
            )
        return Side(self.app, f"{self.name}.{which}", empty)

    # For handlers.

    def check_emittable(self, at: str) -> None:
        """Refuses a stream that no handler can emit into."""
        if self.origin not in ("input", "emitted") or self.has_source:
            raise ProgramError(
                f"stream {self.name} has sources of its own or is derived; a handler can't emit "
                "into it",
                "declare another stream and emit into that",
                at,
            )

    def emitted(self) -> None:
        """Marks the stream as one that handlers emit into."""
        self.origin = "emitted"

    def json(self) -> Json:
        """Returns the stream in the form that the engine reads."""
        time: Json = "arrival"
        if self.time is not None and self.origin == "input":
            time = {"event": {"column": self.schema.index[self.time]}}
        return {
            "name": self.name,
            "schema": self.schema.json(),
            "time": time,
            "late": self.late_policy,
            "at": self.at,
            "origin": self.origin,
            **({"batch": self.batched} if self.batched else {}),
        }

    def __repr__(self) -> str:
        return f"<stream {self.name}: {self.schema}>"


def emitted_by(function: Callable[..., Any], app: App, taken: Sequence[Stream]) -> set[Stream]:
    """Returns the streams that a function's code names and that it can emit into."""
    from tidemill.source import referenced

    return {
        found
        for found in referenced(function)
        if type(found) is Stream
        and found.app is app
        and found not in taken
        and found.origin in ("input", "emitted")
        and not found.has_source
        and found.time is None
    }


def refuse_when(function: Callable[..., Any], name: str, tx: int = 0) -> None:
    """Refuses ``tx.when`` in an opaque function. ``tx`` is the place of that parameter.

    A function may know that it is opaque and take another branch.
    """
    from tidemill.source import method_lines

    for at in method_lines(function, tx, "when", always=True):
        raise ProgramError(
            f"{name} runs with real values, and tx.when is for traced functions",
            "write 'if' instead of 'with tx.when'",
            at,
        )


def _refuse_needed(function: Callable[..., Any], name: str, error: NotTraced) -> None:
    """Refuses a function that can't be traced, but uses what only traced functions have."""
    from tidemill.source import method_lines

    needed = [("tx.when", at) for at in method_lines(function, 0, "when")] + error.needed
    for used, at in needed:
        raise ProgramError(
            f"handler {name} can't be traced, which {used} in line {at.rpartition(':')[2]} needs: "
            f"{error.why}",
            f"rewrite this line; or say opaque=True, and replace {used}: "
            + _WITH_REAL_VALUES.get(used, "compute it in a loop"),
            error.at,
        )


#: How functions with real values express what only traced functions have.
_WITH_REAL_VALUES = {"tx.when": "write 'if'", "~": "write 'not x'"}


def _is_derived(origin: Json) -> bool:
    return isinstance(origin, dict) and "derived" in origin


class Handler(Stream):
    """A handler, and the stream of the events that it returns.

    :meth:`tidemill.App.transaction`, :meth:`tidemill.App.procedure` and
    :meth:`tidemill.App.every` make handlers. The streams ``late`` and ``dead`` of its input have
    the events that it did not get.

    Attributes:
        aborted: The stream of the events whose transaction aborted. Its last column is the
            reason.
        aborted_of: The same for each stream that a procedure takes, in their order.
    """

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        input: Stream,
        name: str,
        at: str,
        opaque: bool,
        out: Schema | None,
        emits: Iterable[Stream],
        more: Sequence[Stream] | None = None,
        called: bool = False,
        owns: object = (),
        takes: Sequence[str] | None = None,
        tx: int = 0,
    ) -> None:
        from tidemill.opaque import check_function
        from tidemill.owned import claim
        from tidemill.source import returns_nothing

        self.is_procedure = more is not None
        #: Whether clients call it with parameters and get a reply.
        self.called = called
        #: Whether only other functions of the app may call it.
        self.private = False
        #: The parameter that receives the caller's name, if there is one.
        self.caller: str | None = None
        #: The streams that a procedure takes after its first one.
        self.more: tuple[Stream, ...] = tuple(more or ())
        batches = [stream.name for stream in (input, *self.more)] if self.is_procedure else ["e"]
        given = takes or (input.schema.names if called else batches)
        check_function(function, name, at, given, self.is_procedure or called or opaque)
        self.function = function
        self.input = input
        self.index: int = next((h.index for h in app.handlers if h.name == name), len(app.handlers))
        self.recorder: Recorder | None = None
        self.why = "traced"
        self.emits: set[Stream] = set(emits)
        for stream in self.emits:
            mixed.refuse(app, stream, f"handler {name}", at)
            stream.check_emittable(at)
        output_known = out is not None or returns_nothing(function.__code__)
        if opaque or self.is_procedure:
            refuse_when(function, f"handler {name}", tx)
            self.why = "a procedure" if self.is_procedure or called else "opaque=True"
            if not output_known:
                kind = "procedure" if self.is_procedure else "transaction"
                also = "" if self.is_procedure else "opaque=True, "
                raise ProgramError(
                    f"handler {name} returns events, but an opaque function does not declare their "
                    "columns",
                    f"say @app.{kind}(..., {also}out=dict(column=type, ...))",
                    at,
                )
        else:
            try:
                self.recorder = record_twice(app, function, name, input.name, input.schema, at)
            except NotTraced as error:
                self.why = f"{error.at}: {error.why}"
                _refuse_needed(function, name, error)
                if not output_known:
                    raise ProgramError(
                        f"handler {name} could not be traced: {error.why}",
                        "rewrite that line, or declare the columns that it returns, so that it "
                        "runs as an opaque function: "
                        "@app.transaction(..., out=dict(column=type, ...))",
                        error.at,
                    ) from error.__cause__
        if self.recorder is None:
            self.emits |= emitted_by(function, app, (input, *self.more))
            schema = out
        else:
            self.emits |= self.recorder.emits
            schema = self._result_schema(self.recorder, out, name, at)
        for stream in self.emits:
            stream.emitted()
        #: The streams of ``emits``, without those that called entity functions emit into.
        self.named_emits = frozenset(self.emits)
        self.has_output = schema is not None
        self.name = name
        again.add_handler(app, self)
        claim(owns, self.index, name, app)
        if schema is not None:
            super().__init__(app, name, schema, {"output": self.index}, at)
            if self.recorder is not None and self.recorder.result is not None:
                self.recorder.emit_result(self.id, schema)
        else:
            Side.__init__(self, app, name)
            self.schema = Schema(())
            self.origin = {"output": self.index}
            self.at = at
            self.id = -1
        self.aborted = self._aborted(f"{name}.aborted", input)
        self.aborted_of = [
            self.aborted,
            *(self._aborted(f"{name}.aborted.{stream.name}", stream) for stream in self.more),
        ]

    def _aborted(self, name: str, input: Stream) -> Stream:
        # The input may itself be a stream of aborted events: its column keeps the name.
        reason = "reason"
        while reason in input.schema.index:
            reason = f"abort_{reason}"
        columns = [*input.schema.columns, Column(reason, STR)]
        return Stream(self.app, name, Schema(columns), {"aborted": self.index}, self.at)

    @staticmethod
    def _result_schema(recorder: Recorder, out: Schema | None, name: str, at: str) -> Schema | None:
        result = recorder.result
        if result is None or out is not None:
            return out
        columns = []
        for column, node in result:
            if node.ty is None:
                raise ProgramError(
                    f"handler {name} returns a null without a type as '{column}'",
                    f"say out=dict({column}=tm.optional(type), ...)",
                    at,
                )
            columns.append(Column(column, node.ty, node.nullable))
        return Schema(columns)

    @property
    def path(self) -> str:
        """How the handler is executed: ``"traced"`` or ``"opaque"``.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> words = app.stream("words", name=str)
            >>> @app.transaction(words)
            ... def count(tx, e):
            ...     counts[e.name].n += 1
            ...     return dict(name=e.name)
            >>> count.path
            'traced'
        """
        return "opaque" if self.recorder is None else "traced"

    def write(self, to: Files | Kafka) -> None:
        """Writes the returned events to a file or a topic.

        Args:
            to: The file or topic, made by :func:`tidemill.files` or :func:`tidemill.kafka`.

        Raises:
            ProgramError: The argument is neither, or the handler returns nothing.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> words = app.stream("words", name=str)
            >>> @app.transaction(words)
            ... def count(tx, e):
            ...     counts[e.name].n += 1
            ...     return dict(name=e.name)
            >>> count.write(tm.files("out/counts.csv"))
        """
        self._returns("written")
        super().write(to)

    def keep(self) -> None:
        """Retains the returned events in memory, so that :meth:`Mill.output` has them.

        Raises:
            ProgramError: The handler returns nothing.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> words = app.stream("words", name=str)
            >>> @app.transaction(words)
            ... def count(tx, e):
            ...     counts[e.name].n += 1
            ...     return dict(name=e.name)
            >>> count.keep()
        """
        self._returns("retained")
        super().keep()

    def _returns(self, use: str) -> None:
        if not self.has_output:
            raise ProgramError(
                f"handler {self.name} returns nothing that could be {use}",
                "return dict(column=value, ...) from it",
                here(),
            )

    def refuse_private(self, at: str) -> None:
        """Refuses a call from outside if only other functions may call it."""
        if self.private:
            raise ProgramError(
                f"{self.name} is private, so only other functions of the app call it",
                "call a function that calls it, or declare it without private=True",
                at,
            )

    def __call__(self, tx: Any, *given: Any) -> Any:
        """Runs the function inside the transaction of another handler."""
        return self.function(tx, *given)

    def handler_json(self, opaque: int) -> Json:
        """Returns the handler in the form that the engine reads.

        ``opaque`` is the number of its opaque function.
        """
        body = {"opaque": opaque} if self.recorder is None else {"declared": self.recorder.json()}
        given: dict[str, Json] = {
            "name": self.name,
            "input": self.input.id,
            "body": body,
            "output": self.id if self.has_output else None,
            "aborted": self.aborted.id,
            "why": self.why,
            "at": self.at,
        }
        if self.recorder is None:
            given["emits"] = sorted(stream.id for stream in self.emits)
        if self.is_procedure:
            given["takes"] = "batch"
            given["more"] = [
                {"stream": stream.id, "aborted": aborted.id}
                for stream, aborted in zip(self.more, self.aborted_of[1:], strict=True)
            ]
        return given

    def __repr__(self) -> str:
        if self.is_procedure or self.called:
            return f"<procedure {self.name}>"
        return f"<handler {self.name} ({self.path})>"
