"""Entities: functions that call each other, each call of a client one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill.cli.token import write
from tidemill.errors import aborted

from .conftest import reference

Script = list[list[Any]]

CASES = 30


class NoneLeft(tm.Abort):
    """An abort that a caller can distinguish. No other class of the tests has its name."""

    def __init__(self, left: int, *, of: str) -> None:
        super().__init__(f"{left} of {of} left")


def test_exceptions_come_to_callers_as_themselves(tmp_path: Path) -> None:
    app = tm.App("shop")
    item = app.entity("item", key="id", id=int, left=tm.column(int, default=0))

    @item.function(creates=True)
    async def take(self: Any, ctx: tm.Context) -> None:
        raise NoneLeft(self.left, of="item")

    @item.function(creates=True)
    async def buy(self: Any, ctx: tm.Context) -> None:
        await item[self.id].take()

    @item.function(creates=True)
    async def note(self: Any, ctx: tm.Context) -> None:
        raise tm.Abort("Note: nothing of this name")

    with app.start(http_port=0) as mill, tm.Client(mill.url) as client:
        for call in (mill.call, client.call):
            with pytest.raises(NoneLeft) as refused:
                call("item.buy", id=1)
            assert (str(refused.value), refused.value.reason) == ("0 of item left",) * 2
            with pytest.raises(tm.Abort) as plain:
                call("item.note", id=1)
            assert type(plain.value) is tm.Abort
            assert str(plain.value) == "Note: nothing of this name"
        mill.drain()
        assert [row["reason"] for row in mill.output(buy.aborted).rows()] == [
            "NoneLeft: 0 of item left"
        ] * 2


def test_of_two_exceptions_with_one_name_callers_get_the_later() -> None:
    def defined() -> type[tm.Abort]:
        class DefinedTwice(tm.Abort):
            pass

        return DefinedTwice

    first, second = defined(), defined()
    caught = aborted("DefinedTwice: text")
    assert (type(caught), str(caught)) == (second, "text")
    assert first is not second


def pending() -> asyncio.Future[None]:
    """Returns a future that never completes."""
    return asyncio.new_event_loop().create_future()


class Trips:
    """Trips reserve rooms and seats, or neither."""

    def __init__(self) -> None:
        app = self.app = tm.App("trips")
        hotel = self.hotel = app.entity("hotel", key="id", id=str, rooms=int)
        flight = self.flight = app.entity("flight", key="id", id=str, seats=int)
        trip = app.entity("trip", key="id", id=int, state=tm.column(str, default="none"))
        booked = self.booked = app.stream("booked", id=int)

        @hotel.function(creates=True)
        async def build(self: Any, ctx: tm.Context, rooms: int) -> None:
            self.rooms = rooms

        @hotel.function
        async def reserve(self: Any, ctx: tm.Context, n: int = 1) -> int:
            ctx.require(self.rooms >= n, "no rooms left")
            self.rooms -= n
            return int(self.rooms)

        @flight.function(creates=True)
        def plan(self: Any, ctx: tm.Context, seats: int) -> None:
            self.seats = seats

        @flight.function(name="reserve")
        def take(self: Any, ctx: tm.Context) -> int:
            if not self.seats:
                raise tm.Abort("no seats left")
            self.seats -= 1
            return int(self.seats)

        @trip.function(creates=True)
        async def book(self: Any, ctx: tm.Context, hotel_id: str, flight_id: str) -> list[int]:
            rooms, seats = await ctx.gather(hotel[hotel_id].reserve(), flight[flight_id].reserve())
            self.state = "booked"
            ctx.emit(booked, id=self.id)
            return [rooms, seats]

        @trip.function
        async def cancel(self: Any, ctx: tm.Context) -> None:
            self.delete()

        self.build, self.reserve, self.plan = build, reserve, plan
        self.book, self.cancel = book, cancel

    def open(self, mill: tm.Mill) -> None:
        """A hotel and a flight."""
        mill.call(self.build, id="inn", rooms=3)
        mill.call(self.plan, id="TM1", seats=2)


def test_all_of_a_call_happens_or_nothing() -> None:
    trips = Trips()
    with trips.app.start(workers=2) as mill:
        trips.open(mill)
        assert mill.call(trips.book, id=1, hotel_id="inn", flight_id="TM1") == [2, 1]
        assert mill.call(trips.book, id=2, hotel_id="inn", flight_id="TM1") == [1, 0]
        with pytest.raises(tm.Abort, match="no seats left"):
            mill.call(trips.book, id=3, hotel_id="inn", flight_id="TM1")
        with pytest.raises(tm.Abort, match=r'hotel\["none"\] does not exist'):
            mill.call(trips.book, id=3, hotel_id="none", flight_id="TM1")
        mill.call(trips.cancel, id=1)
        assert mill.table("hotel").rows() == [{"id": "inn", "rooms": 1}]
        assert mill.table("trip").rows() == [{"id": 2, "state": "booked"}]
        assert mill.output(trips.booked).rows() == [{"id": 1}, {"id": 2}]


def test_many_clients_over_http(tmp_path: Path) -> None:
    trips = Trips()
    with trips.app.start(workers=2, http_port=0, data_dir=tmp_path / "data") as mill:
        mill.call(trips.build, id="inn", rooms=1000)
        assert mill.url is not None
        client = tm.Client(mill.url)

        def guest() -> None:
            for _ in range(20):
                client.call("hotel.reserve", id="inn", n=2)

        guests = [threading.Thread(target=guest) for _ in range(4)]
        for thread in guests:
            thread.start()
        for thread in guests:
            thread.join()
        assert mill.call(trips.reserve, id="inn") == 1000 - 4 * 20 * 2 - 1
        with pytest.raises(tm.Abort, match="no rooms left"):
            client.call("hotel.reserve", id="inn", n=5000)


def test_after_a_restart_all_is_as_it_was(tmp_path: Path) -> None:
    for recovery in ("weak", "strong"):
        folder = tmp_path / recovery
        trips = Trips()
        settings: dict[str, Any] = dict(data_dir=folder, durable="log", recovery=recovery)
        with trips.app.start(**settings) as mill:
            trips.open(mill)
            mill.call(trips.book, id=1, hotel_id="inn", flight_id="TM1")
            rows = [dict(id=id, hotel_id="inn", flight_id="TM1") for id in range(2, 9)]
            mill.send(trips.book, rows, wait=True)
            mill.drain()
            before = [list(mill.table(name).rows()) for name in ("hotel", "flight", "trip")]
            mill.stop()
        trips = Trips()
        with trips.app.start(**settings) as mill:
            mill.drain()
            assert before == [list(mill.table(n).rows()) for n in ("hotel", "flight", "trip")]
            assert mill.call(trips.reserve, id="inn") == 0


class Nodes:
    """Entities that do what scripts say; and the same without Tidemill."""

    def __init__(self) -> None:
        app = self.app = tm.App("nodes")
        node = self.node = app.entity(
            "node", key="id", ordered=True, id=int, sum=tm.column(int, default=0)
        )
        seen = self.seen = app.stream("seen", id=int, sum=int)
        counts = app.table("counts", key="id", id=int, n=tm.column(int, default=0))

        @node.function(creates=True)
        async def run(self: Any, ctx: tm.Context, script: tm.any) -> Any:  # type: ignore[valid-type]
            if not self.exists():
                self.sum = 0
            for what, *given in script:
                match what, given:
                    case "add", [n]:
                        self.sum += n
                        counts[self.id].n += 1
                    case "call", [key, inner]:
                        self.sum += await node[key].run(inner)
                    case "all", calls:
                        await ctx.gather(*(node[key].run(inner) for key, inner in calls))
                    case "send", [key, inner]:
                        node[key].run(inner)
                    case "emit", []:
                        ctx.emit(seen, id=self.id, sum=self.sum)
                    case "look", [key]:
                        self.sum += 1000 * await node[key].exists()
                    case "go", []:
                        self.delete()
                        return 0
                    case "fail", [reason]:
                        raise tm.Abort(reason)
                    case "try", [key, inner]:
                        try:
                            await node[key].run(inner)
                        except tm.Abort:
                            self.sum += 1
                    case _:
                        raise AssertionError(what)
            return self.sum

        self.run = run


class Straight:
    """The results of scripts, executed one call after the other."""

    def __init__(self) -> None:
        self.nodes: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.seen: list[tuple[int, int]] = []
        self.failed: str | None = None

    def call(self, key: int, script: Script) -> str | None:
        """One call of a client: why it fails, if it does."""
        before = dict(self.nodes), dict(self.counts), list(self.seen)
        self.failed = None
        with contextlib.suppress(tm.Abort):
            self.run(key, script)
        if self.failed is not None:
            self.nodes, self.counts, self.seen = before
        return self.failed

    def run(self, key: int, script: Script) -> int:
        self.nodes.setdefault(key, 0)
        for what, *given in script:
            if what == "add":
                # A node that has gone in a call of its own comes back by being set.
                self.nodes[key] = self.nodes.get(key, 0) + given[0]
                self.counts[key] = self.counts.get(key, 0) + 1
            elif what == "call":
                own = self.nodes.get(key, 0)
                self.nodes[key] = own + self.run(given[0], given[1])
            elif what == "all":
                for other, inner in given:
                    self.run(other, inner)
            elif what == "send":
                self.run(given[0], given[1])
            elif what == "emit":
                self.seen.append((key, self.nodes.get(key, 0)))
            elif what == "look":
                own = self.nodes.get(key, 0)
                self.nodes[key] = own + 1000 * (given[0] in self.nodes)
            elif what == "go":
                self.nodes.pop(key, None)
                return 0
            elif what == "fail":
                self.failed = self.failed or given[0]
                raise tm.Abort(given[0])
            elif what == "try":
                # Nobody can undo what a call has failed with.
                self.run(given[0], given[1])
        return self.nodes.get(key, 0)


def any_script(dice: random.Random, depth: int) -> Script:
    """Returns a random script for a node."""
    script: Script = []
    for _ in range(dice.randint(0, 4)):
        kinds = ["add", "add", "emit", "look"]
        kinds += ["call", "all", "send"] if depth else []
        kinds += ["fail", "try"] if dice.random() < 0.15 else []
        kind = dice.choice(kinds)
        if kind == "add":
            script.append(["add", dice.randint(-5, 5)])
        elif kind == "emit":
            script.append(["emit"])
        elif kind == "look":
            script.append(["look", dice.randint(0, 4)])
        elif kind == "fail":
            script.append(["fail", f"reason {dice.randint(0, 9)}"])
        elif kind == "all":
            calls = range(dice.randint(0, 3))
            inner = [[dice.randint(0, 4), any_script(dice, depth - 1)] for _ in calls]
            script.append(["all", *inner])
        else:
            script.append([kind, dice.randint(0, 4), any_script(dice, max(depth - 1, 0))])
    if dice.random() < 0.1:
        script.append(["go"])
    return script


@pytest.mark.parametrize("seed", range(CASES))
def test_any_graph_of_calls_comes_to_what_a_straight_run_does(seed: int) -> None:
    dice = random.Random(seed)
    calls = [(dice.randint(0, 4), any_script(dice, 3)) for _ in range(40)]
    straight = Straight()
    failed = [straight.call(key, script) for key, script in calls]
    rows = [{"id": key, "script": script} for key, script in calls]
    wanted = {
        "node": [{"id": id, "sum": n} for id, n in sorted(straight.nodes.items())],
        "counts": [{"id": id, "n": n} for id, n in sorted(straight.counts.items())],
    }
    aborted = [{**row, "reason": why} for row, why in zip(rows, failed, strict=True) if why]
    nodes = Nodes()
    outcome = reference(nodes.app, (nodes.run.input, rows))
    assert {name: outcome.tables[name] for name in wanted} == wanted
    for workers in (1, 2, 4):
        nodes = Nodes()
        with nodes.app.start(workers=workers, epoch_rows_max=1 + seed % 7, rerun_every=1) as mill:
            if seed % 2:
                mill.send(nodes.run, rows)
                mill.drain()
            else:
                for key, script, why in zip(*zip(*calls, strict=True), failed, strict=True):
                    if why is None:
                        mill.call(nodes.run, id=key, script=script)
                    else:
                        with pytest.raises(tm.Abort, match=why):
                            mill.call(nodes.run, id=key, script=script)
            for name, table in wanted.items():
                assert sorted(mill.table(name).rows(), key=lambda row: row["id"]) == table
            seen = [(row["id"], row["sum"]) for row in mill.output(nodes.seen).rows()]
            assert seen == straight.seen
            assert [dict(row) for row in mill.output(nodes.run.aborted).rows()] == aborted
            assert mill.finish()["unstable"] == []


class Odd:
    """Functions that do what they should not."""

    def __init__(self) -> None:
        app = self.app = tm.App("odd")
        thing = self.thing = app.entity("thing", key="id", id=int, n=tm.column(int, default=0))
        moved = app.stream("moved", id=int)

        @thing.function(creates=True)
        async def make(self: Any, ctx: tm.Context) -> None:
            self.n = 1

        @thing.function
        async def deep(self: Any, ctx: tm.Context) -> None:
            await thing[self.id].deep()

        @thing.function
        async def wide(self: Any, ctx: tm.Context) -> None:
            while True:
                thing[self.id].touch()

        @thing.function
        async def touch(self: Any, ctx: tm.Context) -> None:
            self.n += 1

        @thing.function
        async def strange(self: Any, ctx: tm.Context) -> Any:
            return {"open": [1, object()]}

        @thing.function
        async def waits(self: Any, ctx: tm.Context) -> None:
            await pending()

        @thing.function
        async def typed(self: Any, ctx: tm.Context) -> None:
            await thing[self.id].adds("many")

        @thing.function
        async def adds(self: Any, ctx: tm.Context, n: int, m: int = 1) -> int:
            self.n += n + m
            return int(self.n)

        @thing.function
        async def named(self: Any, ctx: tm.Context) -> Any:
            return await thing[self.id].adds(m=2, n=3)

        @thing.function
        async def unknown(self: Any, ctx: tm.Context) -> None:
            await thing[self.id].nothing()

        @thing.function
        async def peeks(self: Any, ctx: tm.Context) -> None:
            assert thing[self.id].n

        @thing.function
        async def pokes(self: Any, ctx: tm.Context) -> None:
            thing[self.id].n = 3

        @thing.function
        async def blames(self: Any, ctx: tm.Context) -> None:
            try:
                await thing[self.id].divides()
            except ZeroDivisionError:
                self.n = 100

        @thing.function
        async def divides(self: Any, ctx: tm.Context) -> float:
            return 1 / 0

        @thing.function
        async def gathers(self: Any, ctx: tm.Context) -> None:
            await ctx.gather(thing[self.id].touch(), 5)  # type: ignore[arg-type]

        @thing.function
        async def tells(self: Any, ctx: tm.Context) -> None:
            await thing[self.id].emits()

        @thing.function
        async def emits(self: Any, ctx: tm.Context) -> None:
            ctx.emit(moved, id=self.id)

        @thing.function
        async def forgets(self: Any, ctx: tm.Context) -> None:
            if thing[self.id].exists():
                self.n = 100

        @thing.function
        async def returns(self: Any, ctx: tm.Context) -> Any:
            return thing[self.id].adds(1)

        @thing.function
        async def sums(self: Any, ctx: tm.Context) -> None:
            await thing[self.id].adds(True)

        @thing.function
        async def widens(self: Any, ctx: tm.Context) -> None:
            await thing[self.id].adds(1 << 63)

        @thing.function
        async def nulls(self: Any, ctx: tm.Context) -> None:
            await thing[self.id].adds(None)

        @thing.function
        async def grows(self: Any, ctx: tm.Context) -> int:
            return await thing[self.id].huge()

        @thing.function
        async def huge(self: Any, ctx: tm.Context) -> int:
            return 1 << 70

        class NoText(tm.Abort):
            """Does not say what an abort says."""

            def __init__(self) -> None:
                pass

        class NoWords(Exception):
            """Can't be shown."""

            def __str__(self) -> str:
                raise ValueError

        @thing.function
        async def raises(self: Any, ctx: tm.Context, what: str) -> None:
            self.n = 50
            if what == "no text":
                raise NoText
            if what == "no words":
                raise NoWords
            if what == "no unicode":
                raise tm.Abort("\ud800")
            ctx.require(False, "\ud800")

        @thing.function
        async def catches(self: Any, ctx: tm.Context, what: str) -> str:
            with contextlib.suppress(Exception):
                await thing[self.id].raises(what)
            return "all is well"

        @thing.function
        async def slow(self: Any, ctx: tm.Context) -> None:
            while True:
                pass

        @thing.function
        async def hurries(self: Any, ctx: tm.Context) -> None:
            with contextlib.suppress(BaseException):
                await thing[self.id].slow()

        @thing.function
        async def draws(self: Any, ctx: tm.Context) -> list[float]:
            return [ctx.random(), await thing[self.id].draw(), ctx.random()]

        @thing.function
        async def draw(self: Any, ctx: tm.Context) -> float:
            return ctx.random()

        def elsewhere(ctx: tm.Context, id: int) -> None:
            ctx.emit(moved, id=id)

        @thing.function(emits=[moved])
        async def hidden(self: Any, ctx: tm.Context) -> None:
            elsewhere(ctx, self.id)

        @thing.function(role="clerk")
        async def guarded(self: Any, ctx: tm.Context) -> str:
            return "come in"

        @app.procedure
        def mixed(tx: Any, id: int) -> Any:
            return thing[id].adds(1).result()

        @app.procedure
        def announces(tx: Any, id: int) -> None:
            thing[id].tells()


