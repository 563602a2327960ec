"""The extras of a transaction: indexes, triggers, windows, random numbers, the clock."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .conftest import reference


def refused(define: Callable[[], object]) -> str:
    """Returns the error that refuses a declaration."""
    with pytest.raises(tm.ProgramError) as caught:
        define()
    return str(caught.value)


def same(app: tm.App, *sent: tuple[tm.Stream, list[dict[str, Any]]]) -> Any:
    """Returns the reference's results, which the engine must equal."""
    wanted = reference(app, *sent)
    for workers in (1, 2):
        with app.start(workers=workers) as mill:
            for stream, rows in sent:
                mill.send(stream, rows)
                mill.drain()
            mill.finish()
            for name, table in wanted.tables.items():
                assert list(mill.table(name).rows()) == table, name
            for stream in app.streams:
                if stream.origin != "input":
                    assert mill.output(stream).rows() == wanted.outputs.get(stream.name, [])
    return wanted


class People:
    """People by city and by mail."""

    def __init__(self) -> None:
        app = self.app = tm.App("people")
        people = self.people = app.table(
            "people", key="id", id=int, city=tm.optional(str), mail=str, n=tm.column(int, default=0)
        )
        by_city, by_mail = people.index("city", "n"), people.index("mail", unique=True)
        self.moves = app.stream("moves", id=int, city=tm.optional(str), mail=str)
        self.found = app.stream("found", city=str, ids=str)

        @app.transaction(self.moves)
        def move(tx, e):
            row = people[e.id]
            row.mail = e.mail
            row.city = e.city
            row.n += 1

        @app.procedure
        def look(tx, city: str):
            people[90].mail, people[90].city = "own", city
            return {
                "exact": [row.id for row in by_city[city, 1]],
                "city": [[row.id, row.n] for row in by_city[city]],
                "from": [row.id for row in by_city.scan(("A",), limit=2)],
                "until": [row.id for row in by_city.scan(None, (city,))],
                "mail": [row.id for row in by_mail["b"]],
            }

        self.move, self.look = move, look


def test_an_index_finds_rows_by_other_columns() -> None:
    app = People()
    assert app.move.path == "traced"
    rows = [
        {"id": 3, "city": "Rome", "mail": "a"},
        {"id": 1, "city": "Rome", "mail": "b"},
        {"id": 2, "city": "Bonn", "mail": "c"},
        {"id": 4, "city": None, "mail": "d"},
        {"id": 3, "city": "Rome", "mail": "a"},
        {"id": 5, "city": "Bonn", "mail": "b"},
    ]
    wanted = same(app.app, (app.moves, rows))
    assert wanted.outputs["move.aborted"][0]["reason"] == 'people.by_mail["b"] exists already'
    entries = wanted.tables["people.by_city_n"]
    assert [(row["city"], row["id"]) for row in entries] == [("Bonn", 2), ("Rome", 1), ("Rome", 3)]
    with app.app.start() as mill:
        mill.send(app.moves, rows)
        mill.drain()
        assert mill.call(app.look, city="Rome") == {
            "exact": [1],
            "city": [[90, 0], [1, 1], [3, 2]],
            "from": [2, 90],
            "until": [2],
            "mail": [1],
        }


def test_an_index_is_refused_where_it_can_not_be() -> None:
    app = tm.App("refused")
    table = app.table("t", key="id", id=int, tags=tm.list(int), name=str)
    assert "can't be indexed" in refused(lambda: table.index("tags"))
    assert "no column 'nam'" in refused(lambda: table.index("nam"))
    assert "names a column twice" in refused(lambda: table.index("name", "name"))
    entries = table.index("name").entries
    stream = app.stream("s", id=int, name=str)

    @app.transaction(stream)
    def write(tx, e):
        entries.upsert(name=e.name, id=e.id)

    assert "is kept by the engine" in refused(lambda: app.inspect())


