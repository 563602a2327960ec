"""Triggers: functions that run inside the transaction that sets them off."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidemill.errors import ProgramError
from tidemill.owned import OwnedWindow
from tidemill.stream import Stream, emitted_by
from tidemill.table import Table
from tidemill.types import Json

if TYPE_CHECKING:
    from tidemill.app import App

CHANGES = ("insert", "update", "delete")


class Trigger:
    """A trigger. Made by :meth:`tidemill.App.trigger`."""

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        on: object,
        changes: Iterable[str],
        name: str,
        emits: Iterable[Stream],
        at: str,
    ) -> None:
        from tidemill.opaque import check_function
        from tidemill.source import returns_nothing

        check_function(function, name, at)
        if not returns_nothing(function.__code__):
            raise ProgramError(
                f"trigger {name} returns something, and nobody takes it",
                "emit it with tx.emit(stream, ...)",
                at,
            )
        self.function = function
        self.on = on
        self.name = name
        self.at = at
        self.changes = tuple(changes)
        if isinstance(on, Table):
            wrong = [change for change in self.changes if change not in CHANGES]
            if wrong or not self.changes:
                raise ProgramError(
                    f"trigger {name}: changes={list(self.changes)!r}",
                    f"they are of {', '.join(CHANGES)}",
                    at,
                )
        self.emits = set(emits) | emitted_by(function, app, ())
        for stream in self.emits:
            stream.check_emittable(at)
            stream.emitted()
        if isinstance(on, Stream) and on.id >= 0 and on.origin == "input" and not on.has_source:
            # It is there to be emitted into.
            on.emitted()

    def json(self, function: int) -> Json:
        """As the engine reads it."""
        if isinstance(self.on, Stream):
            on: Json = {"emitted": self.on.id}
        elif isinstance(self.on, OwnedWindow):
            on = {"slid": self.on.id}
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
