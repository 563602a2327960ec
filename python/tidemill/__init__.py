"""Tidemill: transactions over streams of events, in one order.

>>> import tidemill as tm
>>> app = tm.App("counter")
>>> counts = app.table("counts", key="word", word=str, n=tm.column(int, default=0))
>>> words = app.stream("words", word=str)
>>> @app.transaction(words)
... def count(tx, e):
...     counts[e.word].n += 1
>>> count.path
'traced'
"""

# isort: off
from tidemill import _starting  # noqa: F401

# isort: on
from tidemill._native import __version__
from tidemill.app import App
from tidemill.client import (
    AccessError,
    AsyncClient,
    Change,
    Client,
    Cut,
    DeadlineError,
    Event,
    GoneError,
    Reset,
)
from tidemill.entity import Context, Entity, Function, Reply
from tidemill.errors import (
    Abort,
    BadValue,
    Error,
    Fault,
    InputError,
    InternalError,
    IoError,
    LookupFailed,
    ProgramError,
    ResourceError,
    SettingError,
)
from tidemill.expr import col
from tidemill.files import Files, files
from tidemill.functions import (
    abs,
    cast,
    coalesce,
    contains,
    div,
    ends_with,
    is_null,
    length,
    lower,
    max,
    min,
    not_,
    starts_with,
    strip,
    upper,
    where,
)
from tidemill.index import Index
from tidemill.kafka import Kafka, kafka
from tidemill.mill import Mill, OutputView, TableView
from tidemill.opaque import Tx
from tidemill.owned import OwnedWindow
from tidemill.stream import Handler, Stream
from tidemill.table import Table
from tidemill.trigger import Trigger
from tidemill.types import Caller, column, decimal, optional, timestamp
from tidemill.types import any_value as any
from tidemill.types import list_of as list
from tidemill.window import Window, last, session, sliding, tumbling

__all__ = [
    "Abort",
    "AccessError",
    "App",
    "AsyncClient",
    "BadValue",
    "Caller",
    "Change",
    "Client",
    "Context",
    "Cut",
    "DeadlineError",
    "Entity",
    "Error",
    "Event",
    "Fault",
    "Files",
    "Function",
    "GoneError",
    "Handler",
    "Index",
    "InputError",
    "InternalError",
    "IoError",
    "Kafka",
    "LookupFailed",
    "Mill",
    "OutputView",
    "OwnedWindow",
    "ProgramError",
    "Reply",
    "Reset",
    "ResourceError",
    "SettingError",
    "Stream",
    "Table",
    "TableView",
    "Trigger",
    "Tx",
    "Window",
    "__version__",
    "abs",
    "any",
    "cast",
    "coalesce",
    "col",
    "column",
    "contains",
    "decimal",
    "div",
    "ends_with",
    "files",
    "is_null",
    "kafka",
    "last",
    "length",
    "list",
    "lower",
    "max",
    "min",
    "not_",
    "optional",
    "session",
    "sliding",
    "starts_with",
    "strip",
    "timestamp",
    "tumbling",
    "upper",
    "where",
]
