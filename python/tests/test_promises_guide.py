"""The promises of the guide: order, faults, triggers, indexes, calls, files, settings."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill import config

REFERENCE = (Path(__file__).parents[2] / "docs/reference/settings.md").read_text()


def settings_of_the_reference() -> dict[str, str]:
    """The settings of one process, with the defaults that the reference shows."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", REFERENCE, re.M)
    return {name: default for name, default in rows if name in config.SETTINGS}


def value_of(default: str) -> object:
    """The value that the reference means."""
    default = default.split("; `tidemill run`")[0].split(" (")[0].replace("`", "")
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "hours": 3_600_000_000}
    if number := re.fullmatch(r"([\d,]+)(?: (\w+))?", default):
        return int(number[1].replace(",", "")) * units.get(number[2], 1)
    return {"none": None, "true": True, "false": False}.get(default, default)


def test_settings_and_their_defaults_are_those_of_the_reference() -> None:
    told = settings_of_the_reference()
    assert set(told) == set(config.SETTINGS)
    app = tm.App("defaults")
    app.table("t", key="id", id=int)
    settings = app.inspect()["settings"]
    # Nothing is said there until it is used: ten seconds.
    assert settings.pop("deadline_us") is None
    assert told.pop("deadline_us") == "10,000,000"
    # They depend on each other.
    for name in ("log", "log_format", "log_to"):
        assert settings.pop(name) is None
        assert " with `log" in told.pop(name)
    # It is another one in commands.
    assert settings.pop("on_fault") == "abort"
    assert told.pop("on_fault").startswith("`abort`")
    for name, default in told.items():
        found = None if settings[name] == {} else settings[name]
        assert (found, type(found)) == (value_of(default), type(value_of(default))), name


def kept(mill: tm.Mill, stream: Any) -> list[list[Any]]:
    """The events of a stream, without their names."""
    return [list(row.values()) for row in mill.output(stream).rows()]


def test_handlers_that_feed_each_other_are_refused() -> None:
    app = tm.App("cycle")
    first, second = app.stream("first", n=int), app.stream("second", n=int)

    @app.transaction(first)
    def there(tx: Any, e: Any) -> None:
        tx.emit(second, n=e.n)

    @app.transaction(second)
    def back(tx: Any, e: Any) -> None:
        tx.emit(first, n=e.n)

    with pytest.raises(tm.ProgramError, match=r"without end: there -> back|without end: back"):
        app.start()


def test_what_an_event_sets_off_is_before_the_next_one_depth_first() -> None:
    app = tm.App("depth")
    log = app.table("log", key="id", id=int, said=tm.column(str, default=""))
    start = app.stream("start", n=str)
    left, right = app.stream("left", n=str), app.stream("right", n=str)
    below = app.stream("below", n=str)

    @app.transaction(start)
    def begin(tx: Any, e: Any) -> None:
        log[0].said += "begin" + e.n + " "
        tx.emit(left, n=e.n)
        tx.emit(right, n=e.n)

    @app.transaction(left)
    def of_left(tx: Any, e: Any) -> None:
        log[0].said += "left" + e.n + " "
        tx.emit(below, n=e.n)

    @app.transaction(right)
    def of_right(tx: Any, e: Any) -> None:
        log[0].said += "right" + e.n + " "
        # Each part is a transaction of its own: the rest stays.
        tx.require(e.n != "1", "no")

    @app.transaction(below)
    def of_below(tx: Any, e: Any) -> None:
        log[0].said += "below" + e.n + " "

    @app.transaction(start)
    def last(tx: Any, e: Any) -> None:
        log[0].said += "last" + e.n + " "

    for settings in ({"workers": 1}, {"workers": 2, "epoch_rows_max": 1}):
        with app.start(**settings) as mill:
            mill.send(start, [{"n": "1"}, {"n": "2"}])
            mill.drain()
            said = mill.table(log)[0]["said"]
            assert said == "begin1 left1 below1 last1 begin2 left2 below2 right2 last2 "
            assert kept(mill, of_right.aborted) == [["1", "no"]]