WRONG = [
    ("deep", "calls are more than 100 deep in one another"),
    ("wide", "a transaction has at most 100000 calls"),
    ("strange", "TypeError: thing.strange returns what is no value of msgpack"),
    ("waits", "an async function awaits something that is not there yet"),
    ("typed", "TypeError: thing.adds: parameter 'n': "),
    ("unknown", "AttributeError: thing has no function 'nothing'; it has: make, deep"),
    ("peeks", "AttributeError: 'n' of another thing can't be read"),
    ("pokes", "AttributeError: 'n' of another thing can't be set"),
    ("blames", "ZeroDivisionError: division by zero"),
    ("gathers", "TypeError: gather takes calls"),
    ("forgets", "TypeError: a reply was used as the value in it: await it"),
    ("returns", "TypeError: thing.returns returns a reply, and not the value in it"),
    ("sums", "TypeError: thing.adds: parameter 'n': "),
    ("widens", "TypeError: thing.adds: parameter 'n': "),
    ("nulls", "TypeError: thing.adds: parameter 'n': "),
    ("grows", "TypeError: thing.huge returns what is no value of msgpack"),
]


@pytest.mark.parametrize(("name", "why"), WRONG)
def test_what_goes_wrong_in_a_call_aborts_all_of_it(name: str, why: str) -> None:
    odd = Odd()
    with odd.app.start() as mill:
        mill.call("thing.make", id=1)
        with pytest.raises(tm.Abort) as caught:
            mill.call(f"thing.{name}", id=1)
        assert why in caught.value.reason
        assert mill.table("thing").rows() == [{"id": 1, "n": 1}]
        # The rest goes on.
        mill.call("thing.touch", id=1)
        assert mill.call("thing.named", id=1) == 7


