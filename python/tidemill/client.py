"""Clients of an app over HTTP: calls that are executed once, and subscriptions to events.

:class:`Client` blocks, and :class:`AsyncClient` is for ``asyncio``. They have the same methods, and
share :mod:`tidemill.client_protocol`.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidemill.client_protocol import (
    SILENCE,
    AccessError,
    Broken,
    Change,
    Cut,
    DeadlineError,
    Event,
    Following,
    GoneError,
    Item,
    Options,
    Reset,
    Sleep,
    Steps,
    broken_by,
    call_steps,
    cut_of,
    encoded,
    event_of,
    get_steps,
    name_of,
    refusal,
)
from tidemill.context import outside
from tidemill.errors import Error, ProgramError
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


class _Client:
    """The common part of both kinds of client."""

    def __init__(
        self,
        url: str | Sequence[str],
        token: str | None,
        deadline: float,
        retries: int,
        verify: Any,
    ) -> None:
        if deadline <= 0 or retries < 0:
            what = f"deadline={deadline!r}, retries={retries!r}: a deadline is positive, in seconds"
            raise ProgramError(what, "give 0 or more retries", here())
        urls = [url] if isinstance(url, str) else list(url)
        if not urls:
            raise ProgramError("a client needs an address", "give one, or a list of them", here())
        #: The addresses. Those at the left are tried first.
        self._urls = deque(one.rstrip("/") for one in urls)
        self._options = Options(deadline, retries)
        self._settings: dict[str, Any] = {
            "headers": {} if token is None else {"authorization": f"Bearer {token}"},
            "verify": verify,
        }

    @property
    def url(self) -> str:
        """The address of the app to which the client sends requests now."""
        return self._urls[0]

    def _turn(self) -> None:
        """Goes on to the next address."""
        self._urls.rotate(-1)

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
        other._options = Options(
            now.deadline if deadline is None else deadline,
            now.retries if retries is None else retries,
            now.request_id if request_id is None else request_id,
        )
        return other

    def _subscription(self, stream: Side | str, after: int | None) -> Following[Event]:
        first = None if after is None else after + 1
        return Following(self._options, f"/streams/{name_of(stream)}", "", event_of, first)

    def _following(self, table: Table | str) -> Following[Cut | Reset]:
        return Following(self._options, f"/tables/{name_of(table)}/changes", "", cut_of)

    def _row(self, table: Table | str, key: tuple[object, ...]) -> Steps:
        # As JSON a value has its type, so that a key of another type is refused.
        texts = [json.dumps(encoded(value)) for value in key]
        return get_steps(
            self._options, f"/tables/{name_of(table)}/rows", {"key": texts, "json": ["true"]}
        )


class Client(_Client):
    """A client of an app over HTTP. Use it with ``with``, or call :meth:`close`.

    Args:
        url: The app's address, such as ``"http://127.0.0.1:8080"`` or :attr:`Mill.url`. An app on
            several processes may have several. The client uses the first one, and goes on to the
            next one when that does not answer, or not now.
        token: The token that authenticates the client. The default is none.
        deadline: The longest time of a call with all its retries, in seconds. The default is 30.
        retries: The number of retries of a request. The default is 30.
        verify (bool or ssl.SSLContext): The certificates that HTTPS trusts. Give an
            ``ssl.SSLContext`` that trusts a private certificate. The default is True: those of
            public authorities.

    The examples of the methods use the app of this one.

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
        ...     client.call(count, name="tides"), client.call("count", name="tides", by=2)
        (1, 3)
    """

    @known_keywords
    def __init__(
        self,
        url: str | Sequence[str],
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
            >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
            ...     client.call(count, name="tides", by=2)
            2
        """
        return self._run(call_steps(self._options, name_of(procedure), arguments))

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
            >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
            ...     client.call(count, name="tides"), client.row(counts, "tides")
            (1, {'name': 'tides', 'n': 1})
        """
        row: dict[str, Any] | None = self._run(self._row(table, key))["row"]
        return row

    def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document that describes the app's procedures, streams and tables.

        Example:
            >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
            ...     "/call/count" in client.openapi()["paths"]
            True
        """
        found: dict[str, Any] = self._run(get_steps(self._options, "/openapi.json", {}))
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
            >>> with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
            ...     changes = client.changes(counts)
            ...     isinstance(next(changes), tm.Reset), client.call(count, name="tides")
            ...     [change.row for change in next(changes).changes]
            (True, 1)
            [{'name': 'tides', 'n': 1}]
        """
        return self._follow(self._following(table))

    def close(self) -> None:
        """Closes the client's connections.

        Example:
            >>> with app.start(http_port=0) as mill:
            ...     client = tm.Client(mill.url)
            ...     reply = client.call(count, name="tides")
            ...     client.close()
        """
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
                if isinstance(step, Sleep):
                    time.sleep(step.seconds)
                    self._turn()
                    step = next(steps)
                    continue
                try:
                    response = self._http.request(
                        step.method, self.url + step.path, headers=step.headers,
                        content=step.content, params=step.params, timeout=step.seconds,
                    )  # fmt: skip
                except httpx.TransportError as error:
                    response = broken_by(error, self.url)
                step = steps.send(response)
        except StopIteration as end:
            return end.value

    def _follow(self, following: Following[Item]) -> Iterator[Item]:
        import httpx

        outside("a client's request", may_be_asked=True)
        while True:
            error: Error | None = None
            try:
                with self._http.stream(
                    "GET", self.url + following.path,
                    headers=following.headers(), params=following.params(),
                    timeout=httpx.Timeout(self._options.deadline, read=SILENCE),
                ) as response:  # fmt: skip
                    if response.status_code != 200:
                        response.read()
                        error = refusal(response)
                        if response.status_code != 503:
                            raise error
                    else:
                        for line in response.iter_lines():
                            if (item := following.take(line)) is not None:
                                yield item
            except httpx.TransportError as broken:
                broken_by(broken, self.url)
            self._turn()
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
        url: str | Sequence[str],
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
            >>> async def ask(url):
            ...     async with tm.AsyncClient(url) as client:
            ...         return await client.call(count, name="tides", by=2)
            >>> with app.start(http_port=0) as mill:
            ...     asyncio.run(ask(mill.url))
            2
        """
        return await self._run(call_steps(self._options, name_of(procedure), arguments))

    async def row(self, table: Table | str, *key: object) -> dict[str, Any] | None:
        """Returns a row of a table, as :meth:`Client.row` does.

        Args:
            table: The table, or its name.
            *key: The values of the key columns.

        Returns:
            The row, or None if there is none.

        Example:
            >>> async def main(url):
            ...     async with tm.AsyncClient(url) as client:
            ...         await client.call(count, name="tides")
            ...         return await client.row(counts, "tides")
            >>> with app.start(http_port=0) as mill:
            ...     asyncio.run(main(mill.url))
            {'name': 'tides', 'n': 1}
        """
        row: dict[str, Any] | None = (await self._run(self._row(table, key)))["row"]
        return row

    async def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document that describes the app's procedures, streams and tables.

        Example:
            >>> async def main(url):
            ...     async with tm.AsyncClient(url) as client:
            ...         return "/call/count" in (await client.openapi())["paths"]
            >>> with app.start(http_port=0) as mill:
            ...     asyncio.run(main(mill.url))
            True
        """
        found: dict[str, Any] = await self._run(get_steps(self._options, "/openapi.json", {}))
        return found

    def subscribe(self, stream: Side | str, *, after: int | None = None) -> AsyncIterator[Event]:
        """Yields the events of a stream, as :meth:`Client.subscribe` does.

        Args:
            stream: The stream, or its name.
            after: The row after which the events begin; -1 begins with the first row. The default
                is to begin with the events that come from now on.

        Yields:
            The events, in their order.

        Example:
            >>> async def main(url):
            ...     async with tm.AsyncClient(url) as client:
            ...         await client.call(count, name="tides")
            ...         return (await anext(client.subscribe("count", after=-1))).value
            >>> with app.start(http_port=0) as mill:
            ...     asyncio.run(main(mill.url))
            {'reply': 1}
        """
        return self._follow(self._subscription(stream, after))

    def changes(self, table: Table | str) -> AsyncIterator[Cut | Reset]:
        """Yields the changes of a table, as :meth:`Client.changes` does.

        Args:
            table: The table, or its name.

        Yields:
            A :class:`Cut` for each cut that changed the table, or a :class:`Reset`.

        Example:
            >>> async def main(url):
            ...     async with tm.AsyncClient(url) as client:
            ...         changes = client.changes(counts)
            ...         assert isinstance(await anext(changes), tm.Reset)
            ...         await client.call(count, name="tides")
            ...         return [change.row for change in (await anext(changes)).changes]
            >>> with app.start(http_port=0) as mill:
            ...     asyncio.run(main(mill.url))
            [{'name': 'tides', 'n': 1}]
        """
        return self._follow(self._following(table))

    async def close(self) -> None:
        """Closes the client's connections.

        Example:
            >>> async def main(url):
            ...     client = tm.AsyncClient(url)
            ...     try:
            ...         return await client.call(count, name="tides")
            ...     finally:
            ...         await client.close()
            >>> with app.start(http_port=0) as mill:
            ...     asyncio.run(main(mill.url))
            1
        """
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
                if isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                    self._turn()
                    step = next(steps)
                    continue
                try:
                    response = await self._http.request(
                        step.method, self.url + step.path, headers=step.headers,
                        content=step.content, params=step.params, timeout=step.seconds,
                    )  # fmt: skip
                except httpx.TransportError as error:
                    response = broken_by(error, self.url)
                step = steps.send(response)
        except StopIteration as end:
            return end.value

    async def _follow(self, following: Following[Item]) -> AsyncIterator[Item]:
        import asyncio

        import httpx

        outside("a client's request", may_be_asked=True)
        while True:
            error: Error | None = None
            try:
                async with self._http.stream(
                    "GET", self.url + following.path,
                    headers=following.headers(), params=following.params(),
                    timeout=httpx.Timeout(self._options.deadline, read=SILENCE),
                ) as response:  # fmt: skip
                    if response.status_code != 200:
                        await response.aread()
                        error = refusal(response)
                        if response.status_code != 503:
                            raise error
                    else:
                        async for line in response.aiter_lines():
                            if (item := following.take(line)) is not None:
                                yield item
            except httpx.TransportError as broken:
                broken_by(broken, self.url)
            self._turn()
            await asyncio.sleep(following.failed(error))