def test_of_two_procedures_the_one_declared_first_comes_first() -> None:
    app = tm.App("first")
    log = app.table("log", key="id", id=int, said=tm.column(str, default=""))
    numbers = app.stream("numbers", n=int)
    made = app.stream("made", n=int)

    @app.procedure(made)
    def takes(tx: Any, made: Any) -> None:
        log[0].said += f"takes{len(made)} "

    @app.procedure(numbers)
    def one(tx: Any, numbers: Any) -> None:
        log[0].said += "one "
        tx.emit(made, n=1)

    @app.procedure(numbers)
    def two(tx: Any, numbers: Any) -> None:
        log[0].said += "two "
        tx.emit(made, n=2)

    @app.procedure(numbers)
    def three(tx: Any, numbers: Any) -> None:
        log[0].said += "three "

    with app.start() as mill:
        mill.send(numbers, [{"n": 1}, {"n": 2}])
        mill.drain()
        said = mill.table(log)[0]["said"].split()
    assert said[: len(said) // 2] == said[len(said) // 2 :]
    of_a_round = said[: len(said) // 2]
    assert [name for name in of_a_round if name != "takes2"] == ["one", "two", "three"]
    assert of_a_round.index("takes2") > of_a_round.index("two")


@pytest.mark.parametrize("opaque", [False, True], ids=["traced", "opaque"])
def test_a_trigger_runs_once_for_each_row_that_is_another_then(opaque: bool) -> None:
    app = tm.App("once")
    rows = app.table("rows", key="id", id=int, n=tm.column(int, default=0))
    start, told = app.stream("start", n=int), app.stream("told", what=str)

    @app.transaction(start, opaque=opaque)
    def write(tx: Any, e: Any) -> None:
        rows[1].n = 5
        rows[2].n = 7
        # This one is then what it was.
        rows[3].n += 1
        rows[3].n -= 1
        # Of this one nothing is left.
        rows.insert(id=4, n=1)
        rows[4].delete()
        rows[1].n = 6
        # A row that is deleted and inserted again is a different row of the same key.
        rows[5].delete()
        rows.upsert(id=5, n=9)
        rows[6].delete()

    @app.trigger(rows)
    def change(tx: Any, change: Any) -> None:
        old, new = (row.n if row else None for row in (change.old, change.new))
        tx.emit(told, what=f"{change.kind} {(change.new or change.old).id} {old} {new}")

    @app.procedure
    def fill(tx: Any) -> None:
        for id in (3, 5, 6):
            rows.insert(id=id, n=id)

    with app.start() as mill:
        mill.call(fill)
        before = len(mill.output(told))
        mill.send(start, [{"n": 1}])
        mill.drain()
        assert mill.output(write.aborted).rows() == []
        assert [row["what"] for row in mill.output(told).rows()[before:]] == [
            "insert 1 None 6",
            "insert 2 None 7",
            "update 5 5 9",
            "delete 6 6 None",
        ]


def test_rows_with_a_null_are_not_found_by_an_index() -> None:
    app = tm.App("nulls")
    people = app.table("people", key="id", id=int, city=tm.optional(str), n=tm.optional(int))
    by_city = people.index("city", "n")
    by_n = people.index("n", unique=True)

    @app.procedure
    def put(tx: Any, id: int, city: str | None = None, n: int | None = None) -> None:
        people.upsert(id=id, city=city, n=n)

    @app.procedure
    def look(tx: Any) -> Any:
        return {
            "all": [row.id for row in by_city.scan()],
            "bonn": [row.id for row in by_city["Bonn"]],
            "until": [row.id for row in by_city.scan(None, ("Bonn", 5))],
            "limit": [row.id for row in by_city.scan(("Bonn",), limit=1)],
            "n": [row.id for row in by_n.scan()],
        }

    with app.start() as mill:
        mill.call(put, id=1, city="Bonn", n=4)
        mill.call(put, id=2, city="Bonn", n=5)
        mill.call(put, id=3, city="Bonn")
        mill.call(put, id=4, n=6)
        # Two nulls are no two of one.
        mill.call(put, id=5)
        mill.call(put, id=6)
        found = mill.call(look)
        assert found == {"all": [1, 2], "bonn": [1, 2], "until": [1], "limit": [1], "n": [1, 2, 4]}
        mill.call(put, id=2)
        assert mill.call(look)["all"] == [1]
        assert len(mill.table("people.by_city_n").rows()) == 1


def test_two_rows_swap_what_is_unique_by_way_of_a_third() -> None:
    app = tm.App("swap")
    people = app.table("people", key="id", id=int, mail=str)
    by_mail = people.index("mail", unique=True)
    swaps = app.stream("swaps", how=str)

    @app.procedure
    def fill(tx: Any) -> None:
        people.insert(id=1, mail="a")
        people.insert(id=2, mail="b")

    @app.transaction(swaps, opaque=True)
    def swap(tx: Any, e: Any) -> None:
        one, two = people[1], people[2]
        if e.how == "at once":
            one.mail = "b"
            two.mail = "a"
        elif e.how == "third":
            one.mail = "c"
            two.mail = "a"
            one.mail = "b"
        elif e.how == "deleted":
            one.delete()
            two.mail = "b" if two.mail == "a" else "a"

    with app.start() as mill:
        mill.call(fill)
        mill.send(swaps, [{"how": how} for how in ("at once", "third", "deleted")])
        mill.drain()
        assert kept(mill, swap.aborted) == [["at once", 'people.by_mail["b"] exists already']]
        assert mill.table(people).rows() == [{"id": 2, "mail": "b"}]
        assert mill.table(by_mail.entries).rows() == [{"mail": "b", "id": 2}]


def test_what_can_not_be_computed_goes_to_the_dead_events_of_the_derived_stream() -> None:
    app = tm.App("dead")
    events = app.stream("events", n=int)
    large = events.filter(10 // tm.col("n") > 1, name="large")
    doubled = events.map(name="doubled", n=tm.col("n") * 2**62)
    seen = app.table("seen", key="n", n=int)

    @app.transaction(large)
    def see(tx: Any, e: Any) -> None:
        seen.insert(n=e.n)

    @app.transaction(doubled)
    def double(tx: Any, e: Any) -> None:
        seen.insert(n=e.n)

    with app.start() as mill:
        mill.send(events, [{"n": n} for n in (0, 1, 2, 20)])
        mill.drain()
        assert [row["n"] for row in mill.table(seen).rows()] == [0, 1, 2, 2**62]
        assert [row["reason"] for row in mill.output(large.dead).rows()] == ["division by zero"]
        assert [row["reason"] for row in mill.output(doubled.dead).rows()] == ["overflow"] * 2
        assert mill.output(events.dead).rows() == []


def test_late_rows_are_late_by_all_rows_of_their_source() -> None:
    app = tm.App("late")
    events = app.stream("events", time="at", at=int, n=int)
    small = events.filter(tm.col("n") < 10, name="small")
    seen = app.table("seen", key="n", n=int)

    @app.transaction(small)
    def see(tx: Any, e: Any) -> None:
        seen.insert(n=e.n)

    # The row that makes the last one late is taken away by the filter.
    rows = [{"at": 5, "n": 1}, {"at": 20, "n": 10}, {"at": 20, "n": 2}, {"at": 19, "n": 3}]
    for settings in ({"epoch_rows_max": 1}, {"epoch_rows_max": 100}):
        with app.start(**settings) as mill:
            mill.send(events, rows)
            mill.finish()
            assert [row["n"] for row in mill.table(seen).rows()] == [1, 2]
            assert [row["n"] for row in mill.output(events.late).rows()] == [3]


def test_a_late_row_that_is_admitted_stands_where_its_source_stood() -> None:
    app = tm.App("admitted")
    events = app.stream("events", time="at", late="admit", at=int, n=int)
    table = app.table("t", key="id", id=int, n=tm.column(int, default=0), history=(100, 1))

    @app.transaction(events)
    def take(tx: Any, e: Any) -> dict[str, Any]:
        table[0].n = e.n
        return {"at": e.at, "n": table[0].over(tm.sliding(5)).n.sum()}

    with app.start() as mill:
        mill.send(events, [{"at": 20, "n": 1}, {"at": 3, "n": 2}, {"at": 25, "n": 4}])
        mill.finish()
        # Its version has the time 20, which (20, 25] leaves out.
        assert kept(mill, take) == [[20, 1], [3, 3], [25, 4]]
        assert mill.output(events.late).rows() == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"time": "at", "late": "admit"}, 'late="admit", and no late rows'),
        ({"time": "at", "late": "error"}, 'late="error", and no late rows'),
        ({}, "no event time, and no late rows"),
    ],
)
def test_late_rows_that_never_come_are_not_written(
    options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    app = tm.App("never")
    events = app.stream("events", **options, at=int, n=int)
    few = events.filter(tm.col("n") < 3).map(n=tm.col("n"))
    for stream in (events, few):
        with pytest.raises(tm.ProgramError) as caught:
            stream.late.write(tm.files(tmp_path / "late.csv"))
        assert f"stream events has {why}, so nothing would ever be written" in caught.value.what
        assert caught.value.help
        assert "test_promises_guide.py" in str(caught.value)
    assert app.sinks == []
    # A retained stream of late events is empty.
    events.late.keep()
    with app.start() as mill:
        mill.finish()
        assert mill.output(events.late).rows() == []


def test_the_reason_of_a_fault_has_neither_file_nor_line() -> None:
    app = tm.App("faults")
    events = app.stream("events", n=int)
    kinds = [ValueError, KeyError, TypeError, IndexError, LookupError, OSError, RuntimeError]

    @app.transaction(events, opaque=True)
    def fail(tx: Any, e: Any) -> None:
        raise kinds[e.n](f"number {e.n * 1000 + 7} of {e.n}")

    with app.start() as mill:
        mill.send(events, [{"n": n} for n in (0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 6)])
        mill.drain()
        reasons = [row["reason"] for row in mill.output(fail.aborted).rows()]
        assert all(reason.startswith("fault: ") for reason in reasons)
        assert not any(".py" in reason or " line " in reason for reason in reasons)
        summary = mill.finish()
    assert summary["faults"] == 13
    # The five commonest, each with its line.
    assert [found["count"] for found in summary["reasons"]] == [4, 3, 2, 1, 1]
    assert all("test_promises_guide.py:" in found["at"] for found in summary["reasons"])


def test_numbers_do_not_tell_reasons_apart_in_the_summary() -> None:
    app = tm.App("numbers")
    events = app.stream("events", n=int)

    @app.transaction(events, opaque=True)
    def refuse(tx: Any, e: Any) -> None:
        raise tm.Abort(f"only {e.n} are left of {e.n * 7}")

    with app.start() as mill:
        mill.send(events, [{"n": n} for n in range(9)])
        mill.drain()
        assert len({row["reason"] for row in mill.output(refuse.aborted).rows()}) == 9
        [reason] = mill.finish()["reasons"]
    assert reason["count"] == 9


def test_what_is_finished_takes_no_more(tmp_path: Path) -> None:
    app = tm.App("finished")
    table = app.table("t", key="n", n=int)
    events = app.stream("events", n=int)

    @app.transaction(events)
    def put(tx: Any, e: Any) -> None:
        table.upsert(n=e.n)

    with app.start(data_dir=tmp_path / "data") as mill:
        mill.send(events, [{"n": 1}], wait=True)
        assert mill.sent(events) == 1
        mill.finish()
    with app.start(data_dir=tmp_path / "data") as mill:
        assert mill.sent(events) == 1
        with pytest.raises(tm.Error):
            mill.send(events, [{"n": 2}], wait=True)
        assert mill.table(table).rows() == [{"n": 1}]


def edited(tmp_path: Path, text: str) -> tm.App:
    """An app of a file, as a source that somebody edits has it."""
    file = tmp_path / "app.py"
    file.write_text(text)
    scope: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), scope)
    app = scope["app"]
    assert isinstance(app, tm.App)
    return app


