"""Procedures: batches, rounds, nested transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidemill as tm

from .conftest import Outcome, reference, refusal


class Vote:
    """Votes that are checked, counted, and taken back when a candidate goes (S-Store 4.1.1)."""

    def __init__(self, nested: bool, every: int = 4) -> None:
        app = self.app = tm.App("vote")
        votes = self.votes = app.table("votes", key="phone", phone=int, candidate=int)
        candidates = self.candidates = app.table(
            "candidates", key="id", ordered=True, id=int, votes=tm.column(int, default=0)
        )
        totals = app.table("totals", key="id", id=int, votes=tm.column(int, default=0))
        self.cast = app.stream("cast", phone=int, candidate=int)
        self.setup = app.stream("setup", candidate=int)
        valid = self.valid = app.stream("valid", phone=int, candidate=int)
        counted = app.stream("counted", total=int)

        @app.transaction(self.setup)
        def stand(tx, e):
            candidates.insert(id=e.candidate)

        @app.procedure(self.cast)
        def check(tx, cast):
            for vote in cast:
                tx.require(candidates[vote.candidate].exists(), "there is no such candidate")
                tx.require(not votes[vote.phone].exists(), "has voted")
                votes.insert(phone=vote.phone, candidate=vote.candidate)
                tx.emit(valid, phone=vote.phone, candidate=vote.candidate)

        @app.procedure(valid)
        def count(tx, valid):
            for vote in valid:
                candidates[vote.candidate].votes += 1
                totals[0].votes += 1
            tx.require(totals[0].votes != 11, "the eleventh is one too many")
            tx.emit(counted, total=totals[0].votes)

        @app.procedure(counted, out={"gone": int, "at": int})
        def remove(tx, counted):
            if counted[-1].total % every:
                return None
            standing = sorted((row.votes, row.id) for row in candidates.scan())
            gone = standing[0][1]
            candidates[gone].delete()
            return [dict(gone=gone, at=counted[-1].total)]

        self.check, self.count, self.remove = check, count, remove
        if nested:
            app.nested("vote", check, count, remove)

    def run(self, *votes: tuple[int, int]) -> Outcome:
        """Returns the reference's results, which the engine must equal."""
        rows = [{"phone": phone, "candidate": candidate} for phone, candidate in votes]
        standing = [{"candidate": id} for id in (1, 2, 3)]
        wanted = reference(self.app, (self.setup, standing), (self.cast, rows))
        for workers in (1, 2):
            with self.app.start(workers=workers) as mill:
                mill.send(self.setup, standing)
                mill.drain()
                mill.send(self.cast, rows)
                mill.drain()
                for name, table in wanted.tables.items():
                    assert list(mill.table(name).rows()) == table, name
                for stream in (self.valid, self.remove, self.check.aborted, self.count.aborted):
                    assert mill.output(stream).rows() == wanted.outputs.get(stream.name, [])
        return wanted


@pytest.mark.parametrize("nested", [False, True])
def test_votes_are_checked_counted_and_taken_back(nested: bool) -> None:
    votes = [
        (1, 1),
        (2, 1),
        (2, 2),
        (3, 2),
        (4, 9),
        (5, 3),
        (6, 3),
        (7, 1),
        (8, 1),
        (9, 1),
        (10, 2),
    ]
    done = Vote(nested).run(*votes)
    assert [(row["gone"], row["at"]) for row in done.outputs["remove"]] == [(2, 4), (3, 8)]
    refused = [row["reason"] for row in done.outputs["check.aborted"]]
    no_such = "there is no such candidate"
    assert refused == ["has voted", no_such, no_such]
    assert [row["phone"] for row in done.outputs["check.aborted"]] == [2, 4, 10]


