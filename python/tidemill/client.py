"""Clients of an app over HTTP: calls that are executed once, and subscriptions to events.

:class:`Client` blocks, and :class:`AsyncClient` is for ``asyncio``. They have the same methods.
Both share the protocol, which is generators (``Steps``): they yield requests and waits, and
receive responses.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tidemill.context import outside
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
from tidemill.keywords import known_keywords
from tidemill.source import here
from tidemill.stream import Handler, Side
from tidemill.table import Table

if TYPE_CHECKING:
    import httpx

__all__ = [
    "AccessError",
    "AsyncClient",
    "Change",
    "Client",
    "Cut",
    "DeadlineError",
    "Event",
    "GoneError",
    "Reset",
]

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
class _Options:
    deadline: float
    retries: int
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Send:
    """A request that a client sends."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes | None
    params: Mapping[str, list[str]]
    #: The timeout, in seconds.
    seconds: float


@dataclass(frozen=True, slots=True)
class _Sleep:
    seconds: float


#: The result of a request without response: whether the app may have received it, and the reason.
Broken = tuple[bool, str]
Steps = Generator["_Send | _Sleep", "httpx.Response | Broken", Any]
Item = TypeVar("Item")


def _name(of: Handler | Side | Table | str) -> str:
    return of if isinstance(of, str) else of.name


def _encoded(value: object) -> object:
    """Returns a value in the form that JSON has for it.

    >>> _encoded([Decimal("1.50"), b"a", float("inf"), dt.datetime(2026, 1, 31, tzinfo=dt.UTC)])
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
            return [_encoded(item) for item in value]
        case Mapping():
            fields: dict[str, object] = {}
            for name, item in value.items():
                key = _encoded(name)
                text = key if isinstance(key, str) else json.dumps(key)
                if text in fields:
                    raise InputError(f"two keys of a dict are the same text in JSON: '{text}'")
                fields[text] = _encoded(item)
            return fields
        case _:
            raise InputError(
                f"a value of type {type(value).__name__} can't be sent",
                "send numbers, texts, bytes, decimals, times, lists and dicts",
            )


def _waits() -> Iterator[float]:
    """Yields the waits before retries, in seconds; random, so that clients spread out."""
    wait = FIRST_WAIT
    while True:
        yield wait * random.uniform(0.5, 1.0)
        wait = min(wait * 2, LAST_WAIT)


_KINDS: dict[str, type[Error]] = {
    kind.__name__: kind
    for kind in (InputError, InternalError, IoError, ProgramError, ResourceError, SettingError)
}


def _found(response: httpx.Response) -> dict[str, Any]:
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


def _refusal(response: httpx.Response) -> Error:
    """Returns the exception for a response that is not a success."""
    said = _found(response)
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


def _call(options: _Options, procedure: str, arguments: Mapping[str, object]) -> Steps:
    """Makes a call: repeats the request until a response, the deadline, or the last retry."""
    content = json.dumps(_encoded(arguments), separators=(",", ":")).encode()
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
    waits = _waits()
    for attempt in range(options.retries + 1):
        left = until - time.monotonic()
        if left <= 0:
            break
        headers["tidemill-deadline-ms"] = str(max(1, int(left * 1000)))
        # The app reports the deadline itself; the extra second is for the network.
        response = yield _Send("POST", f"/call/{procedure}", headers, content, {}, left + 1.0)
        if isinstance(response, tuple):
            may_have_heard, why = response
            heard |= may_have_heard
            error = IoError(
                f"the app can't be reached: {why}", "check that it is running at this address"
            )
        elif response.status_code == 200:
            return _found(response).get("reply")
        elif response.status_code == 409 and "aborted" in (said := _found(response)):
            raise aborted(str(said["aborted"]))
        elif response.status_code == 500 and "fault" in (said := _found(response)):
            raise Fault(str(said["fault"]))
        else:
            error = _refusal(response)
            heard |= isinstance(error, DeadlineError)
            if response.status_code not in (408, 503, 504):
                raise error
        if request is None or attempt == options.retries:
            break
        if (wait := next(waits)) >= until - time.monotonic():
            break
        yield _Sleep(wait)
    if heard:
        error = DeadlineError(
            error.what,
            "the call may have been executed: repeat it with the same request_id and arguments"
            if request is not None
            else "the call may have been executed; with retries= a client can repeat it safely",
        )
        error.request_id = request
    raise error


def _get(options: _Options, path: str, params: Mapping[str, list[str]]) -> Steps:
    """Gets a resource, with retries; a repeated request changes nothing."""
    until = time.monotonic() + options.deadline
    error: Error = IoError(
        f"{path}: the app did not answer", "check that it is running at this address"
    )
    waits = _waits()
    for _ in range(options.retries + 1):
        left = until - time.monotonic()
        if left <= 0:
            break
        response = yield _Send("GET", path, {}, None, params, left)
        if isinstance(response, tuple):
            error = IoError(f"the app can't be reached: {response[1]}", error.help)
        elif response.status_code == 200:
            return _found(response)
        else:
            error = _refusal(response)
            if response.status_code != 503:
                break
        yield _Sleep(min(next(waits), max(0.0, until - time.monotonic())))
    raise error


class _Lines:
    """A parser of server-sent events, line by line.

    >>> lines = _Lines()
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