SOURCE = """
import tidemill as tm

app = tm.App("edited")
t = app.table("t", key="n", n=int, m=tm.column(int, default=0))
events = app.stream("events", n=int)


@app.transaction(events, opaque=True)
def put(tx, e):
    t.upsert(n=e.n, m=1)


@app.transaction(events)
def count(tx, e):
    t[0].m += 1
"""


@pytest.mark.parametrize(
    ("edit", "is_refused"),
    [
        (lambda text: text.replace("\n\n\n", "\n\n# A comment.\n\n\n"), False),
        (lambda text: text.replace("m=1", "m=2"), False),
        (lambda text: text.replace("m += 1", "m += 2"), True),
        (lambda text: text.replace("default=0", "default=1"), True),
        (lambda text: text.replace("def put", "def puts"), True),
        (lambda text: text.replace("opaque=True", "opaque=True, emits=[]"), False),
        (lambda text: text.replace('"events", n=int', '"events", n=int, x=tm.optional(str)'), True),
        (lambda text: text.replace('App("edited")', 'App("other")'), True),
    ],
    ids=["comment", "what it does", "step", "default", "name", "nothing", "column", "app"],
)
def test_only_what_an_app_is_makes_it_another(tmp_path: Path, edit: Any, is_refused: bool) -> None:
    settings: dict[str, Any] = {"data_dir": tmp_path / "data"}
    with edited(tmp_path, SOURCE).start(**settings) as mill:
        mill.send("events", [{"n": 1}], wait=True)
    text = edit(SOURCE)
    assert text != SOURCE
    app = edited(tmp_path, text)
    if is_refused:
        with pytest.raises(tm.SettingError):
            app.start(**settings)
    else:
        with app.start(**settings) as mill:
            assert mill.table("t").rows() == [{"n": 0, "m": 1}, {"n": 1, "m": 1}]


