"""Errors, and the exceptions that abort a transaction.

The class of an error tells what the caller must change. Its text tells what is wrong, where, and
how to mend it. Aborts are results of transactions, not errors: only functions of transactions and
callers of procedures meet them.
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
    """An error of Tidemill, the base class of all of them.

    Args:
        what: The text that tells what is wrong.
        help: The text that tells how to mend it. The default is none.
        at: The line in the user's code that caused it, as ``file:line``. The default is none.

    Attributes:
        what: The text that tells what is wrong.
        help: The text that tells how to mend it, or the empty text.
        at: The line in the user's code, or None.

    Example:
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
    """An error of the program, such as a wrong declaration, type, name or key."""

    def __init__(self, what: str, help: str = "", at: str | None = None) -> None:
        super().__init__(what, help, at)
        _noted(self)


class SettingError(Error):
    """An error in a setting, a flag or the configuration file."""


class InputError(Error):
    """An error in the input; the program needs no change."""


class ResourceError(Error):
    """A missing resource: memory, disk space, or a file that another process holds."""


class IoError(Error):
    """A failure outside: a file or a connection could not be read or written."""


class InternalError(Error):
    """A fault in Tidemill itself. Please report it."""


class Abort(Exception):
    """Aborts the transaction, when a function raises it; callers get it as an exception.

    An aborted transaction writes nothing. Its event goes to the stream ``aborted``, with the
    reason.

    Callers get a class derived from it as that class, found by its name, which precedes the
    reason. Of two classes with the same name, callers get the one that was defined last.

    Args:
        reason: The reason of the abort. The default is ``"aborted"``.

    Attributes:
        reason: The reason, a text.

    Example:
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
    """An abort by a rule of values: overflow, division by zero, or a null where none may be."""

    kind = "value"


class Fault(Abort):
    """A fault: an exception that a function did not mean to raise, as its caller gets it.

    The transaction writes nothing, as after every abort. But a fault is an error of the program,
    and is counted separately.
    """

    kind = "raised"


def aborted(reason: str) -> Abort:
    """Returns the abort for a reason, with the class that was raised if this process has it."""
    name, colon, text = reason.partition(": ")
    kinds = Abort.__subclasses__() if colon else []
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__name__ == name and kind not in (BadValue, Fault):
            # `__new__` skips its constructor, whose arguments are unknown.
            error = kind.__new__(kind)
            Abort.__init__(error, text)
            return error
    return Abort(reason)


class LookupFailed(Exception):
    """A function that a transaction called with ``tx.lookup`` raised an exception.

    The text is that of the exception. A transaction that does not catch it aborts.
    """


class Untraceable(TypeError):
    """A symbolic value was used where only a real value can be.

    A handler that raises it while it is traced runs as an opaque function instead.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        _noted(self)


def _noted(error: Exception) -> None:
    """Notes the error in the recording of this thread, so that catching it does not hide it."""
    from tidemill.context import local

    noted = getattr(local.transaction, "noted", None)
    if noted is not None:
        noted.append(error)