def shop(changes: list[str]) -> tuple[tm.App, tm.Stream, tm.Stream]:
    app = tm.App("shop")
    stock = app.table("stock", key="item", item=int, left=int)
    log = app.table("log", key="n", n=int, kind=str, item=int, before=int, after=int)
    totals = app.table("totals", key="id", id=int, left=tm.column(int, default=0))
    orders, low = app.stream("orders", item=int, n=int), app.stream("low", item=int)

    @app.transaction(orders, opaque=True)
    def order(tx, e):
        row = stock[e.item]
        if not row.exists():
            stock.insert(item=e.item, left=10)
        row.left -= e.n
        if row.left == 0:
            row.delete()
        # It has not run yet.
        totals[1].left += totals[0].left

    @app.trigger(stock, changes=changes)
    def watch(tx, change):
        new, old = change.new, change.old
        before, after = old.left if old else 0, new.left if new else 0
        totals[0].left += after - before
        tx.require(after >= 0, "not enough")
        log.insert(
            n=sum(1 for _ in log_ids(log)), kind=change.kind, item=(new or old).item,
            before=before, after=after,
        )  # fmt: skip
        if after < 3:
            tx.emit(low, item=(new or old).item)

    return app, orders, low


def log_ids(log: tm.Table) -> Any:
    n = 0
    while log[n].exists():
        yield n
        n += 1


def test_a_trigger_on_a_table_sees_each_row_that_has_changed() -> None:
    app, orders, low = shop(["insert", "update", "delete"])
    rows = [{"item": 1, "n": 2}, {"item": 1, "n": 6}, {"item": 2, "n": 11}, {"item": 1, "n": 2}]
    wanted = same(app, (orders, rows))
    seen = [(r["kind"], r["item"], r["before"], r["after"]) for r in wanted.tables["log"]]
    assert seen == [("insert", 1, 0, 8), ("update", 1, 8, 2), ("delete", 1, 2, 0)]
    assert wanted.tables["totals"] == [{"id": 0, "left": 0}, {"id": 1, "left": 10}]
    assert wanted.outputs["order.aborted"] == [{"item": 2, "n": 11, "reason": "not enough"}]
    assert [row["item"] for row in wanted.outputs[low.name]] == [1, 1]


def test_a_trigger_is_set_off_by_traced_handlers_too() -> None:
    app = tm.App("traced")
    counts = app.table("counts", key="id", id=int, n=tm.column(int, default=0))
    total = app.table("total", key="id", id=int, n=tm.column(int, default=0))
    events = app.stream("events", id=int)
    seen = app.stream("seen", id=int, n=int)
    after = app.stream("after", n=int)

    @app.transaction(events)
    def count(tx, e):
        counts[e.id].n += 1
        tx.emit(seen, id=e.id, n=counts[e.id].n)

    @app.trigger(seen)
    def on_seen(tx, e):
        # Rows are as the transaction has left them until now.
        tx.require(counts[e.id].n == e.n < 3, "three is too many")
        tx.emit(after, n=e.n)

    @app.trigger(counts, changes=["update"])
    def on_counts(tx, change):
        total[0].n += change.new.n - change.old.n

    assert count.path == "traced"
    wanted = same(app, (events, [{"id": 1}, {"id": 1}, {"id": 1}, {"id": 2}]))
    assert wanted.tables["total"] == [{"id": 0, "n": 1}]
    assert wanted.outputs["after"] == [{"n": 1}, {"n": 2}, {"n": 1}]
    assert wanted.outputs["count.aborted"] == [{"id": 1, "reason": "three is too many"}]


def test_a_function_sees_what_its_triggers_have_written() -> None:
    app = tm.App("seen")
    rows = app.table("rows", key="id", id=int, n=tm.column(int, default=0))
    events, told = app.stream("events", id=int), app.stream("told", n=int)

    @app.transaction(events, out={"n": int}, opaque=True)
    def tell(tx, e):
        row = rows[e.id]
        row.n += 1
        tx.emit(told, n=row.n)
        row.n += 1
        return dict(n=row.n)

    @app.trigger(told)
    def double(tx, e):
        assert rows[1].n == e.n
        rows[1].n *= 10

    wanted = same(app, (events, [{"id": 1}, {"id": 1}]))
    assert [row["n"] for row in wanted.outputs["tell"]] == [11, 121]


