"""The differences from one process that the page about functions over several owners lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

import tidemill as tm

from .test_entities_nodes import Calls, in_process, is_one, on_nodes

PAGE = (Path(__file__).parents[2] / "docs/internals/functions.md").read_text()


def counting() -> tm.App:
    """Functions that make so many calls."""
    app = tm.App("counting")
    one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))

    @one.function(creates=True)
    async def touch(self: Any, ctx: tm.Context) -> None:
        self.n += 1

    @one.function(creates=True)
    async def many(self: Any, ctx: tm.Context, calls: int) -> int:
        for _ in range(calls):
            one[1].touch()
        return calls

    return app


def test_one_call_too_many_aborts_in_one_process_too() -> None:
    assert "A transaction has at most 100,000 calls" in PAGE
    with counting().start(http_port=0, deadline_us=0, rerun_every=0) as mill:
        many = f"{mill.url}/call/one.many"
        most = httpx.post(many, json={"id": 0, "calls": 99_999}, timeout=60)
        assert (most.status_code, most.json()) == (200, {"reply": 99_999})
        more = httpx.post(many, json={"id": 0, "calls": 100_000}, timeout=60)
        assert more.status_code == 409
        assert more.json() == {"aborted": "a transaction has at most 100000 calls"}
        # Of that one nothing is left.
        assert mill.table("one").rows() == [{"id": 1, "n": 99_999}]


RAN: list[str] = []


def test_code_behind_a_call_that_has_failed_does_not_run() -> None:
    app = tm.App("behind")
    one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))

    def told(what: str) -> None:
        RAN.append(what)

    @one.function(creates=True)
    async def fails(self: Any, ctx: tm.Context) -> None:
        raise tm.Abort("no")

    @one.function(creates=True)
    async def catches(self: Any, ctx: tm.Context) -> str:
        try:
            await one[self.id + 1].fails()
        except tm.Abort:
            told("except")
        told("behind")
        return "all is well"

    RAN.clear()
    calls: Calls = [("one.catches", {"id": 1})]
    for nodes in (1, 2):
        found = on_nodes(app, calls, nodes, 1, 1)
        assert (found["replies"], found["tables"]) == ([("aborted", "no")], {"one": []})
        assert RAN == []
    assert in_process(app, calls)["replies"] == [("aborted", "no")]
    assert "except" in RAN


def lists() -> tm.App:
    """Functions that change lists in place while others do."""
    app = tm.App("lists")
    box = app.entity("box", key="id", id=int, tags=tm.column(tm.list(str), default=[]))

    @box.function(creates=True)
    async def put(self: Any, ctx: tm.Context) -> None:
        self.tags.append("take")

    @box.function(creates=True)
    async def around(self: Any, ctx: tm.Context) -> list[str]:
        own = self.tags
        own.append("before")
        await box[self.id].put()
        own.append("behind")
        return list(self.tags)

    @box.function(creates=True)
    async def refuses(self: Any, ctx: tm.Context) -> None:
        raise tm.Abort("the call")

    @box.function(creates=True)
    async def misfits(self: Any, ctx: tm.Context) -> None:
        self.tags.append(5)
        await box[self.id + 1].refuses()

    return app


def test_a_list_is_ones_own_until_somebody_else_changes_it() -> None:
    calls: Calls = [("box.around", {"id": 1})]
    assert in_process(lists(), calls)["replies"] == [("returned", ["before", "take", "behind"])]
    for nodes in (1, 2):
        found = on_nodes(lists(), calls, nodes, 1, 1)
        assert found["replies"] == [("returned", ["before", "take"])]
        assert found["tables"]["box"] == [{"id": 1, "tags": ["before", "take"]}]


def test_a_value_that_does_not_fit_is_found_at_the_next_call() -> None:
    calls: Calls = [("box.misfits", {"id": 1})]
    [(_, reason)] = in_process(lists(), calls)["replies"]
    assert reason == "the call"
    for nodes in (1, 2):
        [(kind, reason)] = on_nodes(lists(), calls, nodes, 1, 1)["replies"]
        assert kind == "aborted"
        assert "can't be stored in column 'tags'" in reason


def test_windows_in_functions_of_entities_are_those_of_one_process() -> None:
    app = tm.App("windows")
    readings = app.table("readings", key="id", id=int, n=tm.column(int, default=0), history=4)
    meter = app.entity("meter", key="id", id=int)
    recent = app.window("recent", rows=2, id=int)
    events = app.stream("events", id=int)

    @app.procedure(events, owns=[recent])
    def follow(tx: Any, events: Any) -> None:
        for e in events:
            recent.insert(id=e.id)

    @meter.function(creates=True)
    def read(self: Any, ctx: tm.Context, n: int) -> int:
        readings[self.id].n += n
        return int(readings[self.id].over(tm.last(3)).n.sum())

    @meter.function(creates=True)
    async def both(self: Any, ctx: tm.Context, n: int) -> list[int]:
        return [await meter[1].read(n), await meter[2].read(n)]

    @meter.function(creates=True)
    def looks(self: Any, ctx: tm.Context) -> int:
        return len(recent.rows())

    calls: Calls = [("meter.both", {"id": n, "n": n}) for n in (1, 2)]
    wanted = is_one(lambda: app, [*calls, ("meter.looks", {"id": 1})], 1)
    assert wanted["replies"] == [
        ("returned", [1, 1]),
        ("returned", [4, 4]),
        ("aborted", "window recent belongs to follow"),
    ]
