"""Errors, and the exceptions that abort a transaction.

A kind of error says what the caller must do; its text says what went wrong, where, and how to
mend it. Aborts are outcomes of transactions, not errors: outside a handler nobody raises them.
"""

from __future__ import annotations

__all__ = [
    "Abort",
    "BadValue",
    "Error",
    "Fault",
    "InputError",
    "InternalError",
    "IoError",
    "LookupFailed",
    "ProgramError",
    "ResourceError",
    "SettingError",
    "Untraceable",
]


class Error(Exception):
    """An error of Tidemill: what went wrong, how to mend it, and the user's line to blame.

    >>> print(ProgramError("no column 'balanse'", "did you mean 'balance'?", "a.py:3"))
    a.py:3: no column 'balanse'
      help: did you mean 'balance'?
    """

    def __init__(self, what: str, help: str = "", at: str | None = None) -> None:
        super().__init__(what, help, at)
        self.what = what
        self.help = help
        self.at = at or None

    def __str__(self) -> str:
        text = f"{self.at}: {self.what}" if self.at else self.what
        return f"{text}\n  help: {self.help}" if self.help else text


class ProgramError(Error):
    """Mend the program: a wrong declaration, type, name or key."""

    def __init__(self, what: str, help: str = "", at: str | None = None) -> None:
        super().__init__(what, help, at)
        _noted(self)


class SettingError(Error):
    """Mend a setting, a flag or the configuration file."""


class InputError(Error):
    """Mend or replace the input; the program is right."""


class ResourceError(Error):
    """Free or grant something: memory, disk, a file that another process holds."""


class IoError(Error):
    """The world failed: a file or a connection could not be read or written."""


class InternalError(Error):
    """Report it: Tidemill broke one of its own promises."""


class Abort(Exception):
    """Raised in a handler: the transaction has no effect but an event in the aborted stream.

    Classes of your own that derive from it have their name before the reason, and come to
    callers as themselves. They are told apart by their names: of two with the same one, callers
    get the one that was defined last.

    >>> class NoRooms(Abort):
    ...     pass
    >>> aborted("NoRooms: all taken")
    NoRooms('all taken')
    >>> aborted("no rooms left")
    Abort('no rooms left')
    """

    kind = "refused"

    def __init__(self, reason: str = "aborted") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class BadValue(Abort):
    """An abort by a rule of values: overflow, null where a value is needed, division by zero."""

    kind = "value"


class Fault(Abort):
    """What a caller gets when a function failed: it raised what it did not mean to.

    The transaction has left nothing, as with every abort; but a fault is a mistake in the program,
    and counted apart.
    """

    kind = "raised"


def aborted(reason: str) -> Abort:
    """What a caller is told of an abort: of the class that was raised, if it is there."""
    name, colon, text = reason.partition(": ")
    kinds = Abort.__subclasses__() if colon else []
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__name__ == name and kind not in (BadValue, Fault):
            # Whatever its own constructor takes.
            error = kind.__new__(kind)
            Abort.__init__(error, text)
            return error
    return Abort(reason)


class LookupFailed(Exception):
    """A function that a transaction asked with ``tx.lookup`` has raised; the text says what.

    A transaction that does not catch it aborts.
    """


class Untraceable(TypeError):
    """A symbolic value was used for something that only a real value can do.

    A handler that raises it while it is traced runs as an opaque function instead.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        _noted(self)


def _noted(error: Exception) -> None:
    """Tells a recording of what it can't record, whatever the function makes of the exception."""
    from tidemill.context import local

    noted = getattr(local.transaction, "noted", None)
    if noted is not None:
        noted.append(error)
