"""Refusal of tables, streams and other objects of another app.

In a notebook, a variable may still have what an earlier app declared. Tables have numbers, so the
engine would take the table of the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill import again
from tidemill.errors import ProgramError
from tidemill.source import loaded

if TYPE_CHECKING:
    from tidemill.app import App


def refuse(app: App, thing: Any, user: str, at: str) -> None:
    """Refuses an object of another app. ``user`` says in words who uses it."""
    if thing.app is app:
        return
    theirs, ours = (f"app {one.name}" for one in (thing.app, app))
    if thing.app.name == app.name:
        theirs, ours = (f"{one} of {of.at}" for one, of in ((theirs, thing.app), (ours, app)))
    raise ProgramError(
        f"{_named(thing)} belongs to {theirs}, and {user} to {ours}",
        "run the cells again from the one with tm.App(...)"
        if again.interactive()
        else f"use only what app {app.name} declares",
        at,
    )


def refuse_table(app: App, table: Any, user: str, at: str) -> None:
    """Refuses a table of another app.

    A module that is loaded twice declares its app twice. The same table of both is allowed.
    """
    if table.app is app:
        return
    own = app.tables.get(table.name)
    if own is None or own.id != table.id or _declared(own) != _declared(table):
        refuse(app, table, user, at)


def _declared(table: Any) -> Any:
    return again.without_line(table.json())


def check(app: App) -> None:
    """Refuses opaque functions whose code names an object of another app.

    Their names may be defined after them, so this runs when the app starts.
    """
    for handler in app.handlers:
        if handler.recorder is None:
            _check(app, handler.function, f"handler {handler.name}")
    for trigger in app.triggers:
        _check(app, trigger.function, f"trigger {trigger.name}")


def _check(app: App, function: Callable[..., Any], user: str) -> None:
    from tidemill.entity import Entity
    from tidemill.external import External
    from tidemill.index import Index
    from tidemill.owned import OwnedWindow
    from tidemill.stream import Stream
    from tidemill.table import Table

    for thing, at in loaded(function):
        if isinstance(thing, Table):
            refuse_table(app, thing, user, at)
        elif isinstance(thing, Entity):
            refuse_table(app, thing.table, user, at)
        elif isinstance(thing, Index):
            refuse_table(app, thing.entries, user, at)
        elif isinstance(thing, External):
            refuse_table(app, thing.outbox, user, at)
        elif type(thing) is Stream or isinstance(thing, OwnedWindow):
            refuse(app, thing, user, at)


def _named(thing: Any) -> str:
    """Returns kind and name of an object, in words."""
    from tidemill.entity import Entity
    from tidemill.owned import OwnedWindow
    from tidemill.stream import Handler
    from tidemill.table import Table

    if isinstance(thing, Entity):
        return f"entity {thing.name}"
    if isinstance(thing, Table):
        if thing.entity is not None:
            return f"entity {thing.name}"
        return f"{'index' if thing.keeps is not None else 'table'} {thing.name}"
    if isinstance(thing, Handler):
        return f"{'procedure' if thing.is_procedure or thing.called else 'handler'} {thing.name}"
    return f"{'window' if isinstance(thing, OwnedWindow) else 'stream'} {thing.name}"