def test_entities_that_are_not_there() -> None:
    odd = Odd()
    with odd.app.start() as mill:
        with pytest.raises(tm.Abort, match=r"thing\[7\] does not exist"):
            mill.call("thing.touch", id=7)
        with pytest.raises(tm.ProgramError, match="can't be called"):
            mill.call("thing.nothing", id=7)
        with pytest.raises(tm.Error):
            mill.call("thing.adds", id=7, n="many")
        assert mill.table("thing").rows() == []


def test_procedures_call_functions_which_emit_for_each_other() -> None:
    odd = Odd()
    with odd.app.start() as mill:
        mill.call("thing.make", id=1)
        assert mill.call("mixed", id=1) == 3
        mill.call("thing.tells", id=1)
        assert mill.output("moved").rows() == [{"id": 1}]


@pytest.mark.parametrize("what", ["no text", "no words", "no unicode", "no reason"])
def test_nobody_catches_what_a_call_has_failed_with(what: str) -> None:
    odd = Odd()
    with odd.app.start() as mill:
        mill.call("thing.make", id=1)
        with pytest.raises(tm.Abort):
            mill.call("thing.catches", id=1, what=what)
        assert mill.table("thing").rows() == [{"id": 1, "n": 1}]


def test_a_deadline_holds_for_all_that_a_call_calls() -> None:
    odd = Odd()
    with odd.app.start(deadline_us=50_000) as mill:
        mill.call("thing.make", id=1)
        for name in ("slow", "hurries"):
            with pytest.raises(tm.Abort, match="took longer than 50000 microseconds"):
                mill.call(f"thing.{name}", id=1)


