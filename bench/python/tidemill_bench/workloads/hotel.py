"""DeathStarBench's hotels: searches, recommendations, logins and bookings by functions."""

from __future__ import annotations

import math
from typing import Any

from tidemill.app import App
from tidemill.entity import Context
from tidemill.errors import Abort

#: The distance of near hotels in kilometres, and the largest number of them in a reply.
NEAR_KM = 10.0
NEAREST = 5
EARTH_KM = 6371.0
#: Above the number of any hotel: scans stay in the city, and so in its partition.
BEHIND = 1 << 62


def distance_km(lat: float, lon: float, to_lat: float, to_lon: float) -> float:
    """Returns the distance along the surface, in kilometres.

    >>> round(distance_km(52.52, 13.405, 48.137, 11.575))
    504
    """
    a, b = math.radians(lat), math.radians(to_lat)
    x, y = math.sin((b - a) / 2), math.sin(math.radians(to_lon - lon) / 2)
    return 2 * EARTH_KM * math.asin(math.sqrt(x * x + math.cos(a) * math.cos(b) * y * y))


def app() -> App:
    """Returns the app.

    >>> [handler.name for handler in app().handlers][-1]
    'booking.make'
    """
    made = App("hotel")
    city = made.entity("city", key="id", id=int, name=str)
    place = made.table(
        "place",
        key=("city", "hotel"),
        partition_prefix=1,
        ordered=True,
        city=int,
        hotel=int,
        lat=float,
        lon=float,
    )
    advice = made.table(
        "advice",
        key=("city", "hotel"),
        partition_prefix=1,
        ordered=True,
        city=int,
        hotel=int,
        lat=float,
        lon=float,
        rating=float,
        price=int,
    )
    rate = made.entity("rate", key="hotel", hotel=int, price=int)
    user = made.entity("user", key="name", name=str, password=str)
    hotel = made.entity("hotel", key="id", id=int, rooms=int)
    flight = made.entity("flight", key="id", id=int, seats=int)
    booking = made.entity("booking", key="id", id=int, user=str, hotel=int, flight=int, state=str)

    @rate.function
    async def price_of(self: Any, ctx: Context) -> int:
        return int(self.price)

    @city.function
    async def search(self: Any, ctx: Context, lat: float, lon: float) -> list[Any]:
        near = []
        for row in place.scan((self.id, 0), (self.id, BEHIND)):
            away = distance_km(lat, lon, row.lat, row.lon)
            if away <= NEAR_KM:
                near.append((away, row.hotel))
        near.sort()
        # Only some hotels have a rate.
        offered = [number for _, number in near[:NEAREST] if await rate[number].exists()]
        prices = await ctx.gather(*(rate[number].price_of() for number in offered))
        return [[number, price] for number, price in zip(offered, prices, strict=True)]

    @city.function
    async def recommend(self: Any, ctx: Context, by: str, lat: float, lon: float) -> list[int]:
        rows = list(advice.scan((self.id, 0), (self.id, BEHIND)))
        if by == "distance":
            marks = [distance_km(lat, lon, row.lat, row.lon) for row in rows]
        elif by == "rating":
            marks = [-row.rating for row in rows]
        elif by == "price":
            marks = [row.price for row in rows]
        else:
            raise Abort(f"hotels are recommended by distance, rating or price, not by {by}")
        best = min(marks)
        return [row.hotel for row, mark in zip(rows, marks, strict=True) if mark == best]

    @user.function
    async def login(self: Any, ctx: Context, password: str) -> bool:
        return bool(self.password == password)

    @hotel.function(name="take")
    async def take_room(self: Any, ctx: Context) -> None:
        if self.rooms == 0:
            raise Abort("no rooms left")
        self.rooms -= 1

    @flight.function(name="take")
    async def take_seat(self: Any, ctx: Context) -> None:
        if self.seats == 0:
            raise Abort("no seats left")
        self.seats -= 1

    @booking.function(creates=True)
    async def make(self: Any, ctx: Context, who: str, hotel_id: int, flight_id: int) -> None:
        await ctx.gather(hotel[hotel_id].take(), flight[flight_id].take())
        self.user, self.hotel, self.flight, self.state = who, hotel_id, flight_id, "booked"

    return made
