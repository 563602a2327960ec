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
    """An error of the program, such as a wrong declaration, type, name or key.

    Example:
        >>> import tidemill as tm
        >>> try:
        ...     tm.App("shop").table("items", key="idd", id=int)
        ... except tm.ProgramError as error:
        ...     print(error.what, "-", error.help)
        table items has no column 'idd' - did you mean 'id'?
    """

    def __init__(self, what: str, help: str = "", at: str | None = None) -> None:
        super().__init__(what, help, at)
        _noted(self)


class SettingError(Error):
    """An error in a setting, a flag or the configuration file.

    Example:
        >>> import tidemill as tm
        >>> try:
        ...     tm.App("shop").start(threads=2)
        ... except tm.SettingError as error:
        ...     print(error.what)
        app.start(): there is no setting 'threads'
    """


class InputError(Error):
    """An error in the input; the program needs no change.

    Example:
        >>> import tidemill as tm
        >>> app = tm.App("shop")
        >>> orders = app.stream("orders", n=int)
        >>> with app.start() as mill:
        ...     try:
        ...         mill.send(orders, [{"n": "many"}])
        ...     except tm.InputError as error:
        ...         print(error.what)
        stream orders: row 0, column 'n': "many" is a str, and the column is int
    """


class ResourceError(Error):
    """A missing resource: memory, disk space, or a file that another process holds.

    Example:
        >>> import tempfile
        >>> import tidemill as tm
        >>> app = tm.App("shop")
        >>> with tempfile.TemporaryDirectory() as folder, app.start(data_dir=folder):
        ...     try:
        ...         app.start(data_dir=folder)
        ...     except tm.ResourceError as error:
        ...         print(error.help)
        use that mill, or end it first with mill.stop(); another run needs another data_dir
    """


class IoError(Error):
    """A failure outside: a file or a connection could not be read or written.

    Example:
        >>> import tempfile
        >>> import tidemill as tm
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     try:
        ...         tm.App("shop").start(data_dir=file.name + "/data")
        ...     except tm.IoError as error:
        ...         print("Not a directory" in error.what)
        True
    """


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
    """An abort by a rule of values: overflow, division by zero, or a null where none may be.

    Example:
        >>> import tidemill as tm
        >>> try:
        ...     tm.div(7, 0, scale=2)
        ... except tm.BadValue as error:
        ...     print(error.reason)
        division by zero
    """

    kind = "value"


class Fault(Abort):
    """A fault: an exception that a function did not mean to raise, as its caller gets it.

    The transaction writes nothing, as after every abort. But a fault is an error of the program,
    and is counted separately.

    Example:
        >>> import tidemill as tm
        >>> app = tm.App("shop")
        >>> @app.procedure
        ... def first(tx, names: list[str]) -> str:
        ...     return names[0]
        >>> with app.start() as mill:
        ...     try:
        ...         mill.call(first, names=[])
        ...     except tm.Fault as fault:
        ...         print(fault.reason.partition(" (")[0])
        IndexError: list index out of range
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