def test_nested_procedures_commit_together_or_not_at_all() -> None:
    votes = [(phone, 1 + phone % 3) for phone in range(14)]
    apart, together = (Vote(nested, every=100).run(*votes) for nested in (False, True))
    # By itself the check has committed when the count aborts.
    assert [row["phone"] for row in apart.outputs["count.aborted"]] == [10, 11, 12, 13]
    assert len(apart.tables["votes"]) == 14
    # Together nothing is left, and what came from outside is what aborts.
    assert [row["phone"] for row in together.outputs["check.aborted"]] == [10, 11, 12, 13]
    assert "count.aborted" not in together.outputs
    assert len(together.tables["votes"]) == 10
    assert [row["reason"] for row in together.outputs["check.aborted"]] == [
        "the eleventh is one too many"
    ] * 4


def test_a_procedure_runs_once_a_round_on_all_its_streams() -> None:
    app = tm.App("diamond")
    log = app.table("log", key="n", n=int, text=str)
    numbers = app.stream("numbers", n=int)
    left, right = app.stream("left", n=int), app.stream("right", n=int)

    @app.procedure(left, right)
    def join(tx, lefts, rights):
        n = (lefts or rights)[0].n
        log[n].text = f"{[e.n for e in lefts]} {[e.n for e in rights]}"

    @app.transaction(numbers)
    def halve(tx, e):
        with tx.when(e.n % 2 == 0):
            tx.emit(left, n=e.n)

    @app.procedure(numbers)
    def repeat(tx, numbers):
        for e in numbers:
            for _ in range(e.n % 3):
                tx.emit(right, n=e.n)

    done = reference(app, (numbers, [{"n": n} for n in range(6)]))
    assert {row["n"]: row["text"] for row in done.tables["log"]} == {
        0: "[0] []",
        1: "[] [1]",
        2: "[2] [2, 2]",
        4: "[4] [4]",
        5: "[] [5, 5]",
    }
    assert join.aborted_of[1].name == "join.aborted.right"


