"""Triggers: functions that run inside the transaction that triggers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidemill import mixed
from tidemill.errors import ProgramError
from tidemill.owned import OwnedWindow
from tidemill.stream import Stream, emitted_by, refuse_when
from tidemill.table import Table
from tidemill.types import Json

if TYPE_CHECKING:
    from tidemill.app import App

#: The changes of a table that trigger a function.
CHANGES = ("insert", "update", "delete")
#: The changes of a window that trigger a function.
OF_WINDOW = ("insert", "slide")


class Trigger:
    """A function that runs inside the transaction that triggers it.

    :meth:`tidemill.App.trigger` makes triggers.
    """

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        on: object,
        changes: Iterable[str] | None,
        name: str,
        emits: Iterable[Stream],
        at: str,
    ) -> None:
        from tidemill.opaque import check_function
        from tidemill.source import returns_nothing

        check_function(function, name, at)
        refuse_when(function, f"trigger {name}")
        if not returns_nothing(function.__code__):
            raise ProgramError(
                f"trigger {name} returns something, but a trigger has no output",
                "emit an event with tx.emit(stream, ...)",
                at,
            )
        self.app = app
        self.function = function
        self.on = on
        self.name = name
        self.at = at
        is_window = isinstance(on, OwnedWindow)
        may, usual = (OF_WINDOW, ("slide",)) if is_window else (CHANGES, CHANGES)
        self.changes = usual if changes is None else tuple(changes)
        wrong = [change for change in self.changes if change not in may]
        if wrong or not self.changes or (is_window and len(self.changes) > 1):
            meant = f"one of {', '.join(may)}" if is_window else f"any of {', '.join(may)}"
            raise ProgramError(
                f"trigger {name}: changes={list(self.changes)!r} can't trigger it",
                f"give {meant}",
                at,
            )
        if isinstance(on, Stream) and changes is not None:
            raise ProgramError(
                f"trigger {name}: changes={list(self.changes)!r}, but a stream has no changes",
                "leave out changes=",
                at,
            )
        self.emits = set(emits) | emitted_by(function, app, ())
        for stream in self.emits:
            mixed.refuse(app, stream, f"trigger {name}", at)
            stream.check_emittable(at)
            stream.emitted()
        #: The streams of ``emits``, without those that called entity functions emit into.
        self.named_emits = frozenset(self.emits)
        if isinstance(on, Stream) and on.id >= 0 and on.origin == "input" and not on.has_source:
            # A stream with a trigger and no source must be one that handlers emit into.
            on.emitted()

    def json(self, function: int) -> Json:
        """Returns the trigger in the form that the engine reads.

        Args:
            function: The number of its function.
        """
        if isinstance(self.on, Stream):
            on: Json = {"emitted": self.on.id}
        elif isinstance(self.on, OwnedWindow):
            on = {"slid" if self.changes == ("slide",) else "inserted": self.on.id}
        else:
            assert isinstance(self.on, Table)
            meant = {change: change in self.changes for change in CHANGES}
            on = {"written": {"table": self.on.id, **meant}}
        return {
            "name": self.name,
            "on": on,
            "function": function,
            "emits": sorted(stream.id for stream in self.emits),
            "at": self.at,
        }

    def __call__(self, tx: Any, event: Any) -> Any:
        """Runs the function inside the transaction of another handler."""
        return self.function(tx, event)

    def __repr__(self) -> str:
        return f"<trigger {self.name}>"
