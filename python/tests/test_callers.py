"""Private functions of entities, and functions that learn who calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm
from tidemill.cli.token import write

from .test_entities_nodes import is_one


class Bank:
    """Accounts whose private function only transfers call."""

    def __init__(self) -> None:
        app = self.app = tm.App("bank", version="2.1")
        account = self.account = app.entity(
            "account", key="id", id=int, balance=tm.column(int, default=0)
        )
        log = self.log = app.table("log", key="n", n=int, what=str, caller=tm.optional(str))
        lines = app.table("lines", key="id", id=int, n=tm.column(int, default=0))
        payments = self.payments = app.stream("payments", id=int, amount=int)

        def note(what: str, caller: str | None) -> None:
            lines[0].n += 1
            log.insert(n=lines[0].n, what=what, caller=caller)

        @account.function(creates=True, private=True)
        async def add(self, ctx, amount: int, caller: tm.Caller) -> int:
            """Adds to the balance."""
            note("add", caller)
            self.balance += amount
            return self.balance

        @account.function(creates=True)
        async def deposit(self, ctx, amount: int, caller: tm.Caller) -> int:
            """Puts money into an account.

            The amount is in cents.
            """
            note("deposit", caller)
            return await account[self.id].add(amount)

        @account.function(creates=True)
        def transfer(self, ctx, to: int, amount: int) -> None:
            account[self.id].add(-amount)
            account[to].deposit(amount=amount)

        @app.procedure
        def audit(tx, caller: tm.Caller):
            note("audit", caller)
            return account[9].deposit(1).result()

        @app.transaction(payments, opaque=True)
        def pay(tx, e):
            account[e.id].add(e.amount)

        self.add, self.deposit, self.transfer, self.audit = add, deposit, transfer, audit

    def noted(self, mill: tm.Mill) -> list[tuple[str, str | None]]:
        return [(row["what"], row["caller"]) for row in mill.table(self.log).rows()]


WANTED = [
    ("deposit", None),
    ("add", "function:account.deposit"),
    ("add", "function:account.transfer"),
    ("deposit", "function:account.transfer"),
    ("add", "function:account.deposit"),
    ("audit", None),
    ("deposit", "function:audit"),
    ("add", "function:account.deposit"),
    ("add", "function:pay"),
]

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("account.deposit", {"id": 1, "amount": 50}),
    ("account.transfer", {"id": 1, "to": 2, "amount": 20}),
    ("audit", {}),
    ("payments", {"id": 2, "amount": 3}),
]


def test_functions_learn_who_calls(tmp_path: Path) -> None:
    bank = Bank()
    with bank.app.start(data_dir=tmp_path, durable="log") as mill:
        for name, row in CALLS:
            if name == "payments":
                mill.send(name, [row], wait=True)
            else:
                mill.call(name, **row)
        assert bank.noted(mill) == WANTED
    # All of it is executed again from the log.
    again = Bank()
    with again.app.start(data_dir=tmp_path, durable="log") as mill:
        assert again.noted(mill) == WANTED


def test_callers_are_the_same_on_nodes() -> None:
    found = is_one(lambda: Bank().app, CALLS, seeds=2)
    noted = sorted(found["tables"]["log"], key=lambda row: row["n"])
    assert [(row["what"], row["caller"]) for row in noted] == WANTED


def test_callers_do_not_name_themselves() -> None:
    bank = Bank()

    @bank.account.function(creates=True)
    async def forge(self, ctx, how: int):
        if how == 0:
            await bank.account[1].add(5, caller="client:ann")
        await bank.account[1].add(5, "client:ann")

    with bank.app.start() as mill:
        for how in (0, 1):
            with pytest.raises(tm.Fault, match="its caller can't give 'caller'"):
                mill.call(forge, id=1, how=how)
        with pytest.raises(tm.ProgramError, match="gets its caller from the engine"):
            mill.call(bank.deposit, id=1, amount=5, caller="client:ann")
        assert bank.noted(mill) == []


def test_private_functions_are_not_called_from_outside() -> None:
    bank = Bank()
    with bank.app.start() as mill:
        for how in (lambda: mill.call(bank.add, id=1, amount=5), lambda: mill.call("account.add")):
            with pytest.raises(tm.ProgramError) as refused:
                how()
            assert "account.add is private" in refused.value.what
            assert "private=True" in refused.value.help
        with pytest.raises(tm.ProgramError, match=r"account\.add is private"):
            mill.send(bank.add, [{"id": 1, "amount": 5}])


def test_clients_over_http(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    ann, ben = write(tokens, "ann", []), write(tokens, "ben", [])
    bank = Bank()
    with bank.app.start(http_port=0, http_tokens=tokens) as mill:
        assert mill.url is not None

        def post(name: str, token: str, **body: object) -> httpx.Response:
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "one"}
            return httpx.post(f"{mill.url}/call/{name}", json=body, headers=headers, timeout=30)

        # The ids are the same, and the clients are not.
        assert post("account.deposit", ann, id=1, amount=5).json() == {"reply": 5}
        assert post("account.deposit", ann, id=1, amount=5).json() == {"reply": 5}
        assert post("account.deposit", ben, id=1, amount=5).json() == {"reply": 10}
        callers = [caller for what, caller in bank.noted(mill) if what == "deposit"]
        assert callers == ["client:ann", "client:ben"]
        forged = post("account.deposit", ben, id=1, amount=5, caller="client:ann")
        assert forged.status_code == 400
        assert "there is no parameter 'caller'" in forged.json()["error"]["what"]
        hidden = post("account.add", ann, id=1, amount=5)
        assert hidden.status_code == 404
        assert "not private" in hidden.json()["error"]["help"]
        document = httpx.get(
            f"{mill.url}/openapi.json", headers={"Authorization": f"Bearer {ann}"}, timeout=30
        ).json()
    assert document["info"] == {"title": "bank", "version": "2.1"}
    paths = document["paths"]
    assert "/call/account.add" not in paths
    assert not [path for path in paths if path.endswith((".calls.late", ".calls.dead"))]
    assert "/streams/payments.dead" in paths
    deposit = paths["/call/account.deposit"]["post"]
    assert deposit["summary"] == "Puts money into an account."
    assert deposit["description"].endswith("The amount is in cents.")
    assert "caller" not in json.dumps(deposit)
    reply = deposit["responses"]["200"]["content"]["application/json"]["schema"]
    assert reply["properties"]["reply"] == {"type": "integer"}
    transfer = paths["/call/account.transfer"]["post"]
    assert transfer["summary"] == "Calls account.transfer."
    reply = transfer["responses"]["200"]["content"]["application/json"]["schema"]
    assert reply["properties"]["reply"] == {"type": "null"}


def test_without_a_version_the_document_has_0() -> None:
    app = tm.App("hotel")

    @app.procedure
    def echo(tx, i: int):
        return i

    with app.start(http_port=0) as mill:
        document = httpx.get(f"{mill.url}/openapi.json", timeout=30).json()
    assert document["info"]["version"] == "0"
    reply = document["paths"]["/call/echo"]["post"]["responses"]["200"]
    assert reply["content"]["application/json"]["schema"]["properties"]["reply"] == {}


def test_private_is_no_change_of_the_program(tmp_path: Path) -> None:
    def start(private: bool) -> Any:
        app = tm.App("bank")
        account = app.entity("account", key="id", id=int, balance=tm.column(int, default=0))

        @account.function(creates=True, private=private)
        def add(self, ctx, n: int):
            self.balance += n
            return self.balance

        return app.start(data_dir=tmp_path)

    with start(False) as mill:
        assert mill.call("account.add", id=1, n=5) == 5
    with start(True) as mill:
        assert mill.table("account")[1]["balance"] == 5
    with start(False) as mill:
        assert mill.call("account.add", id=1, n=5) == 10


def test_wrong_declarations() -> None:
    app = tm.App("bank")
    account = app.entity("account", key="id", id=int)
    with pytest.raises(tm.ProgramError, match="is private, and has a role for clients"):

        @account.function(private=True, role="clerk")
        def a(self, ctx): ...

    with pytest.raises(tm.ProgramError, match="the caller 'who' is not the last parameter"):

        @account.function
        def b(self, ctx, who: tm.Caller, n: int): ...

    with pytest.raises(tm.ProgramError, match="'who' is a caller, and only transactions request"):

        @app.external()
        def c(id, who: tm.Caller): ...

    with pytest.raises(tm.ProgramError, match="version=2 is not a text"):
        tm.App("bank", version=2)  # type: ignore[arg-type]
