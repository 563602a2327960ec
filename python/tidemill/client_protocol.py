"""The protocol of clients over HTTP, without connections.

A request with its retries is a generator (``Steps``): it yields requests and waits, and receives
responses. So both kinds of :mod:`tidemill.client` share it.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidemill.errors import (
    Error,
    Fault,
    InputError,
    InternalError,
    IoError,
    ProgramError,
    ResourceError,
    SettingError,
    aborted,
)
from tidemill.stream import Handler, Side
from tidemill.table import Table

if TYPE_CHECKING:
    import httpx

#: The wait before the first retry, in seconds. Each further wait is twice as long.
FIRST_WAIT = 0.05
#: The longest wait before a retry, in seconds.
LAST_WAIT = 2.0
#: The silence after which a subscription connects again, in seconds.
SILENCE = 30.0


class AccessError(SettingError):
    """The app does not know the token, or the token lacks the role that the procedure needs."""


class DeadlineError(ResourceError):
    """There was no reply in time; the call may have been executed, or may still be executed.

    To get the reply, repeat the call with the same arguments and the same id:
    ``client.using(request_id=error.request_id).call(...)``. The call is still executed only once.

    Attributes:
        request_id: The id of the request, or None if it had none.
    """

    request_id: str | None = None


class GoneError(InputError):
    """The app no longer retains the requested events.

    Attributes:
        first: The number of the first row that the app still has.
    """

    first: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream, from :meth:`Client.subscribe`."""

    #: The number of its row. ``subscribe(stream, after=row)`` continues after it.
    row: int
    #: The event's columns.
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A row of a table that a cut has changed or deleted."""

    #: The values of the key columns.
    key: tuple[Any, ...]
    #: The row's columns, or None if the row was deleted.
    row: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Cut:
    """The changes of one cut to a table, from :meth:`Client.changes`."""

    #: The number of the epoch that ended with the cut.
    epoch: int
    #: The changed and deleted rows.
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class Reset:
    """A start without the earlier changes: read the table now. Later cuts continue from there."""

    #: The number of the epoch from which the changes continue.
    epoch: int


@dataclass(frozen=True, slots=True)
class Options:
    """How often and how long a request is tried, with times in seconds."""

    deadline: float
    retries: int
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """A request that a client sends."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes | None
    params: Mapping[str, list[str]]
    #: The timeout, in seconds.
    seconds: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """A wait of a client, in seconds."""

    seconds: float


#: The result of a request without response: whether the app may have received it, and the reason.
Broken = tuple[bool, str]
Steps = Generator["Send | Sleep", "httpx.Response | Broken", Any]
Item = TypeVar("Item")


def name_of(of: Handler | Side | Table | str) -> str:
    """Returns the name of what a request is about."""
    return of if isinstance(of, str) else of.name


