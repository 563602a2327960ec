"""Outputs that functions write have the roles of these functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm
from tidemill.cli.token import write
from tidemill.cluster import Coordinator
from tidemill.spec import with_roles
from tidemill.writes import written


class Shop:
    """An app with functions for everybody, for clerks, and for an admin."""

    def __init__(self) -> None:
        app = self.app = tm.App("shop")
        stock = app.table("stock", key="item", item=int, left=int)
        prices = app.table("prices", key="item", item=int, cents=int)
        audit = app.table("audit", key="n", n=int, text=str)
        tally = app.table("tally", key="item", item=int, n=int)
        watched = app.table("watched", key="item", item=int, n=int)
        free = app.table("free", key="item", item=int)
        wages = app.entity("wages", key="who", who=int, cents=int)
        changed = app.stream("changed", item=int)
        seen = app.stream("seen", item=int)

        @app.external(out={"ok": bool})
        def mail(id, item: int):
            return {"ok": True}

        def note(n: int, text: str) -> None:
            audit.upsert(n=n, text=text)

        @app.procedure(role="admin")
        def price(tx, item: int, cents: int):
            prices.upsert(item=item, cents=cents)
            note(item, f"{stock[item].left} left")
            tx.emit(changed, item=item)
            tx.external(mail, item=item)

        @app.procedure(role="clerk")
        def fill(tx, item: int, n: int):
            row = stock[item]
            row.update(left=n)
            stock.upsert(item=item, left=n)
            prices.upsert(item=item, cents=1)

        @app.procedure
        def look(tx, item: int):
            return prices[item].cents if prices[item].exists() else None

        @app.procedure
        def take(tx, item: int):
            free.upsert(item=item)

        @app.procedure(role="admin")
        def give(tx, item: int):
            del free[item]
            tx.emit(seen, item=item)

        @app.procedure
        def show(tx, item: int):
            tx.emit(seen, item=item)

        @app.transaction(changed)
        def count(tx, e):
            tally[e.item].n += 1

        @app.trigger(tally)
        def watch(tx, change):
            watched.upsert(item=change.new.item, n=change.new.n)

        @wages.function(role="boss", creates=True)
        def pay(self, ctx, cents: int):
            self.cents = cents

        @wages.function
        def total(self, ctx):
            return self.cents


ROLES = {
    "streams/price.aborted": "admin",
    "streams/changed": "admin",
    "streams/count.aborted": "admin",
    "tables/prices": "admin|clerk",
    "tables/audit": "admin",
    "tables/tally": "admin",
    "tables/watched": "admin",
    "tables/mail.outbox": "admin",
    "tables/stock": "clerk",
    "streams/fill.aborted": "clerk",
    "tables/wages": "boss",
    "streams/wages.pay.aborted": "boss",
}


def test_outputs_take_the_roles_of_those_who_write_them() -> None:
    app = Shop().app
    found = with_roles(app, {})["http_roles_default"]
    assert {name: role for name, role in found.items() if name in ROLES} == ROLES
    for open_ in ("tables/free", "streams/seen", "streams/look", "streams/look.aborted"):
        assert open_ not in found
    # With calls allowed for everybody, the outputs are public, too.
    found = with_roles(app, {"http_roles": {"price": "*", "fill": "*"}})["http_roles_default"]
    assert found.keys().isdisjoint({"tables/prices", "tables/stock", "tables/tally"})
    assert found["tables/wages"] == "boss"
    # A caller of other functions may emit their outputs, which do not get its own role.
    again = app.spec({"http_port": 0}, keep_all=False, push=True)[0]
    assert again["settings"]["http_roles_default"]["streams/changed"] == "admin"


def test_an_app_without_roles_has_none() -> None:
    app = tm.App("open")
    table = app.table("t", key="id", id=int)

    @app.procedure
    def put(tx, id: int):
        table.upsert(id=id)

    assert with_roles(app, {"workers": 1}) == {"workers": 1}


def test_what_a_function_writes() -> None:
    app = tm.App("bank")
    t = app.table("t", key="id", id=int, n=int)
    u = app.table("u", key="id", id=int, n=int, ordered=True)
    v = app.table("v", key="id", id=int, n=int)
    by_n = v.index("n")

    def reads(tx: Any) -> Any:
        row = t[1]
        return row.n + sum(r.n for r in u.scan()) + len(list(by_n.scan())) + (1 in v)

    def sets(tx: Any) -> None:
        t[1].n = u[1].n

    def augments(tx: Any) -> None:
        first = row = t[1]
        row.n += u[2].n
        del first

    def deletes(tx: Any) -> None:
        del t[1]
        u[1].delete()

    def loops(tx: Any) -> None:
        for n, row in enumerate(u.scan(limit=3)):
            row.n = n
        [row.delete() for row in by_n.scan(1)]

    def nests(tx: Any) -> None:
        def inner() -> None:
            t.insert(id=1, n=2)

        inner()

    def helps(tx: Any) -> None:
        sets(tx)

    def gives_away(tx: Any) -> None:
        setattr(t[1], "n", 2)  # noqa: B010

    def keeps(tx: Any) -> Any:
        found = {}
        found[1] = t[1].n
        found.update(n=u[1].n)
        return found

    cases: list[tuple[Callable[..., Any], set[str], set[str]]] = [
        (reads, set(), set()),
        (sets, {"t"}, set()),
        (augments, {"t"}, set()),
        (deletes, {"t", "u"}, set()),
        (loops, {"u", "v"}, set()),
        (nests, {"t"}, set()),
        (helps, {"t"}, set()),
        (gives_away, set(), {"t"}),
        (keeps, set(), set()),
        # A function without source code may write any stream that it names.
        (eval("lambda tx: t[1].n", {"t": t}), set(), {"t"}),
    ]
    for function, surely, maybe in cases:
        found = written(function)
        assert (found.surely, found.maybe) == (surely, maybe), function


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, dict[str, str]]:
    file = tmp_path / "tokens.toml"
    roles = {"admin": ["admin"], "clerk": ["clerk"], "guest": []}
    headers = {
        who: {"Authorization": f"Bearer {write(file, who, has)}"} for who, has in roles.items()
    }
    return headers | {"": {"file": str(file)}}


PATHS = {
    "/tables/prices/rows?key=1": {"admin", "clerk"},
    "/tables/audit/rows?key=1": {"admin"},
    "/tables/mail.outbox/rows?key=1": {"admin"},
    "/tables/wages/changes": set(),
    "/tables/free/rows?key=1": {"admin", "clerk", "guest"},
    "/streams/changed?from=99999999999999999": {"admin"},
    "/streams/seen?from=99999999999999999": {"admin", "clerk", "guest"},
}


def test_clients_without_the_role_get_nothing(
    tokens: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    file = tokens.pop("")["file"]
    with Shop().app.start(http_port=0, http_tokens=file) as mill:
        assert mill.url is not None
        with httpx.Client(base_url=mill.url) as client:
            call = client.post("/call/price", json={"item": 1, "cents": 5}, headers=tokens["admin"])
            assert call.status_code == 200
            paths = PATHS | {
                "/streams/price?from=99999999999999999": {"admin"},
                "/streams/price.aborted?from=99999999999999999": {"admin"},
                "/streams/fill.aborted?from=99999999999999999": {"clerk"},
            }
            for path, let_in in paths.items():
                for who, headers in tokens.items():
                    status = client.get(path, headers=headers).status_code
                    assert (status != 403) == (who in let_in), (path, who, status)


def test_so_it_is_on_several_processes(tokens: dict[str, dict[str, str]], tmp_path: Path) -> None:
    settings = {
        "data_dir": str(tmp_path / "data"),
        "http_port": 0,
        "http_tokens": tokens.pop("")["file"],
    }
    coordinator = Coordinator(Shop().app, settings, b"0123456789abcdef")
    try:
        assert coordinator.url is not None
        with httpx.Client(base_url=coordinator.url) as client:
            for path, let_in in PATHS.items():
                for who, headers in tokens.items():
                    if who in let_in and path.startswith("/tables"):
                        # Nobody would answer, because there is no worker.
                        continue
                    status = client.get(path, headers=headers).status_code
                    assert (status != 403) == (who in let_in), (path, who, status)
    finally:
        coordinator.stop()
