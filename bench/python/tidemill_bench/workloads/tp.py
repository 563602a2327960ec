"""Toll Processing: the mean speed of road segments and the vehicles seen there."""

from __future__ import annotations

from typing import Any

from tidemill.app import App
from tidemill.functions import where
from tidemill.types import FLOAT, INT, TIMESTAMP, column

#: The lowest speed that is refused.
SPEED_END = 200
#: The number of vehicles in a word of a set.
WORD_VEHICLES = 50


def app(opaque: bool) -> App:
    """Returns the app, traced or with an opaque function.

    >>> [handler.path for handler in app(opaque=False).handlers]
    ['traced']
    """
    made = App("tp")
    zero = column(int, default=0)
    speeds = made.table("speeds", key="segment", segment=int, mean=column(float, default=0.0))
    vehicles = made.table("vehicles", key="segment", segment=int, low=zero, high=zero, count=zero)
    reports = made.stream(
        "reports", time="at", at=TIMESTAMP, segment=int, vehicle=int, bit=int, speed=int
    )
    out = {"segment": INT, "mean": FLOAT, "count": INT}

    @made.transaction(reports, opaque=opaque, out=out)
    def report(tx: Any, e: Any) -> Any:
        tx.require(e.speed < SPEED_END, "nothing is so fast")
        speed, seen = speeds[e.segment], vehicles[e.segment]
        old = speed.mean
        mean = where(old == 0.0, 0.0 + e.speed, (old + e.speed) / 2)
        speed.mean = mean
        low, high = seen.low, seen.high
        is_low = e.vehicle <= WORD_VEHICLES
        word = where(is_low, low, high)
        # The word without the lower bits is odd if the bit is set.
        come = 1 - word // e.bit % 2
        word = word + come * e.bit
        count = seen.count + come
        seen.low = where(is_low, word, low)
        seen.high = where(is_low, high, word)
        seen.count = count
        return {"segment": e.segment, "mean": mean, "count": count}

    return made
