"""The effects of events on several nodes: handlers, procedures, triggers, windows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .test_entities_nodes import Calls, is_one, on_nodes


class Shop:
    """Orders that are cleaned, taken from the stock, and shipped."""

    def __init__(self, nested: bool, direct: bool) -> None:
        app = self.app = tm.App("shop")
        stock = app.table("stock", key="item", item=int, left=tm.column(int, default=5), shelf=int)
        on_shelf = stock.index("shelf", "left", unique=True)
        shipped = app.table("shipped", key="n", n=int, item=int)
        counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
        orders = app.stream("orders", n=int, item=int, many=int)
        valid, taken = app.stream("valid", n=int, item=int, many=int), app.stream("taken", n=int)
        low, many = app.stream("low", item=int, left=int), app.stream("many", item=int)
        whole = orders.filter(lambda e: e.many > 0, name="whole")

        @app.transaction(whole, opaque=direct)
        def clean(tx, e):
            tx.require(e.item < 6, "there is no such item")
            tx.emit(valid, n=e.n, item=e.item, many=e.many)

        @app.procedure(valid)
        def take(tx, valid):
            for e in valid:
                row = stock[e.item]
                if not row.exists():
                    stock.insert(item=e.item, shelf=e.item % 2)
                row.left -= e.many
                tx.emit(taken, n=e.n)
                tx.require(row.left >= 0, f"{e.item} is out of stock")
                if row.left == 2 and on_shelf[row.shelf, 2].exists():
                    tx.emit(many, item=e.item)

        @app.procedure(taken, valid, out={"n": int, "left": int})
        def ship(tx, taken, valid):
            tx.require([e.n for e in taken] == [e.n for e in valid], "not all of them")
            for e in valid:
                shipped.insert(n=e.n, item=e.item)
            return [dict(n=e.n, left=stock[e.item].left) for e in valid]

        @app.transaction(ship)
        def count(tx, e):
            counts["shipped"].n += 1
            with tx.when(e.left == 4):
                tx.emit(low, item=e.n, left=e.left)

        @app.transaction(clean.aborted)
        def no_such(tx, e):
            counts[e.reason].n += e.many

        @app.trigger(stock)
        def watch(tx, change):
            tx.require(change.new.left != 1, "one is left alone")
            counts[change.kind].n += 1
            if change.new.left < 3:
                tx.emit(low, item=change.new.item, left=change.new.left)

        @app.trigger(low)
        def say(tx, e):
            counts["low"].n += e.left

        @app.procedure()
        def fill(tx, item: int, left: int):
            tx.require(stock[item].exists(), "nobody has asked for it")
            stock[item].left = left
            tx.emit(low, item=item, left=left)
            return counts["low"].n

        if nested:
            app.nested("sale", take, ship)

    @staticmethod
    def calls(seed: int) -> Calls:
        """Any orders and deliveries."""
        dice, calls = random.Random(seed), []
        for n in range(60):
            if dice.random() < 0.2:
                calls.append(("fill", {"item": dice.randrange(6), "left": dice.randrange(1, 7)}))
            else:
                # Some numbers come twice.
                item, many = dice.randrange(7), dice.randrange(4)
                calls.append(("orders", {"n": n - (n % 7 == 6), "item": item, "many": many}))
        return calls


@pytest.mark.parametrize("nested", [False, True], ids=["apart", "nested"])
@pytest.mark.parametrize("direct", [False, True], ids=["traced", "opaque"])
def test_rounds_are_those_of_one_process(nested: bool, direct: bool) -> None:
    for seed in range(3):
        wanted = is_one(lambda: Shop(nested, direct).app, Shop.calls(seed), seeds=2)
        assert wanted["tables"]["shipped"]
        aborted = {name for name in wanted["outputs"] if "aborted" in name}
        assert {"clean.aborted", "take.aborted"} <= aborted
        kinds = {reply[0] for reply in wanted["replies"] if reply is not None}
        assert kinds == {"returned", "aborted"}


def test_windows_of_a_procedure_are_where_their_rows_are() -> None:
    def make() -> tm.App:
        app = tm.App("recent")
        votes = app.stream("votes", candidate=int, weight=int)
        top = app.stream("top", candidate=int, weight=int, rows=int, low=int, first=int)
        recent = app.window(
            "recent", rows=4, slide=2, group="candidate", sums=["weight"],
            aggregates=lambda rows: dict(low=rows.weight.min(), first=rows.weight.first()),
            candidate=int, weight=int,
        )  # fmt: skip
        totals = app.table("totals", key="id", id=int, votes=tm.column(int, default=0))

        @app.procedure(votes, owns=[recent])
        def count(tx, votes):
            for vote in votes:
                recent.insert(candidate=vote.candidate, weight=vote.weight)
                tx.require(totals[vote.candidate].votes > 0)
            tx.require(vote.weight < 3 or recent[9].rows < 2, "nine leads")

        @app.trigger(recent, changes=["insert"])
        def comes(tx, row):
            tx.require(row.candidate != 7, "seven is nobody")
            totals[row.candidate].votes += 1

        @app.trigger(recent)
        def lead(tx, slide):
            best = max(recent.groups(), key=lambda group: (group.weight, -group.candidate))
            assert slide.rows == len(recent.rows())
            tx.emit(top, **{name: best[name] for name in best})

        return app

    dice = random.Random(5)
    calls: Calls = [
        ("votes", {"candidate": dice.choice([1, 2, 3, 7, 9, 9]), "weight": dice.randrange(1, 4)})
        for _ in range(50)
    ]
    wanted = is_one(make, calls)
    assert len(wanted["outputs"]["top"]) > 3
    reasons = {row["reason"] for row in wanted["outputs"]["count.aborted"]}
    assert reasons == {"nine leads", "seven is nobody"}


def test_functions_of_entities_set_off_triggers_and_handlers() -> None:
    def make() -> tm.App:
        app = tm.App("bank")
        log = app.table("log", key="id", id=int, n=tm.column(int, default=0))
        moved = app.stream("moved", id=int, n=int)

        account = app.entity("account", key="id", id=int, balance=tm.column(int, default=100))

        @account.function(creates=True)
        def put(self: Any, ctx: tm.Context, n: int) -> int:
            ctx.require(n != 13, "thirteen")
            self.balance += n
            ctx.emit(moved, id=self.id, n=n)
            return int(self.balance)

        @account.function(creates=True)
        async def send(self: Any, ctx: tm.Context, to: int, n: int) -> int:
            ctx.require(self.balance >= n, "not enough")
            self.balance -= n
            there = await account[to].put(n)
            return int(there + self.balance)

        @app.transaction(moved)
        def note(tx, e):
            log[e.id].n += e.n

        return app

    dice = random.Random(1)
    calls: Calls = []
    for _ in range(40):
        id, to = dice.sample(range(4), 2)
        args = {"id": id, "to": to, "n": dice.choice([1, 13, 60, 90])}
        calls.append(("account.send", args))
        calls.append(("account.put", {"id": id, "n": dice.randrange(3)}))
    wanted = is_one(make, calls)
    assert {reply[0] for reply in wanted["replies"]} == {"returned", "aborted"}


class Complaints:
    """Calls that abort, of procedures and of functions of entities, and those who take them."""

    def __init__(self) -> None:
        app = self.app = tm.App("complaints")
        counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
        told = app.stream("told", what=str, n=int)
        account = app.entity("account", key="id", id=int, balance=tm.column(int, default=20))

        @app.procedure()
        def pay(tx, what: str, n: int):
            counts[what].n += n
            tx.require(n != 7, "seven")
            tx.require(counts[what].n < 15, "too many")
            return [n] if n > 2 else []

        @app.procedure()
        def check(tx, n: int):
            tx.require(n > 2, "small")
            tx.emit(told, what="checked", n=n)

        @account.function(creates=True)
        def take(self: Any, ctx: tm.Context, n: int) -> int:
            self.balance -= n
            ctx.require(self.balance >= 0, "not enough")
            return int(self.balance)

        @account.function(creates=True)
        async def both(self: Any, ctx: tm.Context, to: int, n: int) -> bool:
            await account[self.id].take(n)
            return await account[to].take(n) >= 0

        @app.transaction(pay.aborted)
        def again(tx, e):
            counts[e.reason].n += e.n
            tx.emit(told, what=e.what, n=e.n)

        @app.procedure(check.aborted)
        def small(tx, calls):
            for e in calls:
                counts["small"].n += 1
                tx.require(e.n != 1, "one is nothing")

        @app.transaction(take.aborted)
        def poor(tx, e):
            counts["poor"].n += e.id

        @app.transaction(both.aborted, opaque=True)
        def poorer(tx, e):
            counts["poorer"].n += e.to

        @app.transaction(told)
        def tell(tx, e):
            counts["told"].n += 1

    @staticmethod
    def calls(seed: int) -> Calls:
        """Any calls."""
        dice, calls = random.Random(seed), []
        for _ in range(60):
            id, to = dice.sample(range(3), 2)
            n = dice.randrange(9)
            calls.append(
                dice.choice(
                    [
                        ("pay", {"what": dice.choice("abc"), "n": n}),
                        ("check", {"n": n}),
                        ("account.take", {"id": id, "n": n}),
                        ("account.both", {"id": id, "to": to, "n": n}),
                    ]
                )
            )
        return calls


def test_who_takes_calls_that_abort_is_beside_their_callers() -> None:
    for seed in range(3):
        wanted = is_one(lambda: Complaints().app, Complaints.calls(seed), seeds=2)
        reasons = {reply[1] for reply in wanted["replies"] if reply[0] == "aborted"}
        assert reasons == {"seven", "too many", "small", "not enough"}
        counts = {row["what"]: row["n"] for row in wanted["tables"]["counts"]}
        assert {"too many", "seven", "small", "poor", "poorer", "told"} <= counts.keys()
        aborted = {name for name in wanted["outputs"] if name.endswith(".aborted")}
        names = ("pay", "check", "account.take", "account.both", "small")
        assert aborted == {f"{name}.aborted" for name in names}


def test_what_a_filter_cannot_compute_does_not_reach_its_stream() -> None:
    app = tm.App("views")
    counts = app.table("counts", key="id", id=int, n=tm.column(int, default=0))
    events = app.stream("events", id=int, by=int)
    some = events.filter(lambda e: e.id // e.by > 1, name="some")

    @app.transaction(events)
    def all(tx, e):
        counts[0].n += 1

    @app.transaction(some)
    def few(tx, e):
        counts[1].n += 1

    rows = [{"id": 4, "by": 2}, {"id": 4, "by": 0}, {"id": 4, "by": 4}]
    found = on_nodes(app, [("events", row) for row in rows], 2, 1, 10)
    assert found["tables"]["counts"] == [{"id": 0, "n": 3}, {"id": 1, "n": 1}]
    assert [kind for kind, _ in found["replies"]] == 3 * ["returned"]


class Batched:
    """Votes that are counted in batches, some of them of a stream that is derived."""

    def __init__(self) -> None:
        app = self.app = tm.App("batched")
        votes = app.stream("votes", slot=int, n=int, tags=list[int])
        pairs = votes.filter(tm.col("n") != 5, name="pairs").batches(2)
        fours = app.stream("fours", n=int).batches(4)
        counts = app.table("counts", key="what", what=str, n=tm.column(int, default=0))
        sums = app.stream("sums", of=str, n=int, seen=int)
        self.votes, self.fours = votes, fours

        @app.transaction(votes)
        def each(tx, e):
            counts["seen"].n += 1

        @app.procedure(pairs, fours)
        def gather(tx, pairs, fours):
            for of, events in (("pairs", pairs), ("fours", fours)):
                total = sum(e.n for e in events)
                tx.require(total % 7 != 3, f"{of} come to {total}")
                if events:
                    tx.emit(sums, of=of, n=total, seen=counts["seen"].n)
                    counts[of].n += len(events)

        @app.procedure(fours, out={"first": int, "last": int})
        def ends(tx, fours):
            return dict(first=fours[0].n, last=fours[-1].n)

        @app.procedure(pairs)
        def tags(tx, pairs):
            for e in pairs:
                counts["tags"].n += sum(e.tags) + e.slot

        @app.transaction(gather.aborted)
        def odd(tx, e):
            counts[e.reason].n += 1

    @staticmethod
    def calls(seed: int) -> Calls:
        """Any events of both."""
        dice, calls = random.Random(seed), []
        for _ in range(70):
            n = dice.randrange(9)
            if dice.random() < 0.4:
                calls.append(("fours", {"n": n}))
            else:
                row = {"slot": dice.randrange(3), "n": n, "tags": [1] * dice.randrange(3)}
                calls.append(("votes", row))
        return calls


def test_batches_are_those_of_one_process() -> None:
    for seed in range(4):
        wanted = is_one(lambda: Batched().app, Batched.calls(seed), seeds=2)
        assert len(wanted["outputs"]["ends"]) > 3
        assert {row["of"] for row in wanted["outputs"]["sums"]} == {"pairs", "fours"}
        assert any("come to" in row["what"] for row in wanted["tables"]["counts"])


@pytest.mark.parametrize("opaque", [False, True], ids=["traced", "opaque"])
@pytest.mark.parametrize("history", [4, ("1h", 3)], ids=["count", "both"])
def test_windows_over_versions_are_those_of_one_process(opaque: bool, history: Any) -> None:
    def make() -> tm.App:
        app = tm.App("versions")
        rows = app.table("rows", key=("a", "b"), a=int, b=str, n=tm.column(int, default=0),
                         history=history)  # fmt: skip
        sums = app.table("sums", key="id", id=int, n=tm.column(int, default=0))
        events = app.stream("events", a=int, b=str, n=int)

        out = dict(before=int, both=int, first=int, mean=float | None, mixed=int)

        @app.transaction(events, opaque=opaque, **({"out": out} if opaque else {}))
        def take(tx, e):
            row = rows[e.a, e.b]
            before = row.over(tm.last(3)).n.sum()
            row.n = e.n
            both = row.over(tm.last(2)).n.sum()
            tx.require(both != 9, "nine")
            return dict(
                before=before,
                both=both,
                first=row.over(tm.tumbling(versions=2)).n.first(),
                mean=row.over(tm.last(3)).n.avg(),
                mixed=row.over(tm.last(3)).fold(1, lambda state, v: state * 2 + v.n),
            )

        @app.transaction(take)
        def again(tx, e):
            rows[e.both, "x"].n = e.before + rows[e.both, "x"].over(tm.last(2)).count()
            sums[e.both].n += e.mixed

        @app.procedure()
        def gone(tx, a: int, b: str):
            rows[a, b].delete()
            return rows[a, b].over(tm.last(2)).n.sum()

        return app

    for seed in range(2):
        dice, calls = random.Random(seed), []
        for _ in range(60):
            key = {"a": dice.randrange(3), "b": dice.choice("xy")}
            calls.append(("gone", key) if dice.random() < 0.1
                         else ("events", {**key, "n": dice.randrange(8)}))  # fmt: skip
        wanted = is_one(make, calls, seeds=2)
        assert len({row["before"] for row in wanted["outputs"]["take"]}) > 5
        assert wanted["outputs"]["take.aborted"]


def test_a_window_of_time_over_versions() -> None:
    app = tm.App("times")
    rows = app.table("rows", key="id", id=int, n=tm.column(int, default=0), history="1h")
    events = app.stream("events", id=int)

    @app.transaction(events)
    def take(tx, e):
        rows[e.id].n = e.id
        over = rows[e.id].over(tm.sliding("1h"))
        return dict(n=over.count(), sum=over.n.sum())

    found = on_nodes(app, [("events", {"id": n % 2}) for n in range(9)], 3, 1, 4)
    assert [(row["n"], row["sum"]) for row in found["outputs"]["take"]] == [
        (n // 2 + 1, (n // 2 + 1) * (n % 2)) for n in range(9)
    ]


def test_functions_of_entities_beside_tables_with_versions() -> None:
    def make() -> tm.App:
        app = tm.App("meters")
        readings = app.table("readings", key="id", id=int, n=tm.column(int, default=0), history=4)
        meter = app.entity("meter", key="id", id=int, total=tm.column(int, default=0))

        @meter.function(creates=True)
        def read(self: Any, ctx: tm.Context, n: int) -> int:
            row = readings[self.id]
            row.n = n
            ctx.require(n != 5, "five")
            self.total += row.over(tm.last(3)).n.sum()
            return int(self.total)

        @meter.function(creates=True)
        async def both(self: Any, ctx: tm.Context, to: int, n: int) -> list[int]:
            before = readings[to].over(tm.last(2)).n.sum()
            there = await meter[to].read(n)
            here = await meter[self.id].read(n + 1)
            return [before, there, here, readings[to].over(tm.last(4)).count()]

        @app.procedure()
        def last(tx, id: int):
            return readings[id].over(tm.last(2)).n.first()

        return app

    dice = random.Random(2)
    calls: Calls = []
    for _ in range(30):
        id, to = dice.sample(range(4), 2)
        calls.append(("meter.both", {"id": id, "to": to, "n": dice.randrange(9)}))
        calls.append(("meter.read", {"id": id, "n": dice.randrange(9)}))
        calls.append(("last", {"id": to}))
    wanted = is_one(make, calls, seeds=2)
    assert {reply[0] for reply in wanted["replies"]} == {"returned", "aborted"}
    assert len({str(reply[1]) for reply in wanted["replies"]}) > 30


def test_versions_and_windows_have_the_times_of_events() -> None:
    """Events without a time of their own have the watermark of the cut before."""

    def make() -> tm.App:
        app = tm.App("times")
        rows = app.table("rows", key="id", id=int, n=tm.column(int, default=0), history=(50, None))
        sums = app.table("sums", key="id", id=int, n=tm.column(int, default=0))
        events = app.stream("events", time="at", at=int, id=int, n=int)
        recent = app.window("recent", time=40, slide=10, group="id", sums=["n"],
                            id=int, n=int)  # fmt: skip
        slides = app.stream("slides", id=int, n=int, rows=int)

        @app.transaction(events)
        def put(tx, e):
            row = rows[e.id]
            row.n = e.n
            over = row.over(tm.sliding(20))
            tx.require(e.n != 7, "seven")
            return dict(id=e.id, count=over.count(), sum=over.n.sum())

        @app.transaction(put)
        def add(tx, e):
            sums[e.id].n += rows[e.id].over(tm.sliding(50)).n.max() + e.count

        @app.procedure(events, owns=[recent])
        def follow(tx, events):
            for e in events:
                recent.insert(id=e.id, n=e.n)

        @app.trigger(recent)
        def slid(tx, slide):
            for group in recent.groups():
                tx.emit(slides, id=group.id, n=group.n, rows=group.rows)

        @app.procedure()
        def change(tx, id: int, n: int) -> list[int]:
            row = rows[id]
            before = row.over(tm.sliding(30))
            found = [before.count(), before.n.sum()]
            row.n = n
            return [*found, row.over(tm.sliding(30)).count()]

        return app

    for seed in range(2):
        dice, calls, at = random.Random(seed), [], 0
        for _ in range(60):
            id, n = dice.randrange(3), dice.randrange(9)
            if dice.random() < 0.3:
                calls.append(("change", {"id": id, "n": n}))
            else:
                at += dice.choice([0, 1, 3, 8, 25])
                calls.append(("events", {"at": at, "id": id, "n": n}))
        wanted = is_one(make, calls, seeds=2)
        assert len({row["count"] for row in wanted["outputs"]["put"]}) > 3
        assert wanted["outputs"]["put.aborted"]
        assert len(wanted["outputs"]["slides"]) > 5
        assert len({str(reply) for reply in wanted["replies"]}) > 5


def test_events_are_passed_on_as_they_come_in(tmp_path: Path) -> None:
    """No event of a stream that is written is kept back by a transaction that aborts."""
    app = tm.App("passed")
    counts = app.table("counts", key="id", id=int, n=tm.column(int, default=0))
    events = app.stream("events", id=int, n=int)
    large = events.filter(tm.col("n") > 4, name="large")
    doubled = events.map(id=tm.col("id"), n=tm.col("n") * 2, name="doubled")
    events.write(tm.files(str(tmp_path / "events.jsonl")))
    large.write(tm.files(str(tmp_path / "large.jsonl")))
    doubled.filter(tm.col("n") < 6, name="small").write(tm.files(str(tmp_path / "small.jsonl")))
    alone = app.stream("alone", id=int)
    alone.write(tm.files(str(tmp_path / "alone.jsonl")))

    @app.transaction(events)
    def count(tx, e):
        counts[e.id].n += e.n
        tx.require(e.n != 7, "seven")

    dice = random.Random(3)
    rows = [{"id": dice.randrange(3), "n": dice.randrange(9)} for _ in range(40)]
    calls: Calls = [("events", row) for row in rows] + [("alone", {"id": n}) for n in range(3)]
    for nodes in (1, 3):
        found = on_nodes(app, calls, nodes, 1, 4)["outputs"]
        assert found["events"] == rows
        assert found["large"] == [row for row in rows if row["n"] > 4]
        small = [{"id": row["id"], "n": row["n"] * 2} for row in rows if row["n"] < 3]
        assert found["small"] == small
        assert found["alone"] == [{"id": n} for n in range(3)]
        assert [row["n"] for row in found["count.aborted"]] == [7] * sum(
            row["n"] == 7 for row in rows
        )
