"""Deadlines of calls: a thread interrupts the threads whose calls take too long."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemill._native import Watched


#: The time between two interruptions of one call, in seconds.
AGAIN: Final = 0.1
#: The shortest time between two looks at the calls, in seconds.
LOOK_MIN: Final = 0.001


class Overdue(BaseException):
    """The exception in a function whose deadline has passed; ``except Exception`` misses it."""


class Calls:
    """The running calls of threads, found by looking at their numbers.

    Calls do not report themselves, because that would cost time in each call. Instead the thread
    looks at their numbers eight times within the limit of a call. So it interrupts a call between
    its deadline and a quarter of the limit later. Looks are at least a millisecond apart.
    """

    def __init__(self) -> None:
        # The last seen call of each thread, and the time at which to interrupt it.
        self._seen: dict[Watched, tuple[int, float]] = {}

    def add(self, watched: Watched) -> None:
        """Adds a thread, whose calls are looked at from now on."""
        self._seen.setdefault(watched, (0, 0.0))

    def look(self, now: float) -> float | None:
        """Interrupts the calls whose deadline has passed.

        Returns the wait before the next look, in seconds, or None if no thread is left.
        """
        limits = {one: one.limit() for one in self._seen}
        looks: list[float] = []
        for one, of in limits.items():
            if of is None:
                del self._seen[one]
                continue
            looks.append(of / 8e6)
            call, limit = one.running() or (0, 0)
            last, until = self._seen[one]
            if call != last:
                self._seen[one] = (call, now + limit / 1e6)
            elif call and now >= until:
                # Repeatedly, because a function may catch the exception and continue.
                one.interrupt(call, Overdue)
                self._seen[one] = (call, now + AGAIN)
                looks.append(AGAIN)
        return max(min(looks), LOOK_MIN) if looks else None


class Watch:
    """The thread that watches calls; it starts with the first watched thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = Calls()
        self._come = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, watched: Watched) -> None:
        """Watches a thread's calls from now on."""
        with self._lock:
            self._calls.add(watched)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="tidemill-deadline", daemon=True
                )
                self._thread.start()
        self._come.set()

    def _watch(self) -> None:
        while True:
            self._come.clear()
            with self._lock:
                wait = self._calls.look(time.monotonic())
            self._come.wait(wait)


#: The watch of all calls of this process.
WATCH: Final = Watch()