class Counters:
    """Entities that count, and functions of every kind that is called."""

    def __init__(self) -> None:
        app = self.app = tm.App("counters")
        one = self.one = app.entity(
            "one",
            key="id",
            id=int,
            n=tm.column(int, default=0),
            tags=tm.column(tm.list(str), default=[]),
        )

        class Full(tm.Abort):
            """A counter that takes no more."""

        @one.function(creates=True)
        async def add(self: Any, ctx: tm.Context, n: int = 1) -> int:
            self.n += n
            if self.n > 100:
                raise Full("enough")
            return int(self.n)

        @one.function
        async def touch(self: Any, ctx: tm.Context) -> None:
            self.n += 1

        @one.function
        async def goes(self: Any, ctx: tm.Context) -> list[bool]:
            before = self.exists()
            self.delete()
            gone = self.exists()
            self.n = 7
            return [before, gone, self.exists()]

        @one.function(creates=True)
        async def told(self: Any, ctx: tm.Context, tags: tm.any) -> Any:  # type: ignore[valid-type]
            tags.append("mine")  # type: ignore[attr-defined]
            return tags

        @one.function(creates=True)
        async def keeps(self: Any, ctx: tm.Context) -> list[Any]:
            own = ["own"]
            there = await one[self.id + 1].told(own)
            there.append("changed")
            again = await one[self.id + 1].told(own)
            return [own, there, again]

        @one.function(creates=True)
        async def unheard(self: Any, ctx: tm.Context, to: int) -> int:
            one[to].add(5)
            return int(await one[to].add(1))

        self.add, self.touch, self.Full = add, touch, Full


