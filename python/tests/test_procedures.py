"""Procedures: batches, rounds, nested transactions."""

from __future__ import annotations

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
        """What the reference comes to; the engine comes to the same."""
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
        app.procedure()  # here

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
        (no_stream, "needs the streams"),
        (no_function, "not a function"),
        (another_app, "belongs to another app"),
        (twice, "given twice"),
        (arguments, "(tx, numbers, others)"),
        (returns, "returns events"),
        (no_procedure, "is no procedure"),
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