def test_chance_is_one_for_all_that_a_call_calls() -> None:
    odd = Odd()
    with odd.app.start(rerun_every=1) as mill:
        mill.call("thing.make", id=1)
        drawn = mill.call("thing.draws", id=1)
        assert len(set(drawn)) == 3
        assert mill.finish()["unstable"] == []


def test_streams_that_functions_emit_into() -> None:
    odd = Odd()
    with odd.app.start() as mill:
        mill.call("thing.make", id=1)
        mill.call("thing.hidden", id=1)
        mill.call("announces", id=1)
        assert mill.output("moved").rows() == [{"id": 1}, {"id": 1}]


def test_a_function_needs_its_role_over_http(tmp_path: Path) -> None:
    odd, tokens = Odd(), tmp_path / "tokens.toml"
    clerk, guest = write(tokens, "ann", ["clerk"]), write(tokens, "bob", [])
    with odd.app.start(http_port=0, http_tokens=tokens) as mill:
        mill.call("thing.make", id=1)
        assert mill.call("thing.guarded", id=1) == "come in"
        url = str(mill.url)
        assert tm.Client(url, token=clerk).call("thing.guarded", id=1) == "come in"
        with pytest.raises(tm.AccessError, match="bob may not use"):
            tm.Client(url, token=guest).call("thing.guarded", id=1)