def test_an_entity_must_be_there_to_be_called() -> None:
    app = Counters()
    with app.app.start() as mill:
        with pytest.raises(tm.Abort):
            mill.call(app.touch, id=1)
        assert mill.table("one").rows() == []
        assert mill.call(app.add, id=1) == 1
        mill.call(app.touch, id=1)
        assert mill.call("one.goes", id=1) == [True, False, True]
        assert mill.table("one")[1]["n"] == 7


def test_arguments_and_results_are_copies() -> None:
    app = Counters()
    with app.app.start() as mill:
        found = mill.call("one.keeps", id=1)
        assert found == [["own"], ["own", "mine", "changed"], ["own", "mine"]]


def test_a_call_that_nobody_awaits_takes_place_where_it_is_made() -> None:
    app = Counters()
    with app.app.start() as mill:
        assert mill.call("one.unheard", id=1, to=2) == 6


def test_calls_may_be_sent_as_events() -> None:
    app = Counters()
    with app.app.start() as mill:
        mill.send(app.add, [{"id": 1, "n": n} for n in (60, 30, 30, 5)])
        mill.send(app.add, {"id": [2]})
        mill.drain()
        assert [row["n"] for row in mill.table("one").rows()] == [95, 1]
        assert [row["reply"] for row in mill.output("one.add").rows()] == [60, 90, 95, 1]
        [refused] = mill.output("one.add.aborted").rows()
        assert (refused["id"], refused["n"], refused["reason"]) == (1, 30, "Full: enough")
        with pytest.raises(app.Full, match=r"^enough$"):
            mill.call(app.add, id=1, n=6)


