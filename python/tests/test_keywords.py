"""Unknown arguments of declarations name the nearest known one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

#: The package without types, which would refuse the arguments before a run.
untyped: Any = tm


def app_with_stream() -> tuple[Any, Any]:
    app = tm.App("keywords")
    return app, app.stream("s", a=int)


@pytest.mark.parametrize(
    ("declare", "near"),
    [
        (lambda app, s: untyped.files("x.csv", delimeter=";"), "delimiter"),
        (lambda app, s: untyped.kafka("x", brokerss="a"), "brokers"),
        (lambda app, s: s.read(tm.files("x.csv"), out_of_ordernes="1s"), "out_of_orderness"),
        (lambda app, s: s.push(idel="1s"), "idle"),
        (lambda app, s: s.batches(tim="1s"), "time"),
        (lambda app, s: app.transaction(s, opaqe=True), "opaque"),
        (lambda app, s: app.procedure(nam="x"), "name"),
        (lambda app, s: app.every("1s", emit=[]), "emits"),
        (lambda app, s: app.external(retrys=1), "retries"),
        (lambda app, s: app.table("t", key="id", id=int, orderd=True), "ordered"),
        (lambda app, s: app.entity("t", key="id", id=int, partition_prefx=1), "partition_prefix"),
        (lambda app, s: app.stream("t", id=int, lat="side"), "late"),
        (lambda app, s: app.window("t", row=3, id=int), "rows"),
        (lambda app, s: untyped.column(int, defualt=0), "default"),
        (lambda app, s: untyped.decimal(2, defalt=0), "default"),
        (lambda app, s: untyped.sliding("1s", slid="1s"), "slide"),
        (lambda app, s: app.table("u", key="id", id=int).index("id", uniqe=True), "unique"),
        (lambda app, s: app.entity("v", key="id", id=int).function(create=True), "creates"),
        (lambda app, s: app.start(worker=1), "workers"),
    ],
)
def test_an_unknown_argument_names_the_nearest(
    declare: Callable[[Any, Any], object], near: str
) -> None:
    with pytest.raises((tm.ProgramError, tm.SettingError)) as caught:
        declare(*app_with_stream())
    error = caught.value
    assert f"'{near}'" in error.help, error
    if isinstance(error, tm.ProgramError):
        assert Path(__file__).name in error.at


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda app, s: app.transaction(s, opaque="no"), "opaque='no' is not True or False"),
        (
            lambda app, s: app.table("u", key="id", id=int).index("id", unique=1),
            "unique=1 is not True or False",
        ),
        (
            lambda app, s: app.entity("v", key="id", id=int).function(creates="no"),
            "creates='no' is not True or False",
        ),
        (
            lambda app, s: app.table("t", key="id", id=int, ordered="no"),
            "ordered='no' is not True or False",
        ),
        (lambda app, s: app.start(fresh="yes"), "fresh='yes' is not True or False"),
        (lambda app, s: app.start(accept_replay=1), "accept_replay=1 is not True or False"),
        (lambda app, s: app.start(upgrade="yes"), "upgrade='yes' is not True, False or 'lossy'"),
        (lambda app, s: app.inspect({"fresh": "yes"}), "fresh='yes' is not True or False"),
    ],
)
def test_a_flag_that_is_no_bool_is_refused(
    declare: Callable[[Any, Any], object], said: str
) -> None:
    with pytest.raises((tm.ProgramError, tm.SettingError)) as caught:
        declare(*app_with_stream())
    assert said in caught.value.what


def test_an_argument_that_is_like_no_other_names_all() -> None:
    with pytest.raises(tm.ProgramError, match="has no argument 'zzzzzzzz'") as caught:
        untyped.files("x.csv", zzzzzzzz=1)
    assert "delimiter" in caught.value.help


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: untyped.App("x", sed=7), "App() has no argument 'sed'"),
        (lambda: untyped.Client("http://x", tokn="t"), "Client() has no argument 'tokn'"),
        (lambda: untyped.AsyncClient("http://x", tokn="t"), "AsyncClient() has no argument 'tokn'"),
        (lambda: untyped.App("x", 7), "App() has no place for the argument 7"),
        (lambda: untyped.App("x").start("dir"), "start() has no place for the argument 'dir'"),
    ],
)
def test_an_argument_that_does_not_exist_is_refused_by_name(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(tm.ProgramError) as caught:
        make()
    assert caught.value.what == said
    assert caught.value.help
    assert caught.value.at is not None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: untyped.files(3.5), "path=3.5 is not a text or a path"),
        (
            lambda: untyped.files("x.csv", "xml"),
            "format='xml' is not 'csv' or 'jsonl' or 'parquet'",
        ),
        (lambda: untyped.files("x.csv", nulls=3), "nulls=3 is not a list"),
        (lambda: untyped.files("x.csv", columns=["a"]), "columns=['a'] is not a dict"),
        (
            lambda: untyped.files("x.csv", record_bytes_max="1"),
            "record_bytes_max='1' is not an int",
        ),
        (lambda: untyped.Client(5), "url=5 is not a text"),
        (lambda: untyped.Client("http://x", retries=True), "retries=True is not an integer"),
        (lambda: untyped.Client("http://x", deadline="x"), "deadline='x' is not a number"),
        (lambda: untyped.Client("http://x", deadline=0), "a deadline is positive"),
        (lambda: untyped.Client("http://x", retries=-1), "retries=-1"),
        (lambda: untyped.App("x", version=2), "version=2 is not a text"),
    ],
)
def test_a_value_that_is_no_value_of_its_argument_is_refused(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(tm.ProgramError) as caught:
        make()
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["output", "send"])
def test_a_table_is_no_stream(name: str) -> None:
    app, _ = app_with_stream()
    table = app.table("t2", key="id", id=int)
    with app.start() as mill:
        method: Any = getattr(mill, name)
        with pytest.raises(tm.ProgramError, match="is not a"):
            method(table) if name == "output" else method(table, [])