def test_what_a_function_sets_in_the_decimal_context_is_gone() -> None:
    import decimal

    app = tm.App("sums")
    one = app.entity("one", key="id", id=int, third=tm.column(str, default=""))

    @one.function(creates=True)
    async def divide(self: Any, ctx: tm.Context, digits: int) -> str:
        if digits:
            decimal.getcontext().prec = digits
        self.third = str(decimal.Decimal(1) / 3)
        return str(self.third)

    with app.start(rerun_every=1, workers=1) as mill:
        assert mill.call(divide, id=1, digits=5) == "0.33333"
        assert mill.call(divide, id=1, digits=0) == "0." + "3" * 60
        assert mill.finish()["unstable"] == []


def test_what_a_function_keeps_is_over_with_its_transaction() -> None:
    app = tm.App("kept")
    one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))
    kept: list[Any] = []

    def smuggle(what: Any) -> None:
        kept.append(what)

    @one.function(creates=True)
    async def keep(self: Any, ctx: tm.Context) -> None:
        smuggle((self, ctx))
        self.n += 1

    @one.function(creates=True)
    async def use(self: Any, ctx: tm.Context) -> str:
        row, context = kept[-1]
        for use in (lambda: row.n, context.random, lambda: setattr(row, "n", 9)):
            with pytest.raises(RuntimeError, match="the transaction is over"):
                use()
        return "refused"

    with app.start(workers=1) as mill:
        for _ in range(3):
            mill.call(keep, id=1)
            assert mill.call(use, id=1) == "refused"
        assert mill.table("one").rows() == [{"id": 1, "n": 3}]