def test_what_does_not_fit_the_parameters_is_refused_before_anything_runs() -> None:
    app = tm.App("calls")
    table = app.table("t", key="id", id=int, d=tm.decimal(2))

    @app.procedure
    def put(tx: Any, id: int, d: tm.decimal(2) = Decimal("0.50")) -> Any:  # type: ignore[valid-type]
        table.upsert(id=id, d=d)
        return {"d": d}

    with app.start() as mill:
        for wrong in ({"id": "x"}, {"id": 1, "d": Decimal("0.005")}, {}, {"id": 1, "e": 2}):
            with pytest.raises(tm.Error) as caught:
                mill.call(put, **wrong)
            assert not isinstance(caught.value, tm.Abort)
        assert mill.call(put, id=1) == {"d": Decimal("0.50")}
        assert mill.output("put.aborted").rows() == []
        assert len(mill.output("put").rows()) == 1
        assert mill.table(table).rows() == [{"id": 1, "d": Decimal("0.50")}]


def test_the_streams_of_calls_can_be_written(tmp_path: Path) -> None:
    app = tm.App("calls")

    @app.procedure
    def half(tx: Any, n: int) -> int:
        tx.require(n % 2 == 0, "odd")
        return n // 2

    calls, replies, refused = (tmp_path / f"{name}.jsonl" for name in ("c", "r", "a"))
    half.input.write(tm.files(calls))
    half.input.keep()
    half.write(tm.files(replies))
    half.aborted.write(tm.files(refused))
    with app.start() as mill:
        for n in (4, 5, 6):
            if n == 5:
                with pytest.raises(tm.Abort, match="odd"):
                    mill.call(half, n=n)
            else:
                assert mill.call(half, n=n) == n // 2
        mill.finish()
        assert mill.output(half.input).rows() == [{"n": n} for n in (4, 5, 6)]
    found = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in (calls, replies, refused)
    ]
    # Columns that the engine adds to the parameters are left out.
    assert found[0] == [{"n": n} for n in (4, 5, 6)]
    assert [row["reply"] for row in found[1]] == [2, 3]
    assert found[2] == [{"n": 5, "reason": "odd"}]


@pytest.mark.parametrize(("every", "called"), [(0, 12), (1, 24), (4, 15)])
def test_every_nth_opaque_transaction_runs_twice(every: int, called: int) -> None:
    app = tm.App("twice")
    table = app.table("t", key="n", n=int)
    events = app.stream("events", n=int)
    calls: list[int] = []

    @app.transaction(events, opaque=True)
    def put(tx: Any, e: Any) -> None:
        calls.append(e.n)
        table.insert(n=e.n)

    with app.start(rerun_every=every, workers=1, strategy="serial") as mill:
        mill.send(events, [{"n": n} for n in range(12)])
        mill.drain()
        assert len(mill.table(table)) == 12
        assert mill.finish()["unstable"] == []
    assert len(calls) == called


def test_another_seed_gives_other_random_numbers() -> None:
    drawn = []
    for seed in (7, 7, 8):
        app = tm.App("chance", seed=seed)
        events = app.stream("events", n=int)

        @app.transaction(events, opaque=True, out={"random": float, "id": str})
        def draw(tx: Any, e: Any) -> dict[str, Any]:
            return {"random": tx.random(), "id": str(tx.uuid())}

        with app.start() as mill:
            mill.send(events, [{"n": 1}, {"n": 1}])
            mill.drain()
            drawn.append(kept(mill, draw))
    assert drawn[0] == drawn[1]
    assert len({str(value) for rows in drawn for row in rows for value in row}) == 8


def test_calls_may_be_a_hundred_deep_and_a_trigger_counts_anew() -> None:
    app = tm.App("deep")
    one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))
    table = app.table("t", key="id", id=int, n=tm.column(int, default=0))

    @one.function(creates=True)
    async def deep(self: Any, ctx: tm.Context, n: int, writes: bool = False) -> int:
        if n > 1:
            return 1 + int(await one[self.id].deep(n - 1, writes))
        self.n += 1
        if writes:
            table[0].n += 1
        return 1

    @app.trigger(table)
    def again(tx: Any, change: Any) -> None:
        one[2].deep(change.new.n * 100).result()

    with app.start() as mill:
        assert mill.call(deep, id=1, n=100) == 100
        with pytest.raises(tm.Abort, match="calls are more than 100 deep in one another"):
            mill.call(deep, id=1, n=101)
        assert mill.call(deep, id=1, n=100, writes=True) == 100
        assert mill.table(one.table)[2]["n"] == 1
        # The second time the trigger wants two hundred.
        with pytest.raises(tm.Abort, match="calls are more than 100 deep in one another"):
            mill.call(deep, id=1, n=1, writes=True)
        assert mill.table(one.table)[1]["n"] == 2


