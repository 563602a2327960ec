"""Leaderboard Maintenance: votes that are validated, counted and taken back by three procedures."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import Any

from tidemill.app import App
from tidemill.types import column

#: So many of the last votes make a trend.
TREND = 100


def app(options: Mapping[str, Any]) -> App:
    """The app; ``every`` is that of the benchmark.

    >>> [handler.path for handler in app({}).handlers]
    ['traced', 'opaque', 'opaque', 'opaque']
    """
    every = options.get("every", 20_000)
    zero = column(int, default=0)
    made = App("leaderboard")
    candidates = made.table(
        "candidates", key="candidate", ordered=True, candidate=int, votes=zero, recent=zero
    )
    votes = made.table("votes", key="phone", phone=int, candidate=int)
    by_candidate = votes.index("candidate")
    tally = made.table("tally", key="id", id=int, accepted=zero)
    recent = made.table("recent", key="place", place=int, candidate=int)
    places = ("first", "first_votes", "second", "second_votes", "third", "third_votes")
    columns: dict[str, Any] = dict.fromkeys(places, int)
    named = list(zip(places[::2], places[1::2], strict=True))
    boards = made.table("boards", key="board", board=int, **columns)

    candidacies = made.stream("candidacies", candidate=int)
    cast = made.stream("cast", phone=int, candidate=int)
    valid = made.stream("valid", phone=int, candidate=int)
    counted = made.stream("counted", accepted=int)
    removed = made.stream("removed", candidate=int, votes=int, accepted=int)

    def write_boards() -> None:
        running = [(row.candidate, row.votes, row.recent) for row in candidates.scan()]
        orders = (
            nsmallest(3, ((-votes, candidate, votes) for candidate, votes, _ in running)),
            nsmallest(3, ((votes, candidate, votes) for candidate, votes, _ in running)),
            nsmallest(3, ((-recent, candidate, recent) for candidate, _, recent in running)),
        )
        for number, order in enumerate(orders):
            row = [value for _, candidate, count in order for value in (candidate, count)]
            row += [0] * (len(places) - len(row))
            boards.upsert(board=number, **dict(zip(places, row, strict=True)))

    def raise_boards(candidate: int, leaves: int | None) -> None:
        # All candidates are looked at only where one on a board may have to make room for another.
        most, fewest, trending = (boards[number] for number in range(3))
        falls = leaves != candidate and leaves in (trending[place] for place in places[::2])
        if not most.exists() or falls or candidate in (fewest[place] for place in places[::2]):
            write_boards()
            return
        row = candidates[candidate]
        for board, value in ((most, row.votes), (trending, row.recent)):
            held = [(board[name], board[its]) for name, its in named]
            others = [place for place in held if place[0] not in (0, candidate)]
            now = sorted([*others, (candidate, value)], key=lambda place: (-place[1], place[0]))
            for place, before, (name, its) in zip(now, held, named, strict=False):
                if place != before:
                    board[name], board[its] = place

    @made.transaction(candidacies)
    def stand(tx: Any, e: Any) -> None:
        candidates.insert(candidate=e.candidate)

    @made.procedure(cast, emits=[valid])
    def validate(tx: Any, cast: Any) -> None:
        for vote in cast:
            tx.require(candidates[vote.candidate].exists(), "no such candidate is running")
            tx.require(not votes[vote.phone].exists(), "this phone has voted")
            votes.insert(phone=vote.phone, candidate=vote.candidate)
            tx.emit(valid, phone=vote.phone, candidate=vote.candidate)

    @made.procedure(valid, emits=[counted])
    def count(tx: Any, valid: Any) -> None:
        for vote in valid:
            accepted = tally[0].accepted
            tally[0].accepted = accepted + 1
            # The last votes are a ring.
            last = recent[accepted % TREND]
            leaves = last.candidate if last.exists() else None
            if leaves is not None and candidates[leaves].exists():
                candidates[leaves].recent -= 1
            last.candidate = vote.candidate
            candidates[vote.candidate].votes += 1
            candidates[vote.candidate].recent += 1
            raise_boards(vote.candidate, leaves)
            tx.emit(counted, accepted=accepted + 1)

    @made.procedure(counted, emits=[removed])
    def remove(tx: Any, counted: Any) -> None:
        for count in counted:
            if count.accepted % every:
                continue
            running = candidates.scan()
            if len(running) == 1:
                continue
            least = min(running, key=lambda row: (row.votes, row.candidate))
            gone, had = least.candidate, least.votes
            for vote in by_candidate[gone]:
                vote.delete()
            least.delete()
            write_boards()
            tx.emit(removed, candidate=gone, votes=had, accepted=count.accepted)

    made.nested("vote", validate, count, remove)
    return made