def test_what_a_procedure_raises_aborts_all_it_was_given() -> None:
    app = tm.App("raises")
    seen = app.table("seen", key="n", n=int)
    numbers, pairs = app.stream("numbers", n=int), app.stream("pairs", n=int)

    @app.transaction(numbers)
    def twice(tx, e):
        tx.emit(pairs, n=e.n)
        tx.emit(pairs, n=-e.n)

    @app.procedure(pairs)
    def divide(tx, pairs):
        for e in pairs:
            seen.insert(n=10 // (e.n + 1))

    done = reference(app, (numbers, [{"n": n} for n in (3, 1, 7)]))
    assert [row["n"] for row in done.tables["seen"]] == [-5, -2, 1, 2]
    assert [row["n"] for row in done.outputs["divide.aborted"]] == [1, -1]
    assert all("ZeroDivisionError" in reason for reason in done.reasons())


def test_what_can_be_no_procedure_is_refused() -> None:
    app = tm.App("refused")
    numbers = app.stream("numbers", n=int)
    others = app.stream("others", n=int)
    elsewhere = tm.App("elsewhere").stream("numbers", n=int)

    @app.transaction(numbers)
    def alone(tx, e):
        tx.require(e.n > 0)

    @app.procedure(numbers)
    def together(tx, numbers):
        pass

    def no_stream() -> None:
        app.procedure(1)  # type: ignore[call-overload]  # here

    def no_type() -> None:
        @app.procedure  # here
        def untyped(tx, n):
            pass

    def no_column() -> None:
        @app.procedure  # here
        def strange(tx, n: complex):
            pass

    def not_plain() -> None:
        @app.procedure  # here
        def star(tx, *n: int):
            pass

    def no_function() -> None:
        app.procedure(numbers)("check")  # type: ignore[arg-type]  # here

    def another_app() -> None:
        app.procedure(elsewhere)  # here

    def twice() -> None:
        app.procedure(numbers, numbers)  # here

    def arguments() -> None:
        @app.procedure(numbers, others)  # here
        def few(tx, numbers):
            pass

    def returns() -> None:
        @app.procedure(numbers)  # here
        def gives(tx, numbers):
            return dict(n=1)

    def no_procedure() -> None:
        app.nested("both", alone, together)  # here

    for define, what in (
        (no_stream, "takes streams"),
        (no_type, "parameter 'n' has no type"),
        (no_column, "complex"),
        (not_plain, "not a plain parameter"),
        (no_function, "not a function"),
        (another_app, "belongs to app"),
        (twice, "given twice"),
        (arguments, "(tx, numbers, others)"),
        (returns, "returns events"),
        (no_procedure, "is not a procedure"),
    ):
        assert what in refusal(define).what, define.__name__


def test_procedures_that_wait_for_each_other_are_refused() -> None:
    app = tm.App("cycle")
    first, second = app.stream("first", n=int), app.stream("second", n=int)

    @app.procedure(first)
    def there(tx, first):
        tx.emit(second, n=1)

    @app.procedure(second, emits=[first])
    def back(tx, second):
        tx.emit(first, n=1)

    with pytest.raises(tm.ProgramError, match="feed each other without end: there -> back"):
        app.inspect()


def test_a_nested_transaction_is_of_two_and_of_each_once() -> None:
    app = tm.App("nested")
    numbers = app.stream("numbers", n=int)

    @app.procedure(numbers)
    def one(tx, numbers):
        pass

    @app.procedure(numbers)
    def two(tx, numbers):
        pass

    app.nested("alone", one)
    with pytest.raises(tm.ProgramError, match="nested transaction alone: it has fewer than two"):
        app.inspect()
    app.nestings.clear()
    app.nested("a", one, two)
    app.nested("b", two, one)
    with pytest.raises(tm.ProgramError, match="one is nested twice"):
        app.inspect()
    app.nestings.clear()
    app.nested("a", one, two, before=[(two, one)])
    app.inspect()
    app.nestings.clear()
    app.nested("a", one, two, before=[(two, one), (one, two)])
    with pytest.raises(tm.ProgramError, match="wait for one another: one, two"):
        app.inspect()


class Accounts:
    """Accounts that clients call, beside a stream that pushes."""

    def __init__(self) -> None:
        app = self.app = tm.App("accounts")
        accounts = self.accounts = app.table("accounts", key="id", id=int, balance=int)
        self.wages = app.stream("wages", id=int, amount=int)

        @app.transaction(self.wages)
        def pay(tx, e):
            accounts[e.id].balance += e.amount

        @app.procedure
        def open_account(tx, id: int, balance: int = 0):
            accounts.insert(id=id, balance=balance)

        @app.procedure
        def transfer(tx, src: int, dst: int, amount: int):
            tx.require(accounts[src].balance >= amount, "insufficient funds")
            accounts[src].balance -= amount
            accounts[dst].balance += amount
            return {"left": accounts[src].balance, "moved": [src, dst]}

        self.open_account, self.transfer = open_account, transfer


def test_calls_are_answered(tmp_path) -> None:
    bank = Accounts()
    for directory in (None, tmp_path / "data"):
        settings = {} if directory is None else {"data_dir": str(directory)}
        with bank.app.start(**settings) as mill:
            assert mill.call(bank.open_account, id=1, balance=5) is None
            assert mill.call("open_account", id=2) is None
            mill.send(bank.wages, {"id": [1], "amount": [10]}, wait=True)
            assert mill.call(bank.transfer, src=1, dst=2, amount=12) == {
                "left": 3,
                "moved": [1, 2],
            }
            with pytest.raises(tm.Abort, match="insufficient funds"):
                mill.call(bank.transfer, src=1, dst=2, amount=12)
            with pytest.raises(tm.Abort, match=r"accounts\[1\] exists already"):
                mill.call(bank.open_account, id=1)
            assert [row["balance"] for row in mill.table("accounts").rows()] == [3, 12]
            refused = mill.output(bank.transfer.aborted).rows()
            assert [row["reason"] for row in refused] == ["insufficient funds"]
    with bank.app.start(data_dir=str(tmp_path / "data")) as mill:
        assert mill.call(bank.transfer, src=2, dst=1, amount=2)["left"] == 10


def test_calls_from_many_threads_are_one_after_the_other(tmp_path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    bank = Accounts()
    with bank.app.start(data_dir=str(tmp_path / "data")) as mill:
        for id in range(4):
            mill.call(bank.open_account, id=id, balance=100)

        def move(n: int) -> int:
            try:
                mill.call(bank.transfer, src=n % 4, dst=(n + 1) % 4, amount=30)
            except tm.Abort:
                return 0
            return 1

        with ThreadPoolExecutor(16) as pool:
            moved = sum(pool.map(move, range(200)))
        balances = [row["balance"] for row in mill.table("accounts").rows()]
        assert sum(balances) == 400
        assert all(balance >= 0 for balance in balances)
        aborted = mill.output(bank.transfer.aborted).rows()
        assert moved + len(aborted) == 200


def test_calls_that_can_not_be_made_are_refused() -> None:
    bank = Accounts()
    with bank.app.start() as mill:
        with pytest.raises(tm.ProgramError, match="can't be called"):
            mill.call("close_account", id=1)
        with pytest.raises(tm.InputError, match="amount"):
            mill.call(bank.transfer, src=1, dst=2)
        with pytest.raises(tm.InputError, match="id"):
            mill.call(bank.open_account, id="one")
        with pytest.raises(tm.InputError, match="colour"):
            mill.call(bank.open_account, id=1, colour="red")
        assert mill.call(bank.open_account, id=1) is None
    with pytest.raises(tm.Error):
        mill.call(bank.open_account, id=2)


def test_what_can_not_be_a_reply_aborts() -> None:
    app = tm.App("replies")

    @app.procedure
    def give(tx, what: str):
        return {"text": "é", "set": {1}, "list": [1, 2.5, None, {"a": b"x"}]}[what]

    with app.start() as mill:
        assert mill.call(give, what="text") == "é"
        assert mill.call(give, what="list") == [1, 2.5, None, {"a": b"x"}]
        with pytest.raises(tm.Abort, match="set"):
            mill.call(give, what="set")
        with pytest.raises(tm.Abort, match="KeyError"):
            mill.call(give, what="nothing")


def test_a_procedure_may_be_async_and_waits_for_nothing_from_outside() -> None:
    app = tm.App("async")
    rows = app.table("rows", key="id", id=int, n=tm.column(int, default=0))

    async def add(id: int, n: int) -> int:
        rows[id].n += n
        return rows[id].n

    @app.procedure
    async def twice(tx, id: int):
        await add(id, 1)
        return await add(id, 2)

    @app.procedure
    async def sleepy(tx, id: int):
        import asyncio

        await add(id, 100)
        await asyncio.sleep(0)

    with app.start() as mill:
        assert mill.call(twice, id=1) == 3
        with pytest.raises(tm.Abort, match="awaits something that is not there yet"):
            mill.call(sleepy, id=1)
        assert mill.call(twice, id=1) == 6


def test_a_procedure_without_parameters(tmp_path: Path) -> None:
    app = tm.App("counter")
    counts = app.table("counts", key="id", id=int, n=tm.column(int, default=0))

    @app.procedure
    def count(tx):
        counts[1].n += 1
        tx.require(counts[1].n != 6, "six is one too many")
        return counts[1].n

    with app.start(http_port=0, data_dir=tmp_path / "data") as mill:
        client = tm.Client(mill.url)
        assert mill.call(count) == 1
        assert client.call("count") == 2
        once = client.using(request_id="a")
        assert [once.call("count"), once.call("count")] == [3, 3]
        mill.send(count, [{}, {}], wait=True)
        mill.drain()
        with pytest.raises(tm.Abort, match="six is one too many"):
            client.call("count")
        with pytest.raises(tm.InputError, match="no parameter 'n'"):
            client.call("count", n=1)
        assert [row["reply"] for row in mill.output(count).rows()] == [1, 2, 3, 4, 5]
    with app.start(data_dir=tmp_path / "data") as mill:
        assert mill.table(counts).rows() == [{"id": 1, "n": 5}]
