"""Functions of entities have the same results on several nodes as in one process."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import gc
import json
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import tidemill as tm
from tidemill import _native

from .conftest import Ledger, marked_line, payment
from .test_entities import WRONG, Nodes, Odd, Straight, Trips, any_script

Calls = list[tuple[str, dict[str, Any]]]


def on_nodes(
    app: tm.App, calls: Calls, nodes: int, seed: int, epoch: int, **settings: Any
) -> dict[str, Any]:
    """The calls, or events, in their order on nodes: replies, tables and events."""
    spec, opaques = app.spec(settings, keep_all=True, push=True)
    return _native.run_nodes(json.dumps(spec), opaques, calls, nodes, seed, epoch)


def in_process(app: tm.App, calls: Calls, **settings: Any) -> dict[str, Any]:
    """The same in one process, one call after the other."""
    replies: list[Any] = []
    with app.start(workers=1, **settings) as mill:
        for name, row in calls:
            if name in [stream.name for stream in app.streams if stream.origin == "input"]:
                mill.send(name, [row], wait=True)
                replies.append(None)
                continue
            try:
                replies.append(("returned", mill.call(name, **row)))
            except tm.Fault as fault:
                # Behind it stands the line.
                replies.append(("fault", re.sub(r" \([^()]*:\d+\)$", "", fault.reason)))
            except tm.Abort as abort:
                kind = type(abort).__name__
                named = "" if type(abort) is tm.Abort else f"{kind}: "
                replies.append(("aborted", named + abort.reason))
        mill.drain()
        tables = {name: mill.table(name).rows() for name in app.tables if not name.startswith("$")}
        outputs = {}
        for stream in app.streams:
            if stream.origin != "input" and (rows := mill.output(stream.name).rows()):
                outputs[stream.name] = rows
    for rows in tables.values():
        rows.sort(key=repr)
    return {"replies": replies, "tables": tables, "outputs": outputs}


def is_one(make: Callable[[], tm.App], calls: Calls, seeds: int = 3) -> dict[str, Any]:
    """Replies, tables and events are the same on any nodes, in epochs of any size."""
    wanted = in_process(make(), calls)
    app = make()
    for nodes in (1, 2, 3, 4):
        for seed in range(seeds):
            for epoch in (1, 4, 1000):
                found = on_nodes(app, calls, nodes, seed, epoch)
                for rows in found["tables"].values():
                    rows.sort(key=repr)
                asked = [w is None for w in wanted["replies"]]
                replies = [None if no else f for no, f in zip(asked, found["replies"], strict=True)]
                where = f"{nodes} nodes, seed {seed}, epochs of {epoch}"
                assert replies == wanted["replies"], where
                assert found["tables"] == wanted["tables"], where
                assert found["outputs"] == wanted["outputs"], where
                assert found["not_deterministic"] == 0, where
    return wanted


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Functions that are begun again leave no coroutine behind that says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
        gc.collect()


def test_trips() -> None:
    places: Calls = [
        ("hotel.build", {"id": "inn", "rooms": 3}),
        ("flight.plan", {"id": "TM1", "seats": 2}),
    ]
    trips: Calls = [
        ("trip.book", {"id": n, "hotel_id": "inn" if n % 4 else "none", "flight_id": "TM1"})
        for n in range(8)
    ]
    wanted = is_one(lambda: Trips().app, [*places, *trips, ("trip.cancel", {"id": 1})])
    assert wanted["tables"]["hotel"] == [{"id": "inn", "rooms": 1}]


@pytest.mark.parametrize("seed", range(30))
def test_any_graph_of_calls(seed: int) -> None:
    dice = random.Random(seed)
    calls = [(dice.randint(0, 4), any_script(dice, 3)) for _ in range(40)]
    straight, app = Straight(), Nodes().app
    failed = [straight.call(key, script) for key, script in calls]
    rows: Calls = [("node.run", {"id": key, "script": script}) for key, script in calls]
    for nodes in (1, 2, 3, 4):
        for epoch in (1, 1 + seed % 9, 40):
            found = on_nodes(app, rows, nodes, seed, epoch)
            replies = [reply[1] if reply[0] == "aborted" else None for reply in found["replies"]]
            assert replies == failed
            assert found["tables"] == {
                "node": [{"id": id, "sum": n} for id, n in sorted(straight.nodes.items())],
                "counts": [{"id": id, "n": n} for id, n in sorted(straight.counts.items())],
            }
            seen = [(row["id"], row["sum"]) for row in found["outputs"].get("seen", [])]
            assert seen == straight.seen
            assert found["not_deterministic"] == 0


ODD = [(name, why) for name, why in WRONG if name != "wide"]


def test_what_goes_wrong_has_the_same_reasons() -> None:
    calls: Calls = [("thing.make", {"id": 1})]
    for name, _ in ODD:
        calls += [(f"thing.{name}", {"id": 1}), ("thing.touch", {"id": 1})]
    for what in ("no text", "no words", "no unicode", "no reason"):
        calls.append(("thing.catches", {"id": 1, "what": what}))
    calls += [("thing.touch", {"id": 7}), ("thing.named", {"id": 1}), ("thing.tells", {"id": 1})]
    calls += [("mixed", {"id": 1}), ("announces", {"id": 1}), ("thing.hidden", {"id": 1})]
    calls += [("mixed", {"id": 8}), ("thing.guarded", {"id": 1})]
    wanted = is_one(lambda: Odd().app, calls, 1)
    for reply, (_, why) in zip(wanted["replies"][1::2], ODD, strict=False):
        assert why in reply[1]


def test_a_graph_without_end_is_ended() -> None:
    found = on_nodes(Odd().app, [("thing.make", {"id": 1}), ("thing.deep", {"id": 1})], 3, 1, 9)
    assert found["replies"][1] == ("aborted", "calls are more than 100 deep in one another")


class Lists:
    """Functions that change lists in place, around calls of each other."""

    def __init__(self) -> None:
        app = self.app = tm.App("lists")
        tags = tm.column(tm.list(str), default=[])
        number = tm.column(int, default=0)
        box = app.entity("box", key="id", id=int, tags=tags, note=tm.optional(tm.any), n=number)

        @box.function(creates=True)
        async def put(self: Any, ctx: tm.Context, tag: str, to: int) -> Any:
            own = self.tags
            own.append(tag)
            if self.note is None:
                self.note = {}
            self.note["last"] = tag
            if to != self.id:
                there = await box[to].take(tag)
                own.append(f"{tag}:{there}")
                self.note["there"] = there
            return [list(self.tags), dict(self.note)]

        @box.function(creates=True)
        def take(self: Any, ctx: tm.Context, tag: str) -> int:
            self.tags.append(tag.upper())
            self.n += 1
            return len(self.tags)

        @box.function(creates=True)
        def pass_on(self: Any, ctx: tm.Context, tag: str, to: int) -> int:
            own = self.tags
            before = len(own)
            first = box[to].take(tag).result()
            own.append("mine")
            second = box[to].take(tag).result()
            third = box[self.id + 10].take(tag)
            self.n += before
            return int(first + second + third.result())

        @box.function(creates=True)
        async def own(self: Any, ctx: tm.Context, depth: int) -> int:
            self.n += 1
            if depth:
                self.n += await box[self.id].own(depth - 1)
                self.tags = [*self.tags, str(self.n)]
            return int(self.n)

        @box.function
        def drop(self: Any, ctx: tm.Context) -> bool:
            self.delete()
            return bool(self.exists())


def test_lists_changed_in_place() -> None:
    dice = random.Random(5)
    calls: Calls = []
    for n in range(30):
        id, to, tag = dice.randint(0, 3), dice.randint(4, 6), f"t{n}"
        calls += dice.choice(
            [
                [("box.put", {"id": id, "tag": tag, "to": to})],
                [("box.put", {"id": id, "tag": tag, "to": id})],
                [("box.pass_on", {"id": id, "tag": tag, "to": to})],
                [("box.own", {"id": id, "depth": dice.randint(0, 5)})],
                [("box.drop", {"id": dice.randint(0, 6)})],
            ]
        )
    is_one(lambda: Lists().app, calls)


def test_values_come_back_as_they_went() -> None:
    def make() -> tm.App:
        app = tm.App("values")
        one = app.entity("one", key="id", id=int, said=tm.column(str, default=""))

        @one.function(creates=True)
        def gives(self: Any, ctx: tm.Context, what: int) -> Any:
            east = dt.timezone(dt.timedelta(hours=3))
            return [
                decimal.Decimal("1.50"),
                dt.datetime(2024, 5, 6, 7, 8, 9, 10, dt.UTC),
                dt.datetime(2024, 5, 6, tzinfo=east),
                dt.datetime(2024, 5, 6),
                (1, [2.5, None, True]),
                {"a": b"bytes", 3: "three"},
                1 << 63,
                float("nan"),
                -0.0,
                None,
                b"raw",
                "text",
                decimal.Decimal("1E+40"),
            ][what]

        @one.function(creates=True)
        async def asks(self: Any, ctx: tm.Context, what: int) -> str:
            self.said = repr(await one[self.id + 1].gives(what))
            return str(self.said)

        @one.function(creates=True)
        def takes(
            self: Any,
            ctx: tm.Context,
            at: tm.timestamp,  # type: ignore[valid-type]
            much: tm.decimal(2),  # type: ignore[valid-type]
            names: tm.list(str),  # type: ignore[valid-type]
            more: float = 0.5,
        ) -> str:
            return repr((at, much, names, more))

        @one.function(creates=True)
        async def sends(self: Any, ctx: tm.Context) -> str:
            return str(
                await one[self.id + 1].takes(
                    dt.datetime(2024, 1, 2, tzinfo=dt.UTC), 3, names=("a", "b")
                )
            )

        return app

    calls: Calls = [("one.asks", {"id": n, "what": n}) for n in range(13)]
    calls += [("one.gives", {"id": n, "what": n}) for n in range(13) if n != 7]
    is_one(make, [*calls, ("one.sends", {"id": 3})], 1)


def test_what_a_function_sets_in_the_decimal_context_is_its_own() -> None:
    def make() -> tm.App:
        app = tm.App("sums")
        one = app.entity("one", key="id", id=int, third=tm.column(str, default=""))

        @one.function(creates=True)
        async def divide(self: Any, ctx: tm.Context, digits: int) -> list[str]:
            if digits:
                decimal.getcontext().prec = digits
            before = str(decimal.Decimal(1) / 3)
            await one[self.id + 1].touch()
            self.third = str(decimal.Decimal(2) / 3)
            return [before, str(self.third)]

        @one.function(creates=True)
        async def touch(self: Any, ctx: tm.Context) -> None:
            self.third = str(decimal.Decimal(1) / 7)

        return app

    calls: Calls = [("one.divide", {"id": n, "digits": 3 * (n % 3)}) for n in range(6)]
    # In one process a function has the context of whoever has called it.
    is_one(make, calls[::3], 2)
    found = on_nodes(make(), calls, 2, 1, 9)
    assert found["replies"][1] == ("returned", ["0.333", "0.667"])
    assert {row["third"] for row in found["tables"]["one"] if row["id"] == 6} == {
        "0." + "142857" * 10
    }


def test_scans_creates_and_deletes() -> None:
    def make() -> tm.App:
        app = tm.App("shop")
        item = app.entity(
            "item", key=("shop", "id"), partition_prefix=1, ordered=True, shop=str, id=int, left=int
        )
        total = app.table("total", key="shop", shop=str, n=tm.column(int, default=0))

        @item.function(creates=True)
        async def supply(self: Any, ctx: tm.Context, n: int) -> int:
            self.left = n
            total[self.shop].n += 1
            return sum(row.left for row in item.scan((self.shop,)))

        @item.function(creates=True)
        async def later(self: Any, ctx: tm.Context, limit: int) -> list[list[int]]:
            behind = item.scan((self.shop, self.id), limit=limit)
            between = item.scan((self.shop, 1), (self.shop, 4), limit=2)
            return [[row.id for row in rows] for rows in (behind, between)]

        @item.function(creates=True)
        async def more(self: Any, ctx: tm.Context) -> list[bool]:
            one, other = item[self.shop, self.id], item[self.shop, self.id + 1]
            before = await one.exists()
            if not before:
                await item.create(shop=self.shop, id=self.id, left=5)
            await other.delete()
            return [before, await one.exists(), self.exists(), await other.exists()]

        @item.function(creates=True)
        def sweeps(self: Any, ctx: tm.Context, other: str) -> int:
            found = item[other, 0].gone().result()
            if ("x" + other) in total:
                del total["x" + other]
            else:
                total.insert(shop="x" + other, n=found)
            return int(found)

        @item.function(creates=True)
        def gone(self: Any, ctx: tm.Context) -> int:
            rows = item.scan((self.shop,), limit=2)
            for row in rows:
                row.delete()
            return len(rows)

        @item.function(creates=True)
        async def strays(self: Any, ctx: tm.Context) -> None:
            item.scan(("other",))

        return app

    dice, calls = random.Random(3), []
    for _ in range(60):
        key = {"shop": dice.choice("abc"), "id": dice.randint(0, 6)}
        calls.append(
            dice.choice(
                [
                    ("item.supply", {**key, "n": dice.randint(1, 9)}),
                    ("item.supply", {**key, "n": dice.randint(1, 9)}),
                    ("item.later", {**key, "limit": dice.randint(1, 3)}),
                    ("item.more", key),
                    ("item.sweeps", {**key, "other": dice.choice("abc")}),
                    ("item.strays", key),
                ]
            )
        )
    is_one(make, calls)


def test_exceptions_and_their_places() -> None:
    def make() -> tm.App:
        app = tm.App("errors")
        one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))

        @one.function(creates=True)
        async def fails(self: Any, ctx: tm.Context, how: int) -> int:
            self.n += 1
            if how == 1:
                raise ValueError("wrong")
            if how == 2:
                raise KeyError
            if how == 3:
                self.n = "many"
            if how == 4:
                self.nothing = 1
            if how == 5:
                raise SystemExit(3)
            if how == 6:
                raise tm.Abort("Note: x")
            if how == 7:
                ctx.require(self.n > 5, f"only {self.n}")
            if how == 8:
                self.n = 1 << 62
                self.n += 1 << 62
            return int(self.n)

        @one.function(creates=True)
        async def both(self: Any, ctx: tm.Context, how: int, then: int) -> list[int]:
            first, second = one[1].fails(how), one[2].fails(then)
            try:
                return list(await ctx.gather(first, second))
            finally:
                self.n += 100

        @one.function(creates=True)
        def plain(self: Any, ctx: tm.Context, how: int) -> int:
            one[1].fails(0)
            try:
                return int(one[2].fails(how).result())
            except BaseException:
                return -1

        @one.function(creates=True)
        async def unheard(self: Any, ctx: tm.Context, how: int) -> int:
            one[1].fails(how)
            return 7

        return app

    calls: Calls = []
    for how in range(9):
        calls += [
            ("one.fails", {"id": 3, "how": how}),
            ("one.both", {"id": 4, "how": how, "then": (how * 5 + 1) % 9}),
            ("one.both", {"id": 4, "how": 0, "then": how}),
            ("one.plain", {"id": 5, "how": how}),
            ("one.unheard", {"id": 6, "how": how}),
        ]
    is_one(make, calls, 2)


def test_declared_transactions_and_events() -> None:
    def make() -> tm.App:
        ledger = Ledger()
        accounts, payments = ledger.accounts, ledger.payments

        @ledger.app.transaction(payments)
        def pay(tx: Any, e: Any) -> Any:
            src, dst = accounts[e.src], accounts[e.dst]
            tx.require(src.balance + 100 >= e.amount, "insufficient funds")
            src.balance -= e.amount
            dst.balance += e.amount
            with tx.when(e.amount > 50):
                tx.emit(ledger.large, src=e.src, note=e.memo)
            return {"src": e.src, "left": src.balance}

        @ledger.app.transaction(payments, opaque=True, out={"seen": int})
        def count(tx: Any, e: Any) -> Any:
            pair = ledger.pairs.upsert(a=e.src, b=str(e.dst), n=1)
            if e.amount == 13:
                raise tm.Abort("thirteen")
            return {"seen": pair.n} if e.flag else None

        keeper = ledger.app.entity("keeper", key="id", id=int, n=tm.column(int, default=0))

        @keeper.function(creates=True)
        def moves(self: Any, ctx: tm.Context, by: int) -> str:
            accounts[self.id].balance += by
            self.n += 1
            return str(accounts[self.id].balance)

        return ledger.app

    dice, calls = random.Random(9), []
    for _ in range(60):
        src, dst = dice.randint(0, 5), dice.randint(0, 5)
        if dice.random() < 0.3:
            calls.append(("keeper.moves", {"id": src, "by": dice.randint(-9, 9)}))
        else:
            amount = dice.choice([13, 5, 40, 60, 120])
            event = payment(src, dst, amount, memo=f"m{len(calls)}", flag=dice.random() < 0.5)
            calls.append(("payments", event))
    wanted = is_one(make, calls)
    assert {"pay", "count", "large", "pay.aborted", "count.aborted"} <= set(wanted["outputs"])


def people() -> tm.App:
    """People who move, change their names, and introduce each other."""
    app = tm.App("people")
    person = app.entity(
        "person",
        key="id",
        id=int,
        city=tm.column(str, default="here"),
        name=tm.optional(str),
        met=tm.column(int, default=0),
    )
    by_city = person.table.index("city", "met")
    by_name = person.table.index("name", unique=True)
    pets = app.table("pets", key=("owner", "id"), partition_prefix=1, owner=int, id=int, kind=str)
    of_kind = pets.index("owner", "kind")
    everywhere = pets.index("kind")
    moves = app.stream("moves", id=int, city=str, name=str)
    swaps = app.stream("swaps", id=int, other=int, name=str, then=str)

    @person.function(creates=True)
    async def introduce(self: Any, ctx: tm.Context, city: str, to: int) -> list[int]:
        self.met += 1
        await person[to].greet()
        return [row.id for row in by_city[city, 1]] + [row.id for row in by_name["Ada"]]

    @person.function(creates=True)
    async def greet(self: Any, ctx: tm.Context) -> None:
        self.met += 1
        if self.met > 4:
            raise tm.Abort("too many people")

    @person.function(creates=True)
    async def call(self: Any, ctx: tm.Context, name: str, other: int) -> int:
        person[other].table_row_is(name)
        return len(by_name[name])

    @person.function(creates=True)
    async def table_row_is(self: Any, ctx: tm.Context, name: str) -> None:
        self.name = name

    @app.procedure
    def adopt(tx: Any, owner: int, id: int, kind: str) -> list[str]:
        if pets[owner, id].exists():
            pets[owner, id].delete()
        else:
            pets.insert(owner=owner, id=id, kind=kind)
        known = [f"{row.owner}.{row.id}" for row in everywhere[kind]]
        return known + [f"{row.id}" for row in of_kind[owner, kind]]

    @app.transaction(swaps)
    def swap(tx: Any, e: Any) -> None:
        person.table[e.id].delete()
        person.table.upsert(id=e.other, name=e.name)
        person.table.upsert(id=e.id, name=e.name)
        person.table[e.other].name = e.then

    @app.transaction(moves)
    def move(tx: Any, e: Any) -> Any:
        row = person.table.upsert(id=e.id, city=e.city, name=e.name)
        return {"met": row.met}

    return app


def followed() -> tm.App:
    """Declared transactions whose rows follow from what they read."""
    app = tm.App("followed")
    zero = tm.column(int, default=0)
    nodes = app.table("nodes", key="id", id=int, next=zero, hits=zero)
    marks = app.table(
        "marks", key=("node", "at"), partition_prefix=1, ordered=True, node=int, at=int, n=int
    )
    links = app.stream("links", id=int, next=int)
    hops = app.stream("hops", id=int, at=int, most=int)

    @app.transaction(links)
    def link(tx: Any, e: Any) -> None:
        nodes[e.id].next = e.next

    @app.transaction(hops)
    def hop(tx: Any, e: Any) -> Any:
        second = nodes[nodes[e.id].next]
        third = nodes[second.next]
        third.hits += 1
        seen = marks.scan((third.id, 2), (third.id, 9)).n.sum()
        tx.require(seen < e.most, "seen too often")
        marks.upsert(node=third.id, at=e.at, n=seen + 1)
        return {"at": third.id, "seen": seen}

    return app


@pytest.mark.parametrize("seed", range(4))
def test_declared_transactions_follow_what_they_read(seed: int) -> None:
    dice, calls = random.Random(seed), []
    for _ in range(60):
        if dice.random() < 0.3:
            calls.append(("links", {"id": dice.randint(0, 5), "next": dice.randint(0, 5)}))
        else:
            hop = {"id": dice.randint(0, 5), "at": dice.randint(0, 11), "most": dice.randint(2, 60)}
            calls.append(("hops", hop))
    wanted = is_one(followed, calls, seeds=1)
    assert {"hop", "hop.aborted"} <= set(wanted["outputs"])


@pytest.mark.parametrize("seed", range(6))
def test_indexes(seed: int) -> None:
    dice, calls = random.Random(seed), []
    for _ in range(50):
        id, other = dice.randint(0, 5), dice.randint(0, 5)
        city, name = dice.choice(["here", "Rome", "Oslo"]), dice.choice(["Ada", "Bo", "Cy"])
        match dice.randint(0, 4):
            case 4:
                names = {"name": f"{name}{id}", "then": f"{name}{other}"}
                calls.append(("swaps", {"id": id, "other": other, **names}))
            case 0:
                calls.append(("person.introduce", {"id": id, "city": city, "to": other}))
            case 1:
                calls.append(("person.call", {"id": id, "name": name, "other": other}))
            case 2:
                kind = dice.choice(["cat", "dog"])
                calls.append(("adopt", {"owner": id, "id": other % 3, "kind": kind}))
            case _:
                calls.append(("moves", {"id": id, "city": city, "name": f"{name}{other}"}))
    wanted = is_one(people, calls, seeds=1)
    assert all(wanted["tables"][index] for index in ("person.by_city_met", "pets.by_kind"))
    reasons = {reply[1] for reply in wanted["replies"] if reply and reply[0] == "aborted"}
    assert any("exists already" in reason for reason in reasons)


def test_chance_is_the_same_whenever_a_function_runs() -> None:
    app = Odd().app
    calls: Calls = [("thing.make", {"id": 1}), ("thing.draws", {"id": 1})]
    drawn = {str(on_nodes(app, calls, nodes, 5, 9)["replies"][1]) for nodes in (1, 2, 4)}
    assert len(drawn) == 1
    assert len(set(json.loads(drawn.pop().split(", ", 1)[1][:-1]))) == 3


def batched(ledger: Ledger) -> None:
    all = ledger.app.stream("all", time="at", at=tm.timestamp, n=int)
    for nth in range(65):
        coming = all.filter(tm.col("n") > nth, name=f"over{nth}").batches("1s")  # here

        @ledger.app.procedure(coming, name=f"many{nth}")
        def many(tx: Any, coming: Any) -> None:
            pass


def test_what_does_not_run_on_several_processes(ledger: Ledger) -> None:
    batched(ledger)
    with pytest.raises(tm.ProgramError) as caught:
        on_nodes(ledger.app, [], 2, 1, 1)
    why = "over64 is one of more than 64 streams whose batches are intervals of event time"
    assert why in caught.value.what
    assert "that does not run on several processes yet" in caught.value.what
    assert "run the app in one process" in caught.value.help
    assert str(caught.value.at).rsplit("/", 1)[-1] == marked_line(batched)


def rate(what: str, n: int) -> Any:
    """Somebody outside, who says the same whenever he is asked the same."""
    match what:
        case "raises":
            raise KeyError("no rate")
        case "object":
            return object()
        case "long":
            return "x" * 2_000_000
        case "decimal":
            return str(decimal.Decimal(n) / 3)
    return n * 7 % 13


def asks() -> tm.App:
    """Functions that ask outside: of entities, in rounds, and before and behind calls of others."""
    app = tm.App("asks")
    sums = app.entity("sum", key="id", id=int, sum=tm.column(int, default=0))
    counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
    said = app.stream("said", what=str, n=int)

    @sums.function(creates=True)
    async def add(self: Any, ctx: tm.Context, n: int) -> int:
        self.sum += ctx.lookup(rate, "add", self.sum + n)
        return self.sum  # type: ignore[no-any-return]

    @sums.function(creates=True)
    async def spread(self: Any, ctx: tm.Context, n: int) -> Any:
        first = ctx.lookup(rate, "first", n)
        added = await ctx.gather(*(sums[first + k].add(k) for k in range(3)))
        again = ctx.lookup(rate, "again", sum(added))
        self.sum += again
        if again == 5:
            raise tm.Abort("five is nobody's")
        return [first, added, again]

    @sums.function(creates=True)
    def plainly(self: Any, ctx: tm.Context, n: int) -> Any:
        one = sums[n + 1].add(ctx.lookup(rate, "plain", n)).result()
        return ctx.lookup(rate, "plain", n), one

    @sums.function(creates=True)
    async def wrong(self: Any, ctx: tm.Context, what: str) -> Any:
        self.sum += 1
        return ctx.lookup(rate, what, 2)

    @sums.function(creates=True)
    async def catches(self: Any, ctx: tm.Context) -> str:
        try:
            ctx.lookup(rate, "raises", 1)
        except tm.LookupFailed as failed:
            return str(failed)
        return "nothing was raised"

    @app.procedure()
    def say(tx: Any, n: int) -> int:
        told = tx.lookup(rate, "say", n)
        tx.emit(said, what="said", n=told)
        tx.emit(said, what="twice", n=tx.lookup(rate, "twice", n))
        return int(told)

    @app.transaction(said, opaque=True)
    def hear(tx: Any, e: Any) -> None:
        told = tx.lookup(rate, e.what, e.n)
        tx.require(told != 7, "seven is refused")
        counts[e.what].n += told

    return app


def test_what_outside_says_is_what_it_says_in_one_process() -> None:
    dice = random.Random(5)
    calls: Calls = []
    for n in range(30):
        calls.append(("sum.add", {"id": dice.randint(0, 3), "n": n}))
        calls.append(("sum.spread", {"id": dice.randint(0, 3), "n": n}))
        calls.append(("sum.plainly", {"id": dice.randint(0, 3), "n": n % 3}))
        calls.append(("say", {"n": n}))
    calls += [("sum.wrong", {"id": 1, "what": what}) for what in ("raises", "object", "decimal")]
    calls.append(("sum.catches", {"id": 2}))
    wanted = is_one(asks, calls, 1)
    assert {reply[0] for reply in wanted["replies"]} == {"returned", "fault"}
    assert "no rate" in wanted["replies"][-1][1]


def test_an_answer_is_no_longer_than_a_log_takes() -> None:
    found = on_nodes(asks(), [("sum.wrong", {"id": 1, "what": "long"})], 2, 1, 9)
    assert found["replies"] == [("aborted", "an answer from outside has more than 900000 bytes")]


def slow() -> tm.App:
    """Functions without end: of entities, in rounds, and outside."""
    app = tm.App("slow")
    sums = app.entity("sum", key="id", id=int, sum=tm.column(int, default=0))
    counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
    said = app.stream("said", n=int)

    def forever(n: int = 0) -> int:
        while True:
            n += 1

    @sums.function(creates=True)
    async def add(self: Any, ctx: tm.Context, n: int) -> int:
        self.sum += n
        if n == 7:
            with contextlib.suppress(BaseException):
                forever()
        return self.sum  # type: ignore[no-any-return]

    @sums.function(creates=True)
    async def spread(self: Any, ctx: tm.Context, n: int) -> list[int]:
        self.sum += n
        return [await sums[self.id + k].add(n + k) for k in (1, 2)]

    @sums.function(creates=True)
    def asks(self: Any, ctx: tm.Context, n: int) -> int:
        self.sum += n
        return ctx.lookup(forever, n) if n == 7 else n  # type: ignore[no-any-return]

    @app.procedure()
    def say(tx: Any, n: int) -> int:
        counts["said"].n += 1
        tx.emit(said, n=n)
        return n

    @app.transaction(said, opaque=True)
    def hear(tx: Any, e: Any) -> None:
        counts["heard"].n += 1
        if e.n == 7:
            forever()

    @app.transaction(hear.aborted, opaque=True)
    def missed(tx: Any, e: Any) -> None:
        counts[e.reason].n += 1

    return app


def test_a_function_without_end_aborts_as_in_one_process() -> None:
    calls: Calls = [
        ("sum.add", {"id": 1, "n": 1}),
        ("sum.spread", {"id": 1, "n": 6}),
        ("say", {"n": 7}),
        ("sum.asks", {"id": 2, "n": 7}),
        ("sum.spread", {"id": 2, "n": 1}),
        ("say", {"n": 8}),
        ("sum.asks", {"id": 3, "n": 3}),
    ]
    settings = {"deadline_us": 300_000}
    wanted = in_process(slow(), calls, **settings)
    late = "the function took longer than 300000 microseconds"
    assert [reply[1] for reply in wanted["replies"] if reply[0] == "aborted"] == [late, late]
    assert {"what": late, "n": 1} in wanted["tables"]["counts"]
    for nodes, epoch in [(1, 1), (1, 1000), (3, 1), (3, 1000)]:
        found = on_nodes(slow(), calls, nodes, 5, epoch, **settings)
        for rows in found["tables"].values():
            rows.sort(key=repr)
        assert found["not_deterministic"] == 0
        del found["ns"], found["not_deterministic"]
        assert found == wanted, (nodes, epoch)
