"""Leaderboard Maintenance: votes that are validated, counted and taken back by three procedures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.app import App
from tidemill.types import column

#: So many of the last votes make a trend.
TREND = 100

# The leaderboards, by number: most votes, fewest, and most of the last ones.
MOST, FEWEST, TRENDING = range(3)


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
    boards = made.table("boards", key="board", board=int, **columns)

    candidacies = made.stream("candidacies", candidate=int)
    cast = made.stream("cast", phone=int, candidate=int)
    valid = made.stream("valid", phone=int, candidate=int)
    counted = made.stream("counted", accepted=int)
    removed = made.stream("removed", candidate=int, votes=int, accepted=int)

    def on(board: Any) -> tuple[int, int, int]:
        return board.first, board.second, board.third

    def write_boards(numbers: tuple[int, ...]) -> None:
        running = [(row.candidate, row.votes, row.recent) for row in candidates.scan()]
        for number in numbers:
            if number == MOST:
                order = sorted([(-votes, candidate, votes) for candidate, votes, _ in running])
            elif number == FEWEST:
                order = sorted([(votes, candidate, votes) for candidate, votes, _ in running])
            else:
                order = sorted([(-recent, candidate, recent) for candidate, _, recent in running])
            write(number, [(candidate, count) for _, candidate, count in order[:3]])

    def write(number: int, order: list[tuple[int, int]]) -> None:
        (first, a), (second, b), (third, c) = (*order, *[(0, 0)] * (3 - len(order)))
        boards.upsert(
            board=number,
            first=first,
            first_votes=a,
            second=second,
            second_votes=b,
            third=third,
            third_votes=c,
        )

    def raise_board(number: int, board: Any, candidate: int, value: int) -> None:
        there = candidate in on(board)
        if not there and board.third and (-board.third_votes, board.third) < (-value, candidate):
            return
        held = (
            (board.first, board.first_votes),
            (board.second, board.second_votes),
            (board.third, board.third_votes),
        )
        now = [place for place in held if place[0] not in (0, candidate)]
        now.append((candidate, value))
        now.sort(key=lambda place: (-place[1], place[0]))
        write(number, now[:3])

    def raise_boards(row: Any, candidate: int, leaves: int | None) -> None:
        # All candidates are looked at only where one on a board may have to make room for another.
        most, fewest, trending = boards[MOST], boards[FEWEST], boards[TRENDING]
        if not most.exists():
            write_boards((MOST, FEWEST, TRENDING))
            return
        raise_board(MOST, most, candidate, row.votes)
        if candidate in on(fewest):
            write_boards((FEWEST,))
        if leaves != candidate and leaves in on(trending):
            write_boards((TRENDING,))
        else:
            raise_board(TRENDING, trending, candidate, row.recent)

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
            total = tally[0]
            accepted = total.accepted
            total.accepted = accepted + 1
            # The last votes are a ring.
            last = recent[accepted % TREND]
            leaves = last.candidate if last.exists() else None
            if leaves is not None and (left := candidates[leaves]).exists():
                left.recent -= 1
            last.candidate = vote.candidate
            row = candidates[vote.candidate]
            row.votes += 1
            row.recent += 1
            raise_boards(row, vote.candidate, leaves)
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
            write_boards((MOST, FEWEST, TRENDING))
            tx.emit(removed, candidate=gone, votes=had, accepted=count.accepted)

    made.nested("vote", validate, count, remove)
    return made
