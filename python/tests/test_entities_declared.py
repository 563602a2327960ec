"""Functions of entities that are refused when they are declared, and what is not."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from typing import Any

import pytest

import tidemill as tm

SEEN = 0
KEPT: list[int] = []
RATES = {"one": 1}


def test_what_functions_only_read_may_be_outside() -> None:
    app = tm.App("shop")
    item = app.entity("item", key="id", id=int, left=int)

    @item.function(creates=True)
    def take(self: Any, ctx: tm.Context, n: int) -> list[int]:
        own = list(KEPT)
        own.append(RATES.get("one", 0))
        own[0] += n
        self.left = own[0]
        return own

    with app.start() as mill:
        assert mill.call(take, id=1, n=2) == [3]


def test_functions_that_can_not_be_declared() -> None:
    app = tm.App("shop")
    item = app.entity("item", key="id", id=int, left=int)

    def key() -> None:
        @item.function
        async def take(self: Any, ctx: tm.Context, id: int) -> None:  # here
            pass

    def column() -> None:
        @item.function
        async def left(self: Any, ctx: tm.Context) -> None:  # here
            pass

    def taken() -> None:
        @item.function
        async def exists(self: Any, ctx: tm.Context) -> None:  # here
            pass

    def untyped() -> None:
        @item.function
        async def untyped(self: Any, ctx: tm.Context, n) -> None:  # type: ignore[no-untyped-def] # here
            pass

    def few() -> None:
        @item.function
        async def few(self: Any) -> None:  # here
            pass

    def written() -> None:
        n = 0

        @item.function
        async def counts(self: Any, ctx: tm.Context) -> None:  # here
            nonlocal n
            n += 1

    def assigned() -> None:
        @item.function
        async def assigns(self: Any, ctx: tm.Context) -> None:  # here
            global SEEN
            SEEN = 1

    def class_() -> None:
        @item.function
        class Thing:  # here
            def __init__(self, ctx: tm.Context, n: int) -> None:
                pass

    def yields() -> None:
        @item.function
        def generator(self: Any, ctx: tm.Context) -> Any:  # here
            yield 1

    def own() -> None:
        n = 0

        @item.function
        async def inner(self: Any, ctx: tm.Context) -> int:
            def count() -> int:
                n = 1

                def more() -> None:
                    nonlocal n
                    n += 1

                more()
                return n

            return n + count()

    own()

    def naps() -> None:
        @item.function
        async def take(self: Any, ctx: Any) -> None:
            time.sleep(1)

    def awaits() -> None:
        @item.function
        async def take(self: Any, ctx: Any) -> None:
            await asyncio.sleep(1)

    def opens() -> None:
        @item.function
        def take(self: Any, ctx: Any) -> None:
            def inner() -> str:
                with open("names") as names:
                    return names.read()

            inner()

    def asks() -> None:
        @item.function
        def take(self: Any, ctx: Any) -> None:
            urllib.request.urlopen("http://127.0.0.1")

    def remembers() -> None:
        @item.function
        async def take(self: Any, ctx: tm.Context) -> None:  # here
            KEPT.append(self.id)

    def counts() -> None:
        counted: dict[int, int] = {}

        @item.function
        async def take(self: Any, ctx: tm.Context) -> None:  # here
            counted[self.id] = 1

    cases = [
        (remembers, "writes the variable 'KEPT' outside of itself"),
        (counts, "writes the variable 'counted' outside of itself"),
        (naps, "uses time.sleep: it waits"),
        (awaits, "uses asyncio.sleep: it waits"),
        (opens, "uses open: it waits"),
        (asks, "uses urllib.request.urlopen: it waits"),
        (assigned, "writes the variable 'SEEN' outside of itself"),
        (class_, "not a function"),
        (yields, "is a generator"),
        (key, "'id' is the key of item"),
        (column, "'left' is a column of item"),
        (taken, "the name 'exists' is taken"),
        (untyped, "parameter 'n' has no type"),
        (few, "does not take (self, ctx)"),
        (written, "writes the variable 'n' outside of itself"),
    ]
    for declare, why in cases:
        with pytest.raises(tm.ProgramError) as caught:
            declare()
        assert why in caught.value.what
        assert "test_entities_declared.py" in str(caught.value.at)