def test_triggers_without_end_abort() -> None:
    app = tm.App("endless")
    rows = app.table("rows", key="id", id=int, n=tm.column(int, default=0))
    events = app.stream("events", id=int)

    @app.transaction(events)
    def begin(tx, e):
        rows[e.id].n += 1

    @app.trigger(rows)
    def again(tx, change):
        rows[0].n += 1

    wanted = same(app, (events, [{"id": 1}]))
    assert wanted.tables["rows"] == []
    assert "more than 128 deep, again" in wanted.outputs["begin.aborted"][0]["reason"]


def test_triggers_that_can_not_be_are_refused() -> None:
    app = tm.App("refused")
    table = app.table("t", key="id", id=int)
    one, two = app.stream("one", n=int), app.stream("two", n=int)
    fed = app.stream("fed", n=int)
    fed.push()

    def nothing(tx, e):
        pass

    assert "changes=['inserted']" in refused(
        lambda: app.trigger(table, changes=["inserted"])(nothing)
    )
    window = app.window("w", rows=2, n=int)
    for on, changes, why in (
        (window, ["update"], "give one of insert, slide"),
        (window, ["insert", "slide"], "give one of insert, slide"),
        (window, [], "give one of insert, slide"),
        (table, [], "give any of insert, update, delete"),
        (one, ["insert"], "a stream has no changes"),
    ):
        assert why in refused(lambda o=on, c=changes: app.trigger(o, changes=c)(nothing))
    app.windows.clear()
    assert "takes a stream, a table or a window" in refused(lambda: app.trigger("t"))

    @app.trigger(fed)
    def on_fed(tx, e):
        pass

    assert "not one that transactions emit into" in refused(lambda: app.inspect())
    app.triggers.clear()

    @app.trigger(one)
    def first(tx, e):
        tx.emit(two, n=e.n)

    @app.trigger(two)
    def second(tx, e):
        tx.emit(one, n=e.n)

    assert "trigger each other without end: first, second" in refused(lambda: app.inspect())

    def returns(tx, e):
        return {"n": 1}

    assert "a trigger has no output" in refused(lambda: app.trigger(one)(returns))


def test_a_window_by_count_belongs_to_one_procedure() -> None:
    app = tm.App("vote")
    votes = app.stream("votes", candidate=int, weight=tm.decimal(1))
    top = app.stream("top", candidate=int, rows=int, weight=tm.decimal(1), all=int)
    recent = app.window(
        "recent", rows=4, slide=2, group="candidate", sums=["weight"],
        candidate=int, weight=tm.decimal(1),
    )  # fmt: skip

    @app.procedure(votes, owns=[recent])
    def count(tx, votes):
        for vote in votes:
            recent.insert(candidate=vote.candidate, weight=vote.weight)
        tx.require(recent[9].rows < 2, "nine leads")

    @app.trigger(recent)
    def lead(tx, slide):
        best = max(recent.groups(), key=lambda group: (group.rows, -group.candidate))
        assert slide.rows == len(recent.rows()) == 4
        tx.emit(top, candidate=best.candidate, rows=best.rows, weight=best.weight, all=slide.added)

    @app.transaction(top, opaque=True)
    def spy(tx, e):
        tx.require(e.candidate != 3)
        recent.rows()

    cast = [{"candidate": c, "weight": c} for c in (1, 2, 2, 1, 2, 9, 3, 3, 9, 9)]
    wanted = same(app, (votes, cast))
    found = [(r["candidate"], r["rows"], str(r["weight"]), r["all"]) for r in wanted.outputs["top"]]
    # The last vote but one is the ninth accepted; the tenth would let nine lead.
    assert found == [(1, 2, "2.0", 4), (2, 2, "4.0", 2), (3, 2, "6.0", 2)]
    assert [row["reason"] for row in wanted.outputs["count.aborted"]] == ["nine leads"]
    reasons = {row["reason"] for row in wanted.outputs["spy.aborted"]}
    assert reasons == {"window recent belongs to count", "refused"}


