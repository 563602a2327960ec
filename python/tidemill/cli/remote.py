"""Questions to an app that serves clients over HTTP, on whichever machine it runs.

Any process of an app answers. The answers have the lines that the engine of a data directory gives.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from tidemill.client import Client
from tidemill.client_protocol import Lines, refusal
from tidemill.errors import ResourceError, SettingError

if TYPE_CHECKING:
    import httpx

Line = dict[str, Any]

#: How long a process may take to answer, and how often it says at least that it is alive.
ANSWER_S, SILENCE_S = 10.0, 30.0

#: The hosts to which nothing travels over a network.
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

#: The most rows of a table in one answer.
PAGE: Final = 1_000

#: A row that no stream has, by which the process says which ones there are.
NO_ROW: Final = (1 << 63) - 1


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that name a process."""
    parser.add_argument(
        "--cluster",
        metavar="URL",
        help="ask the process that serves clients at this address, instead of a data directory",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="file with the token for that process, if it needs one"
    )


def ask(args: argparse.Namespace, request: Mapping[str, Any]) -> Iterator[Line]:
    """Yields the lines of a reply.

    Raises:
        ResourceError: No process answers at this address.
        SettingError: The flags don't fit each other.
    """
    import httpx

    if args.data_dir is not None:
        raise SettingError("--cluster and --data-dir exclude each other", "give one of them")
    url = args.cluster if "://" in args.cluster else f"http://{args.cluster}"
    headers = {}
    if args.token_file is not None:
        if urlsplit(url).scheme != "https" and urlsplit(url).hostname not in LOOPBACK:
            raise SettingError(
                f"{args.cluster}: a token would travel unencrypted", "give an address with https://"
            )
        headers["authorization"] = f"Bearer {_token(args.token_file)}"
    work = {"query": _query, "tail": _tail, "dlq_ls": _letters}[str(request["do"])]
    timeout = httpx.Timeout(ANSWER_S, read=SILENCE_S)
    try:
        with httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=timeout) as http:
            yield from work(http, request)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ResourceError(
            f"no process answers at {url}: {error}",
            "give the address that a process shows as http, such as http://127.0.0.1:8080",
        ) from None


def _token(file: str) -> str:
    """Returns the token in a file, which no error shows."""
    help = "give a file whose only line is the token"
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--token-file: {error}", help) from None
    if not re.fullmatch(r"[!-~]+", token):
        raise SettingError(f"--token-file: {file} does not have one token", help)
    return token


def _get(http: httpx.Client, path: str, name: str, params: Any = None) -> dict[str, Any]:
    """Returns an answer, which has a field of this name."""
    response = http.get(path, params=params)
    if response.status_code != 200:
        raise refusal(response)
    try:
        found = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict) or name not in found:
        raise SettingError(
            f"{http.base_url} does not answer what it was asked",
            "give the address of an app, and a value for each column of a key",
        )
    return found


def _query(http: httpx.Client, request: Mapping[str, Any]) -> Iterator[Line]:
    for flag in ("filter", "as_of"):
        if flag in request:
            raise SettingError(
                f"--{flag.replace('_', '-')} needs the data directory",
                "leave --cluster out, on the machine of the app or of its coordinator",
            )
    path, more = f"/tables/{quote(request['table'], safe='')}/rows", False
    if "key" in request:
        row = _get(http, path, "row", [("key", value) for value in request["key"]])["row"]
        rows = [] if row is None else [row]
    else:
        limit = request.get("limit", PAGE)
        if limit > PAGE:
            raise SettingError(
                f"--limit {limit}: a process gives at most {PAGE:,} rows",
                "leave --cluster out, on the machine of the app or of its coordinator",
            )
        found = _get(http, path, "rows", {"limit": limit})
        rows, more = found["rows"], found["more"]
    yield {"columns": [{"name": name} for name in (rows[0] if rows else {})]}
    yield from ({"row": row} for row in rows)
    yield {"end": True, "more": more}


def _bounds(http: httpx.Client, stream: str) -> tuple[int, int]:
    """Returns the numbers of the first retained row of a stream and of its next row."""
    path = f"/streams/{quote(stream, safe='')}"
    response = http.get(path, params={"from": NO_ROW})
    if response.status_code != 400 or "next" not in response.json():
        raise refusal(response)
    next_row = int(response.json()["next"])
    with http.stream("GET", path, params={"from": 0}) as begun:
        if begun.status_code == 200:
            return 0, next_row
        begun.read()
        if begun.status_code != 410:
            raise refusal(begun)
        return int(begun.json()["first"]), next_row


def _tail(http: httpx.Client, request: Mapping[str, Any]) -> Iterator[Line]:
    stream = request["stream"]
    _, next_row = _bounds(http, stream)
    begin = request.get("from", next_row)
    if begin > next_row:
        # The process says what is wrong.
        _get(http, f"/streams/{quote(stream, safe='')}", "next", {"from": begin})
    yield {"stream": stream, "from": begin}
    if request["follow"]:
        token = http.headers.get("authorization", "").removeprefix("Bearer ") or None
        with Client(str(http.base_url), token=token) as client:
            for event in client.subscribe(stream, after=begin - 1):
                yield {"row": event.row, "value": event.value}
    yield from _rows(http, stream, range(begin, next_row))
    yield {"end": True, "next": max(begin, next_row)}


def _rows(http: httpx.Client, stream: str, rows: range) -> Iterator[Line]:
    """Yields rows that are retained."""
    if not rows:
        return
    lines = Lines()
    with http.stream(
        "GET", f"/streams/{quote(stream, safe='')}", params={"from": rows.start}
    ) as response:
        if response.status_code != 200:
            response.read()
            raise refusal(response)
        for text in response.iter_lines():
            found = lines.feed(text)
            if found is None:
                continue
            name, id, data = found
            if name:
                said = json.loads(data)
                what = said.get("what") or f"the app stops: {said.get('why')}"
                raise ResourceError(what, said.get("help") or "run the command again")
            yield {"row": int(id), "value": json.loads(data)}
            if int(id) + 1 == rows.stop:
                return
    raise ResourceError("the connection has ended during the answer", "run the command again")


def _letters(http: httpx.Client, request: Mapping[str, Any]) -> Iterator[Line]:
    ends = (".dead", ".late")
    paths = _get(http, "/openapi.json", "paths")["paths"]
    streams_of = [path for path in paths if path.startswith("/streams/")]
    names = [path.removeprefix("/streams/") for path in streams_of]
    wanted = [request["stream"]] if "stream" in request else [n for n in names if n.endswith(ends)]
    limit = request.get("limit", PAGE)
    streams: dict[str, Line] = {}
    for stream in sorted(wanted):
        if not stream.endswith(ends):
            raise SettingError(
                f"{stream} has no bad or late events",
                "the names of such streams end with .dead or .late",
            )
        first, next_row = _bounds(http, stream)
        if next_row == 0:
            continue
        streams[stream] = {"rows": next_row, "dropped": first}
        rows = range(max(first, next_row - limit), next_row)
        yield from ({"stream": stream, **line} for line in _rows(http, stream, rows))
    yield {"end": True, "streams": streams}
