"""DeathStarBench's movie reviews: functions compose a review without awaiting each other."""

from __future__ import annotations

from typing import Any

from tidemill.app import App
from tidemill.entity import Context
from tidemill.types import column

#: The number of counters that number reviews.
COUNTERS = 16


def app() -> App:
    """Returns the app.

    >>> [handler.name for handler in app().handlers][-1]
    'review.compose'
    """
    made = App("movie")
    zero, empty = column(int, default=0), column(str, default="")
    review = made.entity(
        "review", key="id", id=int, number=zero, user=zero, movie=zero, rating=zero, text=empty
    )
    counter = made.entity("counter", key="id", id=int, given=zero)
    user = made.entity("user", key="name", name=str, id=int, reviews=zero)
    movie = made.entity("movie", key="title", title=str, id=int)
    rating = made.entity("rating", key="movie", movie=int, total=zero, count=zero)
    text = made.entity("text", key="review", review=int, text=empty)

    @review.function
    async def set_number(self: Any, ctx: Context, number: int) -> None:
        self.number = number

    @review.function
    async def set_user(self: Any, ctx: Context, user: int) -> None:
        self.user = user

    @review.function
    async def set_movie(self: Any, ctx: Context, movie: int) -> None:
        self.movie = movie

    @review.function
    async def set_rating(self: Any, ctx: Context, rating: int) -> None:
        self.rating = rating

    @review.function
    async def set_text(self: Any, ctx: Context, text: str) -> None:
        self.text = text

    @counter.function(creates=True)
    async def give(self: Any, ctx: Context, to: int) -> None:
        self.given += 1
        review[to].set_number(self.given * COUNTERS + self.id)

    @user.function
    async def writes(self: Any, ctx: Context, to: int) -> None:
        self.reviews += 1
        review[to].set_user(self.id)

    @rating.function(creates=True)
    async def add(self: Any, ctx: Context, to: int, given: int) -> None:
        self.total += given
        self.count += 1
        review[to].set_rating(given)

    @movie.function
    async def is_reviewed(self: Any, ctx: Context, to: int, given: int) -> None:
        review[to].set_movie(self.id)
        rating[self.id].add(to, given)

    @text.function(creates=True)
    async def keep(self: Any, ctx: Context, written: str) -> None:
        self.text = written
        review[self.review].set_text(written)

    @review.function(creates=True)
    async def compose(
        self: Any, ctx: Context, name: str, title: str, given: int, written: str
    ) -> None:
        self.number = 0
        counter[self.id % COUNTERS].give(self.id)
        user[name].writes(self.id)
        movie[title].is_reviewed(self.id, given)
        text[self.id].keep(written)

    return made