def test_triggers_call_functions() -> None:
    app = tm.App("audit")
    item = app.table("item", key="id", id=int, n=int)
    total = app.entity("total", key="id", id=int, n=tm.column(int, default=0))

    @total.function(creates=True)
    def add(self: Any, ctx: tm.Context, n: int) -> None:
        ctx.require(n < 10, "too many")
        self.n += n

    @app.trigger(item)
    def written(tx: Any, change: Any) -> None:
        total[0].add(change.new.n)

    @app.procedure
    def put(tx: Any, id: int, n: int) -> None:
        item.upsert(id=id, n=n)

    with app.start() as mill:
        mill.call(put, id=1, n=2)
        mill.call(put, id=2, n=3)
        with pytest.raises(tm.Abort, match="too many"):
            mill.call(put, id=3, n=30)
        assert mill.table("total").rows() == [{"id": 0, "n": 5}]
        assert len(mill.table("item").rows()) == 2


def test_outside_of_transactions_there_are_no_entities() -> None:
    odd = Odd()
    with pytest.raises(tm.ProgramError, match="outside a transaction"):
        odd.thing[1].touch()
    with pytest.raises(tm.ProgramError, match="outside a transaction"):
        odd.thing.create(id=1)
    with pytest.raises(TypeError, match="called on an entity"):
        odd.thing.functions["touch"]()


