"""Functions that make many calls and use many rows, on several nodes: what it costs, and limits."""

from __future__ import annotations

from typing import Any

import tidemill as tm

from .test_entities_nodes import Calls, in_process, is_one, on_nodes


class Counter:
    """Counts how often functions do something, which is not part of their results."""

    def __init__(self) -> None:
        self.n = 0

    def count(self) -> None:
        self.n += 1


class Wide:
    """Functions that call, read and write much."""

    NAMES = ("sends", "awaits", "gathers", "asks", "changes", "reads", "writes", "mixes")

    def __init__(self) -> None:
        app = self.app = tm.App("wide")
        number = tm.column(int, default=0)
        cell = app.entity("cell", key="id", id=int, n=number)
        counts = app.table("counts", key="id", id=int, n=number)
        steps = self.steps = Counter()

        @cell.function(creates=True)
        def add(self: Any, ctx: tm.Context) -> int:
            self.n += 1
            return int(self.n)

        @cell.function(creates=True)
        async def sends(self: Any, ctx: tm.Context, count: int) -> None:
            for n in range(count):
                steps.count()
                cell[1 + n % 64].add()

        @cell.function(creates=True)
        async def awaits(self: Any, ctx: tm.Context, count: int) -> None:
            for n in range(count):
                steps.count()
                self.n += await cell[1 + n % 64].add()

        @cell.function(creates=True)
        async def gathers(self: Any, ctx: tm.Context, count: int) -> None:
            self.n += sum(await ctx.gather(*(cell[1 + n % 64].add() for n in range(count))))

        @cell.function(creates=True)
        def asks(self: Any, ctx: tm.Context, count: int) -> None:
            for n in range(count):
                steps.count()
                self.n += cell[1 + n % 64].add().result()

        @cell.function(creates=True)
        async def changes(self: Any, ctx: tm.Context, count: int) -> int:
            total = 0
            for _ in range(count):
                steps.count()
                cell[self.id].add()
                total += self.n
            return total

        @cell.function(creates=True)
        async def reads(self: Any, ctx: tm.Context, count: int) -> None:
            for n in range(count):
                steps.count()
                self.n += counts[n].n + 1

        @cell.function(creates=True)
        async def writes(self: Any, ctx: tm.Context, count: int) -> None:
            for n in range(count):
                steps.count()
                counts[n].n += n

        @cell.function(creates=True)
        async def mixes(self: Any, ctx: tm.Context, count: int) -> None:
            for n in range(count):
                steps.count()
                counts[n].n += n
                cell[1 + n % 64].add()


def test_many_calls_and_rows_cost_as_much_as_there_are() -> None:
    count = 1500
    for name in Wide.NAMES:
        calls: Calls = [(f"cell.{name}", {"id": 0, "count": count}), ("cell.add", {"id": 1})]
        wanted, wide = in_process(Wide().app, calls), Wide()
        found = on_nodes(wide.app, calls, 2, 1, 1)
        for rows in found["tables"].values():
            rows.sort(key=repr)
        assert (found["replies"], found["tables"]) == (wanted["replies"], wanted["tables"]), name
        # Begun again for each use of another node's row it would take half of the square.
        assert wide.steps.n <= 6 * count + 1000, name


def test_one_call_too_many_aborts_its_transaction_alone() -> None:
    wide = Wide()
    calls: Calls = [(f"cell.{name}", {"id": 0, "count": 100_001}) for name in ("sends", "awaits")]
    found = on_nodes(wide.app, [("cell.add", {"id": 1}), *calls, ("cell.add", {"id": 1})], 2, 1, 9)
    refused = ("aborted", "a transaction has at most 100000 calls")
    assert found["replies"] == [("returned", 1), refused, refused, ("returned", 2)]
    assert found["tables"]["cell"] == [{"id": 1, "n": 2}]
    assert wide.steps.n <= 2 * 6 * 100_000


def test_what_waits_on_a_thread_of_its_own_has_its_deadline() -> None:
    app = tm.App("slow")
    number = tm.column(int, default=0)
    cell = app.entity("cell", key="id", id=int, n=number)
    counts = app.table("counts", key="id", id=int, n=number)

    @cell.function(creates=True)
    async def reads(self: Any, ctx: tm.Context, ends: bool) -> int:
        # Half of these are the other node's: it has begun often enough.
        self.n += 1 + sum(counts[n].n for n in range(80))
        while not ends:
            pass
        return int(self.n)

    calls: Calls = [("cell.reads", {"id": 0, "ends": ends}) for ends in (True, False, True)]
    found = on_nodes(app, calls, 2, 1, 1, deadline_us=300_000)
    late = ("aborted", "the function took longer than 300000 microseconds")
    assert found["replies"] == [("returned", 1), late, ("returned", 2)]
    assert found["not_deterministic"] == 0


def test_exceptions_go_through_functions_that_wait() -> None:
    def make() -> tm.App:
        app = tm.App("fails")
        number = tm.column(int, default=0)
        cell = app.entity("cell", key="id", id=int, n=number)
        counts = app.table("counts", key="id", id=int, n=number)

        @cell.function(creates=True)
        def refuses(self: Any, ctx: tm.Context, n: int) -> None:
            self.n = n
            ctx.require(n < 60, "enough")

        @cell.function(creates=True)
        def asks(self: Any, ctx: tm.Context, catches: bool) -> None:
            for n in range(70):
                counts[n].n += 1
                try:
                    cell[n].refuses(n).result()
                except BaseException:
                    if not catches:
                        raise

        @cell.function(creates=True)
        async def sends(self: Any, ctx: tm.Context) -> None:
            for n in range(500):
                counts[n].n += 1
                cell[n].refuses(n % 50)
            raise ValueError("all of it is undone")

        return app

    calls: Calls = [("cell.asks", {"id": 0, "catches": catches}) for catches in (False, True)]
    wanted = is_one(make, [*calls, ("cell.sends", {"id": 0}), ("cell.refuses", {"id": 1, "n": 1})])
    assert wanted["tables"] == {"cell": [{"id": 1, "n": 1}], "counts": []}
