"""Errors over HTTP: their kinds, and what they say about names, types and rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import tidemill as tm

from .kill.cluster import Process, settings, wait_for, workers_of

APP = """
import tidemill as tm

app = tm.App("hotels")
hotels = app.table("hotels", key="name", name=str, free=int)
counts = app.table("counts", key="id", id=int, n=int)
booked = app.stream("booked", name=str)
trip = app.entity("trip", key="id", id=str, n=tm.column(int, default=0))


@app.procedure
def book(tx, name: str):
    hotels.upsert(name=name, free=1)
    tx.emit(booked, name=name)
    return name


@trip.function(creates=True)
async def go(self, ctx):
    self.n += 1
    return self.n
"""


def app_of() -> tm.App:
    names: dict[str, object] = {}
    exec(APP, names)
    app = names["app"]
    assert isinstance(app, tm.App)
    return app


@pytest.fixture
def url() -> Iterator[str]:
    with app_of().start(http_port=0) as mill:
        yield str(mill.url)


def error(url: str, path: str) -> tuple[int, dict[str, str]]:
    answer = httpx.get(f"{url}/{path}", timeout=30)
    return answer.status_code, answer.json()["error"]


def test_kinds_are_those_that_the_client_raises(url: str) -> None:
    with tm.Client(url) as client:
        httpx.post(f"{url}/call/book", json={"name": "Ritz"})
        for path, ask in (
            ("tables/hotel/rows", lambda: client.row("hotel", "Ritz")),
            ("streams/bookd", lambda: next(client.subscribe("bookd"))),
            ("tables/hotels/rows?key=1&json=true", lambda: client.row("hotels", 1)),
        ):
            with pytest.raises(tm.Error) as caught:
                ask()
            assert error(url, path)[1]["kind"] == type(caught.value).__name__, path
    stranger = httpx.get(f"{url}/tables/hotels/rows", headers={"Host": "example.org"})
    assert stranger.json()["error"]["kind"] == "AccessError"


def test_names_that_are_no_streams_are_explained(url: str) -> None:
    status, found = error(url, "streams/boooked")
    assert (status, found["what"]) == (404, "there is no stream boooked")
    assert found["help"] == "did you mean 'booked'?"
    status, found = error(url, "streams/hotels")
    assert (status, found["what"]) == (404, "hotels is a table, not a stream")
    assert "tidemill query hotels" in found["help"]
    assert "GET /tables/hotels/rows" in found["help"]


def test_rows_of_a_stream_are_named_by_the_first_and_the_last(url: str) -> None:
    for count, words in (
        (0, "no rows are retained; the next one is row 0"),
        (1, "only row 0 is retained"),
        (2, "rows from 0 to 1 are retained"),
    ):
        if count:
            httpx.post(f"{url}/call/book", json={"name": "Ritz"})
        status, found = error(url, "streams/booked?from=7")
        assert (status, found["help"]) == (400, words)


def test_values_of_another_type_are_named_by_their_kind(url: str) -> None:
    for value, words in (
        (1, "expected a string, found the number 1"),
        (True, "expected a string, found true"),
        ([1], "expected a string, found the array [1]"),
    ):
        answer = httpx.post(f"{url}/call/book", json={"name": value})
        assert answer.json()["error"]["what"] == f"parameter 'name': {words}"


def test_keys_of_another_type_are_refused(url: str) -> None:
    with tm.Client(url) as client:
        client.call("book", name="1")
        assert client.row("hotels", "1") == {"name": "1", "free": 1}
        assert client.row("hotels", '"1"') is None
        assert client.row("counts", 1) is None
        with pytest.raises(tm.InputError, match="'name': expected a string, found the number 1"):
            client.row("hotels", 1)
        with pytest.raises(tm.InputError, match="'id': expected a number, found the text"):
            client.row("counts", "1")
    assert error(url, "tables/hotels/rows?key=1&json=yes")[1]["help"] == "give json=true"
    # Without json=true texts have no quotes, as before.
    found = httpx.get(f"{url}/tables/hotels/rows?key=1").json()
    assert found == {"row": {"name": "1", "free": 1}}


@pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")
def test_several_processes_say_that_replies_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    flags = ["--processes", "1", "--http", "0", "--data-dir", str(tmp_path / "data"), *settings()]
    with Process(tmp_path / "parent", "run", str(tmp_path / "app.py"), *flags) as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("a worker", lambda: len(workers_of(url)) == 1)
        for name in ("trip.go", "book", "book.aborted"):
            status, found = error(url, f"streams/{name}")
            base = name.removesuffix(".aborted")
            what = f"results and aborts of {base} are not retained on several processes"
            assert (status, found["what"]) == (404, what)
        assert error(url, "streams/bookd")[1]["what"] == "there is no stream bookd"
        assert error(url, "streams/hotels")[1]["what"] == "hotels is a table, not a stream"
        with tm.Client(url) as client, pytest.raises(tm.InputError, match="found the number 1"):
            client.row("hotels", 1)
