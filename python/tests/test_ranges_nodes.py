"""Ranges of rows and of entries in indexes on several nodes, each of which has a part of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemill as tm

from .test_entities_nodes import is_one, on_nodes


def everywhere() -> tm.App:
    """Ranges of rows and of entries in indexes, which all nodes have a part of."""
    app = tm.App("everywhere")
    zero = tm.column(int, default=0)
    city = tm.column(str, default="")
    shop = app.entity("shop", key="id", ordered=True, id=int, city=city, n=zero)
    by_city = shop.table.index("city", "n")
    rates = app.table("rates", key=("kind", "id"), ordered=True, kind=str, id=int, rate=zero)
    owners = app.table("owners", key="id", id=int, name=str, seen=zero)
    by_name = owners.index("name", unique=True)
    sets = app.stream("sets", kind=str, id=int, rate=int)
    drops = app.stream("drops", kind=str, id=int)
    sums = app.stream("sums", kind=str, first=int, last=int, most=int)
    looks = app.stream("looks", name=str)

    @shop.function(creates=True)
    async def open(self: Any, ctx: tm.Context, city: str, to: int) -> list[Any]:
        self.city = city
        self.n += 1
        before = [row.id for row in shop.scan(1, 4)]
        await shop[to].sell(1 + to % 3)
        return [before, [(row.id, row.n) for row in shop.scan(limit=3, reverse=self.id % 2 == 1)]]

    @shop.function(creates=True)
    async def sell(self: Any, ctx: tm.Context, n: int) -> None:
        self.n += n
        if self.n > 9:
            raise tm.Abort("sold out")

    @shop.function(creates=True)
    async def look(self: Any, ctx: tm.Context, city: str) -> list[Any]:
        rows = [(row.id, row.n) for row in by_city[city]]
        few = [row.id for row in by_city.scan("A", "N", limit=2, reverse=self.id > 2)]
        return [rows, few, [row.id for row in by_city.scan()]]

    @shop.function
    async def draw(self: Any, ctx: tm.Context) -> Any:
        return [len(shop.scan()), len(by_city.scan()), ctx.random()]

    @shop.function
    async def close(self: Any, ctx: tm.Context) -> int:
        self.delete()
        return len(shop.scan())

    @app.procedure
    def name(tx: Any, id: int, name: str) -> list[Any]:
        owners.upsert(id=id, name=name)
        first = [row.id for row in rates.scan(limit=2, reverse=id % 2 == 0)]
        rates.upsert(kind="own", id=id, rate=len(first))
        return [first, [(row.kind, row.id, row.rate) for row in rates.scan("b", "z")]]

    @app.transaction(sets)
    def set_rate(tx: Any, e: Any) -> None:
        rates.upsert(kind=e.kind, id=e.id, rate=e.rate)

    @app.transaction(drops)
    def drop(tx: Any, e: Any) -> None:
        rates[e.kind, e.id].delete()

    @app.transaction(sums)
    def add(tx: Any, e: Any) -> Any:
        all = rates.scan().rate.sum()
        some = rates.scan((e.kind, e.first), (e.kind, e.last)).rate.sum()
        tx.require(some <= e.most, "too many")
        rates.upsert(kind="sum", id=e.first, rate=some)
        return {"all": all, "some": some, "then": rates.scan("b").rate.count()}

    @app.transaction(looks)
    def peek(tx: Any, e: Any) -> None:
        owners[by_name.entries[e.name].id].seen += 1

    return app


@pytest.mark.parametrize("seed", range(8))
def test_ranges_of_rows_that_are_everywhere(seed: int) -> None:
    dice, calls = random.Random(seed), []
    for _ in range(60):
        id, other, rate = dice.randint(0, 5), dice.randint(0, 5), dice.randint(-3, 9)
        kind, city = dice.choice(["a", "b", "own", "z"]), dice.choice(["Bern", "Oslo", "Rome"])
        calls.append(
            dice.choice(
                [
                    ("shop.open", {"id": id, "city": city, "to": other}),
                    ("shop.look", {"id": id, "city": city}),
                    ("shop.close", {"id": id}),
                    ("name", {"id": id, "name": f"{city}{other}"}),
                    ("sets", {"kind": kind, "id": id, "rate": rate}),
                    ("drops", {"kind": kind, "id": id}),
                    ("sums", {"kind": kind, "first": id, "last": other + 2, "most": rate + 5}),
                    ("looks", {"name": f"{city}{other}"}),
                ]
            )
        )
    wanted = is_one(everywhere, calls, seeds=1)
    assert {"add", "peek.aborted"} <= set(wanted["outputs"])
    returned = [
        call
        for call, reply in zip(calls, wanted["replies"], strict=True)
        if reply and reply[0] == "returned"
    ]
    assert {"shop.open", "shop.look", "shop.close", "name"} <= {name for name, _ in returned}


def test_places_behind_a_range_do_not_depend_on_how_many_nodes_have_it() -> None:
    opened = [("shop.open", {"id": id, "city": "Bern", "to": 0}) for id in range(4)]
    calls = [*opened, ("shop.draw", {"id": 2})]
    ranged = [on_nodes(everywhere(), calls, nodes, 5, 9)["replies"][-1] for nodes in (1, 2, 4)]
    assert ranged[0][0] == "returned"
    assert ranged[0] == ranged[1] == ranged[2]
