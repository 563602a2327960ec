"""Leaderboard Maintenance: three procedures validate, count and remove votes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.app import App
from tidemill.types import column

#: The number of last votes that the trend counts.
TREND = 100

# The leaderboards by number: most votes, fewest votes, and most of the last votes.
MOST, FEWEST, TRENDING = range(3)

# Empty places.
NOBODY = [(0, 0)] * 3


def app(options: Mapping[str, Any]) -> App:
    """Returns the app. ``every`` is the option of the benchmark.

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

    def most_first(place: tuple[int, int]) -> tuple[int, int]:
        return -place[1], place[0]

    def fewest_first(place: tuple[int, int]) -> tuple[int, int]:
        return place[1], place[0]

    def write(number: int, places: list[tuple[int, int]]) -> None:
        (first, a), (second, b), (third, c) = places
        boards.upsert(
            board=number,
            first=first,
            first_votes=a,
            second=second,
            second_votes=b,
            third=third,
            third_votes=c,
        )

    def write_boards(numbers: Iterable[int]) -> None:
        running = [(row.candidate, row.votes, row.recent) for row in candidates.scan()]
        for number in numbers:
            rank = fewest_first if number == FEWEST else most_first
            counted = 2 if number == TRENDING else 1
            places = sorted([(row[0], row[counted]) for row in running], key=rank)
            write(number, (places + NOBODY)[:3])

    def raise_boards(won: Any, left: Any) -> None:
        # All candidates are read only where one from outside a board may enter it.
        candidate, votes = won.candidate, won.votes
        unsettled = []
        for number in MOST, FEWEST, TRENDING:
            board = boards[number]
            if not board.exists():
                write_boards((MOST, FEWEST, TRENDING))
                return
            places = [(board.first, board.first_votes), (board.second, board.second_votes)]
            places.append((board.third, board.third_votes))
            settled: list[tuple[int, int]] | None = places
            if number == MOST:
                settled = settle(places, (candidate, votes), most_first)
            elif number == FEWEST:
                settled = settle(places, (candidate, votes), fewest_first)
            else:
                if left is not None:
                    settled = settle(places, (left.candidate, left.recent), most_first)
                if settled is not None:
                    settled = settle(settled, (candidate, won.recent), most_first)
            if settled is None:
                unsettled.append(number)
            elif settled is not places:
                write(number, settled)
        if unsettled:
            write_boards(unsettled)

    def settle(
        places: list[tuple[int, int]], own: tuple[int, int], rank: Callable[..., tuple[int, int]]
    ) -> list[tuple[int, int]] | None:
        """Returns a board after a candidate's votes have changed: the same board if nothing
        changes, and ``None`` if the last place must be searched among all candidates. All
        candidates outside the board rank after its last place.
        """
        last, candidate = places[2], own[0]
        is_behind = last[0] != 0 and rank(own) > rank(last)
        others = [place for place in places if place[0] != candidate]
        if len(others) < 3:
            if is_behind:
                return None
        elif is_behind:
            return places
        places = [place for place in others if place[0]]
        places.append(own)
        places.sort(key=rank)
        return (places + NOBODY)[:3]

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
            # The last votes are in a ring.
            last = recent[accepted % TREND]
            won, left = candidates[vote.candidate], None
            won.votes += 1
            if not last.exists() or last.candidate != vote.candidate:
                won.recent += 1
                if last.exists() and (leaves := candidates[last.candidate]).exists():
                    leaves.recent -= 1
                    left = leaves
                last.candidate = vote.candidate
            raise_boards(won, left)
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
