"""Rows of tables over HTTP: by keys, and page by page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm

from .kill.cluster import Process, settings, wait_for, workers_of

APP = """
import tidemill as tm

app = tm.App("shop")
items = app.table("items", key="name", ordered=True, name=str, left=int)
seats = app.table("seats", key=["row", "seat"], row=int, seat=str, free=bool)


@app.procedure
def stock(tx, name: str, left: int):
    items.upsert(name=name, left=left)


@app.procedure
def build(tx, row: int, seat: str):
    seats.upsert(row=row, seat=seat, free=True)
"""

ITEMS = [("ant", 1), ("bee", 2), ("cat", 3), ("dog", 4), ('"owl"', 5)]


def fill(url: str) -> None:
    def call(procedure: str, /, **arguments: object) -> None:
        done = httpx.post(f"{url}/call/{procedure}", json=arguments, timeout=30)
        assert done.status_code == 200, done.text

    for name, left in ITEMS:
        call("stock", name=name, left=left)
    for seat in ("a", "b"):
        call("build", row=1, seat=seat)


@pytest.fixture
def alone() -> Iterator[str]:
    """The address of the app in one process."""
    scope: dict[str, Any] = {}
    exec(APP, scope)
    app: tm.App = scope["app"]
    with app.start(http_port=0) as mill:
        assert mill.url is not None
        fill(mill.url)
        yield mill.url


def get(url: str, table: str, query: str) -> tuple[int, Any]:
    found = httpx.get(f"{url}/tables/{table}/rows{query}", timeout=30)
    return found.status_code, found.json()


def names(url: str, query: str) -> tuple[list[str], bool]:
    status, found = get(url, "items", query)
    assert status == 200, found
    return [row["name"] for row in found["rows"]], found["more"]


def check_rows(url: str) -> None:
    """Checks that rows are found by keys, and page by page."""
    assert get(url, "items", "?key=ant") == (200, {"row": {"name": "ant", "left": 1}})
    assert get(url, "items", "?key=elk") == (200, {"row": None})
    rows = {"rows": [{"name": "cat", "left": 3}, None, {"name": "ant", "left": 1}]}
    assert get(url, "items", "?key=cat&key=elk&key=ant") == (200, rows)
    assert names(url, "") == (['"owl"', "ant", "bee", "cat", "dog"], False)
    assert names(url, "?limit=2") == (['"owl"', "ant"], True)
    assert names(url, "?limit=2&after=ant") == (["bee", "cat"], True)
    # The key after which a page begins need not be there.
    assert names(url, "?limit=2&after=bug") == (["cat", "dog"], False)
    assert names(url, "?limit=2&after=dog") == ([], False)


def test_rows_of_one_process(alone: str) -> None:
    check_rows(alone)
    # A table without order has pages, too.
    status, found = get(alone, "seats", "?limit=1&after=1&after=a")
    assert (status, found["rows"], found["more"]) == (
        *(200, [{"row": 1, "seat": "b", "free": True}], False),
    )
    two = get(alone, "seats", "?key=1&key=b&key=2&key=a")
    assert two == (200, {"rows": [{"row": 1, "seat": "b", "free": True}, None]})


def test_wrong_requests(alone: str) -> None:
    # A text with quotes may be a key; a missing one has the quotes of JSON.
    assert get(alone, "items", '?key="owl"')[1]["row"] == {"name": '"owl"', "left": 5}
    for table, query, what, help in (
        ("items", '?key="ant"', "no row whose 'name' is \"ant\", quotes", "give ?key=ant"),
        ("items", "?limit=0", "limit is not a number of rows", "give 1 to 1000"),
        ("items", "?limit=1001", "limit is not a number of rows", "give 1 to 1000"),
        ("items", "?key=a&limit=3", "keys and a page of rows", "?after=VALUE"),
        ("items", "?prefix=a", "there is no parameter 'prefix'", "?limit=N"),
        ("seats", "?key=x&key=a", "key column 'row'", "write values as in JSON, such as 7"),
        ("seats", "?key=1", "a key of table seats has 2 columns", "each of row, seat"),
        ("seats", "?key=1&key=a&key=2", "a key of table seats has 2 columns", "row, seat"),
        ("seats", "?after=1", "a key of table seats has 2 columns", "row, seat"),
    ):
        status, found = get(alone, table, query)
        assert status == 400, query
        assert what in found["error"]["what"], query
        assert help in found["error"]["help"], query


@pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")
def test_rows_of_several_processes(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    flags = ["--processes", "2", "--data-dir", str(tmp_path / "data"), *settings()]
    with Process(tmp_path, "run", str(tmp_path / "shop.py"), "--http", "0", *flags) as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("two workers", lambda: len(workers_of(url)) == 2)
        fill(url)
        check_rows(url)
        status, found = get(url, "seats", "")
        assert status == 400
        assert "table seats is not ordered" in found["error"]["what"]
        assert "ordered=True" in found["error"]["help"]
