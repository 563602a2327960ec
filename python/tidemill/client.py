"""Clients of an app over HTTP: calls that are executed once, events as they come.

:class:`Client` waits, :class:`AsyncClient` is for ``asyncio``; they have the same methods. What
they send, and what they make of what comes, is in one place for both: steps that are told what has
come and say what to do next.
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

#: Seconds that the first try to come again waits; each waits twice as long, up to the last.
FIRST_WAIT = 0.05
LAST_WAIT = 2.0
#: Seconds without a sign of life, after which whoever follows something comes again.
SILENCE = 30.0


class AccessError(SettingError):
    """The app does not know the token, or the token has not the role that is needed."""


class DeadlineError(ResourceError):
    """There was no reply in time. The call may have been executed, or may still be.

    ``request_id`` asks for it again: ``client.using(request_id=error.request_id).call(...)`` with
    the same arguments gives its reply, and it is executed once.
    """

    request_id: str | None = None


class GoneError(InputError):
    """Events that were asked for are kept no more; ``first`` is the first row that is there."""

    first: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream."""

    #: The number of its row, by which a subscription goes on behind it.
    row: int
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A row that has changed, or gone: then ``row`` is None."""

    key: tuple[Any, ...]
    row: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Cut:
    """What a cut has changed in a table."""

    epoch: int
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class Reset:
    """What was before is not known: read the table now; what comes next goes on from there."""

    epoch: int


@dataclass(frozen=True, slots=True)
class _Options:
    deadline: float
    retries: int
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Send:
    """A request to be made, within so many seconds."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes | None
    params: Mapping[str, list[str]]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Sleep:
    seconds: float


#: What comes of a request that gets no response: whether somebody may have heard it, and why.
Broken = tuple[bool, str]
Steps = Generator["_Send | _Sleep", "httpx.Response | Broken", Any]
Item = TypeVar("Item")


def _name(of: Handler | Side | Table | str) -> str:
    return of if isinstance(of, str) else of.name


def _encoded(value: object) -> object:
    """A value as JSON has it.

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
    """How long each try to come again waits: not all clients at once."""
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
        "is it the address of an app, and not of something else?",
    )


def _refusal(response: httpx.Response) -> Error:
    """What a refusal says, as an exception."""
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
    """A call: sent until there is an answer, no more time, or no more tries."""
    content = json.dumps(_encoded(arguments), separators=(",", ":")).encode()
    request = options.request_id
    if request is None and options.retries > 0:
        request = uuid.uuid4().hex
    until = time.monotonic() + options.deadline
    headers = {"content-type": "application/json"}
    if request is not None:
        headers["idempotency-key"] = request
    error: Error = DeadlineError(f"there was no time to call {procedure}")
    heard = False
    waits = _waits()
    for attempt in range(options.retries + 1):
        left = until - time.monotonic()
        if left <= 0:
            break
        headers["tidemill-deadline-ms"] = str(max(1, int(left * 1000)))
        # The app says itself that the time is over; a little more is for the way.
        response = yield _Send("POST", f"/call/{procedure}", headers, content, {}, left + 1.0)
        if isinstance(response, tuple):
            may_have_heard, why = response
            heard |= may_have_heard
            error = IoError(
                f"the app can't be reached: {why}", "is it running, and at this address?"
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
            "the call may have been executed: ask again with the same request_id and arguments"
            if request is not None
            else "the call may have been executed; with retries it could be asked for again",
        )
        error.request_id = request
    raise error


def _get(options: _Options, path: str, params: Mapping[str, list[str]]) -> Steps:
    """Something that may be asked for as often as one likes."""
    until = time.monotonic() + options.deadline
    error: Error = IoError(f"{path}: the app did not answer", "is it running, and at this address?")
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
    """Server-sent events, from their lines.

    >>> lines = _Lines()
    >>> [lines.feed(line) for line in ("id: 7", "data: {}", "")]
    [None, None, ('', '7', '{}')]
    """

    def __init__(self) -> None:
        self.id = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, line: str) -> tuple[str, str, str] | None:
        """Takes a line; gives name, id and data when it ends an event."""
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
    """Something that is followed: how it is asked for, and what its events are."""

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
        """The headers of the next connection."""
        self.lines = _Lines()
        more = {"last-event-id": self.last} if self.last else {}
        return {"accept": "text/event-stream"} | more

    def params(self) -> dict[str, int]:
        """Where to begin, unless it is where the last connection was."""
        return {"from": self._first} if self._first is not None and not self.last else {}

    def take(self, line: str) -> Item | None:
        """Takes a line; gives an event, if there is one."""
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
        """The connection has ended: how long to wait before the next; raises when it is enough."""
        self._fails += 1
        if self._fails > self._options.retries:
            raise error or IoError(f"{self.path}: the app does not answer", "is it running?")
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
    """What both kinds of client have."""

    def __init__(
        self, url: str, token: str | None, deadline: float, retries: int, verify: Any
    ) -> None:
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
        """The same client with other options; it shares connections, and is closed with it.

        ``deadline`` is how many seconds a call may take with all its tries, ``retries`` how often
        it is tried again, and ``request_id`` names the request, so that it may be asked for again
        by whoever knows the name.
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
        texts = []
        for value in key:
            encoded = _encoded(value)
            texts.append(encoded if isinstance(encoded, str) else json.dumps(encoded))
        return _get(self._options, f"/tables/{_name(table)}/rows", {"key": texts})