def encoded(value: object) -> object:
    """Returns a value in the form that JSON has for it.

    >>> encoded([Decimal("1.50"), b"a", float("inf"), dt.datetime(2026, 1, 31, tzinfo=dt.UTC)])
    ['1.50', '0x61', 'inf', '2026-01-31T00:00:00+00:00']
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value).replace("nan", "NaN")
        case Decimal():
            return str(value)
        case bytes() | bytearray():
            return "0x" + value.hex()
        case dt.datetime():
            if value.utcoffset() is None:
                raise InputError(
                    f"{value.isoformat()} has no time zone, so it may be any of many moments",
                    "write .replace(tzinfo=timezone.utc) where it is UTC, and .astimezone() where "
                    "it is local time",
                )
            return value.isoformat()
        case list() | tuple():
            return [encoded(item) for item in value]
        case Mapping():
            fields: dict[str, object] = {}
            for name, item in value.items():
                key = encoded(name)
                text = key if isinstance(key, str) else json.dumps(key)
                if text in fields:
                    raise InputError(f"two keys of a dict are the same text in JSON: '{text}'")
                fields[text] = encoded(item)
            return fields
        case _:
            raise InputError(
                f"a value of type {type(value).__name__} can't be sent",
                "send numbers, texts, bytes, decimals, times, lists and dicts",
            )


def retry_waits() -> Iterator[float]:
    """Yields the waits before retries, in seconds; random, so that clients spread out."""
    wait = FIRST_WAIT
    while True:
        yield wait * random.uniform(0.5, 1.0)
        wait = min(wait * 2, LAST_WAIT)


_KINDS: dict[str, type[Error]] = {
    kind.__name__: kind
    for kind in (InputError, InternalError, IoError, ProgramError, ResourceError, SettingError)
}


def found_in(response: httpx.Response) -> dict[str, Any]:
    """Returns the object of a response."""
    try:
        found = response.json()
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    raise IoError(
        f"{response.url} answered {response.status_code} without JSON",
        "check that this is the address of an app",
    )


def refusal(response: httpx.Response) -> Error:
    """Returns the exception for a response that is not a success."""
    said = found_in(response)
    error = said.get("error") or {}
    what = str(error.get("what") or f"{response.url} answered {response.status_code}")
    help = str(error.get("help") or "")
    if said.get("executed") == "unknown":
        return DeadlineError(what, help)
    match response.status_code:
        case 401 | 403:
            return AccessError(what, help)
        case 404:
            return ProgramError(what, help)
        case 410:
            gone = GoneError(what, help)
            gone.first = int(said.get("first", 0))
            return gone
    return _KINDS.get(str(error.get("kind")), IoError)(what, help)


def call_steps(options: Options, procedure: str, arguments: Mapping[str, object]) -> Steps:
    """Makes a call: repeats the request until a response, the deadline, or the last retry."""
    content = json.dumps(encoded(arguments), separators=(",", ":")).encode()
    request = options.request_id
    if request is None and options.retries > 0:
        request = uuid.uuid4().hex
    until = time.monotonic() + options.deadline
    headers = {"content-type": "application/json"}
    if request is not None:
        headers["idempotency-key"] = request
    error: Error = DeadlineError(
        f"there was no time to call {procedure}: the deadline is {options.deadline} s",
        "give a longer deadline=",
    )
    heard = False
    waits = retry_waits()
    for attempt in range(options.retries + 1):
        left = until - time.monotonic()
        if left <= 0:
            break
        headers["tidemill-deadline-ms"] = str(max(1, int(left * 1000)))
        # The app reports the deadline itself; the extra second is for the network.
        response = yield Send("POST", f"/call/{procedure}", headers, content, {}, left + 1.0)
        if isinstance(response, tuple):
            may_have_heard, why = response
            heard |= may_have_heard
            error = IoError(
                f"the app can't be reached: {why}", "check that it is running at this address"
            )
        elif response.status_code == 200:
            return found_in(response).get("reply")
        elif response.status_code == 409 and "aborted" in (said := found_in(response)):
            raise aborted(str(said["aborted"]))
        elif response.status_code == 500 and "fault" in (said := found_in(response)):
            raise Fault(str(said["fault"]))
        else:
            error = refusal(response)
            heard |= isinstance(error, DeadlineError)
            if response.status_code not in (408, 503, 504):
                raise error
        if request is None or attempt == options.retries:
            break
        if (wait := next(waits)) >= until - time.monotonic():
            break
        yield Sleep(wait)
    if heard:
        error = DeadlineError(
            error.what,
            "the call may have been executed: repeat it with the same request_id and arguments"
            if request is not None
            else "the call may have been executed; with retries= a client can repeat it safely",
        )
        error.request_id = request
    raise error


def get_steps(options: Options, path: str, params: Mapping[str, list[str]]) -> Steps:
    """Gets a resource, with retries; a repeated request changes nothing."""
    until = time.monotonic() + options.deadline
    error: Error = IoError(
        f"{path}: the app did not answer", "check that it is running at this address"
    )
    waits = retry_waits()
    for _ in range(options.retries + 1):
        left = until - time.monotonic()
        if left <= 0:
            break
        response = yield Send("GET", path, {}, None, params, left)
        if isinstance(response, tuple):
            error = IoError(f"the app can't be reached: {response[1]}", error.help)
        elif response.status_code == 200:
            return found_in(response)
        else:
            error = refusal(response)
            if response.status_code != 503:
                break
        yield Sleep(min(next(waits), max(0.0, until - time.monotonic())))
    raise error


class Lines:
    """A parser of server-sent events, line by line.

    >>> lines = Lines()
    >>> [lines.feed(line) for line in ("id: 7", "data: {}", "")]
    [None, None, ('', '7', '{}')]
    """

    def __init__(self) -> None:
        self.id = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, line: str) -> tuple[str, str, str] | None:
        """Takes a line, and returns name, id and data if the line ends an event."""
        if not line:
            name, data = self._name, self._data
            self._name, self._data = "", []
            return (name, self.id, "\n".join(data)) if data else None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id":
            self.id = value
        elif field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        return None


class Following(Generic[Item]):
    """A subscription: its requests, its position, and the conversion of its events."""

    def __init__(
        self,
        options: Options,
        path: str,
        last: str,
        item: Callable[[str, str, str], Item],
        first: int | None = None,
    ) -> None:
        self.path = path
        self.last = last
        self.lines = Lines()
        self._item = item
        self._first = first
        self._options = options
        self._fails = 0
        self._waits = retry_waits()

    def headers(self) -> dict[str, str]:
        """Returns the headers of the next connection."""
        self.lines = Lines()
        more = {"last-event-id": self.last} if self.last else {}
        return {"accept": "text/event-stream"} | more

    def params(self) -> dict[str, int]:
        """Returns the first row to request, unless the last connection's position is known."""
        return {"from": self._first} if self._first is not None and not self.last else {}

    def take(self, line: str) -> Item | None:
        """Takes a line, and returns an event if the line ends one."""
        found = self.lines.feed(line)
        if self.lines.id:
            self.last = self.lines.id
        if found is None:
            return None
        self._fails, self._waits = 0, retry_waits()
        name, id, data = found
        if name == "end":
            return None
        if name == "gone":
            said = json.loads(data)
            gone = GoneError(str(said.get("what")), str(said.get("help") or ""))
            gone.first = int(said.get("first", 0))
            raise gone
        return self._item(name, id, data)

    def failed(self, error: Error | None) -> float:
        """Returns the wait before the next connection, in seconds; raises after the last retry."""
        self._fails += 1
        if self._fails > self._options.retries:
            raise error or IoError(
                f"{self.path}: the app does not answer", "check that it is running"
            )
        return next(self._waits)


def event_of(name: str, id: str, data: str) -> Event:
    """Returns an event of a stream from one that the app sent."""
    return Event(int(id), json.loads(data))


def cut_of(name: str, id: str, data: str) -> Cut | Reset:
    """Returns the changes of a table from an event that the app sent."""
    said = json.loads(data)
    if name == "reset":
        return Reset(said["epoch"])
    changes = [Change(tuple(change["key"]), change["row"]) for change in said["changes"]]
    return Cut(said["epoch"], changes)


def broken_by(error: httpx.TransportError, url: str) -> Broken:
    """Returns the result of a request whose connection could not be opened, or broke."""
    import httpx

    if isinstance(error, httpx.UnsupportedProtocol):
        raise SettingError(
            f"'{url}' is not the address of an app", "give one as http://127.0.0.1:8080"
        )
    unreached = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return not unreached, str(error) or type(error).__name__