def test_a_row_is_in_indexes_when_it_has_all_that_it_needs() -> None:
    app = tm.App("complete")
    people = app.table("people", key="id", id=int, city=str, mail=str)
    by_city = people.index("city")

    @app.procedure
    def put(tx: Any, id: int) -> Any:
        def found() -> list[int]:
            return [row.id for row in by_city["Rome"]]

        row = people[id]
        row.city = "Rome"
        before = found()
        row.mail = "a"
        then = found()
        row.city = "Bonn"
        return [before, then, found()]

    with app.start() as mill:
        assert mill.call(put, id=1) == [[], [1], []]


def test_the_version_before_an_upgrade_is_refused_and_its_flags_do_nothing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data_dir": tmp_path / "data"}
    wider = SOURCE.replace("m=tm.column(int", "o=tm.optional(str), m=tm.column(int")
    with edited(tmp_path, SOURCE).start(**settings) as mill:
        mill.send("events", [{"n": 1}], wait=True)
    for _ in range(2):
        with edited(tmp_path, wider).start(upgrade=True, **settings) as mill:
            assert [row["m"] for row in mill.table("t").rows()] == [1, 1]
            assert mill.sent("events") == 1
    with pytest.raises(tm.SettingError, match="another version of this program"):
        edited(tmp_path, SOURCE).start(**settings)


def test_while_nothing_runs_nothing_fires(tmp_path: Path) -> None:
    def run(rows: int) -> list[dt.datetime]:
        app = tm.App("clock")
        fired = app.table("fired", key="at", at=tm.timestamp)

        @app.every("10ms")
        def tick(tx: Any, firing: Any) -> None:
            fired.insert(at=firing.at)

        with app.start(data_dir=tmp_path / "data") as mill:
            while len(mill.table(fired)) < rows:
                assert not mill.wait(0.01)
            mill.stop()
            return [row["at"] for row in mill.table(fired).rows()]

    before = run(2)
    start = dt.datetime.now(dt.UTC)
    after = run(len(before) + 2)
    assert after[: len(before)] == before
    assert all(at >= start for at in after[len(before) :])


def test_nothing_is_kept_where_that_is_said(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for _ in range(2):
        app = tm.App("nothing")
        table = app.table("t", key="n", n=int)
        events = app.stream("events", n=int)

        @app.transaction(events)
        def put(tx: Any, e: Any, table: Any = table) -> None:
            table.insert(n=e.n)

        with app.start(data_dir=data, durable="none") as mill:
            assert mill.sent(events) == 0
            mill.send(events, [{"n": 1}], wait=True)
            assert len(mill.table(table)) == 1
        assert not data.exists()


def test_a_scan_of_less_than_no_rows_is_refused() -> None:
    app = tm.App("scans")
    t = app.table("t", key="id", id=int, n=int, ordered=True)
    by_n = t.index("n")
    found = app.stream("found", how_many=int)

    @app.procedure
    def look(tx: Any, limit: int, of_index: bool) -> None:
        t.upsert(id=1, n=1)
        rows = by_n.scan(0, 9, limit=limit) if of_index else t.scan(0, 9, limit=limit)
        tx.emit(found, how_many=len(rows))

    with app.start() as mill:
        for of_index in (False, True):
            with pytest.raises(tm.Fault, match="limit is a number of rows, not -1"):
                mill.call(look, limit=-1, of_index=of_index)
            mill.call(look, limit=0, of_index=of_index)
        assert [row["how_many"] for row in mill.output(found).rows()] == [0, 0]


def test_a_table_is_found_by_its_entity() -> None:
    app = tm.App("found")
    account = app.entity("account", key="id", id=int, n=tm.column(int, default=0))

    @account.function(creates=True)
    async def add(self: Any, ctx: Any) -> int:
        self.n += 1
        return self.n

    with app.start() as mill:
        mill.call("account.add", id=1)
        assert mill.table(account)[1] == mill.table("account")[1] == {"id": 1, "n": 1}