class Client(_Client):
    """A client of an app that is served over HTTP. Use it with ``with``, or close it.

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

    ``token`` says who it is, where the app wants to know. ``verify`` is for HTTPS with a
    certificate of one's own: an ``ssl.SSLContext`` that trusts it.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline: float = 30.0,
        retries: int = 8,
        verify: Any = True,
    ) -> None:
        import httpx

        super().__init__(url, token, deadline, retries, verify)
        self._http = httpx.Client(**self._settings)

    def call(self, procedure: Handler | str, /, **arguments: object) -> Any:
        """Calls a procedure, and gives its reply.

        It is tried again when the connection breaks or the app has no room, starts anew, or does
        not answer; it is executed once all the same, because each try has the same request id.
        When it aborts, ``tm.Abort`` is raised with the reason, or a class derived from it, as the
        function has raised it, where there is one of that name; when there is no answer in time,
        :class:`DeadlineError`.
        """
        return self._run(_call(self._options, _name(procedure), arguments))

    def row(self, table: Table | str, *key: object) -> dict[str, Any] | None:
        """The row with this key, if there is one, as the last durable cut has left it."""
        row: dict[str, Any] | None = self._run(self._row(table, key))["row"]
        return row

    def openapi(self) -> dict[str, Any]:
        """The document that describes the app."""
        found: dict[str, Any] = self._run(_get(self._options, "/openapi.json", {}))
        return found

    def subscribe(self, stream: Side | str, *, after: int | None = None) -> Iterator[Event]:
        """The events of a stream as they become durable, without end.

        They begin behind the row ``after`` (-1: with the first one), or with what comes from now
        on. When the connection breaks or the app starts anew, it goes on where it was: no event
        is missing and none comes twice. :class:`GoneError` is raised when those that come next are
        kept no more.
        """
        return self._follow(self._subscription(stream, after))

    def changes(self, table: Table | str) -> Iterator[Cut | Reset]:
        """What changes in a table, cut by cut, without end.

        A :class:`Reset` comes first, and again whenever something may be missing: read the table
        then (by :meth:`row`, say), and go on with what comes behind.
        """
        return self._follow(self._following(table))

    def close(self) -> None:
        """Closes its connections."""
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
    """As :class:`Client`, for ``asyncio``. Use it with ``async with``, or close it."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline: float = 30.0,
        retries: int = 8,
        verify: Any = True,
    ) -> None:
        import httpx

        super().__init__(url, token, deadline, retries, verify)
        self._http = httpx.AsyncClient(**self._settings)

    async def call(self, procedure: Handler | str, /, **arguments: object) -> Any:
        """Calls a procedure, as :meth:`Client.call` does."""
        return await self._run(_call(self._options, _name(procedure), arguments))

    async def row(self, table: Table | str, *key: object) -> dict[str, Any] | None:
        """The row of a table with this key, as :meth:`Client.row` gives it."""
        row: dict[str, Any] | None = (await self._run(self._row(table, key)))["row"]
        return row

    async def openapi(self) -> dict[str, Any]:
        """The document that describes the app."""
        found: dict[str, Any] = await self._run(_get(self._options, "/openapi.json", {}))
        return found

    def subscribe(self, stream: Side | str, *, after: int | None = None) -> AsyncIterator[Event]:
        """The events of a stream, as :meth:`Client.subscribe` gives them."""
        return self._follow(self._subscription(stream, after))

    def changes(self, table: Table | str) -> AsyncIterator[Cut | Reset]:
        """What changes in a table, as :meth:`Client.changes` gives it."""
        return self._follow(self._following(table))

    async def close(self) -> None:
        """Closes its connections."""
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
    """What is to be made of a connection that could not be had or kept."""
    import httpx

    if isinstance(error, httpx.UnsupportedProtocol):
        raise SettingError(f"'{url}' is no address of an app", "give one as http://127.0.0.1:8080")
    unreached = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return not unreached, str(error) or type(error).__name__