def test_a_traced_transaction_that_calls_becomes_a_function() -> None:
    odd = Odd()
    given = odd.app.stream("given", id=int)

    @odd.app.transaction(given)
    def pass_on(tx: Any, e: Any) -> None:
        odd.thing[e.id].touch()

    assert pass_on.path == "opaque"
    with odd.app.start() as mill:
        mill.call("thing.make", id=1)
        mill.send(given, [{"id": 1}, {"id": 2}])
        mill.drain()
        assert mill.table("thing").rows() == [{"id": 1, "n": 2}]
        assert mill.output(pass_on.aborted).rows() == [
            {"id": 2, "reason": "thing[2] does not exist"}
        ]


def test_create_delete_exists() -> None:
    app = tm.App("shop")
    item = app.entity("item", key=("shop", "id"), shop=str, id=int, left=int)

    @item.function(creates=True)
    async def supply(self: Any, ctx: tm.Context, n: int) -> list[bool]:
        one, other = item[self.shop, self.id], item[self.shop, self.id + 1]
        before = await one.exists()
        if not before:
            await item.create(shop=self.shop, id=self.id, left=n)
        await other.delete()
        return [before, await one.exists(), self.exists(), await other.exists()]

    with app.start() as mill:
        assert mill.call(supply, shop="a", id=2, n=1) == [False, True, True, False]
        assert mill.call(supply, shop="a", id=1, n=2) == [False, True, True, False]
        assert mill.call(supply, shop="a", id=1, n=3) == [True, True, True, False]
        assert mill.table("item").rows() == [{"shop": "a", "id": 1, "left": 2}]


def test_a_function_scans_its_partition() -> None:
    app = tm.App("shop")
    item = app.entity(
        "item", key=("shop", "id"), partition_prefix=1, ordered=True, shop=str, id=int, left=int
    )

    @item.function(creates=True)
    async def supply(self: Any, ctx: tm.Context, n: int) -> int:
        self.left = n
        return sum(row.left for row in item.scan((self.shop,)))

    @item.function(creates=True)
    async def strays(self: Any, ctx: tm.Context) -> None:
        item.scan(("other",))

    @app.procedure
    def peeks(tx: Any, id: int) -> None:
        item.scan()

    @item.function(creates=True)
    async def later(self: Any, ctx: tm.Context, limit: int) -> list[int]:
        behind = item.scan((self.shop, self.id), limit=limit)
        assert [row.id for row in item.scan((self.shop, 0), (self.shop, 2))] == [1]
        return [row.id for row in behind]

    with app.start() as mill:
        mill.call(supply, shop="b", id=1, n=100)
        mill.call(supply, shop="a", id=1, n=1)
        assert mill.call(supply, shop="a", id=2, n=2) == 3
        assert mill.call(supply, shop="a", id=3, n=4) == 7
        assert mill.call(later, shop="a", id=2, limit=9) == [2, 3]
        assert mill.call(later, shop="a", id=2, limit=1) == [2]
        with pytest.raises(tm.Abort, match="must begin and end with the partition of self"):
            mill.call(strays, shop="a", id=1)
        with pytest.raises(tm.Abort, match="only functions of item can scan item"):
            mill.call(peeks, id=1)


def test_hidden_chance_is_found_and_named() -> None:
    app = tm.App("chance")
    coin = app.entity("coin", key="id", id=int, side=tm.column(int, default=0))

    @coin.function(creates=True)
    async def toss(self: Any, ctx: tm.Context) -> None:
        self.side = random.getrandbits(62)

    with app.start(rerun_every=1) as mill:
        mill.call(toss, id=1)
        summary = mill.finish()
    assert [found["handler"] for found in summary["unstable"]] == ["coin.toss"]
