"""Functions that use an object of another app are refused by name, before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import tidemill as tm

from .conftest import marked_line, refusal


class Both:
    """An old app, of which variables are left, and a new one with other tables at its numbers."""

    def __init__(self) -> None:
        old = self.old = tm.App("old")
        n = {"n": tm.column(int, default=0)}
        self.stock = old.table("stock", key="id", ordered=True, id=int, **n)
        self.by_n = self.stock.index("n")
        self.events = old.stream("events", id=int)
        self.window = old.window("window", rows=3, slide=1, id=int)
        self.item = old.entity("item", key="id", id=int, **n)

        @self.item.function(creates=True)
        def add(self, ctx):
            self.n += 1

        @old.external(out={"ok": bool})
        def charge(id, cents: int):
            return {"ok": True}

        @old.procedure(self.events)
        def batch(tx, events):
            pass

        self.charge, self.batch = charge, batch
        new = self.new = tm.App("new")
        self.salary = new.table("salary", key="id", id=int, euros=tm.column(int, default=0))
        self.ev = new.stream("ev", id=int)


TRACED: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "table stock": lambda b: lambda tx, e: b.stock[e.id].update(n=2),
    "table stock ": lambda b: lambda tx, e: b.stock.upsert(id=e.id, n=1) and None,
    "table stock  ": lambda b: lambda tx, e: tx.require(b.stock.scan(0, 9).n.sum() > e.id),
    "index stock.by_n": lambda b: lambda tx, e: b.by_n[e.id] and None,
    "window window": lambda b: lambda tx, e: b.window.insert(id=e.id),
    "stream events": lambda b: lambda tx, e: tx.emit(b.events, id=e.id),
    "table charge.outbox": lambda b: lambda tx, e: tx.external(b.charge, cents=e.id) and None,
}


@pytest.mark.parametrize("what", TRACED)
def test_a_traced_handler_with_an_object_of_another_app_is_refused(what: str) -> None:
    both = Both()
    handler = TRACED[what](both)
    with pytest.raises(tm.ProgramError) as caught:
        both.new.transaction(both.ev, name="h")(handler)
    said = f"{what.strip()} belongs to app old, and handler h to app new"
    assert caught.value.what == said
    assert caught.value.help == "use only what app new declares"
    assert "test_mixed_apps.py:" in str(caught.value.at)
    assert both.new.handlers == []


def test_the_refusal_names_the_line() -> None:
    both = Both()
    stock = both.stock

    def declare() -> None:
        @both.new.transaction(both.ev)
        def h(tx, e):
            stock[e.id].n += 2  # here

    assert refusal(declare).what.startswith("table stock belongs to app old")


def opaques(both: Both) -> dict[str, Callable[..., Any]]:
    stock, by_n, events = both.stock, both.by_n, both.events
    window, item, charge = both.window, both.item, both.charge

    def table(tx, e):
        stock[e.id].n += 2  # here

    def index(tx, e):
        list(by_n[e.id])

    def stream(tx, e):
        tx.emit(events, id=e.id)

    def of_window(tx, e):
        window.insert(id=e.id)

    def entity(tx, e):
        item[e.id].add()

    def external(tx, e):
        tx.external(charge, cents=e.id)

    def nested(tx, e):
        def inner() -> None:
            stock[e.id].n += 2

        inner()

    return {
        "table stock": table,
        "index stock.by_n": index,
        "stream events": stream,
        "window window": of_window,
        "entity item": entity,
        "table charge.outbox": external,
        "table stock ": nested,
    }


@pytest.mark.parametrize("what", opaques(Both()))
@pytest.mark.parametrize("kind", ["handler", "trigger"])
def test_an_opaque_function_that_names_an_object_of_another_app_is_refused_at_the_start(
    what: str, kind: str
) -> None:
    both = Both()
    function = opaques(both)[what]
    if kind == "handler":
        both.new.transaction(both.ev, name="h", opaque=True)(function)
    else:
        both.new.trigger(both.salary, name="h")(function)
    with pytest.raises(tm.ProgramError) as caught:
        both.new.start()
    said = f"{what.strip()} belongs to app old, and {kind} h to app new"
    assert caught.value.what == said
    if what == "table stock":
        assert str(caught.value.at).endswith(f"/{marked_line(opaques)}")


def test_declarations_with_objects_of_another_app_are_refused() -> None:
    both = Both()
    new = both.new

    def function(tx, e):
        pass

    def batch(tx, events):
        pass

    for declare, what in (
        (lambda: new.transaction(both.events), "stream events belongs to app old"),
        (lambda: new.procedure(both.events), "stream events belongs to app old"),
        (lambda: new.trigger(both.stock), "table stock belongs to app old"),
        (lambda: new.trigger(both.window), "window window belongs to app old"),
        (lambda: new.nested("both", both.batch), "procedure batch belongs to app old"),
        (
            lambda: new.transaction(both.ev, emits=[both.events])(function),
            "stream events belongs to app old, and handler function",
        ),
        (
            lambda: new.trigger(both.salary, emits=[both.events])(function),
            "stream events belongs to app old, and trigger function",
        ),
        (
            lambda: new.procedure(both.ev, owns=[both.window])(batch),
            "window window belongs to app old, and handler batch",
        ),
    ):
        with pytest.raises(tm.ProgramError) as caught:
            declare()
        assert what in caught.value.what
        assert caught.value.help == "use only what app new declares"


def test_a_mill_says_to_which_app_an_argument_belongs() -> None:
    both = Both()

    @both.new.transaction(both.ev)
    def h(tx, e):
        pass

    with both.new.start() as mill:
        for use, what in (
            (lambda: mill.table(both.stock), "table stock"),
            (lambda: mill.table(both.item), "entity item"),
            (lambda: mill.output(both.batch), "procedure batch"),
            (lambda: mill.send(both.events, []), "stream events"),
            (lambda: mill.call(both.batch), "procedure batch"),
        ):
            with pytest.raises(tm.ProgramError) as caught:
                use()
            assert caught.value.what == f"{what} belongs to app old, and the mill to app new"


def test_a_notebook_says_which_cells_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    old = tm.App("shop")
    stock = old.table("stock", key="id", id=int, n=tm.column(int, default=0))
    app = tm.App("shop")
    orders = app.stream("orders", id=int)

    def order(tx, e):
        stock[e.id].n -= 1

    with pytest.raises(tm.ProgramError) as caught:
        app.transaction(orders)(order)
    said = f"table stock belongs to app shop of {old.at}, and handler order to app shop of {app.at}"
    assert caught.value.what == said
    assert caught.value.help == "run the cells again from the one with tm.App(...)"


def test_a_module_that_is_loaded_twice_may_use_the_table_of_its_twin() -> None:
    def declared() -> tuple[tm.App, tm.Table, tm.Stream]:
        app = tm.App("twice")
        t = app.table("t", key="id", id=int, n=tm.column(int, default=0))
        return app, t, app.stream("s", id=int)

    (app, own, s), (_, twin, _) = declared(), declared()

    @app.transaction(s)
    def traced(tx, e):
        twin[e.id].n += 1

    @app.transaction(s, opaque=True)
    def opaque(tx, e):
        twin[e.id].n += 1

    with app.start() as mill:
        mill.send(s, [{"id": 1}])
        mill.drain()
        assert mill.table(own)[1]["n"] == 2


def test_a_function_may_use_what_is_declared_after_it() -> None:
    app = tm.App("later")
    s = app.stream("s", id=int)
    # A notebook that runs again still has the variables of the earlier run.
    names: dict[str, Any] = {"app": app, "s": s, "stock": Both().stock, "tm": tm}
    exec(
        "@app.transaction(s, opaque=True)\n"
        "def take(tx, e):\n"
        "    stock[e.id].n += 1\n"
        "stock = app.table('stock', key='id', id=int, n=tm.column(int, default=0))\n",
        names,
    )
    with app.start() as mill:
        mill.send(s, [{"id": 1}])
        mill.drain()
        assert mill.table("stock")[1]["n"] == 1
