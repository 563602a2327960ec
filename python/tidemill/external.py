"""External functions: a transaction requests a call, which runs once the transaction is durable.

The result is an event.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidemill.columns import columns_at
from tidemill.errors import ProgramError
from tidemill.stream import Handler, Stream
from tidemill.types import STR, Json, Schema, optional

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.table import Table

#: The first and the longest wait before a function is called again, in seconds.
_WAITS = (0.1, 30.0)


class External(Stream):
    """The stream of the results of an external function.

    An event has the id and columns of the request, the returned columns, and ``error``, the text
    of an exception. Requests without a result yet are in the table ``NAME.outbox``.
    :meth:`tidemill.App.external` makes these streams.
    """

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        name: str,
        asked: Mapping[str, object],
        out: Schema,
        at_once: int,
        retries: int,
        at: str,
    ) -> None:
        for taken in ("id", "error", *out.names):
            if taken in asked or (taken in ("id", "error") and taken in out.names):
                raise ProgramError(
                    f"external {name}: there are two columns named '{taken}'",
                    "rename one: beside the parameters and out= there are 'id' and 'error'",
                    at,
                )
        said: dict[str, object] = {}
        for column in out.columns:
            said[column.name] = optional(column.ty)
        said["error"] = optional(STR)
        self.function = function
        self.said = out
        self.retries = retries
        self.at_once = at_once
        self.outbox: Table = app.table(f"{name}.outbox", key="id", schema={"id": STR, **asked})
        self.answers = app.stream(f"{name}.answers", schema={"id": STR, **said})
        columns = columns_at(at, f"external {name}", {"id": STR, **asked, **said}, {})
        super().__init__(app, name, columns, "input", at)
        names = [*asked]

        def answer(tx: Any, e: Any) -> None:
            row = self.outbox[e.id]
            # A function that was called twice answers twice: only the first answer counts.
            if row.exists():
                values = {name: row[name] for name in names}
                row.delete()
                tx.emit(self, id=e.id, **values, **{name: e[name] for name in said})

        Handler(app, answer, self.answers, f"{name}.answer", at, True, None, [self])

    def external_json(self, function: int) -> Json:
        """Returns the outbox in the form that the engine reads.

        Args:
            function: The number of the external function.
        """
        return {
            "outbox": self.outbox.name,
            "answers": self.answers.name,
            "function": function,
            "at_once": self.at_once,
            "at": self.at,
        }


class OpaqueExternal:
    """An external function in the form that the engine calls.

    It takes a row of the outbox and returns the columns of the answer. The engine may call it
    again with a row that it has answered.
    """

    def __init__(self, external: External) -> None:
        self.external = external
        self.names = external.outbox.schema.names[1:]
        self._needed = [c.name for c in external.said.columns if not c.nullable]

    def __call__(self, row: tuple[object, ...], gives_up: Callable[[], bool]) -> tuple[object, ...]:
        """Calls the function, with retries while it raises, until ``gives_up`` returns true."""
        external, (wait, longest) = self.external, _WAITS
        key, *values = row
        what = ""
        for left in range(external.retries, -1, -1):
            try:
                said = external.function(key, *values)
                if inspect.iscoroutine(said):
                    # Few apps need it, and it takes a tenth of the package's import.
                    import asyncio

                    said = asyncio.run(said)
                return (*self._columns(said), None)
            except Exception as error:
                # The last exception is the answer if no retry is left.
                what = f"{type(error).__name__}: {error}"
            until = time.monotonic() + wait * random.uniform(0.5, 1.0)
            wait = min(wait * 2, longest)
            while left and time.monotonic() < until and not gives_up():
                time.sleep(0.02)
        return (*(None for _ in external.said.columns), what)

    def _columns(self, said: object) -> tuple[object, ...]:
        columns = self.external.said.columns
        if said is None and not columns:
            return ()
        if not isinstance(said, Mapping):
            raise TypeError(f"it returned {type(said).__name__}, not a dict of what is in out=")
        for name in said:
            if name not in self.external.said.index:
                raise TypeError(f"it returned '{name}', which is not in out=")
        for column in self._needed:
            if said.get(column) is None:
                raise TypeError(f"it returned no '{column}', which is in out= and not optional")
        return tuple(said.get(column.name) for column in columns)