class _Following(Generic[Item]):
    """A subscription: its requests, its position, and the conversion of its events."""

    def __init__(
        self,
        options: _Options,
        path: str,
        last: str,
        item: Callable[[str, str, str], Item],
        first: int | None = None,
    ) -> None:
        self.path = path
        self.last = last
        self.lines = _Lines()
        self._item = item
        self._first = first
        self._options = options
        self._fails = 0
        self._waits = _waits()

    def headers(self) -> dict[str, str]:
        """Returns the headers of the next connection."""
        self.lines = _Lines()
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
        self._fails, self._waits = 0, _waits()
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


def _event(name: str, id: str, data: str) -> Event:
    return Event(int(id), json.loads(data))


def _cut(name: str, id: str, data: str) -> Cut | Reset:
    said = json.loads(data)
    if name == "reset":
        return Reset(said["epoch"])
    changes = [Change(tuple(change["key"]), change["row"]) for change in said["changes"]]
    return Cut(said["epoch"], changes)


class _Client:
    """The common part of both kinds of client."""

    def __init__(
        self, url: str, token: str | None, deadline: float, retries: int, verify: Any
    ) -> None:
        if deadline <= 0 or retries < 0:
            what = f"deadline={deadline!r}, retries={retries!r}: a deadline is positive, in seconds"
            raise ProgramError(what, "give 0 or more retries", here())
        self.url = url.rstrip("/")
        self._options = _Options(deadline, retries)
        self._settings: dict[str, Any] = {
            "base_url": self.url,
            "headers": {} if token is None else {"authorization": f"Bearer {token}"},
            "verify": verify,
        }

    def using(
        self,
        *,
        deadline: float | None = None,
        retries: int | None = None,
        request_id: str | None = None,
    ) -> Self:
        """Returns this client with other options.

        Both share their connections, and are closed together.

        Args:
            deadline: The longest time of a call with all its retries, in seconds. The default is
                that of this client.
            retries: The number of retries of a request. The default is that of this client.
            request_id: The id of the next request. Another request with the same id gets the
                reply of the first one, and is not executed again. The default is a random id for
                each call.

        Returns:
            The client with the other options.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        now = self._options
        other._options = _Options(
            now.deadline if deadline is None else deadline,
            now.retries if retries is None else retries,
            now.request_id if request_id is None else request_id,
        )
        return other

    def _subscription(self, stream: Side | str, after: int | None) -> _Following[Event]:
        first = None if after is None else after + 1
        return _Following(self._options, f"/streams/{_name(stream)}", "", _event, first)

    def _following(self, table: Table | str) -> _Following[Cut | Reset]:
        return _Following(self._options, f"/tables/{_name(table)}/changes", "", _cut)

    def _row(self, table: Table | str, key: tuple[object, ...]) -> Steps:
        # As JSON a value has its type, so that a key of another type is refused.
        texts = [json.dumps(_encoded(value)) for value in key]
        return _get(self._options, f"/tables/{_name(table)}/rows", {"key": texts, "json": ["true"]})


class Client(_Client):
    """A client of an app over HTTP. Use it with ``with``, or call :meth:`close`.

    Args:
        url: The app's address, such as ``"http://127.0.0.1:8080"`` or :attr:`Mill.url`.
        token: The token that authenticates the client. The default is none.
        deadline: The longest time of a call with all its retries, in seconds. The default is 30.
        retries: The number of retries of a request. The default is 30.
        verify (bool or ssl.SSLContext): The certificates that HTTPS trusts. Give an
            ``ssl.SSLContext`` that trusts a private certificate. The default is True: those of
            public authorities.

    Example:
        >>> import tidemill as tm
        >>> app = tm.App("counter")
        >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
        >>> @app.procedure
        ... def count(tx, name: str, by: int = 1):
        ...     counts[name].n += by
        ...     return counts[name].n
        >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
        ...     client.call(count, name="tides"), client.call("count", name="tides", by=2)
        (1, 3)
    """

    @known_keywords
    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline: float = 30.0,
        retries: int = 30,
        verify: Any = True,
    ) -> None:
        import httpx

        super().__init__(url, token, deadline, retries, verify)
        self._http = httpx.Client(**self._settings)

    def call(self, procedure: Handler | str, /, **arguments: object) -> Any:
        """Calls a procedure or a function of an entity, and returns its reply.

        The client repeats the request when the connection breaks, or when the app is overloaded,
        restarts, or does not answer. The call is still executed only once, because each retry has
        the same request id.

        Args:
            procedure: The procedure or function, or its name.
            **arguments: The values of its parameters. For a function of an entity the key columns
                come with them.

        Returns:
            The value that the function returned.

        Raises:
            Abort: The function aborted. The exception has the class that the function raised, if
                this process defines a class of that name.
            Fault: The function raised any other exception.
            DeadlineError: There was no reply in time.
            AccessError: The token is unknown, or lacks the role that the procedure needs.
            ProgramError: There is no such procedure.
            InputError: The arguments do not fit the parameters.
            IoError: The app can't be reached.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> added = app.stream("added", name=str)
            >>> @app.procedure
            ... def count(tx, name: str, by: int = 1):
            ...     counts[name].n += by
            ...     tx.emit(added, name=name)
            ...     return counts[name].n
            >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
            ...     client.call(count, name="tides", by=2)
            2
        """
        return self._run(_call(self._options, _name(procedure), arguments))

    def row(self, table: Table | str, *key: object) -> dict[str, Any] | None:
        """Returns a row of a table, as the last durable cut left it.

        Args:
            table: The table, or its name.
            *key: The values of the key columns.

        Returns:
            The row, or None if there is none.

        Raises:
            AccessError: The token is unknown, or lacks the role.
            ProgramError: There is no such table.
            InputError: A value has another type than its key column.
            IoError: The app can't be reached.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> added = app.stream("added", name=str)
            >>> @app.procedure
            ... def count(tx, name: str, by: int = 1):
            ...     counts[name].n += by
            ...     tx.emit(added, name=name)
            ...     return counts[name].n
            >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
            ...     client.call(count, name="tides"), client.row(counts, "tides")
            (1, {'name': 'tides', 'n': 1})
        """
        row: dict[str, Any] | None = self._run(self._row(table, key))["row"]
        return row

    def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document that describes the app's procedures, streams and tables.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> added = app.stream("added", name=str)
            >>> @app.procedure
            ... def count(tx, name: str, by: int = 1):
            ...     counts[name].n += by
            ...     tx.emit(added, name=name)
            ...     return counts[name].n
            >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
            ...     "/call/count" in client.openapi()["paths"]
            True
        """
        found: dict[str, Any] = self._run(_get(self._options, "/openapi.json", {}))
        return found

    def subscribe(self, stream: Side | str, *, after: int | None = None) -> Iterator[Event]:
        """Yields the events of a stream as they become durable, without end.

        When the connection breaks or the app restarts, the subscription continues at its
        position: no event is missing, and none comes twice.

        Args:
            stream: The stream, or its name.
            after: The row after which the events begin; -1 begins with the first row. The default
                is to begin with the events that come from now on.

        Yields:
            The events, in their order.

        Raises:
            GoneError: The app no longer retains the next events.
            AccessError: The token is unknown, or lacks the role.
            IoError: The app can't be reached, after all retries.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> added = app.stream("added", name=str)
            >>> @app.procedure
            ... def count(tx, name: str, by: int = 1):
            ...     counts[name].n += by
            ...     tx.emit(added, name=name)
            ...     return counts[name].n
            >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
            ...     _ = client.call(count, name="tides")
            ...     next(client.subscribe(added, after=-1)).value
            {'name': 'tides'}
        """
        return self._follow(self._subscription(stream, after))

    def changes(self, table: Table | str) -> Iterator[Cut | Reset]:
        """Yields the changes of a table, cut by cut, without end.

        A :class:`Reset` comes first, and again whenever changes may be missing. Read the table
        then, for example with :meth:`row`, and continue with the cuts that follow.

        Args:
            table: The table, or its name.

        Yields:
            A :class:`Cut` for each cut that changed the table, or a :class:`Reset`.

        Raises:
            AccessError: The token is unknown, or lacks the role.
            IoError: The app can't be reached, after all retries.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> added = app.stream("added", name=str)
            >>> @app.procedure
            ... def count(tx, name: str, by: int = 1):
            ...     counts[name].n += by
            ...     tx.emit(added, name=name)
            ...     return counts[name].n
            >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
            ...     changes = client.changes(counts)
            ...     isinstance(next(changes), tm.Reset), client.call(count, name="tides")
            ...     [change.row for change in next(changes).changes]
            (True, 1)
            [{'name': 'tides', 'n': 1}]
        """
        return self._follow(self._following(table))

    def close(self) -> None:
        """Closes the client's connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, steps: Steps) -> Any:
        import httpx

        outside("a client's request", may_be_asked=True)
        response: httpx.Response | Broken = (False, "")
        try:
            step = next(steps)
            while True:
                if isinstance(step, _Sleep):
                    time.sleep(step.seconds)
                    step = next(steps)
                    continue
                try:
                    response = self._http.request(
                        step.method, step.path, headers=step.headers, content=step.content,
                        params=step.params, timeout=step.seconds,
                    )  # fmt: skip
                except httpx.TransportError as error:
                    response = _broken(error, self.url)
                step = steps.send(response)
        except StopIteration as end:
            return end.value

    def _follow(self, following: _Following[Item]) -> Iterator[Item]:
        import httpx

        outside("a client's request", may_be_asked=True)
        while True:
            error: Error | None = None
            try:
                with self._http.stream(
                    "GET", following.path, headers=following.headers(), params=following.params(),
                    timeout=httpx.Timeout(self._options.deadline, read=SILENCE),
                ) as response:  # fmt: skip
                    if response.status_code != 200:
                        response.read()
                        error = _refusal(response)
                        if response.status_code != 503:
                            raise error
                    else:
                        for line in response.iter_lines():
                            if (item := following.take(line)) is not None:
                                yield item
            except httpx.TransportError as broken:
                _broken(broken, self.url)
            time.sleep(following.failed(error))


class AsyncClient(_Client):
    """A client of an app over HTTP for ``asyncio``. Use it with ``async with``, or close it.

    The methods are those of :class:`Client`.

    Args:
        url: The app's address, such as ``"http://127.0.0.1:8080"`` or :attr:`Mill.url`.
        token: The token that authenticates the client. The default is none.
        deadline: The longest time of a call with all its retries, in seconds. The default is 30.
        retries: The number of retries of a request. The default is 30.
        verify (bool or ssl.SSLContext): The certificates that HTTPS trusts, as for
            :class:`Client`. The default is True.

    Example:
        >>> import asyncio
        >>> import tidemill as tm
        >>> app = tm.App("counter")
        >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
        >>> @app.procedure
        ... def count(tx, name: str, by: int = 1):
        ...     counts[name].n += by
        ...     return counts[name].n
        >>> async def main(url):
        ...     async with tm.AsyncClient(url) as client:
        ...         return await client.call(count, name="tides")
        >>> with app.start(http_port=0) as mill:
        ...     asyncio.run(main(mill.url))
        1
    """

    @known_keywords
    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline: float = 30.0,
        retries: int = 30,
        verify: Any = True,
    ) -> None:
        import httpx

        super().__init__(url, token, deadline, retries, verify)
        self._http = httpx.AsyncClient(**self._settings)

    async def call(self, procedure: Handler | str, /, **arguments: object) -> Any:
        """Calls a procedure or a function of an entity, as :meth:`Client.call` does.

        Args:
            procedure: The procedure or function, or its name.
            **arguments: The values of its parameters, and of an entity's key columns.

        Returns:
            The value that the function returned.

        Raises:
            Abort: The function aborted.
            DeadlineError: There was no reply in time.
            AccessError: The token is unknown, or lacks the role that the procedure needs.

        Example:
            >>> import asyncio
            >>> import tidemill as tm
            >>> app = tm.App("counter")
            >>> counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))
            >>> added = app.stream("added", name=str)
            >>> @app.procedure
            ... def count(tx, name: str, by: int = 1):
            ...     counts[name].n += by
            ...     tx.emit(added, name=name)
            ...     return counts[name].n
            >>> async def ask(url):
            ...     async with tm.AsyncClient(url) as client:
            ...         return await client.call(count, name="tides", by=2)
            >>> with app.start(http_port=0) as mill:
            ...     asyncio.run(ask(mill.url))
            2
        """
        return await self._run(_call(self._options, _name(procedure), arguments))

    async def row(self, table: Table | str, *key: object) -> dict[str, Any] | None:
        """Returns a row of a table, as :meth:`Client.row` does.

        Args:
            table: The table, or its name.
            *key: The values of the key columns.

        Returns:
            The row, or None if there is none.
        """
        row: dict[str, Any] | None = (await self._run(self._row(table, key)))["row"]
        return row

    async def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document that describes the app's procedures, streams and tables."""
        found: dict[str, Any] = await self._run(_get(self._options, "/openapi.json", {}))
        return found

    def subscribe(self, stream: Side | str, *, after: int | None = None) -> AsyncIterator[Event]:
        """Yields the events of a stream, as :meth:`Client.subscribe` does.

        Args:
            stream: The stream, or its name.
            after: The row after which the events begin; -1 begins with the first row. The default
                is to begin with the events that come from now on.

        Yields:
            The events, in their order.
        """
        return self._follow(self._subscription(stream, after))

    def changes(self, table: Table | str) -> AsyncIterator[Cut | Reset]:
        """Yields the changes of a table, as :meth:`Client.changes` does.

        Args:
            table: The table, or its name.

        Yields:
            A :class:`Cut` for each cut that changed the table, or a :class:`Reset`.
        """
        return self._follow(self._following(table))

    async def close(self) -> None:
        """Closes the client's connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, steps: Steps) -> Any:
        import asyncio

        import httpx

        outside("a client's request", may_be_asked=True)
        response: httpx.Response | Broken = (False, "")
        try:
            step = next(steps)
            while True:
                if isinstance(step, _Sleep):
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
                    continue
                try:
                    response = await self._http.request(
                        step.method, step.path, headers=step.headers, content=step.content,
                        params=step.params, timeout=step.seconds,
                    )  # fmt: skip
                except httpx.TransportError as error:
                    response = _broken(error, self.url)
                step = steps.send(response)
        except StopIteration as end:
            return end.value

    async def _follow(self, following: _Following[Item]) -> AsyncIterator[Item]:
        import asyncio

        import httpx

        outside("a client's request", may_be_asked=True)
        while True:
            error: Error | None = None
            try:
                async with self._http.stream(
                    "GET", following.path, headers=following.headers(), params=following.params(),
                    timeout=httpx.Timeout(self._options.deadline, read=SILENCE),
                ) as response:  # fmt: skip
                    if response.status_code != 200:
                        await response.aread()
                        error = _refusal(response)
                        if response.status_code != 503:
                            raise error
                    else:
                        async for line in response.aiter_lines():
                            if (item := following.take(line)) is not None:
                                yield item
            except httpx.TransportError as broken:
                _broken(broken, self.url)
            await asyncio.sleep(following.failed(error))


def _broken(error: httpx.TransportError, url: str) -> Broken:
    """Returns the result of a request whose connection could not be opened, or broke."""
    import httpx

    if isinstance(error, httpx.UnsupportedProtocol):
        raise SettingError(
            f"'{url}' is not the address of an app", "give one as http://127.0.0.1:8080"
        )
    unreached = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return not unreached, str(error) or type(error).__name__