def test_a_window_by_time_slides_at_multiples() -> None:
    app = tm.App("minutes")
    events = app.stream("events", time="at", at=tm.timestamp, n=int)
    ends = app.stream("ends", end=int, rows=int, n=int)
    minute = app.window("minute", time="60s", slide="30s", sums=["n"], n=int)

    @app.transaction(events, opaque=True, owns=minute)
    def gather(tx, e):
        if e.n < 0:
            minute.advance()
        else:
            minute.insert(n=e.n)

    @app.trigger(minute)
    def end(tx, slide):
        tx.emit(ends, end=slide.end // 1_000_000, rows=slide.rows, n=minute[None].n)

    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    given = [(10, 1), (20, 2), (40, 4), (95, -1), (100, 8), (500, 16)]
    rows = [{"at": start + dt.timedelta(seconds=at), "n": n} for at, n in given]
    wanted = same(app, (events, rows))
    found = [(row["end"], row["rows"], row["n"]) for row in wanted.outputs["ends"]]
    assert found == [
        (30, 2, 3), (60, 3, 7), (90, 1, 4), (120, 1, 8), (150, 1, 8), (180, 0, 0),
        # With the end of input.
        (510, 1, 16), (540, 1, 16),
    ]  # fmt: skip


def test_aggregates_go_along_with_a_window(tmp_path: Path) -> None:
    app = tm.App("prices")
    offers = app.stream("offers", shop=str, price=tm.optional(tm.decimal(2)), note=str)
    columns = dict(
        shop=str, rows=int, price=tm.decimal(2), low=tm.optional(tm.decimal(2)),
        high=tm.optional(tm.decimal(2)), mean=tm.optional(tm.decimal(2)), priced=int, all=int,
        first=tm.optional(str), last=tm.optional(str), top=tm.optional(str),
    )  # fmt: skip
    shops = app.stream("shops", **columns)
    recent = app.window(
        "recent", rows=4, slide=1, group="shop", sums=["price"],
        aggregates=lambda rows: dict(
            low=rows.price.min(), high=rows["price"].max(), mean=rows.price.avg(),
            priced=rows.price.count(), all=rows.count(), first=rows.note.first(),
            last=rows.note.last(), top=rows.note.max(),
        ),
        shop=str, price=tm.optional(tm.decimal(2)), note=str,
    )  # fmt: skip

    @app.procedure(offers, owns=recent)
    def gather(tx, offers):
        for offer in offers:
            recent.insert(shop=offer.shop, price=offer.price, note=offer.note)
        for shop in "ab":
            tx.emit(shops, **{name: recent[shop][name] for name in columns})

    given = ["a 1.00 z", "b 5.00 c", "a - x", "a 0.50 y", "a 0.25 x", "b - a", "b - b", "b - a"]
    rows = [offer.split() for offer in given]
    cast = [{"shop": s, "price": None if p == "-" else Decimal(p), "note": n} for s, p, n in rows]
    wanted = same(app, (offers, cast))
    found = wanted.outputs["shops"]

    def words(row: dict[str, Any]) -> str:
        return " ".join("-" if value is None else str(value) for value in row.values())

    assert [words(row) for row in found[6:10]] == [
        "a 3 1.50 0.50 1.00 0.75 2 3 z y z",
        "b 1 5.00 5.00 5.00 5.00 1 1 c c c",
        "a 3 0.75 0.25 0.50 0.38 2 3 x x y",
        "b 1 5.00 5.00 5.00 5.00 1 1 c c c",
    ]
    assert [words(row) for row in found[-2:]] == [
        "a 1 0.25 0.25 0.25 0.25 1 1 x x x",
        "b 3 0.00 - - - 0 3 a a b",
    ]
    # It is there again after a snapshot.
    folder = str(tmp_path / "data")
    for part in (cast[:5], cast[5:]):
        with app.start(data_dir=folder) as mill:
            mill.send(offers, part, wait=True)
            last = mill.output(shops).rows()
    assert last == found[10:]


def test_aggregates_that_can_not_go_along_are_refused() -> None:
    app = tm.App("refused")

    def refused_with(aggregates: Any = None, **given: Any) -> str:
        def define() -> None:
            app.window("w", rows=2, aggregates=aggregates, n=int, f=float, s=str, x=tm.any, **given)

        said = refused(define)
        assert "test_inside.py:" in said
        return said

    assert "no column 'm'" in refused_with(lambda rows: {"a": rows.m.min()})
    assert "column 's' of window w is str: it has no sum" in refused_with(sums=["s"])
    assert "it has no mean" in refused_with(lambda rows: {"a": rows.s.avg()})
    assert "it has no order" in refused_with(lambda rows: {"a": rows.x.max()})
    assert "whose sums are not exact" in refused_with(lambda rows: {"a": rows.f.avg()})
    assert "write aggregates=lambda rows" in refused_with(lambda rows: {"a": 3})
    assert "write aggregates=lambda rows" in refused_with({"a": "min"})
    assert "write aggregates=lambda rows" in refused_with(lambda rows: rows.n.min())
    assert "it can't remove a row that leaves" in refused_with(
        lambda rows: {"a": rows.fold(0, lambda state, row: state + row.n)}
    )
    assert "the name 'rows' is taken" in refused_with(lambda rows: {"rows": rows.n.min()})
    assert "two columns named 'n'" in refused_with(lambda rows: {"n": rows.n.min()}, group="n")
    assert "two columns named 'n'" in refused_with(lambda rows: {"n": rows.n.min()}, sums=["n"])
    assert "can't be grouped by 'x'" in refused_with(group="x")


def test_a_trigger_runs_for_each_row_that_comes_into_a_window() -> None:
    app = tm.App("inserts")
    votes = app.stream("votes", candidate=int)
    said = app.stream("said", what=str, candidate=int, active=int)
    recent = app.window("recent", rows=2, slide=2, candidate=int)
    totals = app.table("totals", key="id", id=int, votes=tm.column(int, default=0))

    @app.procedure(votes, owns=[recent])
    def count(tx, votes):
        for vote in votes:
            recent.insert(candidate=vote.candidate)
            # The trigger's effect is visible at once.
            tx.require(totals[vote.candidate].votes > 0)

    @app.trigger(recent, changes=["insert"])
    def comes(tx, row):
        tx.require(row.candidate != 7, "seven is nobody")
        totals[row.candidate].votes += 1
        tx.emit(said, what="comes", candidate=row.candidate, active=len(recent.rows()))
        if row.candidate == 8:
            recent.insert(candidate=1)

    @app.trigger(recent)
    def slides(tx, slide):
        tx.emit(said, what="slides", candidate=0, active=slide.rows)

    cast = [{"candidate": c} for c in (1, 2, 7, 1, 8, 2)]
    wanted = same(app, (votes, cast))
    found = [(row["what"], row["candidate"], row["active"]) for row in wanted.outputs["said"]]
    # A row that slides the window is not active when it comes, and one that was refused has left
    # nothing.
    assert found == [
        ("comes", 1, 0),
        ("comes", 2, 0),
        ("slides", 0, 2),
        ("comes", 1, 2),
        ("comes", 2, 2),
        ("slides", 0, 2),
    ]
    reasons = [row["reason"] for row in wanted.outputs["count.aborted"]]
    assert reasons[0] == "seven is nobody"
    assert "its triggers can't put rows into it" in reasons[1]


def test_windows_that_can_not_be_are_refused() -> None:
    app = tm.App("refused")
    assert "either rows= or time=" in refused(lambda: app.window("w", n=int))
    assert "a slide is at least 1" in refused(lambda: app.window("w", rows=2, slide=3, n=int))
    assert "not a number of rows" in refused(lambda: app.window("w", rows="2s", n=int))
    assert "no column 'm'" in refused(lambda: app.window("w", rows=2, group="m", n=int))
    window = app.window("w", rows=2, n=int)
    assert "has no owner" in refused(lambda: app.inspect())
    events = app.stream("events", n=int)

    @app.transaction(events, opaque=True, owns=[window])
    def one(tx, e):
        window.insert(n=e.n)

    def two(tx, e):
        pass

    decorate = app.transaction(events, opaque=True, owns=[window])
    assert "belongs to one, so two can't own it" in refused(lambda: decorate(two))


def test_random_numbers_and_the_clock_are_the_same_whenever_they_are_asked_for() -> None:
    app = tm.App("random", seed=7)
    rows = app.table("rows", key="id", id=int, r=float, u=str, at=tm.timestamp)
    events = app.stream("events", id=int)

    @app.transaction(events)
    def draw(tx, e):
        rows.upsert(id=e.id, r=tx.random(), u=str(tx.uuid()), at=tx.now())

    assert draw.path == "opaque"
    assert "random numbers are for functions" in draw.why
    found = []
    for _ in range(2):
        before = dt.datetime.now(dt.UTC)
        with app.start() as mill:
            mill.send(events, [{"id": 1}, {"id": 2}])
            mill.drain()
            table = list(mill.table("rows").rows())
        assert all(before <= row["at"] <= dt.datetime.now(dt.UTC) for row in table)
        found.append([(row["r"], row["u"]) for row in table])
    assert found[0] == found[1]
    assert all(0 <= r < 1 and uuid.UUID(u).version == 8 for r, u in found[0])
    assert len({value for row in found[0] for value in row}) == 4
    assert "a seed is an int" in refused(lambda: tm.App("x", seed=-1))


def test_batches_are_of_so_many_events_or_of_an_interval() -> None:
    app = tm.App("batches")
    ticks = app.stream("ticks", time="at", at=tm.timestamp, n=int)
    by_time = ticks.filter(tm.col("n") >= 0, name="by_time").batches("10s")
    by_count = ticks.filter(tm.col("n") != 5, name="by_count").batches(3)
    seen = app.table("seen", key="id", id=int, n=tm.column(int, default=0))

    @app.transaction(ticks)
    def each(tx, e):
        seen[0].n += 1

    @app.procedure(by_time, by_count, out={"timed": str, "counted": str, "seen": int})
    def gather(tx, timed, counted):
        text = [" ".join(str(e.n) for e in events) for events in (timed, counted)]
        return {"timed": text[0], "counted": text[1], "seen": seen[0].n}

    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    at = [1, 2, 9, 10, 15, 30, 31, 32]
    rows = [{"at": start + dt.timedelta(seconds=s), "n": n} for n, s in enumerate(at)]
    for size in (1, 3, 8):
        with app.start() as mill:
            for first in range(0, len(rows), size):
                mill.send(ticks, rows[first : first + size])
                mill.drain()
            mill.finish()
            found = [tuple(row.values()) for row in mill.output(gather).rows()]
        # A batch has its last event's place, where the events before it have been taken one by one.
        assert found == [
            ("0 1 2", "0 1 2", 3),
            ("3 4", "", 5),
            ("", "3 4 6", 7),
            ("5 6 7", "", 8),
            # At the end of the stream, the rows left over by count follow all others.
            ("", "7", 8),
        ]


def test_a_batch_in_arrival_time_closes_when_its_time_has_passed() -> None:
    app = tm.App("arrival")
    ticks = app.stream("ticks", n=int).batches("200ms")

    @app.procedure(ticks, out={"n": int})
    def gather(tx, ticks):
        return {"n": len(ticks)}

    with app.start() as mill:
        mill.send(ticks, [{"n": 1}, {"n": 2}])
        for _ in range(100):
            mill.drain()
            if found := mill.output(gather).rows():
                break
            time.sleep(0.05)
        assert found == [{"n": 2}]
        mill.send(ticks, [{"n": 3}])
        mill.finish()
        assert mill.output(gather).rows() == [{"n": 2}, {"n": 1}]


def test_batches_that_can_not_be_are_refused() -> None:
    app = tm.App("refused")
    stream = app.stream("s", n=int)
    assert "has no events" in refused(lambda: stream.batches(0))
    assert "batches" in refused(lambda: stream.batches("soon"))
    stream.batches(2_000_000)
    assert "1 to 1000000 events" in refused(lambda: app.inspect())
    stream.batches(2)

    @app.transaction(stream)
    def each(tx, e):
        pass

    assert "each takes each event by itself" in refused(lambda: app.inspect())


def test_the_clock_calls_functions_and_a_restart_goes_on(tmp_path: Path) -> None:
    def made() -> tuple[tm.App, tm.Table, tm.Stream]:
        app = tm.App("clock")
        fired = app.table("fired", key="n", n=int, at=tm.timestamp)
        counts = app.table("counts", key="id", id=int, n=tm.column(int, default=0))
        events = app.stream("events", id=int)

        @app.every("50ms")
        def tick(tx, firing):
            fired.insert(n=counts[0].n, at=firing.at)
            counts[0].n += 1

        @app.transaction(events)
        def count(tx, e):
            counts[e.id].n += 1

        return app, fired, events

    def wait(mill: tm.Mill, rows: int) -> list[dict[str, Any]]:
        for _ in range(400):
            found = list(mill.table("fired").rows())
            if len(found) >= rows:
                return found
            time.sleep(0.02)
        raise AssertionError(f"only {found}")

    with made()[0].start(data_dir=tmp_path / "data") as mill:
        before = wait(mill, 3)
        mill.stop()
    app, _, events = made()
    with app.start(data_dir=tmp_path / "data") as mill:
        mill.send(events, [{"id": 1}])
        found = wait(mill, len(before) + 2)
        assert found[: len(before)] == before
        times = [row["at"] for row in found]
        assert times == sorted(set(times))
        assert all(at.microsecond % 50_000 == 0 for at in times)
        # A source without an end does not keep the others from ending.
        assert mill.finish()["events"] >= 1


def test_a_timer_does_not_keep_a_run_over_files_from_ending(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\n1\n2\n")
    app = tm.App("files")
    events = app.stream("events", id=int)
    events.read(tm.files(str(tmp_path / "in.csv")))
    seen = app.table("seen", key="id", id=int)

    @app.transaction(events)
    def see(tx, e):
        seen.insert(id=e.id)

    @app.every("10ms")
    def tick(tx, firing):
        pass

    with app.start() as mill:
        for _ in range(500):
            if mill.wait(0.02):
                break
        assert mill.status()["ended"]
        assert len(list(mill.table("seen").rows())) == 2


def test_timers_that_can_not_be_are_refused() -> None:
    app = tm.App("refused")
    assert "a millisecond is the shortest" in refused(lambda: app.every("10us"))
    assert "every" in refused(lambda: app.every("often"))


def test_an_upgrade_makes_indexes_anew_and_begins_changed_windows_anew(tmp_path: Path) -> None:
    def made(rows: int, *, unique: bool = False, city: str = "city") -> tuple[tm.App, Any, Any]:
        app = tm.App("people")
        people = app.table("people", key="id", schema={"id": int, city: str})
        moves = app.stream("moves", id=int, city=str)
        recent = app.window("recent", rows=rows, slide=1, id=int)

        @app.transaction(moves, opaque=True, owns=[recent])
        def move(tx, e):
            people.upsert({"id": e.id, city: e.city})
            recent.insert(id=e.id)

        if rows < 2:
            return app, moves, None
        index = people.index(city, unique=unique)

        @app.procedure
        def look(tx, city: str):
            return [row.id for row in index[city]]

        return app, moves, look

    settings: dict[str, Any] = {"data_dir": tmp_path / "data"}
    app, moves, _ = made(1)
    with app.start(**settings) as mill:
        mill.send(moves, [{"id": n, "city": "ab"[n % 2]} for n in range(5)])
        mill.drain()
        mill.stop()
    app, *_ = made(2, unique=True)
    with pytest.raises(tm.SettingError, match=r"people.by_city is unique, and two rows have \"a\""):
        app.start(upgrade="lossy", **settings)
    app, *_ = made(2)
    with pytest.raises(tm.SettingError, match=r"recent\.rows"):
        app.start(upgrade=True, **settings)
    app, moves, look = made(2)
    with app.start(upgrade="lossy", **settings) as mill:
        assert mill.call(look, city="b") == [1, 3]
        mill.send(moves, [{"id": 7, "city": "b"}])
        assert mill.call(look, city="b") == [1, 3, 7]
        assert list(mill.table("recent.groups").rows()) == []
        mill.stop()
    app, moves, look = made(2, city="town")
    renames = {"people.city": "people.town"}
    with app.start(upgrade=True, renames=renames, **settings) as mill:
        assert mill.call(look, city="b") == [1, 3, 7]
        assert next(iter(mill.table("people.by_town").rows())) == {"town": "a", "id": 0}
