"""What events set off on several nodes: handlers, procedures, triggers, windows."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemill as tm

from .test_entities_nodes import Calls, is_one


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


def test_what_a_filter_cannot_compute_is_refused_as_a_whole() -> None:
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

    from .test_entities_nodes import on_nodes

    rows = [{"id": 4, "by": 2}, {"id": 4, "by": 0}, {"id": 4, "by": 4}]
    found = on_nodes(app, [("events", row) for row in rows], 2, 1, 10)
    assert found["tables"]["counts"] == [{"id": 0, "n": 2}, {"id": 1, "n": 1}]
    kinds = [kind for kind, _ in found["replies"]]
    assert kinds == ["returned", "aborted", "returned"]
    assert "the event can't come to stream some" in found["replies"][1][1]
